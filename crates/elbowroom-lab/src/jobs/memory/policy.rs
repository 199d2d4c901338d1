//! Who divides memory: the kernel by itself, the kernel's two kinds of limits, or Elbowroom.

use super::story::Role;
use crate::cgroup::Limits;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Engines' containers, with one word for an id, and others less deep than the lab's: they are no part of an experiment.
pub(crate) const LEAVE_ALONE: &str = "containers.exclude = [\"*\", \"*/*\"]";

/// Who divides the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Policy {
    /// The kernel, by what was used last.
    None,
    /// Hard limits: v1 `memory.limit_in_bytes`, v2 `memory.max`.
    Max,
    /// Soft limits: v1 `memory.soft_limit_in_bytes`, v2 `memory.low`.
    Soft,
    /// Elbowroom, which the applications tell how they do.
    Probes,
    /// Elbowroom, which nobody tells anything.
    Blind,
}

impl Policy {
    /// Its name in tables and figures.
    pub(super) fn name(self, cgroup_v2: bool) -> &'static str {
        match self {
            Self::None => "no limits",
            Self::Max => "max limits",
            Self::Soft if cgroup_v2 => "memory.low",
            Self::Soft => "soft limits",
            Self::Probes => "elbowroom",
            Self::Blind => "elbowroom, no probes",
        }
    }

    /// Its name in paths.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Max => "max",
            Self::Soft => "soft",
            Self::Probes => "probes",
            Self::Blind => "blind",
        }
    }

    /// What the container's cgroup says.
    pub(super) fn limits(self, role: Role) -> Limits {
        let right = Some(role.right_mib);
        match self {
            Self::Max => Limits { memory_mib: right, ..Limits::default() },
            Self::Soft => Limits { soft_mib: right, ..Limits::default() },
            Self::None | Self::Probes | Self::Blind => Limits::default(),
        }
    }

    /// Whether an agent runs.
    pub(super) fn has_agent(self) -> bool {
        matches!(self, Self::Probes | Self::Blind)
    }

    /// Whether applications say how they do.
    pub(super) fn has_probes(self) -> bool {
        self == Self::Probes
    }

    /// Lines of the agent's configuration, where one runs: reservations of containers by their ids, and their files of
    /// records. CPU and effective memory are not the subject, so they are sensed at leisure.
    pub(super) fn settings(self, containers: &[(&str, Role, &Path)]) -> Option<Vec<String>> {
        if !self.has_agent() {
            return None;
        }
        let list = |entry: &dyn Fn(&(&str, Role, &Path)) -> String| {
            containers.iter().map(entry).collect::<Vec<_>>().join(", ")
        };
        let claims = list(&|(id, role, _)| {
            format!("{{ container = \"{id}\", memory = {{ reserve = \"{}MiB\" }} }}", role.right_mib)
        });
        let mut lines = vec![
            "sense.period = \"500ms\"".to_owned(),
            "memory.mode = \"enforce\"".to_owned(),
            LEAVE_ALONE.to_owned(),
            format!("claims = [{claims}]"),
        ];
        if self.has_probes() {
            let probes =
                list(&|(id, _, file)| format!("{{ container = \"{id}\", file = \"{}\" }}", file.display()));
            lines.push(format!("probes = [{probes}]"));
        }
        Some(lines)
    }
}
