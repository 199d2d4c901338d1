//! What happens when: who wants how much of the disk, and how fast the disk is. Aridac's set-up is a disk of 1 MB/s, a
//! container that wants 200 kB/s, and one that bursts to 2 MB/s (its figures 4 to 8); times are the paper's, shortened.

use crate::fio::{Phase, Style};
use serde::{Deserialize, Serialize};

/// Which story is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// A burst comes beside a steady container, and stays.
    W1,
    /// The burst goes and comes back.
    W2,
    /// Two containers take turns; meanwhile the disk slows down to 55 % and recovers.
    W3,
    /// A steady container and a hog; meanwhile the disk slows down to 55 % and recovers.
    W4,
    /// As W4, with more than 60 s at each speed, for what is learned about the disk.
    Speed,
}

/// How large everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scale {
    /// The paper's: 1 MB/s, in requests of 4 and 8 KiB.
    Paper,
    /// 100 MB/s, in requests of 64 and 128 KiB: a small machine keeps up with it.
    Fast,
}

/// A container of the story.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Actor {
    /// What the figures call it.
    pub(crate) name: String,
    /// Whether it never wants more than its part, so that it is the one that can be starved.
    pub(crate) steady: bool,
    /// How it asks.
    pub(crate) style: Style,
    /// What it wants; the first phase begins at 0.
    pub(crate) phases: Vec<Phase>,
}

/// A story.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Timeline {
    /// Its length.
    pub(crate) seconds: u32,
    /// Bytes per second of the disk at its best.
    pub(crate) capacity: u64,
    /// Who takes part.
    pub(crate) actors: Vec<Actor>,
    /// (second, bytes per second): the disk's speed from then on; the first is at 0.
    pub(crate) speeds: Vec<(u32, u64)>,
}

/// Parts of the capacity, in percent, from some second on.
type Percents<'a> = &'a [(u32, u64)];

/// More than there is: twice the capacity, as in the paper.
const FLOOD: u64 = 200;
const SLOW: u64 = 55;

impl Workload {
    /// Its name in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::W1 => "w1",
            Self::W2 => "w2",
            Self::W3 => "w3",
            Self::W4 => "w4",
            Self::Speed => "speed",
        }
    }

    /// What happens, in one sentence for a summary.
    pub(crate) fn story(self) -> &'static str {
        match self {
            Self::W1 => "A wants 20 % of the disk throughout; B wants 10 %, then bursts and stays.",
            Self::W2 => {
                "A wants 20 % of the disk throughout; B wants 10 %, bursts, is quiet again, and bursts again."
            }
            Self::W3 => {
                "A and B take turns of 20 s: one wants 50 % of the disk while the other wants 15 %. Meanwhile the disk slows down to \
                 55 % and recovers."
            }
            Self::W4 => {
                "A wants 30 % of the disk throughout; B is a hog that comes and goes. Meanwhile the disk slows down to 55 % and \
                 recovers."
            }
            Self::Speed => {
                "A wants 30 % of the disk throughout; B is a hog that stays. The disk slows down to 55 % and recovers, with more than \
                 a minute at each speed."
            }
        }
    }

    /// What happens, in numbers.
    pub(crate) fn timeline(self, scale: Scale) -> Timeline {
        let quiet_then = |burst: u32| [(0, 10), (burst, FLOOD)];
        match self {
            Self::W1 => scale.timeline(105, &[(0, 20)], &quiet_then(25), &[(0, 100)]),
            Self::W2 => {
                let bursts = [(0, 10), (25, FLOOD), (50, 10), (75, FLOOD), (100, 10)];
                scale.timeline(110, &[(0, 20)], &bursts, &[(0, 100)])
            }
            Self::W3 => {
                let turns = |first: u64, second: u64| {
                    (0..6).map(|n| (20 * n, if n % 2 == 0 { first } else { second })).collect::<Vec<_>>()
                };
                let mut told = scale.timeline(120, &turns(50, 15), &turns(15, 50), &slow(50, 85));
                told.actors[1].steady = true; // neither ever wants more than its part
                told.actors[1].style = told.actors[0].style;
                told
            }
            Self::W4 => {
                let hog = [(0, 5), (15, FLOOD), (90, 5)];
                scale.timeline(115, &[(0, 30)], &hog, &slow(35, 70))
            }
            Self::Speed => scale.timeline(210, &[(0, 30)], &[(0, 5), (15, FLOOD)], &slow(80, 145)),
        }
    }
}

