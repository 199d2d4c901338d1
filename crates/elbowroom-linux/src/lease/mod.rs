//! Limits that cannot outlive us.
//!
//! Whatever the agent writes into a cgroup file that limits somebody is a *lease*: the value from before is on record
//! before ours is in force, and comes back when we release it, when we die, and when we fall silent. Three parties:
//!
//! - the **holder**, one process, has a [`Leases`]. It changes knobs and says with [`Leases::beat`] that it works.
//! - the **guard**, another process, has a [`Guard`]. It puts everything back when the holder dies or misses three beats.
//! - **anybody**, later, may call [`restore`].
//!
//! They share a directory of records (the ledger) and a rule: *compare before writing*. A value that is none of ours was
//! written by somebody else, and stays. What that costs and what it cannot do: `docs/decisions/0008-leases.md`.

mod guard;
mod held;
mod holder;
pub mod io;
mod knob;
mod ledger;
mod note;
#[cfg(test)]
mod tests;

pub use guard::{BEAT, Guard, Remains, restore};
pub use held::{Held, before};
pub use knob::{Key, Knob, KnobError, Unset};
pub use ledger::{Damaged, Record};
pub use note::{Note, take_notes};

use crate::timer;
use elbowroom_types::unit::{Limit, Micros};
use holder::Holder;
use ledger::Ledger;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the ledger below the agent's run directory.
pub const DIR: &str = "leases";
/// How long a knob is left alone after somebody else wrote it. Then his value counts as the user's.
const CEDED_FOR: Micros = Micros::secs(600);

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
        /// Who.
        pid: i32,
    },
}

impl LeaseError {
    fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(Errno) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }
}

/// What became of an attempt to change a knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The value is in force.
    Written,
    /// It was already.
    Unchanged,
    /// Somebody else wrote the knob since we did, or since we looked: it is his for ten minutes, nothing of ours is in it, and
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
pub struct Ended {
    /// The knob.
    pub knob: Knob,
    /// What was there before us.
    pub before: Limit<u64>,
    /// Why ours was there.
    pub because: String,
    /// What is there now, and why.
    pub fate: Fate,
}

/// What is in a knob after its lease ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The value from before: it was written.
    Restored,
    /// The value from before: it was there.
    Already,
    /// This value, which somebody else wrote.
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
    holder: Holder,
    /// The holder's generation that the leases are of.
    generation: u64,
    held: BTreeMap<Knob, Record>,
    /// Knobs that somebody else wrote, and until when they are left alone.
    ceded: BTreeMap<Knob, Micros>,
    /// Leases that were taken away, to be told with the next beat.
    lost: Vec<Knob>,
    /// The last record could not be written.
    failing: bool,
}

impl Leases {
    /// Becomes the holder of a ledger, made where it is not there, and puts back what the holder before left.
    ///
    /// # Errors
    /// [`LeaseError::Held`] when there is a living holder, [`LeaseError::Insecure`], [`LeaseError::Io`].
    pub fn open(dir: &Path) -> Result<Self, LeaseError> {
        let ledger = Ledger::create(dir)?;
        let turn = ledger.turn();
        let holder = Holder::take(&ledger)?;
        let left = guard::end_all(&ledger, guard::After::Death)?;
        left.log("left by an agent that died");
        // What cannot be put back now is put back when we end; until then its value from before is not forgotten.
        let records = ledger.records(true)?.good;
        let held = records.into_iter().map(|record| (record.knob.clone(), record)).collect();
        drop(turn);
        let generation = holder.generation();
        Ok(Self {
            ledger,
            holder,
            generation,
            held,
            ceded: BTreeMap::new(),
            lost: Vec::new(),
            failing: false,
        })
    }

    /// Puts a value in force; asking for the value from before is [`Self::release`].
    ///
    /// # Errors
    /// [`LeaseError::Io`] when the record cannot be written. Then the knob was not touched: no limit without a record.
    pub fn set(&mut self, knob: &Knob, value: Limit<u64>, because: &str) -> Result<Outcome, LeaseError> {
        self.set_by(knob, |_| value, Knob::write, because)
    }

