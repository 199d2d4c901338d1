//! The wire format of `/dev/fuse` (`include/uapi/linux/fuse.h`), as far as a server of small files needs it, of which a few take a line.
//!
//! Bytes become values one field at a time, and the other way round; nothing is reinterpreted in place. The format is in
//! the machine's own byte order. Decoding never panics: an invalid request is [`FuseOp::Malformed`]. Its process gets an
//! answer too, because without one it would hang for good.

/// Protocol version this module speaks: `FUSE_KERNEL_VERSION`.
pub const MAJOR: u32 = 7;
/// Minor version: `FUSE_KERNEL_MINOR_VERSION` of Linux 6.6, the last one whose structures are used here.
pub const MINOR: u32 = 39;

/// The node the mount itself is: `FUSE_ROOT_ID`.
pub(crate) const ROOT_ID: u64 = 1;
/// Set in the `unique` of a request that some server read before and never answered: `FUSE_UNIQUE_RESEND`.
pub(crate) const UNIQUE_RESEND: u64 = 1 << 63;

/// Size of `struct fuse_in_header`.
pub(crate) const IN_HEADER: usize = 40;
/// Size of `struct fuse_out_header`.
pub const OUT_HEADER: usize = 16;
/// Bytes a reader of the device must offer. The kernel asks for `FUSE_MIN_READ_BUFFER` or [`MAX_WRITE`] and its headers;
/// no request that this server gets is longer.
pub(crate) const READ_BUFFER: usize = 16 << 10;
/// Largest write that the server takes; the kernel wants at least a page.
pub(crate) const MAX_WRITE: u32 = 4096;

/// `FUSE_ASYNC_READ`: several READs of one file may be under way.
pub(crate) const ASYNC_READ: u64 = 1 << 0;
/// `FUSE_PARALLEL_DIROPS`: lookups in one directory need not wait for each other.
pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
/// `FUSE_NO_OPEN_SUPPORT`: `ENOSYS` to OPEN means that there will never be need of one (and keeps the page cache).
pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
/// `FUSE_MAX_PAGES`: [`InitReply::max_pages`] counts.
pub(crate) const MAX_PAGES: u64 = 1 << 22;
/// `FUSE_EXPLICIT_INVAL_DATA`: cached pages go only when the server says so.
pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
/// `FUSE_INIT_EXT`: `flags2` counts.
pub(crate) const INIT_EXT: u64 = 1 << 30;
/// `FUSE_HAS_RESEND`: [`NotifyCode::Resend`] is understood (Linux 6.9).
pub(crate) const HAS_RESEND: u64 = 1 << 39;

/// `FOPEN_DIRECT_IO`: what is read and written of the open file passes no page cache.
pub(crate) const DIRECT_IO: u32 = 1 << 0;

/// What of a file [`FuseOp::SetAttr`] would change that is not its length or its times: `FATTR_MODE`, `FATTR_UID`, `FATTR_GID`.
pub(crate) const SET_OWNER_OR_MODE: u32 = 0b111;

/// `FUSE_READ_LOCKOWNER`, in `read_flags` of `struct fuse_read_in`.
const READ_LOCKOWNER: u32 = 1 << 1;

/// One request, borrowed from the buffer it was read into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseRequest<'a> {
    /// Names the request; the answer carries it back. Bit 63 is [`UNIQUE_RESEND`].
    pub unique: u64,
    /// What it is about.
    pub nodeid: u64,
    /// What it wants.
    pub op: FuseOp<'a>,
}

