//! The same from Prometheus, which has scraped the agents: one instant query (its HTTP API, `/api/v1/query`).

use super::NodeReadings;
use super::address::{FleetNode, NodeAddress};
use super::fetch::FleetClient;
use super::reading::{MAX_ALERTS, MAX_DISKS, NodeReading, name};
use crate::fleet::resources::{NodeDisk, NodeResources};
use anyhow::{Context, Result, anyhow, ensure};
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::{Bytes, Limit, Millicpu};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Longest answer, in bytes: some ten thousand nodes.
pub(super) const MAX_RESPONSE_BYTES: usize = 256 << 20;

/// What is asked: the numbers of nodes and disks, what containers see, when a node was scraped, and which nodes had numbers within
/// an hour and have none any more. `fleet` is a label of ours, for what has no name.
const QUERY: &str = r#"{__name__=~"elbowroom_info|elbowroom_containers|elbowroom_alerts|elbowroom_node_.+|elbowroom_disk_(capacity_.+|used_ratio|promised_ratio)"}
 or label_replace(sum by (instance) (elbowroom_container_cpu_effective), "fleet", "effective", "", "")
 or label_replace(timestamp(elbowroom_node_cpus), "fleet", "time", "", "")
 or label_replace(count by (instance) (last_over_time(elbowroom_node_cpus[1h])) unless count by (instance) (elbowroom_node_cpus), "fleet", "gone", "", "")"#;

#[derive(Deserialize)]
struct QueryResponse {
    data: QueryData,
}

#[derive(Deserialize)]
struct QueryData {
    result: Vec<QuerySample>,
}

#[derive(Deserialize)]
struct QuerySample {
    metric: BTreeMap<String, String>,
    /// When, in seconds since 1970, and how much, in words.
    value: (f64, String),
}

/// Samples of one name that are kept of a node: a node exports what it likes, and is one of many here.
const MAX_SAMPLES: usize = 4 * MAX_DISKS;

/// A value with its labels.
type LabelledValue = (BTreeMap<String, String>, f64);
/// The values of one node, by their names.
type InstanceSamples = BTreeMap<String, Vec<LabelledValue>>;

/// `http://HOST:PORT[/PREFIX]`: where, and what its paths begin with.
pub(super) fn parse_server(address: &str) -> Result<(NodeAddress, String)> {
    let malformed =
        || format!("--prometheus: {address:?} is no address: write for example http://prometheus:9090");
    let (scheme, rest) = address.split_once("://").with_context(malformed)?;
    let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    ensure!(matches!(scheme, "http" | "https"), malformed());
    let word = format!("{scheme}://{host}");
    let mut nodes = super::address::parse_nodes(&[word], None).with_context(malformed)?;
    let prefix = prefix.trim_end_matches('/');
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._~/%".contains(c);
    ensure!(prefix.chars().all(fits), malformed());
    let way = nodes.pop().expect("one address is one node").address;
    Ok((way, if prefix.is_empty() { String::new() } else { format!("/{prefix}") }))
}

/// Asks it for all nodes.
pub(super) async fn query_nodes(
    client: &FleetClient,
    way: &NodeAddress,
    prefix: &str,
) -> Result<NodeReadings> {
    let path = format!("{prefix}/api/v1/query?query={}", url_encode(QUERY));
    let json = client.get(way, &path).await.with_context(|| format!("asking Prometheus at {way}"))?;
    let node = |name: String| FleetNode { address: way.clone(), name };
    let nodes = read(&json).with_context(|| format!("the answer of Prometheus at {way}"))?;
    ensure!(
        !nodes.is_empty(),
        "Prometheus at {way} has no node of Elbowroom: does it scrape /metrics of the agents?"
    );
    Ok(nodes.into_iter().map(|(name, reading)| (node(name), reading)).collect())
}

