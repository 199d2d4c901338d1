//! The threads of the view server. The threads that take requests from the kernel also answer them. Requests of tenants that ask
//! without a pause are answered by a separate thread, so they wait for each other and no neighbour waits for them.

use crate::view_server::abi::{FuseOp, FuseRequest};
use crate::view_server::budget::Budgets;
use crate::view_server::deferred::{DeferredQueue, DeferredRequest, NextDeferred};
use crate::view_server::fuse_server::{FuseServer, serial_of};
use crate::view_server::handover::{Connection, Handover};
use crate::view_server::host_files::HostFiles;
use crate::view_server::slots::Slots;
use crate::view_server::triggers::Triggers;
use crate::view_server::{FuseError, abi, session};
use elbowroom_linux::process::own_thread_cpu_time;
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

/// Set when no more requests are to be taken: they wait for the next agent.
pub(super) static DRAINING: AtomicBool = AtomicBool::new(false);

/// The shortest sleep of the thread for those that wait: paying back is not worth more wake-ups than that.
const MIN_PAUSE: Duration = Duration::from_micros(500);

/// What the threads share.
pub(super) struct SharedServer {
    pub handover: Handover,
    pub slots: Slots,
    triggers: Triggers,
    budgets: Budgets,
}

impl SharedServer {
    /// A server of these slots.
    pub fn new(handover: Handover, slots: Slots) -> Self {
        // One for each tenant, since each has a slot, and one for all containers that are gone.
        let budgets = Budgets::new(slots.capacity() + 1);
        Self { triggers: Triggers::new(&slots), budgets, handover, slots }
    }

    /// Which account pays for a request: that of the container's tenant. None, where it is about the mount itself, which no container
    /// reaches.
    fn account(&self, nodeid: u64) -> Option<usize> {
        let serial = serial_of(nodeid)?;
        Some(self.slots.get(serial).map_or(self.slots.capacity(), |slot| self.slots.account(slot)))
    }

    /// Notes for the policy process whose requests wait for what it owes.
    fn note_overuse(&self, serial: u64, account: Option<usize>) {
        if account.is_some_and(|account| !self.budgets.delay(account, Instant::now()).is_zero()) {
            self.slots.note_overuse(serial);
        }
    }

    /// Looks after PSI triggers, until the connection is gone.
    pub(crate) fn watch_triggers(&self) -> Result<(), FuseError> {
        let mut message = Vec::new();
        self.triggers.watch(&self.slots, |waiter| {
            abi::notify_poll(&mut message, waiter);
            session::send(self.handover.connection(Connection::Triggers), &message)
        })
    }

    /// Takes requests and answers them, or hands them to `deferred`, until there are no more.
    pub(crate) fn answer_requests(
        &self,
        connection: Connection,
        deferred: &SyncSender<DeferredRequest>,
    ) -> Result<(), FuseError> {
        let mut worker = Worker::new(self);
        let mut buffer = session::RequestBuffer::new()?;
        while !DRAINING.load(Ordering::SeqCst) {
            let fuse = self.handover.connection(connection);
            let Some((request, bytes)) = session::receive(fuse, &mut buffer)? else {
                continue;
            };
            // Counted first: a server that finds the counter below the truth would think that nothing was lost.
            self.slots.count_request(request.unique & abi::UNIQUE_RESEND != 0);
            let account = self.account(request.nodeid);
            // A process that closes a file waits for no answer, and one that is refused would not be asked again.
            let is_waited_for = !matches!(request.op, FuseOp::Silent | FuseOp::Release(_));
            let may_wait =
                account.filter(|account| is_waited_for && !self.budgets.is_prompt(*account, Instant::now()));
            let waits = may_wait.is_some_and(|account| {
                // One that does not fit is answered now.
                deferred.try_send(DeferredRequest::new(connection, account, &request, bytes)).is_ok()
            });
            if waits && let Some(serial) = serial_of(request.nodeid) {
                self.note_overuse(serial, account);
            }
            if !waits {
                worker.answer(connection, &request)?;
            }
            worker.charge(account);
        }
        Ok(())
    }

    /// Answers what comes to `inbox`, each tenant in turn and at its pace, until nothing is sent any more; then what is
    /// left.
    pub(crate) fn answer_deferred(&self, inbox: &Receiver<DeferredRequest>) -> Result<(), FuseError> {
        let mut worker = Worker::new(self);
        let mut queue = DeferredQueue::default();
        let mut ending = false;
        loop {
            while queue.has_room() && !ending {
                match inbox.try_recv() {
                    Ok(request) => worker.keep(&mut queue, request)?,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => ending = true,
                }
            }
            let now = Instant::now();
            let delay = |account| if ending { Duration::ZERO } else { self.budgets.delay(account, now) };
            let pause = match queue.next(delay) {
                NextDeferred::Answer(request) => {
                    worker.answer_deferred(&request)?;
                    worker.charge(Some(request.account));
                    continue;
                }
                NextDeferred::Empty if ending => return Ok(()),
                NextDeferred::Empty => Duration::MAX,
                NextDeferred::Wait(delay) => delay.max(MIN_PAUSE),
            };
            if !queue.has_room() {
                std::thread::sleep(pause);
                continue;
            }
            match inbox.recv_timeout(pause) {
                Ok(request) => worker.keep(&mut queue, request)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => ending = true,
            }
        }
    }
}

/// One thread, with the CPU time that it had used when it charged last.
struct Worker<'a> {
    shared: &'a SharedServer,
    server: FuseServer<'a>,
    out: Vec<u8>,
    cpu_used: Duration,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a SharedServer) -> Self {
        let server = FuseServer::new(&shared.slots, HostFiles::new("/"));
        Self { shared, server, out: Vec::with_capacity(128 << 10), cpu_used: own_thread_cpu_time() }
    }

    fn answer(&mut self, connection: Connection, request: &FuseRequest<'_>) -> Result<(), FuseError> {
        self.server.set_triggers((connection == Connection::Triggers).then_some(&self.shared.triggers));
        if self.server.answer(request, &mut self.out) {
            session::send(self.shared.handover.connection(connection), &self.out)?;
        }
        self.shared.slots.count_answered();
        Ok(())
    }

    /// Has a request wait, or refuses it where its tenant has too many that do.
    fn keep(&mut self, queue: &mut DeferredQueue, request: DeferredRequest) -> Result<(), FuseError> {
        let Err(request) = queue.push(request) else { return Ok(()) };
        let decoded = FuseRequest::decode(&request.bytes).expect("it was decoded before");
        self.out.clear();
        abi::reply_error(&mut self.out, decoded.unique, Errno::AGAIN);
        session::send(self.shared.handover.connection(request.connection), &self.out)?;
        self.shared.slots.count_answered();
        self.charge(Some(request.account));
        Ok(())
    }

    fn answer_deferred(&mut self, request: &DeferredRequest) -> Result<(), FuseError> {
        let decoded = FuseRequest::decode(&request.bytes).expect("it was decoded before");
        self.answer(request.connection, &decoded)
    }

    /// Charges what this thread has done since it was called last.
    fn charge(&mut self, account: Option<usize>) {
        let before = std::mem::replace(&mut self.cpu_used, own_thread_cpu_time());
        if let Some(account) = account {
            self.shared.budgets.charge(account, self.cpu_used.saturating_sub(before), Instant::now());
        }
    }
}
