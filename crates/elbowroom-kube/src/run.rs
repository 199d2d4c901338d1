//! The program at work: one look a second, and what follows from it.

use crate::agent::{AgentClient, ApiAlert, ApiSnapshot, LABELS_BY};
use crate::claims::{Annotations, ClaimPolicy, PodLabels, pod_labels};
use crate::kube_events::{EventDeduplicator, EventNotice, snapshot_events};
use crate::node::{ConditionState, HEARTBEAT, NodeConditions, NodeObject};
use crate::node_condition::{Latch, LatchTiming, NODE_CONDITIONS};
use crate::{KubeArgs, one_line};
use anyhow::{Context, Result, bail};
use elbowroom_types::alert::CLAIMS_TOPIC;
use elbowroom_types::unit::Micros;
use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::{Container, Namespace, ObjectReference, Pod, PodSpec};
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

/// The agent's API has a new snapshot a second.
const PERIOD: Duration = Duration::from_secs(1);
/// Pause after the API server refused something.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Events that wait for a slow API server.
const EVENT_QUEUE: usize = 256;

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
        args,
    };
    let pods = watch_pods(client.clone(), &node.name, writer);
    let spaces = watch_namespaces(client.clone(), namespace_writer, heard);
    let told = update_node(node.clone(), words);
    let events = send_events(client, node.name.clone(), look.pods.clone(), queue);
    let ended = tokio::select! {
        () = pods => bail!("the watch of pods ended"),
        () = spaces => bail!("the watch of namespaces ended"),
        () = told => bail!("nobody tells the node any more"),
        () = events => bail!("nobody sends events any more"),
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
            Err(error) => tracing::warn!(because = one_line(&error), "no node to speak of yet"),
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Keeps the pods of this node in `writer`'s store.
async fn watch_pods(client: Client, node: &str, writer: reflector::store::Writer<Pod>) {
    // Not those that have ended: a cluster keeps thousands, and nothing of them runs.
    let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
    let config = watcher::Config::default().fields(&fields);
    let pods = watcher(Api::all(client), config).default_backoff().modify(keep_used).reflect(writer);
    pin_mut!(pods);
    while let Some(event) = pods.next().await {
        if let Err(error) = event {
            tracing::warn!(because = one_line(&error.into()), "pods are not heard of");
        }
    }
}

/// Takes out of a pod what nothing here reads: its environment and its volumes are none of this program's.
fn keep_used(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    let Some(spec) = &mut pod.spec else { return };
    let bare = |of: &Container| Container {
        name: of.name.clone(),
        resources: of.resources.clone(),
        ..Container::default()
    };
    *spec = PodSpec {
        containers: spec.containers.iter().map(bare).collect(),
        init_containers: spec.init_containers.as_ref().map(|all| all.iter().map(bare).collect()),
        priority: spec.priority,
        ..PodSpec::default()
    };
}

/// Keeps what is said of namespaces in `writer`'s store, and tells `heard` when that is all there is. Who may not hear of them has
/// none that speaks for its pods.
async fn watch_namespaces(
    client: Client,
    writer: reflector::store::Writer<PartialObjectMeta<Namespace>>,
    heard: watch::Sender<bool>,
) {
    let slim = |namespace: &mut PartialObjectMeta<Namespace>| namespace.metadata.managed_fields = None;
    let namespaces = watcher(Api::all(client), watcher::Config::default());
    let namespaces = namespaces.default_backoff().modify(slim).reflect(writer);
    pin_mut!(namespaces);
    while let Some(event) = namespaces.next().await {
        if is_initial_sync(&event) {
            heard.send_replace(true);
        }
        if let Err(error) = event {
            tracing::warn!(because = one_line(&error.into()), "namespaces are not heard of");
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
                    tracing::warn!(because = one_line(&error), "the node is not told");
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
            tracing::warn!(reason = event.reason, because = one_line(&error.into()), "an event is not sent");
        }
    }
}

/// Whether a container is one of a pod's.
fn has_container(pod: &Pod, id: &str) -> bool {
    let status = pod.status.iter();
    let statuses = status
        .flat_map(|s| [&s.container_statuses, &s.init_container_statuses, &s.ephemeral_container_statuses]);
    let mut ids = statuses.flatten().flatten().filter_map(|status| status.container_id.as_deref());
    ids.any(|of| of.split_once("://").is_some_and(|(_, of)| of == id))
}

/// What is known from one look to the next.
struct KubeController {
    args: KubeArgs,
    agent: AgentClient,
    rule: LatchTiming,
    begin: Instant,
    latches: [Latch; NODE_CONDITIONS.len()],
    /// When the agent answered last.
    last_answer: Micros,
    /// Whether it was told that it does not.
    agent_unreachable: bool,
    deduplicator: EventDeduplicator,
    /// The labels that the agent took, by container.
    applied_labels: BTreeMap<String, PodLabels>,
    /// Those that it refused last, which is said once.
    rejected_labels: BTreeMap<String, PodLabels>,
    pods: Store<Pod>,
    namespaces: Store<PartialObjectMeta<Namespace>>,
    /// Whether namespaces were heard of, all of them.
    namespaces_synced: watch::Receiver<bool>,
    conditions: watch::Sender<Option<NodeConditions>>,
    event_queue: mpsc::Sender<EventNotice>,
}

impl KubeController {
    async fn run_loop(&mut self) -> Result<()> {
        let mut clock = tokio::time::interval(PERIOD);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            if self.agent.is_deleted() {
                bail!(
                    "{} was deleted: it is mounted anew when this program starts again",
                    self.args.run_dir.display()
                );
            }
            let snapshot = self.agent.snapshot().await;
            let now = self.now();
            match snapshot {
                Ok(snapshot) => {
                    self.last_answer = now;
                    if std::mem::take(&mut self.agent_unreachable) {
                        tracing::info!("the agent answers");
                    }
                    self.process_snapshot(now, &snapshot);
                    // Earlier, what namespaces say would be missing in what is given. Without pods nothing is.
                    if *self.namespaces_synced.borrow() {
                        self.apply_labels(&snapshot).await;
                    }
                }
                Err(error) => self.on_agent_error(now, &error),
            }
        }
    }

    fn now(&self) -> Micros {
        Micros(self.begin.elapsed().as_micros() as u64)
    }

    /// Tells what a snapshot says.
    fn process_snapshot(&mut self, now: Micros, snapshot: &ApiSnapshot) {
        let rule = self.rule;
        let mut latches = self.latches.iter_mut();
        let word = NODE_CONDITIONS.map(|concern| {
            // What pods claim for themselves, by annotations, is nothing that a scheduler is kept away for.
            let claimed = |view: &ApiAlert| view.alert.topic.as_deref() == Some(CLAIMS_TOPIC);
            let lasting = snapshot.alerts.lasting.iter();
            let lasting = lasting.filter(|view| view.alert.kind == concern.kind && !claimed(view));
            let age = |since: u64| Micros(snapshot.time_unix_ms.saturating_sub(since).saturating_mul(1_000));
            let oldest = lasting.clone().map(|view| age(view.since_unix_ms)).max();
            let texts: Vec<&str> = lasting.map(|view| view.alert.text.as_str()).collect();
            match latches.next().expect("there is one for each").step(now, oldest, rule) {
                true if texts.is_empty() => ConditionState::Present("it is over, but not for long".into()),
                true => ConditionState::Present(texts.join("; ")),
                false => ConditionState::Absent,
            }
        });
        self.publish_conditions(word);
        let mut facts = snapshot_events(snapshot, self.args.claims != ClaimPolicy::None);
        // Of a container whose pod is not heard of yet, or that is no pod's, there is nothing to tell an Event about.
        let is_known = |id: &String| self.pods.find(|pod| has_container(pod, id)).is_some();
        facts.retain(|key, _| key.container.as_ref().is_none_or(is_known));
        for notice in self.deduplicator.update(now, facts) {
            if self.event_queue.try_send(notice).is_err() {
                tracing::warn!("the API server takes no more events: one is dropped");
            }
        }
    }

    /// The agent did not answer.
    fn on_agent_error(&mut self, now: Micros, error: &anyhow::Error) {
        if !std::mem::replace(&mut self.agent_unreachable, true) {
            tracing::warn!(because = one_line(error), "the agent does not answer");
        }
        if now.saturating_sub(self.last_answer) >= self.rule.linger {
            self.latches = Default::default();
            self.publish_conditions(
                NODE_CONDITIONS.map(|_| {
                    ConditionState::Unknown("Elbowroom's agent does not answer on this node".into())
                }),
            );
        }
    }

    /// Tells the node, where that is news. New numbers in a message are none.
    fn publish_conditions(&self, word: NodeConditions) {
        let kind = |word: &NodeConditions| word.each_ref().map(std::mem::discriminant);
        self.conditions.send_if_modified(|before| {
            let news = before.as_ref().is_none_or(|before| kind(before) != kind(&word));
            if news {
                *before = Some(word);
            }
            news
        });
    }

    /// Gives containers the labels that their pods want, where they have others.
    async fn apply_labels(&mut self, snapshot: &ApiSnapshot) {
        let (pods, namespaces) = (self.pods.state(), self.namespaces.state());
        let speaking: BTreeMap<&str, &Annotations> = namespaces
            .iter()
            .filter_map(|of| Some((of.metadata.name.as_deref()?, of.metadata.annotations.as_ref()?)))
            .collect();
        let wanted: BTreeMap<String, PodLabels> = pods
            .iter()
            .flat_map(|pod| {
                let namespace =
                    pod.metadata.namespace.as_deref().and_then(|name| speaking.get(name).copied());
                pod_labels(pod, namespace, self.args.claims)
            })
            .collect();
        let there = |id: &String| snapshot.containers.iter().any(|container| container.id == *id);
        self.applied_labels.retain(|id, _| there(id));
        self.rejected_labels.retain(|id, _| there(id));
        for container in snapshot.containers.iter().filter(|container| container.pod.is_some()) {
            let Some(labels) = wanted.get(&container.id) else { continue };
            let has = match container.labels_by.as_deref() {
                Some(LABELS_BY) => self.applied_labels.get(&container.id) == Some(labels),
                // Somebody else's word was later than ours.
                Some(_) => true,
                None => false,
            };
            if has {
                continue;
            }
            match self.agent.label(&container.id, labels, None).await {
                Ok(None) => {
                    self.rejected_labels.remove(&container.id);
                    self.applied_labels.insert(container.id.clone(), labels.clone());
                }
                // This container's affair, and no reason to leave out those that follow.
                Ok(Some(why)) => {
                    if self.rejected_labels.insert(container.id.clone(), labels.clone()).as_ref()
                        != Some(labels)
                    {
                        tracing::warn!(container = container.id, because = why, "labels are not given");
                    }
                }
                Err(error) => {
                    let why = one_line(&error);
                    tracing::warn!(container = container.id, because = why, "labels are not given");
                    return;
                }
            }
        }
    }

    /// Has all labels lapse, unless the program that takes this one's place gives them again before: containers that want no
    /// views would else have some for as long as a rollout takes.
    async fn expire_labels(&mut self) {
        let after = Some((self.rule.linger.get() / 1_000_000).max(1));
        for (id, labels) in std::mem::take(&mut self.applied_labels) {
            match self.agent.label(&id, &labels, after).await {
                Ok(None) => {}
                Ok(Some(why)) => tracing::warn!(container = id, because = why, "labels are not taken back"),
                Err(error) => {
                    tracing::warn!(container = id, because = one_line(&error), "labels are not taken back");
                    // The agent that comes back knows of none.
                    return;
                }
            }
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
            "metadata": {"name": "p", "uid": "u", "annotations": {"a": "b"}},
            "spec": {"priority": 7, "volumes": [{"name": "v"}], "initContainers": [{"name": "i"}], "containers": [
                {"name": "app", "env": [{"name": "PASSWORD", "value": "secret"}], "resources": {"requests": {"cpu": "1"}}}]},
        }))
        .unwrap();
        keep_used(&mut pod);
        let kept = serde_json::to_string(&pod).unwrap();
        assert!(!kept.contains("secret") && !kept.contains("volumes"), "{kept}");
        for word in ["\"a\":\"b\"", "\"cpu\":\"1\"", "\"priority\":7", "initContainers", "\"uid\":\"u\""] {
            assert!(kept.contains(word), "{word} in {kept}");
        }
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
