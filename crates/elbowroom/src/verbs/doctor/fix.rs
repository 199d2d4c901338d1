//! `elbowroom doctor --fix`: a diff, a question, and writes that are in the journal before they are made.

use super::{VERSION, confirmed, say};
use crate::cli::Format;
use anyhow::{Context, Result};
use elbowroom_core::doctor::{Facts, Finding, Write as FileWrite, plan};
use elbowroom_host::doctor::{Entry, Journal, revert, write};
use elbowroom_host::root::Root;
use serde::Serialize;
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Serialize)]
struct Fixed<'a> {
    /// For `elbowroom undo`; absent where nothing was written.
    id: Option<u64>,
    check: &'a str,
    container: Option<&'a str>,
    writes: &'a [FileWrite],
    /// Why it was not made.
    error: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    fixes: Vec<Fixed<'a>>,
}

/// Makes every fix that `wanted` takes: 0 when all were, 1 when one was not.
pub(super) fn fix(
    facts: &Facts,
    journal: &Journal,
    wanted: impl Fn(&Finding) -> bool,
    yes: bool,
    format: Format,
) -> Result<ExitCode> {
    let planned = plan(facts, wanted);
    if planned.is_empty() {
        match format {
            Format::Text => say("nothing to fix\n")?,
            Format::Json => {
                say(&crate::verbs::containers::json(&Report { version: VERSION, fixes: Vec::new() })?)?
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    if format == Format::Text {
        say(&diff(&planned))?;
    }
    if !yes && !confirmed(&format!("Write this, {} fixes?", planned.len()))? {
        eprintln!("nothing was written; --yes writes without asking");
        return Ok(ExitCode::from(1));
    }
    let root = Root::host()?;
    let mut fixes = Vec::new();
    for finding in &planned {
        let (id, error) = match make(&root, journal, finding)? {
            Ok(id) => (Some(id), None),
            Err(why) => (None, Some(why)),
        };
        if format == Format::Text {
            let who = finding.container.as_deref().unwrap_or("the host");
            say(&match (&id, &error) {
                (Some(id), _) => {
                    format!("fixed    {} of {who}; `elbowroom undo {id}` takes it back\n", finding.check)
                }
                (None, why) => {
                    format!("left     {} of {who}: {}\n", finding.check, why.as_deref().unwrap_or_default())
                }
            })?;
        }
        fixes.push(Fixed {
            id,
            check: &finding.check,
            container: finding.container.as_deref(),
            writes: finding.fix.as_ref().map_or(&[], |f| &f.writes),
            error,
        });
    }
    let failed = fixes.iter().any(|f| f.error.is_some());
    match format {
        Format::Json => say(&crate::verbs::containers::json(&Report { version: VERSION, fixes })?)?,
        Format::Text => say(&lasting(&planned))?,
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// Writes one fix down and makes it. What went wrong is taken back at once and told; only a journal that cannot be written
/// ends everything.
fn make(root: &Root, journal: &Journal, finding: &Finding) -> Result<Result<u64, String>> {
    let writes = finding.fix.as_ref().map(|f| f.writes.clone()).unwrap_or_default();
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (check, container) = (finding.check.clone(), finding.container.clone());
    let entry = journal
        .begin(Entry { id: 0, at, check, container, writes })
        .context("writing the fix down, without which nothing is changed")?;
    for (done, each) in entry.writes.iter().enumerate() {
        if let Err(error) = write(root, each) {
            // The one that failed may be half there: a value the kernel made something else of.
            let mut stuck = false;
            for earlier in entry.writes[..=done].iter().rev() {
                stuck |= revert(root, earlier).is_err();
            }
            if !stuck {
                journal.forget(entry.id)?;
            }
            return Ok(Err(error.to_string()));
        }
        tracing::info!(file = each.file, from = each.from, to = each.to, because = finding.check, "wrote");
    }
    Ok(Ok(entry.id))
}

fn diff(planned: &[Finding]) -> String {
    let mut text = String::new();
    for finding in planned {
        let _ = writeln!(text, "{}  {}", finding.check, finding.container.as_deref().unwrap_or("the host"));
        let Some(fix) = &finding.fix else { continue };
        for write in &fix.writes {
            let _ = writeln!(text, "  {}: {} -> {}", write.file, value(&write.from), value(&write.to));
        }
        for command in &fix.commands {
            let _ = writeln!(text, "  $ {command}");
        }
        text.push('\n');
    }
    text
}

fn value(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(n) if n >= i64::MAX as u64 & !0xffff => "max".to_owned(),
        Ok(n) if n >= 1 << 20 => format!("{text} ({})", elbowroom_core::unit::Bytes(n)),
        _ => text.to_owned(),
    }
}

/// How long it holds, and what makes it hold longer.
fn lasting(planned: &[Finding]) -> String {
    let commands = planned.iter().filter_map(|f| f.fix.as_ref()).flat_map(|f| &f.commands);
    let docker: Vec<&String> = commands.filter(|c| c.starts_with("docker update")).collect();
    let mut text = "until the container, or the host, is started again".to_owned();
    if docker.is_empty() {
        text.push_str("; to keep it, set the same in the container's or the host's configuration\n");
    } else {
        text.push_str("; to keep it:\n");
        docker.iter().for_each(|c| text.push_str(&format!("  $ {c}\n")));
    }
    text
}
