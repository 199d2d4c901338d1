//! Load on a disk: fio inside a container, by a plan of what it wants when.

use crate::container::Container;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Child;

/// A demand that fio cannot meet it carries over: after a starved minute it reads at full speed until all is made up. It
/// forgets where one job ends and the next begins, so jobs are no longer than this, in seconds. What wants more than the
/// disk can do never catches up and needs no such care.
const MEMORY_S: u32 = 5;

/// Everything begins this much after fio does, in seconds: its first job would be late by what it takes to set up all, and
/// overlap with its second.
const SET_UP_S: u32 = 1;

/// Whether a workload reads or writes. Blocks are at random places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// Direct reads.
    Read,
    /// Direct writes.
    Write,
}

/// What a container wants from one second on until its next phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Phase {
    /// Seconds after the start.
    pub(crate) at: u32,
    /// Bytes per second.
    pub(crate) want: u64,
}

/// How a container asks for what it wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Style {
    /// Bytes per request.
    pub(crate) block: u64,
    /// Requests under way at most.
    pub(crate) depth: u32,
}

/// What one container does to one disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'a> {
    /// The disk.
    pub(crate) disk: &'a Path,
    /// What kind of requests.
    pub(crate) direction: Direction,
    /// How.
    pub(crate) style: Style,
    /// How much, when; ascending, the first at 0.
    pub(crate) phases: &'a [Phase],
    /// When it ends.
    pub(crate) seconds: u32,
    /// What the disk can do at its best, in bytes per second.
    pub(crate) capacity: u64,
}

/// A running plan.
#[derive(Debug)]
pub(crate) struct Fio {
    child: Child,
    name: String,
}

impl Fio {
    /// Starts a plan in `container`, from a job file that it writes.
    pub(crate) fn start(container: &Container, file: &Path, plan: &Plan) -> Result<Self> {
        fs::write(file, plan.text()).context("while writing a plan for fio")?;
        let mut command = container.command(Path::new("/usr/bin/env"));
        command.args(["fio", "--output=/dev/null"]).arg(file);
        let child = command.spawn().context("while starting fio")?;
        Ok(Self { child, name: container.name.clone() })
    }

    /// Waits for its end.
    pub(crate) fn finish(self) -> Result<()> {
        let out = self.child.wait_with_output().context("while waiting for fio")?;
        let said = [out.stdout, out.stderr].concat();
        ensure!(out.status.success(), "fio in {}: {}", self.name, String::from_utf8_lossy(&said).trim());
        Ok(())
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait().context("while asking for fio")?.is_some())
    }
}

impl Plan<'_> {
    /// A job file. Jobs follow each other by the clock, not by the end of the one before: requests still under way when a
    /// job's time is over overlap with the next one's first.
    fn text(&self) -> String {
        let rw = match self.direction {
            Direction::Read => "randread",
            Direction::Write => "randwrite",
        };
        let (disk, Style { block, depth }) = (self.disk.display(), self.style);
        let mut text = format!(
            "[global]\nfilename={disk}\nrw={rw}\nbs={block}\niodepth={depth}\nioengine=libaio\ndirect=1\n\
             norandommap\nthread\ntime_based\n"
        );
        let ends = self.phases.iter().skip(1).map(|next| next.at).chain([self.seconds]);
        for (phase, end) in self.phases.iter().zip(ends) {
            let step = if phase.want >= self.capacity { end - phase.at } else { MEMORY_S };
            let mut at = phase.at;
            while at < end && phase.want > 0 {
                let runtime = step.min(end - at);
                let (delay, rate) = (at + SET_UP_S, phase.want);
                write!(text, "[at{at}]\nstartdelay={delay}\nruntime={runtime}\nrate={rate}\n")
                    .expect("writing to a string cannot fail");
                at += runtime;
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_is_forgotten_every_few_seconds_and_a_flood_runs_through() {
        let phases = [Phase { at: 0, want: 100 }, Phase { at: 7, want: 2000 }, Phase { at: 30, want: 0 }];
        let style = Style { block: 4096, depth: 4 };
        let (disk, direction) = (Path::new("/dev/x"), Direction::Read);
        let text = Plan { disk, direction, style, phases: &phases, seconds: 60, capacity: 1000 }.text();
        let jobs: Vec<&str> = text.split("[at").skip(1).collect();
        assert_eq!(
            jobs,
            [
                "0]\nstartdelay=1\nruntime=5\nrate=100\n",
                "5]\nstartdelay=6\nruntime=2\nrate=100\n",
                "7]\nstartdelay=8\nruntime=23\nrate=2000\n",
            ]
        );
        assert!(text.starts_with("[global]\nfilename=/dev/x\nrw=randread\nbs=4096\niodepth=4\n"), "{text}");
    }
}