/// Reads the answer: what each instance has, or why there is nothing of it.
///
/// # Errors
/// It is no vector of samples.
pub fn read(json: &[u8]) -> Result<BTreeMap<String, Result<NodeReading>>> {
    let answer: QueryResponse = serde_json::from_slice(json).context("it is no vector of samples")?;
    let mut nodes: BTreeMap<String, InstanceSamples> = BTreeMap::new();
    for QuerySample { mut metric, value: (_, words) } in answer.data.result {
        let instance = metric.remove("instance").unwrap_or_default();
        let Some(of) = metric.remove("__name__").or_else(|| metric.remove("fleet")) else { continue };
        let Ok(value) = words.parse::<f64>() else { continue };
        let samples = nodes.entry(instance).or_default().entry(of).or_default();
        if samples.len() < MAX_SAMPLES {
            samples.push((metric, value));
        }
    }
    Ok(nodes.into_iter().map(|(name, samples)| (name, node_reading(&samples))).collect())
}

fn node_reading(samples: &InstanceSamples) -> Result<NodeReading> {
    if samples.contains_key("gone") {
        return Err(anyhow!("Prometheus had numbers of it within the last hour, and has none now"));
    }
    let all = |name: &str| samples.get(name).into_iter().flatten();
    let labelled = |name: &str, label: &'static str, is: &str| {
        let is = |(labels, _): &&LabelledValue| labels.get(label).is_some_and(|l| l == is);
        all(name).find(is).map(|(_, value)| *value)
    };
    let first = |name: &str| all(name).next().map(|(_, value)| *value);
    let needed =
        |name: &str| first(name).with_context(|| format!("no {name}: is its agent of another version?"));
    let memory =
        |part: &str| labelled("elbowroom_node_memory_bytes", "part", part).map(|value| Bytes(value as u64));
    let milli = |cpus: f64| Millicpu((cpus * 1_000.0) as u64);
    let disk = |of: &str| {
        let capacity = |unit: &str, op: &str| {
            let family = format!("elbowroom_disk_capacity_{unit}_per_second");
            let is = |(labels, _): &&LabelledValue| {
                labels.get("disk").is_some_and(|d| d == of) && labels.get("op").is_some_and(|o| o == op)
            };
            all(&family).find(is).map_or(Limit::Max, |(_, value)| Limit::At(*value as u64))
        };
        NodeDisk {
            name: name(of),
            capacity: IoMax {
                rbps: capacity("bytes", "read"),
                wbps: capacity("bytes", "write"),
                riops: capacity("operations", "read"),
                wiops: capacity("operations", "write"),
            },
            used: labelled("elbowroom_disk_used_ratio", "disk", of),
            promised: labelled("elbowroom_disk_promised_ratio", "disk", of).unwrap_or(0.0),
        }
    };
    let disks = all("elbowroom_disk_promised_ratio").filter_map(|(labels, _)| labels.get("disk"));
    let alerts = all("elbowroom_alerts").filter(|(_, value)| *value > 0.0);
    let version = all("elbowroom_info").find_map(|(labels, _)| labels.get("version"));
    Ok(NodeReading {
        time_unix_ms: first("time").map(|seconds| (seconds * 1e3) as u64),
        version: version.map(|version| name(version)).unwrap_or_default(),
        containers: needed("elbowroom_containers")? as u64,
        room: NodeResources {
            cpu: milli(needed("elbowroom_node_cpus")?),
            cpu_used: first("elbowroom_node_cpus_used").map(milli),
            cpu_effective: milli(first("effective").unwrap_or(0.0)),
            memory: memory("total")
                .context("no elbowroom_node_memory_bytes: is its agent of another version?")?,
            memory_used: memory("used"),
            memory_reserved: memory("reserved").unwrap_or_default(),
            memory_free: memory("lendable"),
            memory_short: first("elbowroom_node_memory_short").is_some_and(|short| short > 0.0),
            disks: disks.take(MAX_DISKS).map(|of| disk(of)).collect(),
        },
        alerts: alerts
            .flat_map(|(labels, value)| {
                // As often as it lasts; what a number cannot be is no number of alerts.
                let kind = labels.get("kind").map(|kind| name(kind)).unwrap_or_default();
                std::iter::repeat_n(kind, value.min(MAX_ALERTS as f64) as usize)
            })
            .take(MAX_ALERTS)
            .collect(),
    })
}

