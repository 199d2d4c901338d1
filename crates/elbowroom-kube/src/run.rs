//! The program at work: it watches pods and namespaces, and tells the node and the API server what `controller.rs` finds.

use crate::agent::AgentClient;
use crate::claims::keep_labels;
use crate::controller::{KubeController, has_container};
use crate::kube_events::{EventDeduplicator, EventNotice};
use crate::node::{HEARTBEAT, NodeConditions, NodeObject};
use crate::node_condition::{Latch, LatchTiming, NODE_CONDITIONS};
use crate::resize::resize_pods;
use crate::{KubeArgs, one_line};
use anyhow::{Context, Result, bail};
use elbowroom_types::unit::Micros;
use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::{Container, Namespace, ObjectReference, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::Store;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, Resource};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Pause after the API server refused something.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Events that wait for a slow API server.
const EVENT_QUEUE: usize = 256;
/// Pods, and namespaces without more than their metadata, that are listed at once. Makers write up to 1.5 MiB into each pod (etcd's
/// `--max-request-bytes`), 256 KiB into annotations, and this program has 128 MiB.
const POD_PAGE_SIZE: u32 = 8;
const NAMESPACE_PAGE_SIZE: u32 = 64;
/// Containers of one kind that are kept of a pod.
const MAX_CONTAINERS: usize = 256;
/// Bytes of annotations that are kept of a pod, and of a namespace, of which there are thousands.
const MAX_POD_ANNOTATION_BYTES: usize = 32 << 10;
const MAX_NAMESPACE_ANNOTATION_BYTES: usize = 4 << 10;

/// Runs until it is told to stop, then takes back what it said, and in a while what it gave.
pub(crate) async fn run(args: KubeArgs) -> Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let client = Client::try_default()
        .await
        .context("finding the API server: is there a KUBECONFIG, or a service account?")?;
    let node = NodeObject { api: Api::all(client.clone()), name: args.node.clone(), effect: args.taint };
    let said = tokio::select! {
        said = initial_conditions(&node) => said,
        _ = term.recv() => return Ok(()),
        _ = int.recv() => return Ok(()),
    };
    let (store, writer) = reflector::store();
    let (namespaces, namespace_writer) = reflector::store();
    let (heard, hears) = watch::channel(false);
    let (word, words) = watch::channel(None);
    let (notices, queue) = mpsc::channel(EVENT_QUEUE);
    let (asks, asked) = watch::channel(Vec::new());
    let mut look = KubeController {
        agent: AgentClient::at(&args.run_dir),
        rule: LatchTiming { hold: args.hold, linger: args.linger },
        begin: Instant::now(),
        latches: said.map(Latch::resumed),
        last_answer: Micros::ZERO,
        agent_unreachable: false,
        deduplicator: EventDeduplicator::default(),
        applied_labels: BTreeMap::new(),
        rejected_labels: BTreeMap::new(),
        pods: store,
        namespaces,
        namespaces_synced: hears,
        conditions: word,
        event_queue: notices,
        resize_asks: asks,
        args,
    };
    let pods = watch_pods(client.clone(), &node.name, writer);
    let spaces = watch_namespaces(client.clone(), namespace_writer, heard);
    let told = update_node(node.clone(), words);
    let (events_of, stores) = (look.event_queue.clone(), (look.pods.clone(), look.namespaces.clone()));
    let resized = resize_pods(client.clone(), stores, asked, events_of, look.rule.hold);
    let events = send_events(client, node.name.clone(), look.pods.clone(), queue);
    let ended = tokio::select! {
        () = pods => bail!("the watch of pods ended"),
        () = spaces => bail!("the watch of namespaces ended"),
        () = told => bail!("conditions and taints of the node are not written any more"),
        () = events => bail!("events are not sent any more"),
        () = resized => bail!("pods are not resized any more"),
        ended = look.run_loop() => ended,
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
    };
    look.expire_labels().await;
    if let Err(error) = node.clear().await {
        tracing::error!(because = one_line(&error), "conditions and taints stay on the node");
    }
    ended
}

