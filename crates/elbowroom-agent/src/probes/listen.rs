//! The thread that datagrams come to: on the host's socket, and on one in each container's own network.
//!
//! It reads and says who spoke while the sender waits for its answer, so that the sender is still there to be looked at; what
//! the record means is the owner's.

use super::source::Problem;
use super::voices::Tell;
use elbowroom_linux::probe::network;
use elbowroom_linux::probe::network::Network;
use elbowroom_linux::probe::{Address, Socket};
use elbowroom_linux::process;
use elbowroom_types::probe::Record;
use elbowroom_types::sample::GroupId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Datagrams that are read from one socket in a second, about 20 us each; the rest wait, and their senders with them.
const MOST_PER_SECOND: u32 = 500;

/// What an application, or a source of it, said.
pub enum Said {
    /// A datagram came.
    Datagram {
        /// The container's own network that it came through; `None` for the host's socket.
        network: Option<Network>,
        /// The cgroups of who sent it; empty when it is gone already.
        paths: Vec<String>,
        /// What it says.
        record: Result<Record, Problem>,
        /// The way back to its sender.
        back: Option<Back>,
    },
    /// A source was asked for a container.
    Polled {
        /// The container.
        group: GroupId,
        /// The answer.
        record: Result<Record, Problem>,
    },
    /// No socket could be had in a network, so programs there are not heard: somebody else has it.
    Deaf {
        /// The network.
        network: Network,
        /// Why not.
        why: Problem,
    },
}

/// The way back to the sender of a datagram.
pub struct Back {
    network: Option<Network>,
    to: Address,
}

enum Order {
    Add { network: Network, pid: u32 },
    Drop(Network),
    Answer { back: Back, text: String },
    Stop,
}

/// Where programs that see the host's file system send to.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join("probe.sock")
}

/// The thread, as the owner sees it. Nothing here waits.
pub struct Listener {
    orders: mpsc::Sender<Order>,
    wake: Arc<OwnedFd>,
    path: PathBuf,
}

impl Listener {
    /// Listens on `path`, and tells what is heard.
    pub fn start(path: &Path, tell: Tell) -> io::Result<Self> {
        let host = Socket::at_path(path)?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, queue) = mpsc::channel();
        let ears = Ears { sockets: [(None, Ear::new(host))].into(), wake: wake.clone(), queue };
        std::thread::Builder::new().name("probe-socket".into()).spawn(move || ears.run(&*tell))?;
        Ok(Self { orders, wake, path: path.to_owned() })
    }

    /// Listens in the network of process `pid` too.
    pub fn add(&self, network: Network, pid: u32) {
        self.order(Order::Add { network, pid });
    }

    /// Listens there no longer.
    pub fn drop_network(&self, network: Network) {
        self.order(Order::Drop(network));
    }

    /// Tells the sender of a datagram what became of it: nothing for "taken".
    pub fn answer(&self, back: Back, text: String) {
        self.order(Order::Answer { back, text });
    }

    fn order(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.order(Order::Stop);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The thread's own state.
struct Ears {
    sockets: BTreeMap<Option<Network>, Ear>,
    wake: Arc<OwnedFd>,
    queue: mpsc::Receiver<Order>,
}

/// A socket, and how much was read from it in the running second.
struct Ear {
    socket: Socket,
    since: Instant,
    read: u32,
}

impl Ear {
    fn new(socket: Socket) -> Self {
        Self { socket, since: Instant::now(), read: 0 }
    }

    /// Whether this second's share is used up.
    fn is_full(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            (self.since, self.read) = (now, 0);
        }
        self.read >= MOST_PER_SECOND
    }
}

impl Ears {
    fn run(mut self, tell: &dyn Fn(Said)) {
        loop {
            let ready = self.wait();
            for network in ready {
                self.hear(network, tell);
            }
            let _ = rustix::io::read(&*self.wake, &mut [0u8; 8]);
            while let Ok(order) = self.queue.try_recv() {
                match order {
                    Order::Add { network, pid } => match network::run_in(pid, Socket::at_abstract) {
                        Ok(socket) => drop(self.sockets.insert(Some(network), Ear::new(socket))),
                        Err(error) => tell(Said::Deaf { network, why: error.to_string() }),
                    },
                    Order::Drop(network) => drop(self.sockets.remove(&Some(network))),
                    Order::Answer { back, text } => {
                        if let Some(ear) = self.sockets.get(&back.network) {
                            ear.socket.answer(&back.to, &text);
                        }
                    }
                    Order::Stop => return,
                }
            }
        }
    }

    /// Waits for a datagram, an order, or the next second of a socket that has said enough in this one.
    fn wait(&mut self) -> Vec<Option<Network>> {
        let now = Instant::now();
        let (mut names, mut full) = (Vec::new(), false);
        let mut fds = vec![PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        for (network, ear) in &mut self.sockets {
            if ear.is_full(now) {
                full = true;
            } else {
                names.push(*network);
                fds.push(PollFd::from_borrowed_fd(ear.socket.as_fd(), PollFlags::IN));
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
    fn hear(&mut self, network: Option<Network>, tell: &dyn Fn(Said)) {
        let Some(ear) = self.sockets.get_mut(&network) else { return };
        // A few at a time: the others have their turn.
        for _ in 0..16 {
            let Ok(Some(datagram)) = ear.socket.next() else { return };
            ear.read += 1;
            let paths = datagram.pid.map(process::cgroup_paths).unwrap_or_default();
            let record = Record::parse(&datagram.bytes).map_err(|error| error.to_string());
            let back = datagram.from().map(|to| Back { network, to: to.clone() });
            tell(Said::Datagram { network, paths, record, back });
        }
    }
}
