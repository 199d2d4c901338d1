//! What a pod says about its containers, in Elbowroom's own words: labels (`docs/guide/labels.md`).
//!
//! | of the pod | label |
//! |---|---|
//! | `requests.memory` | `memory-reservation` |
//! | `requests.cpu` | weight of `priority`: 100 for each CPU, as a container without labels has; at least [`MIN_WEIGHT`] |
//! | QoS class, `priority` | tier of `priority`: 0 `BestEffort`, 1 others, 2 critical to the system |
//! | annotations `elbowroom.dev/*` | the same, and these go before |
//! | those of its namespace | the same, where the pod has none of that name |

use crate::quantity;
use elbowroom_types::label;
use elbowroom_types::label::PREFIX;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;
use std::collections::BTreeMap;

/// A container that requests no CPU still gets a tenth of what one gets that requests one.
const MIN_WEIGHT: u64 = 10;
const MAX_WEIGHT: u64 = 10_000;
/// More bytes than any node has.
const MAX_MEMORY: u64 = 1 << 50;
/// `SystemCriticalPriority` (pkg/apis/scheduling/types.go).
const SYSTEM_CRITICAL: i32 = 2_000_000_000;
/// The longest value that is handed on: what is longer is no label's.
const MAX_VALUE_BYTES: usize = 1_024;
/// The most bytes of one object's annotations that are handed on for one container: with each byte written as six, a question is still
/// shorter than the agent reads.
const MAX_ANNOTATION_BYTES: usize = 4_096;

/// Which requests and annotations of pods count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ClaimPolicy {
    /// Requests, QoS classes and annotations.
    All,
    /// Annotations only.
    Annotations,
    /// None.
    None,
}

/// Labels for one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PodLabels {
    /// By requests and QoS class: what the scheduler has counted with.
    pub(crate) promised: BTreeMap<String, String>,
    /// By annotations: what the maker of the pod, or of its namespace, asks for.
    pub(crate) asked: BTreeMap<String, String>,
}

/// Annotations of an object of the API.
pub(crate) type Annotations = BTreeMap<String, String>;

/// What an annotation takes of memory beside its bytes, as two strings in a map.
const ANNOTATION_OVERHEAD: usize = 128;

/// Forgets what is no label's, and what is beyond `most` bytes of memory in all: a maker may write 256 KiB into each object, also as
/// thousands of annotations of a few bytes.
pub(crate) fn keep_labels(annotations: &mut Annotations, most: usize) {
    let mut left = most;
    annotations.retain(|key, value| {
        let size = key.len() + value.len() + ANNOTATION_OVERHEAD;
        let fits = key.starts_with(PREFIX) && value.len() <= MAX_VALUE_BYTES && size <= left;
        left -= if fits { size } else { 0 };
        fits
    });
}

/// Labels for a pod's containers that run, by the runtime's identifiers. `namespace` are the annotations of its namespace.
pub(crate) fn pod_labels(
    pod: &Pod,
    namespace: Option<&Annotations>,
    policy: ClaimPolicy,
) -> BTreeMap<String, PodLabels> {
    let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else { return BTreeMap::new() };
    if policy == ClaimPolicy::None {
        return BTreeMap::new();
    }
    let containers: BTreeMap<&str, &Container> = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .map(|container| (container.name.as_str(), container))
        .collect();
    let statuses =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let running =
        statuses.into_iter().flatten().flatten().filter_map(|status| Some((running_id(status)?, status)));
    let tier = tier(status.qos_class.as_deref(), spec.priority);
    let wanted = running.map(|(id, status)| {
        let container = containers.get(status.name.as_str());
        // What the kubelet has made true goes before what the pod asks for: a resize may be on its way, or refused.
        let actual = status.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let requests = actual.or_else(|| container?.resources.as_ref().and_then(requests));
        let promised = match policy {
            ClaimPolicy::All => request_labels(requests, tier),
            ClaimPolicy::Annotations | ClaimPolicy::None => BTreeMap::new(),
        };
        let asked = asked_labels(pod, namespace, &status.name, |of| containers.contains_key(of));
        (id.to_owned(), PodLabels { promised, asked })
    });
    wanted.collect()
}

/// What the annotations of a pod and its namespace say of the container `name`. `is_other`: whether the pod has one of that name.
pub(crate) fn asked_labels(
    pod: &Pod,
    namespace: Option<&Annotations>,
    name: &str,
    is_other: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    // A namespace's words for a container are for the pods that have one of that name.
    let by_namespace = namespace.map(|all| annotation_labels(all, name, |_| true));
    let by_pod = pod.metadata.annotations.as_ref().map(|all| annotation_labels(all, name, is_other));
    by_namespace.into_iter().chain(by_pod).flatten().collect()
}

