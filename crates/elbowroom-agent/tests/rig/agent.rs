//! An agent in a directory of its own, and the certainty that nothing of it is left.

use elbowroom_agent::view_server::roles::{AgentRole, RoleLock};
use elbowroom_agent::view_server::session;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub const ROLES: [AgentRole; 4] =
    [AgentRole::Supervisor, AgentRole::Server, AgentRole::Policy, AgentRole::Standby];

pub struct Agent {
    pub dir: tempfile::TempDir,
    pub roles: RoleLock,
    first: Child,
}

/// Why nothing that mounts can run here.
pub fn cannot_run() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("skipped: needs root to mount");
    }
    if std::fs::File::open("/dev/fuse").is_err() {
        return Some("skipped: needs /dev/fuse");
    }
    None
}

/// The program of `examples/fuse_rig.rs`, built once: cargo may have to wait for another.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let own = std::env::current_exe().expect("a running program has a path");
        if own.file_stem().is_some_and(|stem| stem == "fuse_rig") {
            return own;
        }
        // target/PROFILE/deps/fuse-HASH -> target/PROFILE/examples/fuse_rig. Cargo does nothing when it is there and fresh: the whole
        // workspace, because a package alone has other features, and with them all its dependencies would be built again.
        let profile = own.parent().and_then(Path::parent).expect("tests are in target/PROFILE/deps");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--workspace", "--example", "fuse_rig"]);
        if profile.file_name().is_some_and(|name| name == "release") {
            cargo.arg("--release");
        }
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).status();
        let program = profile.join("examples/fuse_rig");
        assert!(built.is_ok_and(|s| s.success()) || program.exists(), "examples/fuse_rig.rs cannot be built");
        program
    })
}

impl Agent {
    pub fn start(containers: usize, hz: u64) -> Self {
        let dir = tempfile::Builder::new().prefix("elbowroom-test-fuse-").tempdir().expect("a temp dir");
        Self::start_in(dir, containers, hz)
    }

    pub fn start_in(dir: tempfile::TempDir, containers: usize, hz: u64) -> Self {
        let first = Self::command(dir.path(), containers, hz).spawn().expect("the rig starts");
        let mut agent = Self { roles: RoleLock::open(dir.path()).expect("the lock file"), dir, first };
        let until = Instant::now() + Duration::from_secs(20);
        let last = agent.view(containers - 1);
        while !(agent.is_whole() && last.exists()) {
            assert!(Instant::now() < until, "the agent does not come up");
            // An agent that starts makes a lock file anew where one that stopped took it away.
            agent.roles = RoleLock::open(agent.dir.path()).expect("the lock file");
            std::thread::sleep(Duration::from_millis(5));
        }
        agent
    }

    pub fn command(run_dir: &Path, containers: usize, hz: u64) -> Command {
        let mut command = Command::new(program());
        command
            .arg("agent")
            .arg(run_dir)
            .arg(containers.to_string())
            .arg(hz.to_string())
            .stdin(Stdio::null());
        command
    }

    /// A container's view directory.
    pub fn view(&self, container: usize) -> PathBuf {
        self.dir.path().join("private/views").join(super::name(container))
    }

    pub fn pid(&self, role: AgentRole) -> Option<Pid> {
        self.roles.holder(role)
    }

    pub fn is_whole(&self) -> bool {
        ROLES.iter().all(|role| self.pid(*role).is_some())
    }

    /// SIGKILL to the processes of these roles; returns when all have successors.
    pub fn kill(&self, roles: &[AgentRole]) {
        let old: Vec<_> = roles.iter().map(|role| (*role, self.wait_for(*role, None))).collect();
        for (_, pid) in &old {
            let _ = kill_process(*pid, Signal::KILL);
        }
        for (role, pid) in old {
            self.wait_for(role, Some(pid));
        }
    }

    /// Waits for a process of that role that is not `other`.
    pub fn wait_for(&self, role: AgentRole, other: Option<Pid>) -> Pid {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(pid) = self.pid(role).filter(|pid| Some(*pid) != other) {
                return pid;
            }
            assert!(Instant::now() < until, "no {role} comes back");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// One line to the toy policy process, and its answer; tried again where that process was just killed.
    pub fn ask(&self, line: &str) -> String {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let answer =
                UnixStream::connect(self.dir.path().join(super::policy::SOCKET)).and_then(|mut stream| {
                    writeln!(stream, "{line}")?;
                    let mut answer = String::new();
                    BufReader::new(stream).read_line(&mut answer)?;
                    Ok(answer.trim().to_owned())
                });
            match answer {
                Ok(answer) if !answer.is_empty() => return answer,
                _ => assert!(Instant::now() < until, "the policy process does not answer"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Aborts the FUSE connections, so no process hangs in them any longer.
    pub fn abort(run_dir: &Path) {
        for name in ["private/views", "private/triggers"] {
            for line in session::mounts_on(&run_dir.join(name)).unwrap_or_default() {
                let _ = session::abort(line.minor);
            }
        }
    }

    /// Ends an agent that hangs. A live process would start the others again, so all are stopped first.
    fn end(run_dir: &Path) {
        Self::abort(run_dir);
        let mut quiet = 0;
        for _ in 0..500 {
            let Ok(roles) = RoleLock::open(run_dir) else { return };
            let there: Vec<Pid> = ROLES.iter().filter_map(|role| roles.holder(*role)).collect();
            for signal in [Signal::STOP, Signal::KILL] {
                for pid in &there {
                    let _ = kill_process(*pid, signal);
                }
            }
            quiet = if there.is_empty() { quiet + 1 } else { 0 };
            if quiet == 20 {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn unmount(run_dir: &Path) {
        for at in ["private/views", "private/triggers", "pages"].map(|name| run_dir.join(name)) {
            session::mounts_on(&at).unwrap_or_default().iter().for_each(|_| session::unmount(&at));
        }
    }

    /// Tells the agent to stop and waits until it has.
    pub fn stop(&mut self) -> bool {
        if let Some(pid) = self.pid(AgentRole::Supervisor) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let until = Instant::now() + Duration::from_secs(30);
        while Instant::now() < until {
            let _ = self.first.try_wait();
            if ROLES.iter().all(|role| self.pid(*role).is_none()) {
                let _ = self.first.wait();
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if !self.stop() {
            eprintln!("the agent does not stop: ending it");
            Self::end(self.dir.path());
            let _ = self.first.wait();
        }
        Self::unmount(self.dir.path());
    }
}

/// Ends the agent and this process unless it is dropped in time: a reader that hangs in the kernel would
/// keep the test, and the machine, for good.
pub struct Watchdog {
    done: std::sync::mpsc::Sender<()>,
}

impl Watchdog {
    pub fn over(run_dir: &Path, limit: Duration) -> Self {
        let run_dir = run_dir.to_owned();
        let (done, never) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            if never.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                // Not `eprintln`: that is kept with the test's output, which is not printed after an abort.
                let _ = writeln!(
                    std::io::stderr(),
                    "watchdog: nothing after {limit:?}: ending the agent and the tests"
                );
                Agent::end(&run_dir);
                std::thread::sleep(Duration::from_secs(1));
                Agent::unmount(&run_dir);
                std::process::abort();
            }
        });
        Self { done }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let _ = self.done.send(());
    }
}
