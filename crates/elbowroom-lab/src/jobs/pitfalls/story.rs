//! What happens in each figure, as a function of how much memory the machine has.

use super::strategy::Strategy;
use serde::{Deserialize, Serialize};

/// Bytes of a piece of work: an object allocated, an object touched, a block read.
pub(super) const PIECE: u64 = 64 << 10;
/// What a JVM needs besides its heap, in MiB.
const JVM_MIB: u64 = 64;
/// What a service is asked for, in requests per second, on this machine and on an emulated CPU. As often as it can would be no
/// subject: memory that is used at every moment is the last that a kernel takes.
const RATES: [u64; 2] = [1000, 200];
/// Young generation where allocation is not the subject, in MiB.
const SMALL_YOUNG_MIB: u64 = 16;

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Figure {
    /// III.A.
    #[value(name = "2")]
    NotReserved,
    /// III.B.
    #[value(name = "3")]
    OwnCache,
    /// III.C.
    #[value(name = "4")]
    CacheStolen,
    /// III.D.
    #[value(name = "5")]
    Swapped,
}

/// Who has the machine's memory when the application begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Others {
    /// Nobody.
    Nothing,
    /// Another group: files it has read.
    Cache,
    /// Another group: anonymous memory that it does not use.
    Anon,
}

/// What is compared in a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Variant {
    pub(super) others: Others,
    pub(super) strategy: Strategy,
}

/// What the application does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Work {
    /// Objects that die at once.
    Allocate,
    /// Objects that it holds.
    Touch,
    /// Blocks of a file.
    Read,
}

/// What the host does for itself while the application is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HostJob {
    /// Reads its files over and over, at so many MiB/s at most.
    Scan(u64),
    /// Fills so many MiB of memory in the first two seconds, and goes over them again and again.
    Grow(u64),
}

/// One figure's story. Times are in milliseconds after its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Story {
    pub(super) work: Work,
    /// Pieces per second at most; 0 for as many as it can.
    pub(super) rate: u64,
    /// The JVM's young generation, in MiB.
    pub(super) young_mib: u64,
    /// Objects it holds from the beginning.
    pub(super) held_mib: u64,
    /// Objects it comes to hold while it is disturbed.
    pub(super) grow_mib: u64,
    /// The file it reads.
    pub(super) file_mib: u64,
    /// The files that others read.
    pub(super) others_mib: u64,
    /// Whether the rest of the machine's memory is others' anonymous memory, in every variant.
    pub(super) crowded: bool,
    /// What others leave when they take the rest.
    pub(super) spare_mib: u64,
    /// Its limit, without room for cache.
    pub(super) limit_mib: Option<u64>,
    /// What the host's job may use where it has a limit.
    pub(super) housekeeping_mib: u64,
    pub(super) host: Option<HostJob>,
    /// When something happens to it.
    pub(super) disturbed: (u64, u64),
    pub(super) end: u64,
    /// Time between two samples of the application's own count.
    pub(super) sample: u64,
}

