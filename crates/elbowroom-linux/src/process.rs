//! Facts about single processes, from `/proc/PID`.

use crate::bounded;
use crate::root::{Root, if_present};
use elbowroom_types::unit::{Bytes, Micros};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::cmp::Reverse;
use std::io::Read;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

/// When process `pid` started, on the boot clock; `None` when it is gone (`starttime` of `/proc/PID/stat`, field 22).
pub fn start_time(pid: i32) -> Option<Micros> {
    let ticks = start_ticks(&stat_line(format!("/proc/{pid}"))?)?;
    let hz = rustix::param::clock_ticks_per_second().max(1);
    Some(Micros(ticks.saturating_mul(1_000_000) / hz))
}

/// Most processes of a container among which the first one is looked for: two files are read of each, about 20 us.
const MAX_RANKED: usize = 1_024;
/// Most ancestors of the process found that are looked at too: their numbers may be higher where numbers began anew.
const MAX_ANCESTORS: usize = 64;

/// The place of a container's first process among all of its processes: the outermost one that is number 1 in a pid namespace of its
/// own, else the oldest. `None` when all of them have ended.
pub(crate) fn first_process_index(root: &Root, pids: &[i32]) -> Option<usize> {
    let rank = |at: usize| {
        let (rank, parent) = init_rank(root, pids[at])?;
        Some((rank, at, parent))
    };
    let found = (0..pids.len().min(MAX_RANKED)).filter_map(rank).min()?;
    // A process whose parent ended becomes a child of the first process.
    let parent = |(_, _, parent): &(_, _, i32)| rank(pids.iter().position(|pid| pid == parent)?);
    std::iter::successors(Some(found), parent).take(MAX_ANCESTORS).min().map(|(_, at, _)| at)
}

/// Orders processes by how much they look like a container's first one, least first; and the process's parent, 0 where that has no number
/// here. `None` when it ended.
fn init_rank(root: &Root, pid: i32) -> Option<((bool, usize, u64), i32)> {
    let status = if_present(root.read(format!("/proc/{pid}/status"))).ok()??;
    let levels = ns_pids(&status);
    let is_init = levels.len() > 1 && levels.last() == Some(&1);
    let stat = if_present(root.read(format!("/proc/{pid}/stat"))).ok()??;
    let rank = (!is_init, if is_init { levels.len() } else { 0 }, start_ticks(&stat)?);
    Some((rank, parent(&stat).unwrap_or(0)))
}

/// `NSpid` of `/proc/PID/status`: the process' number in every pid namespace it is in, outermost first.
pub fn ns_pids(status: &str) -> Vec<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or("");
    line.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Whether a thread is the first of its process, so that its number is the process's too.
pub(crate) fn is_first_thread(root: &Root, thread: i32) -> bool {
    let status = root.read(format!("/proc/{thread}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    process.and_then(|process| process.trim().parse().ok()) == Some(thread)
}

/// Whether process `pid` is in this process's PID namespace; `false` when it is gone. An agent in the host's namespace sees every
/// process of the host.
pub fn is_in_own_pid_namespace(pid: i32) -> bool {
    let namespace = |process: &str| fs::metadata(format!("/proc/{process}/ns/pid")).ok();
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    namespace(&pid.to_string())
        .map(identity)
        .is_some_and(|theirs| namespace("self").map(identity) == Some(theirs))
}

/// CPU time that this process has used.
pub fn own_cpu_time() -> Micros {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Micros(used.tv_sec as u64 * 1_000_000 + used.tv_nsec as u64 / 1_000)
}

/// CPU time that this thread has used.
pub fn own_thread_cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// How much sooner than others this process is killed when memory runs out (`/proc/self/oom_score_adj`, -1000..=1000); 0, the
/// kernel's default, where that cannot be read.
pub fn oom_score_adj() -> i32 {
    bounded::file_text(OOM_SCORE_ADJ, bounded::KERNEL_FILE)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Sets [`oom_score_adj`] of this process and of those it starts. A lower one than before needs `CAP_SYS_RESOURCE`.
pub fn set_oom_score_adj(score: i32) -> io::Result<()> {
    fs::write(OOM_SCORE_ADJ, score.to_string())
}

const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";

/// Has the kernel kill what `command` starts when the thread that starts it ends, however it ends.
pub fn kill_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes one system call and touches no memory that fork could have left half changed.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) }
}

