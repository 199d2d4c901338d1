//! Engines that are driven by their command lines.

use super::{
    ContainerOptions, ENGINE_TIMEOUT, EngineError, EngineKind, EngineUse, LABEL, NAME_PREFIX, ProfilerRun,
    StartTarget, bundle, file_error,
};
use elbowroom_linux::bounded;
use elbowroom_linux::signal;
use elbowroom_linux::signal::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use rustix::thread::UnshareFlags;
use std::fs::{self, File};
use std::io::{self, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// containerd's socket unless another is given.
pub(super) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// A v2 hierarchy without controllers beside those of v1; crun refuses to work where it is.
const UNIFIED_MOUNT: &str = "/sys/fs/cgroup/unified";
/// How often an end is asked for that cannot be waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// What an engine says of a refusal.
const MAX_ERROR_TEXT: u64 = 4 << 10;

/// An engine with a command line.
#[derive(Debug)]
pub(super) struct CliEngine {
    kind: EngineKind,
    pub(super) version: String,
    /// containerd's socket.
    pub(super) address: Option<String>,
    /// containerd's namespace.
    namespace: Option<String>,
    options: ContainerOptions,
    hides_unified: bool,
}

impl CliEngine {
    /// What `used` says; what it does not, the environment does.
    pub(super) fn open(used: EngineUse, options: &ContainerOptions) -> Result<Self, EngineError> {
        let kind = used.kind;
        let program = program(kind);
        let directories = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&directories).any(|dir| dir.join(program).is_file()) {
            return Err(EngineError::Missing { engine: kind, program });
        }
        let said = |name: &str, else_: &str| {
            let said = std::env::var(name).ok().filter(|said| !said.is_empty());
            (kind == EngineKind::Containerd).then(|| said.unwrap_or_else(|| else_.to_owned()))
        };
        let address = used.address.or_else(|| said("CONTAINERD_ADDRESS", CONTAINERD_SOCKET));
        let namespace = used.namespace.or_else(|| said("CONTAINERD_NAMESPACE", "default"));
        let hides_unified =
            kind == EngineKind::Crun && Path::new(UNIFIED_MOUNT).join("cgroup.procs").exists();
        let (version, options) = (String::new(), options.clone());
        let mut cli = Self { kind, version, address, namespace, options, hides_unified };
        if let Some(address) = &cli.address
            && let Err(error) = std::os::unix::net::UnixStream::connect(address)
        {
            let (address, why) = (address.clone(), error.to_string());
            return Err(EngineError::Unresponsive {
                engine: kind,
                address,
                why,
                variable: "CONTAINERD_ADDRESS",
            });
        }
        let said = cli.run("say its version", &cli.command_line(None, &["--version"]), None)?;
        // `runc version 1.1.5+ds1`, `ctr github.com/containerd/containerd 1.6.20~ds1`, `podman version 4.3.1`.
        let first = said.lines().next().unwrap_or_default();
        cli.version = first.split(' ').next_back().unwrap_or("unknown").to_owned();
        Ok(cli)
    }

    /// Which daemon it is, for [`ProfilerRun::record_engine`].
    fn engine_use(&self) -> EngineUse {
        EngineUse { kind: self.kind, address: self.address.clone(), namespace: self.namespace.clone() }
    }

    pub(super) fn has_image(&self, image: &str) -> Result<(), EngineError> {
        let what = format!("find the image {image}");
        match self.kind {
            EngineKind::Podman => {
                self.run(&what, &self.command_line(None, &["image", "exists", "--", image]), None).map(|_| ())
            }
            _ => {
                let listed =
                    self.run(&what, &self.command_line(None, &["images", "list", "--quiet"]), None)?;
                match listed.lines().any(|name| name == image) {
                    true => Ok(()),
                    false => Err(EngineError::Refused {
                        engine: self.kind,
                        what,
                        said: "the namespace has no image of exactly that name; see `ctr images list`".into(),
                    }),
                }
            }
        }
    }

    pub(super) fn create(
        &self,
        run: &ProfilerRun,
        subject: &StartTarget,
        name: &str,
    ) -> Result<(), EngineError> {
        run.record_engine(&self.engine_use())?;
        let label = format!("{LABEL}={}", run.tag);
        let mut words: Vec<String> = match self.kind {
            EngineKind::Runc | EngineKind::Crun => return bundle::write(run, subject, name),
            EngineKind::Podman => {
                let network = self.options.network.as_deref().unwrap_or("none");
                let mut words = self
                    .command_line(None, &["create", "--name", name, "--label", &label, "--network", network]);
                words.extend(["--log-driver".into(), "none".into()]);
                // Podman's own limits are larger than some hosts have to give, and then nothing starts.
                words.extend(
                    ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"].map(str::to_owned),
                );
                words
            }
            _ => self.command_line(None, &["containers", "create", "--label", &label]),
        };
        match (self.kind, subject) {
            (EngineKind::Podman, StartTarget::Host(command)) => {
                words.extend(
                    bundle::present_host_paths()
                        .flat_map(|path| ["--volume".into(), format!("{path}:{path}:ro")]),
                );
                words.extend(["--read-only".into(), "--rootfs".into()]);
                words.push(bundle::root(&run.dir)?.display().to_string());
                words.extend(command.iter().cloned());
            }
            (EngineKind::Podman, StartTarget::Image(image, command)) => {
                words.extend(["--pull".into(), "never".into(), image.clone()]);
                words.extend(command.iter().cloned());
            }
            (_, StartTarget::Host(command)) => {
                words.extend(bundle::present_host_paths().flat_map(|path| {
                    ["--mount".into(), format!("type=bind,src={path},dst={path},options=rbind:ro")]
                }));
                words.extend(["--mount".into(), "type=tmpfs,src=tmpfs,dst=/tmp,options=mode=1777".into()]);
                words.extend(["--env".into(), bundle::PATH.into(), "--read-only".into(), "--rootfs".into()]);
                words.extend([bundle::root(&run.dir)?.display().to_string(), name.to_owned()]);
                words.extend(command.iter().cloned());
            }
            (_, StartTarget::Image(image, command)) => {
                words.extend([image.clone(), name.to_owned()]);
                words.extend(command.iter().cloned());
            }
            (_, StartTarget::Bundle(_)) => unreachable!("`prepare` refuses bundles with an engine"),
        }
        self.run("make a container", &words, Some((&run.dir, name))).map(|_| ())
    }

    pub(super) fn start(&self, run: &ProfilerRun, name: &str) -> Result<(), EngineError> {
        let bundle = run.dir.join("bundles").join(name).display().to_string();
        let words = match self.kind {
            EngineKind::Podman => self.command_line(None, &["start", name]),
            EngineKind::Runc | EngineKind::Crun => {
                self.command_line(Some(&run.dir), &["run", "--detach", "--bundle", &bundle, name])
            }
            _ => self.command_line(None, &["tasks", "start", "--detach", name]),
        };
        self.run("start a container", &words, Some((&run.dir, name))).map(|_| ())
    }

    pub(super) fn remove(&self, dir: &Path, name: &str) -> Result<(), EngineError> {
        let what = format!("remove the container {name}");
        match self.kind {
            EngineKind::Podman => {
                self.run(
                    &what,
                    &self.command_line(None, &["rm", "--force", "--ignore", "--time", "0", name]),
                    None,
                )?;
            }
            EngineKind::Runc | EngineKind::Crun => {
                if dir.join("state").join(name).exists() {
                    self.run(&what, &self.command_line(Some(dir), &["delete", "--force", name]), None)?;
                }
                let _ = fs::remove_dir_all(dir.join("bundles").join(name));
            }
            _ => {
                // One that never ran has no task.
                let _ =
                    self.run(&what, &self.command_line(None, &["tasks", "delete", "--force", name]), None);
                if self.list(dir)?.iter().any(|known| known == name) {
                    self.run(&what, &self.command_line(None, &["containers", "delete", name]), None)?;
                }
            }
        }
        let _ = fs::remove_file(dir.join(format!("{name}.err")));
        Ok(())
    }

    /// Names of containers that profilers made, this one or others.
    pub(super) fn list(&self, dir: &Path) -> Result<Vec<String>, EngineError> {
        let text = match self.kind {
            EngineKind::Podman => {
                let filter = format!("label={LABEL}");
                let words = ["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"];
                self.run("list containers", &self.command_line(None, &words), None)?
            }
            EngineKind::Runc | EngineKind::Crun => {
                let entries = |sub: &str| fs::read_dir(dir.join(sub)).into_iter().flatten().flatten();
                let names = entries("state").chain(entries("bundles"));
                names.filter_map(|entry| Some(entry.file_name().into_string().ok()? + "\n")).collect()
            }
            _ => self.run(
                "list containers",
                &self.command_line(None, &["containers", "list", "--quiet"]),
                None,
            )?,
        };
        let mut names: Vec<String> =
            text.lines().filter(|name| name.starts_with(NAME_PREFIX)).map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// A command line: the program, what it needs to find its things, then `words`.
    fn command_line(&self, dir: Option<&Path>, words: &[&str]) -> Vec<String> {
        let mut all = vec![program(self.kind).to_owned()];
        if let Some(address) = &self.address {
            all.extend(["--address".into(), address.clone()]);
        }
        if let Some(namespace) = &self.namespace {
            all.extend(["--namespace".into(), namespace.clone()]);
        }
        if let Some(dir) = dir {
            all.extend(["--root".into(), dir.join("state").display().to_string()]);
        }
        if let (EngineKind::Podman, Some(runtime)) = (self.kind, &self.options.runtime) {
            all.extend(["--runtime".into(), runtime.clone()]);
        }
        all.extend(words.iter().map(|word| (*word).to_owned()));
        all
    }

    /// Runs a command line to its end, or for [`ENGINE_TIMEOUT`]. A container keeps its starter's output open, so where one may come out
    /// of it, what the command says goes to a file of that name.
    fn run(
        &self,
        what: &str,
        words: &[String],
        container: Option<(&Path, &str)>,
    ) -> Result<String, EngineError> {
        match self.hides_unified {
            false => self.run_here(what, words, container),
            // A thread of its own has a mount namespace of its own, and takes it along.
            true => std::thread::scope(|scope| {
                let there = scope.spawn(|| {
                    hide_unified().map_err(|error| {
                        self.refused(what, format!("while hiding {UNIFIED_MOUNT}: {error}"))
                    })?;
                    self.run_here(what, words, container)
                });
                there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }),
        }
    }

    fn run_here(
        &self,
        what: &str,
        words: &[String],
        container: Option<(&Path, &str)>,
    ) -> Result<String, EngineError> {
        let not_run = |error: io::Error| self.refused(what, error.to_string());
        let (out, errors) = match container {
            None => (Some(output_file().map_err(not_run)?), output_file().map_err(not_run)?),
            Some((dir, name)) => {
                let path = dir.join(format!("{name}.err"));
                let new = File::options().read(true).write(true).create(true).truncate(true).open(&path);
                (None, new.map_err(file_error("making", &path))?)
            }
        };
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).process_group(0);
        match &out {
            Some(out) => command.stdout(out.try_clone().map_err(not_run)?),
            None => command.stdout(Stdio::null()),
        };
        command.stderr(errors.try_clone().map_err(not_run)?);
        let child = signal::unblock_in_child(&mut command).spawn().map_err(not_run)?;
        let ProcessEnd::Status(status) = wait_for_end(child, Some(ENGINE_TIMEOUT), None).map_err(not_run)?
        else {
            return Err(EngineError::Hung { engine: self.kind, what: what.to_owned() });
        };
        match (status.success(), out) {
            (true, Some(out)) => read(out, MAX_OUTPUT_BYTES).map_err(not_run),
            (true, None) => Ok(String::new()),
            (false, _) => {
                let said = read(errors, MAX_ERROR_TEXT).map_err(not_run)?;
                Err(self.refused(what, if said.trim().is_empty() { status.to_string() } else { said }))
            }
        }
    }

    fn refused(&self, what: &str, said: String) -> EngineError {
        let said: String = said.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        EngineError::Refused { engine: self.kind, what: what.to_owned(), said }
    }
}

