//! The service manager, where there is one: it is told that the agent is ready and works, and keeps what must outlive all of the
//! agent's processes.
//!
//! # Problem
//! A restart or an upgrade ends every process of the agent, and the FUSE connection lives while any process holds it. A view whose
//! connection is gone answers `ENOTCONN`.
//!
//! # Approach
//! systemd's file descriptor store (sd_notify(3), `FDSTORE=1`) holds the connection and the slots; the next agent finds them in
//! `LISTEN_FDS` and adopts them. Requests that come in between wait in the kernel's queue.
//!
//! The same signal tells of a stop, of the first half of a restart, and of a start that took too long, after which `Restart=` has its
//! turn. So the agent asks the manager what it carries out (`systemctl list-jobs`, `show`). If it does not answer, or keeps nothing for
//! the agent, it is a stop: everything is taken away cleanly.
//!
//! systemd 254 has `FileDescriptorStorePreserve=` for stores that outlive a stop; before, and without it, the store is emptied
//! when a unit is inactive and has no job.

use crate::view_server::handover::Connection;
use crate::view_server::slots::Slots;
use elbowroom_linux::bounded;
use elbowroom_types::unit::counted;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sd_notify::NotifyState;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Names of the FUSE connections in the store, in the order of [`Connection::ALL`].
const FUSE_FD_NAMES: [&str; 2] = ["fuse", "triggers"];
/// Name of the shared memory in the store.
const SLOTS_FD_NAME: &str = "slots";
/// How long the manager may take to say what it is doing, whatever it is asked for that.
const SYSTEMCTL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the manager may take to make room for a descriptor: what is not stored then is not stored later.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// What the manager gives a service by environment; not for the programs that it starts in turn.
pub(super) const SERVICE_ENV_VARS: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// What an agent before left in the store.
#[derive(Debug)]
pub(crate) struct StoredFds {
    /// `/dev/fuse`, mounted and initialised, of the views.
    pub views: OwnedFd,
    /// The same of the files that take triggers: an agent before 0.1 had none.
    pub triggers: Option<OwnedFd>,
    /// The memory of [`Slots`].
    pub slots: OwnedFd,
}

/// Whether there is something for [`StoredFds::take`].
pub(crate) fn has_stored_fds() -> bool {
    sd_notify::listen_fds().is_ok_and(|fds| fds.len() > 0)
}

/// Every descriptor that the service manager hands over, with its name. To be called once.
pub(crate) fn take_listen_fds() -> Vec<(OwnedFd, String)> {
    let stored = sd_notify::listen_fds_with_names().into_iter().flatten();
    // SAFETY: the manager opened this descriptor for this process (LISTEN_PID is ours) under this number, and nothing else here
    // owns it: this runs once, and what was opened since has other numbers.
    stored.map(|(fd, name)| (unsafe { OwnedFd::from_raw_fd(fd) }, name)).collect()
}

impl StoredFds {
    /// Takes over what is in the store. To be called once, before anything else is opened.
    pub fn take() -> Option<Self> {
        let [views_name, triggers_name] = FUSE_FD_NAMES;
        let (mut views, mut triggers, mut slots) = (None, None, None);
        for (fd, name) in take_listen_fds() {
            // Of two of a name, the one that was stored last.
            match name.as_str() {
                SLOTS_FD_NAME => slots = Some(fd),
                name if name == views_name => views = Some(fd),
                name if name == triggers_name => triggers = Some(fd),
                _ => {}
            }
        }
        Some(Self { views: views?, triggers, slots: slots? })
    }
}

/// The service manager; without one everything here does nothing.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    ready_sent: bool,
    /// How long the agent may be silent, where a service manager listens for it.
    watchdog: Option<Duration>,
    watchdog_fed_at: Instant,
    /// Whether the last message did not go.
    is_unreachable: bool,
}

impl ServiceManager {
    /// The manager of this process.
    pub fn new() -> Self {
        Self {
            ready_sent: false,
            watchdog: sd_notify::watchdog_enabled(),
            watchdog_fed_at: Instant::now(),
            is_unreachable: false,
        }
    }

