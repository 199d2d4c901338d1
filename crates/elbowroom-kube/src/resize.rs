//! Resizing pods in place, the last rung of a ladder (`docs/decisions/0052-in-place-resize.md`).
//!
//! Approach: the agent judges. Its verdict names a limit of the container's own that holds it back, and the value that would help, when
//! programs were asked, the kernel reclaimed, and no loan can reach: a loan never passes a limit. [`ResizeLadder`] decides when that
//! becomes a change of the pod, and never more than the pod's annotations allow.
//!
//! Properties (tested with random pods and sequences):
//!
//! 1. A limit only rises, and never above its bound. Without a bound or a limit nothing changes.
//! 2. A pod changes at most once in [`PAUSE`], in one resource of one container, and not while another resize of it is under way.
//! 3. What the API server refused is not tried again while limit and bound are what they were.

use crate::agent::ApiSnapshot;
use crate::claims::{Annotations, asked_labels};
use crate::kube_events::{EventKey, EventNotice, event_content};
use crate::quantity;
use elbowroom_types::alert::AlertKind;
use elbowroom_types::label::PREFIX;
use elbowroom_types::unit::{Bytes, Micros, Millicpu, parse_bytes, parse_cpus};
use elbowroom_types::verdict::{RaisedLimit, VerdictStatus};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Namespace, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Client;
use kube::api::{Api, PartialObjectMeta, Patch, PatchParams};
use kube::runtime::reflector::Store;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Time between two changes of one pod: the kubelet takes seconds for one, and a verdict looks back ten.
const PAUSE: Micros = Micros::secs(60);
/// How long the API server may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A resource with a limit that can be raised. Amounts of it are bytes, or thousandths of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    Memory,
    Cpu,
}

impl Resource {
    /// Its name in a pod.
    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }

    /// The bound that annotations set.
    fn bound(self, labels: &BTreeMap<String, String>) -> Option<u64> {
        self.parse_bound(labels.get(&format!("{PREFIX}{}-max", self.name()))?)
    }

    fn parse_bound(self, value: &str) -> Option<u64> {
        match self {
            Self::Memory => parse_bytes(value).ok().map(Bytes::get),
            Self::Cpu => parse_cpus(value).ok().map(Millicpu::get),
        }
    }

    /// What a list of limits says of it.
    fn amount(self, limits: Option<&BTreeMap<String, Quantity>>) -> Option<u64> {
        let text = &limits?.get(self.name())?.0;
        match self {
            Self::Memory => quantity::units(text),
            Self::Cpu => quantity::milli(text),
        }
    }

    fn quantity(self, amount: u64) -> String {
        const MIB: u64 = 1 << 20;
        match self {
            Self::Memory if amount.is_multiple_of(MIB) => format!("{}Mi", amount / MIB),
            Self::Memory => amount.to_string(),
            Self::Cpu => format!("{amount}m"),
        }
    }
}

/// Whether an annotation is the agent's too: bounds are not, where they can be read.
pub(crate) fn is_agent_label(key: &str, value: &str) -> bool {
    let is_bound = |resource: Resource| {
        key.strip_prefix(PREFIX).and_then(|key| key.strip_suffix("-max")) == Some(resource.name())
            && resource.parse_bound(value).is_some()
    };
    !is_bound(Resource::Memory) && !is_bound(Resource::Cpu)
}

/// A container that a higher limit would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResizeAsk {
    /// Its pod's uid, and its name there: it has another identifier when it was killed and starts again.
    pod: String,
    container: String,
    resource: Resource,
    /// The limit that would help.
    amount: u64,
    /// Whether it is too late to wait.
    killed: bool,
    /// The verdict's sentence.
    because: String,
}

