//! The program at work: one look a second, and what follows from it.

use crate::agent::{Agent, BY, Snapshot};
use crate::claims::{Annotations, Heed, Wanted, wanted};
use crate::concern::{CONCERNS, Latch, Rule};
use crate::node::{HEARTBEAT, OurNode, Said, Word};
use crate::notice::{Notice, Notices, facts};
use crate::{Args, one_line};
use anyhow::{Context, Result, bail};
use elbowroom_types::unit::Micros;
use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::{Namespace, ObjectReference, Pod};
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
const PAUSE: Duration = Duration::from_secs(5);
/// Events that wait for a slow API server.
const QUEUE: usize = 256;

/// Runs until it is told to stop, then takes back what it said, and in a while what it gave.
pub(crate) async fn run(args: Args) -> Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let client = Client::try_default()
        .await
        .context("finding the API server: is there a KUBECONFIG, or a service account?")?;
    let node = OurNode { api: Api::all(client.clone()), name: args.node.clone(), effect: args.taint };
    let said = tokio::select! {
        said = first_word(&node) => said,
        _ = term.recv() => return Ok(()),
        _ = int.recv() => return Ok(()),
    };
    let (store, writer) = reflector::store();
    let (namespaces, namespace_writer) = reflector::store();
    let (heard, hears) = watch::channel(false);
    let (word, words) = watch::channel(None);
    let (notices, queue) = mpsc::channel(QUEUE);
    let mut look = Look {
        agent: Agent::at(&args.run_dir),
        rule: Rule { hold: args.hold, linger: args.linger },
        begin: Instant::now(),
        latches: said.map(Latch::resumed),
        answered: Micros::ZERO,
        silent: false,
        notices: Notices::default(),
        given: BTreeMap::new(),
        refused: BTreeMap::new(),
        pods: store,
        namespaces,
        heard: hears,
        word,
        queue: notices,
        args,
    };
    let pods = watch_pods(client.clone(), &node.name, writer);
    let spaces = watch_namespaces(client.clone(), namespace_writer, heard);
    let told = tell_node(node.clone(), words);
    let events = tell_events(client, node.name.clone(), look.pods.clone(), queue);
    let ended = tokio::select! {
        () = pods => bail!("the watch of pods ended"),
        () = spaces => bail!("the watch of namespaces ended"),
        () = told => bail!("nobody tells the node any more"),
        () = events => bail!("nobody sends events any more"),
        ended = look.forever() => ended,
        _ = term.recv() => Ok(()),
        _ = int.recv() => Ok(()),
    };
    look.let_lapse().await;
    if let Err(error) = node.leave().await {
        tracing::error!(because = one_line(&error), "conditions and taints stay on the node");
    }
    ended
}

