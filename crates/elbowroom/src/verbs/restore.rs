//! `elbowroom restore`: takes off what a dead or hung agent left in force. Needs no agent.

use anyhow::Result;
use elbowroom_client::output::{Format, OutputArgs};
use elbowroom_client::table::{Align, table};
use elbowroom_linux::lease;
use elbowroom_linux::lease::{EndedLease, LeaseEnding, RestoreReport};
use elbowroom_types::unit::counted;
use std::fmt::Write;
use std::path::Path;

/// Everything is as its users set it.
const CLEAN: u8 = 0;
/// Something is as another program set it, or held by an agent that works.
const NOT_RESTORED: u8 = 1;
/// A limit of ours may still be in force.
const FAILED: u8 = 2;

/// Restores, and gives what to print and the exit status.
pub(crate) fn restore(run_dir: &Path, output: OutputArgs) -> Result<(String, u8)> {
    let ledger = run_dir.join(lease::DIR);
    let remains = lease::restore(&ledger)?;
    let text = match output.format {
        Format::Data(data) => data.document(&remains)?,
        Format::Text => text(&remains, &ledger),
    };
    Ok((text, exit_status(&remains)))
}

fn exit_status(remains: &RestoreReport) -> u8 {
    let failed = remains.count(|fate| matches!(fate, LeaseEnding::Failed(_)));
    let foreign = remains.count(|fate| matches!(fate, LeaseEnding::Foreign(_)));
    match remains {
        _ if failed > 0 || !remains.damaged.is_empty() => FAILED,
        RestoreReport { held_by: Some((_, 1..)), .. } => NOT_RESTORED,
        _ if foreign > 0 => NOT_RESTORED,
        _ => CLEAN,
    }
}

fn text(remains: &RestoreReport, ledger: &Path) -> String {
    let mut text = String::new();
    if !remains.leases.is_empty() {
        let heading = [("DONE", Align::Left), ("LIMIT", Align::Left), ("NOW", Align::Left)];
        text += &table(&heading, &remains.leases.iter().map(row).collect::<Vec<_>>());
    }
    for (file, why) in &remains.damaged {
        let _ =
            writeln!(text, "skipped {:?}, which is no record of a limit: {why}", file.display().to_string());
    }
    match remains.held_by {
        Some((pid, leases)) if leases > 0 => {
            let _ = writeln!(
                text,
                "held by the agent (pid {pid}), which works: {}. Stop it to take them off",
                counted(leases, "limit")
            );
        }
        _ if text.is_empty() => {
            let _ =
                writeln!(text, "nothing to restore: no limit of ours is on record in {}", ledger.display());
        }
        _ => {}
    }
    text
}

fn row(ended: &EndedLease) -> Vec<String> {
    let (done, now) = match &ended.fate {
        LeaseEnding::Restored => ("restored", ended.before.to_string()),
        LeaseEnding::Already => ("as before", ended.before.to_string()),
        LeaseEnding::Foreign(found) => ("left", format!("{found}, which another program wrote")),
        LeaseEnding::Gone => ("gone", "the cgroup was removed".to_owned()),
        LeaseEnding::Failed(why) => ("FAILED", format!("{why}: set it to {} by hand", ended.before)),
    };
    vec![done.to_owned(), ended.knob.to_string().escape_debug().to_string(), now]
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::lease::{CgroupKnob, UnsetValue};
    use elbowroom_types::unit::Limit;

    fn ended(fate: LeaseEnding) -> EndedLease {
        let knob = CgroupKnob {
            dir: "/sys/fs/cgroup/web".into(),
            inode: 7,
            file: "memory.high".into(),
            key: None,
            unset: UnsetValue::Max,
        };
        EndedLease { knob, before: Limit::Max, because: "test".into(), fate }
    }

    #[test]
    fn the_worst_fate_is_the_exit_status() {
        let of = |fates: &[LeaseEnding], damaged: bool, held_by| {
            let damaged = if damaged { vec![("/x".into(), "y".into())] } else { vec![] };
            exit_status(&RestoreReport {
                leases: fates.iter().cloned().map(ended).collect(),
                damaged,
                held_by,
            })
        };
        let (foreign, failed) = (LeaseEnding::Foreign(Limit::At(9)), LeaseEnding::Failed("why".into()));
        assert_eq!(of(&[], false, None), CLEAN);
        assert_eq!(of(&[LeaseEnding::Restored, LeaseEnding::Already, LeaseEnding::Gone], false, None), CLEAN);
        assert_eq!(of(&[LeaseEnding::Restored, foreign.clone()], false, None), NOT_RESTORED);
        assert_eq!(of(&[failed, foreign], false, None), FAILED);
        assert_eq!(of(&[], true, None), FAILED);
        assert_eq!(of(&[], false, Some((1, 0))), CLEAN);
        assert_eq!(of(&[], false, Some((1, 2))), NOT_RESTORED);
    }

    #[test]
    fn each_limit_is_a_line_that_says_what_is_there_now() {
        let leases = vec![
            ended(LeaseEnding::Restored),
            ended(LeaseEnding::Foreign(Limit::At(9))),
            ended(LeaseEnding::Failed("EIO".into())),
        ];
        let text =
            text(&RestoreReport { leases, ..RestoreReport::default() }, Path::new("/run/elbowroom/leases"));
        assert_eq!(
            text,
            "DONE      LIMIT                           NOW\n\
             restored  /sys/fs/cgroup/web/memory.high  max\n\
             left      /sys/fs/cgroup/web/memory.high  9, which another program wrote\n\
             FAILED    /sys/fs/cgroup/web/memory.high  EIO: set it to max by hand\n"
        );
    }
}
