//! Views in containers from their first instruction on: an OCI `createContainer` hook and a runtime that puts the hook into
//! the bundle for engines that cannot.
//!
//! Both fail open: whatever goes wrong, the container starts, with the host's files.

pub(crate) mod bundle;
pub(crate) mod hook;
pub(crate) mod runtime;
pub mod seccomp;
mod surfaces;
