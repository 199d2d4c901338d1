//! Which cgroups are containers, and what people call them: from the cgroup's path and the engine's state files alone. No
//! engine is asked; one that hangs or is gone changes nothing.
//!
//! | path | engine |
//! |---|---|
//! | `/docker/<64hex>`, `docker-<64hex>.scope` | Docker |
//! | `cri-containerd-<id>.scope`, `nerdctl-<id>.scope`, `/kubepods/…/pod<uid>/<id>` | containerd |
//! | `/<namespace>/<id>`, if containerd has such a task | containerd |
//! | `<64hex>` below another parent | whoever has state files for it: Docker, Podman |
//! | `libpod-<id>`, `libpod-<id>.scope`; `<service>/libpod-payload-<id>` (split cgroups, Quadlet) | Podman |
//! | `crio-<id>`, `crio-<id>.scope` | CRI-O |
//! | `<slice>:<prefix>:<id>`: a path for systemd, taken literally by a runtime without it | the prefix's |
//! | `lxc.payload.<name>`; before LXC 4 `/lxc/<name>` | LXC, and Incus and LXD, which are built on it |
//! | `machine.slice/systemd-nspawn@<name>.service`; `machine-<name>.scope`, if machined calls it a container | systemd-nspawn |
//! | `/elbowroom/<name>` | `elbowroom run`, which leaves its labels in a file, too |
//! | one the configuration names | plain |
//!
//! Names and labels are in files of the engines: Docker's below its data root, with `userns-remap` below `<uid>.<gid>` there; those of
//! containers/storage (Podman, CRI-O) by storage driver, with a list of its own for containers that are removed when they end. LXC,
//! Incus and nspawn have names and no labels.
//!
//! Only what root made counts: a user to whom a cgroup was delegated could call his own as he likes. Containers of users
//! (rootless engines) are those that the configuration names.
//!
//! A cgroup inside a container (`…/libpod-<id>.scope/container`) is a part of that container, but one that an engine in it made
//! (Docker in Docker, kind) is a container with a view of its own. Its name and labels are where no one but the outer container can
//! vouch for them, so it has none, and governors take it for a part of the outer one. The pause container of a pod is none: nobody
//! reads a view in it.
//!
//! Names and ids come from whoever may create containers, so they are hostile until shown otherwise: an id is ASCII
//! letters, digits, `_`, `.`, `-` and never `.`-only, so it can stand in a path; a name loses control characters and its
//! end beyond 128 characters.

mod paths;

use crate::root::{ReadError, Root, if_present};
use elbowroom_types::container::{ContainerEngine, ContainerIdentity, Pod};
use elbowroom_types::glob;
use elbowroom_types::label::{ContainerLabels, LabelPolicy};
use paths::{PathClaim, is_id, path_claim, pod_uid};
use rustix::fs::OFlags;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where dockerd keeps its containers where nothing says otherwise: of a package, of the snap, and balenaEngine.
const DOCKER_ROOTS: [&str; 3] =
    ["var/lib/docker", "var/snap/docker/common/var-lib-docker", "var/lib/balena-engine"];
/// Where containerd keeps what runs: of a package, of k3s and RKE2, of k0s, of MicroK8s.
const CONTAINERD_STATES: [&str; 4] =
    ["run/containerd", "run/k3s/containerd", "run/k0s/containerd", "var/snap/microk8s/common/run/containerd"];
/// Below that, the bundles of tasks: `<namespace>/<id>/config.json`.
const CONTAINERD_TASKS: &str = "io.containerd.runtime.v2.task";
/// Where containers/storage (Podman, CRI-O) keeps what stays and what is gone with a boot, where its configuration does not say.
const STORAGE_ROOTS: [&str; 2] = ["var/lib/containers/storage", "run/containers/storage"];
/// Its configuration, an administrator's and a package's.
const STORAGE_CONFIGS: [&str; 2] = ["etc/containers/storage.conf", "usr/share/containers/storage.conf"];
/// Its drivers: each has a directory of containers below a root.
const STORAGE_DRIVERS: [&str; 4] = ["overlay", "vfs", "btrfs", "zfs"];
/// The lists in it: the second is of containers that are removed when they end.
const STORAGE_LISTS: [&str; 2] = ["containers.json", "volatile-containers.json"];
/// What systemd-machined knows of a machine, by its name.
const MACHINES: &str = "run/systemd/machines";
const MAX_NAME_LEN: usize = 128;

/// A container that was found, and the file its names came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundContainer {
    /// The container.
    pub container: ContainerIdentity,
    /// The engine's state file about it, with the instant of its last change: a rename changes it.
    pub state: Option<(PathBuf, StateStamp)>,
}

