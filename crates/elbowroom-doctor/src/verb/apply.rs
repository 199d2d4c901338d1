//! Making changes: a diff, a question, and writes that are in the journal before they are made.

use super::{VERSION, confirm};
use crate::fixes::journal::{FixEntry, Journal};
use crate::fixes::placement::{apply_placement, revert_placement};
use crate::fixes::write::{RevertOutcome, WriteError, revert, revert_failed_write, write};
use crate::strategies::housekeeping::HousekeepingCgroup;
use anyhow::{Context, Result};
use elbowroom_client::output::{Format, say, write_stdout};
use elbowroom_linux::root::Root;
use elbowroom_types::finding::{FileWrite, FindingFix};
use elbowroom_types::visible::Visible;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// What is done for one reason, and taken back together.
#[derive(Clone, Debug, Default)]
pub(super) struct PlannedFix {
    /// The check or strategy.
    pub(super) check: String,
    /// The container, or the job of the host; absent where it is the host.
    pub(super) subject: Option<String>,
    /// Commands for people, writes for us.
    pub(super) fix: FindingFix,
    /// A cgroup to make.
    pub(super) placement: Option<HousekeepingCgroup>,
}

/// How a change is asked for and told.
pub(super) struct ApplyOptions<'a> {
    /// Do not ask.
    pub(super) yes: bool,
    pub(super) format: Format,
    /// The agent's ledger of leases.
    pub(super) leases: &'a Path,
    /// What to say where there is nothing to do.
    pub(super) nothing_message: &'a str,
    /// How long it holds, and what makes it hold longer.
    pub(super) persistence_hint: &'a str,
}

#[derive(Serialize)]
struct FixResult<'a> {
    /// For `elbowroom undo`; absent where nothing was written.
    id: Option<u64>,
    check: &'a str,
    container: Option<&'a str>,
    writes: &'a [FileWrite],
    #[serde(skip_serializing_if = "Option::is_none")]
    placing: Option<&'a HousekeepingCgroup>,
    /// Why it was not made.
    error: Option<String>,
}

#[derive(Serialize)]
struct FixOutput<'a> {
    version: u32,
    fixes: Vec<FixResult<'a>>,
}

/// Makes the changes: 0 when all were made, 1 when one was not.
pub(super) fn apply(
    journal: &Journal,
    changes: &[PlannedFix],
    manner: &ApplyOptions<'_>,
) -> Result<ExitCode> {
    let text = manner.format == Format::Text;
    if text {
        write_stdout(&if changes.is_empty() {
            format!("{}\n", Visible::line(manner.nothing_message))
        } else {
            diff(changes)
        })?;
    }
    if !changes.is_empty() && !manner.yes && !confirm(&confirm_question(changes))? {
        say("nothing was written; --yes writes without asking");
        return Ok(ExitCode::from(1));
    }
    let root = Root::host()?;
    let mut fixes = Vec::new();
    for change in changes {
        let (id, error) = match apply_one(&root, manner.leases, journal, change)? {
            Ok(id) => (Some(id), None),
            Err(why) => (None, Some(why)),
        };
        if text {
            write_stdout(&result_line(change, id, error.as_deref()))?;
        }
        fixes.push(FixResult {
            id,
            check: &change.check,
            container: change.subject.as_deref(),
            writes: &change.fix.writes,
            placing: change.placement.as_ref(),
            error,
        });
    }
    let failed = fixes.iter().any(|f| f.error.is_some());
    match manner.format {
        Format::Data(data) => write_stdout(&data.document(&FixOutput { version: VERSION, fixes })?)?,
        Format::Text if !changes.is_empty() => write_stdout(manner.persistence_hint)?,
        Format::Text => {}
    }
    Ok(ExitCode::from(u8::from(failed)))
}

fn confirm_question(changes: &[PlannedFix]) -> String {
    match changes.len() {
        1 => "Write this?".to_owned(),
        n => format!("Write this, {n} fixes?"),
    }
}

/// Names and paths are their makers' words.
fn subject_name(change: &PlannedFix) -> String {
    Visible::line(change.subject.as_deref().unwrap_or("the host")).to_string()
}

fn result_line(change: &PlannedFix, id: Option<u64>, error: Option<&str>) -> String {
    let who = subject_name(change);
    match id {
        Some(id) => format!("fixed    {} of {who}; `elbowroom undo {id}` takes it back\n", change.check),
        None => format!("left     {} of {who}: {}\n", change.check, Visible::line(error.unwrap_or_default())),
    }
}

/// Writes one change down and makes it. What went wrong is taken back at once and told; only a journal that cannot be written
/// ends everything.
fn apply_one(
    root: &Root,
    leases: &Path,
    journal: &Journal,
    change: &PlannedFix,
) -> Result<Result<u64, String>> {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let PlannedFix { check, subject: container, fix, placement: placing } = change.clone();
    let entry = journal
        .begin(root, FixEntry { at, check, container, writes: fix.writes, placing, ..FixEntry::default() })
        .context("writing the fix down, without which nothing is changed")?;
    match write_entry(root, leases, &entry) {
        Ok(()) => Ok(Ok(entry.id)),
        Err((error, stuck)) => {
            if !stuck {
                journal.forget(entry.id)?;
                return Ok(Err(error));
            }
            Ok(Err(format!("{error}; a part may be in force: `elbowroom undo {}` takes it back", entry.id)))
        }
    }
}

