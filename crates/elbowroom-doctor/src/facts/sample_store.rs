//! Looks that were kept: one file each below `<state-dir>/looks`, named after the second they were made in, or the last one in a file.

use crate::checks::CounterSnapshot;
use crate::fixes::journal::{JournalError, io_error, make_private};
use elbowroom_linux::bounded;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most samples that are kept: a week of them, taken every twenty minutes.
const MAX_SAMPLES: usize = 504;

/// No look takes this long to write.
const STALE_DRAFT_AGE: Duration = Duration::from_secs(600);

/// A directory of looks.
#[derive(Clone, Debug)]
pub struct CounterSampleStore {
    dir: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct StoredCounterSample {
    /// `/proc/sys/kernel/random/boot_id`: counters of another boot are other counters.
    boot: String,
    look: CounterSnapshot,
}

impl CounterSampleStore {
    /// Those of a state directory, which need not be there yet.
    pub fn at(state_dir: &Path) -> Self {
        Self { dir: state_dir.join("looks") }
    }

    /// Keeps a look made `now`, in seconds since the epoch, and forgets the oldest ones.
    ///
    /// # Errors
    /// Where the directory cannot be written.
    pub fn save(&self, now: u64, look: CounterSnapshot) -> Result<(), JournalError> {
        make_private(&self.dir)?;
        remove_drafts(&self.dir, |name| time_of(name).is_some());
        LastCounterSample::at(&self.path(now)).save(look)?;
        self.prune(MAX_SAMPLES)
    }

    fn prune(&self, most: usize) -> Result<(), JournalError> {
        let times = self.times()?;
        for old in &times[..times.len().saturating_sub(most)] {
            let path = self.path(*old);
            fs::remove_file(&path).map_err(io_error("removing", &path))?;
        }
        Ok(())
    }

    /// The last look of this boot made at `time` or before, else the first one made after it; with when that was. `None` where
    /// none was kept since the host was started.
    ///
    /// # Errors
    /// Where one cannot be read.
    pub fn find(&self, time: u64) -> Result<Option<(u64, CounterSnapshot)>, JournalError> {
        let times = self.times()?;
        let (before, after): (Vec<u64>, Vec<u64>) = times.into_iter().partition(|at| *at <= time);
        for at in before.into_iter().rev().chain(after) {
            if let Some(look) = LastCounterSample::at(&self.path(at)).find()? {
                return Ok(Some((at, look)));
            }
        }
        Ok(None)
    }

    /// When looks were made, the oldest first.
    fn times(&self) -> Result<Vec<u64>, JournalError> {
        let listing = match fs::read_dir(&self.dir) {
            Ok(listing) => listing,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(io_error("listing", &self.dir)(e)),
        };
        let names = listing.filter_map(|file| file.ok()?.file_name().into_string().ok());
        let mut times: Vec<u64> = names.filter_map(|name| time_of(&name)).collect();
        times.sort_unstable();
        Ok(times)
    }

    fn path(&self, at: u64) -> PathBuf {
        self.dir.join(format!("{at}.json"))
    }
}

/// When the look in a file of that name was made.
fn time_of(name: &str) -> Option<u64> {
    name.strip_suffix(".json")?.parse().ok()
}

/// Removes drafts of files of such names in a directory, which doctors left that were killed.
fn remove_drafts(dir: &Path, of: impl Fn(&str) -> bool) {
    let Ok(listing) = fs::read_dir(dir) else { return };
    for file in listing.filter_map(Result::ok) {
        let name = file.file_name();
        let draft = name.to_str().and_then(|name| name.strip_prefix('.')?.rsplit_once('-'));
        let is_one = draft.is_some_and(|(name, pid)| of(name) && pid.parse::<u32>().is_ok());
        let age = file.metadata().and_then(|meta| meta.modified()).map(|at| at.elapsed().unwrap_or_default());
        if is_one && age.is_ok_and(|age| age > STALE_DRAFT_AGE) {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// A file that has one look, the last.
#[derive(Clone, Debug)]
pub struct LastCounterSample {
    path: PathBuf,
}

impl LastCounterSample {
    /// The one in the file `path`, which need not be there yet.
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Replaces it.
    ///
    /// # Errors
    /// Where the file cannot be written; the last one is still in it then.
    pub fn save(&self, look: CounterSnapshot) -> Result<(), JournalError> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(dir) = self.path.parent() {
            remove_drafts(if dir == Path::new("") { Path::new(".") } else { dir }, |of| of == name);
        }
        let draft = self.path.with_file_name(format!(".{name}-{}", std::process::id()));
        let text = serde_json::to_vec(&StoredCounterSample { boot: boot_id(), look })
            .map_err(|source| JournalError::Malformed { path: self.path.clone(), source })?;
        // One that is there is a killed doctor's, or another user's link to a file of ours.
        let _ = fs::remove_file(&draft);
        let written = File::create_new(&draft).and_then(|mut f| f.write_all(&text));
        let named = written.and_then(|()| fs::rename(&draft, &self.path));
        if named.is_err() {
            let _ = fs::remove_file(&draft);
        }
        named.map_err(io_error("writing", &self.path))
    }

    /// It, unless there is none since the host was started.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn find(&self) -> Result<Option<CounterSnapshot>, JournalError> {
        let text = match bounded::file(&self.path, bounded::KERNEL_FILE) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io_error("reading", &self.path)(e)),
        };
        let kept: StoredCounterSample = serde_json::from_slice(&text)
            .map_err(|source| JournalError::Malformed { path: self.path.clone(), source })?;
        Ok((kept.boot == boot_id()).then_some(kept.look))
    }
}

