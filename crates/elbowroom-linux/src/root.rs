//! The directory that every file of the machine is opened below.
//!
//! `/` by default. A fixture host or a host mounted into the agent's own container (`/host`) is another one; below it,
//! symbolic links resolve as if it were `/`, so that neither a link nor a `..` leads out of it.

use crate::bounded;
use crate::mountinfo::MountTableError;
use crate::parse::Malformed;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How often a walk that raced with another process is tried.
const MAX_ATTEMPTS: u32 = 32;

/// A root directory.
#[derive(Debug)]
pub struct Root {
    dir: OwnedFd,
    path: PathBuf,
}

/// Why a file of the machine could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The kernel refused.
    #[error("while {operation} {}: {source}", path.display())]
    Io {
        /// What was done: `opening`, `reading`.
        operation: &'static str,
        /// The file, from the root.
        path: PathBuf,
        /// Why not.
        source: Errno,
    },
    /// The file does not keep its format.
    #[error("{}: {source}", path.display())]
    Malformed {
        /// The file, from the root.
        path: PathBuf,
        /// The line.
        source: Malformed,
    },
    /// The table of mounts cannot be read, is too large, or does not keep its format.
    #[error("{}", mounts_text(path, source))]
    Mounts {
        /// The file, from the root.
        path: PathBuf,
        /// Why not.
        source: MountTableError,
    },
}

impl ReadError {
    /// Attaches the file to a refused line.
    pub fn malformed(path: impl Into<PathBuf>, source: Malformed) -> Self {
        Self::Malformed { path: path.into(), source }
    }

    /// The file, its cgroup or its process is not there, or this kernel does not offer it: a normal value, not a fault.
    /// `ENODEV` is a kept file of a removed cgroup, `EOPNOTSUPP` a pressure file that is switched off, `ESRCH` a process
    /// that ended.
    pub fn is_absent(&self) -> bool {
        matches!(
            self,
            Self::Io {
                source: Errno::NOENT | Errno::NODEV | Errno::NOTDIR | Errno::OPNOTSUPP | Errno::SRCH,
                ..
            }
        )
    }

    /// File name and kind of failure: what two errors with one cause share.
    pub(crate) fn cause(&self) -> (String, String) {
        let (path, kind) = match self {
            Self::Io { path, source, operation } => (path, format!("{operation} {source}")),
            Self::Malformed { path, source } => (path, source.expected.to_owned()),
            Self::Mounts { path, source } => (path, source.to_string()),
        };
        (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), kind)
    }
}

/// A malformed line names its file by itself.
fn mounts_text(path: &Path, source: &MountTableError) -> String {
    match source {
        MountTableError::Malformed(line) => line.to_string(),
        other => format!("{}: {other}", path.display()),
    }
}