/// The cgroups of process `pid`, one path per hierarchy, without repeats; empty when it is gone.
pub fn cgroup_paths(pid: i32) -> Vec<String> {
    let text = bounded::file_text(format!("/proc/{pid}/cgroup"), bounded::KERNEL_FILE).unwrap_or_default();
    let mut paths: Vec<String> = Vec::new();
    for path in text.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
        if path != "/" && !paths.iter().any(|known| known == path) {
            paths.push(path.to_owned());
        }
    }
    paths
}

/// These cgroups and all around them but the root, innermost first: a process in them belongs to the first that is a container.
/// Runtimes put processes into cgroups below the one that they make (crun: `<scope>/container`), and so do programs.
pub fn enclosing_cgroups(paths: &[String]) -> Vec<&str> {
    let upwards = |path| std::iter::successors(Some(path), |path: &&str| Some(path.rsplit_once('/')?.0));
    let mut around: Vec<&str> = paths.iter().flat_map(|path| upwards(path.as_str())).collect();
    around.retain(|path| !path.is_empty());
    around.sort_unstable_by_key(|path| (Reverse(path.len()), *path));
    around.dedup();
    around
}

/// Of `groups`, each with its path, the innermost that is around these cgroups or one of them. A container chooses how many cgroups are
/// around a process of its, thousands in each hierarchy, so each group is looked at once and not each cgroup.
pub fn innermost_group<'a, T>(paths: &[String], groups: impl Iterator<Item = (T, &'a str)>) -> Option<T> {
    let is_around = |path: &str| {
        let inside =
            |own: &String| own.strip_prefix(path).map(|rest| rest.is_empty() || rest.starts_with('/'));
        !path.is_empty() && paths.iter().any(|own| inside(own) == Some(true))
    };
    let around = groups.filter(|(_, path)| is_around(path));
    around.min_by_key(|(_, path)| (Reverse(path.len()), *path)).map(|(group, _)| group)
}

/// The most that a `stat` file has: 52 numbers, of which the kernel shows none with more than twenty digits, and a name.
const LONGEST_STAT: usize = 2_048;

/// Every process that there is now; none where `/proc` cannot be read.
pub fn all_pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Whether process `pid` has ended, ends or was killed: no program of it runs any more, though threads of it may still wait in the
/// kernel, and may keep what the process held.
pub fn is_dying(pid: i32) -> bool {
    stat_line(format!("/proc/{pid}")).is_none_or(|stat| is_ending(&stat))
}

/// A process that is looked at again and again: the file that says how it does stays open, and is that of its first thread, for which
/// the kernel adds up no others.
#[derive(Debug)]
pub struct ProcessStat(Option<fs::File>);

impl ProcessStat {
    /// Of process `pid`. Of one that is not there, or may not be asked about, it says that it is dying.
    pub fn of(pid: i32) -> Self {
        Self(fs::File::open(format!("/proc/{pid}/task/{pid}/stat")).ok())
    }

    /// Memory of the process that is resident, or `None` where it is dying (see [`is_dying`]).
    pub fn resident(&self) -> Option<Bytes> {
        let mut line = [0; LONGEST_STAT];
        let length = self.0.as_ref()?.read_at(&mut line, 0).ok()?;
        let stat = String::from_utf8_lossy(&line[..length]);
        (!is_ending(&stat)).then(|| resident(&stat))
    }
}

/// Resident memory of a process, from its `stat` line or that of one of its threads; none where it says nothing.
fn resident(stat: &str) -> Bytes {
    // Field 24 of the line, in pages; the state, first after the command, is field 3.
    let pages = after_command(stat).and_then(|rest| rest.split(' ').nth(24 - 3)?.parse::<u64>().ok());
    Bytes(pages.unwrap_or(0).saturating_mul(rustix::param::page_size() as u64))
}

