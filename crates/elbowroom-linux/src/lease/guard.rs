//! The guard: a process that puts limits back when their holder cannot.

use super::holder::{self, LeaseHolder};
use super::knob::KnobError;
use super::ledger::{LeaseRecord, Ledger};
use super::{EndedLease, LeaseEnding, LeaseError, ledgers, restore_notice};
use crate::timer;
use elbowroom_types::unit::Micros;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a holder of leases says that it works.
pub const HEARTBEAT_INTERVAL: Micros = Micros::secs(1);
/// It is silent after this many without a word.
const MAX_MISSED_HEARTBEATS: u64 = 3;

/// What restoring found.
#[derive(Debug, Default, Serialize)]
pub struct RestoreReport {
    /// The leases that ended.
    pub leases: Vec<EndedLease>,
    /// Files of the ledger that are no records, and why not. They are left where they are.
    pub damaged: Vec<(PathBuf, String)>,
    /// The process that holds leases and works, if there is one, and how many.
    pub held_by: Option<(i32, usize)>,
}

impl RestoreReport {
    /// How many leases ended so.
    pub fn count(&self, fate: impl Fn(&LeaseEnding) -> bool) -> usize {
        self.leases.iter().filter(|ended| fate(&ended.fate)).count()
    }

    /// One line in the log if anything was put back, and one for each limit that is not as it was.
    pub(super) fn log(&self, because: &str) {
        let restored = self.count(|fate| *fate == LeaseEnding::Restored);
        if restored > 0 {
            tracing::warn!(limits = restored, because, "limits of ours taken off");
        }
        for ended in &self.leases {
            match &ended.fate {
                LeaseEnding::Failed(why) => {
                    tracing::error!(knob = %ended.knob, before = %ended.before, because = why, "a limit of ours cannot be taken off");
                }
                LeaseEnding::Foreign(found) => {
                    tracing::warn!(knob = %ended.knob, %found, because = "another program wrote it", "a limit left as it is");
                }
                LeaseEnding::Restored | LeaseEnding::Already | LeaseEnding::Gone => {}
            }
        }
        for (file, why) in &self.damaged {
            tracing::warn!(file = %file.display(), because = why, "not a lease's record: skipped, remove it by hand");
        }
    }
}

/// Puts back what holders that are dead or silent left in force, in a ledger and in the one for disks below it, in any number of processes
/// at once, any number of times. Leases of a holder that works are left alone. Returns at once, except when a holder lives and looks
/// silent: then it is watched for three beats. Not to be called in the process that holds leases.
///
/// # Errors
/// [`LeaseError::Insecure`], [`LeaseError::Io`] when a ledger cannot be read. The limits in the other one are put back all the same.
pub fn restore(dir: &Path) -> Result<RestoreReport, LeaseError> {
    // Both before an error is passed on.
    let [first, disks] = ledgers(dir).map(|dir| restore_one(&dir));
    let (mut report, disks) = (first?, disks?);
    report.leases.extend(disks.leases);
    report.damaged.extend(disks.damaged);
    if let Some((pid, held)) = disks.held_by {
        report.held_by = Some((pid, held + report.held_by.map_or(0, |(_, held)| held)));
    }
    Ok(report)
}

fn restore_one(dir: &Path) -> Result<RestoreReport, LeaseError> {
    let Some(ledger) = Ledger::open(dir)? else { return Ok(RestoreReport::default()) };
    let mut watch = HeartbeatMonitor::default();
    loop {
        match check_holder(&ledger, &mut watch)? {
            HolderCheck::Ended(remains) => return Ok(remains),
            HolderCheck::Alive { pid, quiet } => {
                let held = ledger.records(false)?.valid.len();
                // A process that holds nothing is not waited for, however silent.
                if held == 0 || quiet <= MAX_MISSED_HEARTBEATS * HEARTBEAT_INTERVAL.get() {
                    return Ok(RestoreReport { held_by: Some((pid, held)), ..RestoreReport::default() });
                }
                std::thread::sleep(Duration::from_micros(HEARTBEAT_INTERVAL.get()));
            }
        }
    }
}

/// Watches over the leases of another process: [`LeaseGuard::check`] once per [`HEARTBEAT_INTERVAL`], and at once when that process ends.
#[derive(Debug)]
pub struct LeaseGuard {
    dir: PathBuf,
    ledgers: [GuardedLedger; 2],
}

