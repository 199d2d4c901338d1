//! `elbowroom undo`: the fixes in force, and taking them back.

use super::{StateDirArgs, VERSION};
use crate::fixes::journal::{FixEntry, Journal};
use crate::fixes::placement::revert_placement;
use crate::fixes::write::{RevertOutcome, revert};
use crate::strategies::housekeeping::HousekeepingCgroup;
use anyhow::{Result, bail};
use clap::Args;
use elbowroom_client::output::{Format, OutputArgs, write_stdout};
use elbowroom_linux::root::Root;
use elbowroom_types::finding::FileWrite;
use elbowroom_types::unit::counted;
use elbowroom_types::visible::Visible;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

/// Arguments of `undo`.
#[derive(Args)]
pub struct UndoArgs {
    /// The fix to take back; without it, those in force are listed.
    #[arg(value_parser = parse_id)]
    id: Option<u64>,
    /// Take back all of them, the last first.
    #[arg(long, conflicts_with = "id")]
    all: bool,
    #[command(flatten)]
    state: StateDirArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A fix's number.
fn parse_id(word: &str) -> Result<u64, &'static str> {
    word.parse().map_err(|_| "it is the number of a fix, as `elbowroom undo` lists them")
}

#[derive(Serialize)]
struct FixListOutput {
    version: u32,
    fixes: Vec<FixEntry>,
}

#[derive(Serialize)]
struct UndoOutput {
    version: u32,
    files: Vec<UndoneFile>,
}

#[derive(Serialize)]
struct UndoneFile {
    fix: u64,
    file: String,
    /// `reverted`, `already back`, `gone`, `foreign`, `held`, `in use`, `later fix`, `error`.
    outcome: &'static str,
    sentence: String,
}