/// The most bytes of a command's output: lists of names, or what one container is.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;

fn program(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Containerd => "ctr",
        other => other.name(),
    }
}

/// A file in memory for what a command says: it need not be read while the command runs.
fn output_file() -> io::Result<File> {
    Ok(File::from(memfd_create("elbowroom", MemfdFlags::CLOEXEC)?))
}

/// What a command has written to a file, at most `most` bytes of it.
fn read(mut file: File, most: u64) -> io::Result<String> {
    // Writing has moved the place that this handle shares.
    file.rewind()?;
    Ok(String::from_utf8_lossy(&bounded::beginning(file, most)?).into_owned())
}

/// How the leader of a process group comes to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessEnd {
    /// By itself.
    Status(ExitStatus),
    /// It took too long, and was killed with its group.
    TimedOut,
    /// A signal came for us first, and it was killed with its group.
    Interrupted,
}

/// Waits for the leader of a process group: no longer than `patience`, and until one of `signals` comes, where they are given.
pub(super) fn wait_for_end(
    mut leader: Child,
    patience: Option<Duration>,
    signals: Option<&SignalFd>,
) -> io::Result<ProcessEnd> {
    let (pid, began) = (Pid::from_child(&leader), Instant::now());
    // Before Linux 5.3 nothing can be waited for with an end, and it has to be asked for.
    let end = pidfd_open(pid, PidfdFlags::empty()).ok();
    let kill = |leader: &mut Child, end| {
        // It is not waited for yet, so its number can be no other group's.
        let _ = kill_process_group(pid, Signal::KILL);
        leader.wait().map(|_| end)
    };
    loop {
        if let Some(status) = leader.try_wait()? {
            return Ok(ProcessEnd::Status(status));
        }
        if signals.map(SignalFd::next).transpose()?.flatten().is_some() {
            return kill(&mut leader, ProcessEnd::Interrupted);
        }
        let left = patience.map(|patience| patience.saturating_sub(began.elapsed()));
        if left == Some(Duration::ZERO) {
            return kill(&mut leader, ProcessEnd::TimedOut);
        }
        let wait = if end.is_some() {
            left
        } else {
            Some(left.map_or(POLL_INTERVAL, |left| left.min(POLL_INTERVAL)))
        };
        let wait =
            wait.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() });
        let (end, signals) = (end.iter().map(OwnedFd::as_fd), signals.iter().map(|signals| signals.as_fd()));
        let mut either: Vec<PollFd<'_>> =
            end.chain(signals).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut either, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return kill(&mut leader, ProcessEnd::TimedOut),
        }
    }
}

