//! What disks can do, kept over a restart: `<state-dir>/disks.json`.
//!
//! Losing the file costs a minute of learning, so nothing here is an error. If the file cannot be read, the agent warns and starts
//! afresh. If it cannot be written, the agent warns once.

use anyhow::{Context, Result, ensure};
use elbowroom_linux::bounded;
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::Micros;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// Version of the file's form.
const VERSION: u32 = 1;
/// The file is written at most this often.
const WRITE_INTERVAL: Micros = Micros::secs(60);
/// Disks remembered; more come and go only where volumes do.
const MAX_DISKS: usize = 1_000;

#[derive(Serialize, Deserialize)]
struct DiskCapacityFile {
    version: u32,
    disks: BTreeMap<String, IoMax>,
}

/// Keeps capacities; writes them on a thread of its own, for the disk they go to may be the slow one.
pub(super) struct DiskCapacityStore {
    known: BTreeMap<String, IoMax>,
    /// What the thread was last given.
    written: BTreeMap<String, IoMax>,
    write_at: Micros,
    writer: Option<mpsc::SyncSender<BTreeMap<String, IoMax>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl DiskCapacityStore {
    /// Reads the file of a state directory.
    pub(super) fn open(state_dir: &Path) -> Self {
        let path = state_dir.join("disks.json");
        let known = load_capacities(&path).unwrap_or_else(|error| {
            tracing::warn!(
                because = elbowroom_client::output::one_line(&error),
                "what disks can do is learned anew, and the file will be replaced"
            );
            BTreeMap::new()
        });
        // One that waits: a newer set of numbers would only replace it.
        let (writer, queue) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("capacities".into())
            .spawn(move || run_writer(&path, &queue))
            .expect("threads can be created at start");
        Self {
            written: known.clone(),
            known,
            write_at: Micros::ZERO,
            writer: Some(writer),
            thread: Some(thread),
        }
    }

    /// Every disk that is remembered.
    pub(super) fn known(&self) -> impl Iterator<Item = (&str, IoMax)> {
        self.known.iter().map(|(identity, capacity)| (identity.as_str(), *capacity))
    }

    /// Whether [`Self::update`] would write now.
    pub(super) fn is_due(&self, now: Micros) -> bool {
        now >= self.write_at
    }

    /// Takes what is known now. Disks that are away stay remembered, as long as there are not too many of them.
    pub(super) fn update(&mut self, now: Micros, capacities: Vec<(String, IoMax)>) {
        self.write_at = now.saturating_add(WRITE_INTERVAL);
        let here: HashMap<String, IoMax> =
            capacities.into_iter().filter(|(_, capacity)| *capacity != IoMax::MAX).collect();
        let new = here.keys().filter(|identity| !self.known.contains_key(*identity)).count();
        let mut too_many = (self.known.len() + new).saturating_sub(MAX_DISKS);
        self.known.retain(|identity, _| {
            let stays = too_many == 0 || here.contains_key(identity);
            too_many -= usize::from(!stays);
            stays
        });
        self.known.extend(here);
        if self.known != self.written
            && let Some(writer) = &self.writer
            && writer.try_send(self.known.clone()).is_ok()
        {
            self.written = self.known.clone();
        }
    }

    /// Writes what is not written yet, unless the disk takes too long.
    pub(super) fn stop(&mut self) {
        self.writer = None;
        let Some(thread) = self.thread.take() else { return };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(2);
        while !thread.is_finished() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

fn run_writer(path: &Path, queue: &mpsc::Receiver<BTreeMap<String, IoMax>>) {
    let mut failing = false;
    for disks in queue {
        match (save(path, disks), failing) {
            (Ok(()), _) => failing = false,
            (Err(error), false) => {
                failing = true;
                tracing::warn!(
                    because = elbowroom_client::output::one_line(&error),
                    "what disks can do is not kept over a restart"
                );
            }
            (Err(_), true) => {}
        }
    }
}

/// The disks of a file, with what each can do; none where there is no file.
///
/// # Errors
/// It cannot be read, or is not of this form.
pub fn load_capacities(path: &Path) -> Result<BTreeMap<String, IoMax>> {
    let text = match bounded::file(path, bounded::SETTINGS_FILE) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(e) => return Err(e).with_context(|| format!("reading {}", path.display())),
    };
    let form: DiskCapacityFile = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    ensure!(form.version == VERSION, "{}: of version {}, not {VERSION}", path.display(), form.version);
    Ok(form.disks)
}

/// Whole or not at all, also when the power fails.
fn save(path: &Path, disks: BTreeMap<String, IoMax>) -> Result<()> {
    let dir = path.parent().expect("the file is in a directory");
    let write = || -> std::io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        let part: PathBuf = path.with_extension("json.part");
        let mut file = File::create(&part)?;
        file.write_all(&serde_json::to_vec_pretty(&DiskCapacityFile { version: VERSION, disks })?)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        File::open(dir)?.sync_all()
    };
    write().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Limit;

    const FAST: IoMax = IoMax { rbps: Limit::At(500 << 20), ..IoMax::MAX };

    #[test]
    fn what_was_learned_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/here");
        let mut first = DiskCapacityStore::open(&state);
        assert_eq!(first.known().count(), 0);
        first.update(Micros::ZERO, vec![("disk a".into(), FAST), ("unknown".into(), IoMax::MAX)]);
        first.stop();
        let mut second = DiskCapacityStore::open(&state);
        assert_eq!(second.known().collect::<Vec<_>>(), [("disk a", FAST)]);
        // A disk that is away now is not forgotten.
        second.update(Micros::ZERO, vec![("disk b".into(), FAST)]);
        second.stop();
        assert_eq!(DiskCapacityStore::open(&state).known().count(), 2);
    }

    #[test]
    fn of_too_many_disks_those_that_are_away_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let mut capacities = DiskCapacityStore::open(dir.path());
        let here = ("a".to_owned(), FAST);
        for n in 0..=MAX_DISKS {
            capacities.update(Micros::ZERO, vec![here.clone(), (format!("gone {n}"), FAST)]);
        }
        let known: Vec<&str> = capacities.known().map(|(identity, _)| identity).collect();
        assert_eq!((known.len(), known[0]), (MAX_DISKS, "a"));
        assert!(known.contains(&&*format!("gone {MAX_DISKS}")));
    }

    #[test]
    fn a_damaged_file_is_a_fresh_start_and_is_replaced() {
        for damage in [
            "",
            "{",
            "[]",
            "{\"version\": 9, \"disks\": {}}",
            "\0\0\0\0",
            "{\"version\":1,\"disks\":{\"a\":7}}",
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("disks.json"), damage).unwrap();
            let mut capacities = DiskCapacityStore::open(dir.path());
            assert_eq!(capacities.known().count(), 0, "{damage:?}");
            capacities.update(Micros::ZERO, vec![("disk a".into(), FAST)]);
            capacities.stop();
            assert_eq!(DiskCapacityStore::open(dir.path()).known().count(), 1, "{damage:?}");
        }
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_stops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let mut capacities = DiskCapacityStore::open(&dir.path().join("file/state"));
        capacities.update(Micros::ZERO, vec![("disk a".into(), FAST)]);
        capacities.stop();
    }
}