/// The same of a thread, from its `stat` line. It has ended, it is on its way (`PF_EXITING` in include/linux/sched.h), or SIGKILL
/// waits for it, which every thread of a killed process finds (`complete_signal` in kernel/signal.c).
fn is_ending(stat: &str) -> bool {
    const EXITING: u64 = 0x4;
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    // Fields 9 and 31 of the line; the state, first after the command, is field 3.
    let field = |n: usize| after_command(stat)?.split(' ').nth(n - 3)?.parse::<u64>().ok();
    let has = |n, bit| field(n).is_some_and(|bits| bits & bit != 0);
    matches!(state(stat), Some('Z' | 'X')) || has(9, EXITING) || has(31, KILL)
}

/// Gives this thread a table of open files of its own, with nothing in it but the three standard ones. Where it waits in the kernel for
/// good, it keeps open none of the process's files, nor any record lock of it (fcntl(2)). Before Linux 5.9 nothing happens.
///
/// # Safety
/// This thread, and those that it starts, must use no other descriptors than those three and what they open from here on: what the
/// process calls its own has no number here, or is another file. `/proc/self/fd` is not this table, `/proc/thread-self/fd` is.
pub unsafe fn unshare_open_files() {
    // SAFETY: the caller's word.
    unsafe { unshare_open_files_except(&mut []) };
}

/// As [`unshare_open_files`], but the descriptors `kept` are in the new table too, under their numbers. Whether there is one: where not,
/// their owner must not close them while this thread uses them.
///
/// # Safety
/// As [`unshare_open_files`]; and those of `kept` must be open until this returns.
pub unsafe fn unshare_open_files_except(kept: &mut [RawFd]) -> bool {
    kept.sort_unstable();
    let close = |first: RawFd, last: u32, flags: u32| {
        // SAFETY: what is closed is a copy of this thread's alone, which its caller does not use; nothing else is closed after the
        // first call, which makes the copy, has failed. (By number: musl has no function for it.)
        unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) == 0 }
    };
    // What is above the last is not even copied (`unshare_fd` in kernel/fork.c).
    if !close(kept.last().map_or(3, |last| last + 1).max(3), u32::MAX, libc::CLOSE_RANGE_UNSHARE) {
        return false;
    }
    let mut first = 3;
    for fd in kept.iter().copied().filter(|fd| *fd >= 3) {
        if first < fd {
            close(first, fd as u32 - 1, 0);
        }
        first = fd + 1;
    }
    true
}

/// How many threads of these processes run or wait uninterruptibly, and how many there are: what the load average counts
/// (`kernel/sched/loadavg.c`).
pub fn count_threads(pids: &[i32]) -> (u32, u32) {
    let mut running = 0;
    let mut threads = 0;
    for pid in pids {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let Some(stat) = stat_line(task.path()) else { continue };
            threads += 1;
            running += u32::from(matches!(state(&stat), Some('R' | 'D')));
        }
    }
    (running, threads)
}

/// What follows the command in a `stat` line; the command may itself hold spaces and parentheses.
fn after_command(stat: &str) -> Option<&str> {
    stat.rsplit_once(") ").map(|(_, rest)| rest)
}

/// The state of a process or thread, from its `stat` line.
pub fn state(stat: &str) -> Option<char> {
    after_command(stat)?.chars().next()
}

/// The parent of a process, from its `stat` line.
fn parent(stat: &str) -> Option<i32> {
    // Field 4 of the line; the state, first after the command, is field 3.
    after_command(stat)?.split(' ').nth(4 - 3)?.parse().ok()
}

/// When a process started, in clock ticks since boot, from its `stat` line.
pub fn start_ticks(stat: &str) -> Option<u64> {
    // Field 22 of the line; the state, first after the command, is field 3.
    after_command(stat)?.split(' ').nth(22 - 3)?.parse().ok()
}

