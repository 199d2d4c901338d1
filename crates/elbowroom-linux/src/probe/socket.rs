//! Datagrams with the kernel's word on who sent them (`SO_PASSCRED`, unix(7)).

use libc::{c_int, c_void, socklen_t};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Name of the socket in a container's own network namespace, in the abstract namespace that unix sockets have in each: it
/// needs no file in the container, and is gone with us.
pub(crate) const ABSTRACT_NAME: &str = "elbowroom";

/// A record's longest bytes, and one more to see that it is too long.
const DATAGRAM_BUFFER_BYTES: usize = elbowroom_types::probe::MAX_RECORD_LEN + 1;

/// A socket that applications send records to.
#[derive(Debug)]
pub struct DatagramSocket {
    fd: OwnedFd,
}

/// One datagram.
#[derive(Debug)]
pub struct Datagram {
    /// What was sent; one byte longer than the longest record when it was cut off.
    pub bytes: Vec<u8>,
    /// The process that sent it, as this process numbers it; `None` where it has no number here.
    pub pid: Option<i32>,
    /// Where an answer can go, if the sender has an address.
    sender_address: Option<SenderAddress>,
}

/// The address of a sender.
#[derive(Debug, Clone)]
pub struct SenderAddress {
    storage: libc::sockaddr_un,
    length: socklen_t,
}

impl DatagramSocket {
    /// Listens on a path, where everybody may send; a file that is there is replaced.
    ///
    /// # Errors
    /// As socket(2), bind(2), chmod(2).
    pub fn at_path(path: &Path) -> io::Result<Self> {
        let _ = std::fs::remove_file(path);
        let socket = Self::bound(&SocketAddrUnix::new(path)?)?;
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
        Ok(socket)
    }

    /// Listens on [`ABSTRACT_NAME`] in the network namespace that this thread is in.
    ///
    /// # Errors
    /// As socket(2), bind(2); `EADDRINUSE` where somebody else listens there.
    pub fn at_abstract() -> io::Result<Self> {
        Self::bound(&SocketAddrUnix::new_abstract_name(ABSTRACT_NAME.as_bytes())?)
    }

    fn bound(address: &SocketAddrUnix) -> io::Result<Self> {
        let fd = datagram_socket(SocketFlags::NONBLOCK)?;
        rustix::net::sockopt::set_socket_passcred(&fd, true)?;
        rustix::net::bind(&fd, address)?;
        Ok(Self { fd })
    }

    /// The next datagram; `None` when there is none now.
    ///
    /// # Errors
    /// As recvmsg(2).
    pub fn receive(&self) -> io::Result<Option<Datagram>> {
        let mut bytes = vec![0u8; DATAGRAM_BUFFER_BYTES];
        let mut control = ControlBuffer { space: [0; 64] };
        // SAFETY: a sockaddr_un and a msghdr are plain numbers and pointers, for which zero is a value.
        let (mut from, mut message): (libc::sockaddr_un, libc::msghdr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast::<c_void>(), iov_len: bytes.len() };
        message.msg_name = (&raw mut from).cast::<c_void>();
        message.msg_namelen = size_of::<libc::sockaddr_un>() as socklen_t;
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.space.as_mut_ptr().cast::<c_void>();
        message.msg_controllen = control.space.len() as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: every pointer in the message is to a live buffer of the length that stands beside it.
        let got = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, flags) };
        let Ok(got) = usize::try_from(got) else {
            return match Errno::from_io_error(&io::Error::last_os_error()) {
                Some(Errno::AGAIN | Errno::INTR) | None => Ok(None),
                Some(errno) => Err(errno.into()),
            };
        };
        bytes.truncate(got);
        // An unbound sender has a family and nothing after it.
        let named = message.msg_namelen as usize > size_of::<libc::sa_family_t>();
        let from = named.then_some(SenderAddress { storage: from, length: message.msg_namelen });
        Ok(Some(Datagram { bytes, pid: sender_pid(&message), sender_address: from }))
    }

    /// Answers the sender of a datagram, if it has an address and room; nobody waits.
    pub fn reply(&self, to: &SenderAddress, text: &str) {
        // SAFETY: text and address are live for the call, with their lengths; the address is one that recvmsg gave.
        let _ = unsafe {
            libc::sendto(
                self.fd.as_raw_fd(),
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
    /// Where an answer can go.
    pub fn sender_address(&self) -> Option<&SenderAddress> {
        self.sender_address.as_ref()
    }
}

impl AsFd for DatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Room for control messages, aligned as they must be.
#[repr(align(8))]
struct ControlBuffer {
    space: [u8; 64],
}

/// The pid in the credentials of a message. The kernel gives 0 for a process that has no number in our pid namespace.
fn sender_pid(message: &libc::msghdr) -> Option<i32> {
    let mut pid = None;
    // SAFETY: the message is as recvmsg left it: the control messages within its control buffer are well formed, the macros
    // stay within it, descriptors that were sent along are ours to close, and data is read unaligned.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    pid = Some(data.cast::<libc::ucred>().read_unaligned().pid).filter(|pid| *pid > 0);
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    let length = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    for at in 0..length / size_of::<c_int>() {
                        libc::close(data.cast::<c_int>().add(at).read_unaligned());
                    }
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    pid
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
    // Binding to no name gives one (unix(7), autobind): without an address there is no answer, and a sender that ends before
    // it is looked at is nobody.
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

    #[test]
    fn a_datagram_names_the_process_that_sent_it_and_can_be_answered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let socket = DatagramSocket::at_path(&path).unwrap();
        assert!(socket.receive().unwrap().is_none());
        let sender = std::thread::spawn(move || send(Some(&path), b"served=1", Duration::from_secs(20)));
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap();
        let datagram = socket.receive().unwrap().unwrap();
        assert_eq!(
            (datagram.bytes.as_slice(), datagram.pid),
            (&b"served=1"[..], Some(std::process::id() as i32))
        );
        socket.reply(datagram.sender_address().unwrap(), "no");
        assert_eq!(sender.join().unwrap().unwrap(), "no");
    }

    #[test]
    fn descriptors_that_are_sent_along_are_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let socket = DatagramSocket::at_path(&path).unwrap();
        let peer = datagram_socket(SocketFlags::empty()).unwrap();
        rustix::net::connect(&peer, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let fds = [writer.as_fd()];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds));
        let data = [io::IoSlice::new(b"served=1")];
        rustix::net::sendmsg(&peer, &data, &mut control, rustix::net::SendFlags::empty()).unwrap();
        drop(writer);
        let datagram = socket.receive().unwrap().unwrap();
        assert!(datagram.pid.is_some() && datagram.sender_address().is_none());
        // Only when no writer is left anywhere does a pipe end.
        let mut fds = [PollFd::new(&reader, PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap(), 1);
    }

    #[test]
    fn a_datagram_that_is_too_long_is_seen_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("probe.sock");
        let socket = DatagramSocket::at_path(&path).unwrap();
        let peer = datagram_socket(SocketFlags::empty()).unwrap();
        rustix::net::connect(&peer, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::send(&peer, &[b'x'; 2 * DATAGRAM_BUFFER_BYTES], rustix::net::SendFlags::empty())
            .unwrap();
        assert_eq!(socket.receive().unwrap().unwrap().bytes.len(), DATAGRAM_BUFFER_BYTES);
        assert!(socket.receive().unwrap().is_none());
    }
}
