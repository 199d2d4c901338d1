//! What fixes wrote, one file each below `<state-dir>/fixes`, written and synced before the first file is touched: whatever
//! dies in between, `elbowroom undo` knows what may have been changed.

use crate::checks::AppliedWrite;
use crate::strategies::housekeeping::HousekeepingCgroup;
use elbowroom_linux::bounded;
use elbowroom_linux::cgroup;
use elbowroom_linux::root::Root;
use elbowroom_types::finding::FileWrite;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file with the number of the last fix, whether or not that was taken back: people find numbers in their shell's history.
const LAST_ID: &str = "last-id";
/// Held while something is written.
const LOCK: &str = ".lock";
/// What is being written; the lock is held meanwhile.
const DRAFT: &str = ".draft";

/// A directory of fixes.
#[derive(Clone, Debug)]
pub struct Journal {
    dir: PathBuf,
}

/// Makes a directory of the state directory, with that, for this user alone.
pub(crate) fn make_private(dir: &Path) -> Result<(), JournalError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error("making", dir))
}

/// One fix. It ends with the boot it was made in, and what it wrote to a cgroup ends with that cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixEntry {
    /// Its number, which no other fix of this journal ever has.
    pub id: u64,
    /// When, in seconds since the epoch.
    pub at: u64,
    /// The check whose finding it removes.
    pub check: String,
    /// The container; absent for the host.
    pub container: Option<String>,
    /// In the order they are made; taken back in the opposite one.
    pub writes: Vec<FileWrite>,
    /// A cgroup that was made, and the processes that were moved there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placing: Option<HousekeepingCgroup>,
    /// `/proc/sys/kernel/random/boot_id`; absent in what earlier versions wrote down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
    /// The cgroups that files were written in, by their directories' paths, with the inodes by which later ones are told from
    /// them; absent as well.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cgroups: BTreeMap<String, u64>,
}

impl FixEntry {
    /// Whether the machine was started again since: nothing that fixes do survives that.
    pub(crate) fn is_from_other_boot(&self, root: &Root) -> bool {
        self.boot.is_some() && boot(root).is_some_and(|now| self.boot != Some(now))
    }

    /// Whether what a write of it changed is no more, though a file of that name may be there.
    pub(crate) fn has_ended(&self, root: &Root, write: &FileWrite) -> bool {
        let cgroup = write.file.rsplit_once('/').and_then(|(dir, _)| self.cgroups.get_key_value(dir));
        let is_another = |(dir, then): (&String, &u64)| match cgroup::open_cgroup(root, dir) {
            Ok((_, now)) => now != *then,
            Err(error) => error.is_absent(),
        };
        self.is_from_other_boot(root) || cgroup.is_some_and(is_another)
    }
}

