//! A setting of a server that follows its container's room: which value fits, when it is changed, and why.
//!
//! Less room is followed at once, but for [`FollowRule::min_interval`]; more room only when it has been there all that time. A size moves
//! by a tenth or more. Nothing goes beyond what the server's user set.

use elbowroom_types::unit::{Bytes, Micros};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a setting counts, and so which part of the room it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SettingUnit {
    /// Bytes: effective memory.
    Bytes,
    /// Workers: effective CPU.
    Count,
}

impl SettingUnit {
    /// A value as people read it.
    pub fn display(self, value: u64) -> String {
        match self {
            Self::Bytes => Bytes(value).to_string(),
            Self::Count => value.to_string(),
        }
    }
}

/// What a container has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EffectiveResources {
    /// Effective CPU, whole.
    pub cpus: u32,
    /// Effective memory.
    pub memory: Bytes,
}

/// How a setting follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FollowRule {
    /// What it counts.
    pub unit: SettingUnit,
    /// Its part of the room, in percent; more than 100 for several workers per CPU.
    pub percent: u32,
    /// It never gets less.
    pub min: u64,
    /// It never gets more: what its user set.
    pub max: u64,
    /// Time between two changes.
    pub min_interval: Micros,
}

/// A change that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SettingChange {
    /// The value now.
    pub from: u64,
    /// The value to set.
    pub to: u64,
    rule: FollowRule,
    room: EffectiveResources,
}

impl fmt::Display for SettingChange {
    /// `128MiB -> 64MiB: 50% of 128MiB of effective memory`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FollowRule { unit, percent, min: least, max: most, .. } = self.rule;
        write!(f, "{} -> {}: {percent}% of ", unit.display(self.from), unit.display(self.to))?;
        match unit {
            SettingUnit::Bytes => write!(f, "{} of effective memory", self.room.memory)?,
            SettingUnit::Count => write!(f, "{} effective CPUs", self.room.cpus)?,
        }
        match self.to {
            to if to == most => write!(f, ", and never more than its user set"),
            to if to == least => write!(f, ", and never less than {}", unit.display(least)),
            _ => Ok(()),
        }
    }
}

impl FollowRule {
    /// The value that fits into `room`.
    pub(crate) fn target_value(&self, room: EffectiveResources) -> u64 {
        let whole = match self.unit {
            SettingUnit::Bytes => room.memory.get(),
            SettingUnit::Count => u64::from(room.cpus),
        };
        let part = u128::from(whole) * u128::from(self.percent) / 100;
        u64::try_from(part).unwrap_or(u64::MAX).max(self.min).min(self.max)
    }

    /// How far a value may be from the one that fits and stay.
    fn tolerance(&self, value: u64) -> u64 {
        match self.unit {
            SettingUnit::Bytes => value / 10,
            SettingUnit::Count => 0,
        }
    }
}

/// One setting of one server.
#[derive(Clone, Debug)]
pub(crate) struct SettingFollower {
    rule: FollowRule,
    value: u64,
    changed: Option<Micros>,
    /// Since when there has been more room, and the least of it.
    growth_since: Option<(Micros, u64)>,
    /// What was set last and changed nothing.
    ineffective: Option<u64>,
}

impl SettingFollower {
    /// One that has `value` now.
    pub fn new(rule: FollowRule, value: u64) -> Self {
        Self { rule, value, changed: None, growth_since: None, ineffective: None }
    }

    /// The change that is due at `now`, if there is one; say [`Self::confirm`] when it is made, or [`Self::mark_ineffective`].
    pub(crate) fn due_change(&mut self, now: Micros, room: EffectiveResources) -> Option<SettingChange> {
        let FollowRule { max: most, min_interval: every, .. } = self.rule;
        let (from, fits) = (self.value, self.rule.target_value(room));
        let margin = self.rule.tolerance(from);
        let rested = self.changed.is_none_or(|at| now.saturating_sub(at) >= every);
        let change = |to| SettingChange { from, to, rule: self.rule, room };
        if fits < from && from - fits > margin {
            self.growth_since = None;
            return (rested && !self.is_ineffective(fits)).then(|| change(fits));
        }
        // The last step to what the user set may be a small one.
        if fits > from && (fits - from > margin || fits == most) {
            let (since, to) =
                self.growth_since.map_or((now, fits), |(since, least)| (since, least.min(fits)));
            self.growth_since = Some((since, to));
            let is_due = rested && now.saturating_sub(since) >= every && !self.is_ineffective(to);
            return is_due.then(|| change(to));
        }
        self.growth_since = None;
        None
    }

