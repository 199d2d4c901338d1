//! Fixture hosts: a machine's files in one text file, made into a directory that [`crate::root::Root::at`] takes for `/`.
//!
//! ```text
//! Words before the first section say where it was captured.
//! -- proc/loadavg --
//! 0.20 0.18 0.12 1/80 11206
//! -- sys/fs/cgroup/memory/empty/ --
//! -- sys/fs/cgroup/cpuacct -> cpu,cpuacct --
//! ```
//!
//! A section's text ends before the next header; a path that ends in `/` is an empty directory, one with `->` a symbolic
//! link. Directories on the way are made.

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A host made of text, removed when dropped.
#[derive(Debug)]
pub struct Fixture {
    path: PathBuf,
}

/// Why an archive did not become a directory.
#[derive(Debug, thiserror::Error)]
pub enum FixtureError {
    /// A section whose path leads out of the root.
    #[error("section \"{0}\" leads out of the fixture")]
    Escapes(String),
    /// The file system refused.
    #[error("while making {}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Whether this process ever made a fixture.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Whether this process works on fixtures: only tests and fuzz targets do, and there a plain directory may stand for a cgroup.
pub(crate) fn in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

impl Fixture {
    /// Makes `archive` into a new directory below the system's temporary one.
    pub fn new(archive: &str) -> Result<Self, FixtureError> {
        IN_USE.store(true, Ordering::Relaxed);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name =
            format!("elbowroom-fixture-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let made = std::fs::create_dir(&path).and_then(|()| path.canonicalize());
        let fixture = Self { path: made.map_err(|source| FixtureError::Io { path, source })? };
        for (name, text) in sections(archive) {
            fixture.make(name, text)?;
        }
        Ok(fixture)
    }

    /// The directory that stands for `/`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes one file, as a test does to make the host change.
    pub fn write(&self, path: &str, text: &str) -> Result<(), FixtureError> {
        self.make(path, text)
    }

    /// Removes a file or a directory with everything below it.
    pub fn remove(&self, path: &str) -> Result<(), FixtureError> {
        let at = self.below(path)?;
        let removed = if at.is_dir() { std::fs::remove_dir_all(&at) } else { std::fs::remove_file(&at) };
        removed.map_err(|source| FixtureError::Io { path: at, source })
    }

    fn make(&self, name: &str, text: &str) -> Result<(), FixtureError> {
        let (name, link) = match name.split_once(" -> ") {
            Some((name, target)) => (name, Some(target)),
            None => (name, None),
        };
        let at = self.below(name)?;
        // A link that an earlier section made may lead anywhere, and writing would follow it.
        let there = at.ancestors().find(|path| path.symlink_metadata().is_ok());
        if !there.and_then(|path| path.canonicalize().ok()).is_some_and(|path| path.starts_with(&self.path)) {
            return Err(FixtureError::Escapes(name.to_owned()));
        }
        let made = match (link, name.ends_with('/')) {
            (_, true) => std::fs::create_dir_all(&at),
            (link, false) => {
                std::fs::create_dir_all(at.parent().unwrap_or(&self.path)).and_then(|()| match link {
                    Some(target) => std::os::unix::fs::symlink(target, &at),
                    None => std::fs::write(&at, text),
                })
            }
        };
        made.map_err(|source| FixtureError::Io { path: at, source })
    }

    fn below(&self, name: &str) -> Result<PathBuf, FixtureError> {
        let relative = Path::new(name.trim_start_matches('/'));
        match relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
            true => Ok(self.path.join(relative)),
            false => Err(FixtureError::Escapes(name.to_owned())),
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // A directory that cannot be removed is litter in a temporary directory, not a reason to fail a test.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The sections of an archive: path and text.
pub fn sections(archive: &str) -> Vec<(&str, &str)> {
    let mut sections: Vec<(&str, usize, usize)> = Vec::new();
    let mut at = 0;
    for line in archive.split_inclusive('\n') {
        let end = at + line.len();
        let header = line.trim_end_matches('\n').strip_prefix("-- ").and_then(|l| l.strip_suffix(" --"));
        match (header, sections.last_mut()) {
            (Some(name), _) => sections.push((name, end, end)),
            (None, Some((_, _, text_end))) => *text_end = end,
            (None, None) => {}
        }
        at = end;
    }
    sections.into_iter().map(|(name, start, end)| (name, &archive[start..end])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_becomes_files_directories_and_links() {
        let host =
            Fixture::new("about\n-- a/b --\n1\n2\n-- a/empty --\n-- d/ --\n-- l -> a/b --\n-- last --\nx")
                .unwrap();
        let read = |p: &str| std::fs::read_to_string(host.path().join(p)).unwrap();
        assert_eq!(
            (read("a/b"), read("a/empty"), read("l"), read("last")),
            ("1\n2\n".into(), "".into(), "1\n2\n".into(), "x".into())
        );
        assert!(host.path().join("d").is_dir());
        let path = host.path().to_path_buf();
        drop(host);
        assert!(!path.exists());
    }

    #[test]
    fn a_section_cannot_write_outside() {
        let outside = tempfile::tempdir().unwrap();
        let link = format!("-- l -> {}/new --\n-- d -> {0} --\n", outside.path().display());
        for section in ["../x", "l", "d/x", "d/x/y", "d/x/"] {
            let archive = format!("{link}-- {section} --\n1\n");
            assert!(matches!(Fixture::new(&archive), Err(FixtureError::Escapes(_))), "{section}");
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