/// What the Node object says already; asked until the API server answers.
async fn first_word(node: &OurNode) -> [bool; CONCERNS.len()] {
    loop {
        match node.said().await {
            Ok(said) => return said,
            Err(error) => tracing::warn!(because = one_line(&error), "no node to speak of yet"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Keeps the pods of this node in `writer`'s store.
async fn watch_pods(client: Client, node: &str, writer: reflector::store::Writer<Pod>) {
    // Not those that have ended: a cluster keeps thousands, and nothing of them runs.
    let fields = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
    let config = watcher::Config::default().fields(&fields);
    let slim = |pod: &mut Pod| pod.metadata.managed_fields = None;
    let pods = watcher(Api::all(client), config).default_backoff().modify(slim).reflect(writer);
    pin_mut!(pods);
    while let Some(event) = pods.next().await {
        if let Err(error) = event {
            tracing::warn!(because = one_line(&error.into()), "pods are not heard of");
        }
    }
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
        if is_all(&event) {
            heard.send_replace(true);
        }
        if let Err(error) = event {
            tracing::warn!(because = one_line(&error.into()), "namespaces are not heard of");
        }
    }
}

/// Whether a watch has told everything there is, or may never.
fn is_all<K>(event: &watcher::Result<watcher::Event<K>>) -> bool {
    match event {
        Ok(event) => matches!(event, watcher::Event::InitDone),
        Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) => status.is_forbidden(),
        Err(_) => false,
    }
}

/// Brings the Node object to the last word, at once when it is a new one, and again now and then.
async fn tell_node(node: OurNode, mut words: watch::Receiver<Option<Word>>) {
    loop {
        let word = words.borrow_and_update().clone();
        let pause = match &word {
            None => PAUSE,
            Some(word) => match node.say(word).await {
                Ok(()) => Duration::from_micros(HEARTBEAT.get()),
                Err(error) => {
                    tracing::warn!(because = one_line(&error), "the node is not told");
                    PAUSE
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
async fn tell_events(client: Client, node: String, pods: Store<Pod>, mut queue: mpsc::Receiver<Notice>) {
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
            Some(id) => match pods.find(|pod| runs(pod, id)) {
                Some(pod) => pod.object_ref(&()),
                // Not a pod's, or of one that is gone.
                None => continue,
            },
        };
        let type_ = if notice.fact.warning { EventType::Warning } else { EventType::Normal };
        let event = Event {
            type_,
            reason: notice.reason(),
            note: Some(notice.fact.note),
            action: "Observing".into(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, &about).await {
            tracing::warn!(reason = event.reason, because = one_line(&error.into()), "an event is not sent");
        }
    }
}

/// Whether a container is one of a pod's.
fn runs(pod: &Pod, id: &str) -> bool {
    let status = pod.status.iter();
    let statuses = status
        .flat_map(|s| [&s.container_statuses, &s.init_container_statuses, &s.ephemeral_container_statuses]);
    let mut ids = statuses.flatten().flatten().filter_map(|status| status.container_id.as_deref());
    ids.any(|of| of.split_once("://").is_some_and(|(_, of)| of == id))
}

/// What is known from one look to the next.
struct Look {
    args: Args,
    agent: Agent,
    rule: Rule,
    begin: Instant,
    latches: [Latch; CONCERNS.len()],
    /// When the agent answered last.
    answered: Micros,
    /// Whether it was told that it does not.
    silent: bool,
    notices: Notices,
    /// The labels that the agent took, by container.
    given: BTreeMap<String, Wanted>,
    /// Those that it refused last, which is said once.
    refused: BTreeMap<String, Wanted>,
    pods: Store<Pod>,
    namespaces: Store<PartialObjectMeta<Namespace>>,
    /// Whether namespaces were heard of, all of them.
    heard: watch::Receiver<bool>,
    word: watch::Sender<Option<Word>>,
    queue: mpsc::Sender<Notice>,
}

impl Look {
    async fn forever(&mut self) -> Result<()> {
        let mut clock = tokio::time::interval(PERIOD);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            if self.agent.is_lost() {
                bail!(
                    "{} was deleted: it is mounted anew when this program starts again",
                    self.args.run_dir.display()
                );
            }
            let snapshot = self.agent.snapshot().await;
            let now = self.now();
            match snapshot {
                Ok(snapshot) => {
                    self.answered = now;
                    if std::mem::take(&mut self.silent) {
                        tracing::info!("the agent answers");
                    }
                    self.take(now, &snapshot);
                    // Earlier, what namespaces say would be missing in what is given. Without pods nothing is.
                    if *self.heard.borrow() {
                        self.give(&snapshot).await;
                    }
                }
                Err(error) => self.nothing(now, &error),
            }
        }
    }

    fn now(&self) -> Micros {
        Micros(self.begin.elapsed().as_micros() as u64)
    }

    /// Tells what a snapshot says.
    fn take(&mut self, now: Micros, snapshot: &Snapshot) {
        let rule = self.rule;
        let mut latches = self.latches.iter_mut();
        let word = CONCERNS.map(|concern| {
            let lasting = snapshot.alerts.lasting.iter().filter(|view| view.alert.kind == concern.kind);
            let age = |since: u64| Micros(snapshot.time_unix_ms.saturating_sub(since).saturating_mul(1_000));
            let oldest = lasting.clone().map(|view| age(view.since_unix_ms)).max();
            let texts: Vec<&str> = lasting.map(|view| view.alert.text.as_str()).collect();
            match latches.next().expect("there is one for each").step(now, oldest, rule) {
                true if texts.is_empty() => Said::There("it is over, but not for long".into()),
                true => Said::There(texts.join("; ")),
                false => Said::Not,
            }
        });
        self.say(word);
        let mut facts = facts(snapshot, self.args.claims != Heed::None);
        // Of a container whose pod is not heard of yet, or that is no pod's, there is nothing to tell an Event about.
        let is_known = |id: &String| self.pods.find(|pod| runs(pod, id)).is_some();
        facts.retain(|key, _| key.container.as_ref().is_none_or(is_known));
        for notice in self.notices.hear(now, facts) {
            if self.queue.try_send(notice).is_err() {
                tracing::warn!("the API server takes no more events: one is dropped");
            }
        }
    }

    /// The agent did not answer.
    fn nothing(&mut self, now: Micros, error: &anyhow::Error) {
        if !std::mem::replace(&mut self.silent, true) {
            tracing::warn!(because = one_line(error), "the agent does not answer");
        }
        if now.saturating_sub(self.answered) >= self.rule.linger {
            self.latches = Default::default();
            self.say(
                CONCERNS.map(|_| Said::Unknown("Elbowroom's agent does not answer on this node".into())),
            );
        }
    }

    /// Tells the node, where that is news. New numbers in a message are none.
    fn say(&self, word: Word) {
        let kind = |word: &Word| word.each_ref().map(std::mem::discriminant);
        self.word.send_if_modified(|before| {
            let news = before.as_ref().is_none_or(|before| kind(before) != kind(&word));
            if news {
                *before = Some(word);
            }
            news
        });
    }

    /// Gives containers the labels that their pods want, where they have others.
    async fn give(&mut self, snapshot: &Snapshot) {
        let (pods, namespaces) = (self.pods.state(), self.namespaces.state());
        let speaking: BTreeMap<&str, &Annotations> = namespaces
            .iter()
            .filter_map(|of| Some((of.metadata.name.as_deref()?, of.metadata.annotations.as_ref()?)))
            .collect();
        let wanted: BTreeMap<String, Wanted> = pods
            .iter()
            .flat_map(|pod| {
                let namespace =
                    pod.metadata.namespace.as_deref().and_then(|name| speaking.get(name).copied());
                wanted(pod, namespace, self.args.claims)
            })
            .collect();
        let there = |id: &String| snapshot.containers.iter().any(|container| container.id == *id);
        self.given.retain(|id, _| there(id));
        self.refused.retain(|id, _| there(id));
        for container in snapshot.containers.iter().filter(|container| container.pod.is_some()) {
            let Some(labels) = wanted.get(&container.id) else { continue };
            let has = match container.labels_by.as_deref() {
                Some(BY) => self.given.get(&container.id) == Some(labels),
                // Somebody else's word was later than ours.
                Some(_) => true,
                None => false,
            };
            if has {
                continue;
            }
            match self.agent.label(&container.id, labels, None).await {
                Ok(None) => {
                    self.refused.remove(&container.id);
                    self.given.insert(container.id.clone(), labels.clone());
                }
                // This container's affair, and no reason to leave out those that follow.
                Ok(Some(why)) => {
                    if self.refused.insert(container.id.clone(), labels.clone()).as_ref() != Some(labels) {
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
    async fn let_lapse(&mut self) {
        let after = Some((self.rule.linger.get() / 1_000_000).max(1));
        for (id, labels) in std::mem::take(&mut self.given) {
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
        .map(is_all)
        .collect();
        assert_eq!(all, [false, false, true, false, true]);
    }
}
