//! Which containers a profile is of.

use anyhow::{Context, Result};
use clap::Args;
use elbowroom_client::control::LoadSources;
use elbowroom_linux::containers::ContainerSelector;
use std::path::PathBuf;

/// Which containers are meant.
#[derive(Args)]
pub(crate) struct ContainerSelection {
    /// Names, ids, beginnings of ids, or paths of any cgroups (`/system.slice/web.service`); all containers by default.
    #[arg(value_name = "CONTAINER")]
    pub containers: Vec<String>,
    /// Configuration file, for what counts as a container.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ContainerSelection {
    pub(crate) fn open(&self, load: LoadSources) -> Result<ContainerSelector> {
        ContainerSelector::open(&load(self.config.as_deref())?).context("looking for containers")
    }
}
