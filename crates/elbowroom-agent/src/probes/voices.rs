//! Who has a probe, what it said last, and whether that still counts.

use super::listen::{Listener, Said};
use super::poll::Poller;
use super::settings::Probe;
use super::source::Problem;
use elbowroom_client::api::ProbeView;
use elbowroom_linux::probe::network::Network;
use elbowroom_linux::process;
use elbowroom_types::memory::Heard;
use elbowroom_types::probe::{Freshness, Meter, Record, Report};
use elbowroom_types::sample::{Container, GroupId};
use elbowroom_types::unit::Micros;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time between two looks at who is where and who fell silent.
const LOOK_EVERY: Micros = Micros::secs(1);
/// How long a stop waits for sources that are being asked; programs are killed at once.
const STOP_WITHIN: Duration = Duration::from_secs(2);
/// Longest text of a problem that is kept.
const LONGEST_PROBLEM: usize = 300;

/// Brings what was said to the owner's thread.
pub type Tell = Arc<dyn Fn(Said) + Send + Sync>;

/// Every container's probe.
pub struct Voices {
    probes: Vec<Probe>,
    listener: Option<Listener>,
    /// The way to the owner.
    tell: Tell,
    /// The host's network: programs in it use the host's socket.
    own: Option<Network>,
    voices: BTreeMap<GroupId, Voice>,
    look_at: Micros,
}

struct Voice {
    path: String,
    probe: Probe,
    /// It was asked for by configuration or label: silence is worth a word.
    expected: bool,
    meter: Meter,
    last: Option<(Micros, Report)>,
    place: Option<Place>,
    poller: Option<Poller>,
    heard: u64,
    refused: u64,
    problem: Option<Problem>,
    freshness: Freshness,
}

/// Where a container's processes are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    pid: u32,
    started: Micros,
    network: Network,
}

impl Voices {
    /// Listens on `path`; `tell` brings what is said to [`Self::said`]. Without a socket the other ways still work.
    pub fn open(probes: Vec<Probe>, path: &Path, tell: Tell) -> Self {
        let own = Network::own().ok();
        let listener = Listener::start(path, tell.clone())
            .inspect_err(|error| {
                tracing::warn!(path = %path.display(), %error, "programs cannot send what they say of themselves");
            })
            .ok();
        Self { probes, listener, tell, own, voices: BTreeMap::new(), look_at: Micros::ZERO }
    }

    /// Knows a container from now on.
    pub fn meet(&mut self, id: GroupId, path: &str, container: &Container) {
        if self.voices.contains_key(&id) {
            return;
        }
        // The configuration is the administrator's: it counts more than what a container brings along.
        let configured = self.probes.iter().find(|probe| probe.fits(container)).cloned();
        let label = container.labels.probe.as_deref();
        let (mut problem, mut expected) = (None, configured.is_some());
        let probe = configured.or_else(|| {
            expected = label.is_some();
            Probe::parse(label?, false)
                .inspect_err(|error| {
                    let why = elbowroom_client::output::one_line(error);
                    tracing::warn!(container = path, because = why, "a container's label is no probe");
                    problem = Some(why);
                })
                .ok()
        });
        let voice = Voice {
            path: path.to_owned(),
            probe: probe.unwrap_or_default(),
            expected,
            meter: Meter::default(),
            last: None,
            place: None,
            poller: None,
            heard: 0,
            refused: 0,
            problem,
            freshness: Freshness::Absent,
        };
        self.voices.insert(id, voice);
    }

    /// Listens no longer, and ends what was started to be asked.
    pub fn stop(&mut self) {
        self.listener = None;
        let pollers = self.voices.values_mut().filter_map(|voice| voice.poller.take()).collect();
        Poller::end(pollers, STOP_WITHIN);
    }

    /// The container is gone.
    pub fn forget(&mut self, id: GroupId) {
        if let Some(Voice { place: Some(place), .. }) = self.voices.remove(&id) {
            self.leave(place.network);
        }
    }

