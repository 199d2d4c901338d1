//! Files of containers/storage, which Podman and CRI-O keep their containers in: lists of names, and bundles, by storage driver.

use super::record::{EngineRecord, OciBundleConfig, parse_labels, parse_pod_labels};
use super::state_file::{StateStamp, read_json, read_json_stamped};
use crate::root::{ReadError, Root};
use elbowroom_types::label::LabelPolicy;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Where containers/storage (Podman, CRI-O) keeps what stays and what is gone with a boot, where its configuration does not say.
const STORAGE_ROOTS: [&str; 2] = ["var/lib/containers/storage", "run/containers/storage"];
/// Its configuration, an administrator's and a package's.
const STORAGE_CONFIGS: [&str; 2] = ["etc/containers/storage.conf", "usr/share/containers/storage.conf"];
/// CRI-O's own configuration, which goes before that, and the directory of files that go before it (crio.conf(5)).
const CRIO_CONFIG: &str = "etc/crio/crio.conf";
const CRIO_CONFIG_DIR: &str = "etc/crio/crio.conf.d";
/// Its drivers: each has a directory of containers below a root.
const STORAGE_DRIVERS: [&str; 4] = ["overlay", "vfs", "btrfs", "zfs"];
/// The lists in it: the second is of containers that are removed when they end.
const STORAGE_LISTS: [&str; 2] = ["containers.json", "volatile-containers.json"];

/// What containers/storage keeps on one host.
#[derive(Debug)]
pub(super) struct StorageFiles {
    roots: Vec<PathBuf>,
    /// Of the configurations that `roots` are from.
    read: [Option<StateStamp>; 4],
    /// The names in its lists by file, read again when they change.
    lists: HashMap<PathBuf, (StateStamp, HashMap<String, String>)>,
}

impl StorageFiles {
    /// Below the usual roots, and those that its configuration names.
    pub(super) fn new(root: &Root) -> Self {
        Self { roots: storage_roots(root), read: config_stamps(root), lists: HashMap::new() }
    }

    /// Reads its configurations where they are others by now.
    fn follow_configs(&mut self, root: &Root) {
        let stamps = config_stamps(root);
        if stamps != self.read {
            (self.roots, self.read) = (storage_roots(root), stamps);
        }
    }

    /// The first name containers/storage has for an id. Its lists are shared by all containers, so they are kept.
    pub(super) fn podman(
        &mut self,
        root: &Root,
        id: &str,
        policy: LabelPolicy,
    ) -> Result<Option<EngineRecord>, ReadError> {
        #[derive(Deserialize)]
        struct StorageRow {
            id: String,
            #[serde(default)]
            names: Vec<String>,
        }
        self.follow_configs(root);
        for dir in self.dirs() {
            for file in STORAGE_LISTS.map(|list| dir.join(list)) {
                let Some(stamp) = StateStamp::of(root, &file) else { continue };
                if self.lists.get(&file).is_none_or(|(read, _)| *read != stamp) {
                    let rows = read_json::<Vec<StorageRow>>(root, &file)?.unwrap_or_default();
                    let names =
                        rows.into_iter().filter_map(|row| Some((row.id, row.names.into_iter().next()?)));
                    self.lists.insert(file.clone(), (stamp, names.collect()));
                }
                if let Some(name) = self.lists.get(&file).and_then(|(_, names)| names.get(id)) {
                    let (name, state) = (Some(name.clone()), Some((file, stamp)));
                    let bundle = read_json::<OciBundleConfig>(root, &bundle_file(&dir, id))?;
                    let labels =
                        bundle.map(|bundle| parse_labels(&bundle.annotations, policy)).unwrap_or_default();
                    return Ok(Some(EngineRecord { name, labels, state, ..EngineRecord::default() }));
                }
            }
        }
        Ok(None)
    }

    /// CRI-O runs bundles from the directory that is gone with a boot; what the kubelet gave is in annotations, as JSON, and a pod's
    /// annotations are among those of its containers.
    pub(super) fn crio(
        &mut self,
        root: &Root,
        id: &str,
        policy: LabelPolicy,
    ) -> Result<Option<EngineRecord>, ReadError> {
        self.follow_configs(root);
        for file in self.dirs().into_iter().rev().map(|dir| bundle_file(&dir, id)) {
            let Some((bundle, stamp)) = read_json_stamped::<OciBundleConfig>(root, &file)? else { continue };
            let note = |key: &str| bundle.annotations.get(key).cloned();
            let mut labels = HashMap::new();
            for key in ["io.kubernetes.cri-o.Labels", "io.kubernetes.cri-o.Annotations"] {
                let given =
                    note(key).and_then(|text| serde_json::from_str::<HashMap<String, String>>(&text).ok());
                labels.extend(given.unwrap_or_default());
            }
            labels.extend(bundle.annotations.clone());
            let name = note("io.kubernetes.container.name");
            return Ok(Some(EngineRecord {
                labels: parse_pod_labels(&labels, name.as_deref(), policy),
                name,
                pod: note("io.kubernetes.pod.name"),
                namespace: note("io.kubernetes.pod.namespace"),
                uid: note("io.kubernetes.pod.uid"),
                sandbox: note("io.kubernetes.cri-o.ContainerType").as_deref() == Some("sandbox"),
                state: Some((file, stamp)),
            }));
        }
        Ok(None)
    }

    /// The directories of containers that containers/storage may have.
    fn dirs(&self) -> Vec<PathBuf> {
        let drivers = STORAGE_DRIVERS.map(|driver| format!("{driver}-containers"));
        self.roots.iter().flat_map(|root| drivers.iter().map(|dir| root.join(dir))).collect()
    }
}

/// Where the bundle of a container is, in a directory of containers/storage.
fn bundle_file(dir: &Path, id: &str) -> PathBuf {
    dir.join(id).join("userdata/config.json")
}

fn config_stamps(root: &Root) -> [Option<StateStamp>; 4] {
    let [own, package] = STORAGE_CONFIGS;
    [own, package, CRIO_CONFIG, CRIO_CONFIG_DIR].map(|path| StateStamp::of(root, Path::new(path)))
}

/// The roots of containers/storage: the usual ones, and those that its configuration and CRI-O's name.
fn storage_roots(root: &Root) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = STORAGE_ROOTS.map(PathBuf::from).into();
    let parts = root.list(CRIO_CONFIG_DIR).unwrap_or_default();
    let parts = parts.into_iter().map(|name| Path::new(CRIO_CONFIG_DIR).join(name));
    let crio = parts.chain([PathBuf::from(CRIO_CONFIG)]).map(|file| (file, "root"));
    let storage = STORAGE_CONFIGS.map(|file| (PathBuf::from(file), "graphroot"));
    for (file, key) in storage.into_iter().chain(crio) {
        let text = root.read(file).unwrap_or_default();
        for path in text.lines().filter_map(|line| configured_path(line, key)) {
            if !roots.iter().any(|root| Path::new("/").join(root) == path) {
                roots.push(path.to_owned());
            }
        }
    }
    roots
}

/// The path in a line of TOML, if it is that of `key` or the directory that is gone with a boot.
fn configured_path<'a>(line: &'a str, key: &str) -> Option<&'a Path> {
    let (known, value) = line.split_once('=')?;
    let value = value.trim();
    let quote = value.chars().next().filter(|first| matches!(first, '"' | '\''))?;
    let path = Path::new(value[1..].split(quote).next()?);
    ([key, "runroot"].contains(&known.trim()) && path.is_absolute()).then_some(path)
}
