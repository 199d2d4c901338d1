//! The mount and its connection: opening, the handshake, reading requests, writing answers, and getting rid of it.

use crate::view_server::abi::{FuseOp, FuseRequest, InitReply, InitRequest};
use crate::view_server::handover::Connection;
use crate::view_server::{FS_TYPE, FuseError, MOUNT_SOURCE, abi};
use elbowroom_linux::mountinfo::{MountTable, MountTableBounds};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, UnmountFlags};
use std::ffi::CString;
use std::ops::{Deref, DerefMut};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// Most pages of one READ: what the kernel's default readahead asks for.
const MAX_PAGES: u16 = 32;
/// What is asked of the kernel where it offers it. Of these, only `NO_OPEN_SUPPORT` (Linux 3.16) is indispensable;
/// `EXPLICIT_INVAL_DATA` (5.2) without `AUTO_INVAL_DATA` is what old kernels do anyway.
const WANTED_FLAGS: u64 = abi::ASYNC_READ
    | abi::PARALLEL_DIROPS
    | abi::NO_OPEN_SUPPORT
    | abi::MAX_PAGES
    | abi::EXPLICIT_INVAL_DATA
    | abi::INIT_EXT
    | abi::HAS_RESEND;

/// A connection that is mounted and has had its handshake.
#[derive(Debug)]
pub struct FuseConnection {
    /// `/dev/fuse`.
    pub fuse: OwnedFd,
    /// Whether the kernel can queue unanswered requests again (Linux 6.9).
    pub can_resend: bool,
}

/// Mounts a new file system on `views`, a directory, and answers the kernel's first request. The connection lives while
/// any process has the returned descriptor.
///
/// # Errors
/// [`FuseError::Io`] for the device and the mount, [`FuseError::Handshake`].
pub(crate) fn mount(views: &Path, connection: Connection) -> Result<FuseConnection, FuseError> {
    const DEVICE: &str = "/dev/fuse";
    let fuse = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| FuseError::io("opening (is the fuse module loaded?)", DEVICE)(e.into()))?;
    // Every user may read (the readers are containers' users); the kernel does not check modes, because an
    // invalidation forgets modes too and every open would have to ask for them again.
    let options = format!("fd={},rootmode=40555,user_id=0,group_id=0,allow_other", AsRawFd::as_raw_fd(&fuse));
    let options = CString::new(options).expect("a number has no NUL");
    let access = match connection {
        Connection::Views => MountFlags::RDONLY,
        Connection::Triggers => MountFlags::empty(),
    };
    let flags = access | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    rustix::mount::mount(MOUNT_SOURCE, views, FS_TYPE, flags, options.as_c_str())
        .map_err(|e| FuseError::io("mounting the views on", views)(e.into()))?;
    match handshake(&fuse) {
        Ok(can_resend) => Ok(FuseConnection { fuse, can_resend }),
        Err(error) => {
            // The last descriptor of the connection closes with this frame, which frees readers that wait already.
            unmount(views);
            Err(error)
        }
    }
}

fn handshake(fuse: &OwnedFd) -> Result<bool, FuseError> {
    let mut buffer = RequestBuffer::new()?;
    let refuse = |what: String| FuseError::Handshake { what };
    let (request, _) = receive(fuse, &mut buffer)?.ok_or(FuseError::Disconnected)?;
    let FuseOp::Init(init) = request.op else {
        return Err(refuse(format!("begins with {:?}", request.op)));
    };
    let InitRequest { major, minor, max_readahead, flags } = init;
    let mut out = Vec::new();
    if major != abi::MAJOR || flags & abi::NO_OPEN_SUPPORT == 0 {
        abi::reply_error(&mut out, request.unique, Errno::PROTO);
        send(fuse, &out)?;
        return Err(refuse(format!("version {major}.{minor} is too old (Linux 3.16 and later will do)")));
    }
    let reply = InitReply { max_readahead, flags: flags & WANTED_FLAGS, max_pages: MAX_PAGES };
    abi::reply(&mut out, request.unique, |out| abi::put_init(out, reply));
    send(fuse, &out)?;
    let can_resend = reply.flags & abi::HAS_RESEND != 0;
    tracing::debug!(major, minor, flags, can_resend, "FUSE connection");
    Ok(can_resend)
}

/// Memory that requests are read into, whose pages are there and stay writable.
///
/// The kernel takes a request off its queue and then writes it here. If that needs a page fault, a process that has been killed
/// meanwhile does not take it: the request ends with EIO instead of waiting for the next server (fs/fuse/dev.c,
/// `fuse_dev_do_read`; mm/gup.c, `__get_user_pages`). After a `fork` the first write to every page of a process's own is
/// such a fault; the view server never forks.
pub(super) struct RequestBuffer(NonNull<u8>);

impl RequestBuffer {
    pub(super) fn new() -> Result<Self, FuseError> {
        let failed = |operation| move |source| FuseError::Memory { operation, source };
        // SAFETY: a new mapping at an address of the kernel's choosing disturbs nothing of this process.
        let at = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(std::ptr::null_mut(), abi::READ_BUFFER, access, MapFlags::PRIVATE)
        };
        let at = NonNull::new(at.map_err(failed("mmap"))?)
            .expect("the kernel maps nothing at address zero unasked");
        let mut buffer = Self(at.cast());
        buffer.fill(1);
        Ok(buffer)
    }
}

impl Deref for RequestBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is that long, initialised, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), abi::READ_BUFFER) }
    }
}

impl DerefMut for RequestBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no other code has it.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), abi::READ_BUFFER) }
    }
}

