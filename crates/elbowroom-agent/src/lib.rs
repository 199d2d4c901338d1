//! The agent: the processes that sense, decide, publish views, limit, and answer.
//!
//! [`supervisor`] starts and guards the others. [`policy`] senses and decides. [`view_server`] answers reads of views. [`http`] serves the
//! API. [`otlp`] pushes metrics. [`recorder`] is the black box. [`seccomp`] answers system calls of static programs. [`engines`] are the
//! ways in which container engines call the agent. Begin with [`policy`], then [`view_server`].
//!
//! What stays true: killing any of these processes at any instant leaves containers running and views readable; every limit is a
//! lease.

pub mod alerts;
pub mod config;
pub mod dashboard;
pub mod engines;
mod fair_queue;
pub(crate) mod fnv;
pub mod history;
pub mod http;
pub mod http_client;
pub mod java;
pub mod lifecycle;
pub mod log;
pub mod otlp;
pub mod policy;
pub mod preload;
pub mod probes;
pub mod recorder;
pub mod seccomp;
pub mod supervisor;
pub mod view_server;
