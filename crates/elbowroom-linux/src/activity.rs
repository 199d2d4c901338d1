//! What says which groups ran: their files, or a source that follows the scheduler.

use elbowroom_types::unit::Micros;
use std::fmt::Debug;

/// The source that says which groups ran.
#[derive(Debug, Default)]
pub enum ActivitySource {
    /// Their files, read in a period that adapts to each.
    #[default]
    Files,
    /// A source that sees every context switch.
    Tracked(Box<dyn ActivityTracker>),
}

impl ActivitySource {
    /// For people, and as in the configuration: `files` or `bpf`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Tracked(_) => "bpf",
        }
    }
}

/// A source that knows which groups ran since it was last asked, without reading their files.
pub trait ActivityTracker: Debug + Send {
    /// Follows the group whose directory has this inode in the hierarchy of the cpu controller, under a slot of the
    /// caller's. False where it cannot: the group's files are read as in [`ActivitySource::Files`].
    fn track(&mut self, inode: u64, slot: u32) -> bool;

    /// Forgets a group.
    fn untrack(&mut self, inode: u64);

    /// Calls `each` with every slot whose own tasks (not those of groups below it) ran since the last call, and the CPU time
    /// they used since the group is tracked.
    fn drain_active(&mut self, each: &mut dyn FnMut(u32, Micros));
}
