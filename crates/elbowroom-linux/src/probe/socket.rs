//! Datagrams with the sender's process number, from the kernel (`SO_PASSCRED`, unix(7)).
//!
//! Another process may have that number by the time it is looked up. Where the kernel can refuse descriptors that are sent along
//! (Linux 6.16), it also gives a pidfd of the sender (`SO_PASSPIDFD`, since 6.5), which says whether the number still is the sender's.
//! Earlier, room for a pidfd would be room for a descriptor sent along (`scm_recv_unix` of Linux 6.5 to 6.15 hands those out first).

use crate::{process, unix_socket};
use libc::{c_int, c_void, socklen_t};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Name of the socket in a container's own network namespace, in the abstract namespace that unix sockets have in each: it
/// needs no file in the container, and is gone with us.
pub(crate) const ABSTRACT_NAME: &str = "elbowroom";

/// Threads of one socket that may wait, each at a message whose descriptors its sender does not let go. Then nothing more is received.
const MAX_DISCARDS: usize = 8;
/// How long a thread may take to take a message out of the queue.
const TAKE_TIMEOUT: Duration = Duration::from_millis(20);

/// Has a pidfd of the sender come with each message (include/uapi/asm-generic/socket.h),
const SO_PASSPIDFD: c_int = 76;
/// in a control message of this type (include/linux/socket.h).
const SCM_PIDFD: c_int = 4;

/// A record's longest bytes, and one more to see that it is too long.
const DATAGRAM_BUFFER_BYTES: usize = elbowroom_types::probe::MAX_RECORD_LEN + 1;

/// A socket that applications send records to.
#[derive(Debug)]
pub struct DatagramSocket {
    /// There until it is dropped.
    fd: Option<OwnedFd>,
    /// The kernel lets no program send descriptors.
    refuses_descriptors: bool,
    /// The kernel gives pidfds of senders.
    gives_pidfds: bool,
    /// Threads that took messages with descriptors and are not back.
    discards: Vec<Discard>,
}

/// One datagram.
#[derive(Debug)]
pub struct Datagram {
    /// What was sent; one byte longer than the longest record when it was cut off.
    pub bytes: Vec<u8>,
    /// The sending process, as far as the kernel says.
    sender: Sender,
    /// Where an answer can go, if the sender has an address.
    sender_address: Option<SenderAddress>,
    /// Descriptors lie beside it.
    has_descriptors: bool,
}

/// The process that sent a datagram.
#[derive(Debug)]
struct Sender {
    /// As this process numbers it; `None` where it has no number here.
    pid: Option<i32>,
    /// The same process, whatever has its number by now.
    process: Option<OwnedFd>,
    /// The kernel gives a pidfd of every sender that is there.
    has_pidfd: bool,
}

/// A sender's cgroups are looked up again only after this many times the CPU time of the last look: a sender costs at most a
/// hundredth of a CPU.
const LOOK_COUNTS_FOR: u32 = 100;

/// The cgroups of senders that were looked at, by number and start, and until when that counts: where there are thousands of cgroups
/// around one, the kernel takes many milliseconds to say which (fs/kernfs/dir.c, `kernfs_path_from_node_locked`).
#[derive(Debug, Default)]
pub struct KnownSenders(BTreeMap<(i32, u64), (Vec<String>, Instant)>);

/// The address of a sender.
#[derive(Debug, Clone)]
pub struct SenderAddress {
    storage: libc::sockaddr_un,
    length: socklen_t,
}

impl DatagramSocket {
    /// Listens on a path, where every process may send; a file that is there is replaced.
    ///
    /// # Errors
    /// As socket(2), bind(2), unshare(2).
    pub fn at_path(path: &Path) -> io::Result<Self> {
        Self::bound(|socket| unix_socket::bind(socket, path, 0o666, None))
    }

    /// Listens on [`ABSTRACT_NAME`] in the network namespace that this thread is in.
    ///
    /// # Errors
    /// As socket(2), bind(2); `EADDRINUSE` where another process listens there.
    pub fn at_abstract() -> io::Result<Self> {
        let address = SocketAddrUnix::new_abstract_name(ABSTRACT_NAME.as_bytes())?;
        Self::bound(|socket| Ok(rustix::net::bind(socket, &address)?))
    }