    /// Gives what must outlive us to the store, in place of what is there.
    pub(crate) fn store_fds(&mut self, fuse: &[OwnedFd; Connection::ALL.len()], slots: &OwnedFd) {
        let fuse = FUSE_FD_NAMES.into_iter().zip(fuse);
        for (name, fd) in fuse.chain([(SLOTS_FD_NAME, slots)]) {
            self.notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
            // Without FDPOLL=0 the manager would wake up at every request in the queue.
            let state = [NotifyState::FdStore, NotifyState::FdName(name), NotifyState::Custom("FDPOLL=0")];
            if let Err(error) = send_state(&state, &[fd.as_fd()]) {
                tracing::warn!(%error, name, "the service manager does not keep it: a restart will replace the views");
                // Its other descriptors stay stored. A manager that hangs is waited for only once.
                return;
            }
        }
    }

    /// Nothing is to outlive us any more.
    pub(crate) fn remove_fds(&mut self) {
        for name in FUSE_FD_NAMES.into_iter().chain([SLOTS_FD_NAME]) {
            self.notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
        }
    }

    /// To be called once a second or more often: tells that the agent is ready, once, and that it works, often enough.
    pub(crate) fn notify_status(&mut self, ready: bool, works: bool, slots: &Slots) {
        if ready && !self.ready_sent {
            self.ready_sent = self.notify(&[NotifyState::Ready]);
        }
        let Some(watchdog) = self.watchdog else { return };
        if self.ready_sent && works && self.watchdog_fed_at.elapsed() >= watchdog / 6 {
            let status = format!("views of {}", counted(slots.iter_from(0).count(), "container"));
            if self.notify(&[NotifyState::Watchdog, NotifyState::Status(&status)]) {
                self.watchdog_fed_at = Instant::now();
            }
        }
    }

    /// Whether a service manager waits to hear that the agent is ready. Not one that took no message: it is told later.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.ready_sent && !self.is_unreachable && std::env::var_os("NOTIFY_SOCKET").is_some()
    }

    /// After how long without progress the agent counts as stuck: well before the watchdog, which must not fire on one slow look.
    pub(crate) fn stall_timeout(&self) -> Duration {
        self.watchdog.map_or(Duration::MAX, |limit| limit / 2)
    }

    /// We are on our way out.
    pub(crate) fn notify_stopping(&mut self) {
        self.notify(&[NotifyState::Stopping]);
    }

    /// Whether the manager stops us only to start us again, and keeps what we gave it.
    pub(crate) fn is_restarting(&self) -> bool {
        let managed = std::env::var_os("NOTIFY_SOCKET").is_some() && sd_notify::booted().unwrap_or(false);
        let groups = bounded::file_text("/proc/self/cgroup", bounded::KERNEL_FILE).unwrap_or_default();
        let Some(unit) = service_unit(&groups).filter(|_| managed) else { return false };
        let until = Instant::now() + SYSTEMCTL_TIMEOUT;
        let properties = "--property=NFileDescriptorStore,Result,Restart";
        let Some(state) = run_systemctl(&["show", properties, unit], until) else { return false };
        let Some(jobs) = run_systemctl(&["list-jobs", "--no-legend", unit], until) else {
            return false;
        };
        will_restart(&state, &jobs, unit)
    }

    /// Tells it, and says whether that went. The first message of some that get lost is logged.
    fn notify(&mut self, state: &[NotifyState<'_>]) -> bool {
        let sent = send_state(state, &[]);
        if let Err(error) = &sent
            && !self.is_unreachable
        {
            tracing::warn!(%error, ?state, "the service manager takes no message from NOTIFY_SOCKET: it is not told");
        }
        self.is_unreachable = sent.is_err();
        sent.is_ok()
    }
}

