//! Engines that start containers, driven as their users drive them: Docker by its API, containerd by `ctr`, Podman, runc and crun
//! by their commands.
//!
//! # What is made, and how it goes again
//! Everything is named `elbowroom-profile-PID-STARTED-...` after the profiler that made it (its PID and when it started, so that
//! no later process is taken for it), labelled `elbowroom.profile=PID-STARTED`, and kept below `/run/elbowroom-profile/PID-STARTED`;
//! what a profiled program writes ([`Scratch`]), in `/var/tmp/elbowroom-gpu-PID-STARTED`.
//! A profiler removes what it made, whether it ends well, by an error or by a signal; [`clean`] removes what those left that were
//! killed, and nothing of one that still runs.

mod bundle;
mod command;
pub mod docker;
mod foreground;
mod left;
mod scratch;

pub use foreground::Program;
pub use left::clean;
pub use scratch::Scratch;

use command::Cli;
use docker::Docker;
use left::{Run, Used, own_tag};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where run directories are.
const RUN: &str = "/run/elbowroom-profile";
/// What every name begins with.
const PREFIX: &str = "elbowroom-profile";
/// The label of every container, where an engine knows labels.
const LABEL: &str = "elbowroom.profile";
/// What an engine takes longer for has failed.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a command may go on whose profiler was killed.
const LATE: Duration = Duration::from_secs(5);

/// An engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
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
pub const KINDS: [Kind; 5] = [Kind::Docker, Kind::Containerd, Kind::Podman, Kind::Runc, Kind::Crun];

/// What is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A command of this host, in a container whose `/usr` is the host's.
    Host(Vec<String>),
    /// An image that the engine has, and a command instead of the image's own where there is one.
    Image(String, Vec<String>),
    /// A directory with `config.json` and a root file system.
    Bundle(PathBuf),
}

/// How containers are made, besides what is in them.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The engine's network; `none` where nothing is said.
    pub network: Option<String>,
    /// The OCI runtime below the engine; the engine's own choice where nothing is said.
    pub runtime: Option<String>,
}

