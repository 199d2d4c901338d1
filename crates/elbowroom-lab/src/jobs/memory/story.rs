//! What happens: the paper's six phases, and the sizes that make memory the only thing that is short.
//!
//! Rows are asked for at random, all with the same probability. So with `m` of a database's `D` bytes in memory, one row in
//! `D / (D - m)` has to be read from the disk, and a disk of `R` pages a second serves `R / (1 - m/D)` rows: the sizes below are
//! that formula, with enough CPU to spare that it is the only limit.

use crate::database::PAGE;
use serde::{Deserialize, Serialize};

/// Rows that a transaction asks for.
pub(super) const ROWS_PER_TRANSACTION: u64 = 10;
/// What mariadbd has beside its part of the database: measured as anonymous memory and what is not of the table, in MiB.
const SERVER_MIB: u64 = 40;

/// [`Story::memory`], in seconds.
const MEMORY_S: u32 = 5;

/// The two containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Who {
    /// The one with more right to memory.
    A,
    /// The other.
    B,
}

/// How much a container is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Demand {
    /// More than it can serve with what it is entitled to.
    High,
    /// A little.
    Low,
    /// Nothing: it is not there any more.
    Stopped,
}

/// A phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    /// In a table's head.
    pub(super) title: &'static str,
    /// Of A, then of B.
    demand: [Demand; 2],
}

/// The paper's phases.
pub(super) const PHASES: [Phase; 6] = {
    use Demand::{High, Low, Stopped};
    [
        Phase { title: "1 both high", demand: [High, High] },
        Phase { title: "2 B low", demand: [High, Low] },
        Phase { title: "3 both high", demand: [High, High] },
        Phase { title: "4 both low", demand: [Low, Low] },
        Phase { title: "5 A low", demand: [Low, High] },
        Phase { title: "6 A stopped", demand: [Stopped, High] },
    ]
};

/// What a container is asked, promised and entitled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Role {
    /// Transactions a second that it has to serve when asked for more.
    pub(super) objective: u32,
    /// Memory that is enough for that, in MiB: its limit, or its reservation.
    pub(super) right_mib: u64,
}

/// The story in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Story {
    /// Rows of each database.
    pub(super) rows: u64,
    /// Bytes of the pages that each database's rows are in.
    pub(super) table: u64,
    /// Memory for both, in MiB: less than the two databases.
    pub(super) machine_mib: u64,
    /// Bytes a second that each container may read from the disk.
    pub(super) disk: u64,
    /// Whether a transaction is one statement: with ten, emulated CPUs are what is short on a slow machine.
    #[serde(default)]
    pub(super) at_once: bool,
    /// Transactions a second asked for in a high phase.
    pub(super) high: u32,
    /// The same in a low one.
    pub(super) low: u32,
    /// A, then B.
    pub(super) roles: [Role; 2],
    /// Of a phase.
    pub(super) seconds: u32,
    /// Under the first phase's load, before time begins: each could read its database once.
    pub(super) settle: u32,
    /// After so many seconds what was asked for and not done is forgotten, as by users who go away: sysbench would ask for it
    /// until it is done, and who was starved would make up for it.
    pub(super) memory: u32,
}

/// What is asked of a container from one time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Seconds after the first phase begins.
    pub(super) at: i64,
    /// For so long.
    pub(super) seconds: u32,
    /// Transactions a second.
    pub(super) rate: u32,
}

impl Who {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::A, Self::B];

    /// Its name.
    pub(super) fn name(self) -> &'static str {
        ["A", "B"][self as usize]
    }
}

impl Phase {
    /// What is asked of a container.
    pub(super) fn demand(&self, who: Who) -> Demand {
        self.demand[who as usize]
    }
}

impl Story {
    /// Rows of each database: enough to make memory short, few enough that an emulated machine makes them in a minute.
    pub(super) fn rows(guest: bool) -> u64 {
        if guest { 300_000 } else { 1_000_000 }
    }