    /// Takes what was said; what governors are told of it.
    pub fn said(&mut self, said: Said, now: Micros) -> Option<Heard> {
        match said {
            Said::Polled { group, record } => self.take(group, record, now).ok().flatten(),
            Said::Datagram { network, paths, record, back } => {
                let taken = match self.speaker(network, &paths) {
                    Some(group) => self.take(group, record, now),
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
            Said::Deaf { network, why } => {
                let there = |voice: &&mut Voice| voice.place.is_some_and(|place| place.network == network);
                for voice in self.voices.values_mut().filter(there) {
                    voice.problem = Some(format!("no socket in its network: {why}"));
                }
                None
            }
        }
    }

    /// A record of a container, whoever brought it. The error is for the sender.
    pub fn take(
        &mut self,
        id: GroupId,
        record: Result<Record, Problem>,
        now: Micros,
    ) -> Result<Option<Heard>, Problem> {
        let voice = self.voices.get_mut(&id).ok_or("the container is gone")?;
        let record = record.inspect_err(|why| {
            voice.refused += 1;
            voice.problem = Some(why.chars().take(LONGEST_PROBLEM).collect());
        })?;
        voice.heard += 1;
        voice.problem = None;
        let Some(report) = voice.meter.report(&record, voice.probe.terms(), now) else { return Ok(None) };
        if voice.freshness != Freshness::Fresh {
            tracing::info!(container = voice.path, source = voice.probe.source(), "probe heard");
            voice.freshness = Freshness::Fresh;
        }
        voice.last = Some((now, report));
        Ok(Some(Heard { at: now, until: now.saturating_add(voice.probe.ttl), group: id, report }))
    }

    /// The container that the sender of a datagram is in: the innermost around its cgroup. A sender that is gone is known by the
    /// network it sent in, where only one container is.
    fn speaker(&self, network: Option<Network>, paths: &[String]) -> Option<GroupId> {
        if !paths.is_empty() {
            let at = |path: &str| self.voices.iter().find(|(_, voice)| voice.path == path).map(|(id, _)| *id);
            return process::groups_around(paths).into_iter().find_map(at);
        }
        let there = |voice: &Voice| voice.place.is_some_and(|place| Some(place.network) == network);
        let mut there = self.voices.iter().filter(|(_, voice)| network.is_some() && there(voice));
        match (there.next(), there.next()) {
            (Some((id, _)), None) => Some(*id),
            _ => None,
        }
    }

    /// The containers whose place is to be looked for now, if it is time to look at all.
    pub fn due(&mut self, now: Micros) -> Vec<GroupId> {
        if now < self.look_at {
            return Vec::new();
        }
        self.look_at = now.saturating_add(LOOK_EVERY);
        let mut lost = Vec::new();
        for (id, voice) in &mut self.voices {
            voice.look(now);
            let gone = |place: Place| process::started(place.pid as i32) != Some(place.started);
            if voice.place.is_none_or(gone) {
                lost.push(*id);
            }
        }
        lost
    }

    /// A container's first process is this one now, or there is none; whether it is another one than before.
    pub fn place(&mut self, id: GroupId, pid: Option<u32>) -> bool {
        let place = pid.and_then(|pid| {
            let (started, network) = (process::started(pid as i32)?, Network::of(pid).ok()?);
            Some(Place { pid, started, network })
        });
        let Some(voice) = self.voices.get_mut(&id) else { return false };
        let before = std::mem::replace(&mut voice.place, place);
        if before == place {
            return false;
        }
        voice.poller = None;
        if let Some(place) = place.filter(|_| voice.probe.asks()) {
            let tell = self.tell.clone();
            let tell = move |record| tell(Said::Polled { group: id, record });
            match Poller::start(voice.probe.clone(), place.pid, tell) {
                Ok(poller) => voice.poller = Some(poller),
                Err(error) => voice.problem = Some(format!("no thread to ask with: {error}")),
            }
        }
        if let Some(before) = before.filter(|before| place.is_none_or(|now| now.network != before.network)) {
            self.leave(before.network);
        }
        if let (Some(place), Some(listener)) = (place, &self.listener)
            && Some(place.network) != self.own
            && self.in_network(place.network) == 1
        {
            listener.add(place.network, place.pid);
        }
        before.is_some() && place.is_some()
    }

    fn in_network(&self, network: Network) -> usize {
        self.voices.values().filter(|voice| voice.place.is_some_and(|place| place.network == network)).count()
    }

    /// Nobody needs an ear in a network any more, unless somebody else is there.
    fn leave(&self, network: Network) {
        if let Some(listener) = &self.listener
            && Some(network) != self.own
            && self.in_network(network) == 0
        {
            listener.drop_network(network);
        }
    }

    /// A container's probe, for people; `None` where none is expected and none was heard.
    pub fn view(&self, id: GroupId, now: Micros) -> Option<ProbeView> {
        let voice = self.voices.get(&id)?;
        if !voice.expected && voice.last.is_none() && voice.refused == 0 {
            return None;
        }
        Some(ProbeView {
            source: voice.probe.source(),
            freshness: voice.freshness_at(now),
            age_usec: voice.last.map(|(at, _)| now.saturating_sub(at).get()),
            report: voice.last.map(|(_, report)| report),
            heard: voice.heard,
            refused: voice.refused,
            problem: voice.problem.clone(),
        })
    }
}

impl Voice {
    fn freshness_at(&self, now: Micros) -> Freshness {
        self.last.map_or(Freshness::Absent, |(at, _)| Freshness::of(at, self.probe.ttl, now))
    }

    /// Says once when a probe falls silent.
    fn look(&mut self, now: Micros) {
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
