//! Who was sampled: processes with their programs and mapped files, kept up to date by perf's records, and stacks counted.
//!
//! # Problem
//! A container's start is the work of programs that live for milliseconds: `runc`, a copy of `runc` in memory, `dockerd` that
//! calls itself again. When samples are looked at, their processes are gone, and their mount namespaces with them.
//!
//! # Approach
//! The kernel tells of every mapping and, since 5.12, the build id of the file. A file is opened when it is first heard of,
//! through `/proc/PID/root`, and stays open until its symbols were read; a process that was faster is looked for by the same
//! path outside, and what is in memory only, by its build id among the files that others map. A file whose build id is
//! another than the one that ran is not used.
//!
//! Only some processes are of interest: those that [`Processes::watch`] names, everything they start, and everything that the
//! profiler itself starts. The rest is counted, and nothing else kept of it, least of all files: all those of a machine would be
//! more than a process may have open.

use super::perf::record::{CONTEXT_KERNEL, CONTEXT_MAX, CONTEXT_USER, Map, Record};
use elbowroom_linux::probe::file::open_in;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Files that are kept open at most: half of what a process may have open where nobody raised that. What engines and containers
/// run is less.
const MOST_FILES: usize = 512;
/// kthreadd, the parent of all kernel threads.
const KTHREADD: u32 = 2;

/// Processes, and what was seen of them.
#[derive(Debug, Default)]
pub struct Processes {
    known: HashMap<u32, Process>,
    /// Files that were mapped, by their place in this list.
    pub(super) modules: Vec<Module>,
    by_build: HashMap<Vec<u8>, u32>,
    by_path: HashMap<String, u32>,
    /// Stacks of watched processes, and how often each was seen.
    pub(super) stacks: HashMap<(Arc<str>, Vec<Address>), u64>,
    /// What was counted besides.
    pub tally: Tally,
    own: u32,
}

/// Samples by whose they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    /// Of watched processes: those whose stacks were kept.
    pub watched: u64,
    /// Of kernel threads, which also work for others.
    pub kernel_threads: u64,
    /// Of the profiler itself.
    pub profiler: u64,
    /// Of the rest of the machine.
    pub others: u64,
    /// Samples that the kernel had no room for.
    pub lost: u64,
}

/// A file that was mapped to be run.
#[derive(Debug)]
pub(super) struct Module {
    /// As people call it: without directories.
    pub(super) name: Arc<str>,
    /// Its build id; empty where the kernel did not say.
    pub(super) build_id: Vec<u8>,
    /// The file; `None` where none could be opened.
    pub(super) file: Option<File>,
}

/// Where an instruction was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Address {
    /// In the kernel.
    Kernel(u64),
    /// In a file, so far from its begin.
    File(u32, u64),
    /// In memory that no file is mapped to: generated code, or a mapping that was not heard of.
    Memory,
}

#[derive(Clone, Debug, Default)]
struct Process {
    name: Arc<str>,
    kin: Kin,
    maps: Vec<Mapping>,
}

/// Whose a process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kin {
    /// Nobody's that matters.
    #[default]
    Stranger,
    /// The kernel's.
    KernelThread,
    /// The profiler itself, and what it has only forked: still its code.
    Profiler,
    /// Watched.
    Watched,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    module: u32,
}

impl Processes {
    /// Every process that runs now. To be called when events are on, so that none falls between.
    pub fn now() -> Self {
        let mut processes = Self { own: std::process::id(), ..Self::default() };
        for pid in elbowroom_linux::process::all() {
            processes.look(pid);
        }
        processes
    }