/// The operations told apart. Everything that would change something is one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseOp<'a> {
    /// `FUSE_INIT`, once per mount.
    Init(InitRequest),
    /// `FUSE_LOOKUP` of a name in a directory.
    Lookup(&'a [u8]),
    /// `FUSE_GETATTR`.
    GetAttr,
    /// `FUSE_READLINK`: where a symbolic link leads.
    ReadLink,
    /// `FUSE_OPEN` of a file, with the flags of open(2).
    Open(u32),
    /// `FUSE_WRITE` of these bytes, to the open file of that handle.
    Write(u64, &'a [u8]),
    /// `FUSE_POLL` of an open file.
    Poll(PollRequest),
    /// `FUSE_SETATTR`: which attributes (`FATTR_*`), of which `open` with `O_TRUNC` names the length.
    SetAttr(u32),
    /// `FUSE_READ` of a window of a file.
    Read(ReadWindow),
    /// `FUSE_OPENDIR`.
    OpenDir,
    /// `FUSE_READDIR`: `offset` is the cookie of the entry before.
    ReadDir(ReadWindow),
    /// `FUSE_RELEASE`, `FUSE_RELEASEDIR`: the open file of that handle is closed.
    Release(u64),
    /// `FUSE_STATFS`.
    StatFs,
    /// `FUSE_DESTROY`, on unmount.
    Destroy,
    /// Wants no answer: `FUSE_FORGET`, `FUSE_BATCH_FORGET`, `FUSE_NOTIFY_REPLY`.
    Silent,
    /// Would change something.
    Mutate,
    /// Known or not, this server does not offer it; the number is the opcode. Of `FUSE_INTERRUPT`, which a container sends at
    /// no cost to any budget, the kernel sends no more then.
    Unsupported(u32),
    /// A known operation whose body does not have the shape it must have.
    Malformed(u32),
}

/// Body of [`FuseOp::Init`]: `struct fuse_init_in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitRequest {
    /// The kernel's major version.
    pub major: u32,
    /// The kernel's minor version.
    pub minor: u32,
    /// Largest readahead, in bytes.
    pub max_readahead: u32,
    /// What the kernel offers: `flags`, with `flags2` above it.
    pub flags: u64,
}

/// Body of [`FuseOp::Read`] and [`FuseOp::ReadDir`]: `struct fuse_read_in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadWindow {
    /// First byte, or directory cookie.
    pub offset: u64,
    /// Bytes wanted at most.
    pub size: u32,
    /// Whether a process reads past the page cache (`O_DIRECT`): no page of the kernel's is locked until the answer comes.
    pub direct: bool,
}

/// Body of [`FuseOp::Poll`]: `struct fuse_poll_in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollRequest {
    /// Of the open file: what [`FuseOp::Open`] was answered with.
    pub handle: u64,
    /// What the kernel calls the open file in [`notify_poll`]; never 0.
    pub waiter: u64,
}

/// A request without its body, for those that are answered by what they are.
pub(crate) fn header_alone(bytes: &[u8]) -> [u8; IN_HEADER] {
    let mut header = *bytes.first_chunk().expect("a request that was decoded has a header");
    header[..4].copy_from_slice(&(IN_HEADER as u32).to_ne_bytes());
    header
}

/// Why a request has no sender to answer: fewer bytes than its header, or than its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a FUSE request of {got} bytes that should have {want}")]
pub struct TruncatedRequest {
    /// Bytes there.
    pub got: usize,
    /// Bytes needed.
    pub want: usize,
}

impl<'a> FuseRequest<'a> {
    /// Reads one request, which is all of `bytes`.
    ///
    /// # Errors
    /// [`TruncatedRequest`] when not even the header is whole. Anything after that is a request, if only a malformed one.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, TruncatedRequest> {
        let short = |want| TruncatedRequest { got: bytes.len(), want };
        let header: &[u8; IN_HEADER] = bytes.first_chunk().ok_or(short(IN_HEADER))?;
        let len = u32_at(header, 0) as usize;
        let opcode = u32_at(header, 4);
        let body = bytes.get(IN_HEADER..len).ok_or(short(len.max(IN_HEADER)))?;
        // Extensions (security context, groups) follow the body of requests that create something; none is served here.
        let op = decode_op(opcode, body).unwrap_or(FuseOp::Malformed(opcode));
        Ok(Self { unique: u64_at(header, 8), nodeid: u64_at(header, 16), op })
    }
}

