//! Labels that containers are given while they run, by who may ask on the control socket: an orchestrator knows more of a
//! container than the engine that made it, and it knows when that changes.

use super::owner::Owner;
use super::resident::Attach;
use elbowroom_client::api::Labelling;
use elbowroom_linux::timer;
use elbowroom_types::label::{Heed, Labels};
use elbowroom_types::sample::{Container, Event, Group, GroupId};
use elbowroom_types::unit::Micros;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// What is known of labels that were given.
#[derive(Default)]
pub(super) struct Labelled(BTreeMap<GroupId, Given>);

struct Given {
    by: String,
    labels: Labels,
    /// When they lapse, on the monotonic clock.
    until: Option<Micros>,
}

impl Labelled {
    /// Who gave a container its labels.
    pub(super) fn by(&self, id: GroupId) -> Option<&str> {
        self.0.get(&id).map(|given| given.by.as_str())
    }

    /// Containers whose labels lapse.
    pub(super) fn due(&self, now: Micros) -> Vec<GroupId> {
        let lapsed = self.0.iter().filter(|(_, given)| given.until.is_some_and(|until| until <= now));
        lapsed.map(|(id, _)| *id).collect()
    }

    /// An event with the labels that count.
    pub(super) fn apply<'a>(&self, event: Cow<'a, Event>) -> Cow<'a, Event> {
        match event.as_ref() {
            Event::Group(Group { id, container: Some(container), .. }) => match self.0.get(id) {
                Some(given) => {
                    let container = Container { labels: given.labels.clone(), ..container.clone() };
                    let Event::Group(group) = event.into_owned() else { unreachable!("it is a group") };
                    Cow::Owned(Event::Group(Group { container: Some(container), ..group }))
                }
                None => event,
            },
            _ => event,
        }
    }

    /// Forgets a container that is gone.
    pub(super) fn forget(&mut self, id: GroupId) {
        self.0.remove(&id);
    }
}

impl Owner {
    /// Gives a container labels.
    pub(super) fn label(&mut self, id: GroupId, labelling: Labelling) {
        let Labelling { by, promised, asked, for_seconds, .. } = labelling;
        let read = |labels: &BTreeMap<String, String>, heed| {
            Labels::read(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())), heed)
        };
        let labels = read(&asked, self.config.containers.labels).over(read(&promised, Heed::All));
        let until = for_seconds
            .map(|seconds| timer::now().saturating_add(Micros::secs(seconds.min(u64::from(u32::MAX)))));
        let is_news = self.labels(id) != Some(&labels) || self.labelled.by(id) != Some(&by);
        self.labelled.0.insert(id, Given { by, labels, until });
        if is_news {
            self.labels_changed(id);
        }
    }

    /// Gives a container the labels back that it was made with.
    pub(super) fn unlabel(&mut self, id: GroupId) {
        if self.labelled.0.remove(&id).is_some() {
            self.labels_changed(id);
        }
    }

    fn labels(&self, id: GroupId) -> Option<&Labels> {
        Some(&self.views.group(id)?.container.as_ref()?.labels)
    }

    fn labels_changed(&mut self, id: GroupId) {
        let (Some(before), Some(raw)) = (self.labels(id).cloned(), self.memory.raw(id).cloned()) else {
            return;
        };
        let made = raw.container.as_ref().map(|container| &container.labels);
        let given = self.labelled.0.get(&id).map(|given| &given.labels);
        let Some(now) = given.or(made).cloned() else { return };
        tracing::info!(container = raw.path, labels = %now, by = self.labelled.by(id), "labels changed");
        for ignored in &now.ignored {
            tracing::warn!(container = raw.path, because = ignored, "a label is ignored");
        }
        self.apply(&[Event::Group(raw)]);
        let Some(Group { path, container: Some(container), .. }) = self.views.group(id) else { return };
        if now.probe != before.probe {
            self.voices.forget(id);
            self.voices.meet(id, path, container);
        }
        if now.views != before.views {
            let withheld = self.config.containers.withholds(container).is_some();
            self.views_wanted(id, !withheld);
        }
    }

    /// The group of an event that governors know as a container and are to leave alone from now on: by a label, by its new name, or
    /// because it is none.
    pub(super) fn left_alone(&self, event: &Event) -> Option<GroupId> {
        let Event::Group(Group { id, .. }) = event else { return None };
        self.disk.named(*id)?;
        let labelled = self.labelled.apply(Cow::Borrowed(event));
        let governed = self.config.containers.governed(&labelled);
        matches!(governed.as_ref(), Event::Group(Group { container: None, .. })).then_some(*id)
    }

    /// Has governors forget a container that lives on: what is told of it afterwards is all they know, and limits come off.
    pub(super) fn ungovern(&mut self, id: GroupId) {
        let gone = Event::Gone(id);
        self.memory.mask(&gone);
        self.disk.apply(&gone);
        let effects = self.memory.apply(&gone);
        self.take_up(effects);
        self.disk.forget(id);
    }

    /// Mounts a container's view, or takes it out.
    fn views_wanted(&mut self, id: GroupId, wanted: bool) {
        let Some(resident) = self.residents.get_mut(&id) else { return };
        match (wanted, &resident.attach) {
            (true, Attach::LetAlone(_)) => resident.attach = Attach::now(),
            (true, _) | (false, Attach::LetAlone(_)) => {}
            (false, _) => self.detach(id, None),
        }
    }
}
