//! The document that describes the API, made from the types that are answered. The program carries the golden copy,
//! `openapi.json`, so that a change of the API is seen in review: `UPDATE_GOLDEN=1 cargo test -p elbowroom-agent openapi` renews it.

use super::live::{LiveAlert, LiveSnapshot};
use super::source::ErrorBody;
use crate::history;
use crate::history::MAX_RESPONSE_POINTS;
use elbowroom_client::api::{
    AgentSnapshot, AgentStatus, AlertView, ContainerView, DisksReport, Explanation, FindingsReport,
    MemoryReport,
};
use elbowroom_client::profile_store::StoredProfile;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// One path: what it takes, what it answers.
struct ApiOperation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    parameters: Vec<Value>,
    /// Content type, and schema.
    answer: (&'static str, Value),
    /// Statuses beside 200, of which each answers an [`ErrorBody`].
    error_statuses: &'static [u16],
}

/// What is answered where a question needs an agent that answers.
const UNAVAILABLE: u16 = 503;

fn operations(types: &mut SchemaGenerator) -> Vec<ApiOperation> {
    let mut all = Vec::new();
    let mut get = |path, summary, answer, refusals| {
        all.push(ApiOperation {
            method: "get",
            path,
            summary,
            parameters: parameters(path),
            answer,
            error_statuses: refusals,
        });
    };
    let container = &[400, 404, 409, UNAVAILABLE];
    get("/api/v1/status", "The agent itself.", json_answer::<AgentStatus>(types), &[UNAVAILABLE]);
    get(
        "/api/v1/containers",
        "Every container: what it sees, what it used.",
        json_answer::<Vec<ContainerView>>(types),
        &[UNAVAILABLE],
    );
    get("/api/v1/containers/{id}", "One container.", json_answer::<ContainerView>(types), container);
    get(
        "/api/v1/containers/{id}/explain",
        "Why it sees what it sees.",
        json_answer::<Explanation>(types),
        container,
    );
    get("/api/v1/disks", "The governed disks.", json_answer::<DisksReport>(types), &[UNAVAILABLE]);
    get("/api/v1/memory", "The memory that is shared.", json_answer::<MemoryReport>(types), &[UNAVAILABLE]);
    get("/api/v1/alerts", "The alerts that last.", json_answer::<Vec<AlertView>>(types), &[UNAVAILABLE]);
    get(
        "/api/v1/findings",
        "What the doctor found when it last looked.",
        json_answer::<FindingsReport>(types),
        &[UNAVAILABLE],
    );
    get(
        "/api/v1/snapshot",
        "All of that at one moment.",
        json_answer::<AgentSnapshot>(types),
        &[UNAVAILABLE],
    );
    get(
        "/api/v1/history",
        "What happened lately, to the node or to a container.",
        json_answer::<history::HistoryResponse>(types),
        &[400, 404],
    );
    get(
        "/api/v1/profiles",
        "The profiles that are kept, the newest first.",
        json_answer::<Vec<StoredProfile>>(types),
        &[500, UNAVAILABLE],
    );
    get(
        "/api/v1/profiles/{name}",
        "One of them.",
        ("application/json", json!({"type": "object"})),
        &[400, 404, UNAVAILABLE],
    );
    let stream = json!({
        "type": "string",
        "description": "Server-sent events: `snapshot` (Live) once a second, `change` (Change) and `alert` (LiveAlert) as they happen.",
    });
    get("/api/v1/stream", "What happens, as it happens.", ("text/event-stream", stream), &[UNAVAILABLE]);
    get("/api/v1/openapi.json", "This document.", ("application/json", json!({"type": "object"})), &[]);
    let text = |description: &str| json!({"type": "string", "description": description});
    let metrics = ("application/openmetrics-text", text("OpenMetrics 1.0."));
    get("/metrics", "Everything as metrics.", metrics, &[UNAVAILABLE]);
    get("/healthz", "Whether the API's process lives.", ("text/plain", text("`ok`")), &[]);
    get("/readyz", "Whether the agent answers it.", ("text/plain", text("`ready`")), &[UNAVAILABLE]);
    for (path, summary) in [
        (
            "/api/v1/containers/{id}/attach",
            "Mounts a container's view into it. Only root, only over the unix socket.",
        ),
        ("/api/v1/containers/{id}/detach", "Unmounts it again. Only root, only over the unix socket."),
    ] {
        let (answer, refusals) =
            (json_answer::<ContainerView>(types), &[400, 403, 404, 409, UNAVAILABLE][..]);
        all.push(ApiOperation {
            method: "post",
            path,
            summary,
            parameters: parameters(path),
            answer,
            error_statuses: refusals,
        });
    }
    all
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
    for operation in operations(&mut types) {
        let (content_type, schema) = operation.answer;
        let mut responses = Map::new();
        let answer = json!({"description": operation.summary, "content": {content_type: {"schema": schema}}});
        responses.insert("200".into(), answer);
        // Whoever comes over the network may lack the token, or may call the server by somebody else's name.
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
            "parameters": operation.parameters,
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
    let golden = std::fs::read_to_string(path).expect("there is a golden copy");
    assert!(
        golden == made,
        "the API has changed: look at `UPDATE_GOLDEN=1 cargo test -p elbowroom-agent openapi; git diff`"
    );
}
