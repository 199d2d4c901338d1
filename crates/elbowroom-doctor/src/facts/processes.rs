//! Processes as strategies need them: those of the root group, and the JVMs of a container.

use crate::checks::{CgroupFacts, FixedHeap, HierarchyController, HostFacts};
use crate::host_text;
use crate::strategies::housekeeping::RootProcess;
use crate::strategies::pretouch::JvmHeap;
use crate::strategies::protect::DescendantFile;
use elbowroom_linux::bounded;
use elbowroom_linux::process::start_ticks;
use elbowroom_linux::root::Root;
use elbowroom_linux::sensor::MAX_GROUPS_PER_TENANT;
use rustix::fs::OFlags;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long the processes of a container may take to give their words, while all containers have taken less than [`ALL_HANGING`]
/// together beyond [`LEAST_PATIENCE`]; after that this much, which is enough for those that can.
const PATIENCE: Duration = Duration::from_secs(1);
const ALL_HANGING: Duration = Duration::from_secs(10);
const LEAST_PATIENCE: Duration = Duration::from_millis(20);
/// What they have taken, in this process, which looks and ends.
static WAITED_MS: AtomicU64 = AtomicU64::new(0);

/// The most bytes of what a process says at once: Linux gives a program 2 MiB of words by default.
const MAX_WORDS_BYTES: u64 = 2 << 20;

/// The processes of the root group of the memory hierarchy, without kernel threads, the first process, and those that this one
/// was started by: the program that asks is not to be moved.
pub(crate) fn root_processes(root: &Root, facts: &HostFacts) -> Vec<RootProcess> {
    let Some(dir) = facts.root().and_then(|g| g.dirs.get(&HierarchyController::Memory)) else {
        return Vec::new();
    };
    let mine = lineage(root, std::process::id() as i32);
    let pids = pids(root, Path::new(dir));
    pids.into_iter()
        .filter(|pid| *pid > 1 && !mine.contains(pid))
        .filter_map(|pid| process(root, pid))
        .collect()
}

fn pids(root: &Root, dir: &Path) -> Vec<i32> {
    let text = root.read(dir.join("cgroup.procs")).unwrap_or_default();
    // 0 is a process of another PID namespace.
    text.lines().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid > 0).collect()
}

/// What is told of one process; `None` where it is gone, or a kernel thread, which has no memory of its own.
fn process(root: &Root, pid: i32) -> Option<RootProcess> {
    let read = |file: &str| root.read(format!("/proc/{pid}/{file}")).ok();
    let held = host_text::unreclaimable_memory(&read("status")?)?;
    let started = start_ticks(&read("stat")?)?;
    Some(RootProcess { pid, started, name: read("comm")?.trim_end().to_owned(), held })
}

/// A process and those above it.
fn lineage(root: &Root, pid: i32) -> Vec<i32> {
    let parent = |pid: &i32| {
        let status = root.read(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("PPid:"))?;
        line.trim().parse().ok().filter(|pid| *pid > 0)
    };
    // A chain that is read while it changes could be a circle.
    std::iter::successors(Some(pid), parent).take(100).collect()
}

/// Directories of a container's cgroup in the memory hierarchy, or the v2 one where it is without that controller; its own first.
fn cgroup_dirs(root: &Root, group: &CgroupFacts) -> Vec<PathBuf> {
    let own = group
        .dirs
        .get(&HierarchyController::Memory)
        .or_else(|| group.dirs.get(&HierarchyController::Unified));
    let mut found: Vec<PathBuf> = own.map(PathBuf::from).into_iter().collect();
    let mut at = 0;
    while found.len() <= MAX_GROUPS_PER_TENANT
        && let Some(dir) = found.get(at).cloned()
    {
        found.extend(root.directories(&dir).unwrap_or_default().into_iter().map(|name| dir.join(name)));
        at += 1;
    }
    found
}

/// The processes in a container, and in the cgroups that it made for them.
fn processes(root: &Root, group: &CgroupFacts) -> impl Iterator<Item = i32> {
    cgroup_dirs(root, group).into_iter().flat_map(move |dir| pids(root, &dir))
}

/// Reads what processes of a container choose: their command lines, environments and mount tables. The first two wait for a process'
/// memory map, which one that is stuck on a disk holds for as long as it is stuck (fs/proc/base.c, `get_mm_cmdline`). It costs its
/// own container what is not read of it, and the others little.
struct WordsReader<'a> {
    root: &'a Root,
    /// How long this container may still take.
    left: Duration,
    patience: Duration,
}

impl<'a> WordsReader<'a> {
    fn new(root: &'a Root) -> Self {
        let left = ALL_HANGING.saturating_sub(Duration::from_millis(WAITED_MS.load(Ordering::Relaxed)));
        let patience = left.min(PATIENCE).max(LEAST_PATIENCE);
        Self { root, left: patience, patience }
    }

