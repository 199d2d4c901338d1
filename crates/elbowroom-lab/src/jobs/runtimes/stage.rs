//! What all figures have in common: programs in containers of equal shares, an agent beside them, and a machine that pretends to
//! have more CPUs.

use crate::backend::Backend;
use crate::cgroup::Limits;
use crate::container::Container;
use crate::job::{Lab, now_ns};
use crate::program::compile;
use anyhow::{Context, Result};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Time between two looks at the programs.
const LOOK: Duration = Duration::from_millis(40);
/// What a shell says of a program that was killed.
const KILLED: i32 = 128 + 9;

/// An agent, and what programs are run with.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    pub(super) lab: &'a Lab,
    prefix: String,
    agent: Backend,
    pretend: PathBuf,
    /// Containers so far: a name is used once.
    made: Cell<usize>,
}

/// What became of a program.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    /// What it printed.
    pub(super) said: String,
    /// CPU time of its container, in milliseconds.
    pub(super) cpu_ms: u64,
    /// Most memory of its container that was seen, in MiB.
    pub(super) peak_mib: u64,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// By itself.
    Done,
    /// The kernel killed it, or a process beside it, for memory.
    OomKilled,
    /// It ran out of heap.
    OutOfHeap,
    /// It was still running when nobody wanted to wait any more.
    CutOff,
}

impl Outcome {
    /// As tables say it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Done => "finished",
            Self::OomKilled => "killed for memory",
            Self::OutOfHeap => "OutOfMemoryError",
            Self::CutOff => "not finished",
        }
    }
}

impl<'a> Stage<'a> {
    /// Starts an agent for containers whose names begin with `prefix`; it runs under every variant.
    pub(super) fn open(lab: &'a Lab, prefix: &str) -> Result<Self> {
        let pretend = compile("pretend", &["-O2", "-shared", "-fPIC"], "so")?;
        let agent = Backend::Elbowroom(lab.agent(prefix, &[])?);
        Ok(Self { lab, prefix: prefix.to_owned(), agent, pretend, made: Cell::new(0) })
    }

    /// So many containers with views of their own or with the kernel's files. They are made at the same time: the agent looks for
    /// new ones once a second.
    pub(super) fn containers(&self, count: usize, limits: &Limits, view: bool) -> Result<Vec<Container>> {
        let backend = if view { &self.agent } else { &Backend::Native };
        let first = self.made.get() + 1;
        self.made.set(self.made.get() + count);
        std::thread::scope(|threads| {
            let make = |n: usize| {
                let (name, maker) = (format!("{}-{n}", self.prefix), &self.lab.maker);
                threads.spawn(move || backend.container(maker, &name, limits))
            };
            let made: Vec<_> = (first..first + count).map(make).collect();
            made.into_iter().map(|thread| thread.join().expect("making a container does not panic")).collect()
        })
    }

    /// A command in a container that believes in `cpus` CPUs, with other libraries preloaded before.
    pub(super) fn command(
        &self,
        container: &Container,
        cpus: u32,
        preload: Option<&Path>,
        variables: &[(&str, String)],
    ) -> Command {
        let mut command = container.command(Path::new("/usr/bin/env"));
        let libraries = preload.into_iter().chain([self.pretend.as_path()]);
        let libraries: Vec<String> = libraries.map(|path| path.display().to_string()).collect();
        command.arg(format!("LD_PRELOAD={}", libraries.join(":"))).arg(format!("LAB_CPUS={cpus}"));
        command.args(variables.iter().map(|(name, value)| format!("{name}={value}")));
        command
    }

    /// Waits until all have ended, or `patience` is over; their containers are gone then.
    ///
    /// # Errors
    /// A program that ends with another status than 0, for another reason than memory; Ctrl-C.
    pub(super) fn wait(&self, started: Vec<(Container, Child)>, patience: Duration) -> Result<Vec<Ended>> {
        let until = Instant::now() + patience;
        let mut running = started;
        let mut peaks = vec![0; running.len()];
        loop {
            let mut over = true;
            for ((container, child), peak) in running.iter_mut().zip(&mut peaks) {
                over &= child.try_wait().context("while waiting for a program")?.is_some();
                *peak = container.cgroups.memory_bytes()?.max(*peak);
            }
            if over || Instant::now() > until {
                break;
            }
            self.lab.scope.sleep(LOOK)?;
        }
        running.into_iter().zip(peaks).map(|((container, child), peak)| end(container, child, peak)).collect()
    }
}

fn end(container: Container, mut child: Child, peak: u64) -> Result<Ended> {
    let ran_on = child.try_wait().context("while waiting for a program")?.is_none();
    let (kills, cpu_ms) = (container.cgroups.oom_kills()?, container.cgroups.cpu_us()? / 1000);
    let name = container.name.clone();
    drop(container); // and with it, a program that runs on
    let out = child.wait_with_output().context("while listening to a program")?;
    let complaint = String::from_utf8_lossy(&out.stderr);
    let outcome = match out.status.code() {
        _ if ran_on => Outcome::CutOff,
        Some(0) => Outcome::Done,
        Some(KILLED) if kills > 0 => Outcome::OomKilled,
        _ if complaint.contains("OutOfMemoryError") => Outcome::OutOfHeap,
        code => {
            let code = code.map_or("a signal".to_owned(), |code| code.to_string());
            anyhow::bail!("the program in {name} ended with {code}: {}", complaint.trim());
        }
    };
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    Ok(Ended { outcome, said, cpu_ms, peak_mib: peak >> 20 })
}

/// A moment `ms` from now, as programs are told it.
pub(super) fn soon(ms: u64) -> u64 {
    now_ns() + ms * 1_000_000
}
