//! The sensor on captured hosts: what each kind of layout looks like from the outside, and how it takes what is broken.

mod changes;
mod layouts;
mod scopes;
mod ticks;

use elbowroom_linux::fixture::Fixture;
use elbowroom_linux::{Sensor, SensorConfig};
use elbowroom_types::sample::{CgroupProperties, HostEvent};
use elbowroom_types::unit::Micros;
use std::collections::HashMap;
use std::fmt::{Display, Write};

const HYBRID: &str = include_str!("../../../../tests/hosts/hybrid-docker.txt");
const MIXED: &str = include_str!("../../../../tests/hosts/mixed-podman.txt");
const UNIFIED: &str = include_str!("../../../../tests/hosts/unified-kubepods.txt");
const WEB: &str = "docker/4f1c2a9be07d53c8a6e1d4b70935fa8210c7be694d3528af71e60b9c8d2f5a34";
const BATCH: &str = "docker/0c7be694d3528af71e60b9c8d2f5a344f1c2a9be07d53c8a6e1d4b70935fa821";

fn open(archive: &str) -> (Fixture, Sensor, Vec<HostEvent>) {
    let host = Fixture::new(archive).unwrap();
    let config = SensorConfig {
        root: host.path().into(),
        rescan: Micros::secs(3_600),
        container_patterns: vec!["/batch/*".to_owned()],
        ..SensorConfig::default()
    };
    let mut sensor = Sensor::open(&config).unwrap();
    let events = sensor.start();
    (host, sensor, events)
}

fn groups(events: &[HostEvent]) -> HashMap<String, CgroupProperties> {
    let group = |event: &HostEvent| match event {
        HostEvent::Group(group) => Some((group.path.clone(), group.clone())),
        _ => None,
    };
    events.iter().filter_map(group).collect()
}

/// Adds ` name=value`, where there is a value.
fn put(text: &mut String, name: &str, value: Option<impl Display>) {
    if let Some(value) = value {
        write!(text, " {name}={value}").unwrap();
    }
}