fn decode_op(opcode: u32, body: &[u8]) -> Option<FuseOp<'_>> {
    Some(match opcode {
        op::LOOKUP => match body.split_last()? {
            (0, name) if !name.is_empty() && !name.contains(&0) && !name.contains(&b'/') => {
                FuseOp::Lookup(name)
            }
            _ => return None,
        },
        op::GETATTR => FuseOp::GetAttr,
        op::READLINK => FuseOp::ReadLink,
        op::OPEN => FuseOp::Open(u32_at(body.first_chunk::<4>()?, 0)),
        op::OPENDIR => FuseOp::OpenDir,
        op::READ => FuseOp::Read(read_window(body)?),
        op::READDIR => FuseOp::ReadDir(read_window(body)?),
        op::RELEASE | op::RELEASEDIR => FuseOp::Release(u64_at(body.first_chunk::<8>()?, 0)),
        op::WRITE => {
            // fh, offset, size, write_flags, lock_owner, flags, padding, then what is written.
            let (head, written) = body.split_at_checked(40)?;
            FuseOp::Write(u64_at(head, 0), written.get(..u32_at(head, 16) as usize)?)
        }
        op::POLL => {
            // fh, kh, flags, events.
            let body: &[u8; 24] = body.first_chunk()?;
            FuseOp::Poll(PollRequest { handle: u64_at(body, 0), waiter: u64_at(body, 8) })
        }
        op::SETATTR => FuseOp::SetAttr(u32_at(body.first_chunk::<4>()?, 0)),
        op::STATFS => FuseOp::StatFs,
        op::INIT => FuseOp::Init(init_request(body)?),
        op::DESTROY => FuseOp::Destroy,
        op::FORGET | op::BATCH_FORGET | op::NOTIFY_REPLY => FuseOp::Silent,
        op::SYMLINK
        | op::MKNOD
        | op::MKDIR
        | op::UNLINK
        | op::RMDIR
        | op::RENAME
        | op::LINK
        | op::SETXATTR
        | op::REMOVEXATTR
        | op::CREATE
        | op::FALLOCATE
        | op::RENAME2
        | op::COPY_FILE_RANGE
        | op::TMPFILE => FuseOp::Mutate,
        other => FuseOp::Unsupported(other),
    })
}

fn read_window(body: &[u8]) -> Option<ReadWindow> {
    // fh, offset, size, read_flags, lock_owner, flags, padding; there is no file handle to look at.
    let body: &[u8; 40] = body.first_chunk()?;
    // The page cache reads for no process: only direct reads name an owner of locks (fs/fuse/file.c, fuse_send_read).
    let direct = u32_at(body, 20) & READ_LOCKOWNER != 0;
    Some(ReadWindow { offset: u64_at(body, 8), size: u32_at(body, 16), direct })
}

fn init_request(body: &[u8]) -> Option<InitRequest> {
    let body16: &[u8; 16] = body.first_chunk()?;
    let low = u32_at(body16, 12);
    // `flags2` came with minor 36; without INIT_EXT the bytes there are zero or not there.
    let high = match body.first_chunk::<20>() {
        Some(body20) if u64::from(low) & INIT_EXT != 0 => u32_at(body20, 16),
        _ => 0,
    };
    Some(InitRequest {
        major: u32_at(body16, 0),
        minor: u32_at(body16, 4),
        max_readahead: u32_at(body16, 8),
        flags: u64::from(high) << 32 | u64::from(low),
    })
}

/// Opcodes of `enum fuse_opcode` that are told apart.
pub mod op {
    #![allow(missing_docs, reason = "the kernel's names are the documentation")]
    pub const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub const CREATE: u32 = 35;
    pub(crate) const DESTROY: u32 = 38;
    pub const POLL: u32 = 40;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
}

/// The kinds of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A plain file.
    File,
}