/// The runtime's identifier of a container that runs: what follows `containerd://`.
fn running_id(status: &ContainerStatus) -> Option<&str> {
    status.state.as_ref()?.running.as_ref()?;
    let (_, id) = status.container_id.as_deref()?.split_once("://")?;
    (!id.is_empty()).then_some(id)
}

fn requests(resources: &ResourceRequirements) -> Option<&BTreeMap<String, Quantity>> {
    resources.requests.as_ref()
}

fn tier(qos: Option<&str>, priority: Option<i32>) -> u8 {
    match qos {
        _ if priority.is_some_and(|priority| priority >= SYSTEM_CRITICAL) => 2,
        Some("Guaranteed" | "Burstable") => 1,
        _ => 0,
    }
}

fn request_labels(requests: Option<&BTreeMap<String, Quantity>>, tier: u8) -> BTreeMap<String, String> {
    let request =
        |resource: &str| requests.and_then(|requests| requests.get(resource)).map(|quantity| &quantity.0);
    let cpu = request("cpu").and_then(|text| quantity::milli(text)).unwrap_or(0);
    let weight = (cpu / 10).clamp(MIN_WEIGHT, MAX_WEIGHT);
    let mut promised =
        BTreeMap::from([(format!("{PREFIX}priority"), format!("weight={weight} tier={tier}"))]);
    let memory = request("memory").and_then(|text| quantity::units(text)).filter(|memory| *memory > 0);
    if let Some(memory) = memory.map(|memory| memory.min(MAX_MEMORY)) {
        promised.insert(format!("{PREFIX}memory-reservation"), format!("{memory}B"));
    }
    promised
}

