//! Which ways of telling a program its room reach a process that runs: files of the view in its mount namespace, the view page
//! in its memory, what is preloaded, the agent for HotSpot, words in its environment.
//!
//! Sources are `/proc/PID/{maps,environ,fd,comm}` and its mount table (`proc(5)`). A process may name itself and its files as it
//! likes; what it says so is about itself alone, and names are kept short. Looking costs a process nothing but the lock on its
//! list of areas, and ends after [`MAX_PROCESSES`] processes or [`TIME_LIMIT`].

use crate::bounded;
use crate::mount::NamespaceRoot;
use elbowroom_types::launch::{
    JAVA_AGENT, JAVA_NATIVE_LIBRARY, LIBC_LIBRARY, OPENMP_LIBRARY, sizing_variables,
};
use serde::Serialize;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Most processes that are looked at.
pub(crate) const MAX_PROCESSES: usize = 512;
/// How long looking may take.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(2);
/// Most of one file that is read, in bytes: areas of a process with 100,000 of them.
const MAX_FILE_BYTES: u64 = bounded::KERNEL_FILE;
/// Most open files of a process that are looked at, for the agent's jar.
const MAX_OPEN_FILES: usize = 4096;
/// Most characters of a command's name; the kernel keeps 15 bytes.
const MAX_NAME_LEN: usize = 32;

/// The processes of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReachReport {
    /// Those that were looked at, ascending.
    pub processes: Vec<ReachedProcess>,
    /// How many there are beside them: beyond the bounds, or not to be read.
    pub more: usize,
}

/// What reaches one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReachedProcess {
    /// Its number on the host.
    pub pid: i32,
    /// Its name.
    pub command: String,
    /// Everything else.
    #[serde(flatten)]
    pub by: ProcessReach,
}

/// Ways into a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ProcessReach {
    /// How many files and directories of a view are mounted where it looks.
    pub files: usize,
    /// What of it is in its memory.
    #[serde(flatten)]
    pub mapped: MapsSummary,
    /// Whether the agent for HotSpot is loaded.
    pub java: bool,
    /// Variables of its first environment that runtimes are told their room by.
    pub told: Vec<&'static str>,
}

/// What `/proc/PID/maps` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct MapsSummary {
    /// The view page.
    pub page: bool,
    /// The library for OpenMP.
    pub openmp: bool,
    /// The library for the C library's calls.
    pub libc: bool,
    /// The native part of the agent for HotSpot.
    pub java_native: bool,
}

/// Looks at `pids`. `pages` is the directory of the agent's view pages: its device tells them from other files of their name.
pub fn inspect(pids: &[i32], pages: &Path) -> ReachReport {
    let device = rustix::fs::stat(pages).ok().map(|stat| stat.st_dev);
    let device = device.map(|device| (rustix::fs::major(device), rustix::fs::minor(device)));
    let mut namespaces = HashMap::new();
    let asked: Vec<i32> = pids.iter().copied().take(MAX_PROCESSES).collect();
    let found = asked.into_iter().filter_map(move |pid| inspect_process(pid, device, &mut namespaces));
    let processes = collect_within(TIME_LIMIT, found);
    let more = pids.len() - processes.len();
    ReachReport { processes, more }
}

/// The results of `work` that come within `limit`. The rest goes on in a thread that ends with this process: while a process is stuck
/// on a disk, no other process can read its areas (fs/proc/task_mmu.c, `m_start`).
fn collect_within<T: Send + 'static>(
    limit: Duration,
    work: impl Iterator<Item = T> + Send + 'static,
) -> Vec<T> {
    let deadline = Instant::now() + limit;
    let (done, results) = mpsc::channel();
    let run = move || {
        for result in work {
            if done.send(result).is_err() {
                break;
            }
        }
    };
    if std::thread::Builder::new().name("reach".into()).spawn(run).is_err() {
        return Vec::new();
    }
    let next = || results.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok();
    std::iter::from_fn(next).collect()
}

/// `None` where it is gone, or not to be read.
fn inspect_process(
    pid: i32,
    pages: Option<(u32, u32)>,
    namespaces: &mut HashMap<u64, usize>,
) -> Option<ReachedProcess> {
    let file = |name: &str| format!("/proc/{pid}/{name}");
    let mapped = scan_maps(&read(&file("maps")).ok()?, pages);
    let environment = read(&file("environ")).unwrap_or_default();
    let command = String::from_utf8_lossy(&read(&file("comm")).ok()?).trim_end_matches('\n').to_owned();
    let namespace = rustix::fs::stat(file("ns/mnt")).ok()?.st_ino;
    let files = *namespaces.entry(namespace).or_insert_with(|| {
        NamespaceRoot::of(pid as u32).and_then(|place| place.attached()).map_or(0, |paths| paths.len())
    });
    let words = environment.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
    let by = ProcessReach {
        files,
        mapped,
        java: mapped.java_native || has_jar(Path::new(&file("fd"))),
        told: sizing_variables(words),
    };
    Some(ReachedProcess { pid, command: command.chars().take(MAX_NAME_LEN).collect(), by })
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    bounded::beginning(File::open(path)?, MAX_FILE_BYTES)
}