impl NodeKind {
    /// Its `S_IFMT` bits of a mode; `DT_*` of a directory entry is what is left of them, shifted by 12 (fs/fs_types.c).
    fn format(self) -> u32 {
        match self {
            Self::Dir => 0o040_000,
            Self::Link => 0o120_000,
            Self::File => 0o100_000,
        }
    }
}

/// What a file or directory looks like from outside: `struct fuse_attr`, the fields that differ here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeAttr {
    /// Inode number: the node's id.
    pub ino: u64,
    /// Length in bytes.
    pub size: u64,
    /// What it is.
    pub kind: NodeKind,
    /// Whether it is a file that every user may write to.
    pub writable: bool,
    /// Access, change and modification time, seconds since 1970.
    pub time: u64,
}

/// Answer to [`FuseOp::Init`]: `struct fuse_init_out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitReply {
    /// Largest readahead, in bytes.
    pub max_readahead: u32,
    /// What is taken of what the kernel offered.
    pub flags: u64,
    /// Most pages of one request.
    pub max_pages: u16,
}

/// Seconds that stand for "for ever": 136 years.
pub(crate) const FOREVER: u64 = u32::MAX as u64;

/// Writes an answer of the given body to `out`, replacing what was there.
pub fn reply(out: &mut Vec<u8>, unique: u64, body: impl FnOnce(&mut Vec<u8>)) {
    out.clear();
    out.resize(OUT_HEADER, 0);
    body(out);
    finish_header(out, 0, unique);
}

/// Writes an answer that is an error, given as a positive `errno`.
pub(crate) fn reply_error(out: &mut Vec<u8>, unique: u64, errno: rustix::io::Errno) {
    out.clear();
    out.resize(OUT_HEADER, 0);
    finish_header(out, -errno.raw_os_error(), unique);
}

fn finish_header(out: &mut [u8], error: i32, unique: u64) {
    let len = u32::try_from(out.len()).expect("answers are bounded by the size a request asks for");
    out[0..4].copy_from_slice(&len.to_ne_bytes());
    out[4..8].copy_from_slice(&error.to_ne_bytes());
    out[8..16].copy_from_slice(&unique.to_ne_bytes());
}

/// Appends `struct fuse_init_out`.
pub(crate) fn put_init(out: &mut Vec<u8>, reply: InitReply) {
    put32(out, [MAJOR, MINOR, reply.max_readahead, reply.flags as u32]);
    // max_background and congestion_threshold. The kernel's own is 12 READs for all containers, and one container would
    // keep its neighbours waiting for them.
    put32(out, [u32::from_ne_bytes(pair(u16::MAX, u16::MAX)), MAX_WRITE, 1]);
    put32(out, [u32::from_ne_bytes(pair(reply.max_pages, 0)), (reply.flags >> 32) as u32]);
    put32(out, [0; 7]);
}

/// Appends `struct fuse_entry_out`. `entry_secs` is how long the name may be taken to mean this node, `attr_secs` how
/// long the attributes hold.
pub(crate) fn put_entry(out: &mut Vec<u8>, attr: NodeAttr, entry_secs: u64, attr_secs: u64) {
    put64(out, [attr.ino, 0, entry_secs, attr_secs]);
    put32(out, [0, 0]);
    put_attr_body(out, attr);
}

/// Appends `struct fuse_attr_out`.
pub(crate) fn put_attr(out: &mut Vec<u8>, attr: NodeAttr, attr_secs: u64) {
    put64(out, [attr_secs, 0]);
    put_attr_body(out, attr);
}

fn put_attr_body(out: &mut Vec<u8>, attr: NodeAttr) {
    let (permissions, nlink) = match attr.kind {
        NodeKind::Dir => (0o555, 2),
        NodeKind::Link => (0o777, 1),
        NodeKind::File => (if attr.writable { 0o666 } else { 0o444 }, 1),
    };
    let mode = attr.kind.format() | permissions;
    put64(out, [attr.ino, attr.size, attr.size.div_ceil(512), attr.time, attr.time, attr.time]);
    put32(out, [0, 0, 0, mode, nlink, 0, 0, 0, 4096, 0]);
}