/// What a snapshot asks for. Not memory that the agent has lent, which comes back first; nor a resource of which the whole node is short:
/// a higher limit makes none.
pub(crate) fn resize_asks(snapshot: &ApiSnapshot) -> Vec<ResizeAsk> {
    let is_short = |resource: Resource| {
        let mut alerts = snapshot.alerts.lasting.iter().map(|view| &view.alert);
        alerts.any(|of| of.kind == AlertKind::Overload && of.topic.as_deref() == Some(resource.name()))
    };
    let short = [Resource::Memory, Resource::Cpu].map(|resource| (resource, is_short(resource)));
    let asks = snapshot.containers.iter().filter_map(|container| {
        let (resource, amount) = match container.verdict.raise? {
            RaisedLimit::Memory(limit) => (Resource::Memory, limit.get()),
            RaisedLimit::Cpu(quota) => (Resource::Cpu, quota.get()),
        };
        let has_lent = container.memory.as_ref().is_some_and(|memory| memory.lent > Bytes::ZERO);
        let helps_first = (resource == Resource::Memory && has_lent) || short.contains(&(resource, true));
        if helps_first {
            return None;
        }
        Some(ResizeAsk {
            pod: container.pod.as_ref()?.uid.clone(),
            container: container.name.clone()?,
            resource,
            amount,
            killed: container.verdict.status == VerdictStatus::Killed,
            because: container.verdict.reason.clone(),
        })
    });
    asks.collect()
}

/// A change of one limit of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ResizeOrder {
    uid: String,
    namespace: String,
    pod: String,
    /// The pod that was looked at: of another version the API server refuses the change, so a user's own is never undone.
    version: String,
    /// Name of the container, and its identifier, empty before it has one.
    container: String,
    id: String,
    resource: Resource,
    from: u64,
    to: u64,
    bound: u64,
    /// Whether the request moves along: a pod's QoS class must stay, and `Guaranteed` is limits that are requests.
    with_request: bool,
    because: String,
}

impl ResizeOrder {
    /// Whether the pod says what this asked for.
    fn is_in(&self, pod: &Pod) -> bool {
        let container = pod
            .spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .find(|container| container.name == self.container);
        let limits = container.and_then(|container| container.resources.as_ref()?.limits.as_ref());
        self.resource.amount(limits) == Some(self.to)
    }

    /// What the pod allows `ask`; `None` where that is nothing.
    fn of(pod: &Pod, namespace: Option<&Annotations>, ask: &ResizeAsk) -> Option<Self> {
        let (spec, status, resource) = (pod.spec.as_ref()?, pod.status.as_ref()?, ask.resource);
        let name = ask.container.as_str();
        let container = spec.containers.iter().find(|container| container.name == name)?;
        if pod.metadata.uid.as_ref() != Some(&ask.pod) || restarts(container, resource) {
            return None;
        }
        let labels =
            asked_labels(pod, namespace, name, |of| spec.containers.iter().any(|other| other.name == of));
        let bound = resource.bound(&labels)?;
        let from = resource.amount(container.resources.as_ref()?.limits.as_ref())?;
        let to = ask.amount.min(bound);
        (to > from).then_some(())?;
        let metadata = &pod.metadata;
        let of_name = |of: &&ContainerStatus| of.name == name;
        let id = status.container_statuses.iter().flatten().find(of_name)?.container_id.as_deref();
        Some(Self {
            uid: ask.pod.clone(),
            namespace: metadata.namespace.clone()?,
            pod: metadata.name.clone()?,
            version: metadata.resource_version.clone()?,
            container: name.to_owned(),
            id: id.and_then(|id| id.split_once("://")).map_or_else(String::new, |(_, id)| id.to_owned()),
            resource,
            from,
            to,
            bound,
            with_request: status.qos_class.as_deref() == Some("Guaranteed"),
            because: ask.because.clone(),
        })
    }

    fn patch(&self) -> Value {
        let amount = json!({self.resource.name(): self.resource.quantity(self.to)});
        let mut resources = json!({"limits": amount});
        if self.with_request {
            resources["requests"] = amount;
        }
        json!({
            "metadata": {"resourceVersion": self.version},
            "spec": {"containers": [{"name": self.container, "resources": resources}]},
        })
    }

    /// What of it makes an answer the same again.
    fn terms(&self) -> ResizeTerms {
        ((self.container.clone(), self.resource), (self.from, self.bound))
    }

