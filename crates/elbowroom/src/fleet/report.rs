//! What `fleet` says, for programs and for people.

use super::address::FleetNode;
use super::reading::NodeReading;
use super::{NodeSort, NodesByName};
use crate::fleet::placement::{PlacementRequest, RankedNode, rank};
use crate::fleet::resources::{NodeDisk, NodeResources};
use anyhow::Result;
use elbowroom_client::number_format;
use elbowroom_client::table::{Align, clip, table};
use elbowroom_types::unit::{Bytes, Millicpu, Percent, counted};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct FleetReport {
    /// Every node that was named, read or not.
    pub(super) nodes: Vec<NodeReport>,
    /// Looks that this is the least of.
    pub(super) looks: u64,
    /// How long the last look took, in milliseconds.
    pub(super) took_ms: u64,
    /// The part of each node that stays free.
    headroom: Percent,
    /// What is to be placed.
    #[serde(skip_serializing_if = "Option::is_none")]
    ask: Option<PlacementRequest>,
    /// Where it fits, the best first; only nodes that were read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranking: Vec<RankedNode>,
    /// How many of it fit into all nodes together.
    #[serde(skip_serializing_if = "Option::is_none")]
    fits: Option<u64>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct NodeReport {
    /// What people call it.
    name: String,
    /// Where its agent is.
    address: String,
    /// Why there is nothing of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// What it said.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    reading: Option<NodeReading>,
}

impl NodeReport {
    pub(super) fn new(node: &FleetNode, reading: Result<NodeReading>) -> Self {
        let (problem, reading) = match reading {
            Ok(reading) => (None, Some(reading)),
            Err(error) => (Some(clip(&elbowroom_client::output::one_line(&error), 300)), None),
        };
        Self { name: node.name.clone(), address: node.address.to_string(), problem, reading }
    }

    fn room(&self) -> Option<&NodeResources> {
        self.reading.as_ref().map(|reading| &reading.room)
    }
}

impl FleetReport {
    pub(super) fn new(
        nodes: Vec<NodeReport>,
        took: Duration,
        ask: Option<PlacementRequest>,
        headroom: Percent,
    ) -> Self {
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let report = Self { nodes, looks: 1, took_ms, headroom, ask, ranking: Vec::new(), fits: None };
        report.with_ranking()
    }

    /// Keeps only what was there in both looks; a node that was not read in one of them counts as not read.
    pub(super) fn intersect(mut self, later: Self) -> Self {
        let mut before: BTreeMap<String, NodeReport> =
            self.nodes.drain(..).map(|node| (node.name.clone(), node)).collect();
        let mut nodes = Vec::new();
        for mut node in later.nodes {
            if let Some(old) = before.remove(&node.name) {
                match (&mut node.reading, old.reading) {
                    (Some(new), Some(old)) => new.room = old.room.min_of(&new.room),
                    (Some(_), None) => node = NodeReport { reading: None, problem: old.problem, ..node },
                    (None, _) => {}
                }
            }
            nodes.push(node);
        }
        nodes.extend(before.into_values().map(|node| {
            let gone = "it was there at the beginning, and is not any more";
            NodeReport { reading: None, problem: node.problem.or_else(|| Some(gone.into())), ..node }
        }));
        let (looks, took_ms) = (self.looks + 1, later.took_ms);
        Self { nodes, looks, took_ms, ..self }.with_ranking()
    }

    fn with_ranking(mut self) -> Self {
        if let Some(ask) = &self.ask {
            let rooms: NodesByName<'_> =
                self.nodes.iter().filter_map(|node| Some((node.name.as_str(), node.room()?))).collect();
            self.ranking = rank(rooms, ask, self.headroom);
            self.fits = Some(
                self.ranking.iter().fold(0, |sum, one| sum.saturating_add(one.verdict.whole_containers())),
            );
        }
        self
    }

    /// Whether the answer is yes.
    pub(super) fn is_success(&self) -> bool {
        match self.fits {
            Some(fits) => fits > 0,
            None => self.nodes.iter().all(|node| node.problem.is_none()),
        }
    }
}

/// For people: a summary, at most `top` nodes (0: all), and every node that was not read.
pub(super) fn text(report: &FleetReport, top: usize, sort: NodeSort) -> String {
    let mut text = summary(report);
    let top = if top == 0 { usize::MAX } else { top };
    let rest = match &report.ask {
        Some(ask) => placement_table(&mut text, report, ask, top),
        None => node_table(&mut text, report, top, sort),
    };
    if rest > 0 {
        let _ = writeln!(text, "and {rest} more: --top 0 shows them");
    }
    let unread: Vec<&NodeReport> = report.nodes.iter().filter(|node| node.problem.is_some()).collect();
    if !unread.is_empty() {
        text.push_str("\nnot read, and not counted:\n");
        for node in unread {
            let problem = node.problem.as_deref().unwrap_or_default();
            let _ = writeln!(text, "  {:<24} {}", clip(&node.name, 24), clip(problem, 300));
        }
    }
    text
}

fn summary(report: &FleetReport) -> String {
    let read: Vec<&NodeReading> = report.nodes.iter().filter_map(|node| node.reading.as_ref()).collect();
    let sum =
        |of: fn(&NodeResources) -> u64| read.iter().fold(0u64, |sum, r| sum.saturating_add(of(&r.room)));
    let (cpu, used) = (sum(|r| r.cpu.get()), sum(|r| r.cpu_used.unwrap_or_default().get()));
    let memory = Bytes(sum(|r| r.memory.get()));
    let free = Bytes(sum(|r| r.memory_free.unwrap_or_default().get()));
    let containers = read.iter().fold(0u64, |sum, r| sum.saturating_add(r.containers));
    let troubled = read.iter().filter(|r| !r.alerts.is_empty()).count();
    let mut text = format!(
        "{} of {} read in {} ms, {}\n{}, {} of them used; {memory} memory, {free} of it free to lend\n",
        read.len(),
        counted(report.nodes.len(), "node"),
        report.took_ms,
        counted(containers, "container"),
        counted(Millicpu(cpu), "CPU"),
        number_format::percent((cpu > 0).then(|| used as f64 / cpu as f64)),
    );
    if troubled > 0 {
        let _ = writeln!(text, "{} with alerts", counted(troubled, "node"));
    }
    if report.looks > 1 {
        let _ = writeln!(text, "the least of {} looks", report.looks);
    }
    let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
    read.iter().for_each(|r| *versions.entry(&r.version).or_default() += 1);
    if versions.len() > 1 {
        let word = |(version, nodes): (&&str, &usize)| format!("{} on {nodes}", clip(version, 20));
        let _ = writeln!(text, "versions: {}", versions.iter().map(word).collect::<Vec<_>>().join(", "));
    }
    text
}

/// The table of nodes; how many are not in it.
fn node_table(text: &mut String, report: &FleetReport, top: usize, sort: NodeSort) -> usize {
    let mut read: Vec<(&NodeReport, &NodeReading)> =
        report.nodes.iter().filter_map(|node| Some((node, node.reading.as_ref()?))).collect();
    let idle = |r: &NodeReading| r.room.cpu.saturating_sub(r.room.cpu_used.unwrap_or(r.room.cpu));
    match sort {
        NodeSort::Cpu => read.sort_by_key(|(node, r)| (Reverse(idle(r)), &node.name)),
        NodeSort::Memory => read.sort_by_key(|(node, r)| (Reverse(r.room.memory_free), &node.name)),
        NodeSort::Alerts => read.sort_by_key(|(node, r)| (Reverse(r.alerts.len()), &node.name)),
        NodeSort::Name => read.sort_by_key(|(node, _)| &node.name),
    }
    let heading = [
        ("NODE", Align::Left),
        ("CPUS", Align::Right),
        ("SEEN", Align::Right),
        ("USED", Align::Right),
        ("IDLE", Align::Right),
        ("MEMORY", Align::Right),
        ("USED", Align::Right),
        ("RESVD", Align::Right),
        ("FREE", Align::Right),
        ("DISK", Align::Left),
        ("ALERTS", Align::Left),
    ];
    let row = |(node, r): &(&NodeReport, &NodeReading)| {
        let room = &r.room;
        let known = |bytes: Option<Bytes>| {
            bytes.map_or("-".to_owned(), |bytes| number_format::short_bytes(bytes.get()))
        };
        vec![
            clip(&node.name, 16),
            cpus(room.cpu),
            cpus(room.cpu_effective),
            room.cpu_used.map_or("-".to_owned(), cpus),
            room.cpu_used.map_or("-".to_owned(), |_| cpus(idle(r))),
            number_format::short_bytes(room.memory.get()),
            known(room.memory_used),
            number_format::short_bytes(room.memory_reserved.get()),
            known(room.memory_free),
            fullest_disk(&room.disks),
            alerts_cell(&r.alerts),
        ]
    };
    if !read.is_empty() {
        text.push('\n');
        text.push_str(&table(&heading, &read.iter().take(top).map(row).collect::<Vec<_>>()));
    }
    read.len().saturating_sub(top)
}

/// Where it fits; how many nodes are not in the table.
fn placement_table(text: &mut String, report: &FleetReport, ask: &PlacementRequest, top: usize) -> usize {
    let mut words = Vec::new();
    words.extend((ask.cpu > Millicpu::ZERO).then(|| counted(ask.cpu, "CPU")));
    words.extend((ask.memory > Bytes::ZERO).then(|| format!("{} memory", ask.memory)));
    words.extend((!ask.disk.is_empty()).then(|| format!("{} of a disk", ask.disk)));
    let on = report.ranking.iter().filter(|one| one.verdict.fits()).count();
    let many = report.fits.unwrap_or_default();
    let _ = writeln!(
        text,
        "\n{} with {} left free: {}",
        words.join(", "),
        report.headroom,
        if on == 0 {
            "fits nowhere".to_owned()
        } else {
            format!("fits on {}, {} in all", counted(on, "node"), counted(many, "time"))
        }
    );
    let heading =
        [("NODE", Align::Left), ("FITS", Align::Right), ("SCARCE", Align::Left), ("BECAUSE", Align::Left)];
    let row = |one: &RankedNode| {
        let scarce = one.verdict.scarce.as_ref().map_or("-".to_owned(), ToString::to_string);
        vec![
            clip(&one.node, 16),
            one.verdict.whole_containers().to_string(),
            clip(&scarce, 10),
            clip(&one.verdict.because, 60),
        ]
    };
    if !report.ranking.is_empty() {
        text.push_str(&table(&heading, &report.ranking.iter().take(top).map(row).collect::<Vec<_>>()));
    }
    report.ranking.len().saturating_sub(top)
}

/// CPUs in at most five characters.
fn cpus(cpu: Millicpu) -> String {
    match cpu.get() {
        n if n.is_multiple_of(1_000) => (n / 1_000).to_string(),
        n if n < 100_000 => format!("{:.1}", n as f64 / 1e3),
        n => format!("{:.0}", n as f64 / 1e3),
    }
}

/// The disk of which most is taken.
fn fullest_disk(disks: &[NodeDisk]) -> String {
    let fullest = disks.iter().max_by(|a, b| a.used.unwrap_or(-1.0).total_cmp(&b.used.unwrap_or(-1.0)));
    fullest.map_or("-".to_owned(), |disk| {
        format!("{} {}", clip(&disk.name, 8), number_format::percent(disk.used))
    })
}

fn alerts_cell(alerts: &[String]) -> String {
    match alerts {
        [] => "-".to_owned(),
        [one] => clip(one, 14),
        [first, rest @ ..] => format!("{}+{}", clip(first, 11), rest.len()),
    }
}
