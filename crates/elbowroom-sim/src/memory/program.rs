//! What runs in a container: requests for data that may be in memory.

use elbowroom_types::claim::Claim;
use elbowroom_types::probe::{Colour, Measure, MeasureKind, ProbeReport};
use elbowroom_types::unit::{Bytes, Limit, Micros};

/// How much is asked of a program from some time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OfferedLoad {
    /// From when on.
    pub from: Micros,
    /// Requests per second.
    pub offered: f64,
}

/// A program that serves requests from its data.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryProgram {
    /// Memory that it holds whatever happens.
    pub anon: Bytes,
    /// Its data, in files.
    pub data: Bytes,
    /// How evenly data is asked for: 1 is evenly, less is more often the same.
    pub skew: f64,
    /// Bytes of data that a request needs.
    pub bytes_per_request: Bytes,
    /// Requests under way at a time.
    pub workers: f64,
    /// Time a request takes whose data is in memory, in seconds.
    pub service_seconds: f64,
    /// Time it takes when nothing is, beside that.
    pub miss_seconds: f64,
    /// What is asked, ascending by time.
    pub loads: Vec<OfferedLoad>,
    /// Its objective, requests per second.
    pub objective: f64,
    /// The part of its data that is mapped: programs run from it.
    pub mapped: f64,
    /// It asks for all it can get for twenty seconds as soon as a twentieth of its memory was taken.
    pub ambush: bool,
    /// It sizes [`Self::anon`] by what its view shows, as a heap that shrinks does.
    pub elastic: bool,
}

impl MemoryProgram {
    /// Requests per second that are asked for at `now`.
    pub fn offered(&self, now: Micros) -> f64 {
        self.loads.iter().take_while(|load| load.from <= now).last().map_or(0.0, |load| load.offered)
    }

    /// The part of requests whose data is in memory when this much of it is.
    pub fn hits(&self, resident: f64) -> f64 {
        let data = self.data.get() as f64;
        if data <= 0.0 { 1.0 } else { (resident / data).clamp(0.0, 1.0).powf(self.skew) }
    }

    /// The most it can serve per second then.
    pub fn peak(&self, resident: f64) -> f64 {
        self.workers / (self.service_seconds + self.miss_seconds * (1.0 - self.hits(resident)))
    }
}

/// What a container's probe says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProbeBehaviour {
    /// The truth.
    Honest,
    /// Nothing.
    Silent,
    /// Always this.
    Fixed(Colour),
    /// That it serves this part of what it does.
    Scaled(f64),
    /// Green and red in turn, each for this many seconds.
    Flapping(u64),
}

impl ProbeBehaviour {
    /// What is said of what was done.
    pub(super) fn report(
        self,
        program: &MemoryProgram,
        now: Micros,
        served: f64,
        offered: f64,
    ) -> Option<ProbeReport> {
        let measure = |served| {
            let objective = Some(program.objective);
            ProbeReport::Measure(Measure {
                kind: MeasureKind::Throughput,
                served,
                offered: Some(offered),
                objective,
            })
        };
        match self {
            Self::Honest => Some(measure(served)),
            Self::Silent => None,
            Self::Fixed(colour) => Some(ProbeReport::Colour { colour }),
            Self::Flapping(seconds) => {
                let turn = now.get() / 1_000_000 / seconds.max(1) % 2;
                Some(ProbeReport::Colour { colour: if turn == 0 { Colour::Green } else { Colour::Red } })
            }
            Self::Scaled(part) => Some(measure(served * part)),
        }
    }
}

/// A container.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryTenant {
    /// Its name.
    pub name: String,
    /// What its operator claims for it.
    pub claim: Option<Claim>,
    /// Its hard limit, under [`super::MemoryPolicy::Max`] and where it is its user's.
    pub max: Limit<Bytes>,
    /// Whether that holds under every rule.
    pub keeps_max: bool,
    /// What [`super::MemoryPolicy::Low`] protects.
    pub low: Bytes,
    /// What it does.
    pub program: MemoryProgram,
    /// What it says.
    pub probe: ProbeBehaviour,
    /// When it stops; its memory goes with it, or stays behind in an empty cgroup.
    pub stops_at: Option<Micros>,
}
