//! `/proc/PID/mountinfo` and `/proc/PID/cgroup`, as `fs/proc_namespace.c` and `kernel/cgroup/cgroup.c` print them.
//!
//! Paths are bytes: a container may mount anything anywhere. The kernel escapes blank, tab, newline, backslash and `#` in
//! octal; nothing else. Both files are relative to their reader (its mount and cgroup namespace), so they are only ever
//! compared with one another when the same process read both.

use crate::bounded::LineReader;
use crate::parse::unescape;
use elbowroom_types::id::DeviceNumber;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Number of the mount, as `statx` reports it in `stx_mnt_id`. Reused once the mount is gone.
    pub id: u64,
    /// The mount it is mounted on. Its own number, or one that is not in the table, at the top.
    pub parent: u64,
    /// The mounted filesystem, as `stat` has it in `st_dev`; major number 0 for one without a block device, and for btrfs.
    pub device: DeviceNumber,
    /// Which directory or file of that filesystem is mounted; ends in `//deleted` once that has been removed.
    pub root: PathBuf,
    /// Where, relative to the root directory of the process.
    pub mount_point: PathBuf,
    /// Peer group (`shared:N`): what is mounted below appears at every peer.
    pub peer_group: Option<u64>,
    /// Type with subtype: `proc`, `cgroup2`, `fuse.elbowroom`.
    pub fstype: String,
    /// What was mounted, in words of its own: for most disk filesystems the device's path.
    pub source: PathBuf,
    /// Options of the filesystem, as one text: a container may write thousands of commas into it.
    super_options: String,
}

/// Every mount a process can reach, in the kernel's order. A container has as many as it likes: no walk looks at all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<MountEntry>,
    /// The place of each in `mounts`, by number.
    ids: HashMap<u64, usize>,
    /// The same with what each is mounted on (`None`: no mount of the table), in the order of that and of mount points.
    children: Vec<(Option<u64>, usize)>,
}

/// One line of `/proc/PID/cgroup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLine {
    /// v1 controllers of the hierarchy (`cpu`, `cpuacct`, `name=systemd`); empty on cgroup v2.
    pub controllers: Vec<String>,
    /// The cgroup, below the root of its hierarchy.
    pub path: PathBuf,
}

/// A line the kernel would not write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}:{line}: {problem} in \"{text}\"", path = path.display())]
pub struct MountParseError {
    /// The file.
    pub path: PathBuf,
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: &'static str,
    /// The start of the line.
    pub text: String,
}

/// How much of a mount table is read. A container mounts what it likes, under names as long as it likes.
#[derive(Clone, Copy, Debug)]
pub struct MountTableBounds {
    /// Bytes of the file.
    pub bytes: u64,
    /// Mounts.
    pub mounts: usize,
}

impl MountTableBounds {
    /// A container's: more mounts than any has by itself, of 200 bytes each.
    pub const CONTAINER: Self = Self { bytes: 4 << 20, mounts: 20_000 };
    /// The machine's: a few mounts for each of ten thousand containers, with the long lines of overlays.
    pub const HOST: Self = Self { bytes: 64 << 20, mounts: 200_000 };
}

/// The most bytes of a line: two paths of `PATH_MAX` with every byte in octal, and as much for the rest.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Why a mount table is not known.
#[derive(Debug, thiserror::Error)]
pub enum MountTableError {
    /// It cannot be read.
    #[error(transparent)]
    Io(io::Error),
    /// It is larger than what is read.
    #[error("a mount table with {0}")]
    TooLarge(String),
    /// A line that the kernel would not write.
    #[error(transparent)]
    Malformed(#[from] MountParseError),
}

impl MountTable {
    /// Reads a mountinfo file line by line, and no further than `bounds`; `path` is only for messages.
    ///
    /// # Errors
    /// See [`MountTableError`]. What is read of a table that is too large is forgotten.
    pub fn read(from: impl Read, bounds: MountTableBounds, path: &Path) -> Result<Self, MountTableError> {
        let too_large = |excess| Err(MountTableError::TooLarge(excess));
        let mut lines = LineReader::new(from, MAX_LINE_BYTES);
        let (mut line, mut bytes, mut mounts) = (Vec::new(), 0, Vec::new());
        for number in 1.. {
            match lines.next_line(&mut line) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.kind() == ErrorKind::FileTooLarge => {
                    return too_large(format!("a line longer than {MAX_LINE_BYTES} bytes"));
                }
                Err(error) => return Err(MountTableError::Io(error)),
            }
            bytes += line.len() as u64;
            if bytes > bounds.bytes {
                return too_large(format!("more than {} bytes", bounds.bytes));
            }
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            if text.is_empty() {
                continue;
            }
            if mounts.len() == bounds.mounts {
                return too_large(format!("more than {} mounts", bounds.mounts));
            }
            mounts.push(parse_line(text, number, path, parse_mount)?);
        }
        Ok(Self::new(mounts))
    }