/// Why an entry could not be carried out, and whether a part of it is in force all the same.
fn write_entry(root: &Root, leases: &Path, entry: &FixEntry) -> Result<(), (String, bool)> {
    for (done, each) in entry.writes.iter().enumerate() {
        if let Err(error) = write(root, leases, each) {
            let mut stuck = is_still_in_force(revert_failed_write(root, leases, each, &error));
            for earlier in entry.writes[..done].iter().rev() {
                stuck |= is_still_in_force(revert(root, leases, earlier));
            }
            return Err((error.to_string(), stuck));
        }
        tracing::info!(file = each.file, from = each.from, to = each.to, because = entry.check, "wrote");
    }
    if let Some(placing) = &entry.placing {
        apply_placement(root, placing)
            .map_err(|error| (error.to_string(), is_still_in_force(revert_placement(root, placing))))?;
        tracing::info!(dir = placing.dir, size = placing.size.get(), because = entry.check, "placed");
    }
    Ok(())
}

fn is_still_in_force(outcome: Result<RevertOutcome, WriteError>) -> bool {
    !outcome.is_ok_and(|outcome| outcome.is_reverted())
}

fn diff(changes: &[PlannedFix]) -> String {
    let mut text = String::new();
    for change in changes {
        let _ = writeln!(text, "{}  {}", change.check, subject_name(change));
        for write in &change.fix.writes {
            let (file, from, to) = (Visible::line(&write.file), value(&write.from), value(&write.to));
            let _ = writeln!(text, "  {file}: {from} -> {to}");
        }
        if let Some(placing) = &change.placement {
            let pids: Vec<String> = placing.processes.iter().map(|p| p.pid.to_string()).collect();
            let dir = Visible::line(&placing.dir);
            let _ = writeln!(text, "  {dir}: -> {}", pids.join(" "));
            let size = value(&placing.size.get().to_string());
            let _ = writeln!(text, "  {dir}/{}: -> {size}", placing.file);
        }
        for command in &change.fix.commands {
            let _ = writeln!(text, "  $ {}", Visible::line(command));
        }
        text.push('\n');
    }
    text
}

fn value(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(n) if n >= i64::MAX as u64 & !0xffff => "max".to_owned(),
        Ok(n) if n >= 1 << 20 => format!("{text} ({})", elbowroom_types::unit::Bytes(n)),
        _ => Visible::line(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::fixture::Fixture;

    fn raised(file: &str, to: &str) -> FileWrite {
        FileWrite {
            file: file.into(),
            from: "1000".into(),
            to: to.into(),
            unit: None,
            in_use: Some("/cg/memory.current".into()),
        }
    }

    /// Carries out two writes of which the second fails, with `usage` bytes in use; whether the error says that a part stays.
    fn stuck(second: &FileWrite, usage: u64) -> bool {
        let host = Fixture::new(&format!(
            "-- cg/memory.max --\n1000\n-- cg/memory.high --\n1000\n-- cg/foreign --\n3000\n-- cg/memory.current --\n{usage}\n"
        ))
        .unwrap();
        let root = Root::at(host.path()).unwrap();
        let writes = vec![raised("/cg/memory.max", "2000"), second.clone()];
        let entry = FixEntry { id: 1, check: "x".into(), writes, ..FixEntry::default() };
        write_entry(&root, Path::new("/nonexistent/leases"), &entry).unwrap_err().1
    }

    #[test]
    fn what_failed_counts_as_taken_back_only_where_nothing_of_it_is_in_force() {
        let foreign = raised("/cg/foreign", "4000");
        // The file keeps what is behind the end of what is written, so it says 2000 then.
        let differs = raised("/cg/memory.high", "2");
        for failing in [&foreign, &differs] {
            assert!(!stuck(failing, 100), "{}", failing.file);
            assert!(stuck(failing, 990), "{}", failing.file);
        }
    }

    #[test]
    fn a_name_cannot_hide_what_is_to_be_written() {
        let hidden = "cron-\x1b[8m";
        let file = format!("/cg/{hidden}/memory.max");
        let change = PlannedFix {
            check: "x".into(),
            subject: Some(hidden.into()),
            fix: FindingFix {
                commands: vec![format!("echo 1 > {file}")],
                writes: vec![raised(&file, hidden)],
            },
            placement: Some(HousekeepingCgroup {
                dir: format!("/cg/{hidden}"),
                ..HousekeepingCgroup::default()
            }),
        };
        let shown = diff(std::slice::from_ref(&change)) + &result_line(&change, None, Some(hidden));
        assert!(!shown.contains('\x1b'), "{shown:?}");
        assert_eq!(shown.matches("cron-\\u{1b}[8m").count(), 8, "{shown}");
    }
}