/// Why an engine did not do something.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It is not there.
    #[error("{engine} is not installed: {program} is not in PATH")]
    Missing {
        /// Which.
        engine: Kind,
        /// The program that was looked for.
        program: &'static str,
    },
    /// It does not answer.
    #[error("{engine} does not answer on {address}: {why}; start it, or say where it is in {variable}")]
    Silent {
        /// Which.
        engine: Kind,
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
        engine: Kind,
        /// What was asked of it.
        what: String,
        /// Its words.
        said: String,
    },
    /// It does not come to an end.
    #[error("{engine} did not {what} within {} s, and was killed", PATIENCE.as_secs())]
    Hung {
        /// Which.
        engine: Kind,
        /// What was asked of it.
        what: String,
    },
    /// It has no such thing.
    #[error("{engine} starts {takes}: use {instead}")]
    Unsuitable {
        /// Which.
        engine: Kind,
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

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Kind {
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
pub struct Engine {
    kind: Kind,
    run: Run,
    driver: Driver,
}

#[derive(Debug)]
enum Driver {
    Docker(Docker),
    Cli(Cli),
}

impl Driver {
    fn open(used: Used, options: &Options) -> Result<Self, EngineError> {
        match used.kind {
            Kind::Docker => Docker::open(options, used.address.as_deref()).map(Self::Docker),
            _ => Cli::open(used, options).map(Self::Cli),
        }
    }
}

impl Engine {
    /// Finds the engine and asks its version; nothing is made yet but a run directory.
    ///
    /// # Errors
    /// [`EngineError`]: it is not installed, or does not answer.
    pub fn open(kind: Kind, options: &Options) -> Result<Self, EngineError> {
        let driver = Driver::open(Used::here(kind), options)?;
        Ok(Self { kind, run: Run::open()?, driver })
    }

    /// Which it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The version that it says.
    pub fn version(&self) -> &str {
        match &self.driver {
            Driver::Docker(docker) => &docker.version,
            Driver::Cli(cli) => &cli.version,
        }
    }

    /// Daemons that work for it; what they and the profiler start is found from there.
    pub fn daemons(&self) -> Vec<u32> {
        let sockets = match &self.driver {
            Driver::Docker(docker) => {
                vec![(docker.socket.clone(), "dockerd"), (PathBuf::from(command::CONTAINERD), "containerd")]
            }
            Driver::Cli(cli) => {
                cli.address.iter().map(|address| (PathBuf::from(address), "containerd")).collect()
            }
        };
        let mut pids: Vec<u32> =
            sockets.iter().flat_map(|(socket, program)| behind(socket, program)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Prepares what all containers of `subject` share.
    ///
    /// # Errors
    /// The engine takes no such subject, has no such image, or refuses.
    pub fn prepare(&self, subject: &Subject) -> Result<(), EngineError> {
        let (engine, no_daemon) = (self.kind, matches!(self.kind, Kind::Runc | Kind::Crun));
        match subject {
            Subject::Image(..) if no_daemon => Err(EngineError::Unsuitable {
                engine,
                takes: "bundles and commands, no images",
                instead: "--bundle or --command",
            }),
            Subject::Bundle(_) if !no_daemon => Err(EngineError::Unsuitable {
                engine,
                takes: "images and commands, no bundles",
                instead: "--image or --command",
            }),
            Subject::Bundle(dir) => bundle::check(dir),
            Subject::Image(image, _) => match &self.driver {
                Driver::Docker(docker) => docker.has_image(image),
                Driver::Cli(cli) => cli.has_image(image),
            },
            Subject::Host(_) => match &self.driver {
                Driver::Docker(docker) => docker.import(&self.run),
                Driver::Cli(_) => bundle::root(&self.run.dir).map(|_| ()),
            },
        }
    }

    /// Makes a container that waits to be started, and gives its name.
    ///
    /// # Errors
    /// The engine refuses.
    pub fn create(&self, subject: &Subject, number: usize) -> Result<String, EngineError> {
        let name = format!("{PREFIX}-{}-{number}", self.run.tag);
        match &self.driver {
            Driver::Docker(docker) => docker.create(&self.run, subject, &name)?,
            Driver::Cli(cli) => cli.create(&self.run, subject, &name)?,
        }
        Ok(name)
    }

    /// Starts it; returns once the engine says that it runs.
    ///
    /// # Errors
    /// The engine refuses.
    pub fn start(&self, name: &str) -> Result<(), EngineError> {
        match &self.driver {
            Driver::Docker(docker) => docker.start(name),
            Driver::Cli(cli) => cli.start(&self.run, name),
        }
    }

    /// Ends it and removes it; one that is gone already is fine.
    ///
    /// # Errors
    /// The engine refuses.
    pub fn remove(&self, name: &str) -> Result<(), EngineError> {
        match &self.driver {
            Driver::Docker(docker) => docker.remove(name),
            Driver::Cli(cli) => cli.remove(&self.run.dir, name),
        }
    }

    /// Removes everything that this profiler made with this engine; what could not be removed is returned in words.
    pub fn close(&self) -> Vec<String> {
        let mut left = self.sweep(&self.run);
        if left.is_empty() {
            left.extend(self.run.forget());
        }
        left
    }

    /// Of a profiler that was killed, too: a command of its that is still at work makes what was just removed.
    fn sweep_all(&self, run: &Run) -> Vec<String> {
        let until = Instant::now() + LATE;
        loop {
            let left = self.sweep(run);
            if left.is_empty() || Instant::now() >= until {
                return left;
            }
            std::thread::sleep(LATE / 50);
        }
    }

    fn sweep(&self, run: &Run) -> Vec<String> {
        let prefix = format!("{PREFIX}-{}-", run.tag);
        let listed = match &self.driver {
            Driver::Docker(docker) => docker.list(),
            Driver::Cli(cli) => cli.list(&run.dir),
        };
        let mut left = Vec::new();
        match listed {
            Ok(names) => {
                let ours = names.iter().filter(|name| name.starts_with(&prefix));
                left.extend(ours.filter_map(|name| {
                    let removed = match &self.driver {
                        Driver::Docker(docker) => docker.remove(name),
                        Driver::Cli(cli) => cli.remove(&run.dir, name),
                    };
                    removed.err().map(|error| error.to_string())
                }));
            }
            Err(error) => left.push(error.to_string()),
        }
        if let Driver::Docker(docker) = &self.driver {
            left.extend(docker.forget_image(&run.tag).err().map(|error| error.to_string()));
        }
        left
    }
}

fn file(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> EngineError {
    let path = path.display().to_string();
    move |why| EngineError::File { operation, path, why: why.to_string() }
}

/// Who listens on a socket: the process itself where the kernel says so, else, where a service manager made the socket, every
/// process of that name.
fn behind(socket: &Path, program: &str) -> Vec<u32> {
    let named = |pid: u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == program)
    };
    let Ok(stream) = std::os::unix::net::UnixStream::connect(socket) else { return Vec::new() };
    let peer = rustix::net::sockopt::socket_peercred(&stream)
        .ok()
        .map(|peer| peer.pid.as_raw_nonzero().get() as u32);
    match peer.filter(|pid| named(*pid)) {
        Some(pid) => vec![pid],
        None => elbowroom_linux::process::all().into_iter().filter(|pid| named(*pid)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_does_not_answer_is_one_sentence() {
        let error = EngineError::Silent {
            engine: Kind::Docker,
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
