//! A directory for what a profiled program writes, which may be large: on a disk, and not in memory as `/run` is.

use super::{EngineError, file_error, own_tag};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where these directories are. Every user may write there.
pub(super) const PARENT: &str = "/var/tmp";
/// What a name begins with, before the profiler's tag.
const PREFIX: &str = "elbowroom-gpu-";

/// It goes when this is dropped; what a killed profiler left, [`super::clean`] removes.
#[derive(Debug)]
pub struct ScratchDir(PathBuf);

impl ScratchDir {
    /// Makes it, for this user alone.
    ///
    /// # Errors
    /// It cannot be made, or is there already: its maker could read and change what is written there.
    pub fn new() -> Result<Self, EngineError> {
        Self::below(Path::new(PARENT), &own_tag())
    }

    fn below(parent: &Path, tag: &str) -> Result<Self, EngineError> {
        let path = path(parent, tag);
        DirBuilder::new().mode(0o700).create(&path).map_err(file_error("making", &path))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Tags of the profilers that have such a directory below `parent`.
pub(super) fn tags(parent: &Path) -> Vec<String> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let tags = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix(PREFIX)?.to_owned()));
    tags.filter(|tag| is_ours(&path(parent, tag))).collect()
}

/// Removes that of a profiler that is gone, where there is one.
pub(super) fn remove(parent: &Path, tag: &str) -> io::Result<()> {
    let path = path(parent, tag);
    if is_ours(&path) { fs::remove_dir_all(&path) } else { Ok(()) }
}

fn path(parent: &Path, tag: &str) -> PathBuf {
    parent.join(format!("{PREFIX}{tag}"))
}

/// Not a link, and no other user's directory that is only called so.
fn is_ours(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|data| data.is_dir() && data.uid() == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_for_one_user_and_one_profiler_and_goes_with_it() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = ScratchDir::below(parent.path(), "1-2").unwrap();
        assert_eq!(fs::metadata(scratch.path()).unwrap().mode() & 0o777, 0o700);
        fs::write(scratch.path().join("trace.1"), "x").unwrap();
        let error = ScratchDir::below(parent.path(), "1-2").unwrap_err().to_string();
        assert!(error.contains("elbowroom-gpu-1-2"), "{error}");
        drop(scratch);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_profiler_left_is_found_and_removed_and_what_is_only_called_so_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        let left = ScratchDir::below(parent.path(), "1-2").unwrap();
        fs::write(left.path().join("trace.1"), "x").unwrap();
        std::mem::forget(left);
        fs::create_dir(at("other")).unwrap();
        fs::write(at("elbowroom-gpu-3-4"), "").unwrap();
        std::os::unix::fs::symlink(at("other"), at("elbowroom-gpu-5-6")).unwrap();
        assert_eq!(tags(parent.path()), ["1-2"]);
        for tag in ["1-2", "3-4", "5-6", "7-8"] {
            remove(parent.path(), tag).unwrap();
        }
        assert!(
            !at("elbowroom-gpu-1-2").exists() && at("elbowroom-gpu-3-4").exists() && at("other").exists()
        );
    }
}