    fn bound(bind: impl FnOnce(&OwnedFd) -> io::Result<()>) -> io::Result<Self> {
        let fd = datagram_socket(SocketFlags::NONBLOCK)?;
        rustix::net::sockopt::set_socket_passcred(&fd, true)?;
        let refuses_descriptors = unix_socket::refuse_descriptors(&fd);
        let gives_pidfds = refuses_descriptors && unix_socket::set_flag(&fd, SO_PASSPIDFD, true);
        bind(&fd)?;
        Ok(Self { fd: Some(fd), refuses_descriptors, gives_pidfds, discards: Vec::new() })
    }

    fn raw(&self) -> c_int {
        self.as_fd().as_raw_fd()
    }

    /// The next datagram; `None` when there is none now. Descriptors that lie beside it are never this process's, and are released by a
    /// thread that nothing waits for.
    ///
    /// # Errors
    /// As recvmsg(2), clone(2).
    pub fn receive(&mut self) -> io::Result<Option<Datagram>> {
        if self.refuses_descriptors {
            return read(self.raw(), 0, self.gives_pidfds);
        }
        // Until a message is taken, it is the next.
        if self.discards.last().is_some_and(|last| !last.wait_until_taken()) {
            return Ok(None);
        }
        // Looking at a message takes no reference away, so it releases nothing.
        let Some(datagram) = read(self.raw(), libc::MSG_PEEK, false)? else { return Ok(None) };
        if !datagram.has_descriptors {
            return read(self.raw(), 0, false);
        }
        if self.is_clogged() {
            return Ok(None);
        }
        let discard = Discard::start(self.as_fd())?;
        let is_taken = discard.wait_until_taken();
        self.discards.push(discard);
        Ok(is_taken.then_some(datagram))
    }

    /// Whether nothing is received for now: the next message has descriptors, and too many threads are not back from releasing others.
    pub fn is_clogged(&mut self) -> bool {
        self.discards.retain(|discard| !discard.thread.is_finished());
        self.discards.len() >= MAX_DISCARDS
    }

    /// Answers the sender of a datagram, if it has an address and room; without waiting.
    pub fn reply(&self, to: &SenderAddress, text: &str) {
        // SAFETY: text and address are live for the call, with their lengths; the address is one that recvmsg gave.
        let _ = unsafe {
            libc::sendto(
                self.raw(),
                text.as_ptr().cast::<c_void>(),
                text.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                (&raw const to.storage).cast::<libc::sockaddr>(),
                to.length,
            )
        };
    }
}

impl Datagram {
    /// The cgroups of the sender, one path per hierarchy; empty when the sender is gone, or has no number here. A sender that is `known`
    /// is not looked at again, and others become known, for a hundred times as long as the look took.
    pub fn sender_cgroups(&self, known: &mut KnownSenders) -> Vec<String> {
        self.sender.cgroups(known)
    }

    /// Where an answer can go.
    pub fn sender_address(&self) -> Option<&SenderAddress> {
        self.sender_address.as_ref()
    }
}

impl Sender {
    fn cgroups(&self, known: &mut KnownSenders) -> Vec<String> {
        let paths = self.pid.map(|pid| known.cgroups(pid)).unwrap_or_default();
        // After the look: while the sender is there, no other process has its number.
        let was_sender =
            !self.has_pidfd || self.process.as_ref().is_some_and(|process| exists(process.as_fd()));
        if was_sender { paths } else { Vec::new() }
    }
}

impl KnownSenders {
    fn cgroups(&mut self, pid: i32) -> Vec<String> {
        // Of its first thread, for which the kernel adds up no others.
        let stat = process::stat_line(format!("/proc/{pid}/task/{pid}"));
        let Some(started) = stat.as_deref().and_then(process::start_ticks) else { return Vec::new() };
        if let Some((paths, until)) = self.0.get(&(pid, started))
            && *until > Instant::now()
        {
            return paths.clone();
        }
        let begin = process::own_thread_cpu_time();
        let paths = process::cgroup_paths(pid);
        let took = process::own_thread_cpu_time().saturating_sub(begin);
        self.0.insert((pid, started), (paths.clone(), Instant::now() + took * LOOK_COUNTS_FOR));
        paths
    }

