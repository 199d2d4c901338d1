//! The directories below the run directory: each is root's alone. Sockets for others are files of the run directory itself, which others
//! may walk through (`docs/guide/install.md` lists them).

use crate::view_server::handover::{AgentOptions, Connection};
use crate::view_server::session::{MountLine, mounts_on, unmount};
use crate::view_server::{FuseError, PRESSURE_DIR};
use elbowroom_client::control::labels_dir;
use rustix::fs::{Mode, OFlags};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const MODE: u32 = 0o700;
/// Where agents before 1.0 mounted views, for every user of the host to read.
const OPEN_VIEWS_DIR: &str = "views";

/// Makes the directories that there are not.
///
/// # Errors
/// [`FuseError::Io`].
pub(crate) fn make(options: &AgentOptions) -> Result<(), FuseError> {
    for dir in directories(options) {
        let made = std::fs::DirBuilder::new().recursive(true).mode(MODE).create(&dir);
        made.map_err(FuseError::io("making", dir))?;
    }
    Ok(())
}

/// Takes away what [`make`] made, as far as it is empty.
pub(crate) fn remove(options: &AgentOptions) {
    for dir in directories(options) {
        let _ = std::fs::remove_dir(dir);
    }
}

/// What is mounted on each, from the inside out, and what they are in.
fn directories(options: &AgentOptions) -> [PathBuf; 5] {
    let [views, triggers] = Connection::ALL.map(|connection| options.mount_point(connection));
    let private = views.parent().expect("views have a directory of their own").to_owned();
    [views, triggers, private, options.pages(), options.run_dir.join(PRESSURE_DIR)]
}

/// Closes what an agent before left open to other users of the host. Views that are mounted stay, in another place.
///
/// # Errors
/// [`FuseError::Io`]; [`FuseError::Occupied`] where something else is mounted at a place of ours.
pub(crate) fn close_to_others(options: &AgentOptions) -> Result<(), FuseError> {
    let run_dir = &options.run_dir;
    let open_views = run_dir.join(OPEN_VIEWS_DIR);
    if mounts_on(&open_views)?.last().is_some_and(MountLine::is_ours) {
        make(options)?;
        let views = options.views();
        rustix::mount::mount_bind(&open_views, &views)
            .map_err(|e| FuseError::io("mounting the views on", views)(e.into()))?;
        unmount(&open_views);
        let _ = std::fs::remove_dir(&open_views);
    }
    let [_, _, private, pages, pressure] = directories(options);
    for dir in [private, pages, pressure, options.leases(), labels_dir(run_dir)] {
        match close(&dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            closed => closed.map_err(FuseError::io("closing to other users", dir))?,
        }
    }
    Ok(())
}

fn close(dir: &Path) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(&dir, Mode::from_raw_mode(MODE))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view_server::{FS_TYPE, MOUNT_SOURCE};
    use rustix::fs::statat;
    use rustix::mount::MountFlags;
    use std::ffi::CString;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    fn options() -> (tempfile::TempDir, AgentOptions) {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().canonicalize().unwrap();
        (dir, AgentOptions::new(run_dir, &[], false, Duration::ZERO))
    }

    fn mode(dir: &Path) -> u32 {
        statat(rustix::fs::CWD, dir, rustix::fs::AtFlags::empty()).unwrap().st_mode & 0o777
    }

    #[test]
    fn what_is_made_is_roots_alone_and_goes_without_a_trace() {
        let (dir, options) = options();
        make(&options).unwrap();
        make(&options).unwrap();
        assert_eq!(directories(&options).map(|dir| mode(&dir)), [MODE; 5]);
        remove(&options);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_an_older_agent_left_open_is_closed_and_nothing_else() {
        let (dir, options) = options();
        let theirs = dir.path().join("theirs");
        let ours = [options.pages(), options.leases(), labels_dir(dir.path())];
        for dir in ours.iter().chain([&theirs]) {
            std::fs::create_dir(dir).unwrap();
            rustix::fs::chmod(dir, Mode::from_raw_mode(0o755)).unwrap();
        }
        close_to_others(&options).unwrap();
        assert_eq!((ours.map(|dir| mode(&dir)), mode(&theirs)), ([MODE; 3], 0o755));
    }

    #[test]
    fn views_that_every_user_could_read_are_moved_with_their_mount() {
        let Ok(fuse) = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
            return eprintln!("skipped: needs /dev/fuse");
        };
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root to mount");
        }
        let (dir, options) = options();
        let open_views = options.run_dir.join(OPEN_VIEWS_DIR);
        std::fs::create_dir(&open_views).unwrap();
        let data = format!("fd={},rootmode=40555,user_id=0,group_id=0,allow_other", fuse.as_raw_fd());
        let data = CString::new(data).unwrap();
        rustix::mount::mount(MOUNT_SOURCE, &open_views, FS_TYPE, MountFlags::RDONLY, data.as_c_str())
            .unwrap();
        let minor = mounts_on(&open_views).unwrap()[0].minor;
        let closed = close_to_others(&options);
        let there = mounts_on(&options.views()).unwrap();
        let left = mounts_on(&open_views).unwrap();
        there.iter().for_each(|_| unmount(&options.views()));
        left.iter().for_each(|_| unmount(&open_views));
        closed.unwrap();
        assert_eq!((there.len(), there[0].minor, left.len(), open_views.exists()), (1, minor, 0, false));
        drop(dir);
    }
}