/// As a query has it (RFC 3986, unreserved characters stay).
fn url_encode(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn samples_become_nodes_and_those_that_are_gone_say_so() {
        let sample = |name: &str, labels: &[(&str, &str)], value: &str| {
            let mut metric =
                serde_json::Map::from_iter(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())));
            let key = if name.starts_with("elbowroom") { "__name__" } else { "fleet" };
            metric.insert(key.into(), name.into());
            json!({ "metric": metric, "value": [1_700_000_000.5, value] })
        };
        let a = ("instance", "a:9273");
        let memory = |part, value| sample("elbowroom_node_memory_bytes", &[a, ("part", part)], value);
        let disk = [a, ("disk", "sda"), ("op", "read")];
        let json = json!({ "status": "success", "data": { "resultType": "vector", "result": [
            sample("elbowroom_node_cpus", &[a], "4"),
            sample("elbowroom_node_cpus_used", &[a], "1.5"),
            sample("elbowroom_containers", &[a], "2"),
            sample("elbowroom_info", &[a, ("version", "1")], "1"),
            memory("total", "100"), memory("used", "60"), memory("lendable", "15"),
            sample("elbowroom_disk_capacity_bytes_per_second", &disk, "7"),
            sample("elbowroom_disk_used_ratio", &disk[..2], "0.5"),
            sample("elbowroom_disk_promised_ratio", &disk[..2], "0.25"),
            sample("elbowroom_alerts", &[a, ("kind", "STARVED")], "2"),
            sample("elbowroom_alerts", &[a, ("kind", "FINDING")], "0"),
            sample("effective", &[a], "6"),
            sample("time", &[a], "1700000000.5"),
            sample("gone", &[("instance", "b:9273")], "1"),
            sample("elbowroom_node_cpus", &[("instance", "c")], "NaN"),
        ] } });
        let nodes = read(json.to_string().as_bytes()).unwrap();
        let node = nodes["a:9273"].as_ref().unwrap();
        assert_eq!((node.room.cpu, node.room.cpu_used), (Millicpu(4_000), Some(Millicpu(1_500))));
        assert_eq!((node.room.memory_free, node.room.cpu_effective), (Some(Bytes(15)), Millicpu(6_000)));
        assert_eq!(node.room.disks[0].capacity, IoMax { rbps: Limit::At(7), ..IoMax::MAX });
        assert_eq!(node.alerts, ["STARVED", "STARVED"]);
        assert_eq!(node.time_unix_ms, Some(1_700_000_000_500));
        assert!(
            elbowroom_client::output::one_line(nodes["b:9273"].as_ref().unwrap_err())
                .contains("has none now")
        );
        assert!(
            elbowroom_client::output::one_line(nodes["c"].as_ref().unwrap_err())
                .contains("elbowroom_containers")
        );
        assert!(read(b"{}").is_err());
    }

    #[test]
    fn of_a_node_that_exports_more_than_there_can_be_a_bounded_part_is_kept() {
        let sample = |name: &str, label: &str, is: String, value: &str| json!({ "metric": { "__name__": name, "instance": "a", label: is }, "value": [1.5, value] });
        let needed =
            ["elbowroom_containers", "elbowroom_node_cpus"].map(|name| sample(name, "x", String::new(), "1"));
        let memory = sample("elbowroom_node_memory_bytes", "part", "total".into(), "1");
        let kinds = (0..5_000).map(|n| sample("elbowroom_alerts", "kind", format!("{n}"), "1e9"));
        let disks =
            (0..5_000).map(|n| sample("elbowroom_disk_promised_ratio", "disk", format!("{n:0>2000}"), "1"));
        let result: Vec<_> = needed.into_iter().chain([memory]).chain(kinds).chain(disks).collect();
        let mut nodes = read(json!({ "data": { "result": result } }).to_string().as_bytes()).unwrap();
        let node = nodes.remove("a").unwrap().unwrap();
        assert_eq!((node.alerts.len(), node.room.disks.len()), (MAX_ALERTS, MAX_DISKS));
        assert_eq!(node.room.disks[0].name, name(&"0".repeat(2_000)));
    }

    #[test]
    fn its_address_may_have_a_prefix() {
        assert_eq!(parse_server("http://p:9090/").unwrap().1, "");
        assert_eq!(parse_server("https://p/prometheus/").unwrap().1, "/prometheus");
        for bad in ["p:9090", "ftp://p", "http://", "http://p:9090/a b"] {
            assert!(
                elbowroom_client::output::one_line(&parse_server(bad).unwrap_err()).contains("--prometheus"),
                "{bad}"
            );
        }
    }
}