    /// Forgets senders whose look has expired; to be called now and then.
    pub fn forget_old(&mut self) {
        let now = Instant::now();
        self.0.retain(|_, (_, until)| *until > now);
    }
}

/// Whether a process still has its number: it runs, or its parent has not heard yet that it ended.
fn exists(process: BorrowedFd<'_>) -> bool {
    // SAFETY: the descriptor is open for the call, which reads no memory: signal 0 is none, and asks.
    unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), 0, std::ptr::null::<c_void>(), 0) == 0
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is there until this is dropped").as_fd()
    }
}

impl Drop for DatagramSocket {
    /// Descriptors in its queue are released by a thread that nothing waits for, as that thread's copy is the last one.
    fn drop(&mut self) {
        if self.refuses_descriptors {
            return;
        }
        let (closed, go_on) = mpsc::channel::<()>();
        if on_own_copy(self.as_fd(), move |_| _ = go_on.recv()).is_ok() {
            self.fd = None;
            drop(closed);
        }
    }
}

/// A thread that takes one message with descriptors, and releases them on its way back from the kernel.
#[derive(Debug)]
struct Discard {
    thread: JoinHandle<()>,
    message: Arc<DiscardedMessage>,
}

/// Where the kernel says that it has taken a message: in `msg_flags`, before the thread releases anything (`____sys_recvmsg`, and then
/// `exit_to_user_mode_loop`, in which files are released).
#[derive(Debug)]
struct DiscardedMessage(UnsafeCell<libc::msghdr>);

// SAFETY: the kernel, for one thread, writes to it; the others only read `msg_flags`, atomically. Its pointers are null.
unsafe impl Send for DiscardedMessage {}
// SAFETY: as above.
unsafe impl Sync for DiscardedMessage {}

impl DiscardedMessage {
    fn is_taken(&self) -> bool {
        // SAFETY: the field is an aligned int, for as long as `self` lives.
        unsafe { AtomicI32::from_ptr(&raw mut (*self.0.get()).msg_flags) }.load(Ordering::Acquire) != 0
    }
}

impl Discard {
    fn start(socket: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: a msghdr is plain numbers and pointers, for which zero is a value: no room for anything.
        let message = Arc::new(DiscardedMessage(UnsafeCell::new(unsafe { std::mem::zeroed() })));
        let shared = message.clone();
        let thread = on_own_copy(socket, move |fd| {
            // SAFETY: the header is alive, and has room for nothing. That it had none is in its flags.
            unsafe { libc::recvmsg(fd, shared.0.get(), libc::MSG_DONTWAIT) };
        })?;
        Ok(Self { thread, message })
    }

    /// Whether the message is in the queue no longer.
    fn is_taken(&self) -> bool {
        self.message.is_taken() || self.thread.is_finished()
    }

    /// The same, once there was time for it, which is some microseconds.
    fn wait_until_taken(&self) -> bool {
        let until = Instant::now() + TAKE_TIMEOUT;
        while !self.is_taken() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.is_taken()
    }
}

/// Runs `work` with a descriptor of `socket` on a thread that has no other file of this process. Returns once the thread has it.
fn on_own_copy(
    socket: BorrowedFd<'_>,
    work: impl FnOnce(c_int) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let fd = socket.as_raw_fd();
    let (has_it, wait) = mpsc::channel::<()>();
    let thread = std::thread::Builder::new().name("discard".into()).spawn(move || {
        // SAFETY: the socket is open until the thread says that it has it. It uses no other file.
        unsafe { process::unshare_open_files_except(&mut [fd]) };
        drop(has_it);
        work(fd);
    })?;
    let _ = wait.recv();
    Ok(thread)
}

