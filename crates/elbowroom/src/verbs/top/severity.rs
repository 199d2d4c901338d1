//! How bad it is with a container: the order of rows, and their colour. The agent's verdict says it (`elbowroom_types::verdict`).

use elbowroom_client::api::ContainerView;
use elbowroom_types::verdict::VerdictStatus;

/// How a row stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Nothing to see.
    Calm,
    /// A person would look.
    Felt,
    /// A person should look now.
    Bad,
}

/// How a container's row stands out: it was killed or waits, it has less or more than its part, or it is well.
pub(super) fn level(c: &ContainerView) -> Level {
    match c.verdict.status {
        VerdictStatus::Ok => Level::Calm,
        VerdictStatus::Tight | VerdictStatus::Unfair | VerdictStatus::Throttled => Level::Felt,
        VerdictStatus::WaitingCpu
        | VerdictStatus::WaitingDisk
        | VerdictStatus::WaitingMemory
        | VerdictStatus::Killed => Level::Bad,
    }
}