    /// Watches process `pid` and everything below it, now and from now on.
    pub fn watch(&mut self, pid: u32) {
        let parents: Vec<(u32, u32)> =
            self.known.keys().filter_map(|pid| Some((*pid, parent(*pid)?))).collect();
        let mut watched = vec![pid];
        while let Some(pid) = watched.pop() {
            if let Some(process) = self.known.get_mut(&pid) {
                process.kin = Kin::Watched;
                self.look_at_maps(pid);
            }
            watched.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child));
        }
    }

    /// Takes one record; samples count only where `counts`.
    pub fn take(&mut self, record: Record, counts: bool) {
        match record {
            Record::Sample { pid, chain } => {
                if counts {
                    self.sample(pid, &chain);
                }
            }
            Record::Map(map) => self.map(&map),
            Record::Comm { pid, tid, name, exec } if pid == tid || exec => {
                let process = self.known.entry(pid).or_default();
                process.name = name.into();
                if exec {
                    process.maps.clear();
                    // What the profiler forked is another program from here on.
                    if process.kin == Kin::Profiler {
                        process.kin = Kin::Watched;
                    }
                }
            }
            Record::Fork { pid, parent } if pid != parent => {
                let mut child = self.known.get(&parent).cloned().unwrap_or_default();
                if parent == KTHREADD {
                    child.kin = Kin::KernelThread;
                }
                self.known.insert(pid, child);
            }
            Record::Lost(count) => self.tally.lost += count,
            // Nothing says that a process ended: it may outlive its first thread, whose end is all that is told. Its number is used
            // again by a fork, which replaces what was there.
            Record::Comm { .. } | Record::Fork { .. } => {}
        }
    }

    fn sample(&mut self, pid: u32, chain: &[u64]) {
        let Some(process) = self.known.get(&pid) else {
            self.tally.others += 1;
            return;
        };
        match process.kin {
            Kin::Stranger => self.tally.others += 1,
            Kin::KernelThread => self.tally.kernel_threads += 1,
            Kin::Profiler => self.tally.profiler += 1,
            Kin::Watched => {
                self.tally.watched += 1;
                let addresses = addresses(&process.maps, chain);
                *self.stacks.entry((Arc::clone(&process.name), addresses)).or_default() += 1;
            }
        }
    }

    fn map(&mut self, map: &Map) {
        // Kin is known by now: a mapping comes after the fork, or the exec of what the profiler forked.
        if self.known.get(&map.pid).is_none_or(|process| process.kin != Kin::Watched) {
            return;
        }
        let module = self.module(map);
        let process = self.known.entry(map.pid).or_default();
        process.maps.retain(|old| old.end <= map.start || old.start >= map.end);
        process.maps.push(Mapping { start: map.start, end: map.end, offset: map.offset, module });
    }

    /// The file of a mapping, opened when it is first heard of.
    fn module(&mut self, map: &Map) -> u32 {
        let known = match map.build_id.is_empty() {
            true => self.by_path.get(&map.path),
            false => self.by_build.get(&map.build_id),
        };
        if let Some(known) = known {
            let place = *known as usize;
            let module = &mut self.modules[place];
            // First heard of as a copy in memory, or by a process that was gone already.
            if module.file.is_none()
                && place < MOST_FILES
                && let Some(file) = open(map)
            {
                (module.file, module.name) = (Some(file), name(&map.path));
            }
            return *known;
        }
        let file = if self.modules.len() < MOST_FILES { open(map) } else { None };
        let place = self.modules.len() as u32;
        self.modules.push(Module { name: name(&map.path), build_id: map.build_id.clone(), file });
        match map.build_id.is_empty() {
            true => self.by_path.insert(map.path.clone(), place),
            false => self.by_build.insert(map.build_id.clone(), place),
        };
        place
    }

    /// Takes in a process that runs already.
    fn look(&mut self, pid: u32) {
        let Ok(name) = std::fs::read_to_string(format!("/proc/{pid}/comm")) else { return };
        let kin = match (pid == self.own, pid == KTHREADD || parent(pid) == Some(KTHREADD)) {
            (true, _) => Kin::Profiler,
            (_, true) => Kin::KernelThread,
            _ => Kin::Stranger,
        };
        self.known.insert(pid, Process { name: name.trim_end().into(), kin, maps: Vec::new() });
    }

    /// Takes in the files that a process has mapped already.
    fn look_at_maps(&mut self, pid: u32) {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.lines().filter_map(|line| map_line(pid, line)).for_each(|map| self.map(&map));
    }
}

/// A line of `/proc/PID/maps` of a file that is mapped to be run: `start-end perms offset dev inode path`.
pub fn map_line(pid: u32, line: &str) -> Option<Map> {
    let mut words = line.splitn(6, ' ');
    let (range, permissions, offset) = (words.next()?, words.next()?, words.next()?);
    let path = words.nth(2)?.trim_start();
    if permissions.as_bytes().get(2) != Some(&b'x') || path.is_empty() {
        return None;
    }
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    let build_id = Vec::new();
    Some(Map {
        pid,
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        path: path.to_owned(),
        build_id,
    })
}