/// What the Node object says already; asked until the API server answers.
async fn initial_conditions(node: &NodeObject) -> [bool; NODE_CONDITIONS.len()] {
    loop {
        match node.present_conditions().await {
            Ok(said) => return said,
            Err(error) => tracing::warn!(because = one_line(&error), "the Node object cannot be read yet"),
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Keeps the pods of this node in `writer`'s store.
async fn watch_pods(client: Client, node: &str, writer: reflector::store::Writer<Pod>) {
    // Not those that have ended: a cluster keeps thousands, and nothing of them runs.
    let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
    let config = watcher::Config::default().fields(&fields).page_size(POD_PAGE_SIZE);
    let pods = watcher(Api::all(client), config).default_backoff().modify(keep_used).reflect(writer);
    pin_mut!(pods);
    while let Some(event) = pods.next().await {
        if let Err(error) = event {
            tracing::warn!(because = one_line(&error.into()), "watching pods failed: trying again");
        }
    }
}

/// Takes out of a pod what nothing here reads: its environment and its volumes are none of this program's.
fn keep_used(pod: &mut Pod) {
    keep_used_metadata(&mut pod.metadata, MAX_POD_ANNOTATION_BYTES);
    if let Some(status) = &mut pod.status {
        let all = [
            &mut status.container_statuses,
            &mut status.init_container_statuses,
            &mut status.ephemeral_container_statuses,
        ];
        all.into_iter().flatten().for_each(|statuses| statuses.truncate(MAX_CONTAINERS));
    }
    let Some(spec) = &mut pod.spec else { return };
    let bare = |of: &Container| Container {
        name: of.name.clone(),
        resources: of.resources.clone(),
        resize_policy: of.resize_policy.clone(),
        ..Container::default()
    };
    let bare = |all: &[Container]| all.iter().take(MAX_CONTAINERS).map(bare).collect();
    *spec = PodSpec {
        containers: bare(&spec.containers),
        init_containers: spec.init_containers.as_deref().map(bare),
        priority: spec.priority,
        ..PodSpec::default()
    };
}

/// The same for an object's metadata, of whose annotations labels are kept.
fn keep_used_metadata(metadata: &mut ObjectMeta, most_annotation_bytes: usize) {
    let all = std::mem::take(metadata);
    let mut annotations = all.annotations;
    if let Some(annotations) = &mut annotations {
        keep_labels(annotations, most_annotation_bytes);
    }
    *metadata = ObjectMeta {
        name: all.name,
        namespace: all.namespace,
        uid: all.uid,
        resource_version: all.resource_version,
        annotations,
        ..ObjectMeta::default()
    };
}

/// Keeps what is said of namespaces in `writer`'s store, and tells `heard` when that is all there is. A program that may not read them has
/// none that speaks for its pods.
async fn watch_namespaces(
    client: Client,
    writer: reflector::store::Writer<PartialObjectMeta<Namespace>>,
    heard: watch::Sender<bool>,
) {
    let slim = |namespace: &mut PartialObjectMeta<Namespace>| {
        keep_used_metadata(&mut namespace.metadata, MAX_NAMESPACE_ANNOTATION_BYTES);
    };
    let namespaces = watcher(Api::all(client), watcher::Config::default().page_size(NAMESPACE_PAGE_SIZE));
    let namespaces = namespaces.default_backoff().modify(slim).reflect(writer);
    pin_mut!(namespaces);
    while let Some(event) = namespaces.next().await {
        if is_initial_sync(&event) {
            heard.send_replace(true);
        }
        if let Err(error) = event {
            tracing::warn!(because = one_line(&error.into()), "watching namespaces failed: trying again");
        }
    }
}

/// Whether a watch has told everything there is, or may never.
fn is_initial_sync<K>(event: &watcher::Result<watcher::Event<K>>) -> bool {
    match event {
        Ok(event) => matches!(event, watcher::Event::InitDone),
        Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) => status.is_forbidden(),
        Err(_) => false,
    }
}

/// Brings the Node object to the last word, at once when it is a new one, and again now and then.
async fn update_node(node: NodeObject, mut words: watch::Receiver<Option<NodeConditions>>) {
    loop {
        let word = words.borrow_and_update().clone();
        let pause = match &word {
            None => RETRY_DELAY,
            Some(word) => match node.apply(word).await {
                Ok(()) => Duration::from_micros(HEARTBEAT.get()),
                Err(error) => {
                    tracing::warn!(because = one_line(&error), "node conditions and taints are not written");
                    RETRY_DELAY
                }
            },
        };
        tokio::select! {
            changed = words.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Sends Events, about the pod of a container or about the node.
async fn send_events(client: Client, node: String, pods: Store<Pod>, mut queue: mpsc::Receiver<EventNotice>) {
    let reporter = Reporter { controller: "elbowroom.dev/kube".into(), instance: Some(node.clone()) };
    let recorder = Recorder::new(client, reporter);
    while let Some(notice) = queue.recv().await {
        let about = match &notice.key.container {
            None => ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Node".into()),
                uid: Some(node.clone()),
                name: Some(node.clone()),
                ..ObjectReference::default()
            },
            Some(id) => match pods.find(|pod| has_container(pod, id)) {
                Some(pod) => pod.object_ref(&()),
                // Not a pod's, or of one that is gone.
                None => continue,
            },
        };
        let type_ = if notice.content.warning { EventType::Warning } else { EventType::Normal };
        let event = Event {
            type_,
            reason: notice.reason(),
            note: Some(notice.content.note),
            action: "Observing".into(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &about).await {
            tracing::warn!(reason = event.reason, because = one_line(&error.into()), "an event was not sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn of_a_pod_only_what_is_used_is_kept() {
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "uid": "u", "annotations": {"elbowroom.dev/a": "b", "other": "secret"}, "labels": {"x": "secret"}},
            "spec": {"priority": 7, "volumes": [{"name": "v"}], "initContainers": [{"name": "i"}], "containers": [
                {"name": "app", "env": [{"name": "PASSWORD", "value": "secret"}], "resources": {"requests": {"cpu": "1"}}}]},
        }))
        .unwrap();
        keep_used(&mut pod);
        let kept = serde_json::to_string(&pod).unwrap();
        assert!(!kept.contains("secret") && !kept.contains("volumes"), "{kept}");
        for word in [
            "\"elbowroom.dev/a\":\"b\"",
            "\"cpu\":\"1\"",
            "\"priority\":7",
            "initContainers",
            "\"uid\":\"u\"",
        ] {
            assert!(kept.contains(word), "{word} in {kept}");
        }
    }

    #[test]
    fn however_much_the_makers_of_pods_write_little_is_kept() {
        let annotations: BTreeMap<String, String> =
            (0..4_000).map(|n| (format!("elbowroom.dev/{n}"), "x".repeat(60))).collect();
        let containers = vec![serde_json::json!({"name": "app"}); 10_000];
        let status = vec![
            serde_json::json!({"name": "app", "image": "i", "imageID": "i", "ready": true, "restartCount": 0});
            10_000
        ];
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {"containers": containers, "initContainers": containers},
            "status": {"containerStatuses": status},
        }))
        .unwrap();
        let namespace = pod.metadata.clone();
        keep_used(&mut pod);
        let kept = serde_json::to_string(&pod).unwrap().len();
        assert!(kept < 128 << 10, "{kept}");
        let mut metadata = namespace;
        keep_used_metadata(&mut metadata, MAX_NAMESPACE_ANNOTATION_BYTES);
        let kept = serde_json::to_string(&metadata).unwrap().len();
        assert!((1 << 10..8 << 10).contains(&kept), "{kept}");
        // Of many short ones, which take more memory than their bytes.
        let mut short = ObjectMeta {
            annotations: Some((0..4_000).map(|n| (format!("elbowroom.dev/{n}"), String::new())).collect()),
            ..ObjectMeta::default()
        };
        keep_used_metadata(&mut short, MAX_NAMESPACE_ANNOTATION_BYTES);
        assert_eq!(short.annotations.map(|kept| kept.len()), Some(28));
    }

    #[test]
    fn namespaces_are_heard_of_when_all_were_listed_or_none_may_be() {
        let failed = |status: Status| watcher::Error::InitialListFailed(kube::Error::Api(status.boxed()));
        let forbidden = failed(Status::failure("no", "Forbidden").with_code(403));
        let slow = failed(Status::failure("later", "TooManyRequests").with_code(429));
        let all: Vec<bool> = [
            Ok(watcher::Event::Init),
            Ok(watcher::Event::InitApply(())),
            Ok(watcher::Event::InitDone),
            Err(slow),
            Err(forbidden),
        ]
        .iter()
        .map(is_initial_sync)
        .collect();
        assert_eq!(all, [false, false, true, false, true]);
    }
}
