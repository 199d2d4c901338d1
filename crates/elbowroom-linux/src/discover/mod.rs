//! Which cgroups are containers, and their names: from the cgroup's path and the engine's state files alone. No
//! engine is asked, so an engine that hangs or is gone changes nothing.
//!
//! | path | engine |
//! |---|---|
//! | `/docker/<64hex>`, `docker-<64hex>.scope` | Docker |
//! | `cri-containerd-<id>.scope`, `nerdctl-<id>.scope`, `/kubepods/…/pod<uid>/<id>` | containerd |
//! | `/<namespace>/<id>`, if containerd has such a task | containerd |
//! | `<64hex>` below another parent | the one that has state files for it: Docker, Podman |
//! | `libpod-<id>`, `libpod-<id>.scope`; `<service>/libpod-payload-<id>` (split cgroups, Quadlet) | Podman |
//! | `crio-<id>`, `crio-<id>.scope` | CRI-O |
//! | `<slice>:<prefix>:<id>`: a path for systemd, taken literally by a runtime without it | the prefix's |
//! | `lxc.payload.<name>`; before LXC 4 `/lxc/<name>` | LXC, and Incus and LXD, which are built on it |
//! | `machine.slice/systemd-nspawn@<name>.service`; `machine-<name>.scope`, if machined calls it a container | systemd-nspawn |
//! | `/elbowroom/<name>` | `elbowroom run`, which leaves its labels in a file, too |
//! | one the configuration names | plain |
//!
//! Names and labels are in files of the engines. Docker's are below its data root, with `userns-remap` below `<uid>.<gid>` there.
//! Those of containers/storage (Podman, CRI-O) are kept by storage driver, with a separate list for containers that are removed
//! when they end. LXC, Incus and nspawn have names and no labels. `paths.rs` reads the path, `docker.rs`, `containerd.rs`,
//! `storage.rs` and `named.rs` the engines' files; `record.rs` makes a container of what they say.
//!
//! Only cgroups that root made count: a user to whom a cgroup was delegated can give those below it any name. Containers of users
//! (rootless engines) are those that the configuration names. The cgroup of a container's monitor is none, whatever pattern it fits.
//!
//! Where systemd manages cgroups, crun keeps a container and its limits in a cgroup `container` below the scope. The scope itself has no
//! limits until crun 1.8.4, and never those of disks. The container is the scope all the same: it is there before and after that cgroup,
//! its files count what is below, and limits of ours in it are out of the container's reach. While `container` is the only cgroup in a
//! scope, its limits hold for the container too ([`crate::cgroup::subgroup`]). A container of runc that makes such a cgroup limits only
//! itself and keeps its identity. A container that makes a second cgroup beside it is shown the limits of the scope again.
//!
//! A cgroup inside a container (`…/libpod-<id>.scope/container`) is a part of that container, but one that an engine in it made
//! (Docker in Docker, kind) is a container with a view of its own. Only the outer container can vouch for its name and labels, so it has
//! none, and governors take it for a part of the outer one. Its identifier is its whole path, not the identifier in that path, which may
//! be a neighbour's: settings for `db` would apply to any container that makes a cgroup `lxc.payload.db`. The pause container of a pod is
//! not a container here: no program reads a view in it.
//!
//! Users who may create containers choose their names and ids, so these are hostile until shown otherwise. An id is ASCII
//! letters, digits, `_`, `.`, `-` and never `.`-only, so it can stand in a path; a name loses control characters and its
//! end beyond 128 characters.

mod containerd;
mod docker;
mod named;
mod paths;
mod record;
mod state_file;
mod storage;
#[cfg(test)]
mod tests;

pub use record::FoundContainer;
pub use state_file::StateStamp;

use crate::cgroup::CgroupLayout;
use crate::root::{ReadError, Root};
use containerd::ContainerdFiles;
use docker::DockerFiles;
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::glob;
use elbowroom_types::label::{ContainerLabels, LabelPolicy};
use elbowroom_types::visible::is_hidden;
use paths::{PathClaim, is_monitor, path_claim, pod_uid};
use record::{EngineRecord, printable};
use std::path::{Path, PathBuf};
use storage::StorageFiles;

