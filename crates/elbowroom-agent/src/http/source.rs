//! Where the API's answers come from.

use super::SnapshotStore;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use elbowroom_client::api::{ContainerView, Explanation, FindingsReport, NetworkReport};
use elbowroom_client::profile_store::StoredProfile;
use serde::Serialize;
use std::pin::Pin;

/// An answer that may have to be waited for.
pub(crate) type SourceFuture<T> = Pin<Box<dyn Future<Output = Result<T, HttpError>> + Send>>;

/// A node, now or as it was: the agent ([`super::agent`]), or a recording.
pub(crate) trait SnapshotSource: Send + Sync + 'static {
    /// The newest snapshot, history and stream.
    fn snapshots(&self) -> &SnapshotStore;

    /// Whether the newest snapshot still says how things are.
    fn check_fresh(&self) -> Result<(), HttpError> {
        Ok(())
    }

    /// Why a container sees what it sees; `container` is its full identifier.
    fn explain(&self, container: String) -> SourceFuture<Explanation>;

    /// What a container's network interfaces have carried; `container` is its full identifier.
    fn network(&self, _container: String) -> SourceFuture<NetworkReport> {
        ready_error(StatusCode::NOT_FOUND, "this is a recording: networks are not recorded")
    }

    /// What the doctor found when it last looked.
    fn findings(&self) -> SourceFuture<FindingsReport> {
        ready_error(
            StatusCode::NOT_FOUND,
            "this is a recording: its alerts of kind FINDING are what it has of the doctor",
        )
    }

    /// The profiles that are kept, the newest first.
    fn profiles(&self) -> SourceFuture<Vec<StoredProfile>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// One of them, as JSON.
    fn profile(&self, _name: String) -> SourceFuture<String> {
        ready_error(StatusCode::NOT_FOUND, "this is a recording: it has no profiles")
    }

    /// Mounts a container's view into it, or unmounts it again.
    fn attach(&self, _container: String, _attached: bool) -> SourceFuture<ContainerView> {
        ready_error(StatusCode::FORBIDDEN, "this is a recording: containers cannot be attached to the past")
    }
}

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HttpError {
    /// As HTTP has it.
    pub(crate) status: StatusCode,
    /// One line that names the thing and the way out.
    pub(crate) message: String,
}

/// How a refusal is told.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ErrorBody {
    /// One line that names the thing and the way out.
    pub(crate) error: String,
}

impl HttpError {
    /// See the fields.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.status, axum::Json(ErrorBody { error: self.message })).into_response()
    }
}

/// An answer that is a refusal.
pub(crate) fn ready_error<T: Send + 'static>(status: StatusCode, message: &str) -> SourceFuture<T> {
    let refusal = HttpError::new(status, message);
    Box::pin(async move { Err(refusal) })
}
