//! Reading cgroup files. Settings and statistics are opened, read and closed; the counters of every tick are kept open
//! and read with `pread`, which costs a sixth (measured: 0.3 us against 2.0 us; io_uring costs more than either, because
//! kernfs does its little work at once).

use super::layout::MountedHierarchy;
use crate::bounded;
use crate::parse::{Malformed, single_number};
use crate::process;
use crate::root::{ReadError, Root, if_present, open_at, read_whole};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A cgroup by its path, and the files of it that are kept open, if any are.
#[derive(Debug, Clone, Copy)]
pub struct CgroupRef<'a> {
    pub(super) group: &'a Path,
    pub(super) files: Option<&'a CgroupFileCache>,
}

impl<'a> CgroupRef<'a> {
    /// What is read there is read through these.
    pub(crate) fn with_cached_files(group: &'a Path, files: &'a CgroupFileCache) -> Self {
        Self { group, files: Some(files) }
    }
}

impl<'a> From<&'a Path> for CgroupRef<'a> {
    fn from(group: &'a Path) -> Self {
        Self { group, files: None }
    }
}

impl<'a> From<&'a PathBuf> for CgroupRef<'a> {
    fn from(group: &'a PathBuf) -> Self {
        group.as_path().into()
    }
}

/// A cgroup's directory in one hierarchy, by path: it may be gone.
#[derive(Debug, Clone, Copy)]
pub struct CgroupDir<'a> {
    hierarchy: &'a MountedHierarchy,
    group: &'a Path,
    files: Option<&'a CgroupFileCache>,
}

impl<'a> CgroupDir<'a> {
    pub(crate) fn new(hierarchy: &'a MountedHierarchy, at: impl Into<CgroupRef<'a>>) -> Self {
        let CgroupRef { group, files } = at.into();
        Self { hierarchy, group, files }
    }

    /// Its path on the machine.
    pub fn path(&self) -> PathBuf {
        if self.group.as_os_str().is_empty() {
            return self.hierarchy.mount_point.clone();
        }
        self.hierarchy.mount_point.join(self.group)
    }

    /// Opens a file in it.
    pub fn open(&self, file: &str) -> Result<OwnedFd, ReadError> {
        self.open_with(file, OFlags::RDONLY)
    }

    /// Opens a file in it, for what the flags say.
    pub(crate) fn open_with(&self, file: &str, flags: OFlags) -> Result<OwnedFd, ReadError> {
        open_at(self.hierarchy.as_fd(), &self.group.join(file), flags).map_err(|source| ReadError::Io {
            operation: "opening",
            path: self.path().join(file),
            source,
        })
    }

    /// Reads a file in it; `None` where file or cgroup are not there.
    pub fn read(&self, file: &str) -> Result<Option<String>, ReadError> {
        match self.files {
            Some(files) => if_present(files.read(self, file)),
            None => if_present(self.open(file).and_then(|fd| read_whole(fd, &self.path().join(file)))),
        }
    }

    /// The processes in it, as this process's PID namespace numbers them: of a threaded cgroup of v2, whose `cgroup.procs` cannot be read,
    /// those whose first thread is in it. Empty where it is gone.
    pub fn processes(&self, root: &Root) -> Result<Vec<i32>, ReadError> {
        if let Some(text) = self.read("cgroup.procs")? {
            return Ok(numbers(&text));
        }
        let mut threads = numbers(&self.read("cgroup.threads")?.unwrap_or_default());
        threads.retain(|thread| process::is_first_thread(root, *thread));
        Ok(threads)
    }

    /// Reads and parses a file in it.
    pub fn parse<T>(
        &self,
        file: &str,
        parse: impl FnOnce(&str) -> Result<T, Malformed>,
    ) -> Result<Option<T>, ReadError> {
        match self.read(file)? {
            Some(text) => parse(&text).map(Some).map_err(|e| ReadError::malformed(self.path().join(file), e)),
            None => Ok(None),
        }
    }

