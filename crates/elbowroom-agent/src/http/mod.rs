//! The HTTP API: what the command line prints, as JSON over HTTP, with history, a stream, metrics and the dashboard.
//!
//! # Problem
//! Dashboards, scrapers and scripts ask often, many at a time, and some of them badly. None of that may reach the process
//! that decides about containers.
//!
//! # Approach
//! A process of its own ([`server`]), without privileges, takes one snapshot a second from the agent, however many look, and
//! answers all clients from that ([`snapshot_store`]). Where snapshots come from is a [`SnapshotSource`]: the agent, or a recording.
//! Connections are few, short-lived or read steadily ([`listen`]), and what each client takes of turns and memory is bounded
//! ([`client_quota`]); which client may ask what is in [`access`].

mod access;
mod agent;
mod client_quota;
mod connection_table;
pub mod forward;
mod listen;
mod live;
#[cfg(test)]
mod openapi;
mod rate_limiter;
pub mod recording;
mod routes;
pub mod server;
pub(crate) mod settings;
mod snapshot_store;
mod source;
mod stream;
mod tls;

pub(crate) use routes::router;
pub(crate) use snapshot_store::SnapshotStore;
pub(crate) use source::{HttpError, SnapshotSource, SourceFuture};
