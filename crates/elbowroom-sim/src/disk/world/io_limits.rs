//! The limits of one container on one disk: those of its user, of another program, and ours.

use elbowroom_govern::disk::Cap;
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{IoLimits, IoMax, LimitWriteFailure};
use elbowroom_types::sample::HostEvent;

/// One container's limits on one disk.
#[derive(Debug)]
pub(super) struct SimIoLimits {
    /// What its user set.
    pub(super) user_max: IoMax,
    /// What another program set after us: in force instead of everything.
    pub(super) foreign_max: Option<IoMax>,
    agent_max: IoMax,
    /// The weight we set.
    pub(super) weight: Option<u16>,
    /// Whether a sensor told of it.
    pub(super) is_known: bool,
}

impl Default for SimIoLimits {
    fn default() -> Self {
        Self { user_max: IoMax::MAX, foreign_max: None, agent_max: IoMax::MAX, weight: None, is_known: false }
    }
}

impl SimIoLimits {
    /// What is in force.
    pub(super) fn in_force(&self) -> IoMax {
        self.foreign_max.unwrap_or(self.user_max.min(self.agent_max))
    }

    /// What would be in force without us.
    pub(super) fn without_agent(&self) -> IoMax {
        self.foreign_max.unwrap_or(self.user_max)
    }

    /// Carries out an order, as far as the knob is ours; what became of it.
    pub(super) fn apply_cap(&mut self, cap: &Cap, lives: bool) -> HostEvent {
        let ceded = match (lives, self.foreign_max) {
            (false, _) => Some(LimitWriteFailure::Gone),
            (true, Some(_)) => Some(LimitWriteFailure::Foreign),
            (true, None) => None,
        };
        self.agent_max = if ceded.is_none() { cap.max } else { IoMax::MAX };
        if ceded.is_none() {
            self.weight = cap.weight.or(self.weight);
        }
        self.is_known = true;
        HostEvent::IoLimits(self.report(cap.group, cap.disk, ceded))
    }

    /// What a sensor says about it.
    pub(super) fn report(
        &self,
        group: CgroupId,
        disk: DeviceNumber,
        ceded: Option<LimitWriteFailure>,
    ) -> IoLimits {
        IoLimits { group, disk, user: self.without_agent(), ours: self.agent_max, ceded }
    }
}