    fn notice(&self, reason: &'static str, warning: bool, text: &str) -> EventNotice {
        let Self { container, resource, from, to, bound, .. } = self;
        let [from, to, bound] = [from, to, bound].map(|amount| resource.quantity(*amount));
        let text = format!("{container}: {} limit {from} -> {to}, at most {bound}: {text}", resource.name());
        let key = EventKey { container: Some(self.id.clone()), reason, topic: String::new() };
        EventNotice { key, content: event_content(warning, &text), ended: false }
    }
}

/// Container and resource, and there limit and bound.
type ResizeTerms = ((String, Resource), (u64, u64));

/// Whether the pod's maker wants the container restarted for a change.
fn restarts(container: &Container, resource: Resource) -> bool {
    let mut policies = container.resize_policy.iter().flatten();
    policies.any(|of| of.resource_name == resource.name() && of.restart_policy != "NotRequired")
}

fn condition<'a>(pod: &'a Pod, of: &str) -> Option<&'a PodCondition> {
    let all = pod.status.as_ref()?.conditions.as_ref()?;
    all.iter().find(|condition| condition.type_ == of && condition.status == "True")
}

/// When asks become changes.
#[derive(Debug)]
struct ResizeLadder {
    /// How long a verdict has asked before it counts, but for kills.
    hold: Micros,
    /// Since when, by container.
    since: BTreeMap<(String, String, Resource), Micros>,
    /// Pods that were changed, or where that was refused.
    pods: BTreeMap<String, ResizedPod>,
}

/// What is known of one pod.
#[derive(Debug)]
struct ResizedPod {
    /// The last change.
    last: ResizeOrder,
    at: Micros,
    /// Whether it was told that the kubelet does not make it.
    is_told: bool,
    refused: BTreeMap<(String, Resource), (u64, u64)>,
}

impl ResizeLadder {
    fn new(hold: Micros) -> Self {
        Self { hold, since: BTreeMap::new(), pods: BTreeMap::new() }
    }

    /// Takes what is asked for now; gives what is to be changed now.
    fn step<'a>(
        &mut self,
        now: Micros,
        asks: &[ResizeAsk],
        pods: &[Arc<Pod>],
        namespace: impl Fn(&Pod) -> Option<&'a Annotations>,
    ) -> Vec<ResizeOrder> {
        let key = |ask: &ResizeAsk| (ask.pod.clone(), ask.container.clone(), ask.resource);
        self.since.retain(|known, _| asks.iter().any(|ask| key(ask) == *known));
        for ask in asks {
            self.since.entry(key(ask)).or_insert(now);
        }
        self.pods.retain(|uid, _| pods.iter().any(|pod| pod.metadata.uid.as_deref() == Some(uid)));
        let lasts = |ask: &&ResizeAsk| ask.killed || now.saturating_sub(self.since[&key(ask)]) >= self.hold;
        let due: Vec<&ResizeAsk> = asks.iter().filter(lasts).collect();
        let mut orders = Vec::new();
        for pod in pods {
            let known = self.pods.get(pod.metadata.uid.as_deref().unwrap_or_default());
            let is_busy = known.is_some_and(|known| now.saturating_sub(known.at) < PAUSE)
                || condition(pod, "PodResizePending").is_some()
                || condition(pod, "PodResizeInProgress").is_some();
            if is_busy {
                continue;
            }
            let is_refused = |order: &ResizeOrder| {
                let (of, terms) = order.terms();
                known.is_some_and(|known| known.refused.get(&of) == Some(&terms))
            };
            let orders_of = due.iter().filter_map(|ask| ResizeOrder::of(pod, namespace(pod), ask));
            let Some(order) = orders_of.into_iter().find(|order| !is_refused(order)) else { continue };
            let refused = self.pods.remove(&order.uid).map(|known| known.refused).unwrap_or_default();
            let known = ResizedPod { last: order.clone(), at: now, is_told: false, refused };
            self.pods.insert(order.uid.clone(), known);
            orders.push(order);
        }
        orders
    }

    /// The API server refused a change.
    fn refuse(&mut self, order: &ResizeOrder) {
        if let Some(known) = self.pods.get_mut(&order.uid) {
            known.refused.extend([order.terms()]);
            known.is_told = true;
        }
    }

    /// Changes of ours that the kubelet does not make, or not now: each once.
    fn pending(&mut self, pods: &[Arc<Pod>]) -> Vec<EventNotice> {
        let mut notices = Vec::new();
        for pod in pods {
            let Some(condition) = condition(pod, "PodResizePending") else { continue };
            let known = pod.metadata.uid.as_ref().and_then(|uid| self.pods.get_mut(uid));
            let Some(known) = known.filter(|known| !known.is_told && known.last.is_in(pod)) else { continue };
            known.is_told = true;
            let words = [condition.reason.as_deref(), condition.message.as_deref()];
            let text = words.into_iter().flatten().collect::<Vec<_>>().join(": ");
            notices.push(known.last.notice("ResizePending", true, &text));
        }
        notices
    }
}