/// One ledger under guard.
#[derive(Debug)]
struct GuardedLedger {
    dir: PathBuf,
    watch: HeartbeatMonitor,
    /// What was told, not to be told again every second.
    last_reported: Option<String>,
}

impl LeaseGuard {
    /// The guard of a ledger and of the one for disks in it, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        let guarded = |dir| GuardedLedger { dir, watch: HeartbeatMonitor::default(), last_reported: None };
        Self { ledgers: ledgers(&dir).map(guarded), dir }
    }

    /// Puts everything back where a holder is dead or silent. Costs two dozen small system calls while none is.
    pub fn check(&mut self) {
        self.ledgers.iter_mut().for_each(|ledger| ledger.check(&self.dir));
    }

    /// The agent stops, its holders have ended: puts everything back and removes the ledgers, unless something is left in one.
    pub fn restore_and_remove(mut self) {
        self.check();
        // The one for disks is in the other.
        for guarded in self.ledgers.iter().rev() {
            if let Ok(Some(ledger)) = Ledger::open(&guarded.dir)
                && ledger.records(true).is_ok_and(|records| records.valid.is_empty())
            {
                holder::remove(&ledger);
                ledger.remove_dir();
            }
        }
        restore_notice::remove(&self.dir);
    }
}

impl GuardedLedger {
    /// Puts everything back if the holder is dead or silent, and leaves a note beside `top`.
    fn check(&mut self, top: &Path) {
        let looked = Ledger::open(&self.dir).and_then(|ledger| match ledger {
            Some(ledger) => check_holder(&ledger, &mut self.watch),
            None => Ok(HolderCheck::Ended(RestoreReport::default())),
        });
        match looked {
            Ok(HolderCheck::Alive { .. }) => self.last_reported = None,
            Ok(HolderCheck::Ended(remains)) => {
                let told = format!("{:?}{:?}", remains.leases, remains.damaged);
                if self.last_reported.as_ref() != Some(&told) {
                    remains.log("their holder is dead or silent");
                    restore_notice::write(top, remains);
                    self.last_reported = Some(told);
                }
            }
            Err(error) => {
                let told = error.to_string();
                if self.last_reported.as_ref() != Some(&told) {
                    tracing::error!(%error, "the guard cannot check or restore limits");
                    self.last_reported = Some(told);
                }
            }
        }
    }
}

/// What a look at the holder led to.
enum HolderCheck {
    /// It works, or has not been silent for long enough to tell; it has said nothing for `quiet` microseconds.
    Alive { pid: i32, quiet: u64 },
    /// It does not.
    Ended(RestoreReport),
}

fn check_holder(ledger: &Ledger, watch: &mut HeartbeatMonitor) -> Result<HolderCheck, LeaseError> {
    // First: the next holder has its turn meanwhile, and is one when it is over.
    let _turn = ledger.lock_restore();
    let Some(holder) = LeaseHolder::open(ledger)?.filter(LeaseHolder::is_alive) else {
        *watch = HeartbeatMonitor::default();
        return end_all(ledger, EndCause::Death).map(HolderCheck::Ended);
    };
    let (now, beat) = (timer::now(), holder.last_heartbeat());
    if watch.is_silent(now, beat) && !ledger.records(false)?.valid.is_empty() {
        holder.depose().map_err(LeaseError::io("writing", ledger.path()))?;
        return end_all(ledger, EndCause::Silence).map(HolderCheck::Ended);
    }
    Ok(HolderCheck::Alive { pid: holder.pid(), quiet: now.saturating_sub(beat).get() })
}

/// Why leases end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndCause {
    /// No process can write them any more: their records go too.
    Death,
    /// Their holder lives, and may be in the middle of a write that takes effect after this, and die before it notices: the
    /// records stay.
    Silence,
}

