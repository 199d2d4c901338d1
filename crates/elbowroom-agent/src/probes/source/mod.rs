//! The sources that are asked: a file, a page of metrics, a program. Each gives a record, nothing new, or a reason, within its
//! deadline, and takes no more bytes than a record can need.

pub mod exec;
mod file;
mod scrape;

use super::settings::ProbeSettings;
use crate::alerts::StopFlag;
use elbowroom_types::probe::ProbeRecord;

/// Why a source gave no record, on one line.
pub(crate) type ProbeProblem = String;

/// A probe's source, ready to be asked.
pub struct ProbeSource {
    probe: ProbeSettings,
    /// The container's first process, as the host numbers it; 0 for this process's own place.
    pid: u32,
    file: file::FileSource,
    agent: ureq::Agent,
}

impl ProbeSource {
    /// To be used on one thread, which is in the container's network namespace.
    pub fn new(probe: ProbeSettings, pid: u32) -> Self {
        Self { probe, pid, file: file::FileSource::default(), agent: scrape::http_agent() }
    }

    /// Asks once; `None` when there is nothing new.
    pub fn poll(&mut self, stop: &StopFlag) -> Result<Option<ProbeRecord>, ProbeProblem> {
        let probe = &self.probe;
        if let Some(path) = &probe.file {
            let pid = if self.pid == 0 { std::process::id() } else { self.pid };
            self.file.poll(pid, path, probe.ttl)
        } else if let Some(url) = &probe.scrape {
            scrape::poll(&self.agent, url, probe).map(Some)
        } else {
            exec::poll(&probe.exec, self.pid, probe.timeout, stop).map(Some)
        }
    }
}
