//! What an agent's snapshot says about room. Only what is needed is read: an agent of another version may say more.

use crate::fleet::resources::{NodeDisk, NodeResources};
use anyhow::{Context, Result};
use elbowroom_govern::memory::lendable;
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::{Bytes, Millicpu};
use serde::{Deserialize, Serialize};

/// What is kept of one node, which may say anything: alerts,
pub(super) const MAX_ALERTS: usize = 1_000;
/// disks,
pub(super) const MAX_DISKS: usize = 256;
/// and characters of a name.
const MAX_NAME_LEN: usize = 128;

/// Where it is asked for.
pub(crate) const SNAPSHOT_PATH: &str = "/api/v1/snapshot";

/// One look at one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeReading {
    /// When, in milliseconds since 1970 by that node's clock; `None` where the node does not say.
    pub time_unix_ms: Option<u64>,
    /// Version of its agent.
    pub version: String,
    /// Containers it knows.
    pub containers: u64,
    /// What it has.
    pub room: NodeResources,
    /// What is wrong there, by kind, the worst first; a kind as often as it lasts.
    pub alerts: Vec<String>,
}

#[derive(Deserialize)]
struct NodeSnapshot {
    time_unix_ms: u64,
    node: SnapshotNode,
    status: SnapshotStatus,
    containers: Vec<SnapshotContainer>,
    disks: SnapshotDisks,
    memory: SnapshotMemory,
    #[serde(default)]
    alerts: SnapshotAlerts,
}

#[derive(Deserialize)]
struct SnapshotNode {
    cpus: u32,
    cpu_used_millicpu: Option<u64>,
    memory_total: Bytes,
    memory_free: Option<Bytes>,
    /// Agents before it was there do not say it.
    #[serde(default)]
    memory_available: Option<Bytes>,
}

#[derive(Deserialize)]
struct SnapshotStatus {
    version: String,
}

#[derive(Deserialize)]
struct SnapshotContainer {
    view: SnapshotView,
    memory: Option<SnapshotContainerMemory>,
}

#[derive(Deserialize)]
struct SnapshotView {
    millicpu: Millicpu,
}

#[derive(Deserialize)]
struct SnapshotContainerMemory {
    usage: Bytes,
    reservation: Bytes,
}

#[derive(Deserialize)]
struct SnapshotDisks {
    disks: Vec<SnapshotDisk>,
}

#[derive(Deserialize)]
struct SnapshotDisk {
    name: String,
    capacity: IoMax,
    used: Option<f64>,
    promised: f64,
}

#[derive(Deserialize)]
struct SnapshotMemory {
    pools: Vec<SnapshotPool>,
}

#[derive(Deserialize)]
struct SnapshotPool {
    path: String,
    free: Bytes,
    reserved: Bytes,
    short: bool,
}

#[derive(Default, Deserialize)]
struct SnapshotAlerts {
    lasting: Vec<SnapshotAlert>,
}

#[derive(Deserialize)]
struct SnapshotAlert {
    kind: String,
    severity: String,
}

/// Reads the JSON of a snapshot.
///
/// # Errors
/// What is not JSON, or lacks a number that is needed, by its name and place.
pub fn read(json: &[u8]) -> Result<NodeReading> {
    let snapshot: NodeSnapshot =
        serde_json::from_slice(json).context("its snapshot: is its agent of another version?")?;
    let machine = snapshot.memory.pools.iter().find(|pool| pool.path == "/");
    let statuses = snapshot.containers.iter().filter_map(|c| c.memory.as_ref());
    let statuses = statuses.map(|status| (status.reservation, status.usage));
    let node = &snapshot.node;
    // A governor that is off measures nothing: what could be had of the machine is all that is known then.
    let free = machine.map(|pool| pool.free).or(node.memory_available).or(node.memory_free);
    let mut alerts = snapshot.alerts.lasting;
    alerts.sort_by_key(|alert| (alert.severity != "critical", alert.severity == "info"));
    let room = NodeResources {
        cpu: Millicpu::cpus(node.cpus.into()),
        cpu_used: node.cpu_used_millicpu.map(Millicpu),
        cpu_effective: Millicpu(
            snapshot.containers.iter().fold(0, |sum, c| sum.saturating_add(c.view.millicpu.get())),
        ),
        memory: node.memory_total,
        memory_used: node
            .memory_available
            .or(node.memory_free)
            .map(|left| node.memory_total.saturating_sub(left)),
        memory_reserved: machine.map_or(Bytes::ZERO, |pool| pool.reserved),
        memory_free: free.map(|free| lendable(free, statuses)),
        memory_short: machine.is_some_and(|pool| pool.short),
        disks: snapshot.disks.disks.into_iter().take(MAX_DISKS).map(disk_room).collect(),
    };
    Ok(NodeReading {
        time_unix_ms: Some(snapshot.time_unix_ms),
        version: name(&snapshot.status.version),
        containers: snapshot.containers.len() as u64,
        room,
        alerts: alerts.into_iter().take(MAX_ALERTS).map(|alert| name(&alert.kind)).collect(),
    })
}

fn disk_room(disk: SnapshotDisk) -> NodeDisk {
    let SnapshotDisk { name: of, capacity, used, promised } = disk;
    NodeDisk { name: name(&of), capacity, used, promised }
}

