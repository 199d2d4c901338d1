//! containerd's own files: the bundles of what runs, by namespace.

use super::record::{EngineRecord, OciBundleConfig, parse_labels, parse_pod_labels};
use super::state_file::read_json_stamped;
use crate::root::{ReadError, Root};
use elbowroom_types::label::LabelPolicy;
use std::path::{Path, PathBuf};

/// Where containerd keeps what runs: of a package, of k3s and RKE2, of k0s, of MicroK8s.
const CONTAINERD_STATES: [&str; 4] =
    ["run/containerd", "run/k3s/containerd", "run/k0s/containerd", "var/snap/microk8s/common/run/containerd"];
/// Below that, the bundles of tasks: `<namespace>/<id>/config.json`.
const CONTAINERD_TASKS: &str = "io.containerd.runtime.v2.task";

/// Where containerds of one host keep what runs.
#[derive(Debug)]
pub(super) struct ContainerdFiles {
    states: Vec<PathBuf>,
}

impl ContainerdFiles {
    /// The usual places.
    pub(super) fn new() -> Self {
        Self { states: CONTAINERD_STATES.map(PathBuf::from).into() }
    }

    /// Looks below `state` too.
    pub(super) fn add(&mut self, state: &Path) {
        self.states.push(state.to_owned());
    }

    /// What containerd says of the task `id` of a namespace.
    pub(super) fn record(
        &self,
        root: &Root,
        namespace: &str,
        id: &str,
        policy: LabelPolicy,
    ) -> Result<Option<EngineRecord>, ReadError> {
        for state in &self.states {
            let file = state.join(CONTAINERD_TASKS).join(namespace).join(id).join("config.json");
            let Some((bundle, stamp)) = read_json_stamped::<OciBundleConfig>(root, &file)? else { continue };
            let note = |key: &str| bundle.annotations.get(key).cloned();
            let (name, pod) =
                (note("io.kubernetes.cri.container-name"), note("io.kubernetes.cri.sandbox-name"));
            // As `pod_annotations` of its configuration has it.
            let labels = match pod {
                Some(_) => parse_pod_labels(&bundle.annotations, name.as_deref(), policy),
                None => parse_labels(&bundle.annotations, policy),
            };
            return Ok(Some(EngineRecord {
                name: name.or_else(|| note("nerdctl/name")),
                pod,
                namespace: note("io.kubernetes.cri.sandbox-namespace"),
                uid: note("io.kubernetes.cri.sandbox-uid"),
                sandbox: note("io.kubernetes.cri.container-type").as_deref() == Some("sandbox"),
                labels,
                state: Some((file, stamp)),
            }));
        }
        Ok(None)
    }
}
