//! `/api/v1/stream`: server-sent events for as long as a client reads them.

use super::{HttpError, SnapshotStore};
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, broadcast};

/// Streams at a time: each holds a connection for hours.
pub(super) const MAX_STREAMS: usize = 128;
/// How long a stream may be silent: proxies and browsers take longer silence for an end.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A comment, which readers skip (HTML standard, 9.2.6).
const KEEPALIVE: &[u8] = b":\n\n";

/// The stream, or a refusal where there are too many.
pub(super) fn stream(moments: &SnapshotStore, permits: &Arc<Semaphore>) -> Response {
    let Ok(permit) = permits.clone().try_acquire_owned() else {
        let message =
            format!("{MAX_STREAMS} streams are open, which is all there may be: close one, or try again");
        return HttpError::new(StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    };
    let (now, events) = moments.subscribe();
    let frames = stream::unfold((now, events, permit), |(now, mut events, permit)| async move {
        let frame = match now {
            Some(frame) => frame,
            None => next_events(&mut events).await?,
        };
        Some((Ok::<_, Infallible>(frame), (None, events, permit)))
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
