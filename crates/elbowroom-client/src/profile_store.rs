//! Profiles that were kept: one file of JSON each in `<state-dir>/profiles`, named by what was profiled and when.
//!
//! At most [`MAX_FILES`] files and [`MAX_BYTES`] bytes: what is older goes when another comes. Only files whose names are those of profiles
//! are seen, read or removed, so the directory may hold other things. A file appears whole or not at all.

use elbowroom_linux::bounded;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Files that are kept.
pub const MAX_FILES: usize = 100;

/// Bytes that are kept, all files together. The newest file stays whatever its size.
pub const MAX_BYTES: u64 = 64 << 20;

/// A profile that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoredProfile {
    /// Name of its file without `.json`: `pages-1760000000000`.
    pub name: String,
    /// What was profiled: the verb.
    pub kind: String,
    /// When it was kept, in milliseconds since 1970.
    pub time_unix_ms: u64,
    /// Size of its file.
    pub bytes: u64,
}

/// Where profiles are kept.
#[derive(Clone, Debug)]
pub struct ProfileStore(PathBuf);

impl ProfileStore {
    /// Those below the state directory of an agent or of the command line. Nothing is made yet.
    pub fn at(state_dir: &Path) -> Self {
        Self(state_dir.join("profiles"))
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// All, the newest first; none where the directory is not there.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<StoredProfile>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Some((kind, time_unix_ms)) = entry.file_name().to_str().and_then(parse) else { continue };
            // One that another process has just removed is not there.
            let Ok(data) = entry.metadata() else { continue };
            if data.is_file() {
                all.push(StoredProfile {
                    name: format!("{kind}-{time_unix_ms}"),
                    kind,
                    time_unix_ms,
                    bytes: data.len(),
                });
            }
        }
        all.sort_by(|a, b| (b.time_unix_ms, &b.kind).cmp(&(a.time_unix_ms, &a.kind)));
        Ok(all)
    }

    /// The text of one; `None` where none is called so.
    ///
    /// # Errors
    /// The directory or the file cannot be read.
    pub fn read(&self, name: &str) -> io::Result<Option<String>> {
        if !self.list()?.iter().any(|kept| kept.name == name) {
            return Ok(None);
        }
        bounded::file_text(self.file(name), MAX_BYTES).map(Some)
    }

    /// Makes the directory, so that a failure shows before anything is measured.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create_dir(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.0)
    }

    /// Keeps the text of a profile, under the name that is returned, and removes those that are too many.
    ///
    /// # Errors
    /// The file cannot be written, or an old one not be removed.
    pub fn save(&self, kind: &str, text: &str) -> io::Result<String> {
        self.create_dir()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        // Two within a millisecond: the second is a millisecond younger.
        let time = (now..).find(|time| !self.file(&format!("{kind}-{time}")).exists()).unwrap_or(now);
        let name = format!("{kind}-{time}");
        let draft = self.0.join(format!(".{name}.{}", std::process::id()));
        let written = fs::OpenOptions::new().write(true).create_new(true).mode(0o640).open(&draft);
        let written = written.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()));
        let named = written.and_then(|()| fs::rename(&draft, self.file(&name)));
        if named.is_err() {
            let _ = fs::remove_file(&draft);
        }
        named?;
        self.evict_oldest()?;
        Ok(name)
    }

    /// Removes the oldest until what is left is within bounds.
    fn evict_oldest(&self) -> io::Result<()> {
        let mut bytes = 0;
        for (place, kept) in self.list()?.into_iter().enumerate() {
            bytes += kept.bytes;
            if place > 0 && (place >= MAX_FILES || bytes > MAX_BYTES) {
                match fs::remove_file(self.file(&kept.name)) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.json"))
    }
}

/// Kind and time of a file's name; `None` for names that no profile has.
fn parse(file: &str) -> Option<(String, u64)> {
    let (kind, time) = file.strip_suffix(".json")?.split_once('-')?;
    let number = time.parse::<u64>().ok().filter(|number| number.to_string() == time)?;
    (!kind.is_empty() && kind.bytes().all(|b| b.is_ascii_lowercase())).then(|| (kind.to_owned(), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_profiles_are_kept_and_nothing_else_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let profiles = ProfileStore::at(dir.path());
        assert_eq!((profiles.list().unwrap(), profiles.read("pages-1").unwrap()), (vec![], None));
        profiles.create_dir().unwrap();
        for other in ["notes.txt", "pages-01.json", "../state.json", "Pages-1.json", ".pages-1.2"] {
            fs::write(profiles.dir().join(other), "mine").unwrap();
        }
        for time in 0..MAX_FILES {
            fs::write(profiles.file(&format!("faults-{time}")), "{}").unwrap();
        }
        let names: Vec<String> = (0..3).map(|_| profiles.save("pages", "{\"a\": 1}").unwrap()).collect();
        let list = profiles.list().unwrap();
        assert_eq!(list.len(), MAX_FILES);
        let newest: Vec<&str> = list[..3].iter().rev().map(|kept| kept.name.as_str()).collect();
        assert_eq!(newest, names);
        assert_eq!(list.last().unwrap().name, "faults-3");
        assert_eq!((list[0].kind.as_str(), list[0].bytes), ("pages", 8));
        assert_eq!(profiles.read(&names[0]).unwrap().unwrap(), "{\"a\": 1}");
        for name in ["faults-0", "../state", "notes.txt", "pages-01"] {
            assert_eq!(profiles.read(name).unwrap(), None, "{name}");
        }
        assert_eq!(fs::read_to_string(profiles.dir().join("notes.txt")).unwrap(), "mine");
        assert_eq!(fs::read_to_string(dir.path().join("state.json")).unwrap(), "mine");
    }

    #[test]
    fn large_ones_leave_sooner_and_the_newest_stays() {
        let dir = tempfile::tempdir().unwrap();
        let profiles = ProfileStore::at(dir.path());
        profiles.create_dir().unwrap();
        for time in 1..=3 {
            // A file with a hole has the size, and needs no disk.
            fs::File::create(profiles.file(&format!("startup-{time}")))
                .unwrap()
                .set_len(MAX_BYTES / 2)
                .unwrap();
        }
        let newest = profiles.save("pages", "{}").unwrap();
        let names: Vec<String> = profiles.list().unwrap().into_iter().map(|kept| kept.name).collect();
        assert_eq!(names, [newest, "startup-3".to_owned()]);
    }
}