/// `Ok(None)` for what is absent.
pub fn if_present<T>(result: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Root {
    /// The machine itself.
    pub fn host() -> Result<Self, ReadError> {
        Self::at("/")
    }

    /// A directory that stands for `/`.
    pub fn at(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref().to_path_buf();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(dir) => Ok(Self { dir, path }),
            Err(source) => Err(ReadError::Io { operation: "opening", path, source }),
        }
    }

    /// Whether this is `/`, so that system calls about the machine (`sysinfo`) speak of the same one.
    pub fn is_host(&self) -> bool {
        self.path == Path::new("/")
    }

    /// Opens `path`, absolute or not, below the root.
    pub fn open(&self, path: impl AsRef<Path>, flags: OFlags) -> Result<OwnedFd, ReadError> {
        let path = path.as_ref();
        let below = match path.strip_prefix("/").unwrap_or(path) {
            below if below.as_os_str().is_empty() => Path::new("."),
            below => below,
        };
        let opened = match self.is_host() {
            true => rustix::fs::openat(&self.dir, below, flags | OFlags::CLOEXEC, Mode::empty()),
            false => open_inside(&self.dir, below, flags, ResolveFlags::empty()),
        };
        opened.map_err(|source| ReadError::Io { operation: "opening", path: path.into(), source })
    }

    /// The names in a directory, in no order, without `.` and `..`.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>, ReadError> {
        self.names(path.as_ref(), |_| true)
    }

    /// The directories in a directory, likewise; links are none.
    pub fn directories(&self, path: &Path) -> Result<Vec<OsString>, ReadError> {
        self.names(path, FileType::is_dir)
    }

    fn names(&self, path: &Path, wanted: impl Fn(FileType) -> bool) -> Result<Vec<OsString>, ReadError> {
        let dir = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut entries = rustix::fs::RawDir::new(dir, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry =
                entry.map_err(|source| ReadError::Io { operation: "listing", path: path.into(), source })?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && wanted(entry.file_type()) {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    /// Reads a file whole. Bytes that are not UTF-8 become U+FFFD.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String, ReadError> {
        let path = path.as_ref();
        read_whole(self.open(path, OFlags::RDONLY)?, path)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Opens `path` below `dir`: nothing leads out of it, and what else `resolve` forbids is refused. It is tried again where a rename or a
/// mount, anywhere on the machine, raced with the walk, so that the kernel could not prove that it stayed inside.
///
/// # Errors
/// As openat2(2); `EAGAIN` where that happened every time.
pub(crate) fn open_inside(
    dir: impl AsFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let (flags, resolve) = (flags | OFlags::CLOEXEC, resolve | ResolveFlags::IN_ROOT);
    for _ in 0..MAX_ATTEMPTS {
        match rustix::fs::openat2(&dir, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

/// Reads `file` to its end; `path` is only for the error.
pub(crate) fn read_whole(file: OwnedFd, path: &Path) -> Result<String, ReadError> {
    // Room for what most files say: without any, a read of a few bytes comes before the first.
    let mut bytes = Vec::with_capacity(4096);
    match bounded::append(File::from(file), bounded::KERNEL_FILE, &mut bytes) {
        Ok(()) => {
            Ok(String::from_utf8(bytes)
                .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
        }
        Err(e) => {
            let source = Errno::from_io_error(&e).unwrap_or(Errno::IO);
            Err(ReadError::Io { operation: "reading", path: path.into(), source })
        }
    }
}

/// Opens `path` below an open directory.
pub(crate) fn open_at(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, path, flags | OFlags::CLOEXEC, Mode::empty())
}

/// The soft limit of open files raised to the hard one, which needs no privilege; returns what is allowed now.
pub(crate) fn raise_nofile() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(_) => current.unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn links_and_dots_stay_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("inside"), "inside\n").unwrap();
        std::os::unix::fs::symlink("/inside", dir.path().join("link")).unwrap();
        let root = Root::at(dir.path()).unwrap();
        assert_eq!(root.read("/link").unwrap(), "inside\n");
        assert_eq!(root.read("../../../inside").unwrap(), "inside\n");
        assert!(root.read("/etc/passwd").unwrap_err().is_absent());
    }

    #[test]
    fn renames_elsewhere_do_not_keep_a_file_from_being_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("dev/block")).unwrap();
        std::fs::write(dir.path().join("size"), "7\n").unwrap();
        std::os::unix::fs::symlink("../../size", dir.path().join("dev/block/size")).unwrap();
        let (root, elsewhere) = (Root::at(dir.path()).unwrap(), tempfile::tempdir().unwrap());
        let [here, there] = ["here", "there"].map(|name| elsewhere.path().join(name));
        std::fs::write(&here, "").unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::fs::rename(&here, &there).and_then(|()| std::fs::rename(&there, &here)).unwrap();
                }
            });
            let failed = (0..20_000).find_map(|_| root.read("dev/block/size").err());
            done.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{}", failed.unwrap());
        });
    }

    #[test]
    fn an_error_says_what_was_done_to_which_file() {
        let root = Root::host().unwrap();
        let err = root.read("/proc/no-such-file").unwrap_err();
        assert!(err.is_absent());
        assert!(err.to_string().starts_with("while opening /proc/no-such-file: No such file"), "{err}");
        assert!(if_present::<()>(Err(err)).unwrap().is_none());
    }
}
