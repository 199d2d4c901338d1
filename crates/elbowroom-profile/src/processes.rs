//! Sampled processes with their programs and mapped files, kept up to date by perf's records, and their stacks counted.
//!
//! # Problem
//! A container's start is the work of programs that live for milliseconds: `runc`, a copy of `runc` in memory, `dockerd` that
//! calls itself again. When samples are looked at, their processes are gone, and their mount namespaces with them.
//!
//! # Approach
//! The kernel tells of every mapping and, since 5.12, the build id of the file. A file is opened when it is first heard of,
//! through `/proc/PID/root`, and stays open until its symbols were read. Where the process has ended by then, the same path
//! outside is tried. A file that is in memory only is looked for by its build id among the files that others map. A file
//! whose build id is another than the one that ran is not used.
//!
//! Only some processes are of interest: those that [`SampledProcesses::watch`] names, everything they start, and everything that the
//! profiler itself starts. The rest is counted, and nothing else kept of it, least of all files: all those of a machine would be
//! more than a process may have open.

use super::perf::record::{CONTEXT_KERNEL, CONTEXT_MAX, CONTEXT_USER, ExecMapping, PerfRecord};
use super::tenants::{Tenant, Tenants};
use elbowroom_linux::bounded;
use elbowroom_linux::probe::file::open_in;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Files that are kept open at most: half of what a process may have open where that was not raised. What engines and containers
/// run is less.
const MAX_OPEN_FILES: usize = 512;
/// Files that are told apart at most. A container maps as many as it likes, and each is heard of.
const MAX_MODULES: usize = 4096;
/// Mappings that are kept of all processes together: 32 MiB. A container maps a file 65,530 times, and every child has all of it.
const MAX_MAPPINGS: usize = 1 << 20;
/// kthreadd, the parent of all kernel threads.
const KTHREADD: u32 = 2;

/// Processes, and what was seen of them.
#[derive(Debug, Default)]
pub(crate) struct SampledProcesses {
    by_pid: HashMap<u32, SampledProcess>,
    /// Files that were mapped, by their place in this list.
    pub(super) modules: Vec<CodeModule>,
    by_build: HashMap<Vec<u8>, u32>,
    by_path: HashMap<String, u32>,
    /// Stacks of watched processes, and how often each was seen.
    pub(super) stacks: HashMap<(Arc<str>, Vec<CodeAddress>), u64>,
    /// What was counted besides.
    pub tally: SampleTally,
    own_pid: u32,
    /// Of [`MAX_MAPPINGS`], how many there are.
    mappings: usize,
    /// Of [`MAX_OPEN_FILES`].
    open_files: usize,
    /// The place in `modules` that stands for those that are not told apart.
    other_files: Option<u32>,
    /// What each container has taken of these.
    pub(super) tenants: Tenants,
}

/// Samples by whose they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct SampleTally {
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
pub(super) struct CodeModule {
    /// As people call it: without directories.
    pub(super) name: Arc<str>,
    /// Its build id; empty where the kernel did not say.
    pub(super) build_id: Vec<u8>,
    /// The file; `None` where none could be opened.
    pub(super) file: Option<File>,
    /// The container that it was opened for.
    pub(super) tenant: Option<Tenant>,
}

/// Where an instruction was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CodeAddress {
    /// In the kernel.
    Kernel(u64),
    /// In a file, at this offset.
    File(u32, u64),
    /// In memory that no file is mapped to: generated code, or a mapping that was not heard of.
    Anonymous,
}

#[derive(Clone, Debug, Default)]
struct SampledProcess {
    name: Arc<str>,
    role: ProcessRole,
    maps: Vec<ModuleMapping>,
    tenant: Option<Tenant>,
    /// Whether `tenant` is that of the program before, or of none.
    is_tenant_old: bool,
}

/// Whose a process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ProcessRole {
    /// Of no process that matters.
    #[default]
    Unrelated,
    /// The kernel's.
    KernelThread,
    /// The profiler itself, and what it has only forked: still its code.
    Profiler,
    /// Watched.
    Watched,
}

#[derive(Clone, Copy, Debug)]
struct ModuleMapping {
    start: u64,
    end: u64,
    offset: u64,
    module: u32,
}

