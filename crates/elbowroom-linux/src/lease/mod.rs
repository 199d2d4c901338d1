//! Limits that cannot outlive us.
//!
//! Whatever the agent writes into a cgroup file that limits a container is a *lease*: the value from before is on record
//! before ours is in force. It comes back when the agent releases the lease, dies or falls silent. Three parties:
//!
//! - the **holder**, one process, has a [`Leases`]. It changes knobs and says with [`Leases::heartbeat`] that it works.
//! - the **guard**, another process, has a [`LeaseGuard`]. It puts everything back when the holder dies or misses three beats.
//! - **any process**, later, may call [`restore`].
//!
//! They share a directory of records (the ledger) and a rule: *compare before writing*. A value that is none of ours was
//! written by another program, and stays. What that costs and what it cannot do: `docs/decisions/0008-leases.md`.

mod guard;
mod holder;
pub mod io;
mod knob;
mod ledger;
mod restore_notice;
mod snapshot;
#[cfg(test)]
mod tests;

pub use guard::{HEARTBEAT_INTERVAL, LeaseGuard, RestoreReport, restore};
pub use knob::{CgroupKnob, KnobError, KnobKey, UnsetValue};
pub use ledger::{DamagedRecord, LeaseRecord};
pub use restore_notice::{RestoreNotice, take_restore_notices};
pub use snapshot::{LeaseSnapshot, value_before_leases};

use crate::timer;
use elbowroom_types::unit::{Limit, Micros};
use holder::LeaseHolder;
use ledger::Ledger;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the ledger below the agent's run directory.
pub const DIR: &str = "leases";
/// Name, below [`DIR`], of the ledger for limits on disks. Its holder is another thread, for the kernel may let a write to a disk's knob
/// wait, and a reclaim of memory takes its time: neither keeps the other's leases.
pub const DISKS: &str = "disks";
/// How long a knob is left alone after another program wrote it. Then that value counts as the user's.
const FOREIGN_WRITE_TIMEOUT: Micros = Micros::secs(600);

/// Why leases cannot be had or restored.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// A file of the ledger: among others `ENOSPC`, which means that no limit can be set.
    #[error("while {operation} {}: {source}", path.display())]
    Io {
        /// What was done.
        operation: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why it failed.
        source: Errno,
    },
    /// Others could write to the ledger, and so make us write to cgroups.
    #[error("{} {what}: no limit is set without a ledger of our own", path.display())]
    Insecure {
        /// The ledger.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Another process holds leases there.
    #[error("process {pid} holds leases in {}", dir.display())]
    Held {
        /// The ledger.
        dir: PathBuf,
        /// That process.
        pid: i32,
    },
}

/// The ledger in `dir`, and the one for disks below it.
fn ledgers(dir: &Path) -> [PathBuf; 2] {
    [dir.to_owned(), dir.join(DISKS)]
}

impl LeaseError {
    fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(Errno) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }
}

/// What became of an attempt to change a knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// The value is in force.
    Written,
    /// It was already.
    Unchanged,
    /// Another program wrote the knob since we did, or since we looked: it is left to it for ten minutes, nothing of ours is in it, and
    /// nothing was written.
    Foreign {
        /// What is in it.
        found: Limit<u64>,
    },
    /// The kernel has no such file or did not take the value. What was in force before still is.
    Refused(KnobError),
    /// The cgroup is gone.
    Gone,
    /// The guard has taken all leases away, because this process did nothing for too long. Nothing of ours is in force
    /// now, in any knob.
    Revoked,
}

/// How a lease ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedLease {
    /// The knob.
    pub knob: CgroupKnob,
    /// What was there before us.
    pub before: Limit<u64>,
    /// Why ours was there.
    pub because: String,
    /// What is there now, and why.
    pub fate: LeaseEnding,
}

/// What is in a knob after its lease ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnding {
    /// The value from before: it was written.
    Restored,
    /// The value from before: it was there.
    Already,
    /// This value, which another program wrote.
    Foreign(Limit<u64>),
    /// Nothing: the cgroup is gone.
    Gone,
    /// A value of ours, perhaps: the knob cannot be read or written, for this reason. The lease stays on record.
    Failed(String),
}