/// Sends a message to the service manager, with descriptors; without a service manager it does nothing. It waits only where it has
/// descriptors, for [`STORE_TIMEOUT`]: a manager that hangs must delay neither a start nor a stop for long.
///
/// # Errors
/// What the kernel says; `EAGAIN` where as many messages wait at the socket as there may (unix(7), `net.unix.max_dgram_qlen`).
pub(crate) fn send_state(state: &[NotifyState<'_>], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let patience = if fds.is_empty() { Duration::ZERO } else { STORE_TIMEOUT };
    send_state_to(&path, state, fds, patience)
}

fn send_state_to(
    path: &OsStr,
    state: &[NotifyState<'_>],
    fds: &[BorrowedFd<'_>],
    patience: Duration,
) -> Result<(), Errno> {
    let address = match path.as_bytes() {
        // sd_notify(3): the abstract namespace.
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    let lines: String = state.iter().map(|line| format!("{line}\n")).collect();
    let until = Instant::now() + patience;
    loop {
        let sent = elbowroom_linux::seccomp::send(socket.as_fd(), lines.as_bytes(), fds);
        let left = until.saturating_duration_since(Instant::now());
        if sent != Err(Errno::AGAIN) || left.is_zero() {
            return sent;
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let _ = rustix::event::poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&left));
    }
}

/// Whether the two processes that do the work get on with it, as the shared memory and the queue show it.
#[derive(Debug)]
pub(crate) struct AgentProgress {
    first_heartbeat: u64,
    last_heartbeat: (u64, Instant),
    last_answered: (u64, Instant),
}

impl AgentProgress {
    /// Begins to watch now.
    pub fn new(slots: &Slots) -> Self {
        let now = Instant::now();
        Self {
            first_heartbeat: slots.heartbeats(),
            last_heartbeat: (slots.heartbeats(), now),
            last_answered: (slots.answered(), now),
        }
    }

    /// Takes a look; `fuse` are the connections that the view server answers.
    pub fn update(&mut self, slots: &Slots, fuse: [BorrowedFd<'_>; Connection::ALL.len()], now: Instant) {
        let beat = slots.heartbeats();
        if beat != self.last_heartbeat.0 {
            self.last_heartbeat = (beat, now);
        }
        let answered = slots.answered();
        // A server that has nothing to do does not lag behind.
        let idle = answered == slots.counters().requests && !has_requests(&fuse);
        if idle || answered != self.last_answered.0 {
            self.last_answered = (answered, now);
        }
    }

    /// Whether the policy process has made its first update, after which it answers.
    pub(crate) const fn is_ready(&self) -> bool {
        self.last_heartbeat.0 != self.first_heartbeat
    }

    /// Whether both did something within `patience`, as far as there was something to do.
    pub(crate) fn is_progressing(&self, now: Instant, patience: Duration) -> bool {
        [self.last_heartbeat.1, self.last_answered.1]
            .iter()
            .all(|at| now.saturating_duration_since(*at) < patience)
    }
}

/// Whether requests wait, on whatever connection, that no server has taken yet.
fn has_requests(fuse: &[BorrowedFd<'_>; Connection::ALL.len()]) -> bool {
    let mut polled = fuse.each_ref().map(|fuse| PollFd::new(fuse, PollFlags::IN));
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&none)).is_ok()
        && polled.iter().any(|polled| polled.revents().contains(PollFlags::IN))
}

/// The service that a process with this `/proc/self/cgroup` belongs to (systemd.io/CGROUP_DELEGATION: a unit is a directory).
pub fn service_unit(groups: &str) -> Option<&str> {
    let path = groups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        matches!(controllers, "" | "name=systemd").then_some(path)
    });
    path?.split('/').rfind(|part| part.ends_with(".service"))
}

/// Whether a unit is started again and its stored descriptors are kept until then: because a restart was asked for, or because it has
/// failed and is not stopped. `state` is `KEY=VALUE` lines; `jobs` are lines of number, unit, type and state.
pub fn will_restart(state: &str, jobs: &str, unit: &str) -> bool {
    let value = |key: &str| {
        state.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).unwrap_or_default()
    };
    let has_job = |kind: &str| {
        jobs.lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.windows(2).any(|pair| pair == [unit, kind])
        })
    };
    let failed = !matches!(value("Result"), "" | "success");
    let is_retried = failed && matches!(value("Restart"), "always" | "on-failure" | "on-abnormal");
    value("NFileDescriptorStore").parse::<u32>().is_ok_and(|n| n >= 2)
        && (has_job("restart") || is_retried && !has_job("stop"))
}