    /// The story of databases of `table` bytes; a guest's emulated CPUs serve less than a tenth.
    pub(super) fn of(table: u64, guest: bool, seconds: u32) -> Self {
        let pages = if guest { 96 } else { 1200 };
        let part = |percent: u64| (table * percent / 100) >> 20;
        // Transactions a second with so much of the database in memory.
        let serves = |percent: u64| (pages * 100 / (100 - percent) / ROWS_PER_TRANSACTION) as u32;
        let role =
            |percent: u64| Role { objective: serves(percent) * 4 / 5, right_mib: SERVER_MIB + part(percent) };
        let roles = [role(78), role(47)];
        Self {
            rows: Self::rows(guest),
            table,
            machine_mib: roles.iter().map(|role| role.right_mib).sum(),
            disk: pages * PAGE,
            at_once: guest,
            high: serves(83),
            low: serves(83) / 30,
            roles,
            seconds,
            settle: (table / (pages * PAGE)) as u32,
            memory: if guest { seconds } else { MEMORY_S.min(seconds) }, // there a sysbench takes a second to start
        }
    }

    /// Transactions a second that are asked for.
    pub(super) fn rate(&self, demand: Demand) -> u32 {
        match demand {
            Demand::High => self.high,
            Demand::Low => self.low,
            Demand::Stopped => 0,
        }
    }

    /// What is asked of a container, while it settles and in every phase.
    pub(super) fn asked(&self, who: Who) -> Vec<Asked> {
        let settle = (-i64::from(self.settle), self.settle, &PHASES[0]);
        let phases =
            PHASES.iter().zip(0..).map(|(phase, i)| (i * i64::from(self.seconds), self.seconds, phase));
        let all = std::iter::once(settle).chain(phases);
        all.flat_map(|(at, length, phase)| self.pieces(at, length, self.rate(phase.demand(who)))).collect()
    }

    /// What is asked from the second `at` on, for so many seconds, in pieces after which it is forgotten. The first is what is left
    /// over: a short one at the end would have two sysbenches start beside the phase that begins then.
    pub(super) fn pieces(&self, mut at: i64, seconds: u32, rate: u32) -> Vec<Asked> {
        let whole = self.memory;
        let first = Some(seconds % whole).filter(|rest| *rest > 0);
        let lengths = first.into_iter().chain(std::iter::repeat_n(whole, (seconds / whole) as usize));
        let pieces = lengths.filter(|_| rate > 0).map(|seconds| {
            let piece = Asked { at, seconds, rate };
            at += i64::from(seconds);
            piece
        });
        pieces.collect()
    }

    /// Of a container.
    pub(super) fn role(&self, who: Who) -> Role {
        self.roles[who as usize]
    }

    /// Length of the story in seconds.
    pub(super) fn end(&self) -> u32 {
        self.seconds * PHASES.len() as u32
    }

    /// The phase of a second.
    pub(super) fn phase(&self, second: u32) -> usize {
        (second / self.seconds) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_enough_for_both_objectives_and_not_for_both_databases() {
        for guest in [false, true] {
            let story = Story::of(240 << 20, guest, 20);
            let [a, b] = story.roles;
            assert!(story.machine_mib < 2 * (story.table >> 20) && a.right_mib > b.right_mib);
            assert_eq!(story.machine_mib, a.right_mib + b.right_mib);
            assert!(a.objective > b.objective && a.objective < story.high);
            // Half each, as the kernel divides what two use alike: enough for B's objective, not for A's.
            let half = (story.machine_mib / 2 - SERVER_MIB) << 20;
            let serves = story.disk / PAGE * story.table / (story.table - half) / ROWS_PER_TRANSACTION;
            assert!(serves > u64::from(b.objective) && serves < u64::from(a.objective), "{serves}");
        }
    }

    #[test]
    fn everybody_is_asked_without_a_gap_and_anew_when_a_phase_begins() {
        let story = Story { settle: 42, memory: 20, ..Story::of(64 << 20, true, 20) };
        let times = |who| story.asked(who).iter().map(|a| (a.at, a.seconds)).collect::<Vec<_>>();
        let phases = [0, 20, 40, 60, 80, 100].map(|at| (at, 20));
        assert_eq!(times(Who::B), [&[(-42, 2), (-40, 20), (-20, 20)][..], &phases].concat());
        assert_eq!(times(Who::A), times(Who::B)[..8]); // it is stopped in the last
        assert_eq!(story.asked(Who::B)[4].rate, story.low);
        let short = Story { memory: 5, ..story };
        assert_eq!(short.asked(Who::B).len(), 9 + 24);
    }

    #[test]
    fn the_phases_are_the_papers() {
        let of = |who: Who| PHASES.iter().map(|phase| phase.demand(who)).collect::<Vec<_>>();
        use Demand::{High, Low, Stopped};
        assert_eq!(of(Who::A), [High, High, High, Low, Low, Stopped]);
        assert_eq!(of(Who::B), [High, Low, High, Low, High, High]);
    }
}
