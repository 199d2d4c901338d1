//! Which containers get views, and what they are given.

use anyhow::{Result, ensure};
use elbowroom_linux::discover::ContainerSources;
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::glob;
use elbowroom_types::label::LabelPolicy;
use elbowroom_types::launch::LaunchPlan;
use elbowroom_types::sample::{CgroupProperties, HostEvent};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::PathBuf;

/// Which containers get views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerSettings {
    /// Mount views into containers as they appear. Off: only `attach`, `run` and the OCI hook do.
    pub attach: bool,
    /// Cgroups without an engine that count as containers, as glob patterns of paths below the hierarchy's root.
    pub cgroups: Vec<String>,
    /// Where dockerd keeps its containers, for a dockerd with `--data-root` on its command line.
    pub docker_root: Option<PathBuf>,
    /// Where containerd keeps its running containers, for one with `state` in its configuration.
    pub containerd_state: Option<PathBuf>,
    /// Put limits into the environment of containers that are made, where no label says otherwise: [`LaunchPlan`].
    pub env: bool,
    /// Names or ids, as glob patterns, that are left alone.
    pub exclude: Vec<String>,
    /// Which labels of containers count: see [`elbowroom_types::label`].
    pub labels: LabelPolicy,
    /// Views for an engine's containers in the host's PID namespace too, where no label says otherwise: those are agents of the node.
    pub host_pid: bool,
    /// The one cgroup that can be a container, for an agent that `elbowroom run` starts.
    #[serde(skip)]
    pub only: Option<String>,
}

impl Default for ContainerSettings {
    fn default() -> Self {
        Self {
            attach: true,
            cgroups: Vec::new(),
            docker_root: None,
            containerd_state: None,
            env: false,
            exclude: Vec::new(),
            labels: LabelPolicy::default(),
            host_pid: false,
            only: None,
        }
    }
}

impl ContainerSettings {
    pub(super) fn validate(&self) -> Result<()> {
        for (key, path) in [("docker_root", &self.docker_root), ("containerd_state", &self.containerd_state)]
        {
            let is_absolute = path.as_ref().is_none_or(|path| path.is_absolute());
            ensure!(is_absolute, "containers.{key}: write an absolute path");
        }
        Ok(())
    }

    /// Where containers are looked for.
    pub fn sources(self) -> ContainerSources {
        ContainerSources {
            patterns: self.cgroups,
            docker_root: self.docker_root,
            containerd_state: self.containerd_state,
        }
    }

    /// An event as governors may know it: to them, a container that is left alone is one of the host's own services.
    pub fn mask_ungoverned<'a>(&self, event: &'a HostEvent) -> Cow<'a, HostEvent> {
        let ungoverned = |c: &ContainerIdentity| self.excludes(c) || c.labels.governors == Some(false);
        match event {
            HostEvent::Group(group) if group.container.as_ref().is_some_and(ungoverned) => {
                Cow::Owned(HostEvent::Group(CgroupProperties { container: None, ..group.clone() }))
            }
            event => Cow::Borrowed(event),
        }
    }

    /// Why a container gets no view but by hand; the operator's word goes before its maker's.
    pub(crate) fn view_refusal(&self, container: &ContainerIdentity) -> Option<&'static str> {
        match container.labels.views {
            _ if self.excludes(container) => Some("excluded by configuration"),
            Some(false) => Some("its label elbowroom.dev/views is off"),
            Some(true) | None => None,
        }
    }

    /// Why a container gets no view where its first process is in the host's PID namespace: a program that sees the node's processes is
    /// to see the node's memory and CPUs. Containers that no engine made are always in that namespace.
    pub(crate) fn host_pid_refusal(&self, container: &ContainerIdentity) -> Option<&'static str> {
        let is_engines = !matches!(container.engine, ContainerEngine::Elbowroom | ContainerEngine::Plain);
        (is_engines && !self.host_pid && container.labels.views != Some(true)).then_some(
            "it is in the host's PID namespace and sees the node: the label elbowroom.dev/views=on gives it a view",
        )
    }

    /// Why a container gets no view as soon as it is seen.
    pub(crate) fn auto_attach_refusal(&self, container: &ContainerIdentity) -> Option<&'static str> {
        let asked_for = self.attach || container.labels.views == Some(true);
        self.view_refusal(container).or_else(|| (!asked_for).then_some("containers.attach is off"))
    }

    /// What a container that is about to be made is given.
    pub(crate) fn launch_plan(&self, container: &ContainerIdentity) -> LaunchPlan {
        let plan = LaunchPlan::new(&container.labels, self.attach, self.env);
        match self.view_refusal(container) {
            _ if self.excludes(container) => LaunchPlan::default(),
            Some(_) => LaunchPlan { injections: plan.injections.without_views(), ..LaunchPlan::default() },
            None => plan,
        }
    }

    /// Whether a container is to be left alone.
    pub(crate) fn excludes(&self, container: &ContainerIdentity) -> bool {
        self.excludes_named(&container.id, container.name.as_deref())
    }

    /// The same, by its identifier and the name people use.
    pub(crate) fn excludes_named(&self, id: &str, name: Option<&str>) -> bool {
        let fits = |pattern: &String| {
            glob::matches(pattern, id) || name.is_some_and(|name| glob::matches(pattern, name))
        };
        self.exclude.iter().any(fits)
    }
}
