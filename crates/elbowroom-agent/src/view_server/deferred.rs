//! Requests of tenants that have used up what is answered at once ([`crate::view_server::budget`]): one thread answers
//! them, each tenant in turn, at the pace that each has left.
//!
//! A READ that fills the page cache holds its page locked, and the notifier of the policy process, which serves all
//! containers, waits for that page. So those come first and at once; a page kept ([`crate::view_server::rendered`])
//! makes them cheap.

use crate::view_server::abi::{self, FuseOp, FuseRequest};
use crate::view_server::handover::Connection;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Most requests that wait, of all containers. Each is a thread of a container that sleeps in the kernel; one more is
/// answered at once.
pub(super) const MAX_DEFERRED: usize = 1 << 16;
/// Most of these of one tenant, which leaves the others room. One more is refused (`EAGAIN`).
const MAX_OF_TENANT: usize = MAX_DEFERRED / 8;
/// Most bytes kept of a request: all of those that are answered by what they say. Of a longer one, such as an ioctl(2) with its argument,
/// the header is enough.
const MAX_KEPT: usize = 512;
/// Most that the thread has not looked at yet.
pub(super) const INBOX: usize = 1 << 10;

/// A request that waits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DeferredRequest {
    /// Where the answer goes.
    pub connection: Connection,
    /// The tenant that pays for it.
    pub account: usize,
    /// Whether the notifier waits until it is answered.
    holds_page: bool,
    /// As it came from the kernel.
    pub bytes: Box<[u8]>,
}

impl DeferredRequest {
    /// Keeps a request, and the bytes that it was read from.
    pub fn new(connection: Connection, account: usize, request: &FuseRequest<'_>, bytes: &[u8]) -> Self {
        let holds_page = matches!(request.op, FuseOp::Read(window) if !window.direct);
        let bytes = match bytes.len() > MAX_KEPT {
            true => abi::header_alone(bytes).into(),
            false => bytes.into(),
        };
        Self { connection, account, holds_page, bytes }
    }
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextDeferred {
    /// Answer this one.
    Answer(DeferredRequest),
    /// No request may be answered for this long.
    Wait(Duration),
    /// No request waits.
    Empty,
}

/// The requests that wait, by account.
#[derive(Default)]
pub(super) struct DeferredQueue {
    waiting: HashMap<usize, AccountRequests>,
    /// The accounts in `waiting`, in the order of their turns.
    turns: VecDeque<usize>,
    len: usize,
}

/// Those of one account.
#[derive(Default)]
struct AccountRequests {
    holding_pages: VecDeque<DeferredRequest>,
    others: VecDeque<DeferredRequest>,
}

impl DeferredQueue {
    /// Whether there is room for one more.
    pub fn has_room(&self) -> bool {
        self.len < MAX_DEFERRED
    }

    /// Adds a request, or gives it back where its tenant has too many.
    pub fn push(&mut self, request: DeferredRequest) -> Result<(), DeferredRequest> {
        if !request.holds_page && self.others(request.account) >= MAX_OF_TENANT {
            return Err(request);
        }
        let turns = &mut self.turns;
        let of_account = self.waiting.entry(request.account).or_insert_with_key(|account| {
            turns.push_back(*account);
            AccountRequests::default()
        });
        match request.holds_page {
            true => of_account.holding_pages.push_back(request),
            false => of_account.others.push_back(request),
        }
        self.len += 1;
        Ok(())
    }

    /// How many requests of an account hold no page.
    fn others(&self, account: usize) -> usize {
        self.waiting.get(&account).map_or(0, |of_account| of_account.others.len())
    }