/// A file's last change and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateStamp(i64, i64, i64);

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
    docker_roots: Vec<PathBuf>,
    containerd_states: Vec<PathBuf>,
    storage_roots: Vec<PathBuf>,
    run_labels: Option<PathBuf>,
    label_policy: LabelPolicy,
    /// The one cgroup that can be a container.
    only: Option<String>,
    /// Lists of containers/storage by file, read again when they change.
    storage: HashMap<PathBuf, (StateStamp, HashMap<String, String>)>,
}

impl ContainerDiscovery {
    /// `plain` are patterns of cgroup paths that count as containers: `*` and `?` within a component, `**` for any number of
    /// components. `heed`: which labels count.
    pub fn new(root: &Root, plain: &[String], docker_root: Option<&Path>, heed: LabelPolicy) -> Self {
        #[derive(Deserialize)]
        struct DockerDaemonConfig {
            #[serde(rename = "data-root")]
            data_root: Option<PathBuf>,
        }
        let configured =
            read_json::<DockerDaemonConfig>(root, Path::new("etc/docker/daemon.json")).ok().flatten();
        let configured = configured.and_then(|d| d.data_root);
        let docker_roots = match docker_root.map(Path::to_owned).or(configured) {
            Some(root) => vec![root],
            None => DOCKER_ROOTS.map(PathBuf::from).into(),
        };
        let containerd_states = CONTAINERD_STATES.map(PathBuf::from).into();
        let plain = plain.to_vec();
        Self {
            plain,
            docker_roots,
            containerd_states,
            storage_roots: storage_roots(root),
            run_labels: None,
            label_policy: heed,
            only: None,
            storage: HashMap::new(),
        }
    }

    /// Looks for containerd's containers below `state` too.
    pub fn with_containerd_state(mut self, state: Option<&Path>) -> Self {
        self.containerd_states.extend(state.map(Path::to_owned));
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
        if self.plain.iter().any(|pattern| glob::matches(pattern, path)) {
            let id = format!("/{}", printable(path, usize::MAX).unwrap_or_default());
            let container = ContainerIdentity {
                id,
                name: None,
                engine: ContainerEngine::Plain,
                pod: None,
                labels: ContainerLabels::default(),
            };
            return Ok(Some(FoundContainer { container, state: None }));
        }
        match path_claim(path) {
            None => Ok(None),
            Some(claim) if inside => Ok(nested(claim, pod_uid(path))),
            Some(claim) => self.resolve_claim(root, claim, pod_uid(path)),
        }
    }

    /// The last change of a state file; `None` when it is gone.
    pub fn stamp(root: &Root, file: &Path) -> Option<StateStamp> {
        let stat = rustix::fs::fstat(root.open(file, OFlags::PATH).ok()?).ok()?;
        Some(StateStamp(stat.st_mtime as i64, stat.st_mtime_nsec as i64, stat.st_size))
    }