    /// Reads a file of one number.
    pub fn number(&self, file: &str) -> Result<Option<u64>, ReadError> {
        self.parse(file, single_number)
    }

    /// Whether it exists.
    pub fn exists(&self) -> bool {
        let dot = if self.group.as_os_str().is_empty() { Path::new(".") } else { self.group };
        rustix::fs::accessat(self.hierarchy, dot, rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty())
            .is_ok()
    }

    /// Whether it is the hierarchy's topmost cgroup.
    pub fn is_root(&self) -> bool {
        self.group.as_os_str().is_empty()
    }

    /// Whether it has a file of this name.
    pub fn has(&self, file: &str) -> bool {
        let path = self.group.join(file);
        rustix::fs::accessat(self.hierarchy, &path, rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty())
            .is_ok()
    }

    /// The inode of the directory, which is the cgroup's id in the kernel; `None` when it is gone.
    pub fn inode(&self) -> Option<u64> {
        let dot = if self.group.as_os_str().is_empty() { Path::new(".") } else { self.group };
        rustix::fs::statat(self.hierarchy, dot, rustix::fs::AtFlags::empty()).ok().map(|s| s.st_ino)
    }

    /// The user whose directory it is; `None` when it is gone.
    pub(crate) fn owner_uid(&self) -> Option<u32> {
        let dot = if self.group.as_os_str().is_empty() { Path::new(".") } else { self.group };
        rustix::fs::statat(self.hierarchy, dot, rustix::fs::AtFlags::empty()).ok().map(|s| s.st_uid)
    }

