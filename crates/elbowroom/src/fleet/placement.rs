//! Which of many nodes have room for one more container, and why.
//!
//! # Problem
//! A scheduler that adds up requests and limits leaves most of a fleet idle, and still puts containers beside neighbours that
//! use more than they asked for. What is really used, what is really free and what may be called back is known to the agent of
//! each node.
//!
//! # Approach
//! A node's [`NodeResources`] is what no container uses and none can call back, less a *headroom* for what moves. Whether a container fits
//! is one question asked of every resource: how many such containers would fit? The least answer counts, and names the *scarce*
//! resource. Nodes are ranked by that number, so that what comes hurts its neighbours as little as possible. Of a node with
//! several disks the roomiest counts.
//!
//! # Properties
//! - `what_is_placed_never_exceeds_the_room`
//! - `more_room_never_ranks_lower`
//! - `the_order_of_nodes_does_not_change_the_ranking`

use super::resources::{NodeDisk, NodeResources};
use elbowroom_types::claim::DiskReservation;
use elbowroom_types::unit::{Bytes, Millicpu, Percent};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt;

/// What a container is to have. Zero, or nothing: it does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlacementRequest {
    /// CPU time per time.
    pub cpu: Millicpu,
    /// Memory.
    pub memory: Bytes,
    /// What it does on one disk.
    pub disk: DiskReservation,
}

/// What runs out first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScarceResource {
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// This disk.
    Disk(String),
}

impl fmt::Display for ScarceResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cpu => "CPU",
            Self::Memory => "memory",
            Self::Disk(name) => name,
        })
    }
}

/// What a node says to a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementVerdict {
    /// How many such containers fit, as far as is known; below 1 none does.
    pub times: f64,
    /// What runs out first; `None` where nothing was asked for, or nothing is known.
    pub scarce: Option<ScarceResource>,
    /// In words.
    pub because: String,
}

impl PlacementVerdict {
    /// Whether at least one fits.
    pub fn fits(&self) -> bool {
        self.times >= 1.0
    }

    /// How many do.
    pub fn whole_containers(&self) -> u64 {
        // A cast saturates.
        self.times as u64
    }

    fn refuse(scarce: ScarceResource, because: String) -> Self {
        Self { times: 0.0, scarce: Some(scarce), because }
    }
}

/// A node's verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankedNode {
    /// Which.
    pub node: String,
    /// What it says.
    #[serde(flatten)]
    pub verdict: PlacementVerdict,
}

/// Whether `ask` fits into `room` when `headroom` of every resource is left alone.
pub fn evaluate(room: &NodeResources, ask: &PlacementRequest, headroom: Percent) -> PlacementVerdict {
    let questions = [cpu(room, ask, headroom), memory(room, ask, headroom), disk(room, ask, headroom)];
    let least = questions.into_iter().flatten().min_by(|a, b| a.times.total_cmp(&b.times));
    least.unwrap_or_else(|| PlacementVerdict {
        times: f64::INFINITY,
        scarce: None,
        because: "nothing was asked for".into(),
    })
}

/// The nodes in the order in which they are best taken: those that fit most often first, then by name.
pub fn rank<'a>(
    nodes: impl IntoIterator<Item = (&'a str, &'a NodeResources)>,
    ask: &PlacementRequest,
    headroom: Percent,
) -> Vec<RankedNode> {
    let verdict = |(node, room): (&str, &NodeResources)| RankedNode {
        node: node.to_owned(),
        verdict: evaluate(room, ask, headroom),
    };
    let mut ranked: Vec<RankedNode> = nodes.into_iter().map(verdict).collect();
    ranked.sort_by(compare_ranked);
    ranked
}

fn compare_ranked(a: &RankedNode, b: &RankedNode) -> Ordering {
    b.verdict.times.total_cmp(&a.verdict.times).then_with(|| a.node.cmp(&b.node))
}

fn cpu(room: &NodeResources, ask: &PlacementRequest, headroom: Percent) -> Option<PlacementVerdict> {
    if ask.cpu == Millicpu::ZERO {
        return None;
    }
    let Some(used) = room.cpu_used else {
        return Some(PlacementVerdict::refuse(
            ScarceResource::Cpu,
            "what its CPUs do is not known yet".into(),
        ));
    };
    let usable = room.cpu.get() - headroom.of(room.cpu.get());
    let idle = Millicpu(usable).saturating_sub(used);
    let because = format!("{idle} CPUs idle of {}", room.cpu);
    Some(PlacementVerdict {
        times: times(idle.get(), ask.cpu.get()),
        scarce: Some(ScarceResource::Cpu),
        because,
    })
}

fn memory(room: &NodeResources, ask: &PlacementRequest, headroom: Percent) -> Option<PlacementVerdict> {
    if ask.memory == Bytes::ZERO {
        return None;
    }
    if room.memory_short {
        return Some(PlacementVerdict::refuse(
            ScarceResource::Memory,
            "its containers compete for memory already".into(),
        ));
    }
    let Some(free) = room.memory_free else {
        return Some(PlacementVerdict::refuse(
            ScarceResource::Memory,
            "what of its memory is free is not known yet".into(),
        ));
    };
    let free = free.saturating_sub(Bytes(headroom.of(room.memory.get())));
    let because = format!("{free} memory free to lend of {}", room.memory);
    Some(PlacementVerdict {
        times: times(free.get(), ask.memory.get()),
        scarce: Some(ScarceResource::Memory),
        because,
    })
}

fn disk(room: &NodeResources, ask: &PlacementRequest, headroom: Percent) -> Option<PlacementVerdict> {
    if ask.disk.is_empty() {
        return None;
    }
    let verdicts = room.disks.iter().map(|disk| evaluate_disk(disk, ask, headroom));
    let roomiest = verdicts.max_by(|a, b| a.times.total_cmp(&b.times));
    let none = || {
        PlacementVerdict::refuse(
            ScarceResource::Disk("disk".into()),
            "it governs no disk: its agent measures those that containers use".into(),
        )
    };
    Some(roomiest.unwrap_or_else(none))
}

fn evaluate_disk(disk: &NodeDisk, ask: &PlacementRequest, headroom: Percent) -> PlacementVerdict {
    let name = &disk.name;
    let scarce = ScarceResource::Disk(name.clone());
    let (Some(part), Some(used)) = (disk.utilization(ask.disk), disk.used) else {
        return PlacementVerdict::refuse(scarce, format!("what {name} can do was not seen yet"));
    };
    if part == 0.0 {
        return PlacementVerdict {
            times: f64::INFINITY,
            scarce: Some(scarce),
            because: format!("{name} has nothing to do"),
        };
    }
    // What is promised may come at any time, what is used is there now.
    let taken = used.max(disk.promised).max(0.0);
    let left = (1.0 - headroom.fraction() - taken).max(0.0);
    PlacementVerdict {
        times: left / part,
        scarce: Some(scarce),
        because: format!("{:.0} % of {name} is neither used nor promised", left * 100.0),
    }
}

fn times(there_is: u64, each: u64) -> f64 {
    there_is as f64 / each as f64
}