    /// The setting has been changed, or the attempt has failed, and is `value`.
    pub fn confirm(&mut self, now: Micros, value: u64) {
        (self.value, self.changed, self.growth_since, self.ineffective) = (value, Some(now), None, None);
    }

    /// `to` has been set, and the setting is what it was: only what is further away is tried from now on.
    pub(crate) fn mark_ineffective(&mut self, now: Micros, to: u64) {
        (self.changed, self.growth_since, self.ineffective) = (Some(now), None, Some(to));
    }

    /// Whether setting `to` would change no more than what was set in vain. A server may round, so what is further away may help.
    fn is_ineffective(&self, to: u64) -> bool {
        self.ineffective.is_some_and(|tried| {
            let further = if to < self.value { tried.saturating_sub(to) } else { to.saturating_sub(tried) };
            further == 0 || (further <= self.rule.tolerance(tried) && to != self.rule.max)
        })
    }

    /// Another program has set it: this is the most from now on.
    pub(crate) fn set_externally(&mut self, now: Micros, value: u64) {
        self.rule.max = value;
        self.confirm(now, value);
    }

    /// The value it has, as far as is known.
    pub fn value(&self) -> u64 {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: FollowRule = FollowRule {
        unit: SettingUnit::Bytes,
        percent: 50,
        min: 100,
        max: 1_000,
        min_interval: Micros::secs(10),
    };
    const WORKERS: FollowRule = FollowRule {
        unit: SettingUnit::Count,
        percent: 200,
        min: 1,
        max: 16,
        min_interval: Micros::secs(10),
    };

    fn room(cpus: u32, memory: u64) -> EffectiveResources {
        EffectiveResources { cpus, memory: Bytes(memory) }
    }

    #[test]
    fn what_fits_is_a_part_of_the_room_within_bounds() {
        for (memory, fits) in [(1_000, 500), (10_000, 1_000), (10, 100), (0, 100), (u64::MAX, 1_000)] {
            assert_eq!(SIZE.target_value(room(1, memory)), fits);
        }
        assert_eq!([0, 1, 4, 9].map(|cpus| WORKERS.target_value(room(cpus, 0))), [1, 2, 8, 16]);
        let all = FollowRule { max: u64::MAX, percent: u32::MAX, ..SIZE };
        assert_eq!(all.target_value(room(1, u64::MAX)), u64::MAX);
    }

    #[test]
    fn less_room_counts_at_once_and_more_only_when_it_stays() {
        let mut follower = SettingFollower::new(SIZE, 1_000);
        let at = Micros::secs;
        assert_eq!(follower.due_change(at(0), room(1, 4_000)), None);
        let change = follower.due_change(at(1), room(1, 1_000)).unwrap();
        assert_eq!((change.from, change.to), (1_000, 500));
        follower.confirm(at(1), 500);
        assert_eq!(follower.due_change(at(2), room(1, 600)), None, "not so soon after a change");
        assert_eq!(follower.due_change(at(11), room(1, 600)).unwrap().to, 300);
        follower.confirm(at(11), 300);
        assert_eq!(follower.due_change(at(22), room(1, 1_600)), None);
        assert_eq!(follower.due_change(at(27), room(1, 1_200)), None);
        assert_eq!(
            follower.due_change(at(32), room(1, 2_000)).unwrap().to,
            600,
            "the least of those ten seconds"
        );
        assert_eq!(follower.due_change(at(33), room(1, 610)), None, "it went away in between");
        assert_eq!(follower.due_change(at(34), room(1, 2_000)), None);
    }

    #[test]
    fn small_differences_change_no_size_but_the_way_back_is_whole() {
        let mut follower = SettingFollower::new(SIZE, 500);
        for memory in [920, 1_000, 1_090] {
            assert_eq!(follower.due_change(Micros::secs(100), room(1, memory)), None, "{memory}");
        }
        let mut near = SettingFollower::new(SIZE, 950);
        assert_eq!(near.due_change(Micros::secs(0), room(1, 5_000)), None);
        assert_eq!(near.due_change(Micros::secs(10), room(1, 5_000)).unwrap().to, 1_000);
        let mut workers = SettingFollower::new(WORKERS, 8);
        assert_eq!(workers.due_change(Micros::ZERO, room(3, 0)).unwrap().to, 6);
    }

    #[test]
    fn what_others_set_is_the_most_from_then_on() {
        let mut follower = SettingFollower::new(SIZE, 1_000);
        follower.set_externally(Micros::secs(1), 400);
        assert_eq!(follower.value(), 400);
        for at in [20, 40, 60] {
            assert_eq!(follower.due_change(Micros::secs(at), room(1, 1_000_000)), None);
        }
    }

    #[test]
    fn what_was_set_in_vain_is_not_set_again_but_what_is_further_away_is() {
        let at = Micros::secs;
        let mut follower = SettingFollower::new(SIZE, 1_000);
        assert_eq!(follower.due_change(at(0), room(1, 1_600)).unwrap().to, 800);
        follower.mark_ineffective(at(0), 800);
        for memory in [1_600, 1_700, 1_450] {
            assert_eq!(follower.due_change(at(100), room(1, memory)), None, "{memory}");
        }
        assert_eq!(follower.due_change(at(100), room(1, 1_400)).unwrap().to, 700);
        follower.confirm(at(100), 600);
        assert_eq!(follower.due_change(at(200), room(1, 1_000)).unwrap().to, 500);
        // The same upwards; what its user set is tried though it is near.
        let mut up = SettingFollower::new(SIZE, 500);
        let mut more =
            |start, memory| (start..start + 11).find_map(|s| up.due_change(at(s), room(1, memory)));
        assert_eq!(more(0, 1_900).unwrap().to, 950);
        up.mark_ineffective(at(10), 950);
        let mut more =
            |start, memory| (start..start + 11).find_map(|s| up.due_change(at(s), room(1, memory)));
        assert_eq!(more(30, 1_960), None);
        assert_eq!(more(50, 1_000), None);
        assert_eq!(more(60, 2_000).unwrap().to, 1_000);
        up.mark_ineffective(at(70), 1_000);
        assert_eq!((80..100).find_map(|s| up.due_change(at(s), room(1, 9_000))), None);
        let mut workers = SettingFollower::new(WORKERS, 8);
        assert_eq!(workers.due_change(at(0), room(1, 0)).unwrap().to, 2);
        workers.mark_ineffective(at(0), 2);
        assert_eq!(workers.due_change(at(20), room(1, 0)), None);
        workers.set_externally(at(30), 6);
        assert_eq!(workers.due_change(at(40), room(1, 0)).unwrap().to, 2);
    }

    #[test]
    fn a_change_says_why() {
        let said = |rule, from, room| {
            SettingFollower::new(rule, from).due_change(Micros::ZERO, room).unwrap().to_string()
        };
        let rule = FollowRule { max: 1 << 30, ..SIZE };
        let memory = EffectiveResources { cpus: 1, memory: Bytes::mib(128) };
        assert_eq!(said(rule, 128 << 20, memory), "128MiB -> 64MiB: 50% of 128MiB of effective memory");
        assert_eq!(said(WORKERS, 16, room(0, 0)), "16 -> 1: 200% of 0 effective CPUs, and never less than 1");
    }

    /// Whatever the room does, changes are apart, within bounds, and each is one that fits some room that was seen.
    #[test]
    fn however_the_room_changes_the_setting_is_calm_and_within_bounds() {
        let mut seed = 7u64;
        let mut follower = SettingFollower::new(SIZE, 1_000);
        let mut last = None;
        for second in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let now = Micros::secs(second);
            if let Some(change) = follower.due_change(now, room(1, (seed >> 33) % 4_000)) {
                assert!((SIZE.min..=SIZE.max).contains(&change.to) && change.to != change.from);
                assert!(last.is_none_or(|at| now.saturating_sub(at) >= SIZE.min_interval));
                last = Some(now);
                follower.confirm(now, change.to);
            }
        }
        assert!(last.is_some());
    }
}
