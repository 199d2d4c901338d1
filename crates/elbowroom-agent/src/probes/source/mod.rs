//! The sources that are asked: a file, a page of metrics, a program. Each gives a record, nothing new, or a reason, within its
//! deadline, and takes no more bytes than a record can need.

pub mod exec;
mod file;
mod scrape;

use super::settings::Probe;
use crate::alerts::Stop;
use elbowroom_types::probe::Record;

/// Why a source gave no record, on one line.
pub(crate) type Problem = String;

/// A probe's source, ready to be asked.
pub struct Source {
    probe: Probe,
    /// The container's first process, as the host numbers it; 0 for this process's own place.
    pid: u32,
    file: file::File,
    agent: ureq::Agent,
}

impl Source {
    /// To be used on one thread, which is in the container's network namespace.
    pub fn new(probe: Probe, pid: u32) -> Self {
        Self { probe, pid, file: file::File::default(), agent: scrape::agent() }
    }

    /// Asks once; `None` when there is nothing new.
    pub fn ask(&mut self, stop: &Stop) -> Result<Option<Record>, Problem> {
        let probe = &self.probe;
        if let Some(path) = &probe.file {
            let pid = if self.pid == 0 { std::process::id() } else { self.pid };
            self.file.ask(pid, path, probe.ttl)
        } else if let Some(url) = &probe.scrape {
            scrape::ask(&self.agent, url, probe).map(Some)
        } else {
            exec::ask(&probe.exec, self.pid, probe.timeout, stop).map(Some)
        }
    }
}