/// Longest path of a container in a container, in bytes of JSON: one in a pod of a Kubernetes node in a container in a pod has some 500.
const MAX_NESTED_PATH_LEN: usize = 1_024;

/// What an operator says of where containers are, beside the usual places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSources {
    /// Patterns of cgroup paths that count as containers.
    pub patterns: Vec<String>,
    /// Where dockerd keeps its containers, where its configuration does not say.
    pub docker_root: Option<PathBuf>,
    /// Where containerd keeps what runs.
    pub containerd_state: Option<PathBuf>,
}

/// Finds containers below one root.
#[derive(Debug)]
pub struct ContainerDiscovery {
    plain: Vec<String>,
    docker: DockerFiles,
    containerd: ContainerdFiles,
    storage: StorageFiles,
    run_labels: Option<PathBuf>,
    label_policy: LabelPolicy,
    /// The one cgroup that can be a container.
    only: Option<String>,
}

impl ContainerDiscovery {
    /// `plain` are patterns of cgroup paths that count as containers: `*` and `?` within a component, `**` for any number of
    /// components. `policy`: which labels count.
    pub fn new(root: &Root, plain: &[String], docker_root: Option<&Path>, policy: LabelPolicy) -> Self {
        Self {
            plain: plain.to_vec(),
            docker: DockerFiles::new(root, docker_root),
            containerd: ContainerdFiles::new(),
            storage: StorageFiles::new(root),
            run_labels: None,
            label_policy: policy,
            only: None,
        }
    }

    /// Looks for containerd's containers below `state` too.
    pub fn with_containerd_state(mut self, state: Option<&Path>) -> Self {
        if let Some(state) = state {
            self.containerd.add(state);
        }
        self
    }

    /// Looks for labels of `elbowroom run` in `dir`: a JSON object each, in a file of the container's name.
    pub fn with_run_labels(mut self, dir: Option<&Path>) -> Self {
        self.run_labels = dir.map(Path::to_owned);
        self
    }

    /// Takes no other cgroup than that at the path `only` for a container.
    pub fn with_only(mut self, only: Option<&str>) -> Self {
        self.only = only.map(|path| path.trim_start_matches('/').to_owned());
        self
    }

    /// The container that the cgroup at `path` (from the hierarchy's root, without a leading slash) is, if it is one.
    /// `inside`: a cgroup above it is a container already.
    pub fn find(
        &mut self,
        root: &Root,
        path: &str,
        inside: bool,
    ) -> Result<Option<FoundContainer>, ReadError> {
        if self.only.as_deref().is_some_and(|only| only != path) {
            return Ok(None);
        }
        if self.plain.iter().any(|pattern| glob::matches(pattern, path)) && !is_monitor(path) {
            let container = ContainerIdentity {
                id: path_id(path),
                name: None,
                engine: ContainerEngine::Plain,
                pod: None,
                labels: ContainerLabels::default(),
            };
            return Ok(Some(FoundContainer { container, state: None }));
        }
        match path_claim(path) {
            None => Ok(None),
            Some(claim) if inside => Ok(nested(claim, path)),
            Some(claim) => self.resolve_claim(root, claim, pod_uid(path)),
        }
    }

    /// The same for a walk over all cgroups, where only what root made counts.
    pub fn find_in(
        &mut self,
        root: &Root,
        layout: &CgroupLayout,
        path: &Path,
        inside: bool,
    ) -> Result<Option<FoundContainer>, ReadError> {
        let found = self.find(root, &path.to_string_lossy(), inside)?;
        let counts = |found: &FoundContainer| found.container.engine == ContainerEngine::Plain;
        Ok(found.filter(|found| counts(found) || layout.is_made_by_root(path)))
    }