impl SampledProcesses {
    /// Every process that runs now. To be called when events are on, so that none falls between.
    pub fn now() -> Self {
        let mut processes = Self { own_pid: std::process::id(), ..Self::default() };
        processes.tenants.add_host(processes.own_pid);
        for pid in elbowroom_linux::process::all_pids() {
            processes.add_running(pid);
        }
        processes
    }

    /// Watches process `pid` and everything below it, now and from now on.
    pub fn watch(&mut self, pid: u32) {
        let parents: Vec<(u32, u32)> =
            self.by_pid.keys().filter_map(|pid| Some((*pid, parent(*pid)?))).collect();
        self.tenants.add_host(pid);
        let mut watched = vec![pid];
        while let Some(pid) = watched.pop() {
            if let Some(process) = self.by_pid.get_mut(&pid) {
                process.role = ProcessRole::Watched;
                process.is_tenant_old = true;
                self.add_current_maps(pid);
            }
            watched.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child));
        }
    }

    /// Takes one record; samples count only where `counts`.
    pub(crate) fn add_record(&mut self, record: PerfRecord, counts: bool) {
        match record {
            PerfRecord::Sample { pid, chain } => {
                if counts {
                    self.add_sample(pid, &chain);
                }
            }
            PerfRecord::Mmap(map) => self.add_mapping(&map),
            PerfRecord::Comm { pid, tid, name, exec } if pid == tid || exec => {
                let process = self.by_pid.entry(pid).or_default();
                process.name = name.into();
                if exec {
                    process.is_tenant_old = true;
                    let maps = std::mem::take(&mut process.maps);
                    count_mappings(&mut self.mappings, &mut self.tenants, process.tenant, maps.len(), 0);
                    // What the profiler forked is another program from here on.
                    if process.role == ProcessRole::Profiler {
                        process.role = ProcessRole::Watched;
                    }
                }
            }
            PerfRecord::Fork { pid, parent } if pid != parent => {
                let mut child = self.by_pid.get(&parent).cloned().unwrap_or_default();
                if parent == KTHREADD {
                    child.role = ProcessRole::KernelThread;
                }
                let is_full = !self.tenants.has_room(child.tenant, MAX_MAPPINGS, |taken| taken.mappings);
                if self.mappings + child.maps.len() > MAX_MAPPINGS || is_full {
                    child.maps = Vec::new();
                }
                let mut count = |of: &SampledProcess, less, more| {
                    count_mappings(&mut self.mappings, &mut self.tenants, of.tenant, less, more);
                };
                count(&child, 0, child.maps.len());
                if let Some(before) = self.by_pid.insert(pid, child) {
                    count(&before, before.maps.len(), 0);
                }
            }
            PerfRecord::Lost(count) => self.tally.lost += count,
            // Nothing says that a process ended: it may outlive its first thread, whose end is all that is told. Its number is used
            // again by a fork, which replaces what was there.
            PerfRecord::Comm { .. } | PerfRecord::Fork { .. } => {}
        }
    }

    fn add_sample(&mut self, pid: u32, chain: &[u64]) {
        let Some(process) = self.by_pid.get(&pid) else {
            self.tally.others += 1;
            return;
        };
        match process.role {
            ProcessRole::Unrelated => self.tally.others += 1,
            ProcessRole::KernelThread => self.tally.kernel_threads += 1,
            ProcessRole::Profiler => self.tally.profiler += 1,
            ProcessRole::Watched => {
                self.tally.watched += 1;
                let addresses = addresses(&process.maps, chain);
                *self.stacks.entry((Arc::clone(&process.name), addresses)).or_default() += 1;
            }
        }
    }

    fn add_mapping(&mut self, map: &ExecMapping) {
        // Kin is known by now: a mapping comes after the fork, or the exec of what the profiler forked.
        if self.by_pid.get(&map.pid).is_none_or(|process| process.role != ProcessRole::Watched) {
            return;
        }
        let process = self.by_pid.entry(map.pid).or_default();
        // It has no mappings then, or is not heard of with any yet.
        if std::mem::take(&mut process.is_tenant_old) {
            process.tenant = self.tenants.find(map.pid, process.tenant);
        }
        let tenant = process.tenant;
        let module = self.module_of(map, tenant);
        let process = self.by_pid.entry(map.pid).or_default();
        let before = process.maps.len();
        process.maps.retain(|old| old.end <= map.start || old.start >= map.end);
        count_mappings(&mut self.mappings, &mut self.tenants, tenant, before - process.maps.len(), 0);
        if self.mappings < MAX_MAPPINGS && self.tenants.has_room(tenant, MAX_MAPPINGS, |taken| taken.mappings)
        {
            process.maps.push(ModuleMapping { start: map.start, end: map.end, offset: map.offset, module });
            count_mappings(&mut self.mappings, &mut self.tenants, tenant, 0, 1);
        }
    }

    /// The file of a mapping, opened when it is first heard of.
    fn module_of(&mut self, map: &ExecMapping, tenant: Option<Tenant>) -> u32 {
        let known = match map.build_id.is_empty() {
            true => self.by_path.get(&map.path),
            false => self.by_build.get(&map.build_id),
        };
        if let Some(known) = known.copied() {
            // First heard of as a copy in memory, or by a process that was gone already.
            if self.modules[known as usize].file.is_none()
                && let Some(file) = self.open(map, tenant)
            {
                let module = &mut self.modules[known as usize];
                (module.file, module.name, module.tenant) = (Some(file), name(&map.path), tenant);
            }
            return known;
        }
        let told_apart = self.modules.len() - usize::from(self.other_files.is_some());
        if told_apart >= MAX_MODULES || !self.tenants.has_room(tenant, MAX_MODULES, |taken| taken.modules) {
            let modules = &mut self.modules;
            return *self.other_files.get_or_insert_with(|| {
                let (name, build_id) = ("other files".into(), Vec::new());
                modules.push(CodeModule { name, build_id, file: None, tenant: None });
                modules.len() as u32 - 1
            });
        }
        let file = self.open(map, tenant);
        let place = self.modules.len() as u32;
        self.modules.push(CodeModule { name: name(&map.path), build_id: map.build_id.clone(), file, tenant });
        self.tenants.taken(tenant).into_iter().for_each(|taken| taken.modules += 1);
        match map.build_id.is_empty() {
            true => self.by_path.insert(map.path.clone(), place),
            false => self.by_build.insert(map.build_id.clone(), place),
        };
        place
    }

    /// The mapped file, as far as there may be one open more.
    fn open(&mut self, map: &ExecMapping, tenant: Option<Tenant>) -> Option<File> {
        let has_room = self.tenants.has_room(tenant, MAX_OPEN_FILES, |taken| taken.files);
        let file = if self.open_files < MAX_OPEN_FILES && has_room { open(map) } else { None };
        if file.is_some() {
            self.open_files += 1;
            self.tenants.taken(tenant).into_iter().for_each(|taken| taken.files += 1);
        }
        file
    }

    /// Takes in a process that runs already.
    fn add_running(&mut self, pid: u32) {
        let Ok(name) = bounded::file_text(format!("/proc/{pid}/comm"), bounded::KERNEL_FILE) else { return };
        let kin = match (pid == self.own_pid, pid == KTHREADD || parent(pid) == Some(KTHREADD)) {
            (true, _) => ProcessRole::Profiler,
            (_, true) => ProcessRole::KernelThread,
            _ => ProcessRole::Unrelated,
        };
        let process = SampledProcess { name: name.trim_end().into(), role: kin, ..SampledProcess::default() };
        self.by_pid.insert(pid, process);
    }

    /// Takes in the files that a process has mapped already.
    fn add_current_maps(&mut self, pid: u32) {
        let maps = bounded::file(format!("/proc/{pid}/maps"), bounded::KERNEL_FILE).unwrap_or_default();
        let maps = String::from_utf8_lossy(&maps);
        maps.lines().filter_map(|line| parse_exec_mapping(pid, line)).for_each(|map| self.add_mapping(&map));
    }
}

