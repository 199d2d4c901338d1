//! Writing a fix and taking it back. A file that says something else than expected belongs to another program and is left
//! alone. So is a file that the agent holds by lease: its value goes with the lease, and the value from before comes
//! back. What was written is read back; what the kernel made something else of is an error.

use crate::host_text::selected_word;
use elbowroom_linux::bounded;
use elbowroom_linux::lease::{LeaseError, LeaseSnapshot};
use elbowroom_linux::root::{ReadError, Root};
use elbowroom_types::finding::FileWrite;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It was written since it was looked at.
    #[error("{file} says {now}, not {expected} any more: look again with `elbowroom doctor`")]
    Changed {
        /// The file.
        file: String,
        /// What it says.
        now: String,
        /// What it said.
        expected: String,
    },
    /// The agent holds it.
    #[error("{file}: {lent}")]
    Leased {
        /// The file.
        file: String,
        /// What it says.
        lent: LeasedValue,
    },
    /// What the agent holds cannot be known.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The kernel refused.
    #[error("while writing {data} to {file}: {source}")]
    Refused {
        /// The file.
        file: String,
        /// What.
        data: String,
        /// Why.
        source: Errno,
    },
    /// The kernel took it for another value.
    #[error("{file} says {now} after {data} was written")]
    Differs {
        /// The file.
        file: String,
        /// What was written.
        data: String,
        /// What it says.
        now: String,
    },
    /// systemd refused.
    #[error("{command}: {why}")]
    Command {
        /// As it was run.
        command: String,
        /// What it said.
        why: String,
    },
}

/// What a file says while the agent holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedValue {
    /// The agent's value.
    pub agent_value: String,
    /// The one that comes back.
    pub original_value: String,
}

impl fmt::Display for LeasedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { agent_value: now, original_value: before } = self;
        write!(
            f,
            "held by the agent: it says {now} by lease, and {before} again when the agent lets go of it; try again then, or stop the \
             agent (`elbowroom restore` where it died)"
        )
    }
}

/// What became of taking a write back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RevertOutcome {
    /// It says again what it said before.
    Reverted,
    /// It did already.
    AlreadyReverted,
    /// The file, or its cgroup, is gone.
    Gone,
    /// Another program changed it since; this is what it says.
    Foreign(String),
    /// The agent holds it.
    Leased(LeasedValue),
    /// More is in use than the old value allows: writing it would kill processes.
    InUse {
        /// The file that says so.
        file: String,
        /// What it says.
        usage: u64,
    },
}

impl RevertOutcome {
    /// Whether nothing of the write is in force any more.
    pub(crate) fn is_reverted(&self) -> bool {
        matches!(self, Self::Reverted | Self::AlreadyReverted | Self::Gone)
    }
}

/// Takes back what a write that failed may have left, unless another program changed it since.
///
/// # Errors
/// Those of [`revert`].
pub(crate) fn revert_failed_write(
    root: &Root,
    leases: &Path,
    write: &FileWrite,
    error: &WriteError,
) -> Result<RevertOutcome, WriteError> {
    match error {
        // It was not begun: what the file says is another program's.
        WriteError::Changed { .. } | WriteError::Leased { .. } | WriteError::Lease(_) => {
            Ok(RevertOutcome::AlreadyReverted)
        }
        // What the kernel made of it is ours, too.
        WriteError::Differs { now, .. } => {
            revert(root, leases, &FileWrite { to: now.clone(), ..write.clone() })
        }
        _ => revert(root, leases, write),
    }
}

/// Writes one value and reads it back. `leases` is the agent's ledger.
///
/// # Errors
/// Where the file does not say `from`, the agent holds it, the kernel or systemd refuses, or the file says something else
/// afterwards.
pub fn write(root: &Root, leases: &Path, write: &FileWrite) -> Result<(), WriteError> {
    let (now, lent) = current_value(root, leases, &write.file)?;
    if let Some(lent) = lent {
        return Err(WriteError::Leased { file: write.file.clone(), lent });
    }
    if now != write.from {
        let (file, expected) = (write.file.clone(), write.from.clone());
        return Err(WriteError::Changed { file, now, expected });
    }
    write_value(root, write, &write.to)
}

