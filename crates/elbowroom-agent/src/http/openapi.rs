//! The document that describes the API, made from the types that are answered. The program carries the golden copy,
//! `openapi.json`, so that a change of the API is seen in review: `UPDATE_GOLDEN=1 cargo test -p elbowroom openapi` renews it.

use super::answers::{Live, LiveAlert};
use super::source::Error;
use crate::history;
use crate::history::MOST_POINTS;
use elbowroom_client::api::{
    AlertView, ContainerView, DisksReport, Explanation, FindingsReport, MemoryReport, Snapshot, Status,
};
use elbowroom_client::kept::Kept;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// One path: what it takes, what it answers.
struct Operation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    parameters: Vec<Value>,
    /// Content type, and schema.
    answer: (&'static str, Value),
    /// Statuses beside 200, of which each answers an [`Error`].
    refusals: &'static [u16],
}

/// What is answered where a question needs an agent that answers.
const AWAY: u16 = 503;

fn operations(types: &mut SchemaGenerator) -> Vec<Operation> {
    let mut all = Vec::new();
    let mut get = |path, summary, answer, refusals| {
        all.push(Operation { method: "get", path, summary, parameters: parameters(path), answer, refusals });
    };
    let container = &[400, 404, 409, AWAY];
    get("/api/v1/status", "The agent itself.", of::<Status>(types), &[AWAY]);
    get(
        "/api/v1/containers",
        "Every container: what it sees, what it used.",
        of::<Vec<ContainerView>>(types),
        &[AWAY],
    );
    get("/api/v1/containers/{id}", "One container.", of::<ContainerView>(types), container);
    get("/api/v1/containers/{id}/explain", "Why it sees what it sees.", of::<Explanation>(types), container);
    get("/api/v1/disks", "The governed disks.", of::<DisksReport>(types), &[AWAY]);
    get("/api/v1/memory", "The memory that is shared.", of::<MemoryReport>(types), &[AWAY]);
    get("/api/v1/alerts", "The alerts that last.", of::<Vec<AlertView>>(types), &[AWAY]);
    get(
        "/api/v1/findings",
        "What the doctor found when it last looked.",
        of::<FindingsReport>(types),
        &[AWAY],
    );
    get("/api/v1/snapshot", "All of that at one moment.", of::<Snapshot>(types), &[AWAY]);
    get(
        "/api/v1/history",
        "What happened lately, to the node or to a container.",
        of::<history::Answer>(types),
        &[400, 404],
    );
    get(
        "/api/v1/profiles",
        "The profiles that are kept, the newest first.",
        of::<Vec<Kept>>(types),
        &[500, AWAY],
    );
    get(
        "/api/v1/profiles/{name}",
        "One of them.",
        ("application/json", json!({"type": "object"})),
        &[400, 404, AWAY],
    );
    let stream = json!({
        "type": "string",
        "description": "Server-sent events: `snapshot` (Live) once a second, `change` (Change) and `alert` (LiveAlert) as they happen.",
    });
    get("/api/v1/stream", "What happens, as it happens.", ("text/event-stream", stream), &[AWAY]);
    get("/api/v1/openapi.json", "This document.", ("application/json", json!({"type": "object"})), &[]);
    let text = |description: &str| json!({"type": "string", "description": description});
    let metrics = ("application/openmetrics-text", text("OpenMetrics 1.0."));
    get("/metrics", "Everything as metrics.", metrics, &[AWAY]);
    get("/healthz", "Whether the API's process lives.", ("text/plain", text("`ok`")), &[]);
    get("/readyz", "Whether the agent answers it.", ("text/plain", text("`ready`")), &[AWAY]);
    for (path, summary) in [
        (
            "/api/v1/containers/{id}/attach",
            "Mounts a container's view into it. Only root, only over the unix socket.",
        ),
        ("/api/v1/containers/{id}/detach", "Unmounts it again. Only root, only over the unix socket."),
    ] {
        let (answer, refusals) = (of::<ContainerView>(types), &[400, 403, 404, 409, AWAY][..]);
        all.push(Operation { method: "post", path, summary, parameters: parameters(path), answer, refusals });
    }
    all
}

fn of<T: JsonSchema>(types: &mut SchemaGenerator) -> (&'static str, Value) {
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
                json!({"type": "integer", "minimum": 1, "maximum": MOST_POINTS}),
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
    let error = of::<Error>(&mut types).1;
    // Only in the stream, which JSON Schema cannot describe.
    let _ = (
        of::<Live<'_>>(&mut types),
        of::<LiveAlert<'_>>(&mut types),
        of::<elbowroom_client::change::Change>(&mut types),
    );
    let mut paths = Map::new();
    for operation in operations(&mut types) {
        let (content_type, schema) = operation.answer;
        let mut responses = Map::new();
        let answer = json!({"description": operation.summary, "content": {content_type: {"schema": schema}}});
        responses.insert("200".into(), answer);
        // Whoever comes over the network may lack the token, or may call the server by somebody else's name.
        for status in [&[401, 413, 421], operation.refusals].concat() {
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
        "the API has changed: look at `UPDATE_GOLDEN=1 cargo test -p elbowroom openapi; git diff`"
    );
}
