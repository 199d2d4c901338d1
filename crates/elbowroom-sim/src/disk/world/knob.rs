//! The limits of one container on one disk, and who set them.

use elbowroom_govern::disk::Cap;
use elbowroom_types::sample::{Ceded, DeviceNumber, Event, GroupId, IoLimits, IoMax};

/// One container's limits on one disk.
#[derive(Debug)]
pub(super) struct Knob {
    /// What its user set.
    pub(super) user: IoMax,
    /// What somebody else set after us: in force instead of everything.
    pub(super) foreign: Option<IoMax>,
    ours: IoMax,
    /// The weight we set.
    pub(super) weight: Option<u16>,
    /// Whether a sensor told of it.
    pub(super) is_known: bool,
}

impl Default for Knob {
    fn default() -> Self {
        Self { user: IoMax::MAX, foreign: None, ours: IoMax::MAX, weight: None, is_known: false }
    }
}

impl Knob {
    /// What is in force.
    pub(super) fn in_force(&self) -> IoMax {
        self.foreign.unwrap_or(self.user.min(self.ours))
    }

    /// What would be in force without us.
    pub(super) fn theirs(&self) -> IoMax {
        self.foreign.unwrap_or(self.user)
    }

    /// Carries out an order, as far as the knob is ours; what became of it.
    pub(super) fn set(&mut self, cap: &Cap, lives: bool) -> Event {
        let ceded = match (lives, self.foreign) {
            (false, _) => Some(Ceded::Gone),
            (true, Some(_)) => Some(Ceded::Foreign),
            (true, None) => None,
        };
        self.ours = if ceded.is_none() { cap.max } else { IoMax::MAX };
        if ceded.is_none() {
            self.weight = cap.weight.or(self.weight);
        }
        self.is_known = true;
        Event::IoLimits(self.tell(cap.group, cap.disk, ceded))
    }

    /// What a sensor says about it.
    pub(super) fn tell(&self, group: GroupId, disk: DeviceNumber, ceded: Option<Ceded>) -> IoLimits {
        IoLimits { group, disk, user: self.theirs(), ours: self.ours, ceded }
    }
}
