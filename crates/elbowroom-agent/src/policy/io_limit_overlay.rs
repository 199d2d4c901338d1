//! What a container's user set on disks, where limits of ours are in its place: governors know only that.

use super::pending_limits::GroupDisk;
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::io::{IoLimits, IoMax};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Limit;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Where limits of ours are in force, or were ceded, as the limiter answered last.
#[derive(Default)]
pub(super) struct IoLimitOverlay {
    in_force: BTreeMap<GroupDisk, IoLimits>,
    overwritten: Vec<GroupDisk>,
}

impl IoLimitOverlay {
    /// An event without anything of ours; `None` where that is all it told of.
    pub(super) fn apply<'a>(&mut self, event: &'a HostEvent) -> Option<Cow<'a, HostEvent>> {
        let HostEvent::IoLimits(limits) = event else { return Some(Cow::Borrowed(event)) };
        // The limiter's events name our limits; the sensor's do not.
        let is_sensed = limits.ours == IoMax::MAX && limits.ceded.is_none();
        let place = (limits.group, limits.disk);
        let Some(known) = self.in_force.get_mut(&place).filter(|_| is_sensed) else {
            return Some(Cow::Borrowed(event));
        };
        let FoundLimits { user, foreign } = FoundLimits::compare(known, limits.user);
        if foreign {
            self.overwritten.push(place);
        }
        (user != known.user).then(|| {
            known.user = user;
            Cow::Owned(HostEvent::IoLimits(*known))
        })
    }

    /// The limiter answered for a container and a disk that are governed.
    pub(super) fn on_reply(&mut self, limits: IoLimits) {
        let place = (limits.group, limits.disk);
        if limits.ours == IoMax::MAX && limits.ceded.is_none() {
            self.in_force.remove(&place);
        } else {
            self.in_force.insert(place, limits);
        }
    }

    /// Where another program has written over a limit of ours since the last call: the lease is compared again there.
    pub(super) fn take_overwritten(&mut self) -> Vec<GroupDisk> {
        std::mem::take(&mut self.overwritten)
    }

    /// Forgets a container.
    pub(super) fn remove_group(&mut self, group: CgroupId) {
        self.in_force.retain(|(of, _), _| *of != group);
    }

    /// Forgets a disk that is not governed any more.
    pub(super) fn remove_disk(&mut self, disk: DeviceNumber) {
        self.in_force.retain(|(_, on), _| *on != disk);
    }

    #[cfg(test)]
    pub(super) fn user(&self, group: CgroupId, disk: DeviceNumber) -> Option<IoMax> {
        self.in_force.get(&(group, disk)).map(|limits| limits.user)
    }
}

/// What the sensor finds, beside what was told of a container.
#[derive(Debug, PartialEq)]
struct FoundLimits {
    /// What its user has set.
    user: IoMax,
    /// Whether a knob of ours has another value than ours.
    foreign: bool,
}

impl FoundLimits {
    fn compare(told: &IoLimits, found: IoMax) -> Self {
        let mut foreign = false;
        let mut user = |ours: Limit<u64>, user, found| match ours {
            Limit::Max => found,
            ours => {
                foreign |= found != ours;
                user
            }
        };
        let IoLimits { ours, user: before, .. } = told;
        let user = IoMax {
            rbps: user(ours.rbps, before.rbps, found.rbps),
            wbps: user(ours.wbps, before.wbps, found.wbps),
            riops: user(ours.riops, before.riops, found.riops),
            wiops: user(ours.wiops, before.wiops, found.wiops),
        };
        Self { user, foreign }
    }
}