/// Counts mappings of a container that came and went.
fn count_mappings(all: &mut usize, tenants: &mut Tenants, tenant: Option<Tenant>, less: usize, more: usize) {
    let of_tenant = tenants.taken(tenant).map(|taken| &mut taken.mappings);
    of_tenant.into_iter().chain([all]).for_each(|count| *count = *count + more - less);
}

/// A line of `/proc/PID/maps` of a file that is mapped to be run: `start-end perms offset dev inode path`.
pub fn parse_exec_mapping(pid: u32, line: &str) -> Option<ExecMapping> {
    let mut words = line.splitn(6, ' ');
    let (range, permissions, offset) = (words.next()?, words.next()?, words.next()?);
    let path = words.nth(2)?.trim_start();
    if permissions.as_bytes().get(2) != Some(&b'x') || path.is_empty() {
        return None;
    }
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    let build_id = Vec::new();
    Some(ExecMapping {
        pid,
        start: hex(start)?,
        end: hex(end)?,
        offset: hex(offset)?,
        path: path.to_owned(),
        build_id,
    })
}

/// A chain's addresses, each with what it is in. A return address stands behind the call: one less is inside it.
fn addresses(maps: &[ModuleMapping], chain: &[u64]) -> Vec<CodeAddress> {
    let (mut addresses, mut kernel, mut innermost) = (Vec::new(), false, true);
    for address in chain {
        match *address {
            CONTEXT_KERNEL => kernel = true,
            CONTEXT_USER => (kernel, innermost) = (false, true),
            marker if marker >= CONTEXT_MAX => {}
            address => {
                let address = if innermost { address } else { address.saturating_sub(1) };
                innermost = false;
                addresses.push(if kernel { CodeAddress::Kernel(address) } else { in_file(maps, address) });
            }
        }
    }
    addresses
}

