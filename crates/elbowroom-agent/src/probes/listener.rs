//! The thread that datagrams come to: on the host's socket, and on one in each container's own network.
//!
//! It reads a datagram and identifies its sender while the sender waits for the answer, so the sender still exists. The owner interprets
//! the record.

use super::probe_registry::ProbeSink;
use super::source::ProbeProblem;
use elbowroom_linux::probe::network::NetNamespace;
use elbowroom_linux::probe::{DatagramSocket, KnownSenders, SenderAddress, network};
use elbowroom_linux::process;
use elbowroom_types::id::CgroupId;
use elbowroom_types::probe::ProbeRecord;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Datagrams that are read from one socket in a second, about 20 us each; the rest wait, and their senders with them.
const MAX_PER_SECOND: u32 = 500;
/// Most CPU time for them in that second. One sender with 1,500 cgroups around it in each of three hierarchies costs about 70 ms every
/// seven seconds ([`KnownSenders`]), which leaves other senders their time.
const MAX_CPU_PER_SECOND: Duration = Duration::from_millis(100);

/// What an application, or a source of it, said.
pub enum ProbeEvent {
    /// A datagram came.
    Datagram {
        /// The container's own network that it came through; `None` for the host's socket.
        network: Option<NetNamespace>,
        /// The sender's cgroups; empty when the sender is gone already.
        paths: Vec<String>,
        /// What it says.
        record: Result<ProbeRecord, ProbeProblem>,
        /// The way back to its sender.
        reply_to: Option<ReplyAddress>,
    },
    /// A source was asked for a container.
    Polled {
        /// The container.
        group: CgroupId,
        /// The answer.
        record: Result<ProbeRecord, ProbeProblem>,
    },
    /// No socket could be had in a network, so programs there are not heard: another program has it.
    SocketUnavailable {
        /// The network.
        network: NetNamespace,
        /// Why not.
        why: ProbeProblem,
    },
}

/// The way back to the sender of a datagram.
pub struct ReplyAddress {
    network: Option<NetNamespace>,
    address: SenderAddress,
}

enum ListenerCommand {
    Add { network: NetNamespace, pid: u32 },
    Drop(NetNamespace),
    Answer { reply_to: ReplyAddress, text: String },
    Stop,
}

/// Where programs that see the host's file system send to.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join("probe.sock")
}

/// The thread, as the owner sees it. Nothing here waits.
pub(crate) struct ProbeListener {
    commands: mpsc::Sender<ListenerCommand>,
    wake: Arc<OwnedFd>,
    path: PathBuf,
}

