//! What the view server gives up: it answers every container, and needs no right for that but its open descriptors and the
//! host's files that every user may read.

use crate::view_server::FuseError;
use elbowroom_linux::privilege::{ProcessRlimits, drop_privileges, unprivileged_user};
use elbowroom_linux::seccomp::{COMMON_CALLS, allow_only};

/// Host files stay open in each thread; pages are kept within bounds, and the queue of requests is some MiB.
const RESOURCE_LIMITS: ProcessRlimits = ProcessRlimits { files: 1_024, data: 512 << 20, forks: true };

/// Becomes an ordinary user without capabilities. For the time before there are threads.
///
/// # Errors
/// [`FuseError::Rights`].
pub(super) fn become_nobody() -> Result<(), FuseError> {
    drop_privileges(unprivileged_user(), RESOURCE_LIMITS)
        .map_err(|e| FuseError::Rights { operation: "giving up root's rights", source: e.into() })
}

/// Leaves the system calls that answering needs. For the time when all threads are there: none can be started, and no program
/// and no socket.
///
/// # Errors
/// [`FuseError::Rights`].
pub(super) fn refuse_other_calls() -> Result<(), FuseError> {
    match allow_only(&[COMMON_CALLS]) {
        // Its numbers are not known here.
        Err(rustix::io::Errno::NOSYS) => {
            tracing::warn!(
                because = "no list for this architecture",
                "the view server runs without a seccomp filter"
            );
            Ok(())
        }
        done => done
            .map_err(|e| FuseError::Rights { operation: "installing the seccomp filter", source: e.into() }),
    }
}