fn boot(root: &Root) -> Option<String> {
    let id = root.read("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim_end().to_owned())
}

fn cgroups(root: &Root, writes: &[FileWrite]) -> BTreeMap<String, u64> {
    let cgroup = |write: &FileWrite| {
        let (path, _) = write.file.rsplit_once('/')?;
        let (dir, inode) = cgroup::open_cgroup(root, path).ok()?;
        // Inodes of /proc/sys come and go with the memory they are in.
        cgroup::is_cgroup(&dir).is_ok_and(|is| is).then(|| (path.to_owned(), inode))
    };
    writes.iter().filter_map(cgroup).collect()
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("while {operation} {}: {source}", path.display())]
    Io {
        /// What was done.
        operation: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Not what a fix is written as.
    #[error("{}: {source}; move it away to go on", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
}

impl Journal {
    /// The journal of a state directory, which need not be there yet.
    pub fn at(state_dir: &Path) -> Self {
        Self { dir: state_dir.join("fixes") }
    }

    /// Fixes that were made and not taken back, oldest first.
    ///
    /// # Errors
    /// What cannot be read, or is no fix.
    pub fn entries(&self) -> Result<Vec<FixEntry>, JournalError> {
        let listing = match fs::read_dir(&self.dir) {
            Ok(listing) => listing,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(io_error("listing", &self.dir)(e)),
        };
        let mut entries = Vec::new();
        for file in listing {
            let path = file.map_err(io_error("listing", &self.dir))?.path();
            // What died while it was written has touched nothing yet.
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            let text = match bounded::file(&path, bounded::KERNEL_FILE) {
                Ok(text) => text,
                // It was undone since the directory was listed.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(io_error("reading", &path)(e)),
            };
            let entry: FixEntry = serde_json::from_slice(&text)
                .map_err(|source| JournalError::Malformed { path: path.clone(), source })?;
            entries.push(entry);
        }
        entries.sort_by_key(|e| e.id);
        Ok(entries)
    }

    /// Every write of every fix that can still be in force, for [`crate::facts::collect_facts`].
    ///
    /// # Errors
    /// Those of [`Journal::entries`].
    pub fn applied(&self, root: &Root) -> Result<Vec<AppliedWrite>, JournalError> {
        let entries = self.entries()?;
        let writes = entries.iter().flat_map(|e| {
            let last = e.writes.iter().filter(|w| !e.has_ended(root, w));
            last.map(|w| AppliedWrite {
                id: e.id.to_string(),
                file: w.file.clone(),
                to: w.to.clone(),
                now: None,
            })
        });
        Ok(writes.collect())
    }

    /// Writes a fix down, before it is made. Its number, its boot and its cgroups are given here.
    ///
    /// # Errors
    /// Where the directory cannot be written: nothing may be changed then.
    pub fn begin(&self, root: &Root, mut entry: FixEntry) -> Result<FixEntry, JournalError> {
        make_private(&self.dir)?;
        (entry.boot, entry.cgroups) = (boot(root), cgroups(root, &entry.writes));
        // Two doctors at once take different numbers.
        let _lock = self.lock()?;
        let newest = self.entries()?.last().map_or(0, |newest| newest.id);
        entry.id = newest.max(self.last_id()?) + 1;
        // The number is used up first: one of a fix that was not written is never seen, one that is given twice takes back another fix.
        self.write(&self.dir.join(LAST_ID), &entry.id)?;
        self.write(&self.path(entry.id), &entry)?;
        Ok(entry)
    }

    /// The lock that a doctor holds while it writes a fix down; it goes with the file.
    fn lock(&self) -> Result<File, JournalError> {
        let path = self.dir.join(LOCK);
        let mut options = File::options();
        // A user who can open a file can lock it: others cannot open this one.
        let file = options.create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(io_error("opening", &path))?;
        flock(&file, FlockOperation::LockExclusive)
            .map_err(|errno| io_error("locking", &path)(errno.into()))?;
        Ok(file)
    }

    /// The last number that was given; 0 where none was, or by an earlier version.
    fn last_id(&self) -> Result<u64, JournalError> {
        let path = self.dir.join(LAST_ID);
        let text = match bounded::file(&path, bounded::KERNEL_FILE) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(e) => return Err(io_error("reading", &path)(e)),
        };
        serde_json::from_slice(&text).map_err(|source| JournalError::Malformed { path, source })
    }

    /// Writes a file as a whole, or not at all, and has it on the disk.
    fn write(&self, path: &Path, value: &impl Serialize) -> Result<(), JournalError> {
        let text = serde_json::to_vec_pretty(value)
            .map_err(|source| JournalError::Malformed { path: path.to_owned(), source })?;
        let draft = self.dir.join(DRAFT);
        let written = File::create(&draft).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&draft, path)?;
            File::open(&self.dir)?.sync_all()
        });
        written.map_err(io_error("writing", path))
    }

    /// Forgets a fix that was taken back, or that is not ours any more.
    ///
    /// # Errors
    /// Where the file cannot be removed.
    pub fn forget(&self, id: u64) -> Result<(), JournalError> {
        let path = self.path(id);
        fs::remove_file(&path).map_err(io_error("removing", &path))
    }

    fn path(&self, id: u64) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}

