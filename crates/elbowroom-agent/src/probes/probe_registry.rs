//! Which containers have a probe, what each said last, and whether that still counts.

use super::listener::{ProbeEvent, ProbeListener};
use super::poller::{PollerCount, ProbePoller};
use super::settings::ProbeSettings;
use super::source::ProbeProblem;
use elbowroom_client::api::ProbeView;
use elbowroom_linux::probe::network::NetNamespace;
use elbowroom_linux::process;
use elbowroom_types::container::ContainerIdentity;
use elbowroom_types::id::CgroupId;
use elbowroom_types::memory::ProbeUpdate;
use elbowroom_types::probe::{Freshness, ProbeMeter, ProbeRecord, ProbeReport};
use elbowroom_types::unit::Micros;
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time between two checks of where containers' processes are and which probes fell silent.
const CHECK_INTERVAL: Micros = Micros::secs(1);
/// How long a stop waits for sources that are being asked; programs are killed at once.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest text of a problem that is kept.
const MAX_PROBLEM_CHARS: usize = 300;

/// Brings what was said to the owner's thread.
pub(crate) type ProbeSink = Arc<dyn Fn(ProbeEvent) + Send + Sync>;

/// Every container's probe.
pub(crate) struct ProbeRegistry {
    /// Whether anything is heard at all.
    enabled: bool,
    configured: Vec<ProbeSettings>,
    listener: Option<ProbeListener>,
    /// The way to the owner.
    sink: ProbeSink,
    /// The host's network: programs in it use the host's socket.
    host_network: Option<NetNamespace>,
    containers: BTreeMap<CgroupId, ContainerProbe>,
    next_check: Micros,
}

struct ContainerProbe {
    path: String,
    probe: ProbeSettings,
    /// It was asked for by configuration or label: silence is worth a word.
    expected: bool,
    meter: ProbeMeter,
    last_report: Option<(Micros, ProbeReport)>,
    location: Option<ProcessLocation>,
    /// The CPU time that the container had used when that was last looked at.
    checked_at: Option<Micros>,
    poller: Option<ProbePoller>,
    /// Its threads that ask, and those that hang.
    pollers: PollerCount,
    accepted: u64,
    refused: u64,
    problem: Option<ProbeProblem>,
    freshness: Freshness,
}

/// Where a container's processes are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ProcessLocation {
    pid: u32,
    started: Micros,
    network: NetNamespace,
}

impl ProbeRegistry {
    /// One that hears nothing, whatever labels say.
    pub(crate) fn disabled() -> Self {
        let containers = BTreeMap::new();
        let (configured, sink): (_, ProbeSink) = (Vec::new(), Arc::new(|_| ()));
        let (listener, host_network, next_check) = (None, None, Micros::ZERO);
        Self { enabled: false, configured, listener, sink, host_network, containers, next_check }
    }

    /// Listens on `path`; `tell` brings what is said to [`Self::on_probe`], over the descriptor `kept`, where
    /// it uses one. Without a socket the other ways still work.
    pub fn open(probes: Vec<ProbeSettings>, path: &Path, tell: ProbeSink, kept: Option<RawFd>) -> Self {
        let own = NetNamespace::own().ok();
        let listener = ProbeListener::start(path, tell.clone(), kept)
            .inspect_err(|error| {
                tracing::warn!(path = %path.display(), %error, "programs cannot send probe records");
            })
            .ok();
        Self {
            enabled: true,
            configured: probes,
            listener,
            sink: tell,
            host_network: own,
            containers: BTreeMap::new(),
            next_check: Micros::ZERO,
        }
    }

    /// Knows a container from now on.
    pub(crate) fn add_container(&mut self, id: CgroupId, path: &str, container: &ContainerIdentity) {
        if !self.enabled || self.containers.contains_key(&id) {
            return;
        }
        // The configuration is the administrator's: it counts more than what a container brings along.
        let configured = self.configured.iter().find(|probe| probe.matches_container(container)).cloned();
        let label = container.labels.probe.as_deref();
        let (mut problem, mut expected) = (None, configured.is_some());
        let probe = configured.or_else(|| {
            expected = label.is_some();
            ProbeSettings::parse(label?, false)
                .inspect_err(|error| {
                    let why = elbowroom_client::output::one_line(error);
                    tracing::warn!(container = path, because = why, "a container's label is no probe");
                    problem = Some(why);
                })
                .ok()
        });
        let entry = ContainerProbe {
            path: path.to_owned(),
            probe: probe.unwrap_or_default(),
            expected,
            meter: ProbeMeter::default(),
            last_report: None,
            location: None,
            checked_at: None,
            poller: None,
            pollers: PollerCount::default(),
            accepted: 0,
            refused: 0,
            problem,
            freshness: Freshness::Absent,
        };
        self.containers.insert(id, entry);
    }

