//! The three things an experiment compares: nothing (the kernel's own files), lxcfs and Elbowroom. Each is started for
//! itself, in private, and gives containers its files; the container maker knows nothing of them.

use crate::cgroup::Limits;
use crate::container::{Container, Maker};
use crate::lxcfs::Lxcfs;
use crate::procfs;
use crate::product::Product;
use crate::scope::Scope;
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whose files a container reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Variant {
    /// The kernel's.
    Native,
    /// lxcfs, a private instance of what the distribution packages.
    Lxcfs,
    /// Elbowroom, a private instance.
    Elbowroom,
}

impl Variant {
    /// Its name in tables, files and figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Lxcfs => "lxcfs",
            Self::Elbowroom => "elbowroom",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A running variant. Dropping it stops it; its containers must be gone by then.
#[derive(Debug)]
pub(crate) enum Backend {
    /// Nothing runs.
    Native,
    /// The daemon.
    Lxcfs(Lxcfs),
    /// The agent.
    Elbowroom(Product),
}

impl Backend {
    /// Starts `variant`; `program` is the Elbowroom binary, `settings` are lines of its configuration.
    pub(crate) fn start(
        variant: Variant,
        scope: &Arc<Scope>,
        maker: &Maker,
        program: &Path,
        settings: &[String],
    ) -> Result<Self> {
        Ok(match variant {
            Variant::Native => Self::Native,
            Variant::Lxcfs => Self::Lxcfs(Lxcfs::start(scope)?),
            Variant::Elbowroom => {
                Self::Elbowroom(Product::start(scope, program, "run", &maker.cgroup_glob(""), settings)?)
            }
        })
    }

    /// Makes a container that reads this variant's files.
    pub(crate) fn container(&self, maker: &Maker, name: &str, limits: &Limits) -> Result<Container> {
        let mounts: Vec<(PathBuf, PathBuf)> = match self {
            Self::Lxcfs(lxcfs) => lxcfs.mounts(),
            Self::Native | Self::Elbowroom(_) => Vec::new(),
        };
        let container = maker.make(name, limits, &mounts)?;
        if let Self::Elbowroom(product) = self {
            product.attach(&container.id)?;
        }
        self.check_served(&container)?;
        Ok(container)
    }

    /// A variant that failed to give a container its files would measure as well as the kernel's own.
    fn check_served(&self, container: &Container) -> Result<()> {
        let wanted = match self {
            Self::Native => "proc",
            Self::Lxcfs(_) => "fuse.lxcfs",
            Self::Elbowroom(_) => "fuse.elbowroom",
        };
        let found = procfs::file_system(container.pid, "/proc/meminfo")?;
        ensure!(found == wanted, "/proc/meminfo in {} is on {found}, not on {wanted}", container.name);
        Ok(())
    }

    /// Every process of the variant, ascending; none for native.
    pub(crate) fn pids(&self) -> Vec<i32> {
        match self {
            Self::Native => Vec::new(),
            Self::Lxcfs(lxcfs) => vec![lxcfs.pid()],
            Self::Elbowroom(product) => product.pids(),
        }
    }
}
