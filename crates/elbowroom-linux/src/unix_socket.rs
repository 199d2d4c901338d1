//! Unix sockets at which programs of others may send.
//!
//! # Problem
//! A message may carry descriptors (`SCM_RIGHTS`, unix(7)). A process that takes the message, or closes a socket in whose queue it lies,
//! releases the files in its own thread, whether it asked for descriptors or not (`scm_destroy` and `fput` in the kernel). A TCP socket
//! with `SO_LINGER` lets that thread sleep for as long as its sender likes; a file of a FUSE server that does not answer, for good, and
//! SIGKILL does not end it.
//!
//! # Approach
//! Since Linux 6.16 a socket can say that it takes none: then sending fails, with `EPERM`. [`refuse_descriptors`] comes before bind(2), so
//! that no message comes earlier; sockets that are accepted inherit it. Before, no thread that matters may take such a message.
//! `docs/decisions/0034-received-descriptors.md`

use crate::new_file;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// `SO_PASSRIGHTS` (include/uapi/asm-generic/socket.h).
pub(crate) const SO_PASSRIGHTS: libc::c_int = 83;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Has the kernel refuse messages with descriptors to this socket. False before Linux 6.16: then they come.
pub(crate) fn refuse_descriptors(socket: impl AsFd) -> bool {
    set_flag(socket, SO_PASSRIGHTS, false)
}

/// Sets an option of a socket that is on or off; false where the kernel does not know it.
pub(crate) fn set_flag(socket: impl AsFd, option: libc::c_int, on: bool) -> bool {
    let (fd, value) = (socket.as_fd().as_raw_fd(), libc::c_int::from(on));
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the descriptor is open for the call, which reads one int.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const value).cast(), length) == 0 }
}

/// Listens on `path`, in place of what is there, with a file that has `mode` and `group` from the first moment on. No connection brings
/// descriptors, where the kernel can refuse them.
///
/// # Errors
/// As socket(2), bind(2), listen(2), and [`new_file::create_with_mode`].
pub fn listen(path: &Path, mode: u32, group: Option<u32>) -> io::Result<UnixListener> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    refuse_descriptors(&socket);
    bind(&socket, path, mode, group)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Binds to `path`, in place of what is there.
pub(crate) fn bind(socket: impl AsFd, path: &Path, mode: u32, group: Option<u32>) -> io::Result<()> {
    let (socket, address) = (socket.as_fd(), SocketAddrUnix::new(path)?);
    let _ = std::fs::remove_file(path);
    new_file::create_with_mode(Mode::from_raw_mode(mode), group, || Ok(rustix::net::bind(socket, &address)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_client_brings_no_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = listen(&path, 0o600, None).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o7777, 0o600);
        if !refuse_descriptors(&listener) {
            eprintln!("skipped: needs SO_PASSRIGHTS (Linux 6.16)");
            return;
        }
        let peer = UnixStream::connect(&path).unwrap();
        let send = || {
            let fds = [peer.as_fd()];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            rustix::net::sendmsg(&peer, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty())
        };
        // Before it is accepted, and after.
        assert_eq!(send(), Err(rustix::io::Errno::PERM));
        let _accepted = listener.accept().unwrap();
        assert_eq!(send(), Err(rustix::io::Errno::PERM));
    }

    #[test]
    fn what_was_there_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(listen(&path, 0o600, None).unwrap());
        let listener = listen(&path, 0o666, None).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o7777, 0o666);
        UnixStream::connect(&path).unwrap();
        drop(listener);
    }
}