    /// As [`Self::set`], but where the value from before is the tighter limit, that one is in force and no lease is held.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn tighten(&mut self, knob: &Knob, limit: Limit<u64>, because: &str) -> Result<Outcome, LeaseError> {
        self.set_by(knob, |before| before.min(limit), Knob::write, because)
    }

    /// As [`Self::set`], with the value made of the one from before, and put into the knob by `write`. Asking for the value from
    /// before is [`Self::release`].
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn set_by(
        &mut self,
        knob: &Knob,
        value: impl FnOnce(Limit<u64>) -> Limit<u64>,
        write: impl FnOnce(&Knob, Limit<u64>) -> Result<(), KnobError>,
        because: &str,
    ) -> Result<Outcome, LeaseError> {
        if self.is_revoked() {
            self.surrender();
        }
        let changed = self.change(knob, value, write, because);
        self.tell(&changed);
        let outcome = changed?;
        // The guard raises the generation before it reads a knob. So if it read this one before our write, we see the new
        // generation now.
        if self.is_revoked() {
            self.surrender();
            return Ok(Outcome::Revoked);
        }
        Ok(outcome)
    }

    /// Puts the value from before back.
    pub fn release(&mut self, knob: &Knob) -> Outcome {
        let Some(record) = self.held.remove(knob) else { return Outcome::Unchanged };
        match guard::put_back(&record) {
            Fate::Restored => self.forget(&record, Outcome::Written),
            Fate::Already => self.forget(&record, Outcome::Unchanged),
            Fate::Gone => self.forget(&record, Outcome::Gone),
            Fate::Foreign(found) => self.cede(&record, found),
            Fate::Failed(_) => {
                let why = knob.read().err().unwrap_or(KnobError::Refused(Errno::IO));
                self.held.insert(record.knob.clone(), record);
                Outcome::Refused(why)
            }
        }
    }

    /// Ends the leases whose cgroups are gone.
    pub fn forget_gone(&mut self) {
        let gone: Vec<Knob> =
            self.held.keys().filter(|knob| matches!(knob.read(), Err(KnobError::Gone))).cloned().collect();
        for knob in gone {
            self.release(&knob);
        }
    }

    /// Puts every value from before back, and says how that went.
    pub fn release_all(&mut self) -> Vec<Ended> {
        let records: Vec<Record> = std::mem::take(&mut self.held).into_values().collect();
        records.into_iter().map(|record| self.end(record)).collect()
    }

    /// Says that this process works. To be called at least once per [`BEAT`]; costs two small system calls. Returns the
    /// knobs whose leases were taken away since the last time, because it was not called. Where there are any, what was set since
    /// then is taken away too: nothing of ours is in any knob, whatever the order in which things were done and told.
    pub fn beat(&mut self) -> Vec<Knob> {
        if self.is_revoked() {
            self.surrender();
        }
        if !self.lost.is_empty() {
            let since = self.release_all();
            self.lost.extend(since.into_iter().map(|ended| ended.knob));
        }
        self.holder.beat();
        std::mem::take(&mut self.lost)
    }

    /// The leases held: the knob, the value from before, why ours is there.
    pub fn held(&self) -> impl Iterator<Item = &Record> {
        self.held.values()
    }

    /// The value from before of a knob that a value of ours is in.
    pub fn before(&self, knob: &Knob) -> Option<Limit<u64>> {
        self.held.get(knob).map(|record| record.before)
    }

    /// The value of ours that is in a knob; the tightest that may be, where that is not certain.
    pub fn ours(&self, knob: &Knob) -> Option<Limit<u64>> {
        self.held.get(knob).and_then(|record| record.ours.iter().copied().reduce(Limit::min))
    }

    /// Whether a knob is somebody else's for now, so that [`Self::set`] would not touch it.
    pub fn is_ceded(&self, knob: &Knob) -> bool {
        self.ceded.get(knob).is_some_and(|until| timer::now() < *until)
    }

    fn is_revoked(&self) -> bool {
        self.holder.generation() != self.generation
    }

    /// One change, step by step; a process that dies between any two leaves a record that restores the knob.
    fn change(
        &mut self,
        knob: &Knob,
        value: impl FnOnce(Limit<u64>) -> Limit<u64>,
        write: impl FnOnce(&Knob, Limit<u64>) -> Result<(), KnobError>,
        because: &str,
    ) -> Result<Outcome, LeaseError> {
        if self.is_ceded(knob) {
            return Ok(match knob.read() {
                Ok(found) => Outcome::Foreign { found },
                Err(KnobError::Gone) => Outcome::Gone,
                Err(why) => Outcome::Refused(why),
            });
        }
        let held = self.held.remove(knob);
        let found = match (knob.read(), &held) {
            (Ok(found), Some(record)) if !record.ours.contains(&found) => {
                return Ok(self.cede(record, found));
            }
            (Ok(found), _) => found,
            (Err(KnobError::Gone), None) => return Ok(Outcome::Gone),
            (Err(KnobError::Gone), Some(record)) => return Ok(self.forget(record, Outcome::Gone)),
            (Err(why), _) => return Ok(self.keep(held, Outcome::Refused(why))),
        };
        let value = value(held.as_ref().map_or(found, |record| record.before));
        if found == value {
            return Ok(self.keep(held, Outcome::Unchanged));
        }
        let mut record = held.clone().unwrap_or_else(|| self.ledger.record(knob, found));
        if value == record.before {
            self.keep(held, Outcome::Unchanged);
            return Ok(self.release(knob));
        }
        record.ours = if held.is_some() { vec![found, value] } else { vec![value] };
        because.clone_into(&mut record.because);
        if let Err(error) = self.ledger.write(&record, true) {
            self.keep(held, Outcome::Unchanged);
            return Err(error);
        }
        let written = match knob.read() {
            // Somebody else wrote it while its record was written, which takes longer than all the rest.
            Ok(now) if now != found => return Ok(self.cede(&record, now)),
            Ok(_) => write(knob, value).and_then(|()| knob.read()),
            Err(why) => Err(why),
        };
        Ok(match written {
            Ok(now) if now == value => {
                record.ours = vec![value];
                // Where this fails, the record also names the value that was ours until now, which is harmless.
                let _ = self.ledger.write(&record, false);
                self.keep(Some(record), Outcome::Written)
            }
            Ok(now) if now == found => self.keep_as_was(held, &record, KnobError::Refused(Errno::INVAL)),
            Ok(now) => self.cede(&record, now),
            Err(KnobError::Gone) => self.forget(&record, Outcome::Gone),
            Err(why) => match knob.read() {
                Ok(now) if now == found => self.keep_as_was(held, &record, why),
                // Nobody knows what is in force. The record covers all of it.
                _ => self.keep(Some(record), Outcome::Refused(why)),
            },
        })
    }

    /// A ledger that cannot be written is told once, and once when it can be again.
    fn tell(&mut self, changed: &Result<Outcome, LeaseError>) {
        match changed {
            Err(error) if !self.failing => {
                tracing::error!(%error, "no limit is set while it could not be taken off again");
                self.failing = true;
            }
            Ok(Outcome::Written) if self.failing => {
                tracing::info!("limits are set again");
                self.failing = false;
            }
            _ => {}
        }
    }

    /// The knob is as it was before a change that failed, and so is its lease.
    fn keep_as_was(&mut self, held: Option<Record>, tried: &Record, why: KnobError) -> Outcome {
        match held {
            Some(record) => {
                let _ = self.ledger.write(&record, false);
                self.keep(Some(record), Outcome::Refused(why))
            }
            None => self.forget(tried, Outcome::Refused(why)),
        }
    }

    fn keep(&mut self, held: Option<Record>, outcome: Outcome) -> Outcome {
        if let Some(record) = held {
            self.held.insert(record.knob.clone(), record);
        }
        outcome
    }

    /// Nothing of ours is in the knob.
    fn forget(&mut self, record: &Record, outcome: Outcome) -> Outcome {
        self.ledger.remove(record);
        outcome
    }

    /// Somebody else wrote the knob: the guard, if this process was deposed just now.
    fn cede(&mut self, record: &Record, found: Limit<u64>) -> Outcome {
        if !self.is_revoked() {
            tracing::warn!(
                knob = %record.knob, %found, ours = ?record.ours,
                because = "somebody else wrote it", "leaving a limit alone for {CEDED_FOR}"
            );
            let now = timer::now();
            self.ceded.retain(|_, until| now < *until);
            self.ceded.insert(record.knob.clone(), now.saturating_add(CEDED_FOR));
        }
        self.forget(record, Outcome::Foreign { found })
    }

    fn end(&mut self, record: Record) -> Ended {
        let fate = guard::put_back(&record);
        let ended =
            Ended { knob: record.knob.clone(), before: record.before, because: record.because.clone(), fate };
        match ended.fate {
            Fate::Failed(_) => drop(self.held.insert(record.knob.clone(), record)),
            _ => self.ledger.remove(&record),
        }
        ended
    }

    /// The guard has taken the leases away while this process did nothing: what it may have missed is put back here.
    fn surrender(&mut self) {
        let generation = self.holder.generation();
        let turn = self.ledger.turn();
        let ended = self.release_all();
        drop(turn);
        if !ended.is_empty() {
            tracing::warn!(
                leases = ended.len(),
                because = "this process did nothing for three beats",
                "limits were taken off"
            );
        }
        self.lost.extend(ended.into_iter().map(|ended| ended.knob));
        self.generation = generation;
    }
}
