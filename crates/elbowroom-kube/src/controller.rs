//! The loop of one node: what the agent says becomes conditions and Events, what pods say becomes labels.

use crate::agent::{AgentClient, ApiAlert, ApiSnapshot, LABELS_BY};
use crate::claims::{Annotations, ClaimPolicy, PodLabels, pod_labels};
use crate::kube_events::{EventDeduplicator, EventKey, EventNotice, snapshot_events};
use crate::node::{ConditionState, NodeConditions};
use crate::node_condition::{Latch, LatchTiming, NODE_CONDITIONS};
use crate::resize::{ResizeAsk, is_agent_label, resize_asks};
use crate::{KubeArgs, one_line};
use anyhow::{Result, bail};
use elbowroom_types::alert::CLAIMS_TOPIC;
use elbowroom_types::unit::Micros;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::PartialObjectMeta;
use kube::runtime::reflector::Store;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// The agent's API has a new snapshot a second.
const PERIOD: Duration = Duration::from_secs(1);

/// What is known from one look to the next.
pub(crate) struct KubeController {
    pub(crate) args: KubeArgs,
    pub(crate) agent: AgentClient,
    pub(crate) rule: LatchTiming,
    pub(crate) begin: Instant,
    pub(crate) latches: [Latch; NODE_CONDITIONS.len()],
    /// When the agent answered last.
    pub(crate) last_answer: Micros,
    /// Whether it was told that it does not.
    pub(crate) agent_unreachable: bool,
    pub(crate) deduplicator: EventDeduplicator,
    /// The labels that the agent took, by container.
    pub(crate) applied_labels: BTreeMap<String, PodLabels>,
    /// Those that it refused last, which is said once.
    pub(crate) rejected_labels: BTreeMap<String, PodLabels>,
    pub(crate) pods: Store<Pod>,
    pub(crate) namespaces: Store<PartialObjectMeta<Namespace>>,
    /// Whether namespaces were heard of, all of them.
    pub(crate) namespaces_synced: watch::Receiver<bool>,
    pub(crate) conditions: watch::Sender<Option<NodeConditions>>,
    pub(crate) event_queue: mpsc::Sender<EventNotice>,
    /// What is asked for by verdicts.
    pub(crate) resize_asks: watch::Sender<Vec<ResizeAsk>>,
}

impl KubeController {
    /// Looks once a period, until the agent was deleted.
    pub(crate) async fn run_loop(&mut self) -> Result<()> {
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
                    if self.args.resize {
                        self.resize_asks.send_replace(resize_asks(&snapshot));
                    }
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
        let pods = self.pods.state();
        let named = pods
            .iter()
            .flat_map(|pod| container_ids(pod).map(move |id| (id, pod.metadata.namespace.as_deref())));
        let namespaces: BTreeMap<&str, Option<&str>> = named.collect();
        facts.retain(|key, _| key.container.as_deref().is_none_or(|id| namespaces.contains_key(id)));
        let namespace =
            |key: &EventKey| namespaces.get(key.container.as_deref()?).copied().flatten().map(str::to_owned);
        for notice in self.deduplicator.update(now, facts, namespace) {
            if self.event_queue.try_send(notice).is_err() {
                tracing::warn!("the API server takes no more events: one is dropped");
            }
        }
    }

    /// The agent did not answer.
    fn on_agent_error(&mut self, now: Micros, error: &anyhow::Error) {
        self.resize_asks.send_if_modified(|asks| !std::mem::take(asks).is_empty());
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
            .map(|(id, mut labels)| {
                labels.asked.retain(|key, value| !self.args.resize || is_agent_label(key, value));
                (id, labels)
            })
            .collect();
        let there = |id: &String| snapshot.containers.iter().any(|container| container.id == *id);
        self.applied_labels.retain(|id, _| there(id));
        self.rejected_labels.retain(|id, _| there(id));
        for container in snapshot.containers.iter().filter(|container| container.pod.is_some()) {
            let Some(labels) = wanted.get(&container.id) else { continue };
            let has = match container.labels_by.as_deref() {
                Some(LABELS_BY) => self.applied_labels.get(&container.id) == Some(labels),
                // Another program's word was later than ours.
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
    pub(crate) async fn expire_labels(&mut self) {
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

/// Whether a container is one of a pod's.
pub(crate) fn has_container(pod: &Pod, id: &str) -> bool {
    container_ids(pod).any(|of| of == id)
}

/// The runtime's identifiers of a pod's containers.
fn container_ids(pod: &Pod) -> impl Iterator<Item = &str> {
    let status = pod.status.iter();
    let statuses = status
        .flat_map(|s| [&s.container_statuses, &s.init_container_statuses, &s.ephemeral_container_statuses]);
    let ids = statuses.flatten().flatten().filter_map(|status| status.container_id.as_deref());
    ids.filter_map(|id| id.split_once("://").map(|(_, id)| id))
}
