//! Every path, and what is answered there.

use super::access::Peer;
use super::answers::alerts;
use super::moments::{Moment, bytes};
use super::stream::{MOST_STREAMS, stream};
use super::{Refusal, Source};
use crate::dashboard;
use crate::history::{MOST_POINTS, Question};
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderName, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use elbowroom_client::api::ContainerView;
use serde::Deserialize;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The document that describes all of this; a test sees to it that it does.
const OPENAPI: &str = include_str!("openapi.json");
/// Points of a history where nobody says how many: as many as a chart has pixels to tell apart.
const POINTS: usize = 300;
/// How far back a history goes where nobody says, in milliseconds.
const BACK_MS: u64 = 600_000;

/// What every handler has.
#[derive(Clone)]
struct Desk {
    source: Arc<dyn Source>,
    streams: Arc<Semaphore>,
}

type Ask = State<Desk>;

/// All paths over one source. Who may come here at all is decided before ([`super::access`]).
pub(crate) fn router(source: Arc<dyn Source>) -> Router {
    let desk = Desk { source, streams: Arc::new(Semaphore::new(MOST_STREAMS)) };
    let v1 = Router::new()
        .route("/status", get(async |desk: Ask| part(&desk, |m| bytes(&m.snapshot.status))))
        .route("/containers", get(async |desk: Ask| part(&desk, Moment::containers)))
        .route("/containers/{id}", get(container))
        .route("/containers/{id}/explain", get(explain))
        .route("/containers/{id}/attach", post(attach))
        .route("/containers/{id}/detach", post(detach))
        .route("/disks", get(async |desk: Ask| part(&desk, |m| bytes(&m.snapshot.disks))))
        .route("/memory", get(async |desk: Ask| part(&desk, |m| bytes(&m.snapshot.memory))))
        .route(
            "/alerts",
            get(async |desk: Ask| part(&desk, |m| bytes(&alerts(&m.snapshot).collect::<Vec<_>>()))),
        )
        .route(
            "/findings",
            get(async |State(desk): Ask| desk.source.findings().await.map(|found| json(bytes(&found)))),
        )
        .route("/profiles", get(profiles))
        .route("/profiles/{name}", get(profile))
        .route("/snapshot", get(async |desk: Ask| part(&desk, Moment::json)))
        .route("/history", get(history))
        .route("/stream", get(async |State(desk): Ask| stream(desk.source.moments(), &desk.streams)))
        .route("/openapi.json", get(async || json(Bytes::from_static(OPENAPI.as_bytes()))));
    Router::new()
        .nest("/api/v1", v1)
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/", get(asset))
        .route("/assets/{*path}", get(asset))
        .fallback(async |uri: Uri| {
            let message = format!("nothing is at {:?}: see /api/v1/openapi.json", shown(uri.path()));
            Refusal::new(StatusCode::NOT_FOUND, message)
        })
        .method_not_allowed_fallback(async || {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "not with this method: see /api/v1/openapi.json")
        })
        .with_state(desk)
}

/// The newest moment, where it still says how things are.
fn newest(desk: &Desk) -> Result<Arc<Moment>, Refusal> {
    let none = || Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the agent has not answered yet: try again");
    desk.source.is_fresh()?;
    desk.source.moments().newest().ok_or_else(none)
}

fn part(desk: &Desk, part: impl Fn(&Moment) -> Bytes) -> Result<Response, Refusal> {
    newest(desk).map(|moment| json(part(&moment)))
}

fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body).into_response()
}

async fn ready(State(desk): Ask) -> Result<&'static str, Refusal> {
    newest(&desk).map(|_| "ready\n")
}

async fn metrics(State(desk): Ask) -> Result<Response, Refusal> {
    const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], newest(&desk)?.metrics()).into_response())
}

type Id = Result<Path<String>, PathRejection>;

async fn container(State(desk): Ask, id: Id) -> Result<Response, Refusal> {
    let moment = newest(&desk)?;
    Ok(json(bytes(find(&moment.snapshot.containers, &named(id)?)?)))
}

async fn explain(State(desk): Ask, id: Id) -> Result<Response, Refusal> {
    let id = find(&newest(&desk)?.snapshot.containers, &named(id)?)?.id.clone();
    Ok(json(bytes(&desk.source.explain(id).await?)))
}

