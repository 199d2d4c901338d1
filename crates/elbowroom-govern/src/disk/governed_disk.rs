//! A disk with the containers that use it.

use super::constants::LifelineConstants;
use super::flow::IoCounters;
use super::groups::Groups;
use super::member::DiskMember;
use super::meter::{DiskLoad, DiskMeter, MeterReading};
use super::model::DeviceModel;
use super::{DiskOrder, DiskState, explain};
use crate::alert::conditions::Conditions;
use elbowroom_types::alert::AlertKind;
use elbowroom_types::id::CgroupId;
use elbowroom_types::io::{DiskProperties, DiskStat, IoMax, LimitWriteFailure};
use elbowroom_types::unit::Micros;

/// A disk with the containers that use it.
#[derive(Debug)]
pub(super) struct GovernedDisk {
    pub(super) disk: DiskProperties,
    meter: DiskMeter,
    /// What was glanced at between two periods.
    pub(super) glances: DiskMeter,
    /// Whether this tick ended a period of it.
    pub(super) measured: bool,
    /// The last period; all zero before the first.
    pub(super) load: DiskLoad,
    /// Ascending by container, so that sums do not depend on the order in which containers came.
    pub(super) members: Vec<DiskMember>,
    pub(super) state: DiskState,
    /// Lifelines and reservations together, in parts of the capacity.
    pub(super) promised: f64,
    /// The same without what containers claim for themselves.
    pub(super) promised_without_claims: f64,
    /// Why nothing is limited, where that is so by decision.
    pub(super) exempt_reason: Option<String>,
    /// What [`super::DiskPolicy::Lifeline`] knows of it.
    pub(super) model: DeviceModel,
}

impl GovernedDisk {
    pub(super) fn new(disk: &DiskProperties, remembered: Option<IoMax>, k: LifelineConstants) -> Self {
        Self {
            disk: disk.clone(),
            meter: DiskMeter::default(),
            glances: DiskMeter::default(),
            measured: false,
            load: DiskLoad::default(),
            members: Vec::new(),
            state: DiskState::Free,
            promised: 0.0,
            promised_without_claims: 0.0,
            exempt_reason: None,
            model: DeviceModel::new(disk, remembered, k),
        }
    }

    /// Takes in its counters, where there are any, and those of containers.
    pub(super) fn measure(&mut self, now: Micros, stat: Option<&DiskStat>, shortest: Micros) {
        self.measured = false;
        match stat.map_or(MeterReading::TooShort, |stat| self.meter.read(now, stat, shortest)) {
            MeterReading::TooShort => {}
            MeterReading::Restarted => self.members.iter_mut().for_each(DiskMember::rebase),
            MeterReading::Period(load) => {
                self.members.iter_mut().for_each(|member| member.measure(load.seconds, load.flow));
                (self.load, self.measured) = (load, true);
            }
        }
    }

    /// A container's state here; one that was not met starts with these counters. Where the disk was measured before, they
    /// grew since: the sensor names every container that ever used a disk in the first tick.
    pub(super) fn member_mut(&mut self, group: CgroupId, counters: Option<IoCounters>) -> &mut DiskMember {
        let at = match self.members.binary_search_by_key(&group, |member| member.group) {
            Ok(at) => at,
            Err(at) => {
                let known = counters.filter(|_| !self.meter.has_baseline());
                self.members.insert(at, DiskMember::new(group, known));
                at
            }
        };
        &mut self.members[at]
    }

    /// What is said under every policy: which containers' limits are not ours to set.
    pub(super) fn raise_limit_alerts(
        &self,
        groups: &Groups,
        alerts: &mut Conditions,
        orders: &mut Vec<DiskOrder>,
    ) {
        let number = self.disk.number;
        for member in &self.members {
            let mut set_alert = |kind, there, text: &dyn Fn() -> String| {
                let about = (kind, Some(number), Some(member.group));
                orders.extend(
                    alerts.set(about, self.load.now, there, Micros::ZERO, text).map(DiskOrder::Alert),
                );
            };
            // What may be tried again and is not is no loss.
            let ceded = member.ceded.filter(|_| !member.may_limit(self.load.now)).map(|(why, _)| why);
            let (name, disk) = (groups.name(member.group), &self.disk.name);
            set_alert(AlertKind::ForeignWriter, ceded == Some(LimitWriteFailure::Foreign), &|| {
                explain::foreign(name, disk)
            });
            let refused = ceded == Some(LimitWriteFailure::Refused);
            set_alert(AlertKind::Uncappable, refused || member.demand.is_escaping(), &|| match refused {
                true => explain::refused(name, disk),
                false => explain::escapes(name, disk),
            });
        }
    }
}