/// Slow from one second until another.
fn slow(from: u32, until: u32) -> [(u32, u64); 3] {
    [(0, 100), (from, SLOW), (until, 100)]
}

impl Scale {
    /// Its name in files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Fast => "fast",
        }
    }

    /// Bytes per second of the disk at its best.
    pub(crate) fn capacity(self) -> u64 {
        match self {
            Self::Paper => 1_000_000,
            Self::Fast => 100_000_000,
        }
    }

    /// Bytes per request of A.
    fn block(self) -> u64 {
        match self {
            Self::Paper => 4 << 10,
            Self::Fast => 64 << 10,
        }
    }

    /// A is a server with a few requests under way, B a batch job that keeps the disk's queue full of larger ones.
    fn timeline(self, seconds: u32, a: Percents, b: Percents, speeds: Percents) -> Timeline {
        let part = |percent: u64| self.capacity() * percent / 100;
        let server = Style { block: self.block(), depth: 2 };
        let batch = Style { block: 2 * self.block(), depth: 32 };
        let actor = |name: &str, steady, style, wants: Percents| Actor {
            name: name.to_owned(),
            steady,
            style,
            phases: wants.iter().map(|(at, percent)| Phase { at: *at, want: part(*percent) }).collect(),
        };
        Timeline {
            seconds,
            capacity: self.capacity(),
            actors: vec![actor("A", true, server, a), actor("B", false, batch, b)],
            speeds: speeds.iter().map(|(at, percent)| (*at, part(*percent))).collect(),
        }
    }
}

impl Actor {
    /// What it wants at a second.
    pub(crate) fn want(&self, second: u32) -> u64 {
        self.phases.iter().take_while(|phase| phase.at <= second).last().map_or(0, |phase| phase.want)
    }

    /// Seconds at which it begins to want more than the disk can do.
    pub(crate) fn bursts(&self, capacity: u64) -> Vec<u32> {
        self.phases.iter().filter(|phase| phase.want >= capacity).map(|phase| phase.at).collect()
    }
}

impl Timeline {
    /// What the disk is set to at a second.
    pub(crate) fn speed(&self, second: u32) -> u64 {
        self.speeds
            .iter()
            .take_while(|(at, _)| *at <= second)
            .last()
            .map_or(self.capacity, |(_, speed)| *speed)
    }

    /// What all want together at a second.
    pub(crate) fn wanted(&self, second: u32) -> u64 {
        self.actors.iter().map(|actor| actor.want(second)).sum()
    }

    /// Whether there is not enough for all at a second.
    pub(crate) fn contested(&self, second: u32) -> bool {
        self.wanted(second) > self.speed(second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_leaves_not_enough_for_all_and_a_turn_only_while_the_disk_is_slow() {
        let told = |workload: Workload| workload.timeline(Scale::Paper);
        let contested = |workload: Workload| {
            let told = told(workload);
            (0..told.seconds).filter(|s| told.contested(*s)).map(|s| (s, s + 1)).fold(
                Vec::<(u32, u32)>::new(),
                |mut spans, (from, to)| {
                    match spans.last_mut() {
                        Some(last) if last.1 == from => last.1 = to,
                        _ => spans.push((from, to)),
                    }
                    spans
                },
            )
        };
        assert_eq!(contested(Workload::W1), [(25, 105)]);
        assert_eq!(contested(Workload::W2), [(25, 50), (75, 100)]);
        assert_eq!(contested(Workload::W3), [(50, 85)]);
        assert_eq!(contested(Workload::W4), [(15, 90)]);
        assert_eq!(told(Workload::W4).actors[1].bursts(1_000_000), [15]);
        assert_eq!(told(Workload::W3).speed(84), 550_000);
        assert_eq!(told(Workload::W3).speed(85), 1_000_000);
    }

    #[test]
    fn a_steady_container_never_wants_more_than_half_of_the_slow_disk_unless_it_is_its_turn() {
        for workload in [Workload::W1, Workload::W2, Workload::W4, Workload::Speed] {
            for scale in [Scale::Paper, Scale::Fast] {
                let told = workload.timeline(scale);
                let least = told.speeds.iter().map(|(_, speed)| *speed).min().unwrap();
                let steady = told.actors.iter().filter(|actor| actor.steady);
                assert!(steady.flat_map(|actor| &actor.phases).all(|phase| phase.want * 10 <= least * 6));
            }
        }
    }
}