/// Takes the v2 hierarchy out of this thread's sight, and of what it starts.
fn hide_unified() -> Result<(), rustix::io::Errno> {
    // SAFETY: called on a thread that was made for one command and ends after it; no other code of this process relies on that
    // thread's mount namespace or working directory.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    unmount(UNIFIED_MOUNT, UnmountFlags::DETACH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn sh(script: &str) -> Result<String, EngineError> {
        let cli = CliEngine {
            kind: EngineKind::Runc,
            version: String::new(),
            address: None,
            namespace: None,
            options: ContainerOptions::default(),
            hides_unified: false,
        };
        cli.run("say something", &["sh", "-c", script].map(str::to_owned), None)
    }

    #[test]
    fn what_a_command_says_is_read_however_much_it_is() {
        assert_eq!(sh("yes a | head -c 200000; echo b >&2").unwrap().len(), 200_000);
        assert_eq!(
            sh("echo a; echo why >&2; exit 1").unwrap_err().to_string(),
            "runc refused to say something: why"
        );
    }

    #[test]
    fn a_command_can_be_told_to_end_although_the_profiler_has_signals_blocked() {
        let ended = std::thread::spawn(|| {
            let _signals = SignalFd::block(&[Signal::TERM]).unwrap();
            sh("kill -TERM $$; echo still here")
        });
        assert!(ended.join().unwrap().unwrap_err().to_string().contains("signal: 15"));
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_what_it_started() {
        let start = |script| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).process_group(0).stdout(Stdio::piped()).spawn().unwrap()
        };
        let ended = wait_for_end(start("exit 3"), Some(Duration::from_secs(60)), None).unwrap();
        assert!(matches!(ended, ProcessEnd::Status(status) if status.code() == Some(3)), "{ended:?}");
        let mut hangs = start("sleep 1000 & wait");
        let mut out = hangs.stdout.take().unwrap();
        assert_eq!(wait_for_end(hangs, Some(Duration::from_millis(50)), None).unwrap(), ProcessEnd::TimedOut);
        // The pipe's end is that of the last process that has it.
        assert_eq!(out.read(&mut [0]).unwrap(), 0);
    }
}
