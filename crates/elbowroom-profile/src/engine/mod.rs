//! Engines that start containers, driven as their users drive them: Docker by its API, containerd by `ctr`, Podman, runc and crun
//! by their commands.
//!
//! # What is made, and how it goes again
//! Everything is named `elbowroom-profile-PID-STARTED-...` after the profiler that made it (its PID and when it started, so that no
//! later process is taken for it), and labelled `elbowroom.profile=PID-STARTED`. It is kept below
//! `/run/elbowroom-profile/PID-STARTED`; what a profiled program writes ([`ScratchDir`]), in `/var/tmp/elbowroom-gpu-PID-STARTED`.
//! A profiler removes what it made, whether it ends well, by an error or by a signal. [`clean`] removes what killed profilers left,
//! and nothing of a profiler that still runs.

mod bundle;
mod cleanup;
mod command;
pub mod docker;
mod foreground;
mod scratch;

pub use cleanup::clean;
pub use foreground::ContainerProgram;
pub use scratch::ScratchDir;

use cleanup::{EngineUse, ProfilerRun, own_tag};
use command::CliEngine;
use docker::DockerEngine;
use elbowroom_linux::bounded;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where run directories are.
const RUN_DIR: &str = "/run/elbowroom-profile";
/// What every name begins with.
const NAME_PREFIX: &str = "elbowroom-profile";
/// The label of every container, where an engine knows labels.
const LABEL: &str = "elbowroom.profile";
/// What an engine takes longer for has failed.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a command may go on whose profiler was killed.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(5);

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// dockerd, by its API: `POST /containers/ID/start`.
    Docker,
    /// containerd, by `ctr tasks start`.
    Containerd,
    /// `podman start`.
    Podman,
    /// `runc run --detach`: without an engine, making a container is part of starting it.
    Runc,
    /// `crun run --detach`.
    Crun,
}

/// All engines.
pub(crate) const ENGINE_KINDS: [EngineKind; 5] =
    [EngineKind::Docker, EngineKind::Containerd, EngineKind::Podman, EngineKind::Runc, EngineKind::Crun];

/// What is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartTarget {
    /// A command of this host, in a container whose `/usr` is the host's.
    Host(Vec<String>),
    /// An image that the engine has, and a command instead of the image's own where there is one.
    Image(String, Vec<String>),
    /// A directory with `config.json` and a root file system.
    Bundle(PathBuf),
}

/// How containers are made, besides what is in them.
#[derive(Clone, Debug, Default)]
pub struct ContainerOptions {
    /// The engine's network; `none` by default.
    pub network: Option<String>,
    /// The OCI runtime below the engine; the engine's own choice by default.
    pub runtime: Option<String>,
}

/// Why an engine did not do something.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It is not there.
    #[error("{engine} is not installed: {program} is not in PATH")]
    Missing {
        /// Which.
        engine: EngineKind,
        /// The program that was looked for.
        program: &'static str,
    },
    /// It does not answer.
    #[error("{engine} does not answer on {address}: {why}; start it, or say where it is in {variable}")]
    Unresponsive {
        /// Which.
        engine: EngineKind,
        /// Its socket.
        address: String,
        /// What happened.
        why: String,
        /// The environment variable.
        variable: &'static str,
    },
    /// It refuses.
    #[error("{engine} refused to {what}: {said}")]
    Refused {
        /// Which.
        engine: EngineKind,
        /// What was asked of it.
        what: String,
        /// Its words.
        said: String,
    },
    /// It does not come to an end.
    #[error("{engine} did not {what} within {} s, and was killed", ENGINE_TIMEOUT.as_secs())]
    Hung {
        /// Which.
        engine: EngineKind,
        /// What was asked of it.
        what: String,
    },
    /// It has no such thing.
    #[error("{engine} starts {takes}: use {instead}")]
    Unsuitable {
        /// Which.
        engine: EngineKind,
        /// What it takes.
        takes: &'static str,
        /// The options.
        instead: &'static str,
    },
    /// A file of ours.
    #[error("while {operation} {path}: {why}")]
    File {
        /// What was done.
        operation: &'static str,
        /// The file.
        path: String,
        /// Why not.
        why: String,
    },
}