/// Takes one write back, unless it is not ours to take back any more, or the agent holds the file. `leases` is its ledger.
///
/// # Errors
/// Where the kernel or systemd refuses.
pub(crate) fn revert(root: &Root, leases: &Path, write: &FileWrite) -> Result<RevertOutcome, WriteError> {
    let (now, lent) = match current_value(root, leases, &write.file) {
        Err(WriteError::Read(e)) if e.is_absent() => return Ok(RevertOutcome::Gone),
        says => says?,
    };
    if let Some(lent) = lent {
        return Ok(RevertOutcome::Leased(lent));
    }
    if now == write.from {
        return Ok(RevertOutcome::AlreadyReverted);
    }
    if now != write.to {
        return Ok(RevertOutcome::Foreign(now));
    }
    if let (Some(file), Ok(limit)) = (&write.in_use, write.from.parse::<u64>()) {
        let usage = selected_word(&root.read(file)?).parse::<u64>().unwrap_or(u64::MAX);
        // memory.max takes effect before anything is reclaimed, and kills what does not fit (mm/memcontrol.c,
        // memory_max_write): a twentieth of room is kept, because use grows while we look.
        if usage > limit / 20 * 19 {
            return Ok(RevertOutcome::InUse { file: file.clone(), usage });
        }
    }
    write_value(root, write, &write.from)?;
    Ok(RevertOutcome::Reverted)
}

/// What a file says, and whether that is the agent's.
fn current_value(
    root: &Root,
    leases: &Path,
    file: &str,
) -> Result<(String, Option<LeasedValue>), WriteError> {
    let mut text = root.read(file)?;
    // A lease that begins or ends between the two reads changes the text.
    for _ in 0..10 {
        let held = LeaseSnapshot::read(leases)?;
        let again = root.read(file)?;
        if again == text {
            let now = selected_word(&text);
            let lent = held
                .value_before_leases(root, file, &text)
                .map(|t| LeasedValue { agent_value: now.clone(), original_value: selected_word(&t) });
            return Ok((now, lent));
        }
        text = again;
    }
    let changed =
        |now| WriteError::Changed { file: file.to_owned(), now, expected: "a value that stays".into() };
    Err(changed(selected_word(&text)))
}

fn write_value(root: &Root, write: &FileWrite, value: &str) -> Result<(), WriteError> {
    match &write.unit {
        Some(property) => {
            systemctl(&["set-property", "--runtime", &property.unit, &property.assignment(value)])?;
        }
        None => {
            let fd = root.open(&write.file, OFlags::WRONLY)?;
            rustix::io::write(&fd, value.as_bytes()).map_err(|source| WriteError::Refused {
                file: write.file.clone(),
                data: value.to_owned(),
                source,
            })?;
        }
    }
    let now = selected_word(&root.read(&write.file)?);
    if now != value {
        return Err(WriteError::Differs { file: write.file.clone(), data: value.to_owned(), now });
    }
    Ok(())
}