/// Lists fixes, or takes them back: 1 where a value stayed that could not go back.
pub fn undo(args: &UndoArgs) -> Result<ExitCode> {
    let journal = Journal::at(&args.state.state_dir);
    let entries = journal.entries()?;
    let chosen: Vec<&FixEntry> = match args.id {
        Some(id) => match entries.iter().find(|e| e.id == id) {
            Some(entry) => vec![entry],
            None => bail!(
                "there is no fix {id} in {}: `elbowroom undo` lists them",
                args.state.state_dir.display()
            ),
        },
        None if args.all => entries.iter().rev().collect(),
        None => {
            write_stdout(&match args.output.format {
                Format::Data(data) => data.document(&FixListOutput { version: VERSION, fixes: entries })?,
                Format::Text => fix_list_text(&entries),
            })?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let left = if args.all { Vec::new() } else { entries.clone() };
    let files = revert_fixes(&Root::host()?, &args.state.leases(), &journal, &chosen, left)?;
    let stayed = files.iter().any(|f| matches!(f.outcome, "held" | "in use" | "later fix" | "error"));
    write_stdout(&match args.output.format {
        Format::Data(data) => data.document(&UndoOutput { version: VERSION, files })?,
        Format::Text if entries.is_empty() => fix_list_text(&entries),
        Format::Text => files.iter().fold(String::new(), |mut text, f| {
            let _ = writeln!(
                text,
                "{:<12} {}: {}",
                f.outcome,
                Visible::line(&f.file),
                Visible::line(&f.sentence)
            );
            text
        }),
    })?;
    Ok(ExitCode::from(u8::from(stayed)))
}

/// Takes fixes back, the last first, and forgets those of which nothing stays. `left` are the fixes that are not taken back now; one
/// that cannot be is among them, for an earlier one of the same file would find another program's value.
fn revert_fixes(
    root: &Root,
    leases: &Path,
    journal: &Journal,
    chosen: &[&FixEntry],
    mut left: Vec<FixEntry>,
) -> Result<Vec<UndoneFile>> {
    let mut files = Vec::new();
    for entry in chosen {
        let (done, stays) = revert_fix(root, leases, entry, &left);
        files.extend(done);
        if stays {
            left.push((*entry).clone());
        } else {
            journal.forget(entry.id)?;
        }
    }
    Ok(files)
}

/// What became of each file of a fix, and whether it stays in the journal. `others` are the fixes that are not taken back now.
fn revert_fix(root: &Root, leases: &Path, entry: &FixEntry, others: &[FixEntry]) -> (Vec<UndoneFile>, bool) {
    let mut stays = false;
    let mut files = Vec::new();
    let mut told = |file: &str, (outcome, sentence, kept)| {
        stays |= kept;
        files.push(UndoneFile { fix: entry.id, file: file.to_owned(), outcome, sentence });
    };
    if let Some(placing) = &entry.placing {
        told(&placing.dir, undo_placement(root, entry, placing));
    }
    for write in entry.writes.iter().rev() {
        let wrote = |l: &&FixEntry| l.id > entry.id && l.writes.iter().any(|w| w.file == write.file);
        told(&write.file, revert_file_write(root, leases, entry, write, others.iter().find(wrote)));
    }
    (files, stays)
}

const REBOOTED: &str = "the host was started again since: what it says now was set since";
const CONTAINER_GONE: &str = "with the container that had it";

/// The outcome in a word and a sentence, and whether the fix stays in the journal for another try.
fn revert_file_write(
    root: &Root,
    leases: &Path,
    entry: &FixEntry,
    write: &FileWrite,
    later: Option<&FixEntry>,
) -> (&'static str, String, bool) {
    if entry.is_from_other_boot(root) {
        return ("gone", REBOOTED.into(), false);
    }
    if entry.has_ended(root, write) {
        return ("gone", CONTAINER_GONE.into(), false);
    }
    if let Some(later) = later {
        return (
            "later fix",
            format!("fix {0} wrote it after this one: `elbowroom undo {0}` first", later.id),
            true,
        );
    }
    match revert(root, leases, write) {
        Ok(RevertOutcome::Reverted) => ("reverted", format!("{} -> {}", write.to, write.from), false),
        Ok(RevertOutcome::AlreadyReverted) => ("already back", format!("it says {}", write.from), false),
        Ok(RevertOutcome::Gone) => ("gone", CONTAINER_GONE.into(), false),
        Ok(RevertOutcome::Foreign(now)) => {
            ("foreign", format!("it says {now}, not {}: the value of another program stays", write.to), false)
        }
        Ok(RevertOutcome::Leased(lent)) => ("held", lent.to_string(), true),
        Ok(RevertOutcome::InUse { file, usage }) => (
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
fn undo_placement(
    root: &Root,
    entry: &FixEntry,
    placing: &HousekeepingCgroup,
) -> (&'static str, String, bool) {
    if entry.is_from_other_boot(root) {
        return ("gone", REBOOTED.into(), false);
    }
    match revert_placement(root, placing) {
        Ok(RevertOutcome::Gone) => ("gone", "with everything that ran there".into(), false),
        Ok(_) => ("reverted", format!("its processes are in {} again", placing.from), false),
        Err(error) => ("error", error.to_string(), true),
    }
}

fn fix_list_text(entries: &[FixEntry]) -> String {
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
            Visible::line(entry.container.as_deref().unwrap_or("the host"))
        );
        for write in &entry.writes {
            let line = format!("{}: {} -> {}", write.file, write.from, write.to);
            let _ = writeln!(text, "   {}", Visible::line(&line));
        }
        if let Some(placing) = &entry.placing {
            let line =
                format!("{}: {}, {}", placing.dir, counted(placing.processes.len(), "process"), placing.size);
            let _ = writeln!(text, "   {}", Visible::line(&line));
        }
    }
    text.push_str("`elbowroom undo ID` takes one back, `elbowroom undo --all` all of them\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::fixture::Fixture;
    use std::os::unix::fs::MetadataExt;

    /// Fixes of one file, from 0 to 5 and on to 7.
    fn fix(id: u64, from: &str, to: &str) -> FixEntry {
        let write = FileWrite {
            file: "/cg/memory.low".into(),
            from: from.into(),
            to: to.into(),
            ..FileWrite::default()
        };
        FixEntry { id, check: "x".into(), writes: vec![write], ..FixEntry::default() }
    }

    /// The outcome of taking a fix back, and whether it stays.
    fn undone(host: &Fixture, leases: &Path, entry: &FixEntry, others: &[FixEntry]) -> (&'static str, bool) {
        let (files, stays) = revert_fix(&Root::at(host.path()).unwrap(), leases, entry, others);
        (files[0].outcome, stays)
    }

    #[test]
    fn a_word_that_is_no_number_is_told_where_numbers_are() {
        let typed =
            |word| UndoArgs::augment_args(clap::Command::new("undo")).try_get_matches_from(["undo", word]);
        assert!(typed("3").is_ok());
        let refused = typed("abc").unwrap_err().to_string();
        assert!(
            refused.contains("as `elbowroom undo` lists them") && !refused.contains("digit"),
            "{refused}"
        );
    }

    #[test]
    fn a_fix_stays_on_record_while_the_agent_holds_its_file_or_a_later_one_wrote_it() {
        let host = Fixture::new("-- cg/memory.low --\n900\n").unwrap();
        let run = tempfile::tempdir().unwrap();
        let leases = run.path().join("leases");
        let inode = std::fs::metadata(host.path().join("cg")).unwrap().ino();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let record = serde_json::json!({
            "version": 1,
            "boot": boot.trim(),
            "knob": {"dir": "/cg", "inode": inode, "file": "memory.low", "key": null, "unset": "max"},
            "before": {"at": 5},
            "ours": [{"at": 900}],
            "because": "test",
        });
        std::fs::create_dir(&leases).unwrap();
        let file = leases.join(format!("{inode}.memory.low.json"));
        std::fs::write(&file, record.to_string()).unwrap();
        let (first, second) = (fix(1, "0", "5"), fix(2, "5", "7"));
        assert_eq!(undone(&host, &leases, &first, &[]), ("held", true));
        host.write("cg/memory.low", "5\n").unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(undone(&host, &leases, &first, &[second]), ("later fix", true));
        assert_eq!(undone(&host, &leases, &first, &[]), ("reverted", false));
    }

    #[test]
    fn of_all_fixes_an_earlier_one_stays_with_a_later_one_that_cannot_go_back() {
        let host = Fixture::new("-- cg/memory.low --\n7000\n-- cg/memory.current --\n4990\n").unwrap();
        let root = Root::at(host.path()).unwrap();
        let state = tempfile::tempdir().unwrap();
        let journal = Journal::at(state.path());
        for (from, to) in [("1000", "5000"), ("5000", "7000")] {
            let mut entry = fix(0, from, to);
            entry.writes[0].in_use = Some("/cg/memory.current".into());
            journal.begin(&root, entry).unwrap();
        }
        let undo_all = || {
            let entries = journal.entries().unwrap();
            let chosen: Vec<&FixEntry> = entries.iter().rev().collect();
            let files = revert_fixes(&root, Path::new("/nonexistent/leases"), &journal, &chosen, Vec::new());
            files.unwrap().iter().map(|file| file.outcome).collect::<Vec<_>>()
        };
        assert_eq!(undo_all(), ["in use", "later fix"]);
        host.write("cg/memory.current", "100 \n").unwrap();
        assert_eq!(undo_all(), ["reverted", "reverted"]);
        assert_eq!(root.read("/cg/memory.low").unwrap(), "1000\n");
        assert!(journal.entries().unwrap().is_empty());
    }

    #[test]
    fn a_value_like_the_fixes_own_stays_in_another_cgroup_of_that_name_and_after_another_boot() {
        const BOOT: &str = "proc/sys/kernel/random/boot_id";
        let host = Fixture::new(&format!("-- {BOOT} --\none\n-- cg/memory.low --\n5\n")).unwrap();
        let none = Path::new("/nonexistent/leases");
        let inode = std::fs::metadata(host.path().join("cg")).unwrap().ino();
        let made = FixEntry {
            boot: Some("one".into()),
            cgroups: [("/cg".to_owned(), inode)].into(),
            placing: Some(HousekeepingCgroup {
                dir: "/cg/x".into(),
                from: "/cg".into(),
                ..HousekeepingCgroup::default()
            }),
            ..fix(1, "0", "5")
        };
        let restarted = FixEntry { cgroups: [("/cg".to_owned(), inode + 1)].into(), ..made.clone() };
        let booted = FixEntry { boot: Some("another".into()), ..made.clone() };
        let root = Root::at(host.path()).unwrap();
        for (entry, said, says) in [
            (&restarted, ["with everything that ran there", CONTAINER_GONE], "5\n"),
            (&booted, [REBOOTED; 2], "5\n"),
            (&made, ["with everything that ran there", "5 -> 0"], "0\n"),
        ] {
            let (files, stays) = revert_fix(&root, none, entry, &[]);
            let sentences: Vec<&str> = files.iter().map(|file| file.sentence.as_str()).collect();
            assert_eq!((sentences, stays), (said.to_vec(), false));
            assert_eq!(root.read("/cg/memory.low").unwrap(), says);
        }
    }

    #[test]
    fn names_cannot_hide_a_fix_in_the_list() {
        let hidden = "cron-\x1b[8m";
        let entry = FixEntry {
            id: 1,
            check: "x".into(),
            container: Some(hidden.into()),
            writes: vec![FileWrite { file: format!("/cg/{hidden}/memory.max"), ..FileWrite::default() }],
            placing: Some(HousekeepingCgroup {
                dir: format!("/cg/{hidden}"),
                ..HousekeepingCgroup::default()
            }),
            ..FixEntry::default()
        };
        let shown = fix_list_text(&[entry]);
        assert!(!shown.contains('\x1b'), "{shown:?}");
        assert_eq!(shown.matches("cron-\\u{1b}[8m").count(), 3, "{shown}");
    }
}
