//! Virtual machines in containers.

use super::Runtimes;
use super::gclog::{self, Pause};
use super::stage::{Ended, Stage};
use crate::container::Container;
use crate::job::build_java;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Child;

/// Which collector HotSpot is told to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Collector {
    /// The paper's.
    Parallel,
    /// HotSpot's own choice on servers.
    G1,
}

impl Collector {
    /// As people call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Parallel => "ParallelGC",
            Self::G1 => "G1",
        }
    }
}

/// What machines are made of.
#[derive(Debug)]
pub(super) struct Java {
    pub(super) collector: Collector,
    /// The class path: our programs, and H2.
    pub(super) classes: String,
    /// The agent for HotSpot.
    pub(super) jar: PathBuf,
    /// CPUs that a machine believes in where it looks at no limits.
    pub(super) cpus: u32,
}

/// What one machine is started with.
#[derive(Clone, Debug, Default)]
pub(super) struct Launch {
    /// Options of its own.
    pub(super) options: Vec<String>,
    /// Options of the agent, where it has one.
    pub(super) agent: Option<&'static str>,
    /// Arguments of `Runtimes`.
    pub(super) program: Vec<String>,
}

impl Java {
    /// Builds our programs, and looks for what is needed before anything is started.
    pub(super) fn new(args: &Runtimes, cpus: u32) -> Result<Self> {
        for (file, advice) in [(&args.agent_jar, "make java"), (&args.h2, "tools/setup lab")] {
            ensure!(file.exists(), "{} is not there: {advice}", file.display());
        }
        let classes = build_java(&args.java)?;
        let [jar, h2] = [&args.agent_jar, &args.h2].map(std::path::absolute);
        let (jar, h2) =
            (jar.context("while finding the agent for HotSpot")?, h2.context("while finding H2")?);
        let classes = format!("{}:{}", classes.display(), h2.display());
        Ok(Self { collector: args.collector, classes, jar, cpus })
    }

    /// Starts machine `i` in its container. As many threads compile in each, however many CPUs it sees: GC threads are what is
    /// compared.
    pub(super) fn start(
        &self,
        stage: &Stage,
        i: usize,
        container: &Container,
        launch: &Launch,
    ) -> Result<Child> {
        let mut command = stage.command(container, self.cpus, None, &[]);
        let collector = match self.collector {
            Collector::Parallel => "-XX:+UseParallelGC",
            Collector::G1 => "-XX:+UseG1GC",
        };
        command.args(["java", collector, "-XX:CICompilerCount=2", "-XX:-UsePerfData"]);
        command.args(&launch.options);
        let log = self.log(stage, i);
        command.arg(format!("{}:file={}:{}", gclog::SELECTION, log.display(), gclog::DECORATIONS));
        if let Some(options) = launch.agent {
            command.arg(format!("-javaagent:{}={options}", self.jar.display()));
        }
        command.arg("-cp").arg(&self.classes).arg("Runtimes").args(&launch.program);
        let _ = fs::remove_file(&log); // of the machine that had this number before
        command.spawn().context("while starting java")
    }

    /// The pauses of machine `i`.
    pub(super) fn pauses(&self, stage: &Stage, i: usize) -> Result<Vec<Pause>> {
        // A machine that was killed at once has written none.
        gclog::parse(&fs::read_to_string(self.log(stage, i)).unwrap_or_default())
    }

    fn log(&self, stage: &Stage, i: usize) -> PathBuf {
        stage.lab.scope.dir().join(format!("gc-{i}.log"))
    }
}

/// What the program said took so long, in milliseconds; `None` where it did not finish.
pub(super) fn total_ms(ended: &Ended) -> Option<u64> {
    ended.said.lines().find_map(|line| line.strip_prefix("done ")?.parse().ok())
}

/// The version of the `java` that is found.
pub(super) fn version() -> Result<String> {
    let out = std::process::Command::new("java").arg("-version").output();
    let out = out.context("while running java; on Debian: apt install openjdk-17-jdk-headless")?;
    let text = String::from_utf8_lossy(&out.stderr);
    let word = text.lines().find_map(|line| line.split('"').nth(1)).context("java says no version")?;
    Ok(word.to_owned())
}