fn boot_id() -> String {
    let id = bounded::file_text("/proc/sys/kernel/random/boot_id", bounded::KERNEL_FILE);
    id.unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::HostFacts;
    use elbowroom_types::unit::Micros;

    fn look(at: u64) -> CounterSnapshot {
        HostFacts::default().snapshot(Micros(at))
    }

    #[test]
    fn the_last_look_before_a_time_is_found_else_the_first_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let looks = CounterSampleStore::at(dir.path());
        assert_eq!(looks.find(100).unwrap(), None);
        for at in [10, 20, 30] {
            looks.save(at, look(at)).unwrap();
        }
        let found = |time| looks.find(time).unwrap().map(|(at, look)| (at, look.at.get()));
        assert_eq!(found(25), Some((20, 20)));
        assert_eq!(found(20), Some((20, 20)));
        assert_eq!(found(99), Some((30, 30)));
        assert_eq!(found(5), Some((10, 10)));
    }

    #[test]
    fn the_last_look_is_the_one_that_was_kept_last_in_this_boot() {
        let dir = tempfile::tempdir().unwrap();
        let last = LastCounterSample::at(&dir.path().join("last.json"));
        assert_eq!(last.find().unwrap(), None);
        for at in [10, 20] {
            last.save(look(at)).unwrap();
            assert_eq!(last.find().unwrap(), Some(look(at)));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a draft stayed");
        let other =
            serde_json::to_vec(&StoredCounterSample { boot: "another".into(), look: look(30) }).unwrap();
        fs::write(dir.path().join("last.json"), other).unwrap();
        assert_eq!(last.find().unwrap(), None);
        let nowhere = LastCounterSample::at(&dir.path().join("nowhere/last.json"));
        assert!(nowhere.save(look(40)).unwrap_err().to_string().contains("nowhere/last.json"));
    }

    #[test]
    fn a_link_where_a_draft_is_to_be_leads_to_no_other_file() {
        let dir = tempfile::tempdir().unwrap();
        let [last, draft, other] = ["last.json", &format!(".last.json-{}", std::process::id()), "other"]
            .map(|name| dir.path().join(name));
        fs::write(&other, "mine").unwrap();
        std::os::unix::fs::symlink(&other, &draft).unwrap();
        LastCounterSample::at(&last).save(look(10)).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
        assert!(fs::symlink_metadata(&last).unwrap().is_file() && !draft.exists());
    }

    #[test]
    fn drafts_of_doctors_that_were_killed_go_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let looks = CounterSampleStore::at(dir.path());
        looks.save(1, look(1)).unwrap();
        let old = std::time::SystemTime::now() - 2 * STALE_DRAFT_AGE;
        let make = |name: &str, age| {
            File::create(dir.path().join(name)).unwrap().set_modified(age).unwrap();
        };
        let now = std::time::SystemTime::now();
        for name in ["looks/.7.json-12", "looks/.notes-12", ".last.json-12", ".other.json-12", ".last.json-x"]
        {
            make(name, old);
        }
        make(".last.json-13", now);
        looks.save(2, look(2)).unwrap();
        LastCounterSample::at(&dir.path().join("last.json")).save(look(2)).unwrap();
        let names = |dir: &Path| {
            let all = fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
            let mut all: Vec<String> = all.collect();
            all.sort();
            all
        };
        assert_eq!(names(&dir.path().join("looks")), [".notes-12", "1.json", "2.json"]);
        let kept = [".last.json-13", ".last.json-x", ".other.json-12", "last.json", "looks"];
        assert_eq!(names(dir.path()), kept);
    }

    #[test]
    fn looks_of_an_earlier_boot_are_no_answer_and_the_oldest_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let looks = CounterSampleStore::at(dir.path());
        for at in 1..=6 {
            looks.save(at, look(at)).unwrap();
        }
        looks.prune(3).unwrap();
        assert_eq!(looks.find(1).unwrap().unwrap().0, 4);
        let other =
            serde_json::to_vec(&StoredCounterSample { boot: "another".into(), look: look(9_000) }).unwrap();
        fs::write(dir.path().join("looks/9000.json"), other).unwrap();
        assert_eq!(looks.find(9_000).unwrap().unwrap().0, 6);
        fs::write(dir.path().join("looks/9001.json"), "{").unwrap();
        assert!(looks.find(9_001).unwrap_err().to_string().contains("9001.json"));
    }
}