    /// Reads the text of a mountinfo file; `path` is only for messages.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, MountParseError> {
        parse_lines(text, path, parse_mount).map(Self::new)
    }

    fn new(mounts: Vec<MountEntry>) -> Self {
        let mut ids = HashMap::with_capacity(mounts.len());
        for (at, mount) in mounts.iter().enumerate() {
            ids.entry(mount.id).or_insert(at);
        }
        let is_below = |mount: &MountEntry| mount.parent != mount.id && ids.contains_key(&mount.parent);
        let parent = |mount: &MountEntry| is_below(mount).then_some(mount.parent);
        let mut children: Vec<_> = mounts.iter().enumerate().map(|(at, mount)| (parent(mount), at)).collect();
        children.sort_by_key(|(parent, at)| (*parent, &mounts[*at].mount_point));
        Self { mounts, ids, children }
    }

    /// All mounts.
    pub fn iter(&self) -> impl Iterator<Item = &MountEntry> {
        self.mounts.iter()
    }

    /// The mount with this number.
    pub fn by_id(&self, id: u64) -> Option<&MountEntry> {
        self.ids.get(&id).map(|at| &self.mounts[*at])
    }

    /// What is mounted at `path` on the mount `parent`.
    fn child(&self, parent: Option<u64>, path: &Path) -> Option<&MountEntry> {
        let place = |(parent, at): (Option<u64>, usize)| (parent, self.mounts[at].mount_point.as_path());
        let first = self.children.partition_point(|child| place(*child) < (parent, path));
        let child = self.children.get(first).copied().filter(|child| place(*child) == (parent, path))?;
        Some(&self.mounts[child.1])
    }

    /// What is mounted on the mount with this number, at whatever path.
    pub(crate) fn mounted_on(&self, id: u64) -> impl Iterator<Item = &MountEntry> {
        let first = self.children.partition_point(|(parent, _)| *parent < Some(id));
        let own = self.children[first..].iter().take_while(move |(parent, _)| *parent == Some(id));
        own.map(|(_, at)| &self.mounts[*at])
    }

    /// The mount on which a walk to `path` (absolute, no symbolic links) ends: hidden mounts do not count, of stacked ones
    /// the topmost does. `None` where no mount of the table is on the way.
    pub fn visible(&self, path: &Path) -> Option<&MountEntry> {
        self.walk(path).last().copied()
    }

    /// The mounts that a walk to `path` enters, in order.
    pub fn walk(&self, path: &Path) -> Vec<&MountEntry> {
        let mut entered: Vec<&MountEntry> = Vec::new();
        let ways: Vec<&Path> = path.ancestors().collect();
        for way in ways.into_iter().rev() {
            // Each step goes one mount deeper, so a table that lies about parents cannot keep us here.
            while entered.len() <= self.mounts.len()
                && let Some(next) = self.child(entered.last().map(|at| at.id), way)
            {
                entered.push(next);
            }
        }
        entered
    }

    /// The mounts at exactly `path` that a walk passes, topmost first.
    pub fn stack(&self, path: &Path) -> Vec<&MountEntry> {
        let mut stack = Vec::new();
        let mut next = self.visible(path).filter(|mount| mount.mount_point == path);
        while let Some(mount) = next {
            stack.push(mount);
            next = self
                .by_id(mount.parent)
                .filter(|below| below.mount_point == path && stack.len() < self.mounts.len());
        }
        stack
    }

    /// The table as a process with `root` as its root directory would read it.
    #[must_use]
    pub fn below(self, root: &Path) -> Self {
        if root == Path::new("/") {
            return self;
        }
        let inside = self.mounts.into_iter().filter_map(|mut mount| {
            mount.mount_point = Path::new("/").join(mount.mount_point.strip_prefix(root).ok()?);
            Some(mount)
        });
        Self::new(inside.collect())
    }
}