    /// Listens no longer, and ends what was started to be asked.
    pub fn stop(&mut self) {
        self.listener = None;
        let pollers = self.containers.values_mut().filter_map(|entry| entry.poller.take()).collect();
        ProbePoller::stop_all(pollers, STOP_TIMEOUT);
    }

    /// Whether as many questions of a container hang as may: it is asked no more.
    pub(crate) fn is_stuck(&self, id: CgroupId) -> bool {
        self.containers.get(&id).is_some_and(|entry| entry.pollers.is_full())
    }

    /// The container is gone.
    pub(crate) fn remove_container(&mut self, id: CgroupId) {
        if let Some(ContainerProbe { location: Some(place), .. }) = self.containers.remove(&id) {
            self.release_network(place.network);
        }
    }

    /// Takes what was said; what governors are told of it.
    pub fn on_probe(&mut self, said: ProbeEvent, now: Micros) -> Option<ProbeUpdate> {
        match said {
            ProbeEvent::Polled { group, record } => self.accept_record(group, record, now).ok().flatten(),
            ProbeEvent::Datagram { network, paths, record, reply_to: back } => {
                let taken = match self.sender_container(network, &paths) {
                    Some(group) => self.accept_record(group, record, now),
                    None => {
                        Err("you are in no container that the agent knows: see `elbowroom list`".to_owned())
                    }
                };
                let (heard, text) = match taken {
                    Ok(heard) => (heard, String::new()),
                    Err(why) => (None, why),
                };
                if let (Some(listener), Some(back)) = (&self.listener, back) {
                    listener.answer(back, text);
                }
                heard
            }
            ProbeEvent::SocketUnavailable { network, why } => {
                let there = |entry: &&mut ContainerProbe| {
                    entry.location.is_some_and(|place| place.network == network)
                };
                for entry in self.containers.values_mut().filter(there) {
                    entry.problem = Some(format!("no socket in its network: {why}"));
                }
                None
            }
        }
    }

    /// A record of a container, from any source. The error is for the sender.
    pub(crate) fn accept_record(
        &mut self,
        id: CgroupId,
        record: Result<ProbeRecord, ProbeProblem>,
        now: Micros,
    ) -> Result<Option<ProbeUpdate>, ProbeProblem> {
        let entry = self.containers.get_mut(&id).ok_or("the container is gone")?;
        let record = record.inspect_err(|why| {
            entry.refused += 1;
            entry.problem = Some(why.chars().take(MAX_PROBLEM_CHARS).collect());
        })?;
        entry.accepted += 1;
        entry.problem = None;
        let Some(report) = entry.meter.report(&record, entry.probe.terms(), now) else { return Ok(None) };
        if entry.freshness != Freshness::Fresh {
            tracing::info!(container = entry.path, source = entry.probe.source(), "probe heard");
            entry.freshness = Freshness::Fresh;
        }
        entry.last_report = Some((now, report));
        Ok(Some(ProbeUpdate { at: now, until: now.saturating_add(entry.probe.ttl), group: id, report }))
    }

    /// The container that the sender of a datagram is in: the innermost around its cgroup. A sender that is gone is known by the
    /// network it sent in, where only one container is.
    fn sender_container(&self, network: Option<NetNamespace>, paths: &[String]) -> Option<CgroupId> {
        if !paths.is_empty() {
            let containers = self.containers.iter().map(|(id, entry)| (*id, entry.path.as_str()));
            return process::innermost_group(paths, containers);
        }
        let there =
            |entry: &ContainerProbe| entry.location.is_some_and(|place| Some(place.network) == network);
        let mut there = self.containers.iter().filter(|(_, entry)| network.is_some() && there(entry));
        match (there.next(), there.next()) {
            (Some((id, _)), None) => Some(*id),
            _ => None,
        }
    }

