//! Every path, and what is answered there.

use super::access::HttpPeer;
use super::live::lasting_alerts;
use super::snapshot_store::{RenderedSnapshot, json_bytes};
use super::stream::stream;
use super::{HttpError, SnapshotSource};
use crate::dashboard;
use crate::history::{HistoryQuery, MAX_RESPONSE_POINTS};
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderName, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use elbowroom_client::api::ContainerView;
use elbowroom_types::lookup::{ContainerNames, LookupError, find_container};
use serde::Deserialize;
use std::sync::Arc;

/// The document that describes all of this; a test sees to it that it does.
const OPENAPI: &str = include_str!("openapi.json");
/// Points of a history where a request does not say how many: as many as a chart has pixels to tell apart.
const DEFAULT_POINTS: usize = 300;
/// How far back a history goes where a request does not say, in milliseconds.
const DEFAULT_RANGE_MS: u64 = 600_000;

/// What every handler has.
#[derive(Clone)]
struct AppState {
    source: Arc<dyn SnapshotSource>,
}

type StateExtractor = State<AppState>;

/// All paths over one source. Which client may come here at all is decided before ([`super::access`]).
pub(crate) fn router(source: Arc<dyn SnapshotSource>) -> Router {
    let state = AppState { source };
    let v1 = Router::new()
        .route(
            "/status",
            get(async |state: StateExtractor| {
                cached_part(&state, |newest| json_bytes(&newest.snapshot.status))
            }),
        )
        .route("/containers", get(containers))
        .route("/containers/{id}", get(container))
        .route("/containers/{id}/explain", get(explain))
        .route("/containers/{id}/network", get(network))
        .route("/containers/{id}/attach", post(attach))
        .route("/containers/{id}/detach", post(detach))
        .route(
            "/disks",
            get(async |state: StateExtractor| {
                cached_part(&state, |newest| json_bytes(&newest.snapshot.disks))
            }),
        )
        .route(
            "/memory",
            get(async |state: StateExtractor| {
                cached_part(&state, |newest| json_bytes(&newest.snapshot.memory))
            }),
        )
        .route(
            "/alerts",
            get(async |state: StateExtractor| {
                cached_part(&state, |newest| {
                    json_bytes(&lasting_alerts(&newest.snapshot).collect::<Vec<_>>())
                })
            }),
        )
        .route(
            "/findings",
            get(async |State(state): StateExtractor| {
                state.source.findings().await.map(|found| json(json_bytes(&found)))
            }),
        )
        .route("/profiles", get(profiles))
        .route("/profiles/{name}", get(profile))
        .route("/snapshot", get(async |state: StateExtractor| cached_part(&state, RenderedSnapshot::json)))
        .route("/pods", get(async |state: StateExtractor| cached_part(&state, RenderedSnapshot::pods)))
        .route("/history", get(history))
        .route("/stream", get(async |State(state): StateExtractor| stream(state.source.snapshots())))
        .route("/openapi.json", get(async || json(Bytes::from_static(OPENAPI.as_bytes()))));
    Router::new()
        .nest("/api/v1", v1)
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/", get(asset))
        .route("/assets/{*path}", get(asset))
        .fallback(async |uri: Uri| {
            let message = format!("nothing is at {:?}: see /api/v1/openapi.json", short_name(uri.path()));
            HttpError::new(StatusCode::NOT_FOUND, message)
        })
        .method_not_allowed_fallback(async || {
            HttpError::new(StatusCode::METHOD_NOT_ALLOWED, "not with this method: see /api/v1/openapi.json")
        })
        .with_state(state)
}

/// The newest snapshot, where it still says how things are.
fn newest(state: &AppState) -> Result<Arc<RenderedSnapshot>, HttpError> {
    let none =
        || HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "the agent has not answered yet: try again");
    state.source.check_fresh()?;
    state.source.snapshots().newest().ok_or_else(none)
}

fn cached_part(state: &AppState, part: impl Fn(&RenderedSnapshot) -> Bytes) -> Result<Response, HttpError> {
    newest(state).map(|newest| json(part(&newest)))
}

fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body).into_response()
}

async fn ready(State(state): StateExtractor) -> Result<&'static str, HttpError> {
    newest(&state).map(|_| "ready\n")
}

async fn metrics(State(state): StateExtractor) -> Result<Response, HttpError> {
    const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], newest(&state)?.metrics()).into_response())
}

/// The query of `/api/v1/containers`.
#[derive(Debug, Deserialize)]
struct ContainersParams {
    /// Also those that ended within the last hour.
    #[serde(default)]
    all: bool,
}

async fn containers(
    State(state): StateExtractor,
    asked: Result<Query<ContainersParams>, QueryRejection>,
) -> Result<Response, HttpError> {
    let asked = asked.map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, error.body_text()))?;
    cached_part(&state, |newest| match asked.all {
        false => newest.containers(),
        true => {
            json_bytes(&newest.snapshot.containers.iter().chain(&newest.snapshot.ended).collect::<Vec<_>>())
        }
    })
}

type PathId = Result<Path<String>, PathRejection>;

async fn container(State(state): StateExtractor, id: PathId) -> Result<Response, HttpError> {
    let newest = newest(&state)?;
    Ok(json(json_bytes(find_any(&newest, &path_name(id)?)?)))
}

async fn explain(State(state): StateExtractor, id: PathId) -> Result<Response, HttpError> {
    let id = find_any(&*newest(&state)?, &path_name(id)?)?.id.clone();
    Ok(json(json_bytes(&state.source.explain(id).await?)))
}

