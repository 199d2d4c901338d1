//! The paper's strategies, and one that its kernels did not have. Each is one setting, and this is the one place that makes it.

use super::story::Story;
use crate::cgroup::Cgroups;
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// What is done about a pitfall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Strategy {
    /// Nothing.
    None,
    /// IV.A: the JVM touches its whole heap when it starts, while there is memory (`-XX:+AlwaysPreTouch`).
    PreTouch,
    /// IV.B: the limit has room for the files it reads.
    RoomForCache,
    /// IV.C: what the host does for itself is in a group with a limit.
    Housekeeping,
    /// IV.B: the group is not swapped.
    NoSwap,
    /// Beyond the paper: the kernel is told to leave the group what it has (v2's `memory.low`).
    Protect,
}

impl Strategy {
    /// Its name in tables and figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "nothing is done",
            Self::PreTouch => "pre-touched",
            Self::RoomForCache => "limit with room for the cache",
            Self::Housekeeping => "the host's job has a limit",
            Self::NoSwap => "the group is not swapped",
            Self::Protect => "memory.low",
        }
    }

    /// Arguments of the JVM.
    pub(super) fn jvm(self) -> &'static [&'static str] {
        if self == Self::PreTouch { &["-XX:+AlwaysPreTouch"] } else { &[] }
    }

    /// The application's hard limit, in MiB.
    pub(super) fn app_limit_mib(self, story: &Story) -> Option<u64> {
        match self {
            Self::RoomForCache => story.limit_mib.map(|mib| mib + story.file_mib),
            _ => story.limit_mib,
        }
    }

    /// The settings of the application's group and of the host's, when all is in place.
    pub(super) fn apply(self, story: &Story, app: &Cgroups, host: &Cgroups) -> Result<()> {
        match self {
            Self::None | Self::PreTouch | Self::RoomForCache => Ok(()),
            Self::Housekeeping => {
                let bytes = (story.housekeeping_mib << 20).to_string();
                host.set_memory(("memory.limit_in_bytes", &bytes), ("memory.max", &bytes))
            }
            Self::NoSwap => app.set_memory(("memory.swappiness", "0"), ("memory.swap.max", "0")),
            // A fifth more than it has: beyond what is claimed it is as unprotected as anybody.
            Self::Protect => app.protect(app.memory_bytes()? / 10 * 12),
        }
    }

    /// What would outlive the application's group is taken back.
    pub(super) fn take_back(self, app: &Cgroups) -> Result<()> {
        if self == Self::Protect { app.protect(0) } else { Ok(()) }
    }
}