/// The annotations for one container: `elbowroom.dev/KEY`, and `elbowroom.dev/KEY.CONTAINER` before that. What names neither it nor
/// one that `is_other` is handed on: the agent tells that it is not understood.
fn annotation_labels(
    annotations: &Annotations,
    name: &str,
    is_other: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let short = annotations.iter().filter(|(_, value)| value.len() <= MAX_VALUE_BYTES);
    let labels =
        label::for_container(short.map(|(key, value)| (key.as_str(), value.as_str())), name, is_other);
    let mut left = MAX_ANNOTATION_BYTES;
    let fits = |(key, value): &(&str, &str)| {
        let size = key.len() + value.len();
        let fits = size <= left;
        left -= if fits { size } else { 0 };
        fits
    };
    labels.into_iter().filter(fits).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::claim::WEIGHT_RANGE;
    use elbowroom_types::label::{ContainerLabels, LabelPolicy};
    use elbowroom_types::unit::Bytes;
    use proptest::prelude::*;
    use serde_json::json;

    fn pod(qos: &str, requests: serde_json::Value, annotations: serde_json::Value) -> Pod {
        let status = |name: &str, state: &str| {
            json!({"name": name, "containerID": format!("containerd://{name}-id"), "state": {state: {}},
                "image": "", "imageID": "", "ready": true, "restartCount": 0})
        };
        serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {"containers": [
                {"name": "app", "resources": {"requests": requests}},
                {"name": "side"},
                {"name": "over"},
            ]},
            "status": {"qosClass": qos, "containerStatuses":
                [status("app", "running"), status("side", "running"), status("over", "terminated")]},
        }))
        .unwrap()
    }

    fn labels(map: &BTreeMap<String, String>) -> ContainerLabels {
        ContainerLabels::parse(
            map.iter().map(|(key, value)| (key.as_str(), value.as_str())),
            LabelPolicy::All,
        )
    }

    fn check(qos: &str, requests: serde_json::Value, expect: (u32, u8, Option<Bytes>)) {
        let wanted = pod_labels(&pod(qos, requests, json!({})), None, ClaimPolicy::All);
        let labels = labels(&wanted["app-id"].promised);
        let claim = labels.claim();
        assert_eq!((claim.weight, claim.tier, claim.memory.reservation), expect, "{qos}");
        assert!(labels.ignored.is_empty(), "{labels}");
    }

    #[test]
    fn requests_are_weights_and_reservations_and_classes_are_tiers() {
        check("Guaranteed", json!({"cpu": "2", "memory": "1Gi"}), (200, 1, Some(Bytes::gib(1))));
        check("Burstable", json!({"cpu": "250m"}), (25, 1, None));
        check("Burstable", json!({"memory": "64Mi"}), (10, 1, Some(Bytes::mib(64))));
        check("BestEffort", json!({}), (10, 0, None));
        check("Burstable", json!({"cpu": "5000", "memory": "0"}), (10_000, 1, None));
        check("Burstable", json!({"cpu": "much", "memory": "-1"}), (10, 1, None));
        assert_eq!((tier(Some("Guaranteed"), Some(2_000_001_000)), tier(None, Some(1_000))), (2, 0));
    }

    #[test]
    fn what_a_resize_has_made_true_counts_and_not_what_it_will() {
        let mut pod = pod("Burstable", json!({"cpu": "4"}), json!({}));
        let status = &mut pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap()[0];
        status.resources = serde_json::from_value(json!({"requests": {"cpu": "1"}})).unwrap();
        assert_eq!(labels(&pod_labels(&pod, None, ClaimPolicy::All)["app-id"].promised).claim().weight, 100);
    }

    #[test]
    fn annotations_are_for_all_containers_or_for_one() {
        let annotations = json!({
            "elbowroom.dev/priority": "300", "elbowroom.dev/priority.side": "7",
            "elbowroom.dev/views.nobody": "off", "other/priority": "1", "elbowroom.dev/probe": "x".repeat(2_000),
        });
        let pod = pod("BestEffort", json!({}), annotations);
        let wanted = pod_labels(&pod, None, ClaimPolicy::Annotations);
        assert_eq!(wanted.keys().collect::<Vec<_>>(), ["app-id", "side-id"], "only what runs");
        let (app, side) = (labels(&wanted["app-id"].asked), labels(&wanted["side-id"].asked));
        assert_eq!((app.claim().weight, side.claim().weight), (300, 7));
        assert!(app.ignored[0].contains("views.nobody"), "{app}: a label for an unknown container is told");
        assert!(wanted["app-id"].promised.is_empty());
        assert!(super::pod_labels(&pod, None, ClaimPolicy::None).is_empty());
    }

    #[test]
    fn a_namespace_speaks_for_pods_that_say_nothing() {
        let pod = pod("BestEffort", json!({}), json!({ "elbowroom.dev/priority": "300" }));
        let namespace = [
            ("priority", "5"),
            ("views", "off"),
            ("governors.side", "off"),
            ("priority.of-another-pod", "7"),
        ];
        let namespace = namespace.map(|(key, value)| (format!("{PREFIX}{key}"), value.to_owned())).into();
        let wanted = pod_labels(&pod, Some(&namespace), ClaimPolicy::All);
        let (app, side) = (labels(&wanted["app-id"].asked), labels(&wanted["side-id"].asked));
        assert_eq!((app.claim().weight, app.views, app.governors), (300, Some(false), None));
        assert_eq!((side.claim().weight, side.views, side.governors), (300, Some(false), Some(false)));
        assert!(app.ignored.is_empty() && side.ignored.is_empty(), "{app} {side}");
    }

    #[test]
    fn however_much_a_pod_asks_the_agent_reads_it() {
        let many = (0..200).map(|n| (format!("{PREFIX}x{n}"), "\u{1}".repeat(MAX_VALUE_BYTES)));
        let many: serde_json::Map<_, _> = many.map(|(key, value)| (key, value.into())).collect();
        let pod = pod("BestEffort", json!({}), many.into());
        let wanted = pod_labels(&pod, None, ClaimPolicy::All);
        let question = serde_json::to_vec(&wanted["app-id"]).unwrap();
        assert!(question.len() < 32 << 10, "{}: two objects ask, and the agent reads 64 KiB", question.len());
    }

    proptest! {
        #[test]
        fn whatever_is_requested_is_a_label_that_is_understood(cpu in ".{0,8}|[0-9.]{1,6}[mkMGTPE]?", memory in ".{0,8}|[0-9.]{1,9}([KMGTPE]i?|e3)?") {
            let requests = BTreeMap::from([("cpu".to_owned(), Quantity(cpu)), ("memory".to_owned(), Quantity(memory))]);
            let labels = labels(&request_labels(Some(&requests), 1));
            prop_assert!(labels.ignored.is_empty(), "{}", labels);
            prop_assert!(WEIGHT_RANGE.contains(&labels.claim().weight));
        }

        #[test]
        fn more_cpu_is_never_less_weight(less in 0u64..200_000, more in 0u64..200_000) {
            let weight = |milli: u64| {
                let requests = BTreeMap::from([("cpu".to_owned(), Quantity(format!("{milli}m")))]);
                labels(&request_labels(Some(&requests), 1)).claim().weight
            };
            let (less, more) = (less.min(more), less.max(more));
            prop_assert!(weight(less) <= weight(more));
        }
    }
}