    /// What `look` finds in the cgroup of that name directly below it.
    pub(crate) fn with_child<T>(&self, name: &OsStr, look: impl FnOnce(CgroupDir<'_>) -> T) -> T {
        look(CgroupDir::new(self.hierarchy, &self.group.join(name)))
    }

    /// The cgroups directly below it, the first `most` of them: name and inode. `None` when it is gone.
    pub fn children(&self, most: usize) -> Result<Option<Vec<(OsString, u64)>>, ReadError> {
        let dot = if self.group.as_os_str().is_empty() { Path::new(".") } else { self.group };
        let error = |operation| move |source: Errno| ReadError::Io { operation, path: self.path(), source };
        let opened = open_at(self.hierarchy.as_fd(), dot, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(error("opening"));
        let Some(fd) = if_present(opened)? else { return Ok(None) };
        let mut buffer = [MaybeUninit::<u8>::uninit(); 8192];
        let mut entries = rustix::fs::RawDir::new(fd, &mut buffer);
        let mut children = Vec::new();
        while children.len() < most
            && let Some(entry) = entries.next()
        {
            let Some(entry) = if_present(entry.map_err(error("listing")))? else { return Ok(None) };
            let name = entry.file_name().to_bytes();
            if entry.file_type().is_dir() && name != b"." && name != b".." {
                children.push((std::ffi::OsStr::from_bytes(name).to_owned(), entry.ino()));
            }
        }
        Ok(Some(children))
    }
}

/// How many files may be kept open. What does not fit is opened for every read instead: slower, never wrong.
#[derive(Debug)]
pub(crate) struct FdBudget {
    remaining: usize,
}

impl FdBudget {
    /// Room for `nofile` files less what the rest of the agent needs: slots and attach few, sockets of probes one per container.
    pub(crate) fn new(nofile: u64) -> Self {
        let rest = (nofile / 4).max(256);
        Self { remaining: usize::try_from(nofile.saturating_sub(rest)).unwrap_or(usize::MAX) }
    }
}

/// Files of one cgroup that are asked for again and again: a file is kept open from the first time on. A cgroup that
/// is made anew under the same path needs new ones.
#[derive(Debug, Default)]
pub(crate) struct CgroupFileCache(RefCell<Vec<CachedFile>>);

#[derive(Debug)]
struct CachedFile {
    /// The hierarchy's directory.
    hierarchy: RawFd,
    name: String,
    file: OwnedFd,
}

impl CgroupFileCache {
    /// How many are kept; further ones are opened for every read.
    const MAX_FILES: usize = 12;

    /// Room for the files of one more cgroup; `None` where there is not enough left.
    pub(crate) fn reserve(budget: &mut FdBudget) -> Option<Self> {
        budget.remaining = budget.remaining.checked_sub(Self::MAX_FILES)?;
        Some(Self::default())
    }

    /// Closes them.
    pub(crate) fn close(self, budget: &mut FdBudget) {
        budget.remaining += Self::MAX_FILES;
    }

    fn read(&self, dir: &CgroupDir<'_>, name: &str) -> Result<String, ReadError> {
        let hierarchy = dir.hierarchy.as_fd().as_raw_fd();
        let mut open = self.0.borrow_mut();
        let kept = open.iter().position(|one| one.hierarchy == hierarchy && one.name == name);
        let at = match kept {
            Some(at) => at,
            None => {
                open.push(CachedFile { hierarchy, name: name.to_owned(), file: dir.open(name)? });
                open.len() - 1
            }
        };
        let mut bytes = vec![0; 4096];
        let read = loop {
            match rustix::io::pread(&open[at].file, &mut bytes, 0) {
                // The kernel makes such a text at once: what did not fill the buffer is all of it.
                Ok(n) if n < bytes.len() => break Ok(n),
                Ok(_) if bytes.len() as u64 >= bounded::KERNEL_FILE => break Err(Errno::FBIG),
                Ok(_) => bytes.resize(bytes.len() * 2, 0),
                Err(source) => break Err(source),
            }
        };
        if read.is_err() || open.len() > Self::MAX_FILES {
            open.swap_remove(at);
        }
        bytes.truncate(read.map_err(|source| ReadError::Io {
            operation: "reading",
            path: dir.path().join(name),
            source,
        })?);
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }
}

/// A file that is read every tick.
#[derive(Debug, Default)]
pub(crate) enum PolledFile {
    /// Not opened yet.
    #[default]
    Closed,
    /// Open.
    Open(OwnedFd),
    /// Was not there; looked for again only after [`PolledFile::reset`].
    Absent,
}

/// What a kept file said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PolledValue<T> {
    /// A value.
    Value(T),
    /// There is no such file, for now.
    Absent,
    /// The cgroup was removed.
    Gone,
}

impl PolledFile {
    /// Reads the file from its start and hands the bytes to `parse`.
    pub(crate) fn read<T>(
        &mut self,
        dir: &CgroupDir<'_>,
        file: &str,
        budget: &mut FdBudget,
        syscalls: &mut u64,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<PolledValue<T>, ReadError> {
        // The largest of these files, v2 cpu.stat, has about 350 bytes.
        let mut buffer = [0u8; 1024];
        let n = match self.pread(dir, file, budget, syscalls, &mut buffer)? {
            PolledValue::Value(n) => n,
            PolledValue::Absent => return Ok(PolledValue::Absent),
            PolledValue::Gone => return Ok(PolledValue::Gone),
        };
        match parse(&buffer[..n]) {
            Some(value) => Ok(PolledValue::Value(value)),
            None => {
                let line = String::from_utf8_lossy(&buffer[..n]);
                let line = line.lines().next().unwrap_or("");
                Err(ReadError::malformed(dir.path().join(file), crate::parse::malformed(line, "a counter")))
            }
        }
    }

    /// Reads a file whose length depends on the machine, such as one with a line per disk. `buffer` grows to what the file
    /// needs and is meant for the next one.
    pub(crate) fn read_growing<T>(
        &mut self,
        dir: &CgroupDir<'_>,
        file: &str,
        budget: &mut FdBudget,
        syscalls: &mut u64,
        buffer: &mut Vec<u8>,
        parse: impl FnOnce(&str) -> Result<T, Malformed>,
    ) -> Result<PolledValue<T>, ReadError> {
        buffer.resize(buffer.capacity().max(4096), 0);
        let n = loop {
            match self.pread(dir, file, budget, syscalls, buffer)? {
                // The kernel makes such a text at once: what did not fill the buffer is all of it.
                PolledValue::Value(n) if n < buffer.len() => break n,
                PolledValue::Value(_) if buffer.len() as u64 >= bounded::KERNEL_FILE => {
                    let path = dir.path().join(file);
                    return Err(ReadError::Io { operation: "reading", path, source: Errno::FBIG });
                }
                PolledValue::Value(_) => buffer.resize(buffer.len() * 2, 0),
                PolledValue::Absent => return Ok(PolledValue::Absent),
                PolledValue::Gone => return Ok(PolledValue::Gone),
            }
        };
        match parse(&String::from_utf8_lossy(&buffer[..n])) {
            Ok(value) => Ok(PolledValue::Value(value)),
            Err(source) => Err(ReadError::malformed(dir.path().join(file), source)),
        }
    }

    /// How many bytes the file has, as far as `buffer` holds them.
    fn pread(
        &mut self,
        dir: &CgroupDir<'_>,
        file: &str,
        budget: &mut FdBudget,
        syscalls: &mut u64,
        buffer: &mut [u8],
    ) -> Result<PolledValue<usize>, ReadError> {
        let mut transient = None;
        let fd = match self {
            Self::Absent => return Ok(PolledValue::Absent),
            Self::Open(fd) => &*fd,
            Self::Closed => {
                *syscalls += 1;
                let Some(fd) = if_present(dir.open(file))? else {
                    *self = Self::Absent;
                    return Ok(PolledValue::Absent);
                };
                if budget.remaining > 0 {
                    budget.remaining -= 1;
                    *self = Self::Open(fd);
                    let Self::Open(fd) = self else { unreachable!("assigned in the line above") };
                    &*fd
                } else {
                    *syscalls += 1;
                    transient.insert(fd)
                }
            }
        };
        *syscalls += 1;
        match rustix::io::pread(fd, buffer, 0) {
            Ok(n) => Ok(PolledValue::Value(n)),
            // A pressure file opens though pressure is switched off, and says so when it is read.
            Err(Errno::OPNOTSUPP) => {
                self.reset(budget);
                *self = Self::Absent;
                Ok(PolledValue::Absent)
            }
            Err(Errno::NODEV | Errno::NOENT) => {
                self.reset(budget);
                *self = Self::Absent;
                Ok(PolledValue::Gone)
            }
            Err(source) => Err(ReadError::Io { operation: "reading", path: dir.path().join(file), source }),
        }
    }

    /// Closes the file, to be opened again at the next read.
    pub(crate) fn reset(&mut self, budget: &mut FdBudget) {
        if let Self::Open(_) = std::mem::take(self) {
            budget.remaining += 1;
        }
    }
}

/// A list of processes or threads. Those of other PID namespaces are all number 0.
fn numbers(text: &str) -> Vec<i32> {
    text.lines().filter_map(|number| number.parse().ok()).filter(|number| *number > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{CgroupController, CgroupLayout};
    use crate::fixture::Fixture;
    use crate::parse::leading_number;
    use crate::root::Root;

    const HOST: &str = "-- proc/self/mountinfo --\n1 0 0:1 / /cg rw - cgroup2 none rw\n\
                        -- cg/cgroup.controllers --\ncpu memory\n-- cg/a/memory.current --\n7\n";

    #[test]
    fn files_beyond_the_budget_are_read_and_not_kept() {
        let host = Fixture::new(HOST).unwrap();
        let layout = CgroupLayout::detect(&Root::at(host.path()).unwrap()).unwrap();
        let (_, dir) = layout.dir(CgroupController::Memory, Path::new("a")).unwrap();
        let mut budget = FdBudget::new(257);
        let (mut first, mut second) = (PolledFile::default(), PolledFile::default());
        let mut calls = 0;
        let mut read = |file: &mut PolledFile, budget: &mut FdBudget| {
            let before = calls;
            let value = file.read(&dir, "memory.current", budget, &mut calls, leading_number).unwrap();
            assert_eq!(value, PolledValue::Value(7));
            calls - before
        };
        assert_eq!(
            (read(&mut first, &mut budget), read(&mut first, &mut budget)),
            (2, 1),
            "open and read, then read"
        );
        assert_eq!(
            (read(&mut second, &mut budget), read(&mut second, &mut budget)),
            (3, 3),
            "open, read, close"
        );
        assert!(matches!((&first, &second), (PolledFile::Open(_), PolledFile::Closed)));
        first.reset(&mut budget);
        read(&mut second, &mut budget);
        assert!(matches!(second, PolledFile::Open(_)), "what one gives back another can have");
    }

    #[test]
    fn files_that_are_kept_say_what_is_in_them_now() {
        let host = Fixture::new(HOST).unwrap();
        let layout = CgroupLayout::detect(&Root::at(host.path()).unwrap()).unwrap();
        let mut budget = FdBudget::new(256 + CgroupFileCache::MAX_FILES as u64);
        let files = CgroupFileCache::reserve(&mut budget).unwrap();
        assert!(CgroupFileCache::reserve(&mut budget).is_none());
        let at = CgroupRef::with_cached_files(Path::new("a"), &files);
        let (_, dir) = layout.dir(CgroupController::Memory, at).unwrap();
        assert_eq!(dir.number("memory.current").unwrap(), Some(7));
        assert_eq!(dir.read("memory.stat").unwrap(), None);
        let long = format!("{}\n", "x".repeat(9_000));
        host.write("cg/a/memory.stat", &long).unwrap();
        std::fs::write(host.path().join("cg/a/memory.current"), "8\n").unwrap();
        for _ in 0..2 {
            assert_eq!(dir.number("memory.current").unwrap(), Some(8));
            assert_eq!(dir.read("memory.stat").unwrap(), Some(long.clone()));
        }
        assert_eq!(files.0.borrow().len(), 2);
        let open = files.0.borrow()[0].file.as_raw_fd();
        assert_eq!(dir.number("memory.current").unwrap(), Some(8));
        assert_eq!(files.0.borrow()[0].file.as_raw_fd(), open, "it was opened once");
        for extra in 0..2 * CgroupFileCache::MAX_FILES {
            host.write(&format!("cg/a/extra{extra}"), "1\n").unwrap();
            assert_eq!(dir.number(&format!("extra{extra}")).unwrap(), Some(1));
        }
        assert_eq!(files.0.borrow().len(), CgroupFileCache::MAX_FILES);
        files.close(&mut budget);
        assert!(CgroupFileCache::reserve(&mut budget).is_some());
    }

    #[test]
    fn a_file_that_is_not_there_is_not_looked_for_again_until_told() {
        let host = Fixture::new(HOST).unwrap();
        let layout = CgroupLayout::detect(&Root::at(host.path()).unwrap()).unwrap();
        let (_, dir) = layout.dir(CgroupController::Cpu, Path::new("a")).unwrap();
        let (mut file, mut budget, mut calls) = (PolledFile::default(), FdBudget::new(1_000), 0);
        for _ in 0..3 {
            let value = file.read(&dir, "cpu.stat", &mut budget, &mut calls, leading_number).unwrap();
            assert_eq!(value, PolledValue::Absent);
        }
        assert_eq!(calls, 1);
        host.write("cg/a/cpu.stat", "x\n").unwrap();
        file.reset(&mut budget);
        let error = file.read(&dir, "cpu.stat", &mut budget, &mut calls, leading_number).unwrap_err();
        assert_eq!(error.to_string(), "/cg/a/cpu.stat: line \"x\" is not a counter");
    }
}