    fn read(&mut self, pid: i32, file: &str) -> Option<String> {
        if self.left.is_zero() {
            return None;
        }
        let began = Instant::now();
        let file = File::from(self.root.open(format!("/proc/{pid}/{file}"), OFlags::RDONLY).ok()?);
        let (done, wait) = mpsc::sync_channel(1);
        let read = move || done.send(bounded::bytes(file, MAX_WORDS_BYTES));
        // It ends with this process, where it waits for that long.
        std::thread::Builder::new().name("words".into()).spawn(read).ok()?;
        let text = wait.recv_timeout(self.left);
        self.left = if text.is_ok() { self.left.saturating_sub(began.elapsed()) } else { Duration::ZERO };
        Some(String::from_utf8_lossy(&text.ok()?.ok()?).into_owned())
    }
}

impl Drop for WordsReader<'_> {
    fn drop(&mut self) {
        let taken = (self.patience - self.left).saturating_sub(LEAST_PATIENCE);
        WAITED_MS.fetch_add(taken.as_millis() as u64, Ordering::Relaxed);
    }
}

/// Heaps with a size of the programs in a container. A command line is read only of programs that may have one, by their names, which
/// no process waits for.
pub(super) fn heap_sizes(root: &Root, group: &CgroupFacts) -> Vec<FixedHeap> {
    let name = |pid: i32| root.read(format!("/proc/{pid}/comm")).ok();
    let told = processes(root, group)
        .filter(|pid| name(*pid).is_some_and(|name| ["java", "node"].contains(&name.trim_end())));
    let mut words = WordsReader::new(root);
    told.filter_map(|pid| host_text::heap_limit(pid, &words.read(pid, "cmdline")?)).collect()
}

/// The JVMs in a container that no view over `/proc/cgroups` tells of their container.
pub(super) fn jvms_without_view(root: &Root, group: &CgroupFacts) -> Vec<i32> {
    let name = |pid: i32| root.read(format!("/proc/{pid}/comm")).ok();
    let is_view =
        |line: &str| line.split(' ').nth(4) == Some("/proc/cgroups") && line.contains(" - fuse.elbowroom ");
    let jvms = processes(root, group).filter(|pid| name(*pid).is_some_and(|name| name.trim_end() == "java"));
    let mut words = WordsReader::new(root);
    jvms.filter(|pid| words.read(*pid, "mountinfo").is_some_and(|text| !text.lines().any(is_view))).collect()
}

/// `memory.swappiness` of the cgroups inside a container's.
pub(crate) fn swappiness_below(root: &Root, group: &CgroupFacts) -> Vec<DescendantFile> {
    let files = cgroup_dirs(root, group).into_iter().skip(1).map(|dir| dir.join("memory.swappiness"));
    files
        .filter_map(|file| {
            let text = root.read(&file).ok()?;
            Some((file.to_string_lossy().into_owned(), text.trim_end().to_owned()))
        })
        .collect()
}