    fn resolve_claim(
        &mut self,
        root: &Root,
        claim: PathClaim<'_>,
        uid: Option<String>,
    ) -> Result<Option<FoundContainer>, ReadError> {
        match claim {
            PathClaim::Named(engine, id) => {
                let known = self.engine_record(root, engine, &id)?.unwrap_or_default();
                Ok(known.into_found(engine, &id, uid))
            }
            PathClaim::Machine(name) => {
                let known = machine(root, &name)?;
                Ok(known.and_then(|known| known.into_found(ContainerEngine::Nspawn, &name, uid)))
            }
            PathClaim::Task { namespace, id } => {
                let known = self.containerd(root, namespace, id)?;
                Ok(known.and_then(|known| known.into_found(ContainerEngine::Containerd, id, uid)))
            }
            PathClaim::HexId(id) => {
                for engine in [ContainerEngine::Docker, ContainerEngine::Containerd, ContainerEngine::Podman]
                {
                    if let Some(known) = self.engine_record(root, engine, id)? {
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

    /// What an engine's files say about a container; `None` when they do not know it.
    fn engine_record(
        &mut self,
        root: &Root,
        engine: ContainerEngine,
        id: &str,
    ) -> Result<Option<EngineRecord>, ReadError> {
        match engine {
            ContainerEngine::Docker => self.docker(root, id),
            ContainerEngine::Containerd => self.containerd(root, "k8s.io", id),
            ContainerEngine::Podman => self.podman(root, id),
            ContainerEngine::Crio => self.crio(root, id),
            ContainerEngine::Elbowroom => self.run_container(root, id).map(Some),
            ContainerEngine::Lxc | ContainerEngine::Nspawn => Ok(Some(EngineRecord::named(id))),
            ContainerEngine::Plain => Ok(None),
        }
    }

    fn run_container(&self, root: &Root, name: &str) -> Result<EngineRecord, ReadError> {
        let known = EngineRecord::named(name);
        let Some(file) = self.run_labels.as_ref().map(|dir| dir.join(name)) else { return Ok(known) };
        Ok(match read_json_stamped::<HashMap<String, String>>(root, &file)? {
            Some((labels, stamp)) => {
                // Root's own words: no container's maker can write there.
                EngineRecord {
                    labels: parse_labels(&labels, LabelPolicy::All).as_promised(),
                    state: Some((file, stamp)),
                    ..known
                }
            }
            None => known,
        })
    }

    fn docker(&self, root: &Root, id: &str) -> Result<Option<EngineRecord>, ReadError> {
        #[derive(Deserialize)]
        struct DockerState {
            #[serde(rename = "Name")]
            name: Option<String>,
            #[serde(rename = "Config")]
            config: Option<DockerStateConfig>,
        }
        #[derive(Deserialize)]
        struct DockerStateConfig {
            #[serde(rename = "Labels")]
            labels: Option<HashMap<String, String>>,
        }
        let Some(file) = self.docker_file(root, id) else { return Ok(None) };
        let Some((state, stamp)) = read_json_stamped::<DockerState>(root, &file)? else { return Ok(None) };
        let labels = state.config.and_then(|c| c.labels).unwrap_or_default();
        let label = |key: &str| labels.get(key).cloned();
        Ok(Some(EngineRecord {
            name: label("io.kubernetes.container.name")
                .or_else(|| state.name.map(|n| n.trim_start_matches('/').to_owned())),
            pod: label("io.kubernetes.pod.name"),
            namespace: label("io.kubernetes.pod.namespace"),
            uid: label("io.kubernetes.pod.uid"),
            sandbox: label("io.kubernetes.docker.type").as_deref() == Some("podsandbox"),
            labels: parse_labels(&labels, self.label_policy),
            state: Some((file, stamp)),
        }))
    }

    /// Docker's file about a container: below a data root, or in it below the user and group that containers' root is mapped to
    /// (`userns-remap`; moby, daemon/daemon_unix.go, `setupDaemonRoot`).
    fn docker_file(&self, root: &Root, id: &str) -> Option<PathBuf> {
        let remapped = |dir: &PathBuf| {
            let names = root.directories(dir).unwrap_or_default().into_iter();
            let numbers = |name: &OsString| {
                let pair = name.to_str().and_then(|name| name.split_once('.'));
                pair.is_some_and(|(uid, gid)| uid.parse::<u32>().is_ok() && gid.parse::<u32>().is_ok())
            };
            names.filter(numbers).map(|name| dir.join(name)).collect::<Vec<_>>()
        };
        let file = |dir: PathBuf| dir.join("containers").join(id).join("config.v2.json");
        let is_there = |file: &PathBuf| Self::stamp(root, file).is_some();
        let plain = self.docker_roots.iter().cloned().map(file).find(is_there);
        plain.or_else(|| self.docker_roots.iter().flat_map(remapped).map(file).find(is_there))
    }

    fn containerd(&self, root: &Root, namespace: &str, id: &str) -> Result<Option<EngineRecord>, ReadError> {
        for state in &self.containerd_states {
            let file = state.join(CONTAINERD_TASKS).join(namespace).join(id).join("config.json");
            let Some((bundle, stamp)) = read_json_stamped::<OciBundleConfig>(root, &file)? else { continue };
            let note = |key: &str| bundle.annotations.get(key).cloned();
            return Ok(Some(EngineRecord {
                name: note("io.kubernetes.cri.container-name").or_else(|| note("nerdctl/name")),
                pod: note("io.kubernetes.cri.sandbox-name"),
                namespace: note("io.kubernetes.cri.sandbox-namespace"),
                uid: note("io.kubernetes.cri.sandbox-uid"),
                sandbox: note("io.kubernetes.cri.container-type").as_deref() == Some("sandbox"),
                labels: parse_labels(&bundle.annotations, self.label_policy),
                state: Some((file, stamp)),
            }));
        }
        Ok(None)
    }

    /// The first name containers/storage has for an id. Its lists are shared by all containers, so they are kept.
    fn podman(&mut self, root: &Root, id: &str) -> Result<Option<EngineRecord>, ReadError> {
        #[derive(Deserialize)]
        struct StorageRow {
            id: String,
            #[serde(default)]
            names: Vec<String>,
        }
        for dir in self.storage_dirs() {
            for file in STORAGE_LISTS.map(|list| dir.join(list)) {
                let Some(stamp) = Self::stamp(root, &file) else { continue };
                if self.storage.get(&file).is_none_or(|(read, _)| *read != stamp) {
                    let rows = read_json::<Vec<StorageRow>>(root, &file)?.unwrap_or_default();
                    let names =
                        rows.into_iter().filter_map(|row| Some((row.id, row.names.into_iter().next()?)));
                    self.storage.insert(file.clone(), (stamp, names.collect()));
                }
                if let Some(name) = self.storage.get(&file).and_then(|(_, names)| names.get(id)) {
                    let (name, state) = (Some(name.clone()), Some((file, stamp)));
                    let bundle = read_json::<OciBundleConfig>(root, &bundle_file(&dir, id))?;
                    let labels = bundle
                        .map(|bundle| parse_labels(&bundle.annotations, self.label_policy))
                        .unwrap_or_default();
                    return Ok(Some(EngineRecord { name, labels, state, ..EngineRecord::default() }));
                }
            }
        }
        Ok(None)
    }

    /// CRI-O runs bundles from the directory that is gone with a boot; what the kubelet gave is in annotations, as JSON.
    fn crio(&self, root: &Root, id: &str) -> Result<Option<EngineRecord>, ReadError> {
        for file in self.storage_dirs().into_iter().rev().map(|dir| bundle_file(&dir, id)) {
            let Some((bundle, stamp)) = read_json_stamped::<OciBundleConfig>(root, &file)? else { continue };
            let note = |key: &str| bundle.annotations.get(key).cloned();
            let mut labels = HashMap::new();
            for key in ["io.kubernetes.cri-o.Labels", "io.kubernetes.cri-o.Annotations"] {
                let given =
                    note(key).and_then(|text| serde_json::from_str::<HashMap<String, String>>(&text).ok());
                labels.extend(given.unwrap_or_default());
            }
            labels.extend(bundle.annotations.clone());
            return Ok(Some(EngineRecord {
                name: note("io.kubernetes.container.name"),
                pod: note("io.kubernetes.pod.name"),
                namespace: note("io.kubernetes.pod.namespace"),
                uid: note("io.kubernetes.pod.uid"),
                sandbox: note("io.kubernetes.cri-o.ContainerType").as_deref() == Some("sandbox"),
                labels: parse_labels(&labels, self.label_policy),
                state: Some((file, stamp)),
            }));
        }
        Ok(None)
    }

    /// The directories of containers that containers/storage may have.
    fn storage_dirs(&self) -> Vec<PathBuf> {
        let drivers = STORAGE_DRIVERS.map(|driver| format!("{driver}-containers"));
        self.storage_roots.iter().flat_map(|root| drivers.iter().map(|dir| root.join(dir))).collect()
    }
}

/// Where the bundle of a container is, in a directory of containers/storage.
fn bundle_file(dir: &Path, id: &str) -> PathBuf {
    dir.join(id).join("userdata/config.json")
}

/// The roots of containers/storage: the usual ones, and those that its configuration names.
fn storage_roots(root: &Root) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = STORAGE_ROOTS.map(PathBuf::from).into();
    let texts = STORAGE_CONFIGS.iter().filter_map(|file| root.read(file).ok());
    for line in texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()) {
        let Some((key, value)) = line.split_once('=') else { continue };
        let path = Path::new(value.trim().trim_matches('"'));
        if matches!(key.trim(), "graphroot" | "runroot")
            && path.is_absolute()
            && !roots.iter().any(|root| Path::new("/").join(root) == path)
        {
            roots.push(path.to_owned());
        }
    }
    roots
}

/// What machined knows of a machine, if it is a container: a virtual machine's processes are the host's.
fn machine(root: &Root, name: &str) -> Result<Option<EngineRecord>, ReadError> {
    let text = if_present(root.read(Path::new(MACHINES).join(name)))?.unwrap_or_default();
    Ok(text.lines().any(|line| line == "CLASS=container").then(|| EngineRecord::named(name)))
}

/// A container in a container, by its path alone: a file of the host about this id would be another container's.
fn nested(claim: PathClaim<'_>, uid: Option<String>) -> Option<FoundContainer> {
    let (engine, id) = match claim {
        PathClaim::Named(engine, id) => (engine, id),
        PathClaim::HexId(id) if uid.is_some() => (ContainerEngine::Containerd, id.into()),
        PathClaim::HexId(_) | PathClaim::Task { .. } | PathClaim::Machine(_) => return None,
    };
    let labels = ContainerLabels { governors: Some(false), ..ContainerLabels::default() };
    EngineRecord { labels, ..EngineRecord::default() }.into_found(engine, &id, uid)
}

/// What an engine's files say.
#[derive(Default)]
struct EngineRecord {
    name: Option<String>,
    pod: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    sandbox: bool,
    labels: ContainerLabels,
    state: Option<(PathBuf, StateStamp)>,
}

impl EngineRecord {
    /// Of an engine that knows its containers by name, and keeps no labels.
    fn named(name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..Self::default() }
    }

    fn into_found(self, engine: ContainerEngine, id: &str, uid: Option<String>) -> Option<FoundContainer> {
        if self.sandbox {
            return None;
        }
        let tidy = |text: Option<String>| text.and_then(|t| printable(&t, MAX_NAME_LEN));
        let pod = uid.or(self.uid.filter(|uid| is_id(uid))).map(|uid| Pod {
            uid,
            name: tidy(self.pod),
            namespace: tidy(self.namespace),
        });
        let container =
            ContainerIdentity { id: id.to_owned(), name: tidy(self.name), engine, pod, labels: self.labels };
        Some(FoundContainer { container, state: self.state })
    }
}

fn parse_labels(labels: &HashMap<String, String>, heed: LabelPolicy) -> ContainerLabels {
    ContainerLabels::parse(labels.iter().map(|(key, value)| (key.as_str(), value.as_str())), heed)
}

/// The part of an OCI bundle's `config.json` that names things.
#[derive(Deserialize)]
struct OciBundleConfig {
    #[serde(default)]
    annotations: HashMap<String, String>,
}

/// `text` fit to print: control and direction characters become U+FFFD, and it ends after `longest` characters.
fn printable(text: &str, longest: usize) -> Option<String> {
    let hides = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let text: String = text.chars().take(longest).map(|c| if hides(c) { '\u{fffd}' } else { c }).collect();
    (!text.is_empty()).then_some(text)
}

/// A JSON file with the stamp it had before it was read.
fn read_json_stamped<T: DeserializeOwned>(
    root: &Root,
    file: &Path,
) -> Result<Option<(T, StateStamp)>, ReadError> {
    let Some(stamp) = ContainerDiscovery::stamp(root, file) else { return Ok(None) };
    Ok(read_json(root, file)?.map(|value| (value, stamp)))
}

fn read_json<T: DeserializeOwned>(root: &Root, file: &Path) -> Result<Option<T>, ReadError> {
    let Some(text) = if_present(root.read(file))? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|e| {
        // These files are one long line: quote what is before the place.
        let before: Vec<&str> = text.lines().take(e.line()).collect();
        let line = before.last().copied().unwrap_or("");
        let skip = line.chars().count().min(e.column()).saturating_sub(60);
        let line: String = line.chars().skip(skip).collect();
        ReadError::malformed(file, crate::parse::malformed(&line, "the JSON this engine writes"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;
    use proptest::prelude::*;

    const HEX: &str = "4f1c2a9be07d53c8a6e1d4b70935fa8210c7be694d3528af71e60b9c8d2f5a34";

    fn find(archive: &str, path: &str) -> Option<ContainerIdentity> {
        let host = Fixture::new(archive).unwrap();
        let root = Root::at(host.path()).unwrap();
        let found =
            ContainerDiscovery::new(&root, &[], None, LabelPolicy::All).find(&root, path, false).unwrap();
        found.map(|f| f.container)
    }

    fn engine(path: &str) -> Option<(ContainerEngine, String)> {
        find("", path).map(|c| (c.engine, c.id))
    }

    #[test]
    fn paths_tell_engines_apart() {
        let is = |e| Some((e, HEX.to_owned()));
        let uid = "1a2b3c4d-1111-2222-3333-444455556666";
        for (path, expect) in [
            (format!("docker/{HEX}"), is(ContainerEngine::Docker)),
            (format!("system.slice/docker-{HEX}.scope"), is(ContainerEngine::Docker)),
            (format!("kubepods/burstable/pod{uid}/{HEX}"), is(ContainerEngine::Containerd)),
            (
                format!(
                    "kubepods.slice/kubepods-pod{}.slice/cri-containerd-{HEX}.scope",
                    uid.replace('-', "_")
                ),
                is(ContainerEngine::Containerd),
            ),
            (format!("kubepods/pod{uid}/crio-{HEX}"), is(ContainerEngine::Crio)),
            (format!("machine.slice/libpod-{HEX}.scope"), is(ContainerEngine::Podman)),
            (format!("libpod_parent/libpod-{HEX}"), is(ContainerEngine::Podman)),
            ("elbowroom/web".into(), Some((ContainerEngine::Elbowroom, "web".into()))),
            (format!("system.slice/web.service/libpod-payload-{HEX}"), is(ContainerEngine::Podman)),
            (
                format!("machine.slice/machine-libpod_pod_{HEX}.slice/libpod-{HEX}.scope"),
                is(ContainerEngine::Podman),
            ),
            (format!("system.slice:docker:{HEX}"), is(ContainerEngine::Docker)),
            (
                format!(
                    "system.slice/containerd.service/kubepods-pod{}.slice:cri-containerd:{HEX}",
                    uid.replace('-', "_")
                ),
                is(ContainerEngine::Containerd),
            ),
            (format!("system.slice:web:{HEX}"), None),
            ("system.slice:docker:web".into(), None),
            ("lxc.payload.web".into(), Some((ContainerEngine::Lxc, "web".into()))),
            ("lxc.payload.shop_web-1".into(), Some((ContainerEngine::Lxc, "shop_web-1".into()))),
            (
                "system.slice/lxc@web.service/lxc.payload.web".into(),
                Some((ContainerEngine::Lxc, "web".into())),
            ),
            ("lxc/web".into(), Some((ContainerEngine::Lxc, "web".into()))),
            ("lxc.monitor.web".into(), None),
            (
                "machine.slice/systemd-nspawn@web.service".into(),
                Some((ContainerEngine::Nspawn, "web".into())),
            ),
            (
                r"machine.slice/systemd-nspawn@web\x2d1.service".into(),
                Some((ContainerEngine::Nspawn, "web-1".into())),
            ),
            ("machine.slice/systemd-nspawn@web.service/payload".into(), None),
            ("machine.slice/machine-web.scope".into(), None),
            ("machine.slice/systemd-machined.service".into(), None),
            (format!("machine.slice/libpod-conmon-{HEX}.scope"), None),
            (format!("kubepods/pod{uid}/crio-conmon-{HEX}.scope"), None),
            ("system.slice/docker-proxy.scope".into(), None),
            ("system.slice/docker.service".into(), None),
            ("elbowroom".into(), None),
            ("elbowroom/web/worker".into(), None),
            (format!("kubepods/burstable/pod{uid}"), None),
            (format!("mine/{HEX}"), None),
            ("default/web".into(), None),
            ("docker".into(), None),
            (String::new(), None),
        ] {
            assert_eq!(engine(&path), expect, "{path}");
        }
    }

    #[test]
    fn labels_are_read_from_the_engines_own_files() {
        let label = "\"elbowroom.dev/views\":\"off\"";
        let docker = format!(
            "-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{\"Config\":{{\"Labels\":{{{label}}}}}}}\n"
        );
        let bundle = |file: &str| format!("-- {file} --\n{{\"annotations\":{{{label}}}}}\n");
        let storage = "var/lib/containers/storage/overlay-containers";
        let podman = format!("-- {storage}/containers.json --\n[{{\"id\":\"{HEX}\",\"names\":[\"db\"]}}]\n");
        for (archive, path) in [
            (docker, format!("docker/{HEX}")),
            (
                bundle("run/containerd/io.containerd.runtime.v2.task/default/web/config.json"),
                "default/web".to_owned(),
            ),
            (
                podman + &bundle(&format!("{storage}/{HEX}/userdata/config.json")),
                format!("machine.slice/libpod-{HEX}.scope"),
            ),
            (
                bundle(&format!("run/containers/storage/overlay-containers/{HEX}/userdata/config.json")),
                format!("crio-{HEX}"),
            ),
        ] {
            assert_eq!(find(&archive, &path).unwrap().labels.views, Some(false), "{path}");
        }
    }

    #[test]
    fn rare_places_of_state_files_are_known() {
        let label = "\"elbowroom.dev/views\":\"off\"";
        let docker = |dir: &str| {
            format!(
                "-- {dir}/containers/{HEX}/config.v2.json --\n{{\"Name\":\"/db\",\"Config\":{{\"Labels\":{{{label}}}}}}}\n"
            )
        };
        let storage = |dir: &str, list: &str| {
            format!(
                "-- {dir}/{list} --\n[{{\"id\":\"{HEX}\",\"names\":[\"db\"]}}]\n\
                 -- {dir}/{HEX}/userdata/config.json --\n{{\"annotations\":{{{label}}}}}\n"
            )
        };
        let moved =
            "-- etc/containers/storage.conf --\n[storage]\ndriver = \"overlay\"\ngraphroot = \"/srv/pods\"\n";
        let given = "\"io.kubernetes.container.name\":\"db\",\"io.kubernetes.cri-o.Annotations\":\"{\\\"elbowroom.dev/views\\\":\\\"off\\\"}\"";
        let (podman, payload) =
            (format!("libpod_parent/libpod-{HEX}"), format!("system.slice/db.service/libpod-payload-{HEX}"));
        for (archive, path) in [
            (docker("var/lib/docker/231072.231072"), format!("docker/{HEX}")),
            (docker("var/lib/docker/231072.231072"), format!("mine.slice/{HEX}")),
            (docker("var/snap/docker/common/var-lib-docker"), format!("docker/{HEX}")),
            (
                format!(
                    "-- etc/docker/daemon.json --\n{{\"data-root\":\"/srv/d\"}}\n{}",
                    docker("srv/d/100000.65536")
                ),
                format!("docker/{HEX}"),
            ),
            (storage("var/lib/containers/storage/overlay-containers", "containers.json"), payload),
            (
                storage("var/lib/containers/storage/overlay-containers", "volatile-containers.json"),
                podman.clone(),
            ),
            (storage("var/lib/containers/storage/zfs-containers", "containers.json"), podman.clone()),
            (format!("{moved}{}", storage("srv/pods/overlay-containers", "containers.json")), podman),
            (
                format!(
                    "-- run/containers/storage/vfs-containers/{HEX}/userdata/config.json --\n{{\"annotations\":{{{given}}}}}\n"
                ),
                format!("crio-{HEX}"),
            ),
        ] {
            let found = find(&archive, &path).unwrap();
            assert_eq!(
                (found.name.as_deref(), found.labels.views),
                (Some("db"), Some(false)),
                "{path}: {archive}"
            );
        }
        // A directory that only looks like one of a remapped root.
        assert_eq!(
            find(&docker("var/lib/docker/overlay2.old"), &format!("docker/{HEX}")).unwrap().name,
            None
        );
    }

    #[test]
    fn a_registered_machine_is_a_container_if_machined_says_so() {
        let machine = |class: &str| {
            format!("-- run/systemd/machines/web-1 --\n# This is private data.\nNAME=web-1\nCLASS={class}\n")
        };
        let path = r"machine.slice/machine-web\x2d1.scope";
        let found = find(&machine("container"), path).unwrap();
        assert_eq!(
            (found.engine, found.id.as_str(), found.name.as_deref()),
            (ContainerEngine::Nspawn, "web-1", Some("web-1"))
        );
        assert_eq!(find(&machine("vm"), path), None);
    }

    #[test]
    fn a_run_has_the_labels_of_its_own_file() {
        let archive = "-- run/elbowroom/labels/web --\n{\"elbowroom.dev/priority\":\"tier=1\"}\n";
        let host = Fixture::new(archive).unwrap();
        let root = Root::at(host.path()).unwrap();
        let dir = Some(Path::new("/run/elbowroom/labels"));
        let mut discover = ContainerDiscovery::new(&root, &[], None, LabelPolicy::All).with_run_labels(dir);
        let mut find = |path| discover.find(&root, path, false).unwrap().unwrap();
        let (web, db) = (find("elbowroom/web"), find("elbowroom/db"));
        assert_eq!(web.container.labels.claim().tier, 1);
        assert_eq!(web.state.unwrap().0, Path::new("/run/elbowroom/labels/web"));
        assert_eq!(
            (db.container.name.as_deref(), db.container.labels),
            (Some("db"), ContainerLabels::default())
        );
        assert_eq!(db.state, None);
    }

    #[test]
    fn a_pods_uid_reads_the_same_from_both_drivers() {
        let uid = "1a2b3c4d-1111-2222-3333-444455556666";
        for path in [
            format!("kubepods/besteffort/pod{uid}/{HEX}"),
            format!(
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice/crio-{HEX}.scope",
                uid.replace('-', "_")
            ),
        ] {
            assert_eq!(find("", &path).unwrap().pod.unwrap().uid, uid, "{path}");
        }
    }

    #[test]
    fn engines_state_files_give_names() {
        let docker = format!(
            "-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{\"Name\":\"/web\",\"Config\":{{\"Labels\":null}}}}\n"
        );
        assert_eq!(find(&docker, &format!("docker/{HEX}")).unwrap().name.as_deref(), Some("web"));
        assert_eq!(find(&docker, &format!("mine/{HEX}")).unwrap().engine, ContainerEngine::Docker);
        let moved = format!(
            "-- etc/docker/daemon.json --\n{{\"data-root\":\"/srv/docker\"}}\n{}",
            docker.replace("var/lib/docker", "srv/docker")
        );
        assert_eq!(find(&moved, &format!("docker/{HEX}")).unwrap().name.as_deref(), Some("web"));

        let podman = format!(
            "-- var/lib/containers/storage/overlay-containers/containers.json --\n[{{\"id\":\"{HEX}\",\"names\":[\"db\"]}}]\n"
        );
        assert_eq!(
            find(&podman, &format!("machine.slice/libpod-{HEX}.scope")).unwrap().name.as_deref(),
            Some("db")
        );

        let task = "-- run/containerd/io.containerd.runtime.v2.task/default/web/config.json --\n{\"ociVersion\":\"1.1.0\"}\n";
        assert_eq!(find(task, "default/web").unwrap().engine, ContainerEngine::Containerd);
        assert_eq!(find(task, "default/other"), None);
    }

    #[test]
    fn kubernetes_annotations_name_container_and_pod() {
        let bundle = |kind: &str| {
            format!(
                "-- run/containerd/io.containerd.runtime.v2.task/k8s.io/{HEX}/config.json --\n{{\"annotations\":{{\
                 \"io.kubernetes.cri.container-type\":\"{kind}\",\"io.kubernetes.cri.container-name\":\"app\",\
                 \"io.kubernetes.cri.sandbox-name\":\"app-0\",\"io.kubernetes.cri.sandbox-namespace\":\"prod\"}}}}\n"
            )
        };
        let path = format!("kubepods/pod1a2b3c4d-1111-2222-3333-444455556666/{HEX}");
        let app = find(&bundle("container"), &path).unwrap();
        let pod = app.pod.unwrap();
        assert_eq!(
            (app.name.as_deref(), pod.name.as_deref(), pod.namespace.as_deref()),
            (Some("app"), Some("app-0"), Some("prod"))
        );
        assert_eq!(find(&bundle("sandbox"), &path), None, "the pause container is none");
    }

    #[test]
    fn hostile_names_are_harmless() {
        let named = |name: &str| {
            let json = serde_json::to_string(name).unwrap();
            let archive =
                format!("-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{\"Name\":{json}}}\n");
            find(&archive, &format!("docker/{HEX}")).unwrap().name
        };
        assert_eq!(named("/a\nb\u{1b}[31m\u{202e}").as_deref(), Some("a\u{fffd}b\u{fffd}[31m\u{fffd}"));
        assert_eq!(named(&"x".repeat(10_000)).unwrap().len(), 128);
        assert_eq!(named("/"), None);
        for path in
            ["elbowroom/..", "elbowroom/.", "default/..", "../../etc", "elbowroom/a\nb", "elbowroom/\u{fffd}"]
        {
            assert_eq!(find("", path), None, "{path:?}");
        }
        let path = format!("kubepods/pod{}/{HEX}", "../".repeat(30));
        assert_eq!(find("", &path), None);
        let long = format!("elbowroom/{}", "x".repeat(10_000));
        assert_eq!(find("", &long), None);
    }

    #[test]
    fn broken_state_is_an_error_that_quotes_it_and_names_the_file() {
        let host = Fixture::new(&format!(
            "-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{{}\"Name\": tru}}\n",
            " ".repeat(500)
        ))
        .unwrap();
        let root = Root::at(host.path()).unwrap();
        let err = ContainerDiscovery::new(&root, &[], None, LabelPolicy::All)
            .find(&root, &format!("docker/{HEX}"), false)
            .unwrap_err()
            .to_string();
        assert!(err.contains("config.v2.json") && err.contains("tru"), "{err}");
    }

    #[test]
    fn a_cgroup_inside_a_container_is_a_part_of_it_unless_configured_or_an_engines() {
        let host = Fixture::new(&format!(
            "-- var/lib/docker/containers/{HEX}/config.v2.json --\n{{\"Name\":\"/other\"}}\n"
        ))
        .unwrap();
        let root = Root::at(host.path()).unwrap();
        let mut discover =
            ContainerDiscovery::new(&root, &["/docker/*/inner".to_owned()], None, LabelPolicy::All);
        let mut find = |path: &str| {
            discover.find(&root, &format!("docker/{HEX}/{path}"), true).unwrap().map(|found| found.container)
        };
        let uid = "1a2b3c4d-1111-2222-3333-444455556666";
        for part in ["container", "init.scope", "payload", "system.slice/web.service", "default/web", HEX] {
            assert_eq!(find(part), None, "{part}");
        }
        let plain = find("inner").unwrap();
        assert_eq!((plain.engine, plain.id), (ContainerEngine::Plain, format!("/docker/{HEX}/inner")));
        for path in [
            format!("docker/{HEX}"),
            format!("system.slice/docker-{HEX}.scope"),
            format!("kubelet/kubepods/pod{uid}/{HEX}"),
        ] {
            let nested = find(&path).unwrap();
            // What the host knows of this id is not about it.
            assert_eq!(
                (nested.id.as_str(), nested.name, nested.labels.governors),
                (HEX, None, Some(false)),
                "{path}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_path_panics(path in "(docker|kubepods|pod|libpod-|/|\\*|[a-f0-9]{64}|.){0,12}") {
            let _ = (path_claim(&path), pod_uid(&path), printable(&path, 9));
        }
    }
}