/// What came of a change.
#[derive(Debug, PartialEq, Eq)]
enum ResizeOutcome {
    Done,
    /// The API server's reason.
    Refused(String),
    /// It may be another the next time.
    Failed(String),
}

/// Asks the API server for a change.
async fn resize(client: &Client, order: &ResizeOrder) -> ResizeOutcome {
    let api: Api<Pod> = Api::namespaced(client.clone(), &order.namespace);
    let (patch, params) = (Patch::Strategic(order.patch()), PatchParams::default());
    let asking = api.patch_subresource("resize", &order.pod, &params, &patch);
    match tokio::time::timeout(REQUEST_TIMEOUT, asking).await {
        Ok(Ok(_)) => ResizeOutcome::Done,
        // Another writer came in between, or it is busy: the pod is looked at anew.
        Ok(Err(kube::Error::Api(status))) if !matches!(status.code, 401 | 408 | 409 | 429 | 500..) => {
            ResizeOutcome::Refused(status.message)
        }
        Ok(Err(error)) => ResizeOutcome::Failed(crate::one_line(&error.into())),
        Err(_) => ResizeOutcome::Failed(format!("no answer in {} s", REQUEST_TIMEOUT.as_secs())),
    }
}

/// Changes pods as verdicts ask, and says so at the pod.
pub(crate) async fn resize_pods(
    client: Client,
    (pods, namespaces): (Store<Pod>, Store<PartialObjectMeta<Namespace>>),
    mut asked: watch::Receiver<Vec<ResizeAsk>>,
    events: mpsc::Sender<EventNotice>,
    hold: Micros,
) {
    let (mut ladder, begin) = (ResizeLadder::new(hold), Instant::now());
    while asked.changed().await.is_ok() {
        let asks = asked.borrow_and_update().clone();
        let (pods, namespaces) = (pods.state(), namespaces.state());
        let namespace = |pod: &Pod| {
            let name = pod.metadata.namespace.as_deref();
            namespaces.iter().find(|of| of.metadata.name.as_deref() == name)?.metadata.annotations.as_ref()
        };
        let now = Micros(begin.elapsed().as_micros() as u64);
        let mut notices = ladder.pending(&pods);
        for order in ladder.step(now, &asks, &pods, namespace) {
            match resize(&client, &order).await {
                ResizeOutcome::Done => notices.push(order.notice("Resized", false, &order.because)),
                ResizeOutcome::Refused(why) => {
                    ladder.refuse(&order);
                    notices.push(order.notice("ResizeRefused", true, &why));
                }
                ResizeOutcome::Failed(why) => {
                    tracing::warn!(pod = order.pod, because = why, "a pod was not resized: trying again");
                }
            }
        }
        for notice in notices {
            tracing::info!(reason = notice.reason(), note = notice.content.note, "a pod's size");
            let _ = events.try_send(notice);
        }
    }
}

#[cfg(test)]
mod tests;