/// Takes the next datagram, or looks at it (`MSG_PEEK`). `has_pidfd`: the kernel gives a pidfd, and no descriptor that was sent.
fn read(socket: c_int, flags: c_int, has_pidfd: bool) -> io::Result<Option<Datagram>> {
    let mut bytes = vec![0u8; DATAGRAM_BUFFER_BYTES];
    let mut control = ControlBuffer { space: [0; CREDENTIALS_BYTES + PIDFD_BYTES] };
    // SAFETY: a sockaddr_un and a msghdr are plain numbers and pointers, for which zero is a value.
    let (mut from, mut message): (libc::sockaddr_un, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast::<c_void>(), iov_len: bytes.len() };
    message.msg_name = (&raw mut from).cast::<c_void>();
    message.msg_namelen = size_of::<libc::sockaddr_un>() as socklen_t;
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.space.as_mut_ptr().cast::<c_void>();
    message.msg_controllen = (CREDENTIALS_BYTES + if has_pidfd { PIDFD_BYTES } else { 0 }) as _;
    // SAFETY: every pointer in the message is to a live buffer of the length that stands beside it.
    let got = unsafe {
        libc::recvmsg(socket, &raw mut message, flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)
    };
    let Ok(got) = usize::try_from(got) else {
        return match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(Errno::AGAIN | Errno::INTR) | None => Ok(None),
            Some(errno) => Err(errno.into()),
        };
    };
    bytes.truncate(got);
    // An unbound sender has a family and nothing after it.
    let named = message.msg_namelen as usize > size_of::<libc::sa_family_t>();
    let sender_address = named.then_some(SenderAddress { storage: from, length: message.msg_namelen });
    let has_descriptors = message.msg_flags & libc::MSG_CTRUNC != 0;
    let sender = sender(&message, has_pidfd);
    Ok(Some(Datagram { bytes, sender, sender_address, has_descriptors }))
}

/// Room for credentials, which come first. Where there is none after them the kernel gives this process no descriptor, and says so.
const CREDENTIALS_BYTES: usize = {
    // SAFETY: the macro computes with numbers.
    (unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as libc::c_uint) }) as usize
};

/// Room for a pidfd.
const PIDFD_BYTES: usize = {
    // SAFETY: the macro computes with numbers.
    (unsafe { libc::CMSG_SPACE(size_of::<c_int>() as libc::c_uint) }) as usize
};

/// Room for control messages, aligned as they must be.
#[repr(align(8))]
struct ControlBuffer {
    space: [u8; CREDENTIALS_BYTES + PIDFD_BYTES],
}

/// The sender of a message. The kernel gives 0 for a process that has no number in our pid namespace, and a negative error in place of a
/// pidfd that it cannot make.
fn sender(message: &libc::msghdr, has_pidfd: bool) -> Sender {
    let mut sender = Sender { pid: None, process: None, has_pidfd };
    // SAFETY: the message is as recvmsg left it: what is in its control buffer is well formed, and data is read unaligned. A pidfd in it is
    // this process's, and nothing else owns it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    let pid = data.cast::<libc::ucred>().read_unaligned().pid;
                    sender.pid = Some(pid).filter(|pid| *pid > 0);
                }
                (libc::SOL_SOCKET, SCM_PIDFD) if has_pidfd => {
                    let fd = Some(data.cast::<c_int>().read_unaligned()).filter(|fd| *fd >= 0);
                    sender.process = fd.map(|fd| OwnedFd::from_raw_fd(fd));
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    sender
}

fn datagram_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags | SocketFlags::CLOEXEC, None)?)
}