impl Drop for RequestBuffer {
    fn drop(&mut self) {
        // SAFETY: the address and length of `new`, unmapped once; everything handed out borrows from `self`.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), abi::READ_BUFFER) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Reads the next request, waiting for one: its bytes, and what they say. `None`: there was something that no process waits for
/// an answer to, or a signal.
///
/// # Errors
/// [`FuseError::Disconnected`] when there will never be one again; [`FuseError::Io`].
pub fn receive<'a>(
    fuse: &OwnedFd,
    buffer: &'a mut [u8],
) -> Result<Option<(FuseRequest<'a>, &'a [u8])>, FuseError> {
    let got = loop {
        match rustix::io::read(fuse, &mut *buffer) {
            Ok(n) => break n,
            Err(Errno::INTR) => return Ok(None),
            // ENOENT: the reader gave up between our wake-up and our read. EAGAIN: the descriptor is non-blocking; it is
            // not ours to be so, and there is nothing to wait with here.
            Err(Errno::NOENT | Errno::AGAIN) => {}
            Err(Errno::NODEV) => return Err(FuseError::Disconnected),
            Err(e) => return Err(FuseError::io("reading", "/dev/fuse")(e.into())),
        }
    };
    match FuseRequest::decode(&buffer[..got]) {
        Ok(request) => Ok(Some((request, &buffer[..got]))),
        Err(error) => {
            tracing::error!(%error, "a request of the kernel is invalid");
            Ok(None)
        }
    }
}

/// Writes an answer. That no process waits for it any more (the reader was killed, or another server answered it after a
/// resend) is not an error.
///
/// # Errors
/// [`FuseError::Disconnected`], [`FuseError::Io`].
pub fn send(fuse: impl AsFd, message: &[u8]) -> Result<(), FuseError> {
    loop {
        match rustix::io::write(&fuse, message) {
            Ok(_) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::INTR) => {}
            // ENODEV for answers, ENOTCONN for notifications (fs/fuse/dev.c, fs/fuse/inode.c).
            Err(Errno::NODEV | Errno::NOTCONN) => return Err(FuseError::Disconnected),
            Err(e) => return Err(FuseError::io("writing", "/dev/fuse")(e.into())),
        }
    }
}

/// The table of mounts.
pub(crate) const MOUNTINFO: &str = "/proc/self/mountinfo";

/// A line of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    /// Minor device number: the name of a FUSE connection in `/sys/fs/fuse/connections`.
    pub minor: u32,
    /// Where it is mounted.
    pub path: PathBuf,
    /// File system type, with subtype.
    pub fs_type: String,
    /// Mount source.
    pub source: String,
}

impl MountLine {
    /// Whether an agent of this kind mounted it.
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE && self.source == MOUNT_SOURCE
    }
}

/// What is mounted on `path` itself, the topmost last. Asks the mount table and never the path: touching the mount of a
/// dead agent fails, or hangs.
///
/// # Errors
/// [`FuseError::Io`] when the mount table cannot be read.
pub fn mounts_on(path: &Path) -> Result<Vec<MountLine>, FuseError> {
    let file = std::fs::File::open(MOUNTINFO).map_err(FuseError::io("reading", MOUNTINFO))?;
    let table = MountTable::read(file, MountTableBounds::HOST, Path::new(MOUNTINFO))
        .map_err(|error| FuseError::io("reading", MOUNTINFO)(std::io::Error::other(error)))?;
    let lines = table.iter().filter(|mount| mount.mount_point == path);
    Ok(lines
        .map(|mount| MountLine {
            minor: mount.device.minor,
            path: mount.mount_point.clone(),
            fs_type: mount.fstype.clone(),
            source: mount.source.to_string_lossy().into_owned(),
        })
        .collect())
}

/// Removes all layers that an earlier agent left mounted on `views`. Lazily, because a view that is still mounted in a
/// container keeps the file system alive.
///
/// # Errors
/// [`FuseError::Occupied`] when something else is mounted there.
pub fn remove_stale(views: &Path) -> Result<(), FuseError> {
    for line in mounts_on(views)?.iter().rev() {
        if !line.is_ours() {
            return Err(FuseError::Occupied { path: views.to_owned(), fs_type: line.fs_type.clone() });
        }
        tracing::warn!(path = %views.display(), because = "left by an agent that is no more", "unmounting");
        unmount(views);
    }
    Ok(())
}

/// Unmounts the topmost mount on `views`, lazily. Failing is logged and no more: the caller is on its way out.
pub fn unmount(views: &Path) {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    if let Err(error) = rustix::mount::unmount(views.as_os_str().as_bytes(), flags) {
        tracing::warn!(path = %views.display(), %error, "unmounting the views");
    }
}

/// Aborts a FUSE connection: a reader that waits for an answer gets an error now. The way out when no process is left to answer.
/// `minor` is [`MountLine::minor`]. Works where `/sys/fs/fuse/connections` is not mounted.
///
/// # Errors
/// [`FuseError::Io`]; a connection that is gone already is one.
pub fn abort(minor: u32) -> Result<(), FuseError> {
    let failed = |e: Errno| FuseError::io("aborting", format!("/sys/fs/fuse/connections/{minor}"))(e.into());
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
    rustix::mount::fsconfig_create(&context).map_err(failed)?;
    let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        .map_err(failed)?;
    let file =
        rustix::fs::openat(&root, format!("{minor}/abort"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed)?;
    rustix::io::write(&file, b"1").map_err(failed)?;
    Ok(())
}