/// Whether the jar is open: a virtual machine keeps open what is on its class path.
fn has_jar(fds: &Path) -> bool {
    let entries = fs::read_dir(fds).into_iter().flatten().flatten().take(MAX_OPEN_FILES);
    entries
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|path| path.file_name().is_some_and(|name| name == JAVA_AGENT))
}

/// What a text of `/proc/PID/maps` shows; `pages` is the device of view pages, major and minor number.
pub fn scan_maps(maps: &[u8], pages: Option<(u32, u32)>) -> MapsSummary {
    let mut found = MapsSummary::default();
    for line in maps.split(|byte| *byte == b'\n') {
        // `7f1c2a000000-7f1c2a021000 r--s 00000000 00:2d 7    /path`
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let (Some(_range), Some(perms), Some(_offset), Some(device)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if pages.is_some() && perms.last() == Some(&b's') && parse_device(device) == pages {
            found.page = true;
        }
        let path = fields.nth(1).unwrap_or_default().trim_ascii();
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        found.openmp |= name == OPENMP_LIBRARY.as_bytes();
        found.libc |= name == LIBC_LIBRARY.as_bytes();
        found.java_native |= is_native_agent(name);
    }
    found
}

/// `00:2d`, hexadecimal.
fn parse_device(device: &[u8]) -> Option<(u32, u32)> {
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some((u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
}

/// What the agent loads its library from: that beside the jar, or a private file, `elbowroom-`, a number, `.so` (`java.nio.file.Files`).
fn is_native_agent(name: &[u8]) -> bool {
    if name == JAVA_NATIVE_LIBRARY.as_bytes() {
        return true;
    }
    let digits = name.strip_prefix(b"elbowroom-").and_then(|rest| rest.strip_suffix(b".so"));
    digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_show_what_is_loaded() {
        let line =
            |perms: &str, device: &str, path: &str| format!("7f0-7f1 {perms} 000 {device} 7      {path}\n");
        let check = |text: String, expect: MapsSummary| {
            assert_eq!(scan_maps(text.as_bytes(), Some((0, 0x2d))), expect, "{text}")
        };
        let none = MapsSummary::default();
        check(line("r--s", "00:2d", "/sys/devices/system/cpu/elbowroom"), MapsSummary { page: true, ..none });
        check(line("r--s", "00:2e", "/sys/devices/system/cpu/elbowroom"), none);
        check(line("r--p", "00:2d", "/a"), none);
        check(
            line("r-xp", "00:2f", "/sys/fs/fuse/connections/libelbowroom-openmp.so"),
            MapsSummary { openmp: true, ..none },
        );
        check(
            line("r-xp", "00:2f", "/x y/libelbowroom-libc.so (deleted)"),
            MapsSummary { libc: true, ..none },
        );
        check(
            line("r-xp", "00:2f", "/tmp/elbowroom-12345.so (deleted)"),
            MapsSummary { java_native: true, ..none },
        );
        check(
            line("r-xp", "00:2f", "/sys/fs/fuse/connections/libelbowroom-java.so"),
            MapsSummary { java_native: true, ..none },
        );
        for name in ["/tmp/elbowroom-.so", "/tmp/elbowroom-x.so", "/libelbowroom-openmp.so.bak", "[heap]", ""]
        {
            check(line("r-xp", "00:2f", name), none);
        }
        for text in ["", "\n\n", "x", "7f0-7f1 r--s", "7f0-7f1 r--s 0 zz:zz 7 /a"] {
            check(text.to_owned(), none);
        }
        assert_eq!(scan_maps(line("r--s", "00:2d", "").as_bytes(), None), none);
    }

    #[test]
    fn this_process_is_reached_by_nothing_and_others_are_counted() {
        let own = std::process::id() as i32;
        let reached = inspect(&[own, i32::MAX], Path::new("/no/such/directory"));
        assert_eq!((reached.processes.len(), reached.more), (1, 1));
        let process = &reached.processes[0];
        assert!(
            process.pid == own && !process.command.is_empty() && process.by.mapped == MapsSummary::default()
        );
    }

    #[test]
    fn a_process_that_never_answers_hides_no_other_and_takes_no_longer_than_the_limit() {
        let (release, stuck) = mpsc::channel::<()>();
        let work = (1..4).inspect(move |pid| {
            if *pid == 3 {
                let _ = stuck.recv();
            }
        });
        assert_eq!(collect_within(Duration::from_secs(1), work), [1, 2]);
        drop(release);
        assert_eq!(collect_within(TIME_LIMIT, 1..4), [1, 2, 3]);
    }

    #[test]
    fn looking_is_bounded() {
        let own = std::process::id() as i32;
        let reached = inspect(&vec![own; MAX_PROCESSES + 7], Path::new("/proc"));
        assert!(reached.processes.len() <= MAX_PROCESSES && reached.more >= 7);
    }
}
