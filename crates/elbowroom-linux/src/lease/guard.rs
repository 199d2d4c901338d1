//! Who puts limits back when their holder cannot.

use super::holder::{self, Holder};
use super::knob::KnobError;
use super::ledger::{Ledger, Record};
use super::{Ended, Fate, LeaseError, note};
use crate::timer;
use elbowroom_types::unit::Micros;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a holder of leases says that it works.
pub const BEAT: Micros = Micros::secs(1);
/// It is silent after this many without a word.
const MISSED: u64 = 3;

/// What restoring found.
#[derive(Debug, Default, Serialize)]
pub struct Remains {
    /// The leases that ended.
    pub leases: Vec<Ended>,
    /// Files of the ledger that are no records, and why not. They are left where they are.
    pub damaged: Vec<(PathBuf, String)>,
    /// The process that holds leases and works, if there is one, and how many.
    pub held_by: Option<(i32, usize)>,
}

impl Remains {
    /// How many leases ended so.
    pub fn count(&self, fate: impl Fn(&Fate) -> bool) -> usize {
        self.leases.iter().filter(|ended| fate(&ended.fate)).count()
    }

    /// One line in the log if anything was put back, and one for each limit that is not as it was.
    pub(super) fn log(&self, because: &str) {
        let restored = self.count(|fate| *fate == Fate::Restored);
        if restored > 0 {
            tracing::warn!(limits = restored, because, "limits of ours taken off");
        }
        for ended in &self.leases {
            match &ended.fate {
                Fate::Failed(why) => {
                    tracing::error!(knob = %ended.knob, before = %ended.before, because = why, "a limit of ours cannot be taken off");
                }
                Fate::Foreign(found) => {
                    tracing::warn!(knob = %ended.knob, %found, because = "somebody else wrote it", "a limit left as it is");
                }
                Fate::Restored | Fate::Already | Fate::Gone => {}
            }
        }
        for (file, why) in &self.damaged {
            tracing::warn!(file = %file.display(), because = why, "not a lease's record: skipped, remove it by hand");
        }
    }
}

/// Puts back what a holder that is dead or silent left in force, in any number of processes at once, any number of times.
/// Leases of a holder that works are left alone. Returns at once, except when the holder lives and looks silent: then it is
/// watched for three beats. Not to be called in the process that holds leases.
///
/// # Errors
/// [`LeaseError::Insecure`], [`LeaseError::Io`] when the ledger cannot be read.
pub fn restore(dir: &Path) -> Result<Remains, LeaseError> {
    let Some(ledger) = Ledger::open(dir)? else { return Ok(Remains::default()) };
    let mut watch = Watch::default();
    loop {
        match look(&ledger, &mut watch)? {
            Looked::Ended(remains) => return Ok(remains),
            Looked::Works { pid, quiet } => {
                let held = ledger.records(false)?.good.len();
                // Who holds nothing is not waited for, however silent.
                if held == 0 || quiet <= MISSED * BEAT.get() {
                    return Ok(Remains { held_by: Some((pid, held)), ..Remains::default() });
                }
                std::thread::sleep(Duration::from_micros(BEAT.get()));
            }
        }
    }
}

/// Watches over the leases of another process: [`Guard::look`] once per [`BEAT`], and at once when that process ends.
#[derive(Debug)]
pub struct Guard {
    dir: PathBuf,
    watch: Watch,
    /// What was told, not to be told again every second.
    told: Option<String>,
}

impl Guard {
    /// The guard of a ledger, which need not exist yet.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), watch: Watch::default(), told: None }
    }

    /// Puts everything back if the holder is dead or silent. Costs a dozen small system calls while it is neither.
    pub fn look(&mut self) {
        let looked = Ledger::open(&self.dir).and_then(|ledger| match ledger {
            Some(ledger) => look(&ledger, &mut self.watch),
            None => Ok(Looked::Ended(Remains::default())),
        });
        match looked {
            Ok(Looked::Works { .. }) => self.told = None,
            Ok(Looked::Ended(remains)) => {
                let told = format!("{:?}{:?}", remains.leases, remains.damaged);
                if self.told.as_ref() != Some(&told) {
                    remains.log("their holder is dead or silent");
                    note::leave(&self.dir, remains);
                    self.told = Some(told);
                }
            }
            Err(error) => {
                let told = error.to_string();
                if self.told.as_ref() != Some(&told) {
                    tracing::error!(%error, "limits of ours cannot be looked after");
                    self.told = Some(told);
                }
            }
        }
    }

    /// The agent stops, its holder has ended: puts everything back and removes the ledger, unless something is left in it.
    pub fn finish(mut self) {
        self.look();
        if let Ok(Some(ledger)) = Ledger::open(&self.dir)
            && ledger.records(true).is_ok_and(|records| records.good.is_empty())
        {
            holder::remove(&ledger);
            ledger.remove_dir();
        }
        note::remove(&self.dir);
    }
}