impl ProbeListener {
    /// Listens on `path`, and passes datagrams to `tell`, which may use the descriptor `kept` and no other that is open now. The thread
    /// shares no files with the others, so its sockets are closed when it ends, even if the process does not end.
    pub fn start(path: &Path, tell: ProbeSink, kept: Option<RawFd>) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, queue) = mpsc::channel();
        let (bound, wait) = mpsc::sync_channel(1);
        let (own_wake, own_path) = (wake.clone(), path.to_owned());
        let listen = move || {
            let mut kept = Vec::from_iter(kept.into_iter().chain([own_wake.as_raw_fd()]));
            // SAFETY: both are open for as long as the thread has what owns them; it uses no other.
            unsafe { process::unshare_open_files_except(&mut kept) };
            let host = match DatagramSocket::at_path(&own_path) {
                Ok(host) => RateLimitedSocket::new(host),
                Err(error) => return drop(bound.send(Err(error))),
            };
            let _ = bound.send(Ok(()));
            ProbeListenerThread { sockets: [(None, host)].into(), wake: own_wake, queue }.run(&*tell);
        };
        std::thread::Builder::new().name("probe-socket".into()).spawn(listen)?;
        wait.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended")))?;
        Ok(Self { commands: orders, wake, path: path.to_owned() })
    }

    /// Listens in the network of process `pid` too.
    pub fn add(&self, network: NetNamespace, pid: u32) {
        self.send_command(ListenerCommand::Add { network, pid });
    }

    /// Listens there no longer.
    pub(crate) fn drop_network(&self, network: NetNamespace) {
        self.send_command(ListenerCommand::Drop(network));
    }

    /// Tells the sender of a datagram what became of it: nothing for "taken".
    pub fn answer(&self, back: ReplyAddress, text: String) {
        self.send_command(ListenerCommand::Answer { reply_to: back, text });
    }

    fn send_command(&self, order: ListenerCommand) {
        if self.commands.send(order).is_ok() {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for ProbeListener {
    fn drop(&mut self) {
        self.send_command(ListenerCommand::Stop);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The thread's own state.
struct ProbeListenerThread {
    sockets: BTreeMap<Option<NetNamespace>, RateLimitedSocket>,
    wake: Arc<OwnedFd>,
    queue: mpsc::Receiver<ListenerCommand>,
}

/// A socket, and how much was read from it in the running second.
struct RateLimitedSocket {
    socket: DatagramSocket,
    since: Instant,
    received: u32,
    cpu: Duration,
    senders: KnownSenders,
    /// That its senders let nothing be read was told.
    told: bool,
}

impl RateLimitedSocket {
    fn new(socket: DatagramSocket) -> Self {
        let (cpu, senders) = (Duration::ZERO, KnownSenders::default());
        Self { socket, since: Instant::now(), received: 0, cpu, senders, told: false }
    }

    /// Whether nothing is read for now: this second's share is used up, or its senders let nothing be read.
    fn is_rate_limited(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.received, self.cpu) = (now, 0, Duration::ZERO);
            self.senders.forget_old();
        }
        let is_clogged = self.socket.is_clogged();
        if is_clogged && !std::mem::replace(&mut self.told, true) {
            let because =
                "senders keep the kernel from releasing descriptors that they sent (use Linux 6.16 or newer)";
            tracing::warn!(because, "nothing is read from a socket for probes");
        }
        is_clogged || self.has_had_share()
    }

    fn has_had_share(&self) -> bool {
        self.received >= MAX_PER_SECOND || self.cpu >= MAX_CPU_PER_SECOND
    }
}

impl ProbeListenerThread {
    fn run(mut self, tell: &dyn Fn(ProbeEvent)) {
        loop {
            let ready = self.wait();
            for network in ready {
                self.receive(network, tell);
            }
            let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
            while let Ok(order) = self.queue.try_recv() {
                match order {
                    ListenerCommand::Add { network, pid } => {
                        match network::run_in(pid, DatagramSocket::at_abstract) {
                            Ok(socket) => {
                                drop(self.sockets.insert(Some(network), RateLimitedSocket::new(socket)))
                            }
                            Err(error) => {
                                tell(ProbeEvent::SocketUnavailable { network, why: error.to_string() })
                            }
                        }
                    }
                    ListenerCommand::Drop(network) => drop(self.sockets.remove(&Some(network))),
                    ListenerCommand::Answer { reply_to: back, text } => {
                        if let Some(limited) = self.sockets.get(&back.network) {
                            limited.socket.reply(&back.address, &text);
                        }
                    }
                    ListenerCommand::Stop => return,
                }
            }
        }
    }

    /// Waits for a datagram, an order, or the next second of a socket that has said enough in this one.
    fn wait(&mut self) -> Vec<Option<NetNamespace>> {
        let now = Instant::now();
        let (mut names, mut full) = (Vec::new(), false);
        let mut fds = vec![PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        for (network, limited) in &mut self.sockets {
            if limited.is_rate_limited(now) {
                full = true;
            } else {
                names.push(*network);
                fds.push(PollFd::from_borrowed_fd(limited.socket.as_fd(), PollFlags::IN));
            }
        }
        let soon = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        let _ = poll(&mut fds, full.then_some(&soon));
        names
            .into_iter()
            .zip(&fds[1..])
            .filter(|(_, fd)| !fd.revents().is_empty())
            .map(|(name, _)| name)
            .collect()
    }

    /// Reads some of what has come through a socket.
    fn receive(&mut self, network: Option<NetNamespace>, tell: &dyn Fn(ProbeEvent)) {
        let Some(limited) = self.sockets.get_mut(&network) else { return };
        // A few at a time: the others have their turn.
        for _ in 0..16 {
            if limited.has_had_share() {
                return;
            }
            let begin = process::own_thread_cpu_time();
            let Ok(Some(datagram)) = limited.socket.receive() else { return };
            let paths = datagram.sender_cgroups(&mut limited.senders);
            limited.received += 1;
            limited.cpu += process::own_thread_cpu_time().saturating_sub(begin);
            let record = ProbeRecord::parse(&datagram.bytes).map_err(|error| error.to_string());
            let back = datagram.sender_address().map(|to| ReplyAddress { network, address: to.clone() });
            tell(ProbeEvent::Datagram { network, paths, record, reply_to: back });
        }
    }
}
