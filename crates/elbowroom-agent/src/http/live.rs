//! What the API answers beyond the types of the control protocol.

use elbowroom_client::api::{AgentSnapshot, AlertView};
use elbowroom_types::container::ContainerEngine;
use elbowroom_types::unit::Bytes;
use elbowroom_types::verdict::Verdict;
use serde::Serialize;

/// `event: snapshot` of the stream: what a screen of many containers needs each second, and no more.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LiveSnapshot<'a> {
    /// When, in milliseconds since 1970.
    at: u64,
    /// The machine.
    node: LiveNode,
    /// Every container.
    containers: Vec<LiveContainer<'a>>,
    /// Those that ended within the last hour, the last one first.
    ended: Vec<EndedContainer<'a>>,
}

/// A container that ended, in [`LiveSnapshot`].
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct EndedContainer<'a> {
    id: &'a str,
    name: Option<&'a str>,
    /// When, in milliseconds since 1970.
    ended_unix_ms: Option<u64>,
    verdict: &'a Verdict,
}

/// The machine in [`LiveSnapshot`]. CPUs, bytes, and bytes per second.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LiveNode {
    cpus: u32,
    /// Of the whole machine over the last second.
    cpu_used: Option<f64>,
    memory_total: u64,
    memory_used: Option<u64>,
    memory_free: Option<u64>,
    /// Of all governed disks together; none where none is governed.
    disk_read: Option<u64>,
    disk_write: Option<u64>,
    containers: usize,
    attached: usize,
    /// Alerts that last.
    alerts: usize,
}

/// A container in [`LiveSnapshot`]. CPUs, bytes, and bytes per second.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LiveContainer<'a> {
    id: &'a str,
    name: Option<&'a str>,
    engine: ContainerEngine,
    attached: bool,
    cpu_effective: f64,
    cpu_lower: u32,
    cpu_upper: u32,
    cpu_used: f64,
    memory_effective: u64,
    memory_hard: u64,
    memory_used: u64,
    /// What others use of its memory; none while memory is not governed.
    memory_lent: Option<u64>,
    /// Over all disks it uses.
    disk_read: u64,
    disk_write: u64,
    /// What its quota held back; none where it has no quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_throttled: Option<f64>,
    /// Parts of the last seconds that a task waited; none where the kernel does not count it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_pressure: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_pressure: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    io_pressure: Option<f64>,
    /// Memory that was reclaimed and came back, a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_refault: Option<u64>,
    /// How often the kernel killed in it so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_kills: Option<u64>,
    /// How it is doing, why, and what helps.
    verdict: &'a Verdict,
}

/// `event: alert` of the stream.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LiveAlert<'a> {
    /// Whether it began; else it ended.
    pub(crate) began: bool,
    /// The alert itself.
    #[serde(flatten)]
    pub(crate) alert: &'a AlertView,
}

impl<'a> From<&'a AgentSnapshot> for LiveSnapshot<'a> {
    fn from(snapshot: &'a AgentSnapshot) -> Self {
        let (node, disks) = (&snapshot.node, &snapshot.disks.disks);
        let sum = |rate: fn(&elbowroom_govern::disk::DiskView) -> u64| {
            (!disks.is_empty()).then(|| disks.iter().map(rate).sum())
        };
        Self {
            at: snapshot.time_unix_ms,
            node: LiveNode {
                cpus: node.cpus,
                cpu_used: node.cpu_used_millicpu.map(cpus),
                memory_total: node.memory_total.get(),
                memory_used: node.memory_used().map(Bytes::get),
                memory_free: node.memory_free.map(Bytes::get),
                disk_read: sum(|disk| disk.rbps),
                disk_write: sum(|disk| disk.wbps),
                containers: snapshot.status.containers,
                attached: snapshot.status.attached,
                alerts: lasting_alerts(snapshot).count(),
            },
            containers: snapshot.containers.iter().map(live_container).collect(),
            ended: snapshot.ended.iter().map(ended_container).collect(),
        }
    }
}

fn ended_container(container: &elbowroom_client::api::ContainerView) -> EndedContainer<'_> {
    EndedContainer {
        id: &container.id,
        name: container.name.as_deref(),
        ended_unix_ms: container.ended_unix_ms,
        verdict: &container.verdict,
    }
}

fn live_container(container: &elbowroom_client::api::ContainerView) -> LiveContainer<'_> {
    let view = &container.view;
    let pressure = container.memory.as_ref().map(|status| status.pressure);
    LiveContainer {
        id: &container.id,
        name: container.name.as_deref(),
        engine: container.engine,
        attached: container.attached,
        cpu_effective: cpus(view.millicpu.get()),
        cpu_lower: view.cpus_lower,
        cpu_upper: view.cpus_upper,
        cpu_used: cpus(container.cpu_used_millicpu),
        memory_effective: view.memory.get(),
        memory_hard: view.memory_hard.get(),
        memory_used: container.usage.memory.get(),
        memory_lent: container.memory.as_ref().map(|status| status.lent.get()),
        disk_read: container.disk.iter().map(|status| status.rbps).sum(),
        disk_write: container.disk.iter().map(|status| status.wbps).sum(),
        cpu_throttled: container.cpu_throttled_millicpu.map(cpus),
        cpu_pressure: container.cpu_pressure,
        memory_pressure: pressure.and_then(|pressure| pressure.memory_some),
        io_pressure: pressure.and_then(|pressure| pressure.io_some),
        memory_refault: pressure.map(|pressure| pressure.refault.get()),
        oom_kills: pressure.map(|pressure| pressure.oom_kill),
        verdict: &container.verdict,
    }
}

/// Every alert that lasts.
pub(crate) fn lasting_alerts(snapshot: &AgentSnapshot) -> impl Iterator<Item = &AlertView> {
    snapshot.alerts.lasting.iter()
}

/// Thousandths as CPUs.
pub(crate) fn cpus(millicpu: u64) -> f64 {
    millicpu as f64 / 1_000.0
}