impl Figure {
    /// The paper's.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::NotReserved => 2,
            Self::OwnCache => 3,
            Self::CacheStolen => 4,
            Self::Swapped => 5,
        }
    }

    /// What it shows.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::NotReserved => "III.A: memory is not reserved",
            Self::OwnCache => "III.B: anonymous memory evicts the group's own cache",
            Self::CacheStolen => "III.C: the host takes cache from any group",
            Self::Swapped => "III.D: the host swaps any group",
        }
    }

    /// What it compares. A group that stands for the machine has no swap.
    pub(super) fn variants(self, cgroup_v2: bool, stand_in: bool) -> Vec<Variant> {
        use Strategy as S;
        let pairs = match self {
            Self::NotReserved => vec![
                (Others::Nothing, S::None),
                (Others::Cache, S::None),
                (Others::Cache, S::PreTouch),
                (Others::Anon, S::None),
                (Others::Anon, S::PreTouch),
            ],
            Self::OwnCache => vec![(Others::Nothing, S::None), (Others::Nothing, S::RoomForCache)],
            Self::CacheStolen => {
                vec![S::None, S::Housekeeping, S::Protect].into_iter().map(|s| (Others::Nothing, s)).collect()
            }
            Self::Swapped => vec![S::None, S::Housekeeping, S::NoSwap, S::Protect]
                .into_iter()
                .map(|s| (Others::Nothing, s))
                .collect(),
        };
        let possible = |(others, strategy): &(Others, S)| {
            (cgroup_v2 || *strategy != S::Protect) && !(stand_in && *others == Others::Anon)
        };
        pairs.into_iter().filter(possible).map(|(others, strategy)| Variant { others, strategy }).collect()
    }

    /// What it calls a variant, in tables and figures.
    pub(super) fn name(self, Variant { others, strategy }: Variant) -> String {
        let others = match (self, others) {
            (Self::NotReserved, Others::Nothing) => return "memory is free".to_owned(),
            (_, Others::Nothing) => return strategy.name().to_owned(),
            (_, Others::Cache) => "others' cache",
            (_, Others::Anon) => "others' anonymous memory",
        };
        match strategy {
            Strategy::None => format!("memory full of {others}"),
            strategy => format!("memory full of {others}, {}", strategy.name()),
        }
    }

    /// The story on a machine with so much memory to give.
    pub(super) fn story(self, machine_mib: u64, emulated: bool) -> Story {
        let part = |percent: u64| machine_mib * percent / 100;
        let quiet = Story {
            work: Work::Read,
            rate: RATES[usize::from(emulated)],
            young_mib: SMALL_YOUNG_MIB,
            held_mib: 0,
            grow_mib: 0,
            file_mib: 0,
            others_mib: part(110),
            crowded: false,
            spare_mib: part(8),
            limit_mib: None,
            housekeeping_mib: part(4),
            host: None,
            disturbed: (3000, 11_000),
            end: 14_000,
            sample: 100,
        };
        match self {
            Self::NotReserved => Story {
                work: Work::Allocate,
                rate: 0,
                young_mib: part(30),
                disturbed: (0, 6000),
                end: 6000,
                sample: 20, // memory that is there is passed through in a few hundredths of a second
                ..quiet
            },
            Self::OwnCache => {
                let grow_mib = part(35);
                let limit_mib = Some(heap_mib(SMALL_YOUNG_MIB, grow_mib) + JVM_MIB);
                Story { grow_mib, limit_mib, file_mib: part(20), disturbed: (3000, 5000), end: 9000, ..quiet }
            }
            Self::CacheStolen => {
                let host = Some(HostJob::Scan(part(30)));
                Story { file_mib: part(30), others_mib: part(25), crowded: true, host, ..quiet }
            }
            Self::Swapped => {
                let host = Some(HostJob::Grow(part(80)));
                let disturbed = (3000, 15_000);
                Story { work: Work::Touch, held_mib: part(40), host, disturbed, end: 17_000, ..quiet }
            }
        }
    }
}

impl Work {
    /// What is counted.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Allocate => "allocations/s",
            Self::Touch => "requests/s",
            Self::Read => "reads/s",
        }
    }
}

impl Story {
    /// `-Xmx`, in MiB.
    pub(super) fn heap_mib(&self) -> u64 {
        heap_mib(self.young_mib, self.held_mib + self.grow_mib)
    }

    /// Pieces that the young generation takes: what is allocated before the first collection. HotSpot gives two tenths of it to
    /// the survivors (`SurvivorRatio` 8).
    pub(super) fn first_pass(&self) -> u64 {
        (self.young_mib << 20) * 8 / 10 / PIECE
    }
}

/// A tenth more than what is held, and never less than HotSpot wants to begin with.
fn heap_mib(young: u64, held: u64) -> u64 {
    young + held * 11 / 10 + 16
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIGURES: [Figure; 4] =
        [Figure::NotReserved, Figure::OwnCache, Figure::CacheStolen, Figure::Swapped];

    #[test]
    fn every_figure_shows_the_pitfall_and_what_helps_on_every_kernel() {
        for figure in FIGURES {
            for (cgroup_v2, stand_in) in [(false, false), (false, true), (true, false), (true, true)] {
                let variants = figure.variants(cgroup_v2, stand_in);
                assert!(variants.iter().any(|v| v.strategy == Strategy::None));
                assert!(variants.iter().any(|v| v.strategy != Strategy::None));
                assert!(cgroup_v2 || variants.iter().all(|v| v.strategy != Strategy::Protect));
                assert!(!stand_in || variants.iter().all(|v| v.others != Others::Anon));
            }
        }
    }

    #[test]
    fn the_application_fits_alone_and_not_beside_what_the_host_does() {
        for mib in [600, 1000, 2000] {
            for figure in FIGURES {
                let story = figure.story(mib, false);
                assert!(story.heap_mib() + story.file_mib + JVM_MIB <= mib, "{figure:?} at {mib} MiB");
            }
            let own = Figure::OwnCache.story(mib, false);
            let limit = own.limit_mib.unwrap();
            assert!(own.heap_mib() + JVM_MIB <= limit && own.grow_mib + own.file_mib + JVM_MIB > limit);
            let stolen = Figure::CacheStolen.story(mib, false);
            assert!(stolen.others_mib > stolen.spare_mib && stolen.housekeeping_mib < stolen.spare_mib);
            let swapped = Figure::Swapped.story(mib, true);
            assert_eq!(swapped.host, Some(HostJob::Grow(mib * 80 / 100)));
            assert!(swapped.held_mib * 100 / mib + 80 > 100);
        }
    }
}
