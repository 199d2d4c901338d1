//! A request becomes an answer, from a slot and the host's own text.
//!
//! Every request gets an answer, also one that is malformed, unknown or makes a page panic: a request without an answer
//! is a process in a container that hangs for good. Everything that would change something is refused with `EROFS`, but for what
//! arms a PSI trigger ([`crate::view_server::triggers`]).

use crate::view_server::abi;
use crate::view_server::abi::{FOREVER, FuseOp, FuseRequest, NodeAttr, NodeKind, ReadWindow};
use crate::view_server::host_files::HostFiles;
use crate::view_server::rendered::{PageKey, RenderedPage, RenderedPages};
use crate::view_server::slots::{SlotHandle, SlotSnapshot, Slots};
use crate::view_server::triggers::Triggers;
use elbowroom_types::unit::Micros;
use elbowroom_view::pages::view_node::ViewNode;
use elbowroom_view::pages::{render, tree};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bits of a node id below the serial.
const NODE_BITS: u32 = 24;
const NODE_MASK: u64 = (1 << NODE_BITS) - 1;
/// How long the name of something that comes and goes (containers, CPUs) may be taken to mean the same thing, seconds.
const NAME_TTL_SECS: u64 = 1;

/// One thread's worth of server. Public for tests and fuzzing: [`FuseServer::answer`] needs no mount.
pub struct FuseServer<'a> {
    slots: &'a Slots,
    host: HostFiles,
    snapshot: SlotSnapshot,
    rendered: RenderedPages,
    /// Where requests of the connection are answered whose files take triggers.
    triggers: Option<&'a Triggers>,
}

/// What a file or directory is, after its id was taken apart.
#[derive(Clone, Copy)]
enum NodeTarget {
    Mount,
    View(SlotHandle, ViewNode),
}

impl<'a> FuseServer<'a> {
    /// A server of these slots whose pages quote the host files that `host` reads.
    pub fn new(slots: &'a Slots, host: HostFiles) -> Self {
        let (snapshot, rendered) = (SlotSnapshot::default(), RenderedPages::default());
        Self { slots, host, snapshot, rendered, triggers: None }
    }

    /// From now on requests are those of the connection whose files take triggers, or, with `None`, of the other one.
    pub(super) fn set_triggers(&mut self, triggers: Option<&'a Triggers>) {
        self.triggers = triggers;
    }

    /// Writes the answer to a request to `out`. False when the kernel wants none.
    pub fn answer(&mut self, request: &FuseRequest<'_>, out: &mut Vec<u8>) -> bool {
        if request.op == FuseOp::Silent {
            return false;
        }
        let answered = answer_or_error(out, request.unique, |out| self.write_reply(request, out));
        if answered == Err(Errno::IO) {
            self.slots.count_render_failure();
            let node = request.nodeid & NODE_MASK;
            tracing::error!(node, op = ?request.op, because = "its page panicked, which is a defect", "a reader gets EIO");
        }
        true
    }

    fn write_reply(&mut self, request: &FuseRequest<'_>, out: &mut Vec<u8>) -> Result<(), Errno> {
        match request.op {
            FuseOp::Lookup(name) => self.lookup(request.nodeid, name, out),
            FuseOp::GetAttr => {
                let attr = self.attr(request.nodeid, self.resolve_node(request.nodeid)?)?;
                abi::put_attr(out, attr, FOREVER);
                Ok(())
            }
            FuseOp::ReadLink => {
                let NodeTarget::View(_, node) = self.resolve_node(request.nodeid)? else {
                    return Err(Errno::INVAL);
                };
                out.extend_from_slice(node.link_target().ok_or(Errno::INVAL)?.as_bytes());
                Ok(())
            }
            FuseOp::Read(window) => self.read(request.nodeid, window, out),
            // A handle would be state. Directories are answered, because ENOSYS there means that their entries may be
            // cached, and containers come and go.
            FuseOp::OpenDir => {
                self.resolve_node(request.nodeid)?;
                abi::put_open(out, 0, 0);
                Ok(())
            }
            FuseOp::ReadDir(window) => self.read_dir(request.nodeid, window, out),
            FuseOp::StatFs => {
                abi::put_statfs(out);
                Ok(())
            }
            FuseOp::Open(_)
            | FuseOp::Write(..)
            | FuseOp::Poll(_)
            | FuseOp::SetAttr(_)
            | FuseOp::Release(_) => match self.triggers {
                Some(triggers) => self.answer_of_trigger(triggers, request, out),
                None => refuse_trigger(&request.op),
            },
            FuseOp::Destroy | FuseOp::Silent => Ok(()),
            FuseOp::Mutate => Err(Errno::ROFS),
            FuseOp::Unsupported(_) => Err(Errno::NOSYS),
            // The handshake was before our time.
            FuseOp::Init(_) => Err(Errno::PROTO),
            FuseOp::Malformed(_) => Err(Errno::INVAL),
        }
    }