/// Appends `struct fuse_open_out`. No flag of a directory: its entries are asked for each time.
pub(crate) fn put_open(out: &mut Vec<u8>, handle: u64, flags: u32) {
    put64(out, [handle]);
    put32(out, [flags, 0]);
}

/// Appends `struct fuse_write_out`: how many bytes were taken.
pub(crate) fn put_written(out: &mut Vec<u8>, bytes: u32) {
    put32(out, [bytes, 0]);
}

/// Appends `struct fuse_poll_out`: what poll(2) is to say, `POLL*`.
pub(crate) fn put_poll(out: &mut Vec<u8>, events: u32) {
    put32(out, [events, 0]);
}

/// Appends `struct fuse_statfs_out` of an empty file system, as procfs has it.
pub(crate) fn put_statfs(out: &mut Vec<u8>) {
    put64(out, [0; 5]);
    put32(out, [4096, 255, 4096, 0]);
    put32(out, [0; 6]);
}

/// Appends one `struct fuse_dirent` unless `out` would grow past `limit` bytes; false when it did not fit. `next` is the
/// cookie that a later READDIR continues after.
pub(crate) fn put_dirent(
    out: &mut Vec<u8>,
    limit: usize,
    ino: u64,
    next: u64,
    kind: NodeKind,
    name: &[u8],
) -> bool {
    let end = out.len() + (24 + name.len()).next_multiple_of(8);
    if end > limit {
        return false;
    }
    put64(out, [ino, next]);
    put32(out, [name.len() as u32, kind.format() >> 12]);
    out.extend_from_slice(name);
    out.resize(end, 0);
    true
}

/// What a message without a request says to the kernel: `enum fuse_notify_code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotifyCode {
    /// Have those that wait for an open file ask again ([`FuseOp::Poll`]). Does not sleep.
    Poll = 1,
    /// Drop the attributes and the cached pages of a node. The writer sleeps until READs of it that are under way have
    /// been answered, so a process that answers READs must never send this.
    InvalInode = 2,
    /// Forget a name in a directory.
    InvalEntry = 3,
    /// Queue again every request that was read from the device and not answered. Does not sleep.
    Resend = 7,
}

/// Writes to `out` the message that wakes those that wait for the open file that the kernel calls `waiter`.
pub(crate) fn notify_poll(out: &mut Vec<u8>, waiter: u64) {
    notify(out, NotifyCode::Poll, |out| put64(out, [waiter]));
}

/// Writes to `out` the message that drops all that is cached of `nodeid`.
pub(crate) fn inval_inode(out: &mut Vec<u8>, nodeid: u64) {
    notify(out, NotifyCode::InvalInode, |out| put64(out, [nodeid, 0, 0]));
}

/// Writes to `out` the message that drops `name` from the directory `parent`.
pub(crate) fn inval_entry(out: &mut Vec<u8>, parent: u64, name: &[u8]) {
    notify(out, NotifyCode::InvalEntry, |out| {
        put64(out, [parent]);
        put32(out, [name.len() as u32, 0]);
        out.extend_from_slice(name);
        out.push(0);
    });
}

/// Writes to `out` the message that queues unanswered requests again.
pub fn resend(out: &mut Vec<u8>) {
    notify(out, NotifyCode::Resend, |_| ());
}

fn notify(out: &mut Vec<u8>, code: NotifyCode, body: impl FnOnce(&mut Vec<u8>)) {
    out.clear();
    out.resize(OUT_HEADER, 0);
    body(out);
    finish_header(out, code as i32, 0);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().expect("callers pass arrays longer than the field"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*bytes[at..].first_chunk().expect("callers pass arrays longer than the field"))
}

fn put32<const N: usize>(out: &mut Vec<u8>, values: [u32; N]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_ne_bytes()));
}

fn put64<const N: usize>(out: &mut Vec<u8>, values: [u64; N]) {
    values.iter().for_each(|v| out.extend_from_slice(&v.to_ne_bytes()));
}