/// What the JVMs in a container were told about their heaps, on their command lines and by the environment that java reads.
/// See [`heap_sizes`] for why only programs of that name are asked.
pub(crate) fn jvms(root: &Root, group: &CgroupFacts) -> Vec<JvmHeap> {
    let mut words = WordsReader::new(root);
    let told = processes(root, group).filter_map(|pid| {
        (root.read(format!("/proc/{pid}/comm")).ok()?.trim_end() == "java").then_some(())?;
        let command = words.read(pid, "cmdline")?;
        Some(host_text::jvm_heap_options(pid, &command, &words.read(pid, "environ").unwrap_or_default()))
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::fixture::Fixture;
    use elbowroom_types::unit::Bytes;

    #[test]
    fn a_process_whose_words_never_come_hides_none_of_another_container() {
        let mounts = "11 1 0:2 / /proc rw - proc proc rw\n";
        let host = Fixture::new(&format!(
            "-- cg/a/cgroup.procs --\n7\n8\n-- cg/b/cgroup.procs --\n9\n\
             -- proc/7/comm --\njava\n-- proc/8/comm --\njava\n-- proc/8/cmdline --\njava\0-Xmx2g\0\n\
             -- proc/9/comm --\njava\n-- proc/9/cmdline --\njava\0-Xmx4g\0\n\
             -- proc/8/mountinfo --\n{mounts}-- proc/9/mountinfo --\n{mounts}"
        ))
        .unwrap();
        let hangs = ["cmdline", "mountinfo"].map(|file| {
            let words = host.path().join("proc/7").join(file);
            let mode = rustix::fs::Mode::RWXU;
            rustix::fs::mknodat(rustix::fs::CWD, &words, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            // A process that opens it waits, as long as this is open, for what is never written.
            File::options().read(true).write(true).open(&words).unwrap()
        });
        let path = host.path().to_owned();
        let (done, wait) = mpsc::channel();
        std::thread::spawn(move || {
            let root = Root::at(&path).unwrap();
            let found = |name: &str| {
                let dirs = [(HierarchyController::Memory, format!("/cg/{name}"))].into();
                let group = CgroupFacts { dirs, ..CgroupFacts::default() };
                let heaps: Vec<i32> = heap_sizes(&root, &group).iter().map(|heap| heap.pid).collect();
                [heaps, jvms_without_view(&root, &group)]
            };
            done.send([found("a"), found("b")])
        });
        let [a, b] = wait.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!((a, b), ([vec![], vec![]], [vec![9], vec![9]]));
        drop(hangs);
    }

    #[test]
    fn kernel_threads_and_the_first_process_are_no_jobs() {
        let stat = |pid: i32| format!("{pid} (x) S 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 77 0\n");
        let host = Fixture::new(&format!(
            "-- cg/cgroup.procs --\n0\n1\n2\n30\n31\n\
             -- proc/1/comm --\ninit\n-- proc/1/status --\nRssAnon:\t5 kB\n-- proc/1/stat --\n{}\
             -- proc/2/comm --\nkthreadd\n-- proc/2/status --\nName:\tkthreadd\n-- proc/2/stat --\n{}\
             -- proc/30/comm --\nrestic\n-- proc/30/status --\nRssAnon:\t  100 kB\nRssFile:\t900 kB\nRssShmem:\t28 kB\n\
             -- proc/30/stat --\n{}",
            stat(1),
            stat(2),
            stat(30)
        ))
        .unwrap();
        let root = Root::at(host.path()).unwrap();
        let top = CgroupFacts {
            path: "/".into(),
            dirs: [(HierarchyController::Memory, "/cg".into())].into(),
            ..CgroupFacts::default()
        };
        let facts = HostFacts { groups: vec![top], ..HostFacts::default() };
        let found = root_processes(&root, &facts);
        let expect = RootProcess { pid: 30, started: 77, name: "restic".into(), held: Bytes::kib(128) };
        assert_eq!(found, [expect]);
    }

    #[test]
    fn heaps_are_found_in_groups_inside_a_container() {
        let host = Fixture::new(
            "-- cg/pod.scope/cgroup.procs --\n-- cg/pod.scope/container/cgroup.procs --\n7\n8\n\
             -- proc/7/comm --\njava\n-- proc/7/cmdline --\njava\0-Xmx4g\0App\0\n\
             -- proc/8/comm --\nsh\n-- proc/8/cmdline --\nsh\0-Xmx1g\0\n",
        )
        .unwrap();
        let root = Root::at(host.path()).unwrap();
        let pod = CgroupFacts {
            dirs: [(HierarchyController::Memory, "/cg/pod.scope".into())].into(),
            ..CgroupFacts::default()
        };
        let found: Vec<(i32, Bytes)> =
            heap_sizes(&root, &pod).iter().map(|heap| (heap.pid, heap.size)).collect();
        assert_eq!(found, [(7, Bytes::gib(4))]);
    }

    #[test]
    fn jvms_that_have_a_view_are_told_from_others() {
        let view = "30 11 0:99 /id/proc/cgroups /proc/cgroups ro - fuse.elbowroom elbowroom ro\n";
        let host = Fixture::new(&format!(
            "-- cg/web/cgroup.procs --\n7\n8\n9\n-- proc/7/comm --\njava\n-- proc/7/mountinfo --\n{view}\
             -- proc/8/comm --\njava\n-- proc/8/mountinfo --\n11 1 0:2 / /proc rw - proc proc rw\n\
             -- proc/9/comm --\nsh\n-- proc/9/mountinfo --\n11 1 0:2 / /proc rw - proc proc rw\n"
        ))
        .unwrap();
        let web = CgroupFacts {
            dirs: [(HierarchyController::Memory, "/cg/web".into())].into(),
            ..CgroupFacts::default()
        };
        assert_eq!(jvms_without_view(&Root::at(host.path()).unwrap(), &web), [8]);
    }

    #[test]
    fn groups_inside_a_container_are_found_at_any_depth() {
        let host = Fixture::new(
            "-- cg/web/memory.swappiness --\n60\n-- cg/web/a/memory.swappiness --\n60\n-- cg/web/a/b/memory.swappiness --\n30\n",
        )
        .unwrap();
        let root = Root::at(host.path()).unwrap();
        let web = CgroupFacts {
            dirs: [(HierarchyController::Memory, "/cg/web".into())].into(),
            ..CgroupFacts::default()
        };
        let mut below = swappiness_below(&root, &web);
        below.sort();
        let expect = [("/cg/web/a/b/memory.swappiness", "30"), ("/cg/web/a/memory.swappiness", "60")];
        assert_eq!(below, expect.map(|(file, text)| (file.to_owned(), text.to_owned())));
    }
}
