//! What containers and disks are called in what is told of them, also after they went.

use elbowroom_client::api::ContainerRef;
use elbowroom_types::id::{CgroupId, DeviceNumber};
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// How long the name of a container that is gone is known, if nothing shown is about it: what ended with it is told by then.
const NAME_TTL: Micros = Micros::secs(60);

/// Names by number.
#[derive(Debug, Default)]
pub(super) struct NameRegistry {
    containers: BTreeMap<CgroupId, ContainerRef>,
    /// Those of them that are gone, since when.
    gone: BTreeMap<CgroupId, Micros>,
    disks: BTreeMap<DeviceNumber, String>,
}

impl NameRegistry {
    /// Learns what things are called.
    pub(super) fn apply(&mut self, event: &HostEvent, now: Micros) {
        match event {
            HostEvent::Group(group) => match &group.container {
                Some(container) => {
                    let (id, name) = (container.id.clone(), container.name.clone());
                    self.containers.insert(group.id, ContainerRef { id, name, path: group.path.clone() });
                    self.gone.remove(&group.id);
                }
                None => {
                    self.containers.remove(&group.id);
                    self.gone.remove(&group.id);
                }
            },
            HostEvent::Gone(id) if self.containers.contains_key(id) => drop(self.gone.insert(*id, now)),
            HostEvent::Disk(disk) => drop(self.disks.insert(disk.number, disk.name.clone())),
            _ => {}
        }
    }

    /// Forgets containers that are gone and that nothing `shown` is about.
    pub(super) fn prune(&mut self, now: Micros, shown: impl Iterator<Item = CgroupId>) {
        if self.gone.is_empty() {
            return;
        }
        let shown: BTreeSet<CgroupId> = shown.collect();
        let Self { gone, containers, .. } = self;
        gone.retain(|id, since| {
            let keep = now.saturating_sub(*since) < NAME_TTL || shown.contains(id);
            if !keep {
                containers.remove(id);
            }
            keep
        });
    }

    /// How many containers are there.
    pub(super) fn live_containers(&self) -> usize {
        self.containers.len() - self.gone.len()
    }

    pub(super) fn container(&self, id: CgroupId) -> Option<&ContainerRef> {
        self.containers.get(&id)
    }

    pub(super) fn disk(&self, number: DeviceNumber) -> Option<&String> {
        self.disks.get(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
    use elbowroom_types::label::ContainerLabels;
    use elbowroom_types::sample::{CgroupProperties, CgroupSettings};

    #[test]
    fn a_name_is_known_for_a_minute_and_as_long_as_something_shown_is_about_it() {
        let mut names = NameRegistry::default();
        for id in 0..1_000 {
            let container = ContainerIdentity {
                id: format!("c{id}"),
                name: None,
                engine: ContainerEngine::Docker,
                pod: None,
                labels: ContainerLabels::default(),
            };
            let group = CgroupProperties {
                id: CgroupId(id),
                parent: None,
                path: format!("/docker/{id}"),
                container: Some(container),
                limits: CgroupSettings::default(),
                populated: true,
                made_by_user: false,
            };
            names.apply(&HostEvent::Group(group), Micros::secs(1));
            if id > 0 {
                names.apply(&HostEvent::Gone(CgroupId(id)), Micros::secs(2));
            }
        }
        assert_eq!(names.live_containers(), 1);
        let known =
            |names: &NameRegistry| (0..1_000).filter(|id| names.container(CgroupId(*id)).is_some()).count();
        names.prune(Micros::secs(61), std::iter::empty());
        assert_eq!(known(&names), 1_000);
        names.prune(Micros::secs(63), [CgroupId(7)].into_iter());
        assert_eq!((known(&names), names.live_containers()), (2, 1));
        assert_eq!(names.container(CgroupId(7)).unwrap().id, "c7");
        names.prune(Micros::secs(64), std::iter::empty());
        assert_eq!((known(&names), names.gone.len()), (1, 0));
    }
}