/// The leases of this process.
#[derive(Debug)]
pub struct Leases {
    ledger: Ledger,
    holder: LeaseHolder,
    /// The holder's generation that the leases are of.
    generation: u64,
    held: BTreeMap<CgroupKnob, LeaseRecord>,
    /// Knobs that another program wrote, and until when they are left alone.
    yielded: BTreeMap<CgroupKnob, Micros>,
    /// Leases that were taken away, to be told with the next beat.
    revoked: Vec<CgroupKnob>,
    /// The last record could not be written.
    ledger_failing: bool,
}

impl Leases {
    /// Becomes the holder of a ledger, made where it is not there, and puts back what the holder before left.
    ///
    /// # Errors
    /// [`LeaseError::Held`] when there is a living holder, [`LeaseError::Insecure`], [`LeaseError::Io`].
    pub fn open(dir: &Path) -> Result<Self, LeaseError> {
        let ledger = Ledger::create(dir)?;
        let turn = ledger.lock_restore();
        let holder = LeaseHolder::acquire(&ledger)?;
        let left = guard::end_all(&ledger, guard::EndCause::Death)?;
        left.log("left by an agent that died");
        // What cannot be put back now is put back when we end; until then its value from before is not forgotten.
        let records = ledger.records(true)?.valid;
        let held = records.into_iter().map(|record| (record.knob.clone(), record)).collect();
        drop(turn);
        let generation = holder.generation();
        Ok(Self {
            ledger,
            holder,
            generation,
            held,
            yielded: BTreeMap::new(),
            revoked: Vec::new(),
            ledger_failing: false,
        })
    }

    /// Puts a value in force; asking for the value from before is [`Self::release`].
    ///
    /// # Errors
    /// [`LeaseError::Io`] when the record cannot be written. Then the knob was not touched: no limit without a record.
    pub fn set(
        &mut self,
        knob: &CgroupKnob,
        value: Limit<u64>,
        because: &str,
    ) -> Result<LeaseOutcome, LeaseError> {
        self.set_with(knob, |_| value, CgroupKnob::write, because)
    }