impl std::fmt::Display for EngineKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl EngineKind {
    /// Its name in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::Podman => "podman",
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }

    /// What a start is, in words.
    pub fn start(self) -> &'static str {
        match self {
            Self::Docker => "POST /containers/ID/start",
            Self::Containerd => "ctr tasks start --detach",
            Self::Podman => "podman start",
            Self::Runc => "runc run --detach",
            Self::Crun => "crun run --detach",
        }
    }
}

/// An engine that is there and answers, for one profiler.
#[derive(Debug)]
pub struct EngineSession {
    kind: EngineKind,
    run: ProfilerRun,
    driver: EngineDriver,
}

#[derive(Debug)]
enum EngineDriver {
    Docker(DockerEngine),
    Cli(CliEngine),
}

impl EngineDriver {
    fn open(used: EngineUse, options: &ContainerOptions) -> Result<Self, EngineError> {
        match used.kind {
            EngineKind::Docker => DockerEngine::open(options, used.address.as_deref()).map(Self::Docker),
            _ => CliEngine::open(used, options).map(Self::Cli),
        }
    }
}

impl EngineSession {
    /// Finds the engine and asks its version; nothing is made yet but a run directory.
    ///
    /// # Errors
    /// [`EngineError`]: it is not installed, or does not answer.
    pub fn open(kind: EngineKind, options: &ContainerOptions) -> Result<Self, EngineError> {
        let driver = EngineDriver::open(EngineUse::from_environment(kind), options)?;
        Ok(Self { kind, run: ProfilerRun::open()?, driver })
    }

    /// Which it is.
    pub fn kind(&self) -> EngineKind {
        self.kind
    }

    /// The version that it says.
    pub fn version(&self) -> &str {
        match &self.driver {
            EngineDriver::Docker(docker) => &docker.version,
            EngineDriver::Cli(cli) => &cli.version,
        }
    }