    /// The next request: of the account whose turn it is among those that need not wait, by `delay`.
    pub fn next(&mut self, delay: impl Fn(usize) -> Duration) -> NextDeferred {
        let mut soonest = None;
        for _ in 0..self.turns.len() {
            let account = self.turns.pop_front().expect("as many as were counted");
            let of_account = self.waiting.get_mut(&account).expect("an account with a turn has requests");
            let next = of_account.holding_pages.pop_front().or_else(|| {
                let wait = delay(account);
                if wait.is_zero() {
                    return of_account.others.pop_front();
                }
                soonest = Some(soonest.map_or(wait, |least: Duration| least.min(wait)));
                None
            });
            match of_account.holding_pages.is_empty() && of_account.others.is_empty() {
                true => drop(self.waiting.remove(&account)),
                false => self.turns.push_back(account),
            }
            if let Some(request) = next {
                self.len -= 1;
                return NextDeferred::Answer(request);
            }
        }
        soonest.map_or(NextDeferred::Empty, NextDeferred::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view_server::abi::ReadWindow;

    fn request(account: usize, tag: u8, op: FuseOp<'_>) -> DeferredRequest {
        DeferredRequest::new(Connection::Views, account, &FuseRequest { unique: 1, nodeid: 2, op }, &[tag])
    }

    fn read(direct: bool) -> FuseOp<'static> {
        FuseOp::Read(ReadWindow { offset: 0, size: 4096, direct })
    }

    fn tags(queue: &mut DeferredQueue, delay: impl Fn(usize) -> Duration) -> Vec<u8> {
        let mut tags = Vec::new();
        while let NextDeferred::Answer(request) = queue.next(&delay) {
            tags.push(request.bytes[0]);
        }
        tags
    }

    #[test]
    fn each_container_has_its_turn_however_many_requests_one_has() {
        let mut queue = DeferredQueue::default();
        (0..4).for_each(|tag| queue.push(request(1, tag, FuseOp::StatFs)).unwrap());
        (10..12).for_each(|tag| queue.push(request(2, tag, FuseOp::StatFs)).unwrap());
        assert_eq!(tags(&mut queue, |_| Duration::ZERO), [0, 10, 1, 11, 2, 3]);
        assert_eq!(queue.next(|_| Duration::ZERO), NextDeferred::Empty);
        assert!(queue.waiting.is_empty() && queue.turns.is_empty() && queue.len == 0);
    }

    #[test]
    fn one_that_owes_waits_and_the_others_do_not() {
        let mut queue = DeferredQueue::default();
        (0..2).for_each(|tag| queue.push(request(1, tag, read(true))).unwrap());
        (10..12).for_each(|tag| queue.push(request(2, tag, FuseOp::GetAttr)).unwrap());
        let delay = |account| Duration::from_millis(if account == 1 { 7 } else { 0 });
        assert_eq!(tags(&mut queue, delay), [10, 11]);
        assert_eq!(queue.next(delay), NextDeferred::Wait(Duration::from_millis(7)));
        assert_eq!(tags(&mut queue, |_| Duration::ZERO), [0, 1]);
    }

    #[test]
    fn one_container_leaves_the_others_room() {
        let mut queue = DeferredQueue::default();
        (0..MAX_OF_TENANT).for_each(|_| queue.push(request(1, 0, read(true))).unwrap());
        assert!(queue.push(request(1, 1, read(true))).is_err());
        queue.push(request(1, 2, read(false))).unwrap();
        queue.push(request(2, 3, read(true))).unwrap();
        assert!(queue.has_room());
        queue.next(|_| Duration::ZERO);
        queue.next(|_| Duration::ZERO);
        queue.next(|_| Duration::ZERO);
        queue.push(request(1, 4, read(true))).unwrap();
    }

    #[test]
    fn a_long_request_is_kept_as_its_header() {
        let mut bytes = vec![0; 16_000];
        bytes[..4].copy_from_slice(&16_000u32.to_ne_bytes());
        bytes[4] = 39;
        let request = FuseRequest::decode(&bytes).unwrap();
        let kept = DeferredRequest::new(Connection::Views, 1, &request, &bytes);
        assert_eq!(kept.bytes.len(), 40);
        assert_eq!(FuseRequest::decode(&kept.bytes).unwrap().op, FuseOp::Unsupported(39));
    }

    #[test]
    fn a_read_that_holds_a_page_waits_for_no_debt() {
        let mut queue = DeferredQueue::default();
        queue.push(request(1, 0, read(true))).unwrap();
        queue.push(request(1, 1, read(false))).unwrap();
        assert_eq!(tags(&mut queue, |_| Duration::from_secs(1)), [1]);
        assert!(!matches!(queue.next(|_| Duration::from_secs(1)), NextDeferred::Empty));
    }
}