/// A chain's addresses, each with what it is in. A return address stands behind the call: one less is inside it.
fn addresses(maps: &[Mapping], chain: &[u64]) -> Vec<Address> {
    let (mut addresses, mut kernel, mut innermost) = (Vec::new(), false, true);
    for address in chain {
        match *address {
            CONTEXT_KERNEL => kernel = true,
            CONTEXT_USER => (kernel, innermost) = (false, true),
            marker if marker >= CONTEXT_MAX => {}
            address => {
                let address = if innermost { address } else { address.saturating_sub(1) };
                innermost = false;
                addresses.push(if kernel { Address::Kernel(address) } else { in_file(maps, address) });
            }
        }
    }
    addresses
}

/// Where an address lies in the file that is mapped there. A program may map a device at any offset: what would be behind the end of
/// every file is in none.
fn in_file(maps: &[Mapping], address: u64) -> Address {
    let map = maps.iter().find(|map| (map.start..map.end).contains(&address));
    let place = map.and_then(|map| Some((map.module, map.offset.checked_add(address - map.start)?)));
    place.map_or(Address::Memory, |(module, offset)| Address::File(module, offset))
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything; the last parenthesis ends it.
    let rest = &stat[stat.iter().rposition(|byte| *byte == b')')?..];
    String::from_utf8_lossy(rest).split_whitespace().nth(2)?.parse().ok()
}

/// The mapped file, from the process's root, or from ours when the process is gone.
fn open(map: &Map) -> Option<File> {
    // `[vdso]`, `anon_inode:...`, `/memfd:...`, `//anon`: no files.
    if !map.path.starts_with('/') || map.path.starts_with("/memfd:") || map.path.starts_with("//") {
        return None;
    }
    let path = map.path.strip_suffix(" (deleted)").unwrap_or(&map.path);
    open_below([format!("/proc/{}/root", map.pid), "/".to_owned()], path)
}

/// A plain file, from the first of the roots that has one at this path. What is there is the container's to choose, and to change.
fn open_below(roots: impl IntoIterator<Item = String>, path: &str) -> Option<File> {
    roots.into_iter().find_map(|root| open_in(Path::new(&root), Path::new(path)).ok())
}