/// What `systemctl` answers, if it does in time.
fn run_systemctl(words: &[&str], until: Instant) -> Option<String> {
    let mut child = Command::new("systemctl")
        .args(words)
        .env("SYSTEMD_COLORS", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() >= until {
            tracing::warn!(
                within_s = SYSTEMCTL_TIMEOUT.as_secs(),
                "systemctl does not answer: this is taken for a stop"
            );
            // A process that does not even end by that is not waited for: this process is on its way out.
            let _ = child.kill();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let out = bounded::output(child, bounded::SETTINGS_FILE).ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_service_on_either_hierarchy() {
        for (groups, expect) in [
            ("0::/system.slice/elbowroom.service\n", Some("elbowroom.service")),
            ("0::/system.slice/elbowroom.service/main\n", Some("elbowroom.service")),
            (
                "4:memory:/x.service\n1:name=systemd:/system.slice/room@1.service\n0::/\n",
                Some("room@1.service"),
            ),
            ("0::/user.slice/user-0.slice/session-1.scope\n", None),
            ("", None),
        ] {
            assert_eq!(service_unit(groups), expect, "{groups:?}");
        }
    }

    #[test]
    fn a_manager_that_reads_no_message_delays_no_process_and_one_that_reads_has_them_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let filled = path.clone();
        std::thread::spawn(move || {
            let fds = [std::io::stdin()];
            let state = [NotifyState::FdStore, NotifyState::FdName("fuse")];
            let fds = fds.each_ref().map(AsFd::as_fd);
            let full =
                (0..).find_map(|_| send_state_to(filled.as_os_str(), &state, &fds, Duration::ZERO).err());
            let _ = tell.send(full);
        });
        assert_eq!(
            told.recv_timeout(Duration::from_secs(30)),
            Ok(Some(Errno::AGAIN)),
            "it waits for the manager"
        );
        // A manager that is slow is waited for.
        let storing = path.clone();
        let stored = std::thread::spawn(move || {
            let stdin = std::io::stdin();
            send_state_to(
                storing.as_os_str(),
                &[NotifyState::FdStore],
                &[stdin.as_fd()],
                Duration::from_secs(30),
            )
        });
        std::thread::sleep(Duration::from_millis(100));
        let ready = send_state_to(path.as_os_str(), &[NotifyState::Ready], &[], Duration::ZERO);
        assert_eq!(ready, Err(Errno::AGAIN));
        let mut text = [0; 64];
        let (len, fds) = elbowroom_linux::seccomp::receive(manager.as_fd(), &mut text).unwrap();
        assert_eq!((&text[..len], fds.len()), (&b"FDSTORE=1\nFDNAME=fuse\n"[..], 1));
        assert_eq!(stored.join().unwrap(), Ok(()));
        assert_eq!(
            send_state_to(OsStr::new("@no such manager"), &[], &[], Duration::ZERO),
            Err(Errno::CONNREFUSED)
        );
    }

    #[test]
    fn what_is_told_to_stop_starts_again_where_that_is_wanted_or_it_has_failed() {
        const OURS: &str = "elbowroom.service";
        let state = |result| format!("Restart=on-failure\nResult={result}\nNFileDescriptorStore=2\n");
        let (well, timed_out) = (state("success"), state("timeout"));
        for (state, jobs, expect) in [
            (&well, "  421 elbowroom.service restart running\n", true),
            (&well, "1 a.service stop waiting\n2 elbowroom.service restart waiting\n", true),
            (&well, "421 elbowroom.service stop running\n", false),
            (&well, "421 other.service restart running\n", false),
            (&well, "", false),
            // A start that took too long; the same while it is stopped for good.
            (&timed_out, "", true),
            (&timed_out, "7 elbowroom.service start running\n", true),
            (&timed_out, "421 elbowroom.service stop running\n", false),
            (&timed_out.replace("on-failure", "no"), "", false),
            (&timed_out.replace("Store=2", "Store=0"), "", false),
            (&String::new(), "421 elbowroom.service restart running\n", false),
        ] {
            assert_eq!(will_restart(state, jobs, OURS), expect, "{state:?} {jobs:?}");
        }
    }

    #[test]
    fn a_part_that_stands_still_with_work_to_do_is_stuck_and_an_idle_one_is_not() {
        let patience = Duration::from_secs(10);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        // A pipe with a byte in it is a queue with a request in it.
        let pipes = Connection::ALL.map(|_| rustix::pipe::pipe().unwrap());
        let queues = pipes.each_ref().map(|(queue, _)| queue.as_fd());
        for (queue, requests) in &pipes {
            let slots = Slots::create(4, 1).unwrap();
            let mut progress = AgentProgress::new(&slots);
            assert!(!progress.is_ready());
            slots.count_heartbeat();
            progress.update(&slots, queues, after(20));
            assert!(progress.is_ready() && progress.is_progressing(after(25), patience), "idle");
            rustix::io::write(requests, b"r").unwrap();
            slots.count_heartbeat();
            progress.update(&slots, queues, after(40));
            assert!(!progress.is_progressing(after(40), patience), "a request that is not taken");
            slots.count_request(false);
            slots.count_answered();
            progress.update(&slots, queues, after(41));
            assert!(progress.is_progressing(after(42), patience), "answers");
            rustix::io::read(queue, &mut [0; 1]).unwrap();
            slots.count_request(false);
            progress.update(&slots, queues, after(60));
            assert!(
                !progress.is_progressing(after(60), patience),
                "a request that was taken and not answered, and no beat"
            );
        }
    }
}
