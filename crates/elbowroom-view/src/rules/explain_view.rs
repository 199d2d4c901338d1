//! What a container's view is made of, read from the table of views.

use super::cpu;
use super::explain::{OvercommittedCgroup, ViewExplanation, ViewInputs};
use super::views::ViewTable;
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::CgroupProperties;
use elbowroom_types::unit::{Limit, Micros};

impl ViewTable {
    /// What a container's view is made of, and its last changes.
    pub fn explain(&self, id: CgroupId) -> Option<ViewExplanation> {
        let i = *self.index.get(&id)?;
        let (slot, node) = (self.slot(i)?, self.node.as_ref()?);
        let view = slot.view?;
        let place = self.slot_of.iter().skip(1).position(|s| *s == i)? + 1;
        let entitlement = self.entitlements.get(place)?;
        let path = |group: &CgroupProperties| group.path.clone();
        let inputs = ViewInputs {
            online: node.online.count(),
            cpu_share: slot.group.limits.cpu_share,
            weight: entitlement.weight,
            weight_sum: entitlement.weight_sum,
            fair: entitlement.fair.millicpu(),
            quota: entitlement.quota,
            quota_of: entitlement.quota.value().and_then(|_| {
                let sets_it =
                    |group: &&CgroupProperties| cpu::quota(group.limits.cpu_max) == entitlement.quota;
                self.ancestors(&slot.group).find(sets_it).map(path)
            }),
            cpuset: entitlement.cpus,
            memory_hard_of: {
                let hard = Some(Limit::At(view.memory_hard));
                let lends = slot.ceiling == Limit::At(view.memory_hard);
                let sets_it =
                    self.ancestors(&slot.group).find(|group| group.limits.memory_max == hard).map(path);
                let mems = self.mems(&slot.group).unwrap_or_default();
                let is_theirs =
                    view.memory_hard < node.mem_total && view.memory_hard == node.numa_memory(Some(mems));
                sets_it
                    .or_else(|| lends.then(|| "the memory governor, while others use it".to_owned()))
                    .or_else(|| is_theirs.then(|| format!("NUMA nodes {mems}")))
            },
            period: self.period,
            used: slot.meter.used(self.cpu_period - 1),
            throttled: slot.meter.throttled(self.cpu_period - 1),
            slack: self
                .pools
                .get(slot.cpu_pool as usize)
                .map(|pool| pool.slack)
                .filter(|s| s.capacity > Micros::ZERO),
            usage: slot.meter.memory(),
            usage_before: slot.meter.memory_before(self.tick_count),
            oversold: self.tightest_overcommitted(i),
            mem_free: self.mem_free[0],
            mem_free_before: self.mem_free[1],
            low_mark: node.low_mark,
            high_mark: node.high_mark,
            growth_hold: self.growth_hold(i, node),
        };
        let rule = inputs.rule(&view);
        let changes = slot.history.iter().copied().collect();
        Some(ViewExplanation { id, path: slot.group.path.clone(), view, inputs, rule, changes })
    }

    /// The oversold group with the least left of those around a container, and what that is now.
    fn tightest_overcommitted(&self, i: u32) -> Option<OvercommittedCgroup> {
        let left = |n: u32| {
            let group = self.overcommitted[n as usize];
            let inside =
                (0..self.slots.len() as u32).filter(|i| self.overcommitted_ancestors(*i).any(|m| m == n));
            Some(OvercommittedCgroup {
                path: self.slot(group.slot)?.group.path.clone(),
                limit: group.limit,
                left: group.limit.saturating_sub(inside.map(|i| self.committed_memory(i)).sum()),
            })
        };
        self.overcommitted_ancestors(i).filter_map(left).min_by_key(|group| group.left)
    }
}
