//! Keeps the black box of the agent, on a thread of its own: the disk it goes to may be slow, full, or gone.
//!
//! The policy loop gives a snapshot when it is asked for one, as to any client of the control socket, and there is news; taking it apart,
//! packing and writing it is not its business.

use super::Mailbox;
use crate::recorder::settings::RecorderSettings;
use crate::recorder::writer::RingWriter;
use anyhow::Result;
use elbowroom_client::api::AgentSnapshot;
use elbowroom_linux::timer;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// After a failure, the next attempt is not made sooner.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Starts the thread.
pub(super) fn spawn(settings: &RecorderSettings, state_dir: &Path, mailbox: Mailbox) {
    let (dir, settings) = (settings.directory(state_dir), settings.clone());
    std::thread::Builder::new()
        .name("recorder".into())
        .spawn(move || {
            let period = Duration::from_micros(settings.period.get());
            let mut record = SnapshotRecorder { dir, settings, writer: None };
            let (mut failing, mut recorded) = (false, 0);
            loop {
                let outcome = mailbox.await_snapshot(recorded).and_then(|snapshot| {
                    recorded = snapshot.time_unix_ms;
                    record.write(snapshot)
                });
                match &outcome {
                    Err(error) if !failing => tracing::warn!(
                        directory = %record.dir.display(), because = elbowroom_client::output::one_line(error), "nothing is recorded; trying again"
                    ),
                    Ok(()) if failing => tracing::info!(directory = %record.dir.display(), "recording again"),
                    _ => {}
                }
                failing = outcome.is_err();
                let age = Duration::from_millis(timer::unix_ms().saturating_sub(recorded));
                std::thread::sleep(if failing { period.max(RETRY_DELAY) } else { period.saturating_sub(age) });
            }
        })
        .expect("threads can be created at start");
}

/// A recording that goes on whatever happens to its directory.
struct SnapshotRecorder {
    dir: PathBuf,
    settings: RecorderSettings,
    writer: Option<RingWriter>,
}

impl SnapshotRecorder {
    fn write(&mut self, snapshot: AgentSnapshot) -> Result<()> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            empty => empty.insert(RingWriter::open(&self.dir, self.settings.max_size)?),
        };
        let outcome = writer.write(snapshot);
        if outcome.is_err() {
            // The directory may be another one now: mounted over, or made again.
            self.writer = None;
        }
        outcome
    }
}