fn name(path: &str) -> Arc<str> {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let name = Path::new(path).file_name().map_or(path.as_bytes(), OsStrExt::as_bytes);
    String::from_utf8_lossy(name).trim_matches(['[', ']']).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comm(pid: u32, name: &str, exec: bool) -> Record {
        Record::Comm { pid, tid: pid, name: name.into(), exec }
    }

    fn sample(pid: u32) -> Record {
        Record::Sample {
            pid,
            chain: vec![CONTEXT_KERNEL, 0xffff_0000_0000_0010, CONTEXT_USER, 0x1010, 0x1021],
        }
    }

    fn map(pid: u32, path: &str, build_id: &[u8]) -> Record {
        let (path, build_id) = (path.to_owned(), build_id.to_vec());
        Record::Map(Map { pid, start: 0x1000, end: 0x2000, offset: 0x400, path, build_id })
    }

    /// Nothing but a process of kin `kin`, as if it had been found in /proc.
    fn only(pid: u32, name: &str, kin: Kin) -> Processes {
        let mut processes = Processes { own: 5, ..Processes::default() };
        processes.known.insert(pid, Process { name: name.into(), kin, maps: Vec::new() });
        processes
    }

    #[test]
    fn what_a_watched_process_starts_is_watched_under_its_own_name() {
        let mut p = only(10, "dockerd", Kin::Watched);
        p.take(Record::Fork { pid: 11, parent: 10 }, true);
        p.take(sample(11), true);
        p.take(comm(11, "runc", true), true);
        p.take(map(11, "/nowhere/runc", &[1]), true);
        p.take(sample(11), true);
        p.take(sample(99), true);
        p.take(sample(11), false);
        assert_eq!((p.tally.watched, p.tally.others), (2, 1));
        let runc = [Address::Kernel(0xffff_0000_0000_0010), Address::File(0, 0x410), Address::File(0, 0x420)];
        assert_eq!(p.stacks[&("runc".into(), runc.to_vec())], 1);
        let forked = [Address::Kernel(0xffff_0000_0000_0010), Address::Memory, Address::Memory];
        assert_eq!(
            p.stacks[&("dockerd".into(), forked.to_vec())],
            1,
            "exec forgets the old program's mappings"
        );
    }

    #[test]
    fn what_is_mapped_at_the_end_of_all_offsets_is_in_no_file() {
        let map = |offset| Mapping { start: 0x1000, end: 0x3000, offset, module: 3 };
        let at = |offset| addresses(&[map(offset)], &[CONTEXT_USER, 0x2fff]);
        assert_eq!(at(u64::MAX - 0x1fff), [Address::File(3, u64::MAX)]);
        assert_eq!(at(u64::MAX - 0xfff), [Address::Memory]);
    }

    #[test]
    fn what_the_profiler_starts_is_watched_once_it_is_a_program_of_its_own() {
        let mut p = only(5, "elbowroom", Kin::Profiler);
        p.take(Record::Fork { pid: 6, parent: 5 }, true);
        p.take(sample(6), true);
        p.take(comm(6, "crun", true), true);
        p.take(sample(6), true);
        assert_eq!((p.tally.profiler, p.tally.watched), (1, 1));
    }

    #[test]
    fn a_copy_in_memory_is_the_file_of_the_same_build() {
        let mut p = only(6, "runc", Kin::Watched);
        p.take(map(6, "/memfd:runc_cloned:/proc/self/exe (deleted)", &[7; 20]), true);
        assert!(p.modules[0].file.is_none());
        p.take(map(6, "/bin/true", &[7; 20]), true);
        assert!(p.modules.len() == 1 && p.modules[0].file.is_some());
        assert_eq!(&*p.modules[0].name, "true");
    }

    #[test]
    fn files_of_strangers_are_not_opened() {
        let mut p = only(6, "sshd", Kin::Stranger);
        p.take(map(6, "/bin/true", &[7; 20]), true);
        p.take(map(99, "/bin/true", &[8; 20]), true);
        assert!(p.modules.is_empty());
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let mut p = only(10, "runc", Kin::Watched);
        p.take(sample(10), true);
        p.take(Record::Fork { pid: 10, parent: 99 }, true);
        p.take(sample(10), true);
        assert_eq!((p.tally.watched, p.tally.others), (1, 1));
    }

    #[test]
    fn a_process_may_become_another_program() {
        let mut p = only(10, "runc", Kin::Watched);
        p.take(sample(10), true);
        p.take(comm(10, "sleep", true), true);
        p.take(sample(10), true);
        assert_eq!((p.tally.watched, p.tally.others), (2, 0));
        assert!(["runc", "sleep"].iter().all(|name| p.stacks.keys().any(|(known, _)| &**known == *name)));
    }

    #[test]
    fn a_containers_link_leads_to_no_file_of_the_host_and_its_pipe_holds_nobody_up() {
        let (host, container) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = host.path().join("secret");
        std::fs::write(&secret, "the host's").unwrap();
        std::fs::write(container.path().join("program"), "its own").unwrap();
        std::os::unix::fs::symlink(&secret, container.path().join("link")).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mkfifoat(rustix::fs::CWD, container.path().join("pipe"), mode).unwrap();
        let found = |path| open_below([container.path().display().to_string()], path).is_some();
        assert_eq!(["/program", "/link", "/pipe", "/none"].map(found), [true, false, false, false]);
    }

    #[test]
    fn this_process_is_found_in_proc_and_its_files_once_it_is_watched() {
        let pid = std::process::id();
        let mut processes = Processes::now();
        assert_eq!(processes.known[&pid].kin, Kin::Profiler);
        assert!(processes.modules.is_empty(), "{:?}", processes.modules);
        processes.watch(pid);
        let own = &processes.known[&pid];
        assert!(own.kin == Kin::Watched && !own.maps.is_empty(), "{own:?}");
        assert!(
            processes.modules.iter().any(|module| module.name.starts_with("libc") && module.file.is_some())
        );
    }

    #[test]
    fn lines_of_maps_that_are_not_run_or_have_no_file_are_left() {
        let line = "7f00-7f10 r-xp 00000400 fe:00 123      /usr/bin/a b";
        let map = map_line(3, line).unwrap();
        assert_eq!(
            (map.start, map.end, map.offset, map.path.as_str()),
            (0x7f00, 0x7f10, 0x400, "/usr/bin/a b")
        );
        for line in ["7f00-7f10 r--p 00000400 fe:00 123 /a", "7f00-7f10 r-xp 00000000 00:00 0 ", "x", ""] {
            assert!(map_line(3, line).is_none(), "{line}");
        }
    }
}
