//! `elbowroom undo`: the fixes in force, and taking them back.

use super::{StateDir, VERSION, say};
use crate::cli::{Format, Output};
use crate::verbs::table::visible;
use anyhow::{Result, bail};
use clap::Args;
use elbowroom_core::doctor::Write as FileWrite;
use elbowroom_core::doctor::strategy::housekeeping::Placing;
use elbowroom_host::doctor::{Entry, Journal, Outcome, revert, unplace};
use elbowroom_host::root::Root;
use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;

/// Arguments of `undo`.
#[derive(Args)]
pub(crate) struct UndoArgs {
    /// The fix to take back; without it, those in force are listed.
    id: Option<u64>,
    /// Take back all of them, the last first.
    #[arg(long, conflicts_with = "id")]
    all: bool,
    #[command(flatten)]
    state: StateDir,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct List {
    version: u32,
    fixes: Vec<Entry>,
}

#[derive(Serialize)]
struct Undone {
    version: u32,
    files: Vec<File>,
}

#[derive(Serialize)]
struct File {
    fix: u64,
    file: String,
    /// `reverted`, `already back`, `gone`, `foreign`, `in use`, `later fix`, `error`.
    outcome: &'static str,
    sentence: String,
}

/// Lists fixes, or takes them back: 1 where a value stayed that could not go back.
pub(crate) fn undo(args: &UndoArgs) -> Result<ExitCode> {
    let journal = Journal::at(&args.state.state_dir);
    let entries = journal.entries()?;
    let chosen: Vec<&Entry> = match args.id {
        Some(id) => match entries.iter().find(|e| e.id == id) {
            Some(entry) => vec![entry],
            None => bail!(
                "there is no fix {id} in {}: `elbowroom undo` lists them",
                args.state.state_dir.display()
            ),
        },
        None if args.all => entries.iter().rev().collect(),
        None => {
            say(&match args.output.format {
                Format::Json => crate::verbs::containers::json(&List { version: VERSION, fixes: entries })?,
                Format::Text => listed(&entries),
            })?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let root = Root::host()?;
    let mut files = Vec::new();
    for entry in chosen {
        let mut stays = false;
        if let Some(placing) = &entry.placing {
            let (outcome, sentence, kept) = given_back(&root, placing);
            stays |= kept;
            files.push(File { fix: entry.id, file: placing.dir.clone(), outcome, sentence });
        }
        for write in entry.writes.iter().rev() {
            let later = entries
                .iter()
                .find(|l| l.id > entry.id && !args.all && l.writes.iter().any(|w| w.file == write.file));
            let (outcome, sentence, kept) = taken_back(&root, write, later);
            stays |= kept;
            files.push(File { fix: entry.id, file: write.file.clone(), outcome, sentence });
        }
        if !stays {
            journal.forget(entry.id)?;
        }
    }
    let stayed = files.iter().any(|f| matches!(f.outcome, "in use" | "later fix" | "error"));
    say(&match args.output.format {
        Format::Json => crate::verbs::containers::json(&Undone { version: VERSION, files })?,
        Format::Text => files.iter().fold(String::new(), |mut text, f| {
            let _ = writeln!(text, "{:<12} {}: {}", f.outcome, visible(&f.file), visible(&f.sentence));
            text
        }),
    })?;
    Ok(ExitCode::from(u8::from(stayed)))
}

/// The outcome in a word and a sentence, and whether the fix stays in the journal for another try.
fn taken_back(root: &Root, write: &FileWrite, later: Option<&Entry>) -> (&'static str, String, bool) {
    if let Some(later) = later {
        return (
            "later fix",
            format!("fix {0} wrote it after this one: `elbowroom undo {0}` first", later.id),
            true,
        );
    }
    match revert(root, write) {
        Ok(Outcome::Reverted) => ("reverted", format!("{} -> {}", write.to, write.from), false),
        Ok(Outcome::AlreadyBack) => ("already back", format!("it says {}", write.from), false),
        Ok(Outcome::Gone) => ("gone", "with the container that had it".into(), false),
        Ok(Outcome::Foreign(now)) => {
            ("foreign", format!("it says {now}, not {}: somebody else's value stays", write.to), false)
        }
        Ok(Outcome::InUse { file, usage }) => (
            "in use",
            format!(
                "{file} says {usage}: going back to {} would kill; free memory inside, then try again",
                write.from
            ),
            true,
        ),
        Err(error) => ("error", error.to_string(), true),
    }
}

/// The same for a cgroup that was made.
fn given_back(root: &Root, placing: &Placing) -> (&'static str, String, bool) {
    match unplace(root, placing) {
        Ok(Outcome::Gone) => ("gone", "with everything that ran there".into(), false),
        Ok(_) => ("reverted", format!("its processes are in {} again", placing.from), false),
        Err(error) => ("error", error.to_string(), true),
    }
}

fn listed(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "no fixes in force\n".into();
    }
    let mut text = String::new();
    for entry in entries {
        let _ = writeln!(
            text,
            "{}  {}  {}",
            entry.id,
            entry.check,
            visible(entry.container.as_deref().unwrap_or("the host"))
        );
        for write in &entry.writes {
            let line = format!("{}: {} -> {}", write.file, write.from, write.to);
            let _ = writeln!(text, "   {}", visible(&line));
        }
        if let Some(placing) = &entry.placing {
            let line = format!("{}: {} processes, {}", placing.dir, placing.processes.len(), placing.size);
            let _ = writeln!(text, "   {}", visible(&line));
        }
    }
    text.push_str("`elbowroom undo ID` takes one back, `elbowroom undo --all` all of them\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_hide_a_fix_in_the_list() {
        let hidden = "cron-\x1b[8m";
        let entry = Entry {
            id: 1,
            at: 0,
            check: "x".into(),
            container: Some(hidden.into()),
            writes: vec![FileWrite { file: format!("/cg/{hidden}/memory.max"), ..FileWrite::default() }],
            placing: Some(Placing { dir: format!("/cg/{hidden}"), ..Placing::default() }),
        };
        let shown = listed(&[entry]);
        assert!(!shown.contains('\x1b'), "{shown:?}");
        assert_eq!(shown.matches("cron-\\u{1b}[8m").count(), 3, "{shown}");
    }
}