fn pair(first: u16, second: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (first.to_ne_bytes(), second.to_ne_bytes());
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        put32(&mut bytes, [(IN_HEADER + body.len()) as u32, opcode]);
        put64(&mut bytes, [77 | UNIQUE_RESEND, 5]);
        put32(&mut bytes, [0; 4]);
        bytes.extend_from_slice(body);
        bytes
    }

    fn op_of(opcode: u32, body: &[u8]) -> String {
        format!("{:?}", FuseRequest::decode(&request(opcode, body)).unwrap().op)
    }

    fn read_body(offset: u64, size: u32) -> Vec<u8> {
        let mut body = Vec::new();
        put64(&mut body, [0, offset]);
        put32(&mut body, [size, 0]);
        put64(&mut body, [0, 0]);
        body
    }

    #[test]
    fn requests_decode_to_what_the_kernel_meant() {
        let read = request(op::READ, &read_body(4096, 131_072));
        assert_eq!(
            FuseRequest::decode(&read).unwrap(),
            FuseRequest {
                unique: 77 | UNIQUE_RESEND,
                nodeid: 5,
                op: FuseOp::Read(ReadWindow { offset: 4096, size: 131_072, direct: false })
            }
        );
        let mut direct = read_body(0, 512);
        direct[20..24].copy_from_slice(&READ_LOCKOWNER.to_ne_bytes());
        let window = ReadWindow { offset: 0, size: 512, direct: true };
        assert_eq!(op_of(op::READ, &direct), format!("{:?}", FuseOp::Read(window)));
        assert_eq!(op_of(36, &[0; 8]), "Unsupported(36)", "FUSE_INTERRUPT");
        assert_eq!(op_of(op::LOOKUP, b"meminfo\0"), format!("{:?}", FuseOp::Lookup(b"meminfo")));
        assert_eq!(op_of(op::GETATTR, &[0; 16]), "GetAttr");
        assert_eq!(op_of(op::FORGET, &[0; 8]), "Silent");
        assert_eq!(op_of(op::CREATE, &[0; 40]), "Mutate");
        assert_eq!(op_of(op::SETATTR, &[8; 88]), format!("{:?}", FuseOp::SetAttr(0x0808_0808)));
        let mut write = Vec::new();
        put64(&mut write, [9, 0]);
        put32(&mut write, [5, 0]);
        put64(&mut write, [0, 0]);
        write.extend_from_slice(b"some more");
        assert_eq!(op_of(op::WRITE, &write), format!("{:?}", FuseOp::Write(9, b"some ")));
        let poll = FuseOp::Poll(PollRequest { handle: 9, waiter: 3 });
        let mut body = Vec::new();
        put64(&mut body, [9, 3, 0]);
        assert_eq!(op_of(op::POLL, &body), format!("{poll:?}"));
        assert_eq!(op_of(op::RELEASE, &body), format!("{:?}", FuseOp::Release(9)));
        assert_eq!(op_of(25, &[]), "Unsupported(25)");
        assert_eq!(op_of(4_000_000, &[]), "Unsupported(4000000)");
    }

    #[test]
    fn a_body_of_the_wrong_shape_still_has_a_sender_to_answer() {
        for (opcode, body) in [
            (op::READ, &[0; 39][..]),
            (op::READDIR, &[]),
            (op::WRITE, &[0; 39]),
            (op::WRITE, &[1; 40]),
            (op::POLL, &[0; 23]),
            (op::OPEN, &[0; 3]),
            (op::RELEASE, &[0; 7]),
            (op::SETATTR, &[0; 3]),
            (op::INIT, &[0; 15]),
            (op::LOOKUP, b""),
            (op::LOOKUP, b"\0"),
            (op::LOOKUP, b"no end"),
            (op::LOOKUP, b"a/b\0"),
            (op::LOOKUP, b"a\0b\0"),
        ] {
            assert_eq!(op_of(opcode, body), format!("Malformed({opcode})"), "{body:?}");
        }
    }

    #[test]
    fn less_than_a_header_is_no_request() {
        let whole = request(op::LOOKUP, b"a\0");
        for cut in 0..whole.len() {
            assert!(FuseRequest::decode(&whole[..cut]).is_err(), "{cut}");
        }
        let mut lies = whole.clone();
        lies[0..4].copy_from_slice(&3u32.to_ne_bytes());
        assert!(FuseRequest::decode(&lies).is_err());
    }

    #[test]
    fn flags2_counts_only_with_its_announcement() {
        let body = |flags: u64| {
            let mut body = Vec::new();
            put32(&mut body, [7, 45, 131_072, flags as u32, (flags >> 32) as u32]);
            put32(&mut body, [0; 11]);
            body
        };
        let decoded = |flags| match FuseRequest::decode(&request(op::INIT, &body(flags))).unwrap().op {
            FuseOp::Init(init) => init.flags,
            other => panic!("{other:?}"),
        };
        assert_eq!(decoded(HAS_RESEND | INIT_EXT), HAS_RESEND | INIT_EXT);
        assert_eq!(decoded(HAS_RESEND), 0);
    }

    #[test]
    fn answers_have_the_kernels_sizes() {
        let size_of = |body: &dyn Fn(&mut Vec<u8>)| {
            let mut out = vec![1, 2, 3];
            reply(&mut out, 9, |out| body(out));
            assert_eq!(u32_at(&out, 0) as usize, out.len());
            assert_eq!(u64_at(&out, 8), 9);
            out.len() - OUT_HEADER
        };
        let attr = NodeAttr { ino: 3, size: 100, kind: NodeKind::File, writable: false, time: 0 };
        assert_eq!(size_of(&|out| put_entry(out, attr, FOREVER, FOREVER)), 128);
        assert_eq!(size_of(&|out| put_attr(out, attr, FOREVER)), 104);
        assert_eq!(
            size_of(&|out| put_init(out, InitReply { max_readahead: 0, flags: 0, max_pages: 32 })),
            64
        );
        assert_eq!(size_of(&|out| put_open(out, 1, DIRECT_IO)), 16);
        assert_eq!(size_of(&|out| put_written(out, 5)), 8);
        assert_eq!(size_of(&|out| put_poll(out, 1)), 8);
        assert_eq!(size_of(&put_statfs), 80);
    }

    #[test]
    fn directory_entries_stop_at_the_window() {
        let mut out = Vec::new();
        assert!(put_dirent(&mut out, 64, 2, 1, NodeKind::Dir, b"proc"));
        assert_eq!(out.len(), 32);
        assert!(put_dirent(&mut out, 64, 3, 2, NodeKind::Link, b"12345678"));
        assert_eq!(out.len(), 64);
        assert_eq!([u32_at(&out, 20), u32_at(&out, 52)], [libc::DT_DIR, libc::DT_LNK].map(u32::from));
        assert!(!put_dirent(&mut out, 64, 4, 3, NodeKind::File, b"x"));
        assert_eq!(out.len(), 64);
    }

    #[test]
    fn errors_and_notifications_carry_their_code() {
        let mut out = Vec::new();
        reply_error(&mut out, 5, rustix::io::Errno::NOENT);
        assert_eq!((out.len(), u32_at(&out, 4) as i32, u64_at(&out, 8)), (16, -2, 5));
        inval_inode(&mut out, 9);
        assert_eq!((out.len(), u32_at(&out, 4), u64_at(&out, 8), u64_at(&out, 16)), (40, 2, 0, 9));
        inval_entry(&mut out, 1, b"abc");
        assert_eq!((out.len(), u32_at(&out, 4), out.last()), (36, 3, Some(&0)));
        resend(&mut out);
        assert_eq!((out.len(), u32_at(&out, 4)), (16, 7));
        notify_poll(&mut out, 9);
        assert_eq!((out.len(), u32_at(&out, 4), u64_at(&out, 16)), (24, 1, 9));
    }
}
