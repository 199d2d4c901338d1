//! Labels that containers are given while they run, by who may ask on the control socket: an orchestrator knows more of a
//! container than the engine that made it, and it knows when that changes.

use super::managed_container::AttachState;
use super::policy_loop::PolicyLoop;
use elbowroom_client::api::LabelRequest;
use elbowroom_linux::timer;
use elbowroom_types::container::ContainerIdentity;
use elbowroom_types::id::CgroupId;
use elbowroom_types::label::{ContainerLabels, LabelPolicy};
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
    /// Who gave a container its labels.
    pub(super) fn given_by(&self, id: CgroupId) -> Option<&str> {
        self.0.get(&id).map(|given| given.given_by.as_str())
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

    /// Forgets a container that is gone.
    pub(super) fn remove(&mut self, id: CgroupId) {
        self.0.remove(&id);
    }
}

impl PolicyLoop {
    /// Gives a container labels.
    pub(super) fn label(&mut self, id: CgroupId, labelling: LabelRequest) {
        let LabelRequest { by, promised, asked, for_seconds, .. } = labelling;
        let read = |labels: &BTreeMap<String, String>, heed| {
            ContainerLabels::parse(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())), heed)
        };
        let labels =
            read(&asked, self.config.containers.labels).with_defaults(read(&promised, LabelPolicy::All));
        let until = for_seconds
            .map(|seconds| timer::now().saturating_add(Micros::secs(seconds.min(u64::from(u32::MAX)))));
        let is_news = self.labels(id) != Some(&labels) || self.label_overrides.given_by(id) != Some(&by);
        self.label_overrides.0.insert(id, LabelOverride { given_by: by, labels, expires_at: until });
        if is_news {
            self.labels_changed(id);
        }
    }

    /// Gives a container the labels back that it was made with.
    pub(super) fn unlabel(&mut self, id: CgroupId) {
        if self.label_overrides.0.remove(&id).is_some() {
            self.labels_changed(id);
        }
    }

    fn labels(&self, id: CgroupId) -> Option<&ContainerLabels> {
        Some(&self.views.group(id)?.container.as_ref()?.labels)
    }

    fn labels_changed(&mut self, id: CgroupId) {
        let (Some(before), Some(raw)) = (self.labels(id).cloned(), self.memory.raw(id).cloned()) else {
            return;
        };
        let made = raw.container.as_ref().map(|container| &container.labels);
        let given = self.label_overrides.0.get(&id).map(|given| &given.labels);
        let Some(now) = given.or(made).cloned() else { return };
        tracing::info!(container = raw.path, labels = %now, by = self.label_overrides.given_by(id), "labels changed");
        for ignored in &now.ignored {
            tracing::warn!(container = raw.path, because = ignored, "a label is ignored");
        }
        self.apply(&[HostEvent::Group(raw)]);
        let Some(CgroupProperties { path, container: Some(container), .. }) = self.views.group(id) else {
            return;
        };
        if now.probe != before.probe {
            self.probes.remove_container(id);
            self.probes.add_container(id, path, container);
        }
        if now.views != before.views {
            let withheld = self.config.containers.auto_attach_refusal(container).is_some();
            self.set_view_wanted(id, !withheld);
        }
    }

    /// The group of an event that governors know as a container and are to leave alone from now on: by a label, by its new name, or
    /// because it is none.
    pub(super) fn exempted_group(&self, event: &HostEvent) -> Option<CgroupId> {
        let HostEvent::Group(CgroupProperties { id, .. }) = event else { return None };
        self.disk.container_name(*id)?;
        let labelled = self.label_overrides.apply(Cow::Borrowed(event));
        let governed = self.config.containers.mask_ungoverned(&labelled);
        matches!(governed.as_ref(), HostEvent::Group(CgroupProperties { container: None, .. })).then_some(*id)
    }

    /// Has governors forget a container that lives on: what is told of it afterwards is all they know, and limits come off.
    pub(super) fn remove_from_governors(&mut self, id: CgroupId) {
        let gone = HostEvent::Gone(id);
        self.memory.without_own_limits(&gone);
        self.disk.apply(&gone);
        let effects = self.memory.apply(&gone);
        self.apply_effects(effects);
        self.disk.remove_container(id);
    }

    /// Mounts a container's view, or takes it out.
    fn set_view_wanted(&mut self, id: CgroupId, wanted: bool) {
        let Some(resident) = self.containers.get_mut(&id) else { return };
        match (wanted, &resident.attach) {
            (true, AttachState::Disabled(_)) => resident.attach = AttachState::now(),
            (true, _) | (false, AttachState::Disabled(_)) => {}
            (false, _) => self.detach(id, None),
        }
    }
}
