//! What an area of a process' memory is for.

use serde::{Deserialize, Serialize};

/// What lies in an area of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The program's own file: instructions and data.
    Code,
    /// Other files that the process has mapped to execute.
    Library,
    /// Memory of its own without a file: `brk`, private anonymous mappings, stacks.
    Heap,
    /// Files that are mapped to be read or written.
    File,
    /// Memory shared with other processes: anonymous, System V, `memfd`, `/dev/shm`.
    Shared,
    /// What the kernel puts into every process (`[vdso]`, `[vvar]`).
    Kernel,
}

impl Kind {
    /// Every kind, in the order of reports.
    pub const ALL: [Self; 6] =
        [Self::Code, Self::Library, Self::Heap, Self::File, Self::Shared, Self::Kernel];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Library => "library",
            Self::Heap => "heap",
            Self::File => "file",
            Self::Shared => "shared",
            Self::Kernel => "kernel",
        }
    }
}

/// An area as `/proc/PID/maps` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named<'a> {
    /// Whether it may be executed.
    pub executable: bool,
    /// Whether writes are seen by others (`MAP_SHARED`).
    pub shared: bool,
    /// The file, `[heap]` and the like, or nothing.
    pub name: &'a str,
}

/// The kind of every area of one process, in their order. `program` is what `/proc/PID/exe` points to.
pub fn kinds(areas: &[Named<'_>], program: &str) -> Vec<Kind> {
    let executed: std::collections::HashSet<&str> =
        areas.iter().filter(|area| area.executable && is_file(area.name)).map(|area| area.name).collect();
    areas
        .iter()
        .map(|area| match area.name {
            "[vdso]" | "[vvar]" | "[vvar_vclock]" | "[vsyscall]" | "[uprobes]" => Kind::Kernel,
            name if !is_file(name) && area.shared => Kind::Shared,
            name if !is_file(name) => Kind::Heap,
            name if area.shared && is_memory(name) => Kind::Shared,
            name if name == program => Kind::Code,
            name if executed.contains(name) => Kind::Library,
            _ => Kind::File,
        })
        .collect()
}

fn is_file(name: &str) -> bool {
    // "//anon" is what very old kernels say of huge pages without a file.
    name.starts_with('/') && name != "//anon"
}

/// Whether a "file" is only the kernel's way to share memory (mm/shmem.c, ipc/shm.c, fs/hugetlbfs).
fn is_memory(name: &str) -> bool {
    ["/dev/zero", "/SYSV", "/memfd:", "/dev/shm/", "/anon_hugepage"]
        .iter()
        .any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_what_they_are_for() {
        let area = |flags: &str, name: &'static str| Named {
            executable: flags.contains('x'),
            shared: flags.contains('s'),
            name,
        };
        let table = [
            (area("r--p", "/usr/bin/web"), Kind::Code),
            (area("r-xp", "/usr/bin/web"), Kind::Code),
            (area("rw-p", "/lib/libc.so.6"), Kind::Library),
            (area("r-xp", "/lib/libc.so.6"), Kind::Library),
            (area("r--p", "/usr/lib/locale/locale-archive"), Kind::File),
            (area("rw-s", "/srv/data.db"), Kind::File),
            (area("rw-p", "[heap]"), Kind::Heap),
            (area("rw-p", "[stack]"), Kind::Heap),
            (area("rw-p", "[anon: Go: heap]"), Kind::Heap),
            (area("rw-p", ""), Kind::Heap),
            (area("rw-s", "/dev/zero (deleted)"), Kind::Shared),
            (area("rw-s", "/memfd:ring (deleted)"), Kind::Shared),
            (area("rw-s", "/SYSV00000000 (deleted)"), Kind::Shared),
            (area("rw-s", "/dev/shm/psm_1"), Kind::Shared),
            (area("r-xp", "[vdso]"), Kind::Kernel),
        ];
        let areas: Vec<Named<'_>> = table.iter().map(|(area, _)| *area).collect();
        let expected: Vec<Kind> = table.iter().map(|(_, kind)| *kind).collect();
        assert_eq!(kinds(&areas, "/usr/bin/web"), expected);
    }
}