pub(crate) fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io { operation, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::fixture::Fixture;

    fn entry() -> FixEntry {
        FixEntry { at: 1, check: "x".into(), writes: vec![FileWrite::default()], ..FixEntry::default() }
    }

    fn host() -> Root {
        Root::host().unwrap()
    }

    #[test]
    fn fixes_are_numbered_and_forgotten_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::at(dir.path());
        assert!(journal.entries().unwrap().is_empty());
        let ids: Vec<u64> = (0..3).map(|_| journal.begin(&host(), entry()).unwrap().id).collect();
        assert_eq!(ids, [1, 2, 3]);
        journal.forget(2).unwrap();
        assert_eq!(journal.entries().unwrap().iter().map(|e| e.id).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(journal.applied(&host()).unwrap().len(), 2);
    }

    #[test]
    fn a_user_who_can_read_the_directory_keeps_no_fix_from_being_written_down() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::at(&dir.path().join("state"));
        let id = journal.begin(&host(), entry()).unwrap().id;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(
            (mode(&dir.path().join("state")), mode(&journal.dir), mode(&journal.dir.join(LOCK))),
            (0o700, 0o700, 0o600)
        );
        // As an earlier version left it, to another user's process.
        let held = File::open(&journal.dir).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(journal.begin(&host(), entry()).unwrap().id));
        assert_eq!(wait.recv_timeout(std::time::Duration::from_secs(20)), Ok(id + 1));
    }

    #[test]
    fn a_number_is_never_given_again_also_after_a_death_in_the_middle() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::at(dir.path());
        let begin = || journal.begin(&host(), entry()).unwrap().id;
        assert_eq!([begin(), begin()], [1, 2]);
        for id in [2, 1] {
            journal.forget(id).unwrap();
        }
        assert_eq!(begin(), 3, "all were taken back");
        // Died after it took a number, and before it wrote the fix; and a draft is left.
        fs::write(dir.path().join("fixes").join(LAST_ID), "7").unwrap();
        fs::write(dir.path().join("fixes").join(DRAFT), "{").unwrap();
        assert_eq!(begin(), 8);
        // An earlier version kept no number.
        fs::remove_file(dir.path().join("fixes").join(LAST_ID)).unwrap();
        assert_eq!(begin(), 9);
        assert_eq!(journal.entries().unwrap().iter().map(|e| e.id).collect::<Vec<_>>(), [3, 8, 9]);
        fs::write(dir.path().join("fixes").join(LAST_ID), "many").unwrap();
        assert!(journal.begin(&host(), entry()).unwrap_err().to_string().contains(LAST_ID));
    }

    #[test]
    fn doctors_at_once_take_different_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::at(dir.path());
        let mut ids: Vec<u64> = std::thread::scope(|scope| {
            let one = || scope.spawn(|| journal.begin(&host(), entry()).unwrap().id);
            let threads: Vec<_> = (0..8).map(|_| one()).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_fix_that_an_earlier_version_wrote_down_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::at(dir.path());
        journal.begin(&host(), entry()).unwrap();
        let text = r#"{"id": 2, "at": 1, "check": "cpu-throttled", "container": "web", "writes": []}"#;
        fs::write(dir.path().join("fixes/2.json"), text).unwrap();
        assert_eq!(journal.entries().unwrap()[1].placing, None);
        assert!(!fs::read_to_string(dir.path().join("fixes/1.json")).unwrap().contains("placing"));
    }

    #[test]
    fn a_fix_ends_with_its_cgroup_and_with_its_boot_whatever_has_their_names_since() {
        const BOOT: &str = "proc/sys/kernel/random/boot_id";
        let fixture =
            Fixture::new(&format!("-- {BOOT} --\none\n-- cg/web/cpu.max --\n2\n-- cg/db/cpu.max --\n2\n"))
                .unwrap();
        let root = Root::at(fixture.path()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::at(dir.path());
        let write = |file: &str| FileWrite { file: file.into(), to: "2".into(), ..FileWrite::default() };
        let writes = vec![write("/cg/web/cpu.max"), write("/cg/db/cpu.max")];
        let made = journal.begin(&root, FixEntry { writes, ..entry() }).unwrap();
        assert_eq!((made.boot.as_deref(), made.cgroups.len()), (Some("one"), 2));
        let in_force = || {
            let applied = journal.applied(&root).unwrap();
            applied.into_iter().map(|applied| applied.file).collect::<Vec<_>>()
        };
        assert_eq!(in_force(), ["/cg/web/cpu.max", "/cg/db/cpu.max"]);
        // Started again: another cgroup of that name. The old one is there still, or its inode could be the new one's.
        std::fs::rename(fixture.path().join("cg/web"), fixture.path().join("old")).unwrap();
        fixture.write("cg/web/cpu.max", "2\n").unwrap();
        assert_eq!(in_force(), ["/cg/db/cpu.max"]);
        fixture.remove("cg/web").unwrap();
        assert_eq!(in_force(), ["/cg/db/cpu.max"]);
        fixture.write(BOOT, "another\n").unwrap();
        assert_eq!(in_force(), [""; 0]);
        // As earlier versions wrote them down.
        let old = FixEntry { boot: None, cgroups: BTreeMap::new(), ..made };
        assert!(
            !old.is_from_other_boot(&root) && !old.writes.iter().any(|write| old.has_ended(&root, write))
        );
    }

    #[test]
    fn a_draft_that_was_not_finished_is_no_fix_and_a_broken_fix_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::at(dir.path());
        journal.begin(&host(), entry()).unwrap();
        fs::write(dir.path().join("fixes/.2-77"), "{").unwrap();
        assert_eq!(journal.entries().unwrap().len(), 1);
        fs::write(dir.path().join("fixes/3.json"), "{").unwrap();
        assert!(journal.entries().unwrap_err().to_string().contains("3.json"));
    }
}
