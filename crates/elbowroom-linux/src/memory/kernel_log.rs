//! Kills for memory as the kernel's log has them, for containers whose counter is gone before it can be read.
//!
//! The kernel writes a record of each process that it kills (mm/oom_kill.c, `__oom_kill_process`), and before it one with the process's
//! cgroup (`dump_oom_victim`), of those at most ten in five seconds (`oom_rs`). They stay when the cgroup is removed.
//! Format of a record: Documentation/ABI/testing/dev-kmsg.

use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The most bytes of a record (kernel/printk/internal.h, `PRINTK_MESSAGE_MAX`; 8192 before Linux 6.3).
const MAX_RECORD: usize = 8192;
/// The most records that a call reads, about as many as a buffer of 1 MiB has. The next call reads the rest.
const MAX_RECORDS: usize = 16_384;

/// A process that was killed for memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedKill {
    /// Its id on the host.
    pub pid: u32,
    /// Its memory cgroup, as a path from the root of the hierarchy, where the log says so.
    pub cgroup: Option<String>,
    /// What was full.
    pub full: FullMemory,
}

/// Whose memory was full when the kernel killed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FullMemory {
    /// The host's.
    Host,
    /// That of the cgroup at this path, of which its limit lets in no more; `None` where the log does not say which.
    Cgroup(Option<String>),
}

impl LoggedKill {
    /// Whether the limit of the cgroup at `path`, or of one below it, was reached: not that of one around it, and not the host's memory.
    pub fn is_at_limit_of(&self, path: &str) -> bool {
        match &self.full {
            FullMemory::Host => false,
            FullMemory::Cgroup(full) => full.as_ref().is_none_or(|full| Path::new(full).starts_with(path)),
        }
    }
}

/// The kernel's log from now on.
#[derive(Debug)]
pub struct KernelLog {
    fd: OwnedFd,
    /// Whose cgroup was told, and its death not yet.
    victim: Option<u32>,
}

impl KernelLog {
    /// Opens it; `None` where that is not allowed (`CAP_SYSLOG` where `kernel.dmesg_restrict` is 1) or there is none.
    pub fn open() -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/kmsg", flags, Mode::empty()).ok()?;
        rustix::fs::seek(&fd, SeekFrom::End(0)).ok()?;
        Some(Self { fd, victim: None })
    }

    /// The processes killed since the last call, each once. Does not wait.
    pub fn drain_kills(&mut self) -> Vec<LoggedKill> {
        let mut kills = Vec::new();
        let mut record = [0; MAX_RECORD];
        for _ in 0..MAX_RECORDS {
            match rustix::io::read(&self.fd, &mut record) {
                Ok(length) => {
                    let kill = parse_kill(&record[..length]);
                    kills.extend(kill.filter(|kill| self.is_first_of(kill)));
                }
                // Records were overwritten before they were read, or one is longer than all.
                Err(Errno::PIPE | Errno::INVAL | Errno::INTR) => {}
                Err(_) => break,
            }
        }
        kills
    }

    /// Whether this is the first of the records of a process. The kernel kills for one cgroup after the other (`oom_lock`).
    fn is_first_of(&mut self, kill: &LoggedKill) -> bool {
        let victim = self.victim.take();
        if kill.cgroup.is_some() {
            self.victim = Some(kill.pid);
        }
        kill.cgroup.is_some() || victim != Some(kill.pid)
    }
}

/// The kill that a record tells of. A cgroup whose name looks like another field is not told.
pub fn parse_kill(record: &[u8]) -> Option<LoggedKill> {
    let (prefix, text) = std::str::from_utf8(record).ok()?.split_once(';')?;
    // Eight levels of the kernel's own facility: other records are written by programs.
    let priority: u64 = prefix.split(',').next()?.parse().ok()?;
    let text = text.lines().next().filter(|_| priority < 8)?;
    if let Some(fields) = text.strip_prefix("oom-kill:constraint=CONSTRAINT_") {
        let mut parts = fields.split(",task_memcg=");
        let (Some(before), path, None) = (parts.next(), parts.next()?, parts.next()) else { return None };
        let (path, task) = path.split_once(",task=")?;
        // The task's name may be anything; what follows it are numbers.
        let pid = task.rsplit_once(",pid=")?.1.split(',').next()?.parse().ok()?;
        let full = match before.split_once(",oom_memcg=") {
            Some((_, full)) => FullMemory::Cgroup(Some(unescaped(full))),
            None => FullMemory::Host,
        };
        return Some(LoggedKill { pid, cgroup: Some(unescaped(path)), full });
    }
    let (killed, full) = match text.strip_prefix("Memory cgroup out of memory: ") {
        Some(killed) => (killed, FullMemory::Cgroup(None)),
        None => (text.strip_prefix("Out of memory: ")?, FullMemory::Host),
    };
    let pid = killed.strip_prefix("Killed process ")?.split(' ').next()?.parse().ok()?;
    Some(LoggedKill { pid, cgroup: None, full })
}