    /// Daemons that work for it; what they and the profiler start is found from there.
    pub(crate) fn daemons(&self) -> Vec<u32> {
        let sockets = match &self.driver {
            EngineDriver::Docker(docker) => {
                vec![
                    (docker.socket.clone(), "dockerd"),
                    (PathBuf::from(command::CONTAINERD_SOCKET), "containerd"),
                ]
            }
            EngineDriver::Cli(cli) => {
                cli.address.iter().map(|address| (PathBuf::from(address), "containerd")).collect()
            }
        };
        let mut pids: Vec<u32> =
            sockets.iter().flat_map(|(socket, program)| socket_servers(socket, program)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Prepares what all containers of `subject` share.
    ///
    /// # Errors
    /// The engine takes no such subject, has no such image, or refuses.
    pub fn prepare(&self, subject: &StartTarget) -> Result<(), EngineError> {
        let (engine, no_daemon) = (self.kind, matches!(self.kind, EngineKind::Runc | EngineKind::Crun));
        match subject {
            StartTarget::Image(..) if no_daemon => Err(EngineError::Unsuitable {
                engine,
                takes: "bundles and commands, no images",
                instead: "--bundle or --command",
            }),
            StartTarget::Bundle(_) if !no_daemon => Err(EngineError::Unsuitable {
                engine,
                takes: "images and commands, no bundles",
                instead: "--image or --command",
            }),
            StartTarget::Bundle(dir) => bundle::check(dir),
            StartTarget::Image(image, _) => match &self.driver {
                EngineDriver::Docker(docker) => docker.has_image(image),
                EngineDriver::Cli(cli) => cli.has_image(image),
            },
            StartTarget::Host(_) => match &self.driver {
                EngineDriver::Docker(docker) => docker.import(&self.run),
                EngineDriver::Cli(_) => bundle::root(&self.run.dir).map(|_| ()),
            },
        }
    }

    /// Makes a container that waits to be started, and gives its name.
    ///
    /// # Errors
    /// The engine refuses.
    pub fn create(&self, subject: &StartTarget, number: usize) -> Result<String, EngineError> {
        let name = format!("{NAME_PREFIX}-{}-{number}", self.run.tag);
        match &self.driver {
            EngineDriver::Docker(docker) => docker.create(&self.run, subject, &name)?,
            EngineDriver::Cli(cli) => cli.create(&self.run, subject, &name)?,
        }
        Ok(name)
    }

    /// Starts it; returns once the engine says that it runs.
    ///
    /// # Errors
    /// The engine refuses.
    pub fn start(&self, name: &str) -> Result<(), EngineError> {
        match &self.driver {
            EngineDriver::Docker(docker) => docker.start(name),
            EngineDriver::Cli(cli) => cli.start(&self.run, name),
        }
    }

    /// Ends it and removes it; one that is gone already is fine.
    ///
    /// # Errors
    /// The engine refuses.
    pub fn remove(&self, name: &str) -> Result<(), EngineError> {
        match &self.driver {
            EngineDriver::Docker(docker) => docker.remove(name),
            EngineDriver::Cli(cli) => cli.remove(&self.run.dir, name),
        }
    }

    /// Removes everything that this profiler made with this engine; what could not be removed is returned in words.
    pub fn close(&self) -> Vec<String> {
        let mut left = self.sweep(&self.run);
        if left.is_empty() {
            left.extend(self.run.remove_run_dir());
        }
        left
    }

    /// Of a profiler that was killed, too: a command of its that is still at work makes what was just removed.
    fn sweep_all(&self, run: &ProfilerRun) -> Vec<String> {
        let until = Instant::now() + ORPHAN_TIMEOUT;
        loop {
            let left = self.sweep(run);
            if left.is_empty() || Instant::now() >= until {
                return left;
            }
            std::thread::sleep(ORPHAN_TIMEOUT / 50);
        }
    }

    fn sweep(&self, run: &ProfilerRun) -> Vec<String> {
        let prefix = format!("{NAME_PREFIX}-{}-", run.tag);
        let listed = match &self.driver {
            EngineDriver::Docker(docker) => docker.list(),
            EngineDriver::Cli(cli) => cli.list(&run.dir),
        };
        let mut left = Vec::new();
        match listed {
            Ok(names) => {
                let ours = names.iter().filter(|name| name.starts_with(&prefix));
                left.extend(ours.filter_map(|name| {
                    let removed = match &self.driver {
                        EngineDriver::Docker(docker) => docker.remove(name),
                        EngineDriver::Cli(cli) => cli.remove(&run.dir, name),
                    };
                    removed.err().map(|error| error.to_string())
                }));
            }
            Err(error) => left.push(error.to_string()),
        }
        if let EngineDriver::Docker(docker) = &self.driver {
            left.extend(docker.forget_image(&run.tag).err().map(|error| error.to_string()));
        }
        left
    }
}

fn file_error(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> EngineError {
    let path = path.display().to_string();
    move |why| EngineError::File { operation, path, why: why.to_string() }
}

/// The processes that listen on a socket: the process itself where the kernel says so, else, where a service manager made the socket, every
/// process of that name.
fn socket_servers(socket: &Path, program: &str) -> Vec<u32> {
    let named = |pid: u32| {
        let name = bounded::file_text(format!("/proc/{pid}/comm"), bounded::KERNEL_FILE);
        name.is_ok_and(|name| name.trim_end() == program)
    };
    let Ok(stream) = std::os::unix::net::UnixStream::connect(socket) else { return Vec::new() };
    let peer = rustix::net::sockopt::socket_peercred(&stream)
        .ok()
        .map(|peer| peer.pid.as_raw_nonzero().get() as u32);
    match peer.filter(|pid| named(*pid)) {
        Some(pid) => vec![pid],
        None => elbowroom_linux::process::all_pids().into_iter().filter(|pid| named(*pid)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_does_not_answer_is_one_sentence() {
        let error = EngineError::Unresponsive {
            engine: EngineKind::Docker,
            address: "/var/run/docker.sock".into(),
            why: "No such file or directory (os error 2)".into(),
            variable: "DOCKER_HOST",
        };
        let text = error.to_string();
        assert!(
            text.starts_with("docker does not answer on /var/run/docker.sock") && !text.contains('\n'),
            "{text}"
        );
    }
}
