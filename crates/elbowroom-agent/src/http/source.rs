//! Where the API's answers come from.

use super::Moments;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use elbowroom_client::api::{ContainerView, Explanation, FindingsReport};
use elbowroom_client::kept::Kept;
use serde::Serialize;
use std::pin::Pin;

/// An answer that may have to be waited for.
pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send>>;

/// A node, now or as it was: the agent ([`super::agent`]), or a recording.
pub(crate) trait Source: Send + Sync + 'static {
    /// The newest snapshot, history and stream.
    fn moments(&self) -> &Moments;

    /// Whether the newest snapshot still says how things are.
    fn is_fresh(&self) -> Result<(), Refusal> {
        Ok(())
    }

    /// Why a container sees what it sees; `container` is its full identifier.
    fn explain(&self, container: String) -> Answer<Explanation>;

    /// What the doctor found when it last looked.
    fn findings(&self) -> Answer<FindingsReport> {
        refuse(
            StatusCode::NOT_FOUND,
            "this is a recording: its alerts of kind FINDING are what it has of the doctor",
        )
    }

    /// The profiles that are kept, the newest first.
    fn profiles(&self) -> Answer<Vec<Kept>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// One of them, as JSON.
    fn profile(&self, _name: String) -> Answer<String> {
        refuse(StatusCode::NOT_FOUND, "this is a recording: it has no profiles")
    }

    /// Mounts a container's view into it, or unmounts it again.
    fn attach(&self, _container: String, _attached: bool) -> Answer<ContainerView> {
        refuse(StatusCode::FORBIDDEN, "this is a recording: containers cannot be attached to the past")
    }
}

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// As HTTP has it.
    pub(crate) status: StatusCode,
    /// One line that names the thing and the way out.
    pub(crate) message: String,
}

/// How a refusal is told.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Error {
    /// One line that names the thing and the way out.
    pub(crate) error: String,
}

impl Refusal {
    /// See the fields.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, axum::Json(Error { error: self.message })).into_response()
    }
}

/// An answer that is a refusal.
pub(crate) fn refuse<T: Send + 'static>(status: StatusCode, message: &str) -> Answer<T> {
    let refusal = Refusal::new(status, message);
    Box::pin(async move { Err(refusal) })
}
