//! The Node object: conditions and taints of ours, beside those of others.
//!
//! Conditions are merged by their type, so a patch names ours alone. Taints are one list that is replaced as a whole
//! (`+listType=atomic`, k8s.io/api/core/v1), so it is read, changed and written with its resource version. Where another writer
//! comes in between, the write is refused and everything is read anew.

use crate::node_condition::NODE_CONDITIONS;
use anyhow::{Context, Result, bail};
use elbowroom_types::unit::Micros;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;

/// How often conditions are confirmed where nothing changes, as the kubelet does.
pub(crate) const HEARTBEAT: Micros = Micros::secs(300);
/// How often a list is read anew because another program changed it.
const MAX_CONFLICT_RETRIES: usize = 8;
/// How long the API server may take for everything.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

/// What a taint of ours does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TaintEffect {
    /// There is none.
    None,
    /// Pods go elsewhere where they can.
    PreferNoSchedule,
    /// Pods go elsewhere, or wait.
    NoSchedule,
}

impl TaintEffect {
    const fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::PreferNoSchedule => Some("PreferNoSchedule"),
            Self::NoSchedule => Some("NoSchedule"),
        }
    }
}

/// What is said of one concern, in the order of [`NODE_CONDITIONS`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConditionState {
    /// It is there: the alert's words.
    Present(String),
    /// It is not.
    Absent,
    /// Not known: why.
    Unknown(String),
}

/// What the Node object is to say.
pub(crate) type NodeConditions = [ConditionState; NODE_CONDITIONS.len()];

/// The Node object of this node.
#[derive(Clone)]
pub(crate) struct NodeObject {
    pub(crate) api: Api<Node>,
    pub(crate) name: String,
    pub(crate) effect: TaintEffect,
}

impl NodeObject {
    /// Which concerns it says are there now.
    pub(crate) async fn present_conditions(&self) -> Result<[bool; NODE_CONDITIONS.len()]> {
        let node = self.with_timeout(self.read()).await?;
        Ok(NODE_CONDITIONS
            .map(|concern| condition(&node, concern.condition).is_some_and(|is| is.status == "True")))
    }

    /// Brings it to `word`.
    pub(crate) async fn apply(&self, word: &NodeConditions) -> Result<()> {
        let there =
            NODE_CONDITIONS.iter().zip(word).filter(|(_, said)| matches!(said, ConditionState::Present(_)));
        let keys: Vec<&str> = there.map(|(concern, _)| concern.taint).collect();
        self.with_timeout(async {
            let node = self.set_taints(&keys).await?;
            let now = Timestamp::now();
            let conditions: Vec<Value> = NODE_CONDITIONS
                .iter()
                .zip(word)
                .map(|(concern, said)| {
                    let (status, reason, message) = match said {
                        ConditionState::Present(text) => ("True", concern.reasons[0], text.as_str()),
                        ConditionState::Absent => {
                            ("False", concern.reasons[1], "Elbowroom has no alert about it")
                        }
                        ConditionState::Unknown(why) => ("Unknown", "AgentSilent", why.as_str()),
                    };
                    let before = condition(&node, concern.condition).filter(|before| before.status == status);
                    let since = before.and_then(|before| before.last_transition_time.as_ref());
                    json!({
                        "type": concern.condition, "status": status, "reason": reason, "message": message,
                        "lastHeartbeatTime": seconds(now),
                        "lastTransitionTime": since.map_or_else(|| seconds(now), |time| seconds(time.0)),
                    })
                })
                .collect();
            self.patch_conditions(&conditions).await
        })
        .await
    }

    /// Takes everything of ours off it.
    pub(crate) async fn clear(&self) -> Result<()> {
        self.with_timeout(async {
            self.set_taints(&[]).await?;
            let deleted =
                NODE_CONDITIONS.map(|concern| json!({"$patch": "delete", "type": concern.condition}));
            self.patch_conditions(&deleted).await
        })
        .await
    }

    /// Has it have exactly these taints of ours; the node as it is then.
    async fn set_taints(&self, keys: &[&str]) -> Result<Node> {
        for _ in 0..MAX_CONFLICT_RETRIES {
            let node = self.read().await?;
            let now = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
            let Some(taints) = merge_taints(now, keys, self.effect) else { return Ok(node) };
            let patch = json!({
                "metadata": {"resourceVersion": node.metadata.resource_version},
                "spec": {"taints": taints},
            });
            match self.api.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Ok(node) => return Ok(node),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error).context("changing the node's taints"),
            }
        }
        bail!("another program changes the node's taints all the time")
    }

    async fn patch_conditions(&self, conditions: &[Value]) -> Result<()> {
        let patch = json!({"status": {"conditions": conditions}});
        let patched =
            self.api.patch_status(&self.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        patched.map(drop).context("changing the node's conditions")
    }

    async fn read(&self) -> Result<Node> {
        self.api.get(&self.name).await.with_context(|| format!("reading node {}", self.name))
    }

    async fn with_timeout<T>(&self, asking: impl Future<Output = Result<T>>) -> Result<T> {
        let gave_up = |_| bail!("the API server did not answer in {} s", REQUEST_TIMEOUT.as_secs());
        tokio::time::timeout(REQUEST_TIMEOUT, asking).await.unwrap_or_else(gave_up)
    }
}