/// What of a node's word for something is kept.
pub(super) fn name(word: &str) -> String {
    word.chars().take(MAX_NAME_LEN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn snapshot() -> Value {
        json!({
            "time_unix_ms": 5,
            "node": { "cpus": 4, "cpu_used_millicpu": 1500, "memory_total": 100, "memory_free": 40, "new": {} },
            "status": { "version": "9" },
            "containers": [
                { "view": { "millicpu": 2000 }, "memory": { "usage": 10, "reservation": 25 } },
                { "view": { "millicpu": 2500 }, "memory": null },
            ],
            "disks": { "disks": [{
                "name": "sda", "used": null, "promised": 0.5,
                "capacity": { "rbps": { "at": 7 }, "wbps": "max", "riops": "max", "wiops": "max" },
            }] },
            "memory": { "pools": [{ "path": "/", "free": 30, "reserved": 25, "short": false }] },
            "alerts": { "lasting": [
                { "kind": "FINDING", "severity": "info" }, { "kind": "NEW", "severity": "warning" }, { "kind": "STARVED", "severity": "critical" },
            ] },
        })
    }

    #[test]
    fn what_is_read_is_in_the_apis_document() {
        let document = include_str!("../../../elbowroom-agent/src/http/openapi.json");
        let document: Value = serde_json::from_str(document).unwrap();
        for (schema, fields) in [
            (
                "AgentSnapshot",
                &["time_unix_ms", "node", "status", "containers", "disks", "memory", "alerts"][..],
            ),
            ("NodeView", &["cpus", "cpu_used_millicpu", "memory_total", "memory_free", "memory_available"]),
            ("AgentStatus", &["version"]),
            ("ContainerView", &["view", "memory"]),
            ("View", &["millicpu"]),
            ("ContainerMemoryStatus", &["usage", "reservation"]),
            ("DisksReport", &["disks"]),
            ("DiskView", &["name", "capacity", "used", "promised"]),
            ("MemoryReport", &["pools"]),
            ("PoolView", &["path", "free", "reserved", "short"]),
            ("AlertsReport", &["lasting"]),
            ("AlertView", &["kind", "severity"]),
        ] {
            for field in fields {
                let there = &document["components"]["schemas"][schema]["properties"][field];
                assert!(!there.is_null(), "{schema}.{field}");
            }
        }
    }

    #[test]
    fn what_can_be_called_back_is_not_free() {
        let reading = read(snapshot().to_string().as_bytes()).unwrap();
        assert_eq!(reading.room.memory_free, Some(Bytes(15)));
        assert_eq!(reading.room.memory_used, Some(Bytes(60)));
        assert_eq!((reading.room.cpu, reading.room.cpu_effective), (Millicpu(4_000), Millicpu(4_500)));
        assert_eq!(reading.alerts, ["STARVED", "NEW", "FINDING"]);
        assert_eq!((reading.containers, reading.version.as_str()), (2, "9"));
    }

    #[test]
    fn without_a_governor_the_machine_says_what_is_free() {
        let mut json = snapshot();
        json["memory"]["pools"] = json!([]);
        assert_eq!(read(json.to_string().as_bytes()).unwrap().room.memory_free, Some(Bytes(25)));
        json["node"]["memory_available"] = json!(60);
        assert_eq!(
            read(json.to_string().as_bytes()).unwrap().room.memory_free,
            Some(Bytes(45)),
            "cache is no use"
        );
        assert_eq!(read(json.to_string().as_bytes()).unwrap().room.memory_used, Some(Bytes(40)));
        json["node"]["memory_available"] = Value::Null;
        json["node"]["memory_free"] = Value::Null;
        assert_eq!(read(json.to_string().as_bytes()).unwrap().room.memory_free, None);
    }

    #[test]
    fn of_a_node_that_says_more_than_there_can_be_a_bounded_part_is_kept() {
        let mut json = snapshot();
        let long = "x".repeat(1 << 20);
        json["status"]["version"] = json!(long);
        let disk = json["disks"]["disks"][0].clone();
        json["disks"]["disks"] = json!(vec![disk; 5_000]);
        json["disks"]["disks"][0]["name"] = json!(long);
        json["alerts"]["lasting"] = json!(vec![json!({ "kind": long, "severity": "info" }); 3]);
        let reading = read(json.to_string().as_bytes()).unwrap();
        assert_eq!(reading.room.disks.len(), MAX_DISKS);
        for word in [&reading.version, &reading.room.disks[0].name, &reading.alerts[2]] {
            assert_eq!(word.len(), MAX_NAME_LEN);
        }
        json["alerts"]["lasting"] = json!(vec![json!({ "kind": "NEW", "severity": "info" }); 5_000]);
        assert_eq!(read(json.to_string().as_bytes()).unwrap().alerts.len(), MAX_ALERTS);
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut json = snapshot();
        json["node"].as_object_mut().unwrap().remove("memory_total");
        let error = elbowroom_client::output::one_line(&read(json.to_string().as_bytes()).unwrap_err());
        assert!(error.contains("memory_total") && error.contains("another version"), "{error}");
        assert!(read(b"<html>").is_err() && read(b"").is_err() && read(&[b'['; 1 << 20]).is_err());
    }
}
