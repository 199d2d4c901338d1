//! The document that describes the API, made from the types that are answered. The program carries the golden copy,
//! `openapi.json`, so that a change of the API is seen in review: `UPDATE_GOLDEN=1 cargo test -p elbowroom-agent openapi` renews it.

use super::live::{LiveAlert, LiveSnapshot};
use super::snapshot_store::PodsSnapshot;
use super::source::ErrorBody;
use crate::history;
use crate::history::MAX_RESPONSE_POINTS;
use elbowroom_client::api::{
    AgentSnapshot, AgentStatus, AlertView, ContainerView, DisksReport, Explanation, FindingsReport,
    MemoryReport, NetworkReport,
};
use elbowroom_client::profile_store::StoredProfile;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Content type, and schema.
type Answer = fn(&mut SchemaGenerator) -> (&'static str, Value);

/// One path: what it answers. What it takes follows from the path.
struct ApiOperation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    answer: Answer,
    /// Statuses beside 200, of which each answers an [`ErrorBody`].
    error_statuses: &'static [u16],
}

/// What is answered where a question needs an agent that answers.
const UNAVAILABLE: u16 = 503;
const NEEDS_AGENT: &[u16] = &[UNAVAILABLE];
const NEEDS_CONTAINER: &[u16] = &[400, 404, 409, UNAVAILABLE];
const NEEDS_ROOT: &[u16] = &[400, 403, 404, 409, UNAVAILABLE];

const STREAM: &str = "Server-sent events: `snapshot` (Live) once a second, `change` (Change) and `alert` (LiveAlert) as they happen.";

#[rustfmt::skip]
const OPERATIONS: &[ApiOperation] = &[
    get("/api/v1/status", "The agent itself.", json_answer::<AgentStatus>, NEEDS_AGENT),
    get("/api/v1/containers", "Every container: what it sees, what it used, how it is doing.", json_answer::<Vec<ContainerView>>, &[400, UNAVAILABLE]),
    get("/api/v1/containers/{id}", "One container.", json_answer::<ContainerView>, NEEDS_CONTAINER),
    get("/api/v1/containers/{id}/explain", "Why it sees what it sees.", json_answer::<Explanation>, NEEDS_CONTAINER),
    get("/api/v1/containers/{id}/network", "What its network interfaces have carried, read at that moment.", json_answer::<NetworkReport>, NEEDS_CONTAINER),
    get("/api/v1/disks", "The governed disks.", json_answer::<DisksReport>, NEEDS_AGENT),
    get("/api/v1/memory", "The memory that is shared.", json_answer::<MemoryReport>, NEEDS_AGENT),
    get("/api/v1/alerts", "The alerts that last.", json_answer::<Vec<AlertView>>, NEEDS_AGENT),
    get("/api/v1/findings", "What the doctor found when it last looked.", json_answer::<FindingsReport>, NEEDS_AGENT),
    get("/api/v1/snapshot", "All of that at one moment.", json_answer::<AgentSnapshot>, NEEDS_AGENT),
    get("/api/v1/pods", "The containers of Kubernetes' pods, none that is inside one, and the alerts that last.", json_answer::<PodsSnapshot>, NEEDS_AGENT),
    get("/api/v1/history", "What happened lately, to the node or to a container.", json_answer::<history::HistoryResponse>, &[400, 404]),
    get("/api/v1/profiles", "The profiles that are kept, the newest first.", json_answer::<Vec<StoredProfile>>, &[500, UNAVAILABLE]),
    get("/api/v1/profiles/{name}", "One of them.", object, &[400, 404, UNAVAILABLE]),
    get("/api/v1/stream", "What happens, as it happens.", |_| text("text/event-stream", STREAM), NEEDS_AGENT),
    get("/api/v1/openapi.json", "This document.", object, &[]),
    get("/metrics", "Everything as metrics.", |_| text("application/openmetrics-text", "OpenMetrics 1.0."), NEEDS_AGENT),
    get("/healthz", "Whether the API's process lives.", |_| text("text/plain", "`ok`"), &[]),
    get("/readyz", "Whether the agent answers it.", |_| text("text/plain", "`ready`"), NEEDS_AGENT),
    post("/api/v1/containers/{id}/attach", "Mounts a container's view into it. Only root, only over the unix socket.", json_answer::<ContainerView>, NEEDS_ROOT),
    post("/api/v1/containers/{id}/detach", "Unmounts it again. Only root, only over the unix socket.", json_answer::<ContainerView>, NEEDS_ROOT),
];

