//! What an area of a process' memory is for.

use serde::{Deserialize, Serialize};

/// What lies in an area of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AreaKind {
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

impl AreaKind {
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
pub struct NamedArea<'a> {
    /// Whether it may be executed.
    pub executable: bool,
    /// Whether writes are seen by others (`MAP_SHARED`).
    pub shared: bool,
    /// The file, `[heap]` and the like, or nothing.
    pub name: &'a str,
}

/// The kind of every area of one process, in their order. `program` is what `/proc/PID/exe` points to.
pub(crate) fn area_kinds(areas: &[NamedArea<'_>], program: &str) -> Vec<AreaKind> {
    let executed: std::collections::HashSet<&str> =
        areas.iter().filter(|area| area.executable && is_file(area.name)).map(|area| area.name).collect();
    areas
        .iter()
        .map(|area| match area.name {
            "[vdso]" | "[vvar]" | "[vvar_vclock]" | "[vsyscall]" | "[uprobes]" => AreaKind::Kernel,
            name if !is_file(name) && area.shared => AreaKind::Shared,
            name if !is_file(name) => AreaKind::Heap,
            name if area.shared && is_memory(name) => AreaKind::Shared,
            name if name == program => AreaKind::Code,
            name if executed.contains(name) => AreaKind::Library,
            _ => AreaKind::File,
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
        let area = |flags: &str, name: &'static str| NamedArea {
            executable: flags.contains('x'),
            shared: flags.contains('s'),
            name,
        };
        let table = [
            (area("r--p", "/usr/bin/web"), AreaKind::Code),
            (area("r-xp", "/usr/bin/web"), AreaKind::Code),
            (area("rw-p", "/lib/libc.so.6"), AreaKind::Library),
            (area("r-xp", "/lib/libc.so.6"), AreaKind::Library),
            (area("r--p", "/usr/lib/locale/locale-archive"), AreaKind::File),
            (area("rw-s", "/srv/data.db"), AreaKind::File),
            (area("rw-p", "[heap]"), AreaKind::Heap),
            (area("rw-p", "[stack]"), AreaKind::Heap),
            (area("rw-p", "[anon: Go: heap]"), AreaKind::Heap),
            (area("rw-p", ""), AreaKind::Heap),
            (area("rw-s", "/dev/zero (deleted)"), AreaKind::Shared),
            (area("rw-s", "/memfd:ring (deleted)"), AreaKind::Shared),
            (area("rw-s", "/SYSV00000000 (deleted)"), AreaKind::Shared),
            (area("rw-s", "/dev/shm/psm_1"), AreaKind::Shared),
            (area("r-xp", "[vdso]"), AreaKind::Kernel),
        ];
        let areas: Vec<NamedArea<'_>> = table.iter().map(|(area, _)| *area).collect();
        let expected: Vec<AreaKind> = table.iter().map(|(_, kind)| *kind).collect();
        assert_eq!(area_kinds(&areas, "/usr/bin/web"), expected);
    }
}