/// Times in a Node have whole seconds.
fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn condition<'a>(node: &'a Node, of: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == of)
}

/// A list of taints with exactly `keys` of ours in it, and those of others as they were; `None` where it is so already.
fn merge_taints(now: &[Taint], keys: &[&str], effect: TaintEffect) -> Option<Vec<Taint>> {
    let ours = |taint: &&Taint| NODE_CONDITIONS.iter().any(|concern| concern.taint == taint.key);
    let effect = effect.name();
    let wanted = |taint: &Taint| effect == Some(&taint.effect) && keys.contains(&taint.key.as_str());
    let missing = keys.iter().filter(|key| !now.iter().any(|taint| wanted(taint) && taint.key == **key));
    let missing: Vec<Taint> = effect
        .map(|effect| {
            missing
                .map(|key| Taint { key: (*key).into(), effect: effect.into(), ..Taint::default() })
                .collect()
        })
        .unwrap_or_default();
    let stay: Vec<Taint> = now.iter().filter(|taint| !ours(taint) || wanted(taint)).cloned().collect();
    (stay.len() < now.len() || !missing.is_empty()).then(|| stay.into_iter().chain(missing).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taint(key: &str, effect: &str) -> Taint {
        Taint { key: key.into(), effect: effect.into(), ..Taint::default() }
    }

    fn names(taints: &[Taint]) -> Vec<String> {
        taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect()
    }

    #[test]
    fn taints_of_ours_come_and_go_beside_others() {
        let key = NODE_CONDITIONS[0].taint;
        let theirs = taint("node.kubernetes.io/unschedulable", "NoSchedule");
        let with =
            merge_taints(std::slice::from_ref(&theirs), &[key], TaintEffect::PreferNoSchedule).unwrap();
        let ours = format!("{key}:PreferNoSchedule");
        assert_eq!(names(&with), ["node.kubernetes.io/unschedulable:NoSchedule", ours.as_str()]);
        assert_eq!(merge_taints(&with, &[key], TaintEffect::PreferNoSchedule), None);
        let harder = merge_taints(&with, &[key], TaintEffect::NoSchedule).unwrap();
        assert_eq!(harder[1].effect, "NoSchedule");
        assert_eq!(merge_taints(&harder, &[], TaintEffect::NoSchedule), Some(vec![theirs.clone()]));
        assert_eq!(merge_taints(&harder, &[key], TaintEffect::None), Some(vec![theirs]));
    }

    proptest! {
        #[test]
        fn others_taints_are_never_touched(
            now in prop::collection::vec((0usize..6, prop::sample::select(vec!["NoSchedule", "PreferNoSchedule", "NoExecute"])), 0..8),
            keys in prop::sample::subsequence(vec![0usize, 1, 2], 0..=3),
            effect in prop::sample::select(vec![TaintEffect::None, TaintEffect::PreferNoSchedule, TaintEffect::NoSchedule]),
        ) {
            let name = |n: usize| NODE_CONDITIONS.get(n).map_or(["a", "b", "elbowroom.dev/mine"][n % 3], |concern| concern.taint);
            let now: Vec<Taint> = now.into_iter().map(|(n, effect)| taint(name(n), effect)).collect();
            let keys: Vec<&str> = keys.into_iter().map(name).collect();
            let ours = |taint: &&Taint| NODE_CONDITIONS.iter().any(|concern| concern.taint == taint.key);
            let then = merge_taints(&now, &keys, effect).unwrap_or_else(|| now.clone());
            let others = |list: &[Taint]| list.iter().filter(|taint| !ours(taint)).cloned().collect::<Vec<_>>();
            prop_assert_eq!(others(&then), others(&now));
            let mut is: Vec<&str> = then.iter().filter(ours).map(|taint| taint.key.as_str()).collect();
            is.sort_unstable();
            is.dedup();
            let mut wanted = if effect == TaintEffect::None { Vec::new() } else { keys.clone() };
            wanted.sort_unstable();
            prop_assert_eq!(is, wanted);
            prop_assert_eq!(merge_taints(&then, &keys, effect), None, "once is enough");
        }
    }
}