/// Ends every lease on record.
pub(super) fn end_all(ledger: &Ledger, after: EndCause) -> Result<RestoreReport, LeaseError> {
    let records = ledger.records(after == EndCause::Death)?;
    let damaged = records.damaged.into_iter().map(|(path, why)| (path, why.to_string())).collect();
    let mut remains = RestoreReport { damaged, ..RestoreReport::default() };
    for record in records.valid {
        let fate = restore_value(&record);
        if after == EndCause::Death && !matches!(fate, LeaseEnding::Failed(_)) {
            ledger.remove(&record);
        }
        let LeaseRecord { knob, before, because, .. } = record;
        remains.leases.push(EndedLease { knob, before, because, fate });
    }
    Ok(remains)
}

/// Puts the value from before in force, if a value of ours is.
pub(super) fn restore_value(record: &LeaseRecord) -> LeaseEnding {
    let knob = &record.knob;
    let fate = |error: KnobError| match error {
        KnobError::Gone => LeaseEnding::Gone,
        error => LeaseEnding::Failed(error.to_string()),
    };
    match knob.read() {
        Ok(found) if found == record.before => return LeaseEnding::Already,
        Ok(found) if !record.ours.contains(&found) => return LeaseEnding::Foreign(found),
        Ok(_) => {}
        Err(error) => return fate(error),
    }
    match knob.write(record.before).and_then(|()| knob.read()) {
        Ok(found) if found == record.before => LeaseEnding::Restored,
        Ok(found) if record.ours.contains(&found) => {
            LeaseEnding::Failed(format!("the kernel took {} and kept {found}", record.before))
        }
        Ok(found) => LeaseEnding::Foreign(found),
        Err(error) => fate(error),
    }
}

/// Counts missed beats. Time in which the watcher itself did not run (it was stopped, or the machine was) says nothing about
/// the holder, which may have been stopped with it.
#[derive(Debug, Default)]
struct HeartbeatMonitor {
    beat: Micros,
    misses: u64,
    checked_at: Option<Micros>,
}

impl HeartbeatMonitor {
    /// Whether the holder is silent, to be asked about once per [`HEARTBEAT_INTERVAL`]; more often changes nothing.
    fn is_silent(&mut self, now: Micros, beat: Micros) -> bool {
        let since = self.checked_at.map(|looked| now.saturating_sub(looked));
        let slept = since.is_none_or(|since| since > Micros(2 * HEARTBEAT_INTERVAL.get()));
        if beat != self.beat || slept {
            *self = Self { beat, misses: 0, checked_at: Some(now) };
        // A little less than a beat, because clocks and timers are not equal.
        } else if since.is_some_and(|since| since >= Micros(HEARTBEAT_INTERVAL.get() / 10 * 9)) {
            self.misses += 1;
            self.checked_at = Some(now);
        }
        self.misses >= MAX_MISSED_HEARTBEATS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Looks once a second: at which second, the beat by then.
    fn silent(looks: &[(u64, u64)]) -> Vec<bool> {
        let mut watch = HeartbeatMonitor::default();
        let looks = looks.iter().map(|(now, beat)| (Micros(now * SECOND / 10), Micros(beat * SECOND / 10)));
        looks.map(|(now, beat)| watch.is_silent(now, beat)).collect()
    }

    #[test]
    fn three_beats_missed_in_a_row_are_silence() {
        let none = [false; 8];
        assert_eq!(silent(&[(10, 5), (20, 15), (30, 25), (40, 35), (50, 45)]), none[..5]);
        assert_eq!(silent(&[(10, 5), (20, 5), (30, 5), (40, 5), (50, 5)]), [false, false, false, true, true]);
        // Late is not silent, and one word ends it.
        assert_eq!(silent(&[(10, 5), (20, 5), (30, 5), (40, 31), (50, 31), (60, 31), (70, 61)]), none[..7]);
        assert_eq!(
            silent(&[(10, 5), (20, 5), (30, 5), (40, 5), (50, 45)]),
            [false, false, false, true, false]
        );
    }

    #[test]
    fn a_watcher_that_slept_knows_nothing() {
        // Both were stopped for an hour, and the watcher woke up first.
        let hour = 36_000;
        let looks = [(10, 5), (20, 15), (hour, 15), (hour + 10, 15), (hour + 20, hour + 15)];
        assert_eq!(silent(&looks), [false; 5]);
        // It is woken by other things all the time, which does not make time pass.
        let often: Vec<_> = (0..20).map(|i| (10 + i, 5)).collect();
        assert_eq!(silent(&often), [false; 20]);
    }
}