async fn attach(State(desk): Ask, Extension(peer): Extension<Peer>, id: Id) -> Result<Response, Refusal> {
    attached(&desk, peer, id, true).await
}

async fn detach(State(desk): Ask, Extension(peer): Extension<Peer>, id: Id) -> Result<Response, Refusal> {
    attached(&desk, peer, id, false).await
}

async fn attached(desk: &Desk, peer: Peer, id: Id, attached: bool) -> Result<Response, Refusal> {
    if peer != (Peer::Unix { uid: 0 }) {
        let message = "only root may attach and detach, and only over the unix socket: use `elbowroom attach` on the host";
        return Err(Refusal::new(StatusCode::FORBIDDEN, message));
    }
    let id = find(&newest(desk)?.snapshot.containers, &named(id)?)?.id.clone();
    Ok(json(bytes(&desk.source.attach(id, attached).await?)))
}

/// The query of `/api/v1/history`.
#[derive(Debug, Deserialize)]
struct Span {
    container: Option<String>,
    from: Option<u64>,
    to: Option<u64>,
    points: Option<usize>,
}

async fn history(State(desk): Ask, span: Result<Query<Span>, QueryRejection>) -> Result<Response, Refusal> {
    let bad = |message: String| Refusal::new(StatusCode::BAD_REQUEST, message);
    let Query(span) = span.map_err(|error| bad(error.body_text()))?;
    let points = span.points.unwrap_or(POINTS);
    if !(1..=MOST_POINTS).contains(&points) {
        return Err(bad(format!("points: {points} is not between 1 and {MOST_POINTS}")));
    }
    let moments = desk.source.moments();
    let newest = moments.newest();
    let to = span.to.or(newest.as_ref().map(|moment| moment.snapshot.time_unix_ms)).unwrap_or_default();
    let from = span.from.unwrap_or(to.saturating_sub(BACK_MS));
    if from > to {
        return Err(bad(format!("from: {from} is after to, which is {to}")));
    }
    // One that is gone still has a history, by its full identifier.
    let known = |name: &str| {
        newest.as_ref().and_then(|m| find(&m.snapshot.containers, name).ok()).map(|c| c.id.clone())
    };
    let container = span.container.map(|name| known(&name).unwrap_or(name));
    match moments.history(container.as_deref(), &Question { from, to, points }) {
        Some(answer) => Ok(json(bytes(&answer))),
        None => Err(unknown(&container.unwrap_or_default())),
    }
}

async fn profiles(State(desk): Ask) -> Result<Response, Refusal> {
    Ok(json(bytes(&desk.source.profiles().await?)))
}

async fn profile(State(desk): Ask, name: Id) -> Result<Response, Refusal> {
    Ok(json(desk.source.profile(named(name)?).await?.into()))
}

async fn asset(uri: Uri) -> Result<Response, Refusal> {
    let none =
        || Refusal::new(StatusCode::NOT_FOUND, format!("the dashboard has no file {:?}", shown(uri.path())));
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

fn named(id: Id) -> Result<String, Refusal> {
    id.map(|Path(id)| id).map_err(|error| Refusal::new(StatusCode::BAD_REQUEST, error.body_text()))
}

/// A container by full identifier, name, cgroup path, or a beginning of an identifier that no other has: as the agent does it.
fn find<'a>(containers: &'a [ContainerView], name: &str) -> Result<&'a ContainerView, Refusal> {
    let is = |c: &&ContainerView| c.id == name || c.name.as_deref() == Some(name) || c.path == name;
    let mut matching: Vec<&ContainerView> = containers.iter().filter(is).collect();
    if matching.is_empty() {
        matching = containers.iter().filter(|c| !name.is_empty() && c.id.starts_with(name)).collect();
    }
    match matching[..] {
        [one] => Ok(one),
        [] => Err(unknown(name)),
        _ => {
            let message =
                format!("{} containers match {:?}: write more of the id", matching.len(), shown(name));
            Err(Refusal::new(StatusCode::CONFLICT, message))
        }
    }
}

fn unknown(name: &str) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, format!("no container {:?}: see /api/v1/containers", shown(name)))
}

/// A name as an error may repeat it: short.
fn shown(name: &str) -> String {
    name.chars().take(80).collect()
}