    /// Answers what is about open files of the connection whose files take triggers.
    fn answer_of_trigger(
        &mut self,
        triggers: &Triggers,
        request: &FuseRequest<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        let handle = request.unique & !abi::UNIQUE_RESEND;
        let target = self.resolve_node(request.nodeid)?;
        if matches!(target, NodeTarget::View(_, ViewNode::Uptime)) {
            return answer_of_clock(&request.op, handle, out);
        }
        match request.op {
            FuseOp::Open(flags) => {
                if let NodeTarget::View(slot, _) = target {
                    self.snapshot(slot)?;
                }
                // A container without pressure of its own is shown the host's, and its programs may arm no trigger on that.
                if flags & libc::O_ACCMODE as u32 != 0 && self.snapshot.facts.has_pressure == 0 {
                    return Err(Errno::ROFS);
                }
                // Of what is written nothing may be left in the page cache; so nothing is cached.
                abi::put_open(out, handle, abi::DIRECT_IO);
            }
            FuseOp::Write(open, text) => {
                let NodeTarget::View(slot, node) = target else {
                    return Err(Errno::ROFS);
                };
                let again = handle != request.unique;
                triggers.arm(self.slots, (slot, node), (open, again), text)?;
                abi::put_written(out, text.len() as u32);
            }
            FuseOp::Poll(poll) => abi::put_poll(out, triggers.poll(self.slots, poll)),
            // As procfs, which has no length to cut off.
            FuseOp::SetAttr(which) if which & abi::SET_OWNER_OR_MODE != 0 => return Err(Errno::PERM),
            FuseOp::SetAttr(_) => {
                let attr = self.attr(request.nodeid, target)?;
                abi::put_attr(out, attr, FOREVER);
            }
            FuseOp::Release(open) => triggers.release(self.slots, open),
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    fn resolve_node(&self, nodeid: u64) -> Result<NodeTarget, Errno> {
        if nodeid == abi::ROOT_ID {
            return Ok(NodeTarget::Mount);
        }
        let slot = serial_of(nodeid).and_then(|serial| self.slots.get(serial)).ok_or(Errno::STALE)?;
        let node = ViewNode::from_bits((nodeid & NODE_MASK) as u32).ok_or(Errno::STALE)?;
        Ok(NodeTarget::View(slot, node))
    }

    fn lookup(&mut self, parent: u64, name: &[u8], out: &mut Vec<u8>) -> Result<(), Errno> {
        let (slot, node) = match self.resolve_node(parent)? {
            NodeTarget::Mount => (self.slots.find(name).ok_or(Errno::NOENT)?, ViewNode::ROOT),
            NodeTarget::View(slot, dir) => {
                self.snapshot(slot)?;
                let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
                let node = tree::lookup(dir, name, &self.snapshot.facts).ok_or(Errno::NOENT)?;
                if !self.has(node) {
                    return Err(Errno::NOENT);
                }
                (slot, node)
            }
        };
        let attr = self.attr(nodeid(slot, node), NodeTarget::View(slot, node))?;
        // Containers, CPUs and NUMA nodes come and go; other names mean the same for as long as their directory does.
        let name_secs = if node == ViewNode::Root || node.may_vanish() { NAME_TTL_SECS } else { FOREVER };
        abi::put_entry(out, attr, name_secs, FOREVER);
        Ok(())
    }

    fn attr(&mut self, ino: u64, target: NodeTarget) -> Result<NodeAttr, Errno> {
        let (kind, size) = match target {
            NodeTarget::Mount => (NodeKind::Dir, 0),
            NodeTarget::View(slot, node) => match (kind_of(node), node.link_target()) {
                (NodeKind::File, _) => (NodeKind::File, self.size(slot, node)?),
                (kind, target) => (kind, target.map_or(0, |target| target.len() as u32)),
            },
        };
        // As procfs does: the time of asking.
        let time = clock_gettime(ClockId::Realtime).tv_sec as u64;
        let writable = matches!(target, NodeTarget::View(_, node) if self.takes_triggers(node));
        Ok(NodeAttr { ino, size: size.into(), kind, writable, time })
    }

    /// A page's size, as measured when its container was added. Pages without a bit are as long as they always were.
    fn size(&mut self, slot: SlotHandle, node: ViewNode) -> Result<u32, Errno> {
        match node.page_bit() {
            Some(bit) => self.slots.size(slot, bit).ok_or(Errno::STALE),
            None => {
                if node.is_fixed_file() {
                    self.slots.mark_read(slot, tree::FIXED_FILES_BIT);
                }
                self.snapshot(slot)?;
                let host = self.host_text(node);
                Ok(render::size(node, &self.snapshot.facts, &host))
            }
        }
    }

    fn read(&mut self, nodeid: u64, window: ReadWindow, out: &mut Vec<u8>) -> Result<(), Errno> {
        let (slot, node) = match self.resolve_node(nodeid)? {
            NodeTarget::View(slot, node) if kind_of(node) == NodeKind::File => (slot, node),
            _ => return Err(Errno::ISDIR),
        };
        // The bit before the numbers: see `Slots::mark_read`.
        if let Some(bit) = node.page_bit().or_else(|| node.is_fixed_file().then_some(tree::FIXED_FILES_BIT)) {
            self.slots.mark_read(slot, bit);
        }
        let generation = self.slots.generation(slot).ok_or(Errno::STALE)?;
        // The size of a page without a bit stays as it is.
        let size = node.page_bit().map(|bit| self.slots.size(slot, bit).ok_or(Errno::STALE)).transpose()?;
        let now = clock_gettime(ClockId::Boottime);
        let now = Micros(now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000);
        let key = PageKey { account: self.slots.account(slot), slot, node };
        // A clock is never late: a process that began a moment ago would begin in the future, and `ps` shows it as a million years old. A
        // reader that goes on in the middle, as shells do byte by byte, goes on in what it began.
        let may_be_kept = node != ViewNode::Uptime || window.offset > 0;
        let kept = may_be_kept.then(|| self.rendered.get(key, generation, now)).flatten();
        if let Some(text) = kept.filter(|text| size.is_none_or(|size| size as usize == text.len())) {
            out.extend_from_slice(in_window(text, window));
            return Ok(());
        }
        let size = size.map_or_else(|| self.size(slot, node), Ok)?;
        self.snapshot(slot)?;
        let host = self.host_text(node);
        let SlotSnapshot { generation, facts, times } = &self.snapshot;
        let text = render::render(node, facts, times, &host, now, size);
        out.extend_from_slice(in_window(&text, window));
        let page = RenderedPage { generation: *generation, rendered_at: now, text };
        self.rendered.insert(key, page);
        Ok(())
    }

    fn read_dir(&mut self, dir: u64, window: ReadWindow, out: &mut Vec<u8>) -> Result<(), Errno> {
        let limit = out.len() + (window.size as usize).min(128 << 10);
        // Cookies: 1 and 2 for the two that every directory has, then three more than an entry's place.
        let skip = usize::try_from(window.offset).unwrap_or(usize::MAX);
        for (cookie, name) in [(1, &b"."[..]), (2, b"..")].into_iter().skip(skip) {
            if !abi::put_dirent(out, limit, dir, cookie, NodeKind::Dir, name) {
                return Ok(());
            }
        }
        let first = skip.saturating_sub(2);
        match self.resolve_node(dir)? {
            NodeTarget::Mount => {
                for (place, slot) in self.slots.iter_from(first) {
                    let Some(name) = self.slots.name(slot) else { continue };
                    let id = nodeid(slot, ViewNode::ROOT);
                    if !abi::put_dirent(out, limit, id, place as u64 + 3, NodeKind::Dir, name.as_bytes()) {
                        break;
                    }
                }
            }
            NodeTarget::View(slot, node) if node.is_dir() => {
                self.snapshot(slot)?;
                let children = tree::children(node, &self.snapshot.facts);
                for (place, (name, child)) in children.iter().enumerate().skip(first) {
                    if !self.has(*child) {
                        continue;
                    }
                    let id = nodeid(slot, *child);
                    let cookie = place as u64 + 3;
                    if !abi::put_dirent(out, limit, id, cookie, kind_of(*child), name.as_bytes()) {
                        break;
                    }
                }
            }
            NodeTarget::View(..) => return Err(Errno::NOTDIR),
        }
        Ok(())
    }

    fn snapshot(&mut self, slot: SlotHandle) -> Result<(), Errno> {
        self.slots.snapshot(slot, &mut self.snapshot).ok_or(Errno::STALE)
    }

    /// Whether a file is there. Files that this host lacks, its containers lack too. The connection for triggers has only files of which
    /// nothing may be cached.
    fn has(&self, node: ViewNode) -> bool {
        let is_served = self.triggers.is_none()
            || matches!(node, ViewNode::Proc | ViewNode::Pressure | ViewNode::Uptime)
            || self.takes_triggers(node);
        is_served && tree::host_path(node).is_none_or(|path| self.host.exists(&path))
    }

    fn takes_triggers(&self, node: ViewNode) -> bool {
        self.triggers.is_some() && node.pressure_index().is_some()
    }

    /// The host's text for a page; empty where the page needs none, or where the host file went away.
    fn host_text(&mut self, node: ViewNode) -> String {
        // Pages of single CPUs are many and read once: they do not stay open.
        let keep = !matches!(node, ViewNode::CpuFile(..));
        tree::host_path(node).and_then(|path| self.host.read(&path, keep).ok()).unwrap_or_default()
    }
}

/// What the connection of views says to what it has no files for.
fn refuse_trigger(op: &FuseOp<'_>) -> Result<(), Errno> {
    match op {
        FuseOp::Release(_) => Ok(()),
        FuseOp::Write(..) | FuseOp::SetAttr(_) => Err(Errno::ROFS),
        // Open: there is no need of it (FUSE_NO_OPEN_SUPPORT), and the kernel will not ask again.
        _ => Err(Errno::NOSYS),
    }
}

/// What the connection for triggers says of `/proc/uptime`, which is there because nothing of it may be cached.
fn answer_of_clock(op: &FuseOp<'_>, handle: u64, out: &mut Vec<u8>) -> Result<(), Errno> {
    match op {
        FuseOp::Open(flags) if flags & libc::O_ACCMODE as u32 == 0 => {
            abi::put_open(out, handle, abi::DIRECT_IO)
        }
        FuseOp::Poll(_) => abi::put_poll(out, (libc::POLLIN | libc::POLLRDNORM) as u32),
        FuseOp::Release(_) => {}
        _ => return Err(Errno::ROFS),
    }
    Ok(())
}

/// The part of a page that was asked for.
fn in_window(page: &[u8], window: ReadWindow) -> &[u8] {
    let start = usize::try_from(window.offset).unwrap_or(usize::MAX).min(page.len());
    let end = start.saturating_add(window.size as usize).min(page.len());
    &page[start..end]
}

fn kind_of(node: ViewNode) -> NodeKind {
    match node {
        _ if node.is_dir() => NodeKind::Dir,
        _ if node.link_target().is_some() => NodeKind::Link,
        _ => NodeKind::File,
    }
}

/// Writes an answer, or an error instead of it: also when making the answer panics, which is [`Errno::IO`].
fn answer_or_error(
    out: &mut Vec<u8>,
    unique: u64,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut result = Err(Errno::IO);
    // Nothing of what a panic leaves half done is used again: the answer is replaced, the snapshot is taken anew.
    let _ = catch_unwind(AssertUnwindSafe(|| abi::reply(out, unique, |out| result = body(out))));
    if let Err(errno) = result {
        abi::reply_error(out, unique, errno);
    }
    result
}

/// The id of a container's node: the same in every process, now and after any restart.
pub(super) fn nodeid(slot: SlotHandle, node: ViewNode) -> u64 {
    slot.serial << NODE_BITS | u64::from(node.to_bits())
}

/// The serial of the container that a node belongs to; `None` for the mount itself.
pub(super) fn serial_of(nodeid: u64) -> Option<u64> {
    Some(nodeid >> NODE_BITS).filter(|serial| *serial != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view_server::abi::PollRequest;
    use elbowroom_view::pages::snapshot::ContainerSnapshot;

    fn errno_of(out: &[u8]) -> i32 {
        i32::from_ne_bytes(*out[4..].first_chunk().unwrap())
    }

    /// What a server of one container, `c1`, whose host has no files, answers: errno, or the length of the body.
    fn ask(nodeid: impl Fn(SlotHandle) -> u64, op: FuseOp<'_>) -> Result<usize, i32> {
        let slots = Slots::create(4, 1).unwrap();
        let slot = slots.add("c1", (0, 0), &[24; 64], &ContainerSnapshot::EMPTY, &[]).unwrap();
        let empty = tempfile::tempdir().unwrap();
        let mut out = Vec::new();
        let request = FuseRequest { unique: 7, nodeid: nodeid(slot), op };
        assert!(FuseServer::new(&slots, HostFiles::new(empty.path())).answer(&request, &mut out));
        match errno_of(&out) {
            0 => Ok(out.len() - abi::OUT_HEADER),
            errno => Err(-errno),
        }
    }

    #[test]
    fn a_page_that_panics_is_an_error_and_not_the_end() {
        let mut out = Vec::new();
        let answered = answer_or_error(&mut out, 7, |out| {
            out.extend_from_slice(b"half a page");
            panic!("on purpose");
        });
        assert_eq!((answered, out.len(), errno_of(&out)), (Err(Errno::IO), 16, -Errno::IO.raw_os_error()));
    }

    #[test]
    fn every_kind_of_request_gets_its_answer() {
        let window = ReadWindow { offset: 0, size: 4096, direct: false };
        let root = |_: SlotHandle| abi::ROOT_ID;
        let view = |slot| nodeid(slot, ViewNode::ROOT);
        let page = |slot| nodeid(slot, ViewNode::CpuOnline);
        assert_eq!(ask(root, FuseOp::GetAttr), Ok(104));
        assert_eq!(ask(root, FuseOp::Lookup(b"c1")), Ok(128));
        assert_eq!(ask(root, FuseOp::Lookup(b"c2")), Err(libc::ENOENT));
        assert_eq!(ask(view, FuseOp::Lookup(b"proc")), Ok(128));
        assert_eq!(ask(view, FuseOp::Lookup(b"\xff")), Err(libc::ENOENT));
        assert_eq!(ask(page, FuseOp::Read(window)), Ok(24));
        assert_eq!(ask(page, FuseOp::Read(ReadWindow { offset: 20, size: 4096, direct: false })), Ok(4));
        assert_eq!(
            ask(page, FuseOp::Read(ReadWindow { offset: u64::MAX, size: u32::MAX, direct: true })),
            Ok(0)
        );
        assert_eq!(ask(view, FuseOp::Read(window)), Err(libc::EISDIR));
        assert_eq!(ask(page, FuseOp::ReadDir(window)), Err(libc::ENOTDIR));
        let link = |slot| nodeid(slot, ViewNode::CpuOfNode(0, 12));
        assert_eq!(ask(link, FuseOp::ReadLink), Ok("../../cpu/cpu12".len()));
        assert_eq!(ask(page, FuseOp::ReadLink), Err(libc::EINVAL));
        assert_eq!(ask(view, FuseOp::OpenDir), Ok(16));
        assert_eq!(ask(page, FuseOp::Open(0)), Err(libc::ENOSYS));
        for op in [FuseOp::Mutate, FuseOp::Write(0, b"some 100000 2000000\n"), FuseOp::SetAttr(8)] {
            assert_eq!(ask(page, op), Err(libc::EROFS));
        }
        assert_eq!(ask(page, FuseOp::Poll(PollRequest { handle: 0, waiter: 1 })), Err(libc::ENOSYS));
        assert_eq!(ask(page, FuseOp::Release(0)), Ok(0));
        assert_eq!(ask(page, FuseOp::Malformed(15)), Err(libc::EINVAL));
        assert_eq!(ask(page, FuseOp::Unsupported(99)), Err(libc::ENOSYS));
        assert_eq!(ask(|_| 5 << NODE_BITS | 1, FuseOp::GetAttr), Err(libc::ESTALE));
        assert_eq!(ask(|slot| nodeid(slot, ViewNode::ROOT) | NODE_MASK, FuseOp::GetAttr), Err(libc::ESTALE));
    }

    #[test]
    fn what_the_host_lacks_is_not_there() {
        let proc = |slot| nodeid(slot, ViewNode::Proc);
        assert_eq!(ask(proc, FuseOp::Lookup(b"meminfo")), Err(libc::ENOENT));
        assert_eq!(ask(proc, FuseOp::Lookup(b"uptime")), Ok(128));
    }

    #[test]
    fn files_that_take_triggers_are_opened_written_and_polled() {
        let slots = Slots::create(4, 1).unwrap();
        let facts = ContainerSnapshot { has_pressure: 1, ..ContainerSnapshot::EMPTY };
        let slot = slots.add("own", (0, 0), &[24; 64], &facts, &[]).unwrap();
        let without = slots.add("hosts", (0, 0), &[24; 64], &ContainerSnapshot::EMPTY, &[]).unwrap();
        let host = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(host.path().join("proc/pressure")).unwrap();
        std::fs::write(host.path().join("proc/pressure/memory"), "").unwrap();
        let triggers = Triggers::new(&slots);
        let mut server = FuseServer::new(&slots, HostFiles::new(host.path()));
        server.set_triggers(Some(&triggers));
        let mut ask = |unique, nodeid, op| {
            let mut out = Vec::new();
            server.answer(&FuseRequest { unique, nodeid, op }, &mut out);
            match errno_of(&out) {
                0 => Ok(out[abi::OUT_HEADER..].to_vec()),
                errno => Err(-errno),
            }
        };
        let word = |body: &[u8], at: usize| u32::from_ne_bytes(*body[at..].first_chunk().unwrap());
        let dir = nodeid(slot, ViewNode::Pressure);
        let file = nodeid(slot, ViewNode::PressureMemory);
        let entry = ask(1, dir, FuseOp::Lookup(b"memory")).unwrap();
        assert_eq!(word(&entry, 40 + 60) & 0o777, 0o666);
        assert_eq!(ask(2, dir, FuseOp::Lookup(b"cpu")), Err(libc::ENOENT), "the host has none");
        assert_eq!(ask(3, nodeid(slot, ViewNode::Proc), FuseOp::Lookup(b"stat")), Err(libc::ENOENT));
        let hosts = nodeid(without, ViewNode::PressureMemory);
        assert_eq!(ask(4, hosts, FuseOp::Open(libc::O_RDWR as u32)), Err(libc::EROFS));
        assert!(ask(5, hosts, FuseOp::Open(libc::O_RDONLY as u32)).is_ok());
        let opened = ask(7, file, FuseOp::Open(libc::O_RDWR as u32)).unwrap();
        assert_eq!((word(&opened, 0), word(&opened, 8)), (7, abi::DIRECT_IO));
        // Asked for again, it is the same open file.
        let again = ask(7 | abi::UNIQUE_RESEND, file, FuseOp::Open(libc::O_RDWR as u32));
        assert_eq!(again.unwrap(), opened);
        let line = b"some 100000 2000000\n";
        assert_eq!(ask(8, file, FuseOp::Write(7, b"some\n")), Err(libc::EINVAL));
        assert_eq!(word(&ask(9, file, FuseOp::Write(7, line)).unwrap(), 0), 20);
        assert_eq!(ask(10, file, FuseOp::Write(7, line)), Err(libc::EBUSY));
        assert!(ask(9 | abi::UNIQUE_RESEND, file, FuseOp::Write(7, line)).is_ok());
        assert_eq!(ask(11, abi::ROOT_ID, FuseOp::Write(7, line)), Err(libc::EROFS));
        let poll = |handle| FuseOp::Poll(PollRequest { handle, waiter: 1 });
        assert_eq!(word(&ask(12, file, poll(7)).unwrap(), 0) & 0xff, 0x45, "it can be read and written");
        assert_eq!(word(&ask(13, file, poll(8)).unwrap(), 0) & 0xff, 0x4f, "an error, for it has none");
        // `open` with `O_TRUNC`, and chmod(2).
        assert_eq!(ask(14, file, FuseOp::SetAttr(8 | 1 << 6)).map(|body| body.len()), Ok(104));
        assert_eq!(ask(15, file, FuseOp::SetAttr(1)), Err(libc::EPERM));
        assert_eq!(ask(16, file, FuseOp::Mutate), Err(libc::EROFS));
        assert_eq!(ask(17, file, FuseOp::Release(7)), Ok(Vec::new()));
        assert_eq!(word(&ask(18, file, poll(7)).unwrap(), 0) & 0xff, 0x4f);
    }

    #[test]
    fn a_clock_is_never_cached_and_cannot_be_written() {
        let slots = Slots::create(4, 1).unwrap();
        let slot = slots.add("c1", (0, 0), &[64; 64], &ContainerSnapshot::EMPTY, &[]).unwrap();
        let triggers = Triggers::new(&slots);
        let mut server = FuseServer::new(&slots, HostFiles::new("/nowhere"));
        server.set_triggers(Some(&triggers));
        let file = nodeid(slot, ViewNode::Uptime);
        let mut ask = |nodeid, op| {
            let mut out = Vec::new();
            server.answer(&FuseRequest { unique: 7, nodeid, op }, &mut out);
            match errno_of(&out) {
                0 => Ok(out[abi::OUT_HEADER..].to_vec()),
                errno => Err(-errno),
            }
        };
        let entry = ask(nodeid(slot, ViewNode::Proc), FuseOp::Lookup(b"uptime")).unwrap();
        let mode = u32::from_ne_bytes(*entry[40 + 60..].first_chunk().unwrap());
        assert_eq!(mode & 0o777, 0o444);
        let opened = ask(file, FuseOp::Open(libc::O_RDONLY as u32)).unwrap();
        assert_eq!(u32::from_ne_bytes(*opened[8..].first_chunk().unwrap()), abi::DIRECT_IO);
        for op in [FuseOp::Open(libc::O_RDWR as u32), FuseOp::Write(7, b"1"), FuseOp::SetAttr(8)] {
            assert_eq!(ask(file, op), Err(libc::EROFS));
        }
        let poll = ask(file, FuseOp::Poll(PollRequest { handle: 7, waiter: 1 })).unwrap();
        assert_eq!(u32::from_ne_bytes(*poll.first_chunk().unwrap()), 0x41, "it can be read");
        let mut read =
            || ask(file, FuseOp::Read(ReadWindow { offset: 0, size: 4096, direct: true })).unwrap();
        let before = read();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_ne!(read(), before);
        assert_eq!(ask(file, FuseOp::Release(7)), Ok(Vec::new()));
    }

    #[test]
    fn a_directory_reads_in_pieces_of_any_size() {
        let slots = Slots::create(8, 1).unwrap();
        for i in 0..5 {
            slots.add(&format!("container{i}"), (0, 0), &[0; 64], &ContainerSnapshot::EMPTY, &[]).unwrap();
        }
        let mut server = FuseServer::new(&slots, HostFiles::new("/nowhere"));
        let (mut out, mut offset, mut names) = (Vec::new(), 0, Vec::new());
        loop {
            let op = FuseOp::ReadDir(ReadWindow { offset, size: 64, direct: false });
            server.answer(&FuseRequest { unique: 1, nodeid: abi::ROOT_ID, op }, &mut out);
            let mut entries = &out[abi::OUT_HEADER..];
            if entries.is_empty() {
                break;
            }
            while let Some(head) = entries.first_chunk::<24>() {
                offset = u64::from_ne_bytes(*head[8..].first_chunk().unwrap());
                let len = u32::from_ne_bytes(*head[16..].first_chunk().unwrap()) as usize;
                names.push(String::from_utf8(entries[24..24 + len].to_vec()).unwrap());
                entries = &entries[(24 + len).next_multiple_of(8)..];
            }
        }
        let expected = [".", "..", "container0", "container1", "container2", "container3", "container4"];
        assert_eq!(names, expected);
    }
}
