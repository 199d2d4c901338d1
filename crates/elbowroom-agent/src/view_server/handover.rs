//! What the agent's processes hand to each other: how the agent was started, and the descriptors that all of them hold.

use crate::view_server::FuseError;
use crate::view_server::backoff::Backoff;
use crate::view_server::roles::{AgentRole, RoleLock, wait_readable};
use crate::view_server::slots::{ShutdownMode, Slots};
use elbowroom_linux::lease;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Environment variable in which a process of the agent finds its [`Handover`].
const HANDOVER_ENV: &str = "ELBOWROOM_HANDOVER";

/// The file systems that a view server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// The views, whose readers are served from the page cache and whose opening is not asked for.
    Views,
    /// The files that take PSI triggers ([`crate::view_server::triggers`]): each that is opened is known, and nothing is cached.
    Triggers,
}

impl Connection {
    /// All of them, in the order in which they are mounted.
    pub const ALL: [Self; 2] = [Self::Views, Self::Triggers];
}

/// What every process of the agent holds, and hands to those it starts.
#[derive(Debug)]
pub(crate) struct Handover {
    /// How the agent was started.
    pub options: AgentOptions,
    /// `/dev/fuse`, mounted and initialised, for each [`Connection`].
    pub fuse: [OwnedFd; 2],
    /// The memory of [`crate::view_server::slots`].
    pub slots: OwnedFd,
    /// The lock file.
    pub role_lock: RoleLock,
    /// The program, open: whatever becomes of its path (a package upgrade), all processes of one agent run the same one
    /// and agree about the shared memory.
    pub program: OwnedFd,
}

/// How the agent was started: enough to start any of its processes again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentOptions {
    /// The run directory, absolute.
    pub run_dir: PathBuf,
    /// Arguments of the policy process and of the API server, after their verbs, as bytes (an argument need not be UTF-8).
    policy_args: Vec<Vec<u8>>,
    /// Whether there is an API server.
    pub api: bool,
    /// How long the policy process may take to detach all containers when the agent stops.
    pub stop_deadline: Duration,
    /// Whether the agent is a container ([`crate::view_server::image`]), which ends with its supervisor.
    pub contained: bool,
}

impl AgentOptions {
    /// See the fields.
    pub fn new(run_dir: PathBuf, policy_args: &[OsString], api: bool, stop_deadline: Duration) -> Self {
        let policy_args = policy_args.iter().map(|arg| arg.as_bytes().to_vec()).collect();
        Self { run_dir, policy_args, api, stop_deadline, contained: false }
    }

    pub(crate) fn already_running(&self, role: AgentRole, pid: Option<Pid>) -> FuseError {
        let pid = pid.map_or(0, |pid| pid.as_raw_nonzero().get());
        FuseError::AlreadyRunning { run_dir: self.run_dir.clone(), role, pid }
    }

    /// Where the views are mounted.
    pub fn views(&self) -> PathBuf {
        self.mount_point(Connection::Views)
    }

    /// Where a file system of ours is mounted.
    pub fn mount_point(&self, connection: Connection) -> PathBuf {
        self.run_dir.join(match connection {
            Connection::Views => crate::view_server::VIEWS_DIR,
            Connection::Triggers => crate::view_server::TRIGGERS_DIR,
        })
    }

    /// Where the view pages are.
    pub fn pages(&self) -> PathBuf {
        self.run_dir.join(crate::view_server::PAGES_DIR)
    }

    /// The ledger of leases: there while any limit of ours may be in force.
    pub fn leases(&self) -> PathBuf {
        self.run_dir.join(lease::DIR)
    }
}

/// The environment variable's value.
#[derive(Serialize, Deserialize)]
struct HandoverEnv {
    start: AgentOptions,
    fuse: [RawFd; 2],
    slots: RawFd,
    roles: RawFd,
    program: RawFd,
}