/// Sends one record and waits for what the agent says to it; an empty answer is "taken". `path`: the socket's, or `None` for
/// [`ABSTRACT_NAME`].
///
/// # Errors
/// As connect(2) and send(2); `TimedOut` when no answer comes within `patience`.
pub fn send(path: Option<&Path>, record: &[u8], patience: Duration) -> io::Result<String> {
    let fd = datagram_socket(SocketFlags::empty())?;
    // Binding to no name gives one (unix(7), autobind). Without an address there is no answer, and a sender that ends before the
    // agent looks at it belongs to no container.
    rustix::net::bind(&fd, &SocketAddrUnix::new_unnamed())?;
    let address = match path {
        Some(path) => SocketAddrUnix::new(path)?,
        None => SocketAddrUnix::new_abstract_name(ABSTRACT_NAME.as_bytes())?,
    };
    rustix::net::connect(&fd, &address)?;
    rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Send, Some(patience))?;
    rustix::net::send(&fd, record, rustix::net::SendFlags::NOSIGNAL)?;
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut answer = [0u8; 1024];
    let (_, length) = rustix::net::recv(&fd, &mut answer, rustix::net::RecvFlags::empty())?;
    Ok(String::from_utf8_lossy(&answer[..length.min(answer.len())]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix_socket::SO_PASSRIGHTS;

    #[test]
    fn a_datagram_names_the_process_that_sent_it_and_can_be_answered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let mut socket = DatagramSocket::at_path(&path).unwrap();
        assert!(socket.receive().unwrap().is_none());
        let sender = std::thread::spawn(move || send(Some(&path), b"served=1", Duration::from_secs(20)));
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
        let datagram = socket.receive().unwrap().unwrap();
        assert_eq!(
            (datagram.bytes.as_slice(), datagram.sender.pid),
            (&b"served=1"[..], Some(std::process::id() as i32))
        );
        socket.reply(datagram.sender_address().unwrap(), "no");
        assert_eq!(sender.join().unwrap().unwrap(), "no");
    }

    #[test]
    fn a_process_with_the_number_of_a_sender_that_is_gone_did_not_send() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let mut socket = DatagramSocket::at_path(&path).unwrap();
        if !socket.gives_pidfds {
            eprintln!("skipped: needs SO_PASSPIDFD and SO_PASSRIGHTS (Linux 6.16)");
            return;
        }
        rustix::net::send(peer(&path), b"served=1", rustix::net::SendFlags::empty()).unwrap();
        let mut datagram = socket.receive().unwrap().unwrap();
        assert_eq!(
            datagram.sender_cgroups(&mut KnownSenders::default()),
            process::cgroup_paths(std::process::id() as i32)
        );
        // As if this process had been given the number of one that has ended.
        let mut sender = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&sender);
        datagram.sender.process =
            Some(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap());
        sender.wait().unwrap();
        assert_eq!(datagram.sender_cgroups(&mut KnownSenders::default()), [""; 0]);
        datagram.sender.process = None;
        assert_eq!(
            datagram.sender_cgroups(&mut KnownSenders::default()),
            [""; 0],
            "the kernel had no pidfd to give"
        );
    }

    #[test]
    fn a_sender_is_looked_at_again_when_the_last_look_was_long_ago() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let mut socket = DatagramSocket::at_path(&path).unwrap();
        let mut known = KnownSenders::default();
        let mut cgroups = |known: &mut KnownSenders| {
            rustix::net::send(peer(&path), b"served=1", rustix::net::SendFlags::empty()).unwrap();
            socket.receive().unwrap().unwrap().sender_cgroups(known)
        };
        assert_eq!(cgroups(&mut known), process::cgroup_paths(std::process::id() as i32));
        let ((pid, started), (paths, _)) = known.0.first_entry().unwrap().remove_entry();
        let later = Instant::now() + Duration::from_secs(1_000);
        // What another process with its number had is not taken for its own.
        known.0.insert((pid, started + 1), (vec!["/another's".into()], later));
        assert_eq!(cgroups(&mut known), paths);
        known.0.insert((pid, started), (vec!["/as it was".into()], later));
        assert_eq!(cgroups(&mut known), ["/as it was"]);
        known.0.insert((pid, started), (vec!["/as it was".into()], Instant::now()));
        assert_eq!(cgroups(&mut known), paths, "it counts no longer");
        known.0.insert((pid, started), (paths, Instant::now()));
        known.forget_old();
        assert_eq!(Vec::from_iter(known.0.keys()), [&(pid, started + 1)]);
    }

    #[test]
    fn pidfds_of_senders_are_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let mut socket = DatagramSocket::at_path(&path).unwrap();
        let peer = peer(&path);
        let pidfds = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            links
                .filter(|link| {
                    std::fs::read_link(link.path()).is_ok_and(|to| to.ends_with("anon_inode:[pidfd]"))
                })
                .count()
        };
        let before = pidfds();
        for _ in 0..200 {
            rustix::net::send(&peer, b"served=1", rustix::net::SendFlags::empty()).unwrap();
            drop(socket.receive().unwrap().unwrap());
        }
        // Tests beside this one have some.
        assert!(pidfds() < before + 100);
    }

    /// Connected to `path`.
    fn peer(path: &Path) -> OwnedFd {
        let peer = datagram_socket(SocketFlags::empty()).unwrap();
        rustix::net::connect(&peer, &SocketAddrUnix::new(path).unwrap()).unwrap();
        peer
    }

    /// Sends `bytes`, with `fd` beside them.
    fn send_with(peer: &OwnedFd, bytes: &[u8], fd: BorrowedFd<'_>) -> Result<usize, Errno> {
        let fds = [fd];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds));
        rustix::net::sendmsg(peer, &[io::IoSlice::new(bytes)], &mut control, rustix::net::SendFlags::empty())
    }

    /// As on a kernel that cannot refuse descriptors.
    fn at_path_of_old(path: &Path) -> DatagramSocket {
        let mut socket = DatagramSocket::at_path(path).unwrap();
        unix_socket::set_flag(&socket, SO_PASSRIGHTS, true);
        unix_socket::set_flag(&socket, SO_PASSPIDFD, false);
        (socket.refuses_descriptors, socket.gives_pidfds) = (false, false);
        socket
    }

    /// Whether no writer of a pipe is left anywhere: only then does it end.
    fn ends(reader: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(reader, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap() == 1
    }

    /// A TCP connection whose other end takes nothing, so that the process that releases it last waits for `SO_LINGER`.
    fn lingering() -> (std::net::TcpStream, std::net::TcpListener) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut stream, &[0; 1 << 16]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::from_secs(3_600))).unwrap();
        (stream, listener)
    }

    #[test]
    fn descriptors_are_refused_where_the_kernel_can() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let mut socket = DatagramSocket::at_path(&path).unwrap();
        if !socket.refuses_descriptors {
            eprintln!("skipped: needs SO_PASSRIGHTS (Linux 6.16)");
            return;
        }
        assert_eq!(send_with(&peer(&path), b"served=1", socket.as_fd()), Err(Errno::PERM));
        assert!(socket.receive().unwrap().is_none());
    }

    #[test]
    fn descriptors_that_are_sent_along_are_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let mut socket = at_path_of_old(&path);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        send_with(&peer(&path), b"served=1", writer.as_fd()).unwrap();
        drop(writer);
        let datagram = socket.receive().unwrap().unwrap();
        assert_eq!(datagram.bytes, b"served=1");
        assert!(datagram.sender.pid.is_some() && datagram.sender_address().is_none());
        assert!(ends(&reader));
        // Those that are never received go with the socket.
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        send_with(&peer(&path), b"served=2", writer.as_fd()).unwrap();
        drop((writer, socket));
        assert!(ends(&reader));
    }

    #[test]
    fn a_descriptor_that_takes_its_time_keeps_no_process_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let mut socket = at_path_of_old(&path);
        let peer = peer(&path);
        let mut listeners = Vec::new();
        let mut send_lingering = || {
            let (stream, listener) = lingering();
            send_with(&peer, b"red", stream.as_fd()).unwrap();
            // Its copy is not the last one.
            drop(stream);
            listeners.push(listener);
        };
        let began = Instant::now();
        // As many threads wait then as may. What another test starts has copies of descriptors for a moment: a thread that does not release
        // the last one does not wait.
        while !socket.is_clogged() {
            assert!(began.elapsed() < Duration::from_secs(60), "no thread waits");
            send_lingering();
            rustix::net::send(&peer, b"served=1", rustix::net::SendFlags::empty()).unwrap();
            let mut next = || loop {
                if let Some(datagram) = socket.receive().unwrap() {
                    return datagram.bytes;
                }
                assert!(began.elapsed() < Duration::from_secs(60), "a message keeps those after it waiting");
            };
            assert_eq!([next(), next()], [b"red".to_vec(), b"served=1".to_vec()]);
        }
        send_lingering();
        assert!(socket.receive().unwrap().is_none());
        drop(socket);
        // With a connection its thread goes.
        drop(listeners);
    }

    #[test]
    fn a_datagram_that_is_too_long_is_seen_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let mut socket = DatagramSocket::at_path(&path).unwrap();
        let peer = datagram_socket(SocketFlags::empty()).unwrap();
        rustix::net::connect(&peer, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::send(&peer, &[b'x'; 2 * DATAGRAM_BUFFER_BYTES], rustix::net::SendFlags::empty())
            .unwrap();
        assert_eq!(socket.receive().unwrap().unwrap().bytes.len(), DATAGRAM_BUFFER_BYTES);
        assert!(socket.receive().unwrap().is_none());
    }
}
