//! The one way of events into the rules.
//!
//! Problem: what a container is comes from many mouths. The sensor reads its limits, but some of them are ours; its engine gave it
//! labels, but an orchestrator may have given others since; the operator may have excluded it.
//!
//! Approach: every [`HostEvent`], from any source, passes [`EventPipeline::resolve`] before any rule sees it. That removes our own
//! limits of memory and disks, and adds the labels that count. Views see the result. Governors see it after
//! [`EventPipeline::for_governors`], where a container that is excluded is one of the host's own services.
//!
//! What stays true: [`PolicyLoop::apply`] is the only caller, so there is no other way from an event to views and governors, and the
//! pipeline decides nothing. Beside events, the disk governor glances at `/proc/diskstats`: of whole disks, which no overlay concerns.
//!
//! [`PolicyLoop::apply`]: super::policy_loop::PolicyLoop::apply

use super::io_limit_overlay::IoLimitOverlay;
use super::label_overrides::LabelOverrides;
use super::user_limit_overlay::UserLimitOverlay;
use crate::config::ContainerSettings;
use elbowroom_types::id::CgroupId;
use elbowroom_types::sample::{CgroupProperties, HostEvent};
use std::borrow::Cow;

/// What is known beside an event of the container it is about.
pub(super) struct EventPipeline {
    pub(super) memory_limits: UserLimitOverlay,
    pub(super) io_limits: IoLimitOverlay,
    pub(super) labels: LabelOverrides,
    containers: ContainerSettings,
}

impl EventPipeline {
    pub(super) fn new(containers: ContainerSettings) -> Self {
        Self {
            memory_limits: UserLimitOverlay::default(),
            io_limits: IoLimitOverlay::default(),
            labels: LabelOverrides::default(),
            containers,
        }
    }

    /// An event as views may know it; `None` where it says nothing new once ours is taken out.
    pub(super) fn resolve<'a>(&mut self, event: &'a HostEvent) -> Option<Cow<'a, HostEvent>> {
        let without_own_io = self.io_limits.apply(event)?;
        match without_own_io {
            Cow::Borrowed(event) => Some(self.labels.apply(self.memory_limits.apply(event))),
            // Limits of disks have no labels.
            own => Some(own),
        }
    }

    /// The same event as governors may know it.
    pub(super) fn for_governors<'a>(&self, resolved: &'a HostEvent) -> Cow<'a, HostEvent> {
        self.containers.mask_ungoverned(resolved)
    }

    /// What governors are told of a container that is theirs no longer and lives on. Its limits count as the user's again.
    pub(super) fn leaves_governors(&mut self, id: CgroupId) -> HostEvent {
        let gone = HostEvent::Gone(id);
        self.memory_limits.apply(&gone);
        self.io_limits.remove_group(id);
        gone
    }

    /// The group of an event that governors must not know as a container: by a label, by its name, or because it is none.
    pub(super) fn ungoverned_group(&self, event: &HostEvent) -> Option<CgroupId> {
        let HostEvent::Group(CgroupProperties { id, .. }) = event else { return None };
        let labelled = self.labels.apply(Cow::Borrowed(event));
        let governed = self.containers.mask_ungoverned(&labelled);
        matches!(governed.as_ref(), HostEvent::Group(CgroupProperties { container: None, .. })).then_some(*id)
    }
}