/// The `stat` line of a process or thread, in one read: hundreds of them are asked for every second. A command's name may be any bytes,
/// and here they are as they are (`do_task_stat` in `fs/proc/array.c`).
pub fn stat_line(of: impl AsRef<Path>) -> Option<String> {
    let mut line = [0; LONGEST_STAT];
    let length = fs::File::open(of.as_ref().join("stat")).and_then(|mut file| file.read(&mut line)).ok()?;
    Some(String::from_utf8_lossy(&line[..length]).into_owned())
}

/// Has all threads allocate from one place, before there is a second one. By default each has its own, and what is free in one is
/// not there for another: over thousands of containers that come and go, their sum grows.
pub fn use_one_malloc_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator's own function, which takes its own locks.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives the kernel back what the allocator keeps for later. Five hundred containers that go leave most of their memory in pieces
/// between what stays, which is not given back by itself. A thread that allocates meanwhile waits.
pub fn trim_malloc() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator's own function, which takes its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives back what only the start of this process needed: memory that is free, and the pages of the program and its constants. Those that
/// are used are mapped again from the page cache, some microseconds each sixteen of them.
pub fn forget_start() {
    trim_malloc();
    // SAFETY: the callback keeps nothing of what it is given.
    unsafe { libc::dl_iterate_phdr(Some(forget_read_only_segments), std::ptr::null_mut()) };
}