/// Bytes that the log has as `\xHH` (kernel/printk/printk.c, `append_char`).
fn unescaped(text: &str) -> String {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[2..]);
            }
            None => bytes.extend([b"\\x", part.as_bytes()].concat()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.18 writes it, with another path.
    fn record(path: &str, task: &str) -> String {
        format!(
            "6,1803,12703466824,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=d159,mems_allowed=0,\
             oom_memcg={path},task_memcg={path},task={task},pid=9313,uid=0\n SUBSYSTEM=x\n"
        )
    }

    const KILLED: &str = "3,1804,12703466838,-;Memory cgroup out of memory: Killed process 9313 (python3) total-vm:136960kB, anon-rss:64kB\n";

    fn cgroup(record: &str) -> Option<String> {
        parse_kill(record.as_bytes()).and_then(|kill| kill.cgroup)
    }

    #[test]
    fn a_kill_names_its_process_and_that_ones_cgroup() {
        for (path, said) in [
            ("/docker/d159", "/docker/d159"),
            (r"/user.slice/a\x5cx2db.scope", r"/user.slice/a\x2db.scope"),
            (r"/a\x0ab\xc3\xa4", "/a\nb\u{e4}"),
            (r"/a\xzz\x5", r"/a\xzz\x5"),
        ] {
            let full = FullMemory::Cgroup(Some(said.to_owned()));
            let kill = LoggedKill { pid: 9313, cgroup: Some(said.to_owned()), full };
            assert_eq!(parse_kill(record(path, "python3").as_bytes()), Some(kill));
        }
        let global = record("/a", "x").replace("oom_memcg=/a", "global_oom").replace("MEMCG", "NONE");
        assert_eq!(cgroup(&global).as_deref(), Some("/a"));
        for task in ["b,task=c", "b,pid=1", "b,task_memcg="] {
            let kill = parse_kill(record("/a", task).as_bytes());
            assert!(
                kill.is_none_or(|kill| kill.pid == 9313 && kill.cgroup.as_deref() == Some("/a")),
                "{task}"
            );
        }
        for (killed, full) in [
            (KILLED, FullMemory::Cgroup(None)),
            (&KILLED.replace("Memory cgroup out", "Out"), FullMemory::Host),
        ] {
            assert_eq!(parse_kill(killed.as_bytes()), Some(LoggedKill { pid: 9313, cgroup: None, full }));
        }
    }

    #[test]
    fn a_kill_is_at_the_limit_that_was_full_and_at_no_other() {
        let at = |full: &str, path| {
            let record = record("/pod/web/inside", "x").replace("oom_memcg=/pod/web/inside", full);
            parse_kill(record.as_bytes()).unwrap().is_at_limit_of(path)
        };
        for (full, expect) in [
            ("oom_memcg=/pod/web", true),
            ("oom_memcg=/pod/web/inside", true),
            ("oom_memcg=/pod", false),
            ("oom_memcg=/", false),
            ("oom_memcg=/pod/web2", false),
            ("global_oom", false),
        ] {
            assert_eq!(at(full, "/pod/web"), expect, "{full}");
        }
        assert!(parse_kill(KILLED.as_bytes()).unwrap().is_at_limit_of("/pod/web"), "it does not say which");
    }

    #[test]
    fn what_others_write_and_what_has_two_meanings_is_no_kill() {
        for plain in [&record("/a", "x"), KILLED] {
            let level = &plain[..2];
            assert!(parse_kill(plain.as_bytes()).is_some());
            // From a program: its facility is never the kernel's.
            assert_eq!(parse_kill(plain.replacen(level, "14,", 1).as_bytes()), None);
            // Text of another message.
            assert_eq!(parse_kill(plain.replacen(';', ";x[1]: segfault in ", 1).as_bytes()), None);
        }
        // A cgroup's name that looks like a field.
        assert_eq!(parse_kill(record("/a/,task_memcg=/db,task=x", "x").as_bytes()), None);
        let cut = record("/a", "x").split(",task=").next().unwrap().to_owned();
        for cut in ["", "6", "6,1;", "x,1;oom-kill:constraint=CONSTRAINT_", &cut, &KILLED[..62]] {
            assert_eq!(parse_kill(cut.as_bytes()), None, "{cut}");
        }
    }

    #[test]
    fn a_process_is_told_of_once() {
        let Some(mut log) = KernelLog::open() else {
            return println!("skipped: the kernel's log cannot be read");
        };
        let with = |pid| LoggedKill { pid, cgroup: Some("/a".to_owned()), full: FullMemory::Host };
        let without = |pid| LoggedKill { pid, cgroup: None, full: FullMemory::Host };
        let told = [with(1), without(1), without(2), without(2), with(3), without(4), without(3)];
        assert_eq!(told.map(|kill| log.is_first_of(&kill)), [true, false, true, true, true, true, true]);
    }

    #[test]
    fn the_log_is_read_from_now_on() {
        let Some(mut log) = KernelLog::open() else {
            return println!("skipped: the kernel's log cannot be read");
        };
        assert_eq!(log.drain_kills(), Vec::new());
    }
}