/// What a look at the holder led to.
enum Looked {
    /// It works, or has not been silent for long enough to tell; it has said nothing for `quiet` microseconds.
    Works { pid: i32, quiet: u64 },
    /// It does not.
    Ended(Remains),
}

fn look(ledger: &Ledger, watch: &mut Watch) -> Result<Looked, LeaseError> {
    // First: who becomes the holder has its turn meanwhile, and is one when it is over.
    let _turn = ledger.turn();
    let Some(holder) = Holder::open(ledger)?.filter(Holder::lives) else {
        *watch = Watch::default();
        return end_all(ledger, After::Death).map(Looked::Ended);
    };
    let (now, beat) = (timer::now(), holder.last_beat());
    if watch.is_silent(now, beat) && !ledger.records(false)?.good.is_empty() {
        holder.depose().map_err(LeaseError::io("writing", ledger.path()))?;
        return end_all(ledger, After::Silence).map(Looked::Ended);
    }
    Ok(Looked::Works { pid: holder.pid(), quiet: now.saturating_sub(beat).get() })
}

/// Why leases end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Nobody can write them any more: their records go too.
    Death,
    /// Their holder lives, and may be in the middle of a write that takes effect after this, and die before it notices: the
    /// records stay.
    Silence,
}

/// Ends every lease on record.
pub(super) fn end_all(ledger: &Ledger, after: After) -> Result<Remains, LeaseError> {
    let records = ledger.records(after == After::Death)?;
    let damaged = records.damaged.into_iter().map(|(path, why)| (path, why.to_string())).collect();
    let mut remains = Remains { damaged, ..Remains::default() };
    for record in records.good {
        let fate = put_back(&record);
        if after == After::Death && !matches!(fate, Fate::Failed(_)) {
            ledger.remove(&record);
        }
        let Record { knob, before, because, .. } = record;
        remains.leases.push(Ended { knob, before, because, fate });
    }
    Ok(remains)
}

/// Puts the value from before in force, if a value of ours is.
pub(super) fn put_back(record: &Record) -> Fate {
    let knob = &record.knob;
    let fate = |error: KnobError| match error {
        KnobError::Gone => Fate::Gone,
        error => Fate::Failed(error.to_string()),
    };
    match knob.read() {
        Ok(found) if found == record.before => return Fate::Already,
        Ok(found) if !record.ours.contains(&found) => return Fate::Foreign(found),
        Ok(_) => {}
        Err(error) => return fate(error),
    }
    match knob.write(record.before).and_then(|()| knob.read()) {
        Ok(found) if found == record.before => Fate::Restored,
        Ok(found) if record.ours.contains(&found) => {
            Fate::Failed(format!("the kernel took {} and kept {found}", record.before))
        }
        Ok(found) => Fate::Foreign(found),
        Err(error) => fate(error),
    }
}

/// Counts missed beats. Time in which the watcher itself did not run (it was stopped, or the machine was) says nothing about
/// the holder, which may have been stopped with it.
#[derive(Debug, Default)]
struct Watch {
    beat: Micros,
    misses: u64,
    looked: Option<Micros>,
}

impl Watch {
    /// Whether the holder is silent, to be asked about once per [`BEAT`]; more often changes nothing.
    fn is_silent(&mut self, now: Micros, beat: Micros) -> bool {
        let since = self.looked.map(|looked| now.saturating_sub(looked));
        let slept = since.is_none_or(|since| since > Micros(2 * BEAT.get()));
        if beat != self.beat || slept {
            *self = Self { beat, misses: 0, looked: Some(now) };
        // A little less than a beat, because clocks and timers are not equal.
        } else if since.is_some_and(|since| since >= Micros(BEAT.get() / 10 * 9)) {
            self.misses += 1;
            self.looked = Some(now);
        }
        self.misses >= MISSED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Looks once a second: at which second, the beat by then.
    fn silent(looks: &[(u64, u64)]) -> Vec<bool> {
        let mut watch = Watch::default();
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
