//! Docker's own files: `<data root>/containers/<id>/config.v2.json`.

use super::record::{EngineRecord, parse_labels};
use super::state_file::{StateStamp, read_json, read_json_stamped};
use crate::root::{ReadError, Root};
use elbowroom_types::label::LabelPolicy;
use serde::Deserialize;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where dockerd keeps its containers where nothing says otherwise: of a package, of the snap, and balenaEngine.
const DOCKER_ROOTS: [&str; 3] =
    ["var/lib/docker", "var/snap/docker/common/var-lib-docker", "var/lib/balena-engine"];

/// dockerd's configuration.
const DAEMON_CONFIG: &str = "etc/docker/daemon.json";

/// Docker's data roots on one host.
#[derive(Debug)]
pub(super) struct DockerFiles {
    /// The only one, where an operator says so.
    told: Option<PathBuf>,
    roots: Vec<PathBuf>,
    /// Of the configuration that `roots` are from.
    read: Option<StateStamp>,
}

impl DockerFiles {
    /// Below `data_root`; where there is none, below what dockerd's configuration says, or the usual ones.
    pub(super) fn new(root: &Root, data_root: Option<&Path>) -> Self {
        let roots =
            data_root.map_or_else(|| DOCKER_ROOTS.map(PathBuf::from).into(), |root| vec![root.to_owned()]);
        let mut files = Self { told: data_root.map(Path::to_owned), roots, read: None };
        files.follow_config(root);
        files
    }

    /// Reads dockerd's configuration where it is another one by now: a node is often given it after its agents have started.
    fn follow_config(&mut self, root: &Root) {
        #[derive(Deserialize)]
        struct DockerDaemonConfig {
            #[serde(rename = "data-root")]
            data_root: Option<PathBuf>,
        }
        let config = Path::new(DAEMON_CONFIG);
        let stamp = StateStamp::of(root, config);
        if self.told.is_some() || stamp == self.read {
            return;
        }
        // One that is being written is read when it is done.
        let Ok(config) = read_json::<DockerDaemonConfig>(root, config) else { return };
        self.read = stamp;
        self.roots = match config.and_then(|config| config.data_root) {
            Some(root) => vec![root],
            None => DOCKER_ROOTS.map(PathBuf::from).into(),
        };
    }

    /// What Docker says of the container `id`. An image has labels too, of its maker: those in which the kubelet's shim says what a
    /// container is in its pod count only for one that is `in_pod`.
    pub(super) fn record(
        &mut self,
        root: &Root,
        id: &str,
        in_pod: bool,
        policy: LabelPolicy,
    ) -> Result<Option<EngineRecord>, ReadError> {
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
        self.follow_config(root);
        let Some(file) = self.file(root, id) else { return Ok(None) };
        let Some((state, stamp)) = read_json_stamped::<DockerState>(root, &file)? else { return Ok(None) };
        let labels = state.config.and_then(|c| c.labels).unwrap_or_default();
        let label = |key: &str| labels.get(key).filter(|_| in_pod).cloned();
        Ok(Some(EngineRecord {
            name: label("io.kubernetes.container.name")
                .or_else(|| state.name.map(|n| n.trim_start_matches('/').to_owned())),
            pod: label("io.kubernetes.pod.name"),
            namespace: label("io.kubernetes.pod.namespace"),
            uid: label("io.kubernetes.pod.uid"),
            sandbox: label("io.kubernetes.docker.type").as_deref() == Some("podsandbox"),
            labels: parse_labels(&labels, policy),
            state: Some((file, stamp)),
        }))
    }

    /// Docker's file about a container: below a data root, or in it below the user and group that containers' root is mapped to
    /// (`userns-remap`; moby, daemon/daemon_unix.go, `setupDaemonRoot`).
    fn file(&self, root: &Root, id: &str) -> Option<PathBuf> {
        let remapped = |dir: &PathBuf| {
            let names = root.directories(dir).unwrap_or_default().into_iter();
            let numbers = |name: &OsString| {
                let pair = name.to_str().and_then(|name| name.split_once('.'));
                pair.is_some_and(|(uid, gid)| uid.parse::<u32>().is_ok() && gid.parse::<u32>().is_ok())
            };
            names.filter(numbers).map(|name| dir.join(name)).collect::<Vec<_>>()
        };
        let file = |dir: PathBuf| dir.join("containers").join(id).join("config.v2.json");
        let is_there = |file: &PathBuf| StateStamp::of(root, file).is_some();
        let plain = self.roots.iter().cloned().map(file).find(is_there);
        plain.or_else(|| self.roots.iter().flat_map(remapped).map(file).find(is_there))
    }
}