    fn resolve_claim(
        &mut self,
        root: &Root,
        claim: PathClaim<'_>,
        uid: Option<String>,
    ) -> Result<Option<FoundContainer>, ReadError> {
        match claim {
            PathClaim::Named(engine, id) => {
                let known = self.engine_record(root, engine, &id, uid.is_some())?.unwrap_or_default();
                Ok(known.into_found(engine, &id, uid))
            }
            PathClaim::Machine(name) => {
                let known = named::machine(root, &name)?;
                Ok(known.and_then(|known| known.into_found(ContainerEngine::Nspawn, &name, uid)))
            }
            PathClaim::Task { namespace, id } => {
                let known = self.containerd.record(root, namespace, id, self.label_policy)?;
                Ok(known.and_then(|known| known.into_found(ContainerEngine::Containerd, id, uid)))
            }
            PathClaim::HexId(id) => {
                for engine in [ContainerEngine::Docker, ContainerEngine::Containerd, ContainerEngine::Podman]
                {
                    if let Some(known) = self.engine_record(root, engine, id, uid.is_some())? {
                        return Ok(known.into_found(engine, id, uid));
                    }
                }
                // Inside a pod it is certainly a container, and containerd is what names them so.
                match uid {
                    Some(_) => Ok(EngineRecord::default().into_found(ContainerEngine::Containerd, id, uid)),
                    None => Ok(None),
                }
            }
        }
    }

    /// What an engine's files say about a container, whose cgroup may be in that of a pod; `None` when they do not know it.
    fn engine_record(
        &mut self,
        root: &Root,
        engine: ContainerEngine,
        id: &str,
        in_pod: bool,
    ) -> Result<Option<EngineRecord>, ReadError> {
        let policy = self.label_policy;
        match engine {
            ContainerEngine::Docker => self.docker.record(root, id, in_pod, policy),
            ContainerEngine::Containerd => self.containerd.record(root, "k8s.io", id, policy),
            ContainerEngine::Podman => self.storage.podman(root, id, policy),
            ContainerEngine::Crio => self.storage.crio(root, id, policy),
            ContainerEngine::Elbowroom => {
                named::run_container(root, self.run_labels.as_deref(), id).map(Some)
            }
            ContainerEngine::Lxc | ContainerEngine::Nspawn => Ok(Some(EngineRecord::named(id))),
            ContainerEngine::Plain => Ok(None),
        }
    }
}

/// Whether a cgroup is called as an engine calls its containers, by whomever.
pub fn is_called_as_container(path: &Path) -> bool {
    matches!(path_claim(&path.to_string_lossy()), Some(PathClaim::Named(..)))
}

/// A container in a container, by its path alone: a file of the host about the id in it would be another container's. The path is its
/// identifier in every row of every table, metric and message: one that is longer than [`MAX_NESTED_PATH_LEN`] is none.
fn nested(claim: PathClaim<'_>, path: &str) -> Option<FoundContainer> {
    if json_len(path) > MAX_NESTED_PATH_LEN {
        return None;
    }
    let uid = pod_uid(path);
    let engine = match claim {
        PathClaim::Named(engine, _) => engine,
        PathClaim::HexId(_) if uid.is_some() => ContainerEngine::Containerd,
        PathClaim::HexId(_) | PathClaim::Task { .. } | PathClaim::Machine(_) => return None,
    };
    let labels = ContainerLabels { governors: Some(false), ..ContainerLabels::default() };
    EngineRecord { labels, ..EngineRecord::default() }.into_found(engine, &path_id(path), uid)
}

/// Bytes that a text has in JSON: an answer of the agent has a path several times, and control characters are six times as long there.
fn json_len(text: &str) -> usize {
    let length = |c: char| match c {
        '"' | '\\' => 2,
        c if is_hidden(c) => 6 * c.len_utf16(),
        c => c.len_utf8(),
    };
    text.chars().map(length).sum()
}

/// The identifier of a container that no engine of the host answers for. No engine's identifiers and names begin with a slash.
fn path_id(path: &str) -> String {
    format!("/{}", printable(path, usize::MAX).unwrap_or_default())
}