impl MountEntry {
    /// Whether this is a mount of the hierarchy with `controller`; an empty name means cgroup v2.
    pub fn has_controller(&self, controller: &str) -> bool {
        match controller {
            "" => self.fstype == "cgroup2",
            name => self.fstype == "cgroup" && self.super_options().any(|option| option == name),
        }
    }

    /// Options of the filesystem: on cgroup v1 these name the controllers.
    pub fn super_options(&self) -> impl Iterator<Item = &str> {
        self.super_options.split(',')
    }
}

/// Reads the text of a `/proc/PID/cgroup` file; `path` is only for messages.
pub fn parse_cgroups(text: &[u8], path: &Path) -> Result<Vec<CgroupLine>, MountParseError> {
    parse_lines(text, path, |line| {
        let mut fields = line.splitn(3, |byte| *byte == b':');
        let (id, controllers, path) = match (fields.next(), fields.next(), fields.next()) {
            (Some(id), Some(controllers), Some(path)) => (id, controllers, path),
            _ => return Err("fewer than three fields"),
        };
        number(id).ok_or("hierarchy is not a number")?;
        if !path.starts_with(b"/") {
            return Err("cgroup path is not absolute");
        }
        let controllers = controllers.split(|byte| *byte == b',').filter(|name| !name.is_empty());
        Ok(CgroupLine { controllers: controllers.map(lossy).collect(), path: to_path(path.to_vec()) })
    })
}

fn parse_lines<T>(
    text: &[u8],
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, &'static str>,
) -> Result<Vec<T>, MountParseError> {
    let lines = text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    lines.map(|(index, line)| parse_line(line, index + 1, path, &parse)).collect()
}