fn systemctl(words: &[&str]) -> Result<(), WriteError> {
    let refuse = |why: String| WriteError::Command { command: format!("systemctl {}", words.join(" ")), why };
    let done = Command::new("systemctl")
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(|child| bounded::output(child, bounded::SETTINGS_FILE))
        .map_err(|e| refuse(e.to_string()))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(refuse(String::from_utf8_lossy(&done.stderr).trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::fixture::Fixture;
    use elbowroom_linux::lease::{CgroupKnob, DIR, LeaseOutcome as Leased, Leases, UnsetValue};
    use elbowroom_types::unit::Limit;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    const HOST: &str = "-- cg/memory.max --\n1000\n-- cg/memory.current --\n700\n";

    fn raised() -> FileWrite {
        FileWrite {
            file: "/cg/memory.max".into(),
            from: "1000".into(),
            to: "2000".into(),
            unit: None,
            in_use: Some("/cg/memory.current".into()),
        }
    }

    fn host() -> (Fixture, Root) {
        let host = Fixture::new(HOST).unwrap();
        let root = Root::at(host.path()).unwrap();
        (host, root)
    }

    /// No agent was ever here.
    fn leases() -> PathBuf {
        PathBuf::from("/nonexistent/leases")
    }

    #[test]
    fn what_is_written_can_be_taken_back() {
        let (_host, root) = host();
        write(&root, &leases(), &raised()).unwrap();
        assert_eq!(root.read("/cg/memory.max").unwrap().trim(), "2000");
        assert_eq!(revert(&root, &leases(), &raised()).unwrap(), RevertOutcome::Reverted);
        assert_eq!(revert(&root, &leases(), &raised()).unwrap(), RevertOutcome::AlreadyReverted);
    }

    #[test]
    fn what_another_program_wrote_stays() {
        let (host, root) = host();
        write(&root, &leases(), &raised()).unwrap();
        host.write("cg/memory.max", "3000\n").unwrap();
        assert_eq!(revert(&root, &leases(), &raised()).unwrap(), RevertOutcome::Foreign("3000".into()));
        assert!(matches!(write(&root, &leases(), &raised()), Err(WriteError::Changed { .. })));
        assert_eq!(root.read("/cg/memory.max").unwrap(), "3000\n");
    }

    #[test]
    fn a_limit_does_not_go_back_below_what_is_in_use() {
        let (host, root) = host();
        write(&root, &leases(), &raised()).unwrap();
        host.write("cg/memory.current", "960\n").unwrap();
        assert!(matches!(
            revert(&root, &leases(), &raised()).unwrap(),
            RevertOutcome::InUse { usage: 960, .. }
        ));
        host.write("cg/memory.current", "940\n").unwrap();
        assert_eq!(revert(&root, &leases(), &raised()).unwrap(), RevertOutcome::Reverted);
    }

    #[test]
    fn a_value_that_the_kernel_made_another_of_is_taken_back_and_one_that_was_not_begun_is_left_alone() {
        let (host, root) = host();
        // A file that keeps what is behind the end of what is written: "2" becomes 2000.
        let write_two = FileWrite { to: "2".into(), ..raised() };
        let error = write(&root, &leases(), &write_two).unwrap_err();
        assert!(matches!(&error, WriteError::Differs { now, .. } if now == "2000"), "{error}");
        assert_eq!(
            revert_failed_write(&root, &leases(), &write_two, &error).unwrap(),
            RevertOutcome::Reverted
        );
        assert_eq!(root.read("/cg/memory.max").unwrap(), "1000\n");
        host.write("cg/memory.max", "2000\n").unwrap();
        let error = write(&root, &leases(), &raised()).unwrap_err();
        assert!(revert_failed_write(&root, &leases(), &raised(), &error).unwrap().is_reverted());
        assert_eq!(root.read("/cg/memory.max").unwrap(), "2000\n");
    }

    #[test]
    fn a_cgroup_that_ended_took_its_settings_along() {
        let (host, root) = host();
        host.remove("cg").unwrap();
        assert_eq!(revert(&root, &leases(), &raised()).unwrap(), RevertOutcome::Gone);
    }

    #[test]
    fn what_the_agent_holds_is_neither_written_nor_taken_back_until_it_lets_go() {
        let (host, root) = host();
        let run = tempfile::tempdir().unwrap();
        let ledger = run.path().join(DIR);
        let mut agent = Leases::open(&ledger).unwrap();
        let dir = host.path().join("cg");
        let inode = std::fs::metadata(&dir).unwrap().ino();
        let knob = CgroupKnob { dir, inode, file: "memory.max".into(), key: None, unset: UnsetValue::Max };
        // Held before it is fixed.
        assert_eq!(agent.set(&knob, Limit::At(900), "lent").unwrap(), Leased::Written);
        let error = write(&root, &ledger, &raised()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("/cg/memory.max: held by the agent: it says 900 by lease, and 1000 again")
        );
        assert!(revert_failed_write(&root, &ledger, &raised(), &error).unwrap().is_reverted());
        assert_eq!(root.read("/cg/memory.max").unwrap().trim(), "900");
        agent.release(&knob);
        // Held after it was.
        write(&root, &ledger, &raised()).unwrap();
        assert_eq!(agent.set(&knob, Limit::At(900), "lent").unwrap(), Leased::Written);
        let lent = LeasedValue { agent_value: "900".into(), original_value: "2000".into() };
        assert_eq!(revert(&root, &ledger, &raised()).unwrap(), RevertOutcome::Leased(lent.clone()));
        assert!(!RevertOutcome::Leased(lent).is_reverted());
        agent.release(&knob);
        assert_eq!(revert(&root, &ledger, &raised()).unwrap(), RevertOutcome::Reverted);
        // Another program's value in a file that is on record is its own.
        assert_eq!(agent.set(&knob, Limit::At(900), "lent").unwrap(), Leased::Written);
        host.write("cg/memory.max", "3000\n").unwrap();
        assert_eq!(revert(&root, &ledger, &raised()).unwrap(), RevertOutcome::Foreign("3000".into()));
    }
}
