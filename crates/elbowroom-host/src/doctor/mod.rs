//! The machine as facts for `elbowroom_core::doctor`, and the writes that remove what is found.
//!
//! Cgroups are walked and read twice; nothing is watched, so this needs no running agent and leaves no trace. Containers are
//! read in full; other cgroups only as far as they hold containers back, protect them or compete with them.

mod group;
mod jobs;
mod journal;
mod looks;
mod machine;
mod place;
mod text;
pub mod touch;
mod write;

pub use jobs::{jvms, root_processes, swappiness_below};
pub use journal::{Entry, Journal, JournalError};
pub use looks::{LastLook, Looks};
pub use place::{place, unplace};
pub use write::{Outcome, WriteError, retreat, revert, write};

use crate::cgroup::layout::LayoutError;
use crate::cgroup::{Controller, Layout};
use crate::discover::Discover;
use crate::root::{ReadError, Root};
use crate::warn::Warnings;
use elbowroom_core::doctor::{self, Applied, Facts, Version};
use elbowroom_core::label::Heed;
use elbowroom_core::unit::Micros;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Where and how long to look.
#[derive(Clone, Debug)]
pub struct DoctorConfig {
    /// The directory that stands for `/`.
    pub root: PathBuf,
    /// Patterns of cgroup paths that count as containers.
    pub plain: Vec<String>,
    /// Where dockerd keeps its containers, where its configuration does not say.
    pub docker_root: Option<PathBuf>,
    /// Where containerd keeps what runs, beside the usual places.
    pub containerd_state: Option<PathBuf>,
    /// Time between the two looks.
    pub wait: Duration,
}

/// Why there are no facts.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// A file that everything depends on.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// No cgroups.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// The version and controller names of core for those of this crate.
const CONTROLLERS: [(Controller, doctor::Controller); 5] = [
    (Controller::Cpu, doctor::Controller::Cpu),
    (Controller::Cpuset, doctor::Controller::Cpuset),
    (Controller::Memory, doctor::Controller::Memory),
    (Controller::Io, doctor::Controller::Io),
    (Controller::Pids, doctor::Controller::Pids),
];

/// Looks at the machine twice. `applied` are the writes of fixes in force; what their files say now is filled in.
///
/// # Errors
/// Where cgroups or `/proc/meminfo` cannot be read at all. What vanishes or cannot be read in between is absent.
pub fn look(config: &DoctorConfig, applied: Vec<Applied>) -> Result<Facts, DoctorError> {
    let root = Root::at(&config.root)?;
    let layout = Layout::detect(&root)?;
    let mut discover = Discover::new(&root, &config.plain, config.docker_root.as_deref(), Heed::None)
        .and_containerd(config.containerd_state.as_deref());
    let mut warnings = Warnings::default();
    let mut facts = Facts::default();

    let begin = Instant::now();
    facts.host.before = machine::counters(&root)?;
    facts.host.disks = machine::disks(&root)?;
    let walk = group::walk(&root, &layout, &mut discover, &mut warnings);
    facts.host.memory_directories = walk.directories;
    facts.groups = walk.groups;
    for group in &mut facts.groups {
        group.before = group::counters(&layout, group, &mut warnings);
    }

    std::thread::sleep(config.wait.saturating_sub(begin.elapsed()));
    let again = Instant::now();
    facts.elapsed = Micros(u64::try_from((again - begin).as_micros()).unwrap_or(u64::MAX));
    facts.host.after = machine::counters(&root)?;
    machine::disks_again(&root, &mut facts.host.disks)?;
    for group in &mut facts.groups {
        group.after = group::counters(&layout, group, &mut warnings);
        group::settings(&root, &layout, group, &mut warnings);
    }
    // One that ended in between has no second look, and nothing to say.
    group::forget_gone(&mut facts.groups);
    machine::settings(&root, &layout, &mut facts.host);
    facts.host.ledger = applied
        .into_iter()
        .map(|a| Applied { now: root.read(&a.file).ok().map(|t| text::shown(&t)), ..a })
        .collect();
    for (here, core) in CONTROLLERS {
        if let Some((version, _)) = layout.dir(here, std::path::Path::new("")) {
            facts.host.versions.insert(core, version_of(version));
        }
    }
    Ok(facts)
}

fn version_of(version: crate::cgroup::Version) -> Version {
    match version {
        crate::cgroup::Version::V1 => Version::V1,
        crate::cgroup::Version::V2 => Version::V2,
    }
}