fn parse_line<T>(
    line: &[u8],
    number: usize,
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, &'static str>,
) -> Result<T, MountParseError> {
    parse(line).map_err(|problem| MountParseError {
        path: path.to_owned(),
        line: number,
        problem,
        text: lossy(line).chars().take(80).collect(),
    })
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue`
fn parse_mount(line: &[u8]) -> Result<MountEntry, &'static str> {
    // A device name may be empty, which shows as two blanks: fields are split at every blank.
    let mut fields = line.split(|byte| *byte == b' ');
    let mut field = || fields.next().ok_or("too few fields");
    let id = number(field()?).ok_or("mount id is not a number")?;
    let parent = number(field()?).ok_or("parent id is not a number")?;
    let device = std::str::from_utf8(field()?).ok().and_then(|device| device.parse().ok());
    let device = device.ok_or("device is not major:minor")?;
    let (root, mount_point) = (unescape(field()?), unescape(field()?));
    if !mount_point.is_absolute() {
        return Err("mount point is not absolute");
    }
    let _mount_options = field()?;
    let mut peer_group = None;
    loop {
        match field()? {
            b"-" => break,
            tag => {
                if let Some(group) = tag.strip_prefix(b"shared:") {
                    peer_group = Some(number(group).ok_or("peer group is not a number")?);
                }
            }
        }
    }
    let fstype = unescape(field()?).to_string_lossy().into_owned();
    let source = unescape(field()?);
    let super_options = lossy(field()?);
    Ok(MountEntry { id, parent, device, root, mount_point, peer_group, fstype, source, super_options })
}

fn number(digits: &[u8]) -> Option<u64> {
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    plain.then(|| std::str::from_utf8(digits).ok()?.parse().ok())?
}

fn to_path(bytes: Vec<u8>) -> PathBuf {
    OsString::from_vec(bytes).into()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether mountinfo says that what is mounted has been removed from its filesystem.
pub(crate) fn is_deleted(root: &Path) -> bool {
    root.as_os_str().as_bytes().ends_with(b"//deleted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write;
    use std::time::{Duration, Instant};

    fn table(text: &str) -> MountTable {
        MountTable::parse(text.as_bytes(), Path::new("mountinfo")).unwrap()
    }

    fn visible(table: &MountTable, path: &str) -> u64 {
        table.visible(Path::new(path)).map_or(0, |mount| mount.id)
    }

    #[test]
    fn a_line_reads_field_by_field() {
        let text = "36 35 98:7 /mnt\\0401 /a\\011b rw,noatime master:1 shared:22 unbindable - fuse.elbowroom  rw,user_id=0\n";
        let expect = MountEntry {
            id: 36,
            parent: 35,
            device: DeviceNumber::new(98, 7),
            root: "/mnt 1".into(),
            mount_point: "/a\tb".into(),
            peer_group: Some(22),
            fstype: "fuse.elbowroom".into(),
            source: "".into(),
            super_options: "rw,user_id=0".into(),
        };
        assert_eq!(table(text).mounts, [expect]);
    }

    #[test]
    fn a_malformed_line_is_named() {
        let good = "1 0 0:1 / / rw - proc proc rw\n";
        for (line, problem) in [
            ("x 0 0:1 / / rw - proc proc rw", "mount id is not a number"),
            ("1 +0 0:1 / / rw - proc proc rw", "parent id is not a number"),
            ("1 0 01 / / rw - proc proc rw", "device is not major:minor"),
            ("1 0 0:1 / proc rw - proc proc rw", "mount point is not absolute"),
            ("1 0 0:1 / / rw shared:x - proc proc rw", "peer group is not a number"),
            ("1 0 0:1 / / rw shared:1", "too few fields"),
            ("1 0 0:1 / / rw - proc", "too few fields"),
        ] {
            let error =
                MountTable::parse(format!("{good}{line}\n").as_bytes(), Path::new("/proc/9/mountinfo"));
            assert_eq!(
                error.unwrap_err().to_string(),
                format!("/proc/9/mountinfo:2: {problem} in \"{line}\"")
            );
        }
    }

    #[test]
    fn a_table_is_read_no_further_than_its_bounds() {
        let line = |id: usize, name: &str| format!("{id} 1 0:1 / /{name} rw - tmpfs t rw\n");
        let few = MountTableBounds { bytes: 1000, mounts: 3 };
        let read = |text: &str| MountTable::read(text.as_bytes(), few, Path::new("mountinfo"));
        let three: String = (1..=3).map(|id| line(id, "a")).collect();
        assert_eq!(read(&three).unwrap(), table(&three));
        assert_eq!(read("").unwrap(), MountTable::default());
        assert_eq!(
            read(&(three.clone() + &line(4, "a"))).unwrap_err().to_string(),
            "a mount table with more than 3 mounts"
        );
        assert_eq!(
            read(&line(1, &"x".repeat(1000))).unwrap_err().to_string(),
            "a mount table with more than 1000 bytes"
        );
        assert_eq!(
            read(&line(1, &"x".repeat(70_000))).unwrap_err().to_string(),
            "a mount table with a line longer than 65536 bytes"
        );
        let malformed = read(&(line(1, "a") + "x\n")).unwrap_err().to_string();
        assert_eq!(malformed, "mountinfo:2: mount id is not a number in \"x\"");
    }

    #[test]
    fn a_walk_ends_on_the_topmost_mount_and_hidden_ones_do_not_count() {
        let table = table(
            "10 1 0:1 / / rw - ext4 root rw\n\
             11 10 0:2 / /proc rw - proc proc rw\n\
             12 11 0:3 /one/meminfo /proc/meminfo ro - fuse.elbowroom elbowroom ro\n\
             13 12 0:4 /one/meminfo /proc/meminfo ro - fuse.elbowroom elbowroom ro\n\
             20 10 0:5 / /sys rw - sysfs sysfs rw\n\
             21 20 0:6 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
             22 20 0:7 / /sys rw - tmpfs over rw\n",
        );
        for (path, id) in [
            ("/", 10),
            ("/etc", 10),
            ("/procfs", 10),
            ("/proc/stat", 11),
            ("/proc/meminfo", 13),
            ("/sys/fs/cgroup/cpu.max", 22),
        ] {
            assert_eq!(visible(&table, path), id, "{path}");
        }
        let stack: Vec<u64> = table.stack(Path::new("/proc/meminfo")).iter().map(|mount| mount.id).collect();
        assert_eq!(stack, [13, 12]);
        assert!(table.stack(Path::new("/proc/stat")).is_empty());
        let on = |id| table.mounted_on(id).map(|mount| mount.id).collect::<Vec<_>>();
        assert_eq!([on(10), on(11), on(20), on(22)], [vec![11, 20], vec![12], vec![22, 21], vec![]]);
    }

    #[test]
    fn a_root_directory_below_the_hosts_sees_its_own_mounts_only() {
        let table = table(
            "10 1 0:1 / / rw - ext4 root rw\n\
             11 10 0:9 / /var/ct/rootfs rw - overlay overlay rw\n\
             12 11 0:2 / /var/ct/rootfs/proc rw - proc proc rw\n\
             13 10 0:2 / /proc rw - proc proc rw\n",
        )
        .below(Path::new("/var/ct/rootfs"));
        assert_eq!(table.mounts.len(), 2);
        assert_eq!(visible(&table, "/proc/meminfo"), 12);
        assert_eq!(visible(&table, "/etc"), 11);
    }

    #[test]
    fn a_table_that_a_container_has_filled_is_not_looked_through_again_and_again() {
        const MANY: usize = 20_000;
        let mut text = "1 0 0:1 / / rw - ext4 root rw\n".to_owned();
        for id in 2..=MANY {
            writeln!(text, "{id} {} 0:2 / /proc rw - proc proc rw", id - 1).unwrap();
        }
        for id in MANY + 1..=2 * MANY {
            writeln!(text, "{id} 1 0:3 / /mnt/{id} rw - tmpfs t rw").unwrap();
        }
        let table = table(&text);
        let begin = Instant::now();
        assert_eq!(table.stack(Path::new("/proc")).len(), MANY - 1);
        let mut beside = table.iter().skip(MANY);
        assert!(beside.all(|mount| table.visible(&mount.mount_point) == table.by_id(mount.id)));
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }

    #[test]
    fn cgroup_lines_read_on_v1_v2_and_hybrid() {
        let text = b"4:cpu,cpuacct:/docker/ab\n1:name=systemd:/a:b c\n0::/\n";
        let lines = parse_cgroups(text, Path::new("cgroup")).unwrap();
        let lines: Vec<(String, &Path)> =
            lines.iter().map(|line| (line.controllers.join("+"), line.path.as_path())).collect();
        let expect = [("cpu+cpuacct", "/docker/ab"), ("name=systemd", "/a:b c"), ("", "/")];
        assert_eq!(lines, expect.map(|(controllers, path)| (controllers.to_owned(), Path::new(path))));
        for bad in ["4:cpu", "x:cpu:/", "4:cpu:docker"] {
            assert!(parse_cgroups(bad.as_bytes(), Path::new("cgroup")).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_or_the_walk_panic(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_cgroups(&text, Path::new("cgroup"));
            let path = Path::new("mountinfo");
            let read = MountTable::read(&text[..], MountTableBounds::CONTAINER, path);
            prop_assert_eq!(read.ok(), MountTable::parse(&text, path).ok());
        }

        #[test]
        fn a_table_that_lies_about_parents_still_ends_every_walk(
            ids in proptest::collection::vec((0u64..6, 0u64..6, prop::sample::select(vec!["/", "/a", "/a/b"])), 0..12)
        ) {
            let lines: String = (ids.iter())
                .map(|(id, parent, at)| format!("{id} {parent} 0:1 / {at} rw - proc proc rw\n"))
                .collect();
            let table = table(&lines);
            let _ = table.visible(Path::new("/a/b/c"));
            let _ = table.stack(Path::new("/a/b"));
        }
    }
}
