//! What runs in a container: requests for data that may be in memory.

use elbowroom_types::claim::Claim;
use elbowroom_types::probe::{Colour, Kind, Measure, Report};
use elbowroom_types::unit::{Bytes, Limit, Micros};

/// How much is asked of a program from some time on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// From when on.
    pub from: Micros,
    /// Requests per second.
    pub offered: f64,
}

/// A program that serves requests from its data.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Memory that it holds whatever happens.
    pub anon: Bytes,
    /// Its data, in files.
    pub data: Bytes,
    /// How evenly data is asked for: 1 is evenly, less is more often the same.
    pub skew: f64,
    /// Bytes of data that a request needs.
    pub touches: Bytes,
    /// Requests under way at a time.
    pub workers: f64,
    /// Time a request takes whose data is in memory, in seconds.
    pub serve: f64,
    /// Time it takes when nothing is, beside that.
    pub miss: f64,
    /// What is asked, ascending by time.
    pub loads: Vec<Load>,
    /// Its objective, requests per second.
    pub objective: f64,
    /// It sizes [`Self::anon`] by what its view shows, as a heap that shrinks does.
    pub elastic: bool,
}

impl Program {
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
        self.workers / (self.serve + self.miss * (1.0 - self.hits(resident)))
    }
}

/// What a container's probe says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Voice {
    /// The truth.
    Honest,
    /// Nothing.
    Silent,
    /// Always this.
    Claims(Colour),
    /// That it serves this part of what it does.
    Times(f64),
}

impl Voice {
    /// What is said of what was done.
    pub(super) fn says(self, program: &Program, served: f64, offered: f64) -> Option<Report> {
        let measure = |served| {
            let objective = Some(program.objective);
            Report::Measure(Measure { kind: Kind::Throughput, served, offered: Some(offered), objective })
        };
        match self {
            Self::Honest => Some(measure(served)),
            Self::Silent => None,
            Self::Claims(colour) => Some(Report::Colour { colour }),
            Self::Times(part) => Some(measure(served * part)),
        }
    }
}

/// A container.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// What its operator claims for it.
    pub claim: Option<Claim>,
    /// Its hard limit, under [`super::Rule::Max`] and where it is its user's.
    pub max: Limit<Bytes>,
    /// Whether that holds under every rule.
    pub keeps_max: bool,
    /// What [`super::Rule::Low`] protects.
    pub low: Bytes,
    /// What it does.
    pub program: Program,
    /// What it says.
    pub voice: Voice,
    /// When it stops; its memory goes with it, or stays behind in an empty cgroup.
    pub stops: Option<Micros>,
}
