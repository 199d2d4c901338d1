//! Who records and shows what the agent knows gets a snapshot where there is news, and the same every five seconds where there is none.
//!
//! A snapshot of all containers costs more than looking at them. The API server and the recorder ask for the next one, each when it has
//! dealt with the one before, and are answered once a container works, reads or writes, comes, changes or goes, a view changes, something
//! is said of a container, or an alert begins or ends. While there is none of that, only the node's own numbers move.

use elbowroom_client::api::ControlResponse;
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;
use std::sync::mpsc;

/// So old is a snapshot at most that is still the newest.
const QUIET_MS: u64 = 5_000;

/// What happened lately, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct News {
    /// The last, in milliseconds since 1970.
    at: u64,
    /// Whether a container had read or written by the last look at disks: the rates of the one after it are news too.
    had_disk_use: bool,
    /// The times of the snapshots they have, and where the next one goes.
    waiting: Vec<(u64, mpsc::SyncSender<ControlResponse>)>,
}

impl News {
    /// Something happened `now` that a snapshot shows.
    pub(super) fn note(&mut self, now: u64) {
        self.at = now;
    }

    /// The same for an event: all but measurements are news.
    pub(super) fn note_event(&mut self, event: &HostEvent, now: u64) {
        let is_news = match event {
            HostEvent::Tick(_) | HostEvent::MemoryTick(_) => false,
            HostEvent::DiskTick(tick) => {
                let has_use = !tick.groups.is_empty();
                std::mem::replace(&mut self.had_disk_use, has_use) || has_use
            }
            _ => true,
        };
        if is_news {
            self.note(now);
        }
    }

    /// One who has the snapshot of `since` waits for the next.
    pub(super) fn wait(&mut self, since: u64, answer: mpsc::SyncSender<ControlResponse>) {
        self.waiting.push((since, answer));
    }

    /// How long none is to have one, if there is no news.
    pub(super) fn due_in(&self, now: u64) -> Micros {
        let first = self.waiting.iter().map(|(since, _)| (since + QUIET_MS).saturating_sub(now)).min();
        Micros::millis(first.unwrap_or(QUIET_MS))
    }

    /// Those who are to have one `now`.
    pub(super) fn take_due(&mut self, now: u64) -> Vec<mpsc::SyncSender<ControlResponse>> {
        let at = self.at;
        // A clock that was set back says nothing about age.
        let is_due = |since: u64| at >= since || now.checked_sub(since).is_none_or(|age| age >= QUIET_MS);
        self.waiting.extract_if(.., |(since, _)| is_due(*since)).map(|(_, answer)| answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::id::CgroupId;
    use elbowroom_types::io::{CgroupIo, DiskTick};
    use elbowroom_types::sample::Tick;

    /// How many are due of one who has the snapshot of `since`.
    fn due(news: &mut News, since: u64, now: u64) -> usize {
        news.waiting.clear();
        news.wait(since, mpsc::sync_channel(1).0);
        news.take_due(now).len()
    }

    #[test]
    fn the_next_snapshot_is_due_with_news_or_after_five_seconds() {
        let mut news = News::default();
        news.note(10_000);
        assert_eq!(due(&mut news, 10_000, 10_001), 1, "of the same millisecond");
        assert_eq!(due(&mut news, 10_001, 11_000), 0);
        assert_eq!(due(&mut news, 10_001, 15_000), 0);
        assert_eq!(due(&mut news, 10_001, 15_001), 1, "the node's own numbers move");
        assert_eq!(due(&mut news, 10_001, 9_000), 1, "the clock was set back");
    }

    #[test]
    fn one_who_is_answered_waits_no_more() {
        let mut news = News::default();
        news.wait(5, mpsc::sync_channel(1).0);
        news.wait(1_000, mpsc::sync_channel(1).0);
        assert_eq!(news.due_in(4_000), Micros::millis(1_005));
        news.note(7);
        assert_eq!((news.take_due(1_001).len(), news.take_due(1_001).len()), (1, 0));
        assert_eq!(news.take_due(6_000).len(), 1);
    }

    #[test]
    fn disks_are_news_until_the_look_after_the_last_use() {
        let mut news = News::default();
        let io = CgroupIo { group: CgroupId(1), stalled: None, dirty: None, io: Vec::new() };
        let mut look = |groups: usize| {
            news.note(0);
            let groups = vec![io.clone(); groups];
            news.note_event(&HostEvent::DiskTick(DiskTick { groups, ..DiskTick::default() }), 1);
            news.at != 0
        };
        assert_eq!([0, 1, 0, 0].map(&mut look), [false, true, true, false]);
        news.note_event(&HostEvent::Tick(Tick::default()), 1);
        assert_eq!(news.at, 0, "a measurement");
        news.note_event(&HostEvent::Gone(CgroupId(1)), 1);
        assert_eq!(news.at, 1);
    }
}