async fn network(State(state): StateExtractor, id: PathId) -> Result<Response, HttpError> {
    let id = find(&newest(&state)?.snapshot.containers, &path_name(id)?)?.id.clone();
    Ok(json(json_bytes(&state.source.network(id).await?)))
}

async fn attach(
    State(state): StateExtractor,
    Extension(peer): Extension<HttpPeer>,
    id: PathId,
) -> Result<Response, HttpError> {
    set_attached(&state, peer, id, true).await
}

async fn detach(
    State(state): StateExtractor,
    Extension(peer): Extension<HttpPeer>,
    id: PathId,
) -> Result<Response, HttpError> {
    set_attached(&state, peer, id, false).await
}

async fn set_attached(
    state: &AppState,
    peer: HttpPeer,
    id: PathId,
    attached: bool,
) -> Result<Response, HttpError> {
    if peer != (HttpPeer::Unix { uid: 0 }) {
        let message = "only root may attach and detach, and only over the unix socket: use `elbowroom attach` on the host";
        return Err(HttpError::new(StatusCode::FORBIDDEN, message));
    }
    let id = find(&newest(state)?.snapshot.containers, &path_name(id)?)?.id.clone();
    Ok(json(json_bytes(&state.source.attach(id, attached).await?)))
}

/// The query of `/api/v1/history`.
#[derive(Debug, Deserialize)]
struct HistoryParams {
    container: Option<String>,
    from: Option<u64>,
    to: Option<u64>,
    points: Option<usize>,
}

async fn history(
    State(state): StateExtractor,
    span: Result<Query<HistoryParams>, QueryRejection>,
) -> Result<Response, HttpError> {
    let bad = |message: String| HttpError::new(StatusCode::BAD_REQUEST, message);
    let Query(span) = span.map_err(|error| bad(error.body_text()))?;
    let points = span.points.unwrap_or(DEFAULT_POINTS);
    if !(1..=MAX_RESPONSE_POINTS).contains(&points) {
        return Err(bad(format!("points: {points} is not between 1 and {MAX_RESPONSE_POINTS}")));
    }
    let snapshots = state.source.snapshots();
    let newest = snapshots.newest();
    let to = span.to.or(newest.as_ref().map(|newest| newest.snapshot.time_unix_ms)).unwrap_or_default();
    let from = span.from.unwrap_or(to.saturating_sub(DEFAULT_RANGE_MS));
    if from > to {
        return Err(bad(format!("from: {from} is after to, which is {to}")));
    }
    // One that is gone still has a history, by its full identifier.
    let known = |name: &str| {
        newest.as_ref().and_then(|newest| find(&newest.snapshot.containers, name).ok()).map(|c| c.id.clone())
    };
    let container = span.container.map(|name| known(&name).unwrap_or(name));
    match snapshots.history(container.as_deref(), &HistoryQuery { from, to, points }) {
        Some(answer) => Ok(json(json_bytes(&answer))),
        None => Err(not_found(&container.unwrap_or_default())),
    }
}

async fn profiles(State(state): StateExtractor) -> Result<Response, HttpError> {
    Ok(json(json_bytes(&state.source.profiles().await?)))
}

async fn profile(State(state): StateExtractor, name: PathId) -> Result<Response, HttpError> {
    Ok(json(state.source.profile(path_name(name)?).await?.into()))
}

pub(super) async fn asset(uri: Uri) -> Result<Response, HttpError> {
    let none = || {
        HttpError::new(
            StatusCode::NOT_FOUND,
            format!("the dashboard has no file {:?}", short_name(uri.path())),
        )
    };
    let (body, content_type) = dashboard::asset(uri.path()).ok_or_else(none)?;
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, dashboard::CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    Ok((headers, Bytes::from_static(body)).into_response())
}

fn path_name(id: PathId) -> Result<String, HttpError> {
    id.map(|Path(id)| id).map_err(|error| HttpError::new(StatusCode::BAD_REQUEST, error.body_text()))
}

/// The container that a name, an identifier, a cgroup path or a beginning of one means: as the agent does it.
fn find<'a>(containers: &'a [ContainerView], name: &str) -> Result<&'a ContainerView, HttpError> {
    let names: Vec<ContainerNames<'_>> = containers.iter().map(ContainerView::names).collect();
    match find_container(&names, name) {
        Ok(place) => Ok(&containers[place]),
        Err(error @ LookupError::Unknown { .. }) => {
            Err(HttpError::new(StatusCode::NOT_FOUND, format!("{error}: see /api/v1/containers")))
        }
        Err(error) => Err(HttpError::new(StatusCode::CONFLICT, error.to_string())),
    }
}

/// The same, and where none runs that is called so, one that ended within the last hour.
fn find_any<'a>(newest: &'a RenderedSnapshot, name: &str) -> Result<&'a ContainerView, HttpError> {
    let snapshot = &newest.snapshot;
    find(&snapshot.containers, name).or_else(|refusal| find(&snapshot.ended, name).map_err(|_| refusal))
}

fn not_found(name: &str) -> HttpError {
    HttpError::new(
        StatusCode::NOT_FOUND,
        format!("no container {:?}: see /api/v1/containers", short_name(name)),
    )
}

/// A name as an error may repeat it: short.
fn short_name(name: &str) -> String {
    name.chars().take(80).collect()
}
