//! A setting of a server that follows its container's room: which value fits, when it is changed, and why.
//!
//! Less room is followed at once, but for [`Rule::every`]; more room only when it has been there all that time. A size moves by a
//! tenth or more. Nothing goes beyond what the server's user set.

use elbowroom_types::unit::{Bytes, Micros};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a setting counts, and so which part of the room it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Bytes: effective memory.
    Bytes,
    /// Workers: effective CPU.
    Count,
}

impl Unit {
    /// A value as people read it.
    pub fn shown(self, value: u64) -> String {
        match self {
            Self::Bytes => Bytes(value).to_string(),
            Self::Count => value.to_string(),
        }
    }
}

/// What a container has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Effective CPU, whole.
    pub cpus: u32,
    /// Effective memory.
    pub memory: Bytes,
}

/// How a setting follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it counts.
    pub unit: Unit,
    /// Its part of the room, in percent; more than 100 for several workers per CPU.
    pub percent: u32,
    /// It never gets less.
    pub least: u64,
    /// It never gets more: what its user set.
    pub most: u64,
    /// Time between two changes.
    pub every: Micros,
}

/// A change that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The value now.
    pub from: u64,
    /// The value to set.
    pub to: u64,
    rule: Rule,
    room: Room,
}

impl fmt::Display for Change {
    /// `128MiB -> 64MiB: 50% of 128MiB of effective memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rule { unit, percent, least, most, .. } = self.rule;
        write!(f, "{} -> {}: {percent}% of ", unit.shown(self.from), unit.shown(self.to))?;
        match unit {
            Unit::Bytes => write!(f, "{} of effective memory", self.room.memory)?,
            Unit::Count => write!(f, "{} effective CPUs", self.room.cpus)?,
        }
        match self.to {
            to if to == most => write!(f, ", and never more than its user set"),
            to if to == least => write!(f, ", and never less than {}", unit.shown(least)),
            _ => Ok(()),
        }
    }
}

impl Rule {
    /// The value that fits into `room`.
    pub fn fits(&self, room: Room) -> u64 {
        let whole = match self.unit {
            Unit::Bytes => room.memory.get(),
            Unit::Count => u64::from(room.cpus),
        };
        let part = u128::from(whole) * u128::from(self.percent) / 100;
        u64::try_from(part).unwrap_or(u64::MAX).max(self.least).min(self.most)
    }

    /// How far a value may be from the one that fits and stay.
    fn margin(&self, value: u64) -> u64 {
        match self.unit {
            Unit::Bytes => value / 10,
            Unit::Count => 0,
        }
    }
}

/// One setting of one server.
#[derive(Clone, Debug)]
pub struct Follower {
    rule: Rule,
    value: u64,
    changed: Option<Micros>,
    /// Since when there has been more room, and the least of it.
    more: Option<(Micros, u64)>,
    /// What was set last and changed nothing.
    in_vain: Option<u64>,
}

impl Follower {
    /// One that has `value` now.
    pub fn new(rule: Rule, value: u64) -> Self {
        Self { rule, value, changed: None, more: None, in_vain: None }
    }

    /// The change that is due at `now`, if there is one; say [`Self::is_now`] when it is made, or [`Self::stays`].
    pub fn due(&mut self, now: Micros, room: Room) -> Option<Change> {
        let Rule { most, every, .. } = self.rule;
        let (from, fits) = (self.value, self.rule.fits(room));
        let margin = self.rule.margin(from);
        let rested = self.changed.is_none_or(|at| now.saturating_sub(at) >= every);
        let change = |to| Change { from, to, rule: self.rule, room };
        if fits < from && from - fits > margin {
            self.more = None;
            return (rested && !self.is_in_vain(fits)).then(|| change(fits));
        }
        // The last step to what the user set may be a small one.
        if fits > from && (fits - from > margin || fits == most) {
            let (since, to) = self.more.map_or((now, fits), |(since, least)| (since, least.min(fits)));
            self.more = Some((since, to));
            let is_due = rested && now.saturating_sub(since) >= every && !self.is_in_vain(to);
            return is_due.then(|| change(to));
        }
        self.more = None;
        None
    }

