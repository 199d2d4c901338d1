//! `/api/v1/stream`: server-sent events for as long as a client reads them.

use super::SnapshotStore;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::broadcast;

/// How long a stream may be silent: proxies and browsers take longer silence for an end.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A comment, which readers skip (HTML standard, 9.2.6).
const KEEPALIVE: &[u8] = b":\n\n";

/// The stream. Streams have no limit beside that of connections, so there is none that a client could use up.
pub(super) fn stream(snapshots: &SnapshotStore) -> Response {
    let frames = stream::unfold(snapshots.subscribe(), |(now, mut events)| async move {
        let frame = match now {
            Some(frame) => frame,
            None => next_events(&mut events).await?,
        };
        Some((Ok::<_, Infallible>(frame), (None, events)))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // Or nginx keeps events until it has a buffer full.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

/// The next events; `None` for a reader that is too far behind to be told everything.
async fn next_events(events: &mut broadcast::Receiver<Bytes>) -> Option<Bytes> {
    match tokio::time::timeout(KEEPALIVE_INTERVAL, events.recv()).await {
        Ok(frame) => frame.ok(),
        Err(_) => Some(Bytes::from_static(KEEPALIVE)),
    }
}