impl Handover {
    /// Takes what the process that started this one handed over. To be called once, before anything else is opened.
    ///
    /// # Errors
    /// [`FuseError::NotInherited`] when there is nothing, or when the descriptors are not what they should be.
    pub(crate) fn inherit() -> Result<Self, FuseError> {
        let refuse = |what: String| FuseError::NotInherited { what };
        let text = std::env::var(HANDOVER_ENV).map_err(|_| refuse(format!("{HANDOVER_ENV} is not set")))?;
        let wire: HandoverEnv =
            serde_json::from_str(&text).map_err(|e| refuse(format!("{HANDOVER_ENV} is not ours: {e}")))?;
        let adopt = |name: &str, fd: RawFd, what: fn(&rustix::fs::Stat) -> bool| {
            // SAFETY: only looked at: a number that is no open descriptor makes fstat fail.
            let there = (fd > 2).then(|| unsafe { BorrowedFd::borrow_raw(fd) });
            let stat = there.and_then(|fd| rustix::fs::fstat(fd).ok());
            if !stat.is_some_and(|stat| what(&stat)) {
                return Err(refuse(format!("descriptor {fd} is not the agent's {name}")));
            }
            // SAFETY: it is open, is the kind of file that was handed over under this number, and nothing else in
            // this process owns it: this runs once, before anything was opened.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            // Not for programs that this process starts otherwise.
            rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)
                .map_err(|e| refuse(format!("descriptor of the {name}: {e}")))?;
            Ok(fd)
        };
        let is_file = |stat: &rustix::fs::Stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        let is_fuse = |stat: &rustix::fs::Stat| stat.st_rdev == rustix::fs::makedev(10, 229);
        let [views, triggers] = wire.fuse;
        Ok(Self {
            fuse: [adopt("FUSE connection", views, is_fuse)?, adopt("FUSE connection", triggers, is_fuse)?],
            slots: adopt("shared memory", wire.slots, is_file)?,
            role_lock: RoleLock { file: File::from(adopt("lock file", wire.roles, is_file)?) },
            program: adopt("program", wire.program, is_file)?,
            options: wire.start,
        })
    }

    /// Takes a role for this process, for as long as it lives.
    ///
    /// # Errors
    /// [`FuseError::AlreadyRunning`].
    pub(crate) fn acquire_role(&self, role: AgentRole) -> Result<(), FuseError> {
        match self.role_lock.acquire(role) {
            true => Ok(()),
            false => Err(self.options.already_running(role, self.role_lock.holder(role))),
        }
    }

    /// As [`RoleLock::watch`], for any role.
    pub fn watch(&self, role: AgentRole) -> Option<(Pid, OwnedFd)> {
        match role {
            AgentRole::Api => RoleLock::open_api(&self.options.run_dir).ok()?.watch(role),
            _ => self.role_lock.watch(role),
        }
    }

    /// As [`RoleLock::abandon`], for any role.
    pub(crate) fn abandon(&self, role: AgentRole) {
        match role {
            AgentRole::Api => match RoleLock::open_api(&self.options.run_dir) {
                Ok(lock) => lock.abandon(role),
                Err(error) => tracing::error!(%error, "the role of a dead API server cannot be freed"),
            },
            _ => self.role_lock.abandon(role),
        }
    }

    /// `/dev/fuse` of a connection.
    pub(crate) fn connection(&self, connection: Connection) -> &OwnedFd {
        &self.fuse[connection as usize]
    }

    /// Whether the connections are still there: not unmounted everywhere, and not aborted.
    pub(crate) fn is_connected(&self) -> bool {
        self.fuse.iter().all(|fuse| {
            let mut polled = [PollFd::new(fuse, PollFlags::empty())];
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            // The device says POLLERR when it is not (fs/fuse/dev.c, fuse_dev_poll).
            !matches!(rustix::event::poll(&mut polled, Some(&none)), Ok(1..) if polled[0].revents().contains(PollFlags::ERR))
        })
    }

    /// A command of this agent's program that inherits nothing of the agent's.
    pub fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()));
        command
            .arg0("elbowroom")
            .arg(verb)
            // Never below the mount, and in the way of no unmount.
            .current_dir("/")
            .stdin(Stdio::null())
            // Ctrl-C at a terminal is for the supervisor, which then stops the others in order.
            .process_group(0);
        for variable in crate::view_server::service_manager::SERVICE_ENV_VARS {
            command.env_remove(variable);
        }
        command.env_remove(HANDOVER_ENV);
        command
    }

    /// Starts a process of the agent.
    ///
    /// # Errors
    /// [`FuseError::Io`] when it cannot be forked or executed.
    pub fn spawn(&self, role: AgentRole) -> Result<Child, FuseError> {
        let [views, triggers] = &self.fuse;
        let fds = [views, triggers, &self.slots, &self.program].map(AsRawFd::as_raw_fd);
        let roles = self.role_lock.file.as_raw_fd();
        let [views, triggers, slots, program] = fds;
        let fuse = [views, triggers];
        let wire = HandoverEnv { start: self.options.clone(), fuse, slots, roles, program };
        let mut command = self.command(role.verb());
        if matches!(role, AgentRole::Policy | AgentRole::Api) {
            command.args(self.options.policy_args.iter().map(|arg| OsString::from_vec(arg.clone())));
        }
        // The API server talks to strangers, so it is handed nothing.
        let fds: Vec<RawFd> =
            if role == AgentRole::Api { Vec::new() } else { fds.into_iter().chain([roles]).collect() };
        if role != AgentRole::Api {
            command.env(HANDOVER_ENV, serde_json::to_string(&wire).expect("numbers and strings are JSON"));
        }
        // SAFETY: the closure runs between fork and exec in a copy of this process where other threads' locks may be
        // held. It only makes calls that are async-signal-safe. They use descriptors that `self` keeps open and a signal
        // set of its own that sigemptyset initialises.
        unsafe {
            command.pre_exec(move || {
                // The child does not inherit this process's blocked signals.
                let mut none = std::mem::zeroed();
                libc::sigemptyset(&raw mut none);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
                for fd in &fds {
                    if libc::fcntl(*fd, libc::F_SETFD, 0) != 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let path = PathBuf::from(command.get_program());
        command.spawn().map_err(FuseError::io("starting", path))
    }

    /// Watches the supervisor for as long as this process lives, and starts a new one when it dies; where others do the
    /// same at the same moment, the role goes to one. For the standby, and for a thread of its own in the policy process.
    pub(crate) fn watch_supervisor(&self) -> ! {
        let mut backoff = Backoff::default();
        loop {
            match self.role_lock.watch(AgentRole::Supervisor) {
                Some((_, pidfd)) => {
                    backoff.started();
                    wait_readable(&pidfd, None);
                }
                None => {
                    std::thread::sleep(backoff.next_delay());
                    if let Err(error) = self.respawn_supervisor(&mut backoff) {
                        tracing::error!(%error, "the supervisor cannot be started");
                    }
                }
            }
        }
    }

    /// Starts a supervisor and stays with it until it has died, or has turned out to be one too many.
    fn respawn_supervisor(&self, backoff: &mut Backoff) -> Result<(), FuseError> {
        if self.role_lock.holder(AgentRole::Supervisor).is_some() {
            return Ok(());
        }
        if self.options.contained {
            // The new one stops what is left of the agent, and a pipe to the engine is not held open meanwhile.
            Slots::open(self.slots.try_clone().map_err(FuseError::io("duplicating", "slots"))?)?
                .set_shutdown_mode(ShutdownMode::Stop);
            close_output();
        }
        let mut child = self.spawn(AgentRole::Supervisor)?;
        let pid = Pid::from_child(&child);
        tracing::warn!(
            pid = pid.as_raw_nonzero(),
            because = "the supervisor died",
            "started a new supervisor"
        );
        backoff.started();
        // Reaped here in any case; meanwhile another supervisor may come and go without this thread, and the others
        // see to that.
        let status = child.wait().map_err(FuseError::io("waiting for", "supervisor"))?;
        tracing::debug!(%status, "supervisor ended");
        Ok(())
    }
}

/// Standard output and error of this process go nowhere from now on.
fn close_output() {
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