/// Where an address lies in the file that is mapped there. A program may map a device at any offset: what would be behind the end of
/// every file is in none.
fn in_file(maps: &[ModuleMapping], address: u64) -> CodeAddress {
    let map = maps.iter().find(|map| (map.start..map.end).contains(&address));
    let place = map.and_then(|map| Some((map.module, map.offset.checked_add(address - map.start)?)));
    place.map_or(CodeAddress::Anonymous, |(module, offset)| CodeAddress::File(module, offset))
}

fn parent(pid: u32) -> Option<u32> {
    let stat = bounded::file(format!("/proc/{pid}/stat"), bounded::KERNEL_FILE).ok()?;
    // The name may hold anything; the last parenthesis ends it.
    let rest = &stat[stat.iter().rposition(|byte| *byte == b')')?..];
    String::from_utf8_lossy(rest).split_whitespace().nth(2)?.parse().ok()
}

/// The mapped file, from the process's root, or from ours when the process is gone.
fn open(map: &ExecMapping) -> Option<File> {
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

    fn comm(pid: u32, name: &str, exec: bool) -> PerfRecord {
        PerfRecord::Comm { pid, tid: pid, name: name.into(), exec }
    }

    fn sample(pid: u32) -> PerfRecord {
        PerfRecord::Sample {
            pid,
            chain: vec![CONTEXT_KERNEL, 0xffff_0000_0000_0010, CONTEXT_USER, 0x1010, 0x1021],
        }
    }

    fn map(pid: u32, path: &str, build_id: &[u8]) -> PerfRecord {
        let (path, build_id) = (path.to_owned(), build_id.to_vec());
        PerfRecord::Mmap(ExecMapping { pid, start: 0x1000, end: 0x2000, offset: 0x400, path, build_id })
    }

    /// Nothing but a process of kin `kin`, as if it had been found in /proc.
    fn only(pid: u32, name: &str, kin: ProcessRole) -> SampledProcesses {
        let mut processes = SampledProcesses { own_pid: 5, ..SampledProcesses::default() };
        let process = SampledProcess { name: name.into(), role: kin, ..SampledProcess::default() };
        processes.by_pid.insert(pid, process);
        processes
    }

    #[test]
    fn what_a_watched_process_starts_is_watched_under_its_own_name() {
        let mut p = only(10, "dockerd", ProcessRole::Watched);
        p.add_record(PerfRecord::Fork { pid: 11, parent: 10 }, true);
        p.add_record(sample(11), true);
        p.add_record(comm(11, "runc", true), true);
        p.add_record(map(11, "/nowhere/runc", &[1]), true);
        p.add_record(sample(11), true);
        p.add_record(sample(99), true);
        p.add_record(sample(11), false);
        assert_eq!((p.tally.watched, p.tally.others), (2, 1));
        let runc = [
            CodeAddress::Kernel(0xffff_0000_0000_0010),
            CodeAddress::File(0, 0x410),
            CodeAddress::File(0, 0x420),
        ];
        assert_eq!(p.stacks[&("runc".into(), runc.to_vec())], 1);
        let forked =
            [CodeAddress::Kernel(0xffff_0000_0000_0010), CodeAddress::Anonymous, CodeAddress::Anonymous];
        assert_eq!(
            p.stacks[&("dockerd".into(), forked.to_vec())],
            1,
            "exec forgets the old program's mappings"
        );
    }

    #[test]
    fn what_is_mapped_at_the_end_of_all_offsets_is_in_no_file() {
        let map = |offset| ModuleMapping { start: 0x1000, end: 0x3000, offset, module: 3 };
        let at = |offset| addresses(&[map(offset)], &[CONTEXT_USER, 0x2fff]);
        assert_eq!(at(u64::MAX - 0x1fff), [CodeAddress::File(3, u64::MAX)]);
        assert_eq!(at(u64::MAX - 0xfff), [CodeAddress::Anonymous]);
    }

    #[test]
    fn what_the_profiler_starts_is_watched_once_it_is_a_program_of_its_own() {
        let mut p = only(5, "elbowroom", ProcessRole::Profiler);
        p.add_record(PerfRecord::Fork { pid: 6, parent: 5 }, true);
        p.add_record(sample(6), true);
        p.add_record(comm(6, "crun", true), true);
        p.add_record(sample(6), true);
        assert_eq!((p.tally.profiler, p.tally.watched), (1, 1));
    }

    #[test]
    fn a_copy_in_memory_is_the_file_of_the_same_build() {
        let mut p = only(6, "runc", ProcessRole::Watched);
        p.add_record(map(6, "/memfd:runc_cloned:/proc/self/exe (deleted)", &[7; 20]), true);
        assert!(p.modules[0].file.is_none());
        p.add_record(map(6, "/bin/true", &[7; 20]), true);
        assert!(p.modules.len() == 1 && p.modules[0].file.is_some());
        assert_eq!(&*p.modules[0].name, "true");
    }

    #[test]
    fn of_files_without_number_the_first_are_told_apart() {
        let mut p = only(6, "x", ProcessRole::Watched);
        for n in 0..MAX_MODULES + 100 {
            p.add_record(map(6, &format!("/nowhere/{n}"), &[]), true);
        }
        assert_eq!(p.modules.len(), MAX_MODULES + 1);
        p.add_record(map(6, "/nowhere/7", &[]), true);
        assert_eq!(p.by_pid[&6].maps.last().unwrap().module, 7);
        p.add_record(map(6, "/nowhere/5000", &[]), true);
        assert_eq!(&*p.modules[p.by_pid[&6].maps.last().unwrap().module as usize].name, "other files");
    }

    #[test]
    fn one_container_uses_up_a_quarter_of_what_is_kept_for_all() {
        let mut p = only(6, "hostile", ProcessRole::Watched);
        p.tenants = Tenants::two();
        let neighbour = SampledProcess { role: ProcessRole::Watched, ..SampledProcess::default() };
        p.by_pid.insert(7, neighbour);
        for (pid, tenant) in [(6, 0), (7, 1)] {
            p.by_pid.get_mut(&pid).unwrap().tenant = Some(tenant);
        }
        for n in 0..2 * MAX_MODULES as u64 {
            let (start, end) = (n << 12, (n + 1) << 12);
            let (path, build_id) = ("/bin/true".to_owned(), n.to_le_bytes().to_vec());
            let map = ExecMapping { pid: 6, start, end, offset: 0, path, build_id };
            p.add_record(PerfRecord::Mmap(map), true);
        }
        assert_eq!(p.modules.len(), MAX_MODULES / 4 + 1);
        assert_eq!(p.modules.iter().filter(|module| module.file.is_some()).count(), MAX_OPEN_FILES / 4);
        (1_000..2_000).for_each(|pid| p.add_record(PerfRecord::Fork { pid, parent: 6 }, true));
        assert!((MAX_MAPPINGS / 4..MAX_MAPPINGS / 3).contains(&p.mappings), "{}", p.mappings);
        p.add_record(map(7, "/bin/true", b"its own"), true);
        let module = p.by_pid[&7].maps[0].module;
        assert!(p.modules[module as usize].file.is_some() && Some(module) != p.other_files);
        // What is another program has nothing of what the one before took.
        (1_000..2_000).chain([6]).for_each(|pid| p.add_record(comm(pid, "y", true), true));
        assert_eq!(p.mappings, 1);
    }

    #[test]
    fn of_mappings_that_every_child_inherits_few_are_kept() {
        let mut p = only(6, "x", ProcessRole::Watched);
        for n in 0..4_000_u64 {
            let map = ExecMapping {
                pid: 6,
                start: n << 12,
                end: (n + 1) << 12,
                offset: 0,
                path: "/x".into(),
                build_id: Vec::new(),
            };
            p.add_record(PerfRecord::Mmap(map), true);
        }
        (7..1_000).for_each(|pid| p.add_record(PerfRecord::Fork { pid, parent: 6 }, true));
        let kept = |p: &SampledProcesses| p.by_pid.values().map(|process| process.maps.len()).sum::<usize>();
        assert!((1_000_000..1_100_000).contains(&kept(&p)), "{}", kept(&p));
        // There is room again where a process became another program.
        p.add_record(comm(6, "y", true), true);
        p.add_record(PerfRecord::Fork { pid: 7, parent: 8 }, true);
        p.add_record(map(6, "/y", &[]), true);
        assert_eq!((p.by_pid[&6].maps.len(), p.mappings), (1, kept(&p)));
    }

    #[test]
    fn files_of_strangers_are_not_opened() {
        let mut p = only(6, "sshd", ProcessRole::Unrelated);
        p.add_record(map(6, "/bin/true", &[7; 20]), true);
        p.add_record(map(99, "/bin/true", &[8; 20]), true);
        assert!(p.modules.is_empty());
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let mut p = only(10, "runc", ProcessRole::Watched);
        p.add_record(sample(10), true);
        p.add_record(PerfRecord::Fork { pid: 10, parent: 99 }, true);
        p.add_record(sample(10), true);
        assert_eq!((p.tally.watched, p.tally.others), (1, 1));
    }

    #[test]
    fn a_process_may_become_another_program() {
        let mut p = only(10, "runc", ProcessRole::Watched);
        p.add_record(sample(10), true);
        p.add_record(comm(10, "sleep", true), true);
        p.add_record(sample(10), true);
        assert_eq!((p.tally.watched, p.tally.others), (2, 0));
        assert!(["runc", "sleep"].iter().all(|name| p.stacks.keys().any(|(known, _)| &**known == *name)));
    }

    #[test]
    fn a_containers_link_leads_to_no_file_of_the_host_and_its_pipe_holds_no_process_up() {
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
        let mut processes = SampledProcesses::now();
        assert_eq!(processes.by_pid[&pid].role, ProcessRole::Profiler);
        assert!(processes.modules.is_empty(), "{:?}", processes.modules);
        processes.watch(pid);
        let own = &processes.by_pid[&pid];
        assert!(own.role == ProcessRole::Watched && !own.maps.is_empty(), "{own:?}");
        assert!(
            processes.modules.iter().any(|module| module.name.starts_with("libc") && module.file.is_some())
        );
    }

    #[test]
    fn lines_of_maps_that_are_not_run_or_have_no_file_are_left() {
        let line = "7f00-7f10 r-xp 00000400 fe:00 123      /usr/bin/a b";
        let map = parse_exec_mapping(3, line).unwrap();
        assert_eq!(
            (map.start, map.end, map.offset, map.path.as_str()),
            (0x7f00, 0x7f10, 0x400, "/usr/bin/a b")
        );
        for line in ["7f00-7f10 r--p 00000400 fe:00 123 /a", "7f00-7f10 r-xp 00000000 00:00 0 ", "x", ""] {
            assert!(parse_exec_mapping(3, line).is_none(), "{line}");
        }
    }
}
