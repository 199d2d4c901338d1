//! Giving a running container other labels, and what follows from that: views, probes, governors.

use super::managed_container::AttachState;
use super::policy_loop::PolicyLoop;
use elbowroom_client::api::LabelRequest;
use elbowroom_linux::timer;
use elbowroom_types::id::CgroupId;
use elbowroom_types::label::{ContainerLabels, LabelPolicy};
use elbowroom_types::sample::{CgroupProperties, HostEvent};
use elbowroom_types::unit::Micros;
use std::collections::BTreeMap;

impl PolicyLoop {
    /// Gives a container labels, unless those of another program stay.
    pub(super) fn label(&mut self, id: CgroupId, labelling: LabelRequest) {
        let LabelRequest { by, promised, asked, for_seconds, keep_others, .. } = labelling;
        if keep_others && self.pipeline.labels.given_by(id).is_some_and(|other| other != by) {
            return;
        }
        let read = |labels: &BTreeMap<String, String>, policy| {
            ContainerLabels::parse(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())), policy)
        };
        let labels = read(&asked, self.config.containers.labels)
            .with_defaults(read(&promised, LabelPolicy::All).as_promised());
        let until = for_seconds
            .map(|seconds| timer::now().saturating_add(Micros::secs(seconds.min(u64::from(u32::MAX)))));
        let is_news = self.labels(id) != Some(&labels) || self.pipeline.labels.given_by(id) != Some(&by);
        self.pipeline.labels.insert(id, by, labels, until);
        if is_news {
            self.labels_changed(id);
        }
    }

    /// Gives a container the labels back that it was made with.
    pub(super) fn unlabel(&mut self, id: CgroupId) {
        if self.pipeline.labels.remove(id) {
            self.labels_changed(id);
        }
    }

    fn labels(&self, id: CgroupId) -> Option<&ContainerLabels> {
        Some(&self.views.group(id)?.container.as_ref()?.labels)
    }

    fn labels_changed(&mut self, id: CgroupId) {
        let (Some(before), Some(raw)) =
            (self.labels(id).cloned(), self.pipeline.memory_limits.raw(id).cloned())
        else {
            return;
        };
        let made = raw.container.as_ref().map(|container| &container.labels);
        let given = self.pipeline.labels.get(id);
        let Some(now) = given.or(made).cloned() else { return };
        tracing::info!(container = raw.path, labels = %now, by = self.pipeline.labels.given_by(id), "labels changed");
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

    /// Mounts a container's view, or takes it out.
    fn set_view_wanted(&mut self, id: CgroupId, wanted: bool) {
        let Some(managed) = self.containers.get_mut(&id) else { return };
        match (wanted, &managed.attach) {
            (true, AttachState::Disabled(_)) => managed.attach = AttachState::now(),
            (true, _) | (false, AttachState::Disabled(_)) => {}
            (false, _) => self.detach(id, None),
        }
    }
}
