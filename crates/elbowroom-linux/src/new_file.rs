//! Files, FIFOs, sockets and directories that have their mode and group from the first moment on.
//!
//! A mode that is set by path afterwards may be set on another file: others may write to the directory. And until then, the file has
//! the mode that the umask left it. The umask and the group of new files belong to a thread of its own here, so no other thread makes a
//! file with them.

use rustix::fs::Mode;
use rustix::thread::UnshareFlags;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Mode of a directory of files that are for others to reach, if they know their names.
const REACHED_MODE: u32 = 0o711;

/// Makes a directory for programs to talk in, with those above it, whatever the umask lets others do; its path without links.
///
/// # Errors
/// As mkdir(2); `PermissionDenied` where others can write to it, and so put files of theirs in place of the sockets and locks there.
pub fn run_directory(path: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    existing_run_directory(path)
}

/// The same of one that is there; none is made.
///
/// # Errors
/// Those of [`run_directory`]; `NotFound`.
pub fn existing_run_directory(path: &Path) -> io::Result<PathBuf> {
    let path = path.canonicalize()?;
    let made = path.metadata()?;
    if made.mode() & 0o022 != 0 || ![0, rustix::process::geteuid().as_raw()].contains(&made.uid()) {
        let message =
            "others can write there: give it to root and `chmod go-w` it, or name another directory";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(path)
}

/// Makes a directory in [`run_directory`], and those between, that others can go through and neither list nor lock (flock(2)).
///
/// # Errors
/// As mkdir(2).
pub fn reached_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(REACHED_MODE).create(path)
}

/// Runs `create`: what it makes and asks for with all permissions has `mode`, and `group` where there is one.
///
/// # Errors
/// As `create`; as unshare(2) and clone(2); `PermissionDenied` where this process may not give files to `group`.
pub fn create_with_mode<T: Send>(
    mode: Mode,
    group: Option<u32>,
    create: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let alone = move || {
        // SAFETY: the umask is a number of this thread's from here on; root and working directory stay what they are.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS)? };
        rustix::process::umask(mode.complement() & Mode::from_raw_mode(0o777));
        if let Some(group) = group {
            set_group_of_new_files(group)?;
        }
        create()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("new-file".into()).spawn_scoped(scope, alone)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

/// setfsgid(2): of this thread alone, which ends with it.
fn set_group_of_new_files(group: u32) -> io::Result<()> {
    // SAFETY: two calls that change a number of this thread. The second changes nothing, as there is no such group, and says what is set.
    let set = unsafe {
        libc::setfsgid(group);
        libc::setfsgid(u32::MAX)
    };
    if set as u32 == group { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_directory_that_others_can_write_to_is_refused_and_none_is_made() {
        let dir = tempfile::tempdir().unwrap();
        // Of this thread alone.
        let made = std::thread::scope(|scope| {
            let make = || {
                // SAFETY: the umask is a number of this thread's from here on; root and working directory stay what they are.
                unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS).unwrap() };
                rustix::process::umask(Mode::empty());
                run_directory(&dir.path().join("a/run")).unwrap();
                reached_directory(&dir.path().join("a/run/runs/x")).unwrap();
            };
            scope.spawn(make).join()
        });
        made.unwrap();
        let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().mode() & 0o7777;
        assert_eq!(["a", "a/run", "a/run/runs", "a/run/runs/x"].map(mode), [0o755, 0o755, 0o711, 0o711]);
        for mode in [0o775, 0o757, 0o1777] {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(dir.path().join("a/run"), fs::Permissions::from_mode(mode)).unwrap();
            let error = run_directory(&dir.path().join("a/run")).unwrap_err();
            assert!(error.to_string().contains("chmod go-w"), "{error}");
        }
    }

    #[test]
    fn a_file_is_born_with_its_mode_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        let group = rustix::process::geteuid().is_root().then_some(4242);
        for mode in [0o600, 0o660, 0o666] {
            let path = dir.path().join(format!("{mode:o}"));
            let make = || {
                let all = Mode::from_raw_mode(0o777);
                Ok(rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, all, 0)?)
            };
            create_with_mode(Mode::from_raw_mode(mode), group, make).unwrap();
            let made = fs::symlink_metadata(&path).unwrap();
            assert_eq!(made.mode() & 0o7777, mode);
            assert!(group.is_none_or(|group| made.gid() == group));
        }
        // This thread's own are as they were.
        let umask = rustix::process::umask(Mode::from_raw_mode(0o022));
        rustix::process::umask(umask);
        fs::write(dir.path().join("other"), "").unwrap();
        let other = fs::metadata(dir.path().join("other")).unwrap();
        assert_eq!(other.mode() & 0o777, 0o666 & !umask.as_raw_mode());
        assert_ne!(Some(other.gid()), group);
    }
}