/// Of the program itself, which the linker tells of first (dl_iterate_phdr(3)), and of no library.
unsafe extern "C" fn forget_read_only_segments(
    object: *mut libc::dl_phdr_info,
    _: libc::size_t,
    _: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the linker's own, which lasts as long as the call; so do its headers.
    let (base, headers) = unsafe {
        let object = &*object;
        (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
    };
    let page = rustix::param::page_size() as u64;
    for header in
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0)
    {
        let begin = base + header.p_vaddr;
        let start = begin / page * page;
        let length = begin - start + header.p_memsz;
        // SAFETY: whole pages of a file that was not written to: the kernel maps the same again. An error leaves them as they are.
        unsafe { libc::madvise(start as *mut libc::c_void, length as usize, libc::MADV_DONTNEED) };
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_are_read_outermost_first() {
        assert_eq!(ns_pids("Name:\tsh\nNSpid:\t812\t1\n"), [812, 1]);
        assert!(ns_pids("Name:\tsh\n").is_empty());
    }

    #[test]
    fn groups_around_a_process_are_found_from_the_inside_out() {
        let paths = ["/a.slice/b.scope/container", "/a.slice/b.scope", "/x"].map(str::to_owned);
        assert_eq!(
            enclosing_cgroups(&paths),
            ["/a.slice/b.scope/container", "/a.slice/b.scope", "/a.slice", "/x"]
        );
        assert!(enclosing_cgroups(&[]).is_empty());
        let innermost =
            |groups: &[&'static str]| innermost_group(&paths, groups.iter().map(|path| (*path, *path)));
        assert_eq!(innermost(&["/a.slice", "/a.slice/b.scope", "/x", "/y"]), Some("/a.slice/b.scope"));
        assert_eq!(innermost(&["/x", "/a.slice/b.scope/container/deeper"]), Some("/x"));
        assert_eq!(innermost(&["/a.slice/b", "/a.slice/b.scop", ""]), None);
        assert_eq!(innermost_group(&[], [(1, "/x")].into_iter()), None);
    }

    const STAT: &str =
        "7 (a) b) R 1 7 7 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 1 0 12345 1000 2 18446744073709551615";

    #[test]
    fn commands_with_parentheses_do_not_shift_the_fields() {
        assert_eq!(state(STAT), Some('R'));
        assert_eq!(start_ticks(STAT), Some(12345));
    }

    #[test]
    fn a_process_name_cannot_hide_the_start_time() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        for name in ["sh", "a b", "x) S 1 (", ")"] {
            assert_eq!(start_ticks(&format!("7 ({name}) {rest}")), Some(4242), "{name}");
        }
        for bad in ["", "7 (sh", "7 (sh) S 1"] {
            assert_eq!(start_ticks(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_first_process_is_found_though_others_have_lower_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let process = |pid: i32, parent: i32, ns_pids: &str, started: u64| {
            let files = dir.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&files).unwrap();
            fs::write(files.join("status"), format!("NSpid:\t{pid}\t{ns_pids}\n")).unwrap();
            let zeros = ["0"; 17].join(" ");
            fs::write(files.join("stat"), format!("{pid} (sh) S {parent} {zeros} {started} 0")).unwrap();
        };
        let (sandbox, shell, first) = (300, 31_000, 30_000);
        let mut pids: Vec<i32> = (300..300 + 2 * MAX_RANKED as i32).collect();
        pids.extend([first, shell]);
        for pid in &pids {
            match *pid {
                pid if pid == first => process(pid, 9, "1", 100),
                pid if pid == shell => process(pid, first, "7", 200),
                pid if pid == sandbox => process(pid, shell, "8\t1", 300),
                pid => process(pid, sandbox, &format!("{pid}\t{pid}"), 400),
            }
        }
        let root = Root::at(dir.path()).unwrap();
        assert_eq!(first_process_index(&root, &pids).map(|at| pids[at]), Some(first));
        fs::remove_dir_all(dir.path().join(format!("proc/{shell}"))).unwrap();
        assert_eq!(first_process_index(&root, &pids).map(|at| pids[at]), Some(sandbox));
        assert_eq!(first_process_index(&root, &[]), None);
    }

    #[test]
    fn this_process_has_started_and_has_threads() {
        let pid = std::process::id() as i32;
        assert!(start_time(pid).is_some_and(|t| t > Micros::ZERO && t <= crate::timer::now_boot()));
        assert!(count_threads(&[pid]).1 >= 1);
    }

    #[test]
    fn a_thread_counts_whatever_its_name() {
        let (named, ready) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            rustix::thread::set_name(c"\xff) S (").unwrap();
            named.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = wait.recv();
        });
        let id = ready.recv().unwrap();
        let line = stat_line(format!("/proc/{}/task/{id}", std::process::id())).unwrap();
        assert!(
            line.starts_with(&format!("{id} (\u{fffd}) S () ")) && start_ticks(&line).is_some(),
            "{line}"
        );
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn a_process_that_was_not_waited_for_is_dying() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!is_dying(pid));
        child.kill().unwrap();
        while !is_dying(pid) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(is_dying(pid));
    }

    /// What is resident of mappings of this program that cannot be written, in KiB.
    fn resident_of_program() -> u64 {
        let program = fs::read_link("/proc/self/exe").unwrap();
        let text = fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut counts, mut sum) = (false, 0);
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap_or_default();
            if first.contains('-') {
                counts = words.next() == Some("r-xp") && line.ends_with(program.to_str().unwrap());
            } else if counts && first == "Rss:" {
                sum += words.next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
            }
        }
        sum
    }

    #[test]
    fn what_the_start_needed_is_given_back_and_the_program_goes_on() {
        // A program of its own, whose other threads do not use what is measured: this test, alone.
        if std::env::var_os("ELBOWROOM_ALONE").is_none() {
            let name = "process::tests::what_the_start_needed_is_given_back_and_the_program_goes_on";
            let alone = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env("ELBOWROOM_ALONE", "1")
                .output()
                .unwrap();
            assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
            return;
        }
        let begin = code_page();
        let page = rustix::param::page_size();
        // SAFETY: pages of the program, which are read.
        let read = |n: usize| unsafe { std::ptr::read_volatile((begin + n * page) as *const u8) };
        let first: Vec<u8> = (0..256).map(read).collect();
        let before = resident_of_program();
        forget_start();
        let after = resident_of_program();
        assert!(after < before, "{after} of {before} KiB");
        assert_eq!((0..256).map(read).collect::<Vec<_>>(), first);
    }

    /// Where the code of this program begins.
    fn code_page() -> usize {
        let program = fs::read_link("/proc/self/exe").unwrap();
        let text = fs::read_to_string("/proc/self/maps").unwrap();
        let mut lines =
            text.lines().filter(|line| line.contains(" r-xp ") && line.ends_with(program.to_str().unwrap()));
        usize::from_str_radix(lines.next().unwrap().split('-').next().unwrap(), 16).unwrap()
    }

    #[test]
    fn a_life_sign_says_the_same_from_a_file_that_stays_open() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let sign = ProcessStat::of(child.id() as i32);
        assert!(sign.resident().is_some() && sign.resident().is_some());
        child.kill().unwrap();
        while sign.resident().is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(sign.resident(), None, "the process is gone");
        assert_eq!(ProcessStat::of(child.id() as i32).resident(), None);
    }

    #[test]
    fn a_life_sign_says_how_much_memory_a_process_has() {
        const MUCH: u64 = 64 << 20;
        let sign = ProcessStat::of(std::process::id() as i32);
        let before = sign.resident().unwrap();
        let held = std::hint::black_box(vec![1_u8; MUCH as usize]);
        let after = sign.resident().unwrap();
        // Other tests of this program allocate and free meanwhile.
        assert!(
            after.saturating_sub(before) > Bytes(MUCH / 2),
            "{before} and {after}, with {} bytes more",
            held.len()
        );
    }

    #[test]
    fn a_thread_that_was_killed_ends_though_it_waits_in_the_kernel() {
        // State, flags and the signals that wait for it: fields 3, 9 and 31.
        let line = |state: &str, flags: u64, pending: u64| {
            let numbers = ["0"; 21].join(" ");
            format!("7 (sh) {state} 1 7 7 0 -1 {flags} {numbers} {pending} 0")
        };
        for (state, flags, pending, expect) in [
            ("S", 4_194_560, 0, false),
            ("D", 4_194_560, 1 << 14, false),
            ("D", 4_194_560, 1 << 8, true),
            ("D", 4_194_564, 0, true),
            ("Z", 0, 0, true),
        ] {
            assert_eq!(is_ending(&line(state, flags, pending)), expect, "{state} {flags} {pending}");
        }
    }

    #[test]
    fn a_thread_that_shares_no_files_has_those_that_it_kept() {
        let files: Vec<fs::File> = (0..4).map(|_| fs::File::open("/dev/null").unwrap()).collect();
        let numbers: Vec<RawFd> = files.iter().map(std::os::fd::AsRawFd::as_raw_fd).collect();
        let (kept, all) = (vec![numbers[2], numbers[0]], numbers.clone());
        let is_open = |fd: &RawFd| Path::new(&format!("/proc/thread-self/fd/{fd}")).exists();
        let seen = std::thread::spawn(move || {
            let mut kept = kept;
            // SAFETY: all are open, and the thread uses no others.
            assert!(unsafe { unshare_open_files_except(&mut kept) });
            all.iter().map(is_open).collect::<Vec<_>>()
        });
        assert_eq!(seen.join().unwrap(), [true, false, true, false]);
        assert!(numbers.iter().all(is_open), "the process has all of them");
    }

    #[test]
    fn memory_in_pieces_between_what_stays_is_given_back() {
        let mut all: Vec<Option<Box<[u8]>>> = (0..20_000).map(|_| Some(vec![1; 1_000].into())).collect();
        all.iter_mut().enumerate().filter(|(n, _)| n % 100 != 0).for_each(|(_, piece)| *piece = None);
        let own = || {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
            line.trim_end_matches("kB").trim().parse::<u64>().unwrap()
        };
        let before = own();
        trim_malloc();
        let after = own();
        assert!(cfg!(not(target_env = "gnu")) || after + 10_000 < before, "{before} KiB, then {after}");
        assert_eq!(all.iter().flatten().count(), 200);
    }

    #[test]
    fn a_process_that_is_gone_has_no_facts() {
        assert_eq!(start_time(i32::MAX), None);
        assert!(cgroup_paths(i32::MAX).is_empty());
        assert_eq!(count_threads(&[i32::MAX]), (0, 0));
    }
}
