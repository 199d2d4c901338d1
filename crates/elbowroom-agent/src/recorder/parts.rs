//! A snapshot as parts, and back.
//!
//! A part is a field of the snapshot, or an element of a field that is an array: a container. Nothing here knows the fields, so what a
//! newer agent adds is recorded too, and a field that an older one did not have is absent.

use crate::recorder::delta::Part;
use anyhow::{Context, Result};
use elbowroom_client::api::{AgentSnapshot, ChangeView, ContainerMemory, ContainerRef};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Before the name of a field that is an array; its elements follow.
const ARRAY_PREFIX: &str = "[";
/// Before what identifies an element.
const ELEMENT_PREFIX: &str = "-";

/// Takes a snapshot apart.
pub(crate) fn split(mut snapshot: AgentSnapshot) -> Result<Vec<Part>> {
    // The same is in every container.
    snapshot.memory.containers.clear();
    let json = serde_json::to_string(&snapshot)?;
    let fields: BTreeMap<&str, &RawValue> = serde_json::from_str(&json)?;
    let mut parts = Vec::new();
    for (name, value) in fields {
        let json = value.get();
        if !json.starts_with('[') {
            parts.push(Part { key: name.to_owned(), json: json.to_owned() });
            continue;
        }
        parts.push(Part { key: format!("{ARRAY_PREFIX}{name}"), json: String::new() });
        for element in serde_json::from_str::<Vec<&RawValue>>(json)? {
            let json = element.get();
            // The first field is the one that tells elements apart: `{"id":"4f1c..."`.
            let identity = json.split(',').next().unwrap_or_default();
            parts.push(Part { key: format!("{ELEMENT_PREFIX}{identity}"), json: json.to_owned() });
        }
    }
    Ok(parts)
}

/// Puts a snapshot together again.
pub(crate) fn join(parts: &[Part]) -> Result<AgentSnapshot> {
    let mut snapshot: AgentSnapshot =
        serde_json::from_str(&json(parts)).context("the recording is of another version of elbowroom")?;
    let memory = |container: &elbowroom_client::api::ContainerView| {
        let named = ContainerRef {
            id: container.id.clone(),
            name: container.name.clone(),
            path: container.path.clone(),
        };
        Some(ContainerMemory {
            container: named,
            status: container.memory.clone()?,
            verdict: container.verdict.clone(),
        })
    };
    snapshot.memory.containers = snapshot.containers.iter().filter_map(memory).collect();
    Ok(snapshot)
}

/// Whether a part, of all in their order, is the changes or one of them.
pub(crate) fn changes_filter() -> impl FnMut(&str) -> bool {
    let mut inside = false;
    move |key| {
        if !key.starts_with(ELEMENT_PREFIX) {
            inside = key.strip_prefix(ARRAY_PREFIX) == Some("changes");
        }
        inside
    }
}

/// The changes of a snapshot, from their parts.
pub(crate) fn changes(parts: &[Part]) -> Result<Vec<ChangeView>> {
    #[derive(Deserialize)]
    struct Changes {
        #[serde(default)]
        changes: Vec<ChangeView>,
    }
    let Changes { changes } =
        serde_json::from_str(&json(parts)).context("the recording is of another version of elbowroom")?;
    Ok(changes)
}

fn json(parts: &[Part]) -> String {
    let mut json = "{".to_owned();
    let (mut open, mut first) = (false, true);
    for part in parts {
        if part.key.starts_with(ELEMENT_PREFIX) && open {
            json.push_str(if first { "" } else { "," });
            json.push_str(&part.json);
            first = false;
            continue;
        }
        json.push_str(if std::mem::take(&mut open) { "]" } else { "" });
        json.push_str(if json.len() > 1 { "," } else { "" });
        let name = part.key.strip_prefix(ARRAY_PREFIX);
        let quoted = serde_json::Value::from(name.unwrap_or(&part.key));
        json.push_str(&format!("{quoted}:"));
        if name.is_some() {
            json.push('[');
            (open, first) = (true, true);
        } else {
            json.push_str(&part.json);
        }
    }
    json.push_str(if open { "]}" } else { "}" });
    json
}