const fn get(
    path: &'static str,
    summary: &'static str,
    answer: Answer,
    error_statuses: &'static [u16],
) -> ApiOperation {
    ApiOperation { method: "get", path, summary, answer, error_statuses }
}

const fn post(
    path: &'static str,
    summary: &'static str,
    answer: Answer,
    error_statuses: &'static [u16],
) -> ApiOperation {
    ApiOperation { method: "post", path, summary, answer, error_statuses }
}

fn text(content_type: &'static str, description: &str) -> (&'static str, Value) {
    (content_type, json!({"type": "string", "description": description}))
}

/// JSON of which no more is promised.
fn object(_: &mut SchemaGenerator) -> (&'static str, Value) {
    ("application/json", json!({"type": "object"}))
}

fn json_answer<T: JsonSchema>(types: &mut SchemaGenerator) -> (&'static str, Value) {
    ("application/json", types.subschema_for::<T>().to_value())
}

fn parameters(path: &str) -> Vec<Value> {
    let parameter = |name: &str, place: &str, schema: Value, description: &str| json!({"name": name, "in": place, "required": place == "path", "schema": schema, "description": description});
    let (string, time) =
        (json!({"type": "string"}), json!({"type": "integer", "format": "uint64", "minimum": 0}));
    let id =
        "Identifier, a beginning of it that no other has, name, or cgroup path with its slashes escaped.";
    match path {
        "/api/v1/containers" => {
            let flag = json!({"type": "boolean", "default": false});
            vec![parameter("all", "query", flag, "Also the containers that ended within the last hour.")]
        }
        "/api/v1/history" => vec![
            parameter("container", "query", string, "A container; without it the node."),
            parameter(
                "from",
                "query",
                time.clone(),
                "Milliseconds since 1970; ten minutes before `to` without it.",
            ),
            parameter("to", "query", time, "Milliseconds since 1970; now without it."),
            parameter(
                "points",
                "query",
                json!({"type": "integer", "minimum": 1, "maximum": MAX_RESPONSE_POINTS}),
                "Most points of the answer; 300 without it.",
            ),
        ],
        path if path.contains("{id}") => vec![parameter("id", "path", string, id)],
        path if path.contains("{name}") => vec![parameter("name", "path", string, "As in the list.")],
        _ => Vec::new(),
    }
}

fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut types = settings.with(|s| s.definitions_path = "/components/schemas".into()).into_generator();
    let error = json_answer::<ErrorBody>(&mut types).1;
    // Only in the stream, which JSON Schema cannot describe.
    let _ = (
        json_answer::<LiveSnapshot<'_>>(&mut types),
        json_answer::<LiveAlert<'_>>(&mut types),
        json_answer::<elbowroom_client::change::Change>(&mut types),
    );
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let (content_type, schema) = (operation.answer)(&mut types);
        let mut responses = Map::new();
        let answer = json!({"description": operation.summary, "content": {content_type: {"schema": schema}}});
        responses.insert("200".into(), answer);
        // A client over the network may lack the token, or may call the server by another's name.
        for status in [&[401, 413, 421], operation.error_statuses].concat() {
            let refusal = json!({"description": "One line says why.", "content": {"application/json": {"schema": error}}});
            responses.insert(status.to_string(), refusal);
        }
        let described = json!({
            "summary": operation.summary,
            "operationId": operation.path.rsplit('/').find(|word| !word.starts_with('{')).map(|word| {
                let one = if operation.path.ends_with('}') { "one_of_" } else { "" };
                format!("{one}{}", word.trim_end_matches(".json"))
            }),
            "parameters": parameters(operation.path),
            "responses": responses,
        });
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = described;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Elbowroom",
            "version": "1",
            "description": "What every container of this node sees, and gets. Fields may be added; none is taken away or changes its meaning within v1.",
            "license": {"name": "Apache-2.0 OR MIT"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": types.take_definitions(true),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}

#[test]
fn openapi_json_is_what_the_types_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/openapi.json");
    let made = serde_json::to_string_pretty(&document()).expect("a document is JSON") + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &made).expect("the golden copy can be written");
    }
    let golden = elbowroom_linux::bounded::file_text(path, 16 << 20).expect("there is a golden copy");
    assert!(
        golden == made,
        "the API has changed: look at `UPDATE_GOLDEN=1 cargo test -p elbowroom-agent openapi; git diff`"
    );
}
