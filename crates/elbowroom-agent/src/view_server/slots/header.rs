//! The words of the header that all containers share: what the processes count, and say to each other.

use super::layout::head;
use super::{SlotHandle, Slots};
use elbowroom_types::unit::Micros;
use std::sync::atomic::Ordering;

/// How much the view servers have done since the agent started, those that were killed included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewServerCounters {
    /// Times a view server started.
    pub server_starts: u64,
    /// Requests answered.
    pub requests: u64,
    /// Of these, requests that an earlier server had read and not answered when it died.
    pub resent: u64,
    /// Pages that could not be rendered (a defect; the log has it).
    pub failed: u64,
}

/// How the agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShutdownMode {
    /// Not at all.
    None = 0,
    /// Everything is taken away.
    Stop = 1,
    /// Its processes end, and the views stay for the next agent.
    KeepViews = 2,
}

impl Slots {
    /// How much the servers of this mount have done.
    pub fn counters(&self) -> ViewServerCounters {
        let at = |word: usize| self.words[word].load(Ordering::Relaxed);
        ViewServerCounters {
            server_starts: at(head::SERVER_STARTS),
            requests: at(head::REQUESTS),
            resent: at(head::RESENT),
            failed: at(head::FAILED),
        }
    }

    /// Whether the kernel can queue unanswered requests again.
    pub(in crate::view_server) fn can_resend(&self) -> bool {
        self.words[head::RESEND].load(Ordering::Relaxed) != 0
    }

    pub(crate) fn set_can_resend(&self, yes: bool) {
        self.words[head::RESEND].store(u64::from(yes), Ordering::Relaxed);
    }

    /// What the agent has been told: the supervisor of now must go on with that.
    pub(crate) fn shutdown_mode(&self) -> ShutdownMode {
        match self.words[head::SHUTDOWN_MODE].load(Ordering::SeqCst) {
            0 => ShutdownMode::None,
            2 => ShutdownMode::KeepViews,
            _ => ShutdownMode::Stop,
        }
    }

    pub(crate) fn set_shutdown_mode(&self, ending: ShutdownMode) {
        self.words[head::SHUTDOWN_MODE].store(ending as u64, Ordering::SeqCst);
    }

    /// Says that the policy process works.
    pub(in crate::view_server) fn count_heartbeat(&self) {
        self.words[head::HEARTBEAT].fetch_add(1, Ordering::Relaxed);
    }

    /// How often it has said so.
    pub(crate) fn heartbeats(&self) -> u64 {
        self.words[head::HEARTBEAT].load(Ordering::Relaxed)
    }

    /// Says that the policy process has nothing to do until then, on the monotonic clock; what it is told of it does before.
    pub(in crate::view_server) fn set_quiet_until(&self, time: Micros) {
        self.words[head::QUIET_UNTIL].store(time.get(), Ordering::Relaxed);
    }

    /// Until when it said so.
    pub(crate) fn quiet_until(&self) -> Micros {
        Micros(self.words[head::QUIET_UNTIL].load(Ordering::Relaxed))
    }

    /// Notes that a container asks more than it may.
    pub(in crate::view_server) fn note_overuse(&self, serial: u64) {
        self.words[head::OVERUSE + serial as usize % head::OVERUSE_WORDS].store(serial, Ordering::Relaxed);
    }

    /// The containers that asked more than they may since this was called last; of many at once, some.
    pub(crate) fn take_overuse(&self) -> Vec<SlotHandle> {
        let words = &self.words[head::OVERUSE..head::OVERUSE + head::OVERUSE_WORDS];
        words.iter().filter_map(|word| self.get(word.swap(0, Ordering::Relaxed))).collect()
    }

    pub(in crate::view_server) fn count_answered(&self) {
        self.words[head::ANSWERED].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that are done with, of those that [`ViewServerCounters::requests`] counts.
    pub(in crate::view_server) fn answered(&self) -> u64 {
        self.words[head::ANSWERED].load(Ordering::Relaxed)
    }

    /// Whether a view server died with requests that it had taken, and the kernel cannot queue them again.
    pub(in crate::view_server) fn has_lost_requests(&self) -> bool {
        !self.can_resend() && self.counters().requests != self.answered()
    }

    pub(in crate::view_server) fn count_server_start(&self) {
        self.words[head::SERVER_STARTS].fetch_add(1, Ordering::SeqCst);
        // Requests that its predecessor had taken are asked for again, and counted again.
        let requests = self.words[head::REQUESTS].load(Ordering::SeqCst);
        self.words[head::ANSWERED].store(requests, Ordering::SeqCst);
    }

    pub(in crate::view_server) fn count_request(&self, resent: bool) {
        self.words[head::REQUESTS].fetch_add(1, Ordering::Relaxed);
        if resent {
            self.words[head::RESENT].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(in crate::view_server) fn count_render_failure(&self) {
        self.words[head::FAILED].fetch_add(1, Ordering::Relaxed);
    }
}