    /// The setting has been changed, or the attempt has failed, and is `value`.
    pub fn is_now(&mut self, now: Micros, value: u64) {
        (self.value, self.changed, self.more, self.in_vain) = (value, Some(now), None, None);
    }

    /// `to` has been set, and the setting is what it was: only what is further away is tried from now on.
    pub fn stays(&mut self, now: Micros, to: u64) {
        (self.changed, self.more, self.in_vain) = (Some(now), None, Some(to));
    }

    /// Whether setting `to` would change no more than what was set in vain. A server may round, so what is further away may help.
    fn is_in_vain(&self, to: u64) -> bool {
        self.in_vain.is_some_and(|tried| {
            let further = if to < self.value { tried.saturating_sub(to) } else { to.saturating_sub(tried) };
            further == 0 || (further <= self.rule.margin(tried) && to != self.rule.most)
        })
    }

    /// Somebody else has set it: this is the most from now on.
    pub fn is_set_by_others(&mut self, now: Micros, value: u64) {
        self.rule.most = value;
        self.is_now(now, value);
    }

    /// The value it has, as far as is known.
    pub fn value(&self) -> u64 {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Rule =
        Rule { unit: Unit::Bytes, percent: 50, least: 100, most: 1_000, every: Micros::secs(10) };
    const WORKERS: Rule =
        Rule { unit: Unit::Count, percent: 200, least: 1, most: 16, every: Micros::secs(10) };

    fn room(cpus: u32, memory: u64) -> Room {
        Room { cpus, memory: Bytes(memory) }
    }

    #[test]
    fn what_fits_is_a_part_of_the_room_within_bounds() {
        for (memory, fits) in [(1_000, 500), (10_000, 1_000), (10, 100), (0, 100), (u64::MAX, 1_000)] {
            assert_eq!(SIZE.fits(room(1, memory)), fits);
        }
        assert_eq!([0, 1, 4, 9].map(|cpus| WORKERS.fits(room(cpus, 0))), [1, 2, 8, 16]);
        let all = Rule { most: u64::MAX, percent: u32::MAX, ..SIZE };
        assert_eq!(all.fits(room(1, u64::MAX)), u64::MAX);
    }

    #[test]
    fn less_room_counts_at_once_and_more_only_when_it_stays() {
        let mut follower = Follower::new(SIZE, 1_000);
        let at = Micros::secs;
        assert_eq!(follower.due(at(0), room(1, 4_000)), None);
        let change = follower.due(at(1), room(1, 1_000)).unwrap();
        assert_eq!((change.from, change.to), (1_000, 500));
        follower.is_now(at(1), 500);
        assert_eq!(follower.due(at(2), room(1, 600)), None, "not so soon after a change");
        assert_eq!(follower.due(at(11), room(1, 600)).unwrap().to, 300);
        follower.is_now(at(11), 300);
        assert_eq!(follower.due(at(22), room(1, 1_600)), None);
        assert_eq!(follower.due(at(27), room(1, 1_200)), None);
        assert_eq!(follower.due(at(32), room(1, 2_000)).unwrap().to, 600, "the least of those ten seconds");
        assert_eq!(follower.due(at(33), room(1, 610)), None, "it went away in between");
        assert_eq!(follower.due(at(34), room(1, 2_000)), None);
    }

    #[test]
    fn small_differences_change_no_size_but_the_way_back_is_whole() {
        let mut follower = Follower::new(SIZE, 500);
        for memory in [920, 1_000, 1_090] {
            assert_eq!(follower.due(Micros::secs(100), room(1, memory)), None, "{memory}");
        }
        let mut near = Follower::new(SIZE, 950);
        assert_eq!(near.due(Micros::secs(0), room(1, 5_000)), None);
        assert_eq!(near.due(Micros::secs(10), room(1, 5_000)).unwrap().to, 1_000);
        let mut workers = Follower::new(WORKERS, 8);
        assert_eq!(workers.due(Micros::ZERO, room(3, 0)).unwrap().to, 6);
    }

    #[test]
    fn what_others_set_is_the_most_from_then_on() {
        let mut follower = Follower::new(SIZE, 1_000);
        follower.is_set_by_others(Micros::secs(1), 400);
        assert_eq!(follower.value(), 400);
        for at in [20, 40, 60] {
            assert_eq!(follower.due(Micros::secs(at), room(1, 1_000_000)), None);
        }
    }

    #[test]
    fn what_was_set_in_vain_is_not_set_again_but_what_is_further_away_is() {
        let at = Micros::secs;
        let mut follower = Follower::new(SIZE, 1_000);
        assert_eq!(follower.due(at(0), room(1, 1_600)).unwrap().to, 800);
        follower.stays(at(0), 800);
        for memory in [1_600, 1_700, 1_450] {
            assert_eq!(follower.due(at(100), room(1, memory)), None, "{memory}");
        }
        assert_eq!(follower.due(at(100), room(1, 1_400)).unwrap().to, 700);
        follower.is_now(at(100), 600);
        assert_eq!(follower.due(at(200), room(1, 1_000)).unwrap().to, 500);
        // The same upwards; what its user set is tried though it is near.
        let mut up = Follower::new(SIZE, 500);
        let mut more = |start, memory| (start..start + 11).find_map(|s| up.due(at(s), room(1, memory)));
        assert_eq!(more(0, 1_900).unwrap().to, 950);
        up.stays(at(10), 950);
        let mut more = |start, memory| (start..start + 11).find_map(|s| up.due(at(s), room(1, memory)));
        assert_eq!(more(30, 1_960), None);
        assert_eq!(more(50, 1_000), None);
        assert_eq!(more(60, 2_000).unwrap().to, 1_000);
        up.stays(at(70), 1_000);
        assert_eq!((80..100).find_map(|s| up.due(at(s), room(1, 9_000))), None);
        let mut workers = Follower::new(WORKERS, 8);
        assert_eq!(workers.due(at(0), room(1, 0)).unwrap().to, 2);
        workers.stays(at(0), 2);
        assert_eq!(workers.due(at(20), room(1, 0)), None);
        workers.is_set_by_others(at(30), 6);
        assert_eq!(workers.due(at(40), room(1, 0)).unwrap().to, 2);
    }

    #[test]
    fn a_change_says_why() {
        let said = |rule, from, room| Follower::new(rule, from).due(Micros::ZERO, room).unwrap().to_string();
        let rule = Rule { most: 1 << 30, ..SIZE };
        let memory = Room { cpus: 1, memory: Bytes::mib(128) };
        assert_eq!(said(rule, 128 << 20, memory), "128MiB -> 64MiB: 50% of 128MiB of effective memory");
        assert_eq!(said(WORKERS, 16, room(0, 0)), "16 -> 1: 200% of 0 effective CPUs, and never less than 1");
    }

    /// Whatever the room does, changes are apart, within bounds, and each is one that fits some room that was seen.
    #[test]
    fn however_the_room_changes_the_setting_is_calm_and_within_bounds() {
        let mut seed = 7u64;
        let mut follower = Follower::new(SIZE, 1_000);
        let mut last = None;
        for second in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let now = Micros::secs(second);
            if let Some(change) = follower.due(now, room(1, (seed >> 33) % 4_000)) {
                assert!((SIZE.least..=SIZE.most).contains(&change.to) && change.to != change.from);
                assert!(last.is_none_or(|at| now.saturating_sub(at) >= SIZE.every));
                last = Some(now);
                follower.is_now(now, change.to);
            }
        }
        assert!(last.is_some());
    }
}