    /// As [`Self::set`], but where the value from before is the tighter limit, it stays in force and no lease is held.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn tighten(
        &mut self,
        knob: &CgroupKnob,
        limit: Limit<u64>,
        because: &str,
    ) -> Result<LeaseOutcome, LeaseError> {
        self.set_with(knob, |before| before.min(limit), CgroupKnob::write, because)
    }

    /// As [`Self::set`], with the value made of the one from before, and put into the knob by `write`. Asking for the value from
    /// before is [`Self::release`].
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn set_with(
        &mut self,
        knob: &CgroupKnob,
        value: impl FnOnce(Limit<u64>) -> Limit<u64>,
        write: impl FnOnce(&CgroupKnob, Limit<u64>) -> Result<(), KnobError>,
        because: &str,
    ) -> Result<LeaseOutcome, LeaseError> {
        if self.is_revoked() {
            self.release_revoked();
        }
        let changed = self.change(knob, value, write, because);
        self.log_ledger_state(&changed);
        let outcome = changed?;
        // The guard raises the generation before it reads a knob. So if it read this one before our write, we see the new
        // generation now.
        if self.is_revoked() {
            self.release_revoked();
            return Ok(LeaseOutcome::Revoked);
        }
        Ok(outcome)
    }

    /// Takes what another program wrote into a knob for the value from before, where that program has the right to it: the next value of
    /// ours is set beside it, and not in ten minutes.
    pub fn adopt(&mut self, knob: &CgroupKnob) {
        // What the guard put back is not another program's, and is told with the next beat.
        if self.is_revoked() {
            return;
        }
        self.yielded.remove(knob);
        if let Some(record) = self.held.get(knob)
            && knob.read().is_ok_and(|found| !record.ours.contains(&found))
            && let Some(record) = self.held.remove(knob)
        {
            self.ledger.remove(&record);
        }
    }

    /// Puts the value from before back.
    pub fn release(&mut self, knob: &CgroupKnob) -> LeaseOutcome {
        let Some(record) = self.held.remove(knob) else { return LeaseOutcome::Unchanged };
        match guard::restore_value(&record) {
            LeaseEnding::Restored => self.forget(&record, LeaseOutcome::Written),
            LeaseEnding::Already => self.forget(&record, LeaseOutcome::Unchanged),
            LeaseEnding::Gone => self.forget(&record, LeaseOutcome::Gone),
            LeaseEnding::Foreign(found) => self.yield_knob(&record, found),
            LeaseEnding::Failed(_) => {
                let why = knob.read().err().unwrap_or(KnobError::Refused(Errno::IO));
                self.held.insert(record.knob.clone(), record);
                LeaseOutcome::Refused(why)
            }
        }
    }

    /// Ends the leases whose cgroups are gone.
    pub fn forget_gone(&mut self) {
        let gone: Vec<CgroupKnob> =
            self.held.keys().filter(|knob| matches!(knob.read(), Err(KnobError::Gone))).cloned().collect();
        for knob in gone {
            self.release(&knob);
        }
    }

    /// Puts every value from before back, and says how that went.
    pub fn release_all(&mut self) -> Vec<EndedLease> {
        let records: Vec<LeaseRecord> = std::mem::take(&mut self.held).into_values().collect();
        records.into_iter().map(|record| self.end(record)).collect()
    }

    /// Says that this process works. To be called at least once per [`HEARTBEAT_INTERVAL`]; costs two small system calls. Returns the
    /// knobs whose leases were taken away since the last time, because it was not called. Where there are any, what was set since
    /// then is taken away too: nothing of ours is in any knob, whatever the order in which things were done and told.
    pub fn heartbeat(&mut self) -> Vec<CgroupKnob> {
        if self.is_revoked() {
            self.release_revoked();
        }
        if !self.revoked.is_empty() {
            let since = self.release_all();
            self.revoked.extend(since.into_iter().map(|ended| ended.knob));
        }
        self.holder.heartbeat();
        std::mem::take(&mut self.revoked)
    }

    /// The leases held: the knob, the value from before, why ours is there.
    pub fn held(&self) -> impl Iterator<Item = &LeaseRecord> {
        self.held.values()
    }

    /// The value from before of a knob that a value of ours is in.
    pub fn before(&self, knob: &CgroupKnob) -> Option<Limit<u64>> {
        self.held.get(knob).map(|record| record.before)
    }

    /// The value of ours that is in a knob; the tightest that may be, where that is not certain.
    pub fn ours(&self, knob: &CgroupKnob) -> Option<Limit<u64>> {
        self.held.get(knob).and_then(|record| record.ours.iter().copied().reduce(Limit::min))
    }

    /// Whether a knob is another program's for now, so that [`Self::set`] would not touch it.
    pub(crate) fn is_yielded(&self, knob: &CgroupKnob) -> bool {
        self.yielded.get(knob).is_some_and(|until| timer::now() < *until)
    }

    fn is_revoked(&self) -> bool {
        self.holder.generation() != self.generation
    }

    /// One change, step by step; a process that dies between any two leaves a record that restores the knob.
    fn change(
        &mut self,
        knob: &CgroupKnob,
        value: impl FnOnce(Limit<u64>) -> Limit<u64>,
        write: impl FnOnce(&CgroupKnob, Limit<u64>) -> Result<(), KnobError>,
        because: &str,
    ) -> Result<LeaseOutcome, LeaseError> {
        if self.is_yielded(knob) {
            return Ok(match knob.read() {
                Ok(found) => LeaseOutcome::Foreign { found },
                Err(KnobError::Gone) => LeaseOutcome::Gone,
                Err(why) => LeaseOutcome::Refused(why),
            });
        }
        let held = self.held.remove(knob);
        let found = match (knob.read(), &held) {
            (Ok(found), Some(record)) if !record.ours.contains(&found) => {
                return Ok(self.yield_knob(record, found));
            }
            (Ok(found), _) => found,
            (Err(KnobError::Gone), None) => return Ok(LeaseOutcome::Gone),
            (Err(KnobError::Gone), Some(record)) => return Ok(self.forget(record, LeaseOutcome::Gone)),
            (Err(why), _) => return Ok(self.retain(held, LeaseOutcome::Refused(why))),
        };
        let value = value(held.as_ref().map_or(found, |record| record.before));
        if found == value {
            return Ok(self.retain(held, LeaseOutcome::Unchanged));
        }
        let mut record = held.clone().unwrap_or_else(|| self.ledger.record(knob, found));
        if value == record.before {
            self.retain(held, LeaseOutcome::Unchanged);
            return Ok(self.release(knob));
        }
        record.ours = if held.is_some() { vec![found, value] } else { vec![value] };
        because.clone_into(&mut record.because);
        if let Err(error) = self.ledger.write(&record, true) {
            self.retain(held, LeaseOutcome::Unchanged);
            return Err(error);
        }
        let written = match knob.read() {
            // Another program wrote it while its record was written, which takes longer than all the rest.
            Ok(now) if now != found => return Ok(self.yield_knob(&record, now)),
            Ok(_) => write(knob, value).and_then(|()| knob.read()),
            Err(why) => Err(why),
        };
        Ok(match written {
            Ok(now) if now == value => {
                record.ours = vec![value];
                // Where this fails, the record also names the value that was ours until now, which is harmless.
                let _ = self.ledger.write(&record, false);
                self.retain(Some(record), LeaseOutcome::Written)
            }
            Ok(now) if now == found => self.retain_unchanged(held, &record, KnobError::Refused(Errno::INVAL)),
            Ok(now) => self.yield_knob(&record, now),
            Err(KnobError::Gone) => self.forget(&record, LeaseOutcome::Gone),
            Err(why) => match knob.read() {
                Ok(now) if now == found => self.retain_unchanged(held, &record, why),
                // It is not known what is in force. The record covers all of it.
                _ => self.retain(Some(record), LeaseOutcome::Refused(why)),
            },
        })
    }

    /// A ledger that cannot be written is told once, and once when it can be again.
    fn log_ledger_state(&mut self, changed: &Result<LeaseOutcome, LeaseError>) {
        match changed {
            Err(error) if !self.ledger_failing => {
                tracing::error!(%error, "no limit is set while it could not be taken off again");
                self.ledger_failing = true;
            }
            Ok(LeaseOutcome::Written) if self.ledger_failing => {
                tracing::info!("limits are set again");
                self.ledger_failing = false;
            }
            _ => {}
        }
    }

    /// The knob is as it was before a change that failed, and so is its lease.
    fn retain_unchanged(
        &mut self,
        held: Option<LeaseRecord>,
        tried: &LeaseRecord,
        why: KnobError,
    ) -> LeaseOutcome {
        match held {
            Some(record) => {
                let _ = self.ledger.write(&record, false);
                self.retain(Some(record), LeaseOutcome::Refused(why))
            }
            None => self.forget(tried, LeaseOutcome::Refused(why)),
        }
    }

    fn retain(&mut self, held: Option<LeaseRecord>, outcome: LeaseOutcome) -> LeaseOutcome {
        if let Some(record) = held {
            self.held.insert(record.knob.clone(), record);
        }
        outcome
    }

    /// Nothing of ours is in the knob.
    fn forget(&mut self, record: &LeaseRecord, outcome: LeaseOutcome) -> LeaseOutcome {
        self.ledger.remove(record);
        outcome
    }

    /// Another process wrote the knob: the guard, if this process was deposed just now.
    fn yield_knob(&mut self, record: &LeaseRecord, found: Limit<u64>) -> LeaseOutcome {
        if !self.is_revoked() {
            tracing::warn!(
                knob = %record.knob, %found, ours = ?record.ours,
                because = "another program wrote it", "leaving a limit alone for {FOREIGN_WRITE_TIMEOUT}"
            );
            let now = timer::now();
            self.yielded.retain(|_, until| now < *until);
            self.yielded.insert(record.knob.clone(), now.saturating_add(FOREIGN_WRITE_TIMEOUT));
        }
        self.forget(record, LeaseOutcome::Foreign { found })
    }

    fn end(&mut self, record: LeaseRecord) -> EndedLease {
        let fate = guard::restore_value(&record);
        let ended = EndedLease {
            knob: record.knob.clone(),
            before: record.before,
            because: record.because.clone(),
            fate,
        };
        match ended.fate {
            LeaseEnding::Failed(_) => drop(self.held.insert(record.knob.clone(), record)),
            _ => self.ledger.remove(&record),
        }
        ended
    }

    /// The guard has taken the leases away while this process did nothing: what it may have missed is put back here.
    fn release_revoked(&mut self) {
        let generation = self.holder.generation();
        let turn = self.ledger.lock_restore();
        let ended = self.release_all();
        drop(turn);
        if !ended.is_empty() {
            tracing::warn!(
                leases = ended.len(),
                because = "this process did nothing for three beats",
                "limits were taken off"
            );
        }
        self.revoked.extend(ended.into_iter().map(|ended| ended.knob));
        self.generation = generation;
    }
}