    /// The containers whose place is to be looked for now, if it is time to look at all. `used` is the CPU time that a container has used,
    /// where that is known: in one that has used none since, no process has ended.
    pub(crate) fn due_checks(
        &mut self,
        now: Micros,
        used: impl Fn(CgroupId) -> Option<Micros>,
    ) -> Vec<CgroupId> {
        if now < self.next_check {
            return Vec::new();
        }
        self.next_check = now.saturating_add(CHECK_INTERVAL);
        let mut lost = Vec::new();
        for (id, entry) in &mut self.containers {
            entry.update_freshness(now);
            let used = used(*id);
            let may_have_gone = used.is_none() || std::mem::replace(&mut entry.checked_at, used) != used;
            let gone = |place: ProcessLocation| {
                may_have_gone && process::start_time(place.pid as i32) != Some(place.started)
            };
            if entry.location.is_none_or(gone) {
                lost.push(*id);
            }
        }
        lost
    }

    /// A container's first process is this one now, or there is none; whether it is another one than before.
    pub(crate) fn update_location(&mut self, id: CgroupId, pid: Option<u32>) -> bool {
        let place = pid.and_then(|pid| {
            let (started, network) = (process::start_time(pid as i32)?, NetNamespace::of(pid).ok()?);
            Some(ProcessLocation { pid, started, network })
        });
        let Some(entry) = self.containers.get_mut(&id) else { return false };
        let before = std::mem::replace(&mut entry.location, place);
        if before == place {
            return false;
        }
        entry.poller = None;
        if let Some(place) = place.filter(|_| entry.probe.is_polled()) {
            let tell = self.sink.clone();
            let tell = move |record| {
                tell(ProbeEvent::Polled { group: id, record });
                true
            };
            match ProbePoller::start(entry.probe.clone(), place.pid, &entry.pollers, tell) {
                Ok(poller) => entry.poller = Some(poller),
                Err(error) => entry.problem = Some(format!("no thread to ask with: {error}")),
            }
        }
        if let Some(before) = before.filter(|before| place.is_none_or(|now| now.network != before.network)) {
            self.release_network(before.network);
        }
        if let (Some(place), Some(listener)) = (place, &self.listener)
            && Some(place.network) != self.host_network
            && self.count_in_network(place.network) == 1
        {
            listener.add(place.network, place.pid);
        }
        before.is_some() && place.is_some()
    }

    fn count_in_network(&self, network: NetNamespace) -> usize {
        self.containers
            .values()
            .filter(|entry| entry.location.is_some_and(|place| place.network == network))
            .count()
    }

    /// Closes a network's listener, unless another container is there.
    fn release_network(&self, network: NetNamespace) {
        if let Some(listener) = &self.listener
            && Some(network) != self.host_network
            && self.count_in_network(network) == 0
        {
            listener.drop_network(network);
        }
    }

    /// A container's probe, for people; `None` where none is expected and none was heard.
    pub fn view(&self, id: CgroupId, now: Micros) -> Option<ProbeView> {
        let entry = self.containers.get(&id)?;
        if !entry.expected && entry.last_report.is_none() && entry.refused == 0 {
            return None;
        }
        Some(ProbeView {
            source: entry.probe.source(),
            freshness: entry.freshness_at(now),
            age_usec: entry.last_report.map(|(at, _)| now.saturating_sub(at).get()),
            report: entry.last_report.map(|(_, report)| report),
            accepted: entry.accepted,
            refused: entry.refused,
            problem: entry.problem.clone(),
        })
    }
}

impl ContainerProbe {
    fn freshness_at(&self, now: Micros) -> Freshness {
        self.last_report.map_or(Freshness::Absent, |(at, _)| Freshness::of(at, self.probe.ttl, now))
    }

    /// Says once when a probe falls silent.
    fn update_freshness(&mut self, now: Micros) {
        let freshness = self.freshness_at(now);
        if freshness != self.freshness && freshness != Freshness::Fresh {
            let because = self.problem.as_deref().unwrap_or("nothing came");
            tracing::warn!(
                container = self.path,
                source = self.probe.source(),
                because,
                "probe {}: pressure is all that is known",
                freshness.name()
            );
        }
        self.freshness = freshness;
    }
}
