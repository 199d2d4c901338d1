//! What each client of a way in may take: turns, and memory for answers that it does not read.
//!
//! # Problem
//! All clients share the pace and the memory of one process. Each second has a snapshot of its own, of a megabyte and more, and a client
//! that reads one slowly keeps it alive. The process has a memory limit, and when it dies, the history of all containers is lost.
//!
//! # Approach
//! One client is a user of a unix socket, all network clients with the token, or all network clients without it. Each has a
//! [`RateLimiter`], so none waits for another. Each may have [`MAX_UNREAD`] unread bytes: an answer beyond them is refused. Bytes are
//! counted as long as the connection holds them.

use super::HttpError;
use super::access::HttpPeer;
use super::rate_limiter::RateLimiter;
use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of answers that a client may leave unread: some dozen snapshots of five hundred containers.
const MAX_UNREAD: u32 = 64 << 20;

/// The clients of one way in. Users of a socket are root and a group, so these are few.
#[derive(Debug, Default)]
pub(super) struct ClientQuotas(Mutex<BTreeMap<(HttpPeer, bool), Arc<ClientQuota>>>);

/// One client's.
#[derive(Debug)]
pub(super) struct ClientQuota {
    pub(super) pace: RateLimiter,
    unread: Arc<Semaphore>,
}

impl ClientQuotas {
    /// That of a client.
    pub(super) fn of(&self, peer: HttpPeer, is_known: bool) -> Arc<ClientQuota> {
        let mut quotas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        quotas.entry((peer, is_known)).or_default().clone()
    }
}

impl Default for ClientQuota {
    fn default() -> Self {
        Self { pace: RateLimiter::default(), unread: Arc::new(Semaphore::new(MAX_UNREAD as usize)) }
    }
}

impl ClientQuota {
    /// Counts an answer's bytes until they are sent. A body without a length, such as a stream, has a bound of its own.
    pub(super) fn count(&self, response: Response) -> Response {
        let length = response.body().size_hint().exact().unwrap_or(0);
        let length = u32::try_from(length).unwrap_or(u32::MAX).min(MAX_UNREAD);
        let Ok(permit) = self.unread.clone().try_acquire_many_owned(length) else {
            let message = format!(
                "{MAX_UNREAD} bytes of answers are not read yet, the most there may be: read them first"
            );
            return HttpError::new(StatusCode::SERVICE_UNAVAILABLE, message).into_response();
        };
        let permit = Arc::new(permit);
        response.map(|body| Body::new(CountedBody { body, permit }))
    }
}

/// An answer whose bytes are counted.
struct CountedBody {
    body: Body,
    permit: Arc<OwnedSemaphorePermit>,
}

/// A part of it.
struct CountedBytes {
    bytes: Bytes,
    /// Given back when the last part is sent.
    _permit: Arc<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        let counted = |bytes| Bytes::from_owner(CountedBytes { bytes, _permit: self.permit.clone() });
        frame.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(counted))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_a_quota_of_its_own() {
        let quotas = ClientQuotas::default();
        let [root, user] = [0, 1_000].map(|uid| HttpPeer::Unix { uid });
        let clients = [(root, false), (user, false), (HttpPeer::Tcp, false), (HttpPeer::Tcp, true)];
        for a in clients {
            for b in clients {
                assert_eq!(Arc::ptr_eq(&quotas.of(a.0, a.1), &quotas.of(b.0, b.1)), a == b);
            }
        }
    }
}
