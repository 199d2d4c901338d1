//! A recording as a source: the same API and dashboard over the past.

use super::access::BearerToken;
use super::forward::{self, ForwardState, ForwardTarget};
use super::source::ready_error;
use super::{SnapshotSource, SnapshotStore, SourceFuture, router};
use crate::recorder::reader::RecordingCursor;
use crate::recorder::timestamp;
use anyhow::{Context, Result, ensure};
use axum::http::StatusCode;
use elbowroom_client::api::Explanation;
use elbowroom_client::output::say;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// How far before the moment that is shown, and how closely: as history keeps it (`crate::history`).
const RESOLUTIONS: [(u64, u64); 3] =
    [(10 * MINUTE_MS, 0), (2 * HOUR_MS, 10 * SECOND_MS), (24 * HOUR_MS, MINUTE_MS)];

/// What was, up to a moment.
struct RecordingSource(SnapshotStore);

impl SnapshotSource for RecordingSource {
    fn snapshots(&self) -> &SnapshotStore {
        &self.0
    }

    fn explain(&self, _container: String) -> SourceFuture<Explanation> {
        ready_error(
            StatusCode::NOT_FOUND,
            "this is a recording: the reasons of changes are in its history, explanations are not kept",
        )
    }
}

/// Serves the recording of `dir` as it was at `at`, or at its end, until a signal ends this. Only clients with the link are served: other
/// users of this machine may not be allowed to read the recording.
///
/// # Errors
/// An address that other machines reach: nothing on the way there would be encrypted.
pub fn serve(dir: &Path, at: Option<u64>, address: SocketAddr) -> Result<()> {
    ensure!(
        address.ip().is_loopback(),
        "--serve: {address} is open to the network, and nothing is encrypted: use 127.0.0.1, and ssh -L from elsewhere"
    );
    let end = match at {
        Some(time) => RecordingCursor::at(dir, time)?,
        None => RecordingCursor::last(dir)?,
    };
    let (snapshots, shown) = (load(dir, &end)?, end.time());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting")?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .with_context(|| format!("--serve: {address} cannot be had: choose another port"))?;
        let (address, code) = (listener.local_addr()?, BearerToken::random()?);
        say(&format!(
            "{} is there until Ctrl-C; this link works once, and the next one follows\n{}",
            timestamp::format_local(shown),
            forward::link(address, code.as_str())
        ));
        let target = ForwardTarget::Here(router(Arc::new(RecordingSource(snapshots))));
        let state = ForwardState::new(target, code, move |code| say(&forward::link(address, code)))?;
        let mut stop = signal(SignalKind::interrupt()).context("waiting for signals")?;
        let mut end = signal(SignalKind::terminate()).context("waiting for signals")?;
        tokio::select! {
            () = forward::serve_browsers(listener, state) => {}
            _ = stop.recv() => {}
            _ = end.recv() => {}
        }
        Ok(())
    })
}

/// Everything up to `end` that history keeps: of some snapshots all, and of each what changed.
fn load(dir: &Path, end: &RecordingCursor) -> Result<SnapshotStore> {
    let snapshots = SnapshotStore::new();
    let (longest, _) = RESOLUTIONS[RESOLUTIONS.len() - 1];
    let mut cursor = match RecordingCursor::at(dir, end.time().saturating_sub(longest)) {
        Ok(cursor) if cursor.position() <= end.position() => cursor,
        _ => RecordingCursor::first(dir)?,
    };
    let mut taken: Option<u64> = None;
    loop {
        let time = cursor.time();
        let is_end = cursor.position() >= end.position();
        let closely = RESOLUTIONS.iter().find(|(back, _)| end.time().abs_diff(time) <= *back);
        let due = closely.is_some_and(|(_, every)| taken.is_none_or(|taken| time.abs_diff(taken) >= *every));
        if due || is_end {
            snapshots.insert(cursor.snapshot()?);
            taken = Some(time);
        } else {
            snapshots.insert_changes(cursor.changes()?);
        }
        if is_end || !cursor.advance()? {
            return Ok(snapshots);
        }
    }
}
