//! What containers and disks are called in what is told of them, also after they went.

use elbowroom_client::api::Named;
use elbowroom_types::sample::{DeviceNumber, Event, GroupId};
use elbowroom_types::unit::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// How long the name of a container that is gone is known, if nothing shown is about it: what ended with it is told by then.
const KEPT: Micros = Micros::secs(60);

/// Names by number.
#[derive(Debug, Default)]
pub(super) struct Names {
    containers: BTreeMap<GroupId, Named>,
    /// Those of them that are gone, since when.
    gone: BTreeMap<GroupId, Micros>,
    disks: BTreeMap<DeviceNumber, String>,
}

impl Names {
    /// Learns what things are called.
    pub(super) fn apply(&mut self, event: &Event, now: Micros) {
        match event {
            Event::Group(group) => match &group.container {
                Some(container) => {
                    let (id, name) = (container.id.clone(), container.name.clone());
                    self.containers.insert(group.id, Named { id, name, path: group.path.clone() });
                    self.gone.remove(&group.id);
                }
                None => {
                    self.containers.remove(&group.id);
                    self.gone.remove(&group.id);
                }
            },
            Event::Gone(id) if self.containers.contains_key(id) => drop(self.gone.insert(*id, now)),
            Event::Disk(disk) => drop(self.disks.insert(disk.number, disk.name.clone())),
            _ => {}
        }
    }

    /// Forgets containers that are gone and that nothing `shown` is about.
    pub(super) fn forget(&mut self, now: Micros, shown: impl Iterator<Item = GroupId>) {
        if self.gone.is_empty() {
            return;
        }
        let shown: BTreeSet<GroupId> = shown.collect();
        let Self { gone, containers, .. } = self;
        gone.retain(|id, since| {
            let keep = now.saturating_sub(*since) < KEPT || shown.contains(id);
            if !keep {
                containers.remove(id);
            }
            keep
        });
    }

    /// How many containers are there.
    pub(super) fn living(&self) -> usize {
        self.containers.len() - self.gone.len()
    }

    pub(super) fn container(&self, id: GroupId) -> Option<&Named> {
        self.containers.get(&id)
    }

    pub(super) fn disk(&self, number: DeviceNumber) -> Option<&String> {
        self.disks.get(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::label::Labels;
    use elbowroom_types::sample::{Container, Engine, Group, Limits};

    #[test]
    fn a_name_is_known_for_a_minute_and_as_long_as_something_shown_is_about_it() {
        let mut names = Names::default();
        for id in 0..1_000 {
            let container = Container {
                id: format!("c{id}"),
                name: None,
                engine: Engine::Docker,
                pod: None,
                labels: Labels::default(),
            };
            let group = Group {
                id: GroupId(id),
                parent: None,
                path: format!("/docker/{id}"),
                container: Some(container),
                limits: Limits::default(),
                populated: true,
            };
            names.apply(&Event::Group(group), Micros::secs(1));
            if id > 0 {
                names.apply(&Event::Gone(GroupId(id)), Micros::secs(2));
            }
        }
        assert_eq!(names.living(), 1);
        let known = |names: &Names| (0..1_000).filter(|id| names.container(GroupId(*id)).is_some()).count();
        names.forget(Micros::secs(61), std::iter::empty());
        assert_eq!(known(&names), 1_000);
        names.forget(Micros::secs(63), [GroupId(7)].into_iter());
        assert_eq!((known(&names), names.living()), (2, 1));
        assert_eq!(names.container(GroupId(7)).unwrap().id, "c7");
        names.forget(Micros::secs(64), std::iter::empty());
        assert_eq!((known(&names), names.gone.len()), (1, 0));
    }
}
