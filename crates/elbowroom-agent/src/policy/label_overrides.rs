//! Labels that clients of the control socket give to running containers: an orchestrator knows more of a container than the engine that
//! made it, and it knows when that changes.

use elbowroom_types::container::ContainerIdentity;
use elbowroom_types::id::CgroupId;
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::sample::{CgroupProperties, HostEvent};
use elbowroom_types::unit::Micros;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What is known of labels that were given.
#[derive(Default)]
pub(super) struct LabelOverrides(BTreeMap<CgroupId, LabelOverride>);

struct LabelOverride {
    given_by: String,
    labels: ContainerLabels,
    /// When they lapse, on the monotonic clock.
    expires_at: Option<Micros>,
}

impl LabelOverrides {
    /// The program that gave a container its labels.
    pub(super) fn given_by(&self, id: CgroupId) -> Option<&str> {
        self.0.get(&id).map(|given| given.given_by.as_str())
    }

    /// The labels that a container was given.
    pub(super) fn get(&self, id: CgroupId) -> Option<&ContainerLabels> {
        self.0.get(&id).map(|given| &given.labels)
    }

    /// Gives a container labels, until `expires_at` on the monotonic clock.
    pub(super) fn insert(
        &mut self,
        id: CgroupId,
        given_by: String,
        labels: ContainerLabels,
        expires_at: Option<Micros>,
    ) {
        self.0.insert(id, LabelOverride { given_by, labels, expires_at });
    }

    /// Containers whose labels lapse.
    pub(super) fn expired(&self, now: Micros) -> Vec<CgroupId> {
        let lapsed = self.0.iter().filter(|(_, given)| given.expires_at.is_some_and(|until| until <= now));
        lapsed.map(|(id, _)| *id).collect()
    }

    /// An event with the labels that count.
    pub(super) fn apply<'a>(&self, event: Cow<'a, HostEvent>) -> Cow<'a, HostEvent> {
        match event.as_ref() {
            HostEvent::Group(CgroupProperties { id, container: Some(container), .. }) => match self.0.get(id)
            {
                Some(given) => {
                    let container = ContainerIdentity { labels: given.labels.clone(), ..container.clone() };
                    let HostEvent::Group(group) = event.into_owned() else { unreachable!("it is a group") };
                    Cow::Owned(HostEvent::Group(CgroupProperties { container: Some(container), ..group }))
                }
                None => event,
            },
            _ => event,
        }
    }

    /// Takes a container's labels away; whether it had any.
    pub(super) fn remove(&mut self, id: CgroupId) -> bool {
        self.0.remove(&id).is_some()
    }
}
