//! Network namespaces of containers.

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// Which network namespace a process is in, by the inode that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetNamespace(u64);

impl NetNamespace {
    /// That of process `pid`.
    ///
    /// # Errors
    /// As stat(2): `ENOENT` when it is gone.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self(std::fs::metadata(format!("/proc/{pid}/ns/net"))?.ino()))
    }

    /// That of this thread.
    ///
    /// # Errors
    /// As stat(2).
    pub fn own() -> io::Result<Self> {
        Ok(Self(std::fs::metadata("/proc/thread-self/ns/net")?.ino()))
    }
}

/// Moves this thread, and no other one, into the network namespace of process `pid`. Threads that it starts are there too.
///
/// # Errors
/// As setns(2): `ENOENT` when the process is gone.
pub fn enter(pid: u32) -> io::Result<()> {
    let path = format!("/proc/{pid}/ns/net");
    let namespace: OwnedFd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Runs `work` in the network namespace of process `pid`, on a thread that ends with it.
///
/// # Errors
/// As [`enter`].
pub fn run_in<T: Send + 'static>(
    pid: u32,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let thread = std::thread::Builder::new()
        .name("namespace".into())
        .spawn(move || enter(pid).and_then(|()| work()))?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}
