//! `elbowroom memory`: what is shared, what each container is entitled to and lends out; and a container's part of it in other verbs.

use anyhow::Result;
use elbowroom_client::api::{AlertView, ContainerMemory, ControlRequest, ControlResponse, MemoryReport};
use elbowroom_client::control::ControlClient;
use elbowroom_client::dated::Dated;
use elbowroom_client::number_format;
use elbowroom_client::output::{TableArgs, unexpected_response};
use elbowroom_client::table::{Align, Keep, TableStyle, clip};
use elbowroom_govern::GovernorMode;
use elbowroom_govern::memory::{ColourSource, ContainerMemoryStatus, MemoryDecision, PoolView};
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use elbowroom_types::verdict::VerdictStatus;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Most characters of a name in a table: with the longest words beside it a line has 80.
const NAME_WIDTH: usize = 15;
/// How many containers are named of which nothing is saved, for each reason.
const SAVING_NAMES: usize = 3;

/// `elbowroom memory`.
pub(crate) fn memory(run_dir: &Path, args: TableArgs) -> Result<String> {
    let ControlResponse::Memory(mut report) =
        ControlClient::connect(run_dir)?.request(&ControlRequest::Memory)?
    else {
        return unexpected_response();
    };
    let name = |of: &ContainerMemory| of.container.name.clone().unwrap_or_else(|| of.container.id.clone());
    // As `list` has them.
    report.containers.sort_by_cached_key(|of| (Reverse(of.verdict.severity()), name(of)));
    args.answer(
        &Dated(&report),
        || report.containers.iter().map(name).collect(),
        |style| text(&report, style),
    )
}

fn text(report: &MemoryReport, style: TableStyle) -> String {
    let mode = match (report.mode, &report.not_enforced) {
        (GovernorMode::Off, _) => return "off: set memory.mode to \"observe\" or \"enforce\"\n".to_owned(),
        (GovernorMode::Observe, _) => "observing: decisions are shown, nothing is moved".to_owned(),
        (GovernorMode::Enforce, None) => "enforcing".to_owned(),
        (GovernorMode::Enforce, Some(why)) => format!("not enforcing, though asked to: {why}"),
    };
    let mut text = mode + "\n";
    if report.containers.is_empty() {
        return text + "no container was measured yet\n";
    }
    text.push('\n');
    text.push_str(&pool_table(&report.pools, style));
    text.push('\n');
    text.push_str(&container_table(&report.containers, style));
    text.push_str(&saving_text(&report.containers));
    for alert in &report.alerts {
        let _ = write!(text, "\n{}", alert_text(alert));
    }
    text
}

/// What saving took together, and of which containers it takes nothing now, and why.
fn saving_text(containers: &[ContainerMemory]) -> String {
    let saving = || containers.iter().filter_map(|of| Some((of, of.status.saving.as_ref()?)));
    if saving().next().is_none() {
        return String::new();
    }
    let saved: Bytes = saving().map(|(_, saving)| saving.saved).sum();
    let mut text = format!("\n{} saved\n", number_format::short_bytes(saved.get()));
    let mut waiting: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (of, saving) in saving().filter(|(_, saving)| !saving.active) {
        let name = clip(of.container.name.as_ref().unwrap_or(&of.container.id), NAME_WIDTH);
        waiting.entry(&saving.because).or_default().push(name);
    }
    for (why, names) in waiting {
        let more = names.len().saturating_sub(SAVING_NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let names = names[..names.len().min(SAVING_NAMES)].join(", ");
        let _ = writeln!(text, "nothing is taken of {names}{more}:\n    {}", clip(why, 400));
    }
    text
}

fn pool_table(pools: &[PoolView], style: TableStyle) -> String {
    let heading = [
        ("SHARED MEMORY", Align::Left, Keep::Always),
        ("SIZE", Align::Right, Keep::Rank(2)),
        ("FREE", Align::Right, Keep::Rank(1)),
        ("RESERVED", Align::Right, Keep::Rank(3)),
        ("CONTAINERS", Align::Right, Keep::Rank(4)),
        ("NEED MORE", Align::Right, Keep::Rank(4)),
        ("STATE", Align::Left, Keep::Always),
    ];
    let row = |pool: &PoolView| {
        vec![
            clip(if pool.path == "/" { "the machine" } else { &pool.path }, 24),
            number_format::short_bytes(pool.size.get()),
            number_format::short_bytes(pool.free.get()),
            number_format::short_bytes(pool.reserved.get()),
            pool.containers.to_string(),
            pool.needing_more.to_string(),
            if pool.short { "short" } else { "enough" }.to_owned(),
        ]
    };
    style.table(&heading, &pools.iter().map(row).collect::<Vec<_>>())
}

fn container_table(containers: &[ContainerMemory], style: TableStyle) -> String {
    let is_saving = containers.iter().any(|of| of.status.saving.is_some());
    let mut heading = vec![
        ("CONTAINER", Align::Left, Keep::Always),
        ("MORE MEMORY", Align::Left, Keep::Always),
        ("STATE", Align::Left, Keep::Rank(3)),
        ("USED", Align::Right, Keep::Rank(1)),
        ("ENTITLED", Align::Right, Keep::Rank(2)),
        ("LENT OUT", Align::Right, Keep::Rank(4)),
        ("BY", Align::Left, Keep::Wide),
        ("MINIMUM", Align::Right, Keep::Wide),
        ("PROTECTED", Align::Right, Keep::Wide),
    ];
    if is_saving {
        heading.push(("SAVED", Align::Right, Keep::Rank(1)));
    }
    let row = |of: &ContainerMemory| {
        let s = &of.status;
        let mut cells = vec![
            clip(of.container.name.as_ref().unwrap_or(&of.container.id), NAME_WIDTH),
            number_format::more_memory(s.colour, of.verdict.status).to_owned(),
            match of.verdict.status {
                VerdictStatus::Ok => number_format::memory_state(s.state).to_owned(),
                status => status.to_string(),
            },
            number_format::short_bytes(s.usage.get()),
            entitled_cell(s.entitlement),
            number_format::short_bytes(s.lent.get()),
            source_name(s.source).to_owned(),
            number_format::short_bytes(s.minimum.get()),
            number_format::short_bytes(if s.enforced { s.protected.get() } else { 0 }),
        ];
        if is_saving {
            let saved = s.saving.as_ref().map(|saving| number_format::short_bytes(saving.saved.get()));
            cells.push(saved.unwrap_or_else(|| "-".to_owned()));
        }
        cells
    };
    style.table(&heading, &containers.iter().map(row).collect::<Vec<_>>())
}

fn alert_text(view: &AlertView) -> String {
    let about =
        view.container.as_ref().map(|c| clip(c.name.as_ref().unwrap_or(&c.id), 40)).unwrap_or_default();
    format!("{:<14} {about}\n    {}\n", view.alert.kind, clip(&view.alert.text, 400))
}

/// An entitlement; 0 is that of a container that nothing is reserved for, and no number to compare with.
fn entitled_cell(entitlement: Bytes) -> String {
    match entitlement {
        Bytes::ZERO => "-".to_owned(),
        some => number_format::short_bytes(some.get()),
    }
}

const fn source_name(source: ColourSource) -> &'static str {
    match source {
        ColourSource::Unknown => "-",
        ColourSource::Probe => "probe",
        ColourSource::Stalls => "stalls",
        ColourSource::Refaults => "refaults",
    }
}

/// A container's memory on one line.
pub(crate) fn memory_status_text(s: &ContainerMemoryStatus, verdict: VerdictStatus) -> String {
    let by = match s.source {
        _ if s.colour != Colour::Red && number_format::needs_more(s.colour, verdict) => {
            format!("its verdict is {verdict}")
        }
        ColourSource::Unknown => "not watched for long enough yet".to_owned(),
        ColourSource::Probe => match s.sigma {
            Some(sigma) => format!("by its probe, {} of its objective", number_format::percent(Some(sigma))),
            None => "by its probe".to_owned(),
        },
        ColourSource::Stalls => format!("it waits for memory {} of the time", percent(s.stall)),
        ColourSource::Refaults => "by refaults".to_owned(),
    };
    let mut line = format!("{} ({by})", number_format::more_memory(s.colour, verdict));
    if let Some(state) = number_format::shown_memory_state(s.colour, verdict, s.state) {
        let _ = write!(line, ", {state}");
    }
    // Of a container that nothing is reserved for both are nothing.
    if s.entitlement > Bytes::ZERO {
        let _ = write!(line, ", entitled to {}, minimum {}", s.entitlement, s.minimum);
    }
    if s.lent > Bytes::ZERO {
        let _ = write!(line, ", {} lent out", s.lent);
    }
    if s.protected > Bytes::ZERO {
        let _ =
            write!(line, ", {} protected{}", s.protected, if s.enforced { "" } else { " (not in force)" });
    }
    if let Limit::At(ceiling) = s.view_ceiling {
        let _ = write!(line, ", shows at most {ceiling}");
    }
    line
}

/// What decided about a container's memory.
pub(crate) fn memory_explanation(s: &ContainerMemoryStatus, verdict: VerdictStatus, now: Micros) -> String {
    let mut text = "\nmemory\n\n".to_owned();
    let mut rows = vec![
        ("now", memory_status_text(s, verdict)),
        ("used", format!("{}, of which {} can be reclaimed", s.usage, s.reclaimable)),
        ("reservation", s.reservation.to_string()),
    ];
    if let Some(until) = s.until {
        rows.push(("lends nothing", format!("ends {}", number_format::relative(until, now))));
    }
    if s.failures > 0 {
        rows.push(("loans that hurt", s.failures.to_string()));
    }
    rows.extend(s.saving.as_ref().map(|saving| {
        let takes = if saving.active { "more is taken" } else { "nothing is taken" };
        ("saved", format!("{}; {takes}: {}", saving.saved, saving.because))
    }));
    rows.extend(s.exempt_reason.iter().map(|why| ("never taken", why.clone())));
    for (key, value) in rows {
        let _ = writeln!(text, "{key:<17} {value}");
    }
    if !s.decisions.is_empty() {
        let _ = writeln!(text, "\nlast decisions");
    }
    for decision in s.decisions.iter().rev() {
        let _ =
            writeln!(text, "{:>13}  {}", number_format::relative(decision.at, now), decision_text(decision));
    }
    text
}

fn decision_text(decision: &MemoryDecision) -> String {
    let inputs = &decision.inputs;
    format!(
        "{}: {} [{}, used {}, entitled to {}, minimum {}, {} free]",
        number_format::what(decision.what, decision.at),
        decision.because,
        number_format::more_memory(inputs.colour, VerdictStatus::Ok),
        inputs.usage,
        inputs.entitlement,
        inputs.minimum,
        inputs.free,
    )
}

/// A part of the time, where a tenth of a per cent matters.
fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.1}%", part * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_client::api::ContainerRef;
    use elbowroom_govern::memory::{
        DecisionInputs, LendingState, MemoryAction, MemoryPressure, SavingStatus,
    };
    use elbowroom_types::alert::{Alert, AlertKind, AlertSubject};
    use elbowroom_types::id::CgroupId;
    use elbowroom_types::verdict::Verdict;

    fn status() -> ContainerMemoryStatus {
        let inputs = DecisionInputs {
            colour: Colour::Green,
            sigma: Some(1.25),
            stall: None,
            usage: Bytes::gib(1),
            minimum: Bytes::mib(300),
            entitlement: Bytes::mib(300),
            free: Bytes::mib(9),
        };
        let lend = MemoryAction::Lend { amount: Bytes::mib(20) };
        ContainerMemoryStatus {
            colour: Colour::Green,
            source: ColourSource::Probe,
            sigma: Some(1.25),
            stall: Some(0.001),
            state: LendingState::Hold,
            until: Some(Micros::secs(9)),
            usage: Bytes::mib(1000),
            pressure: MemoryPressure::default(),
            reclaimable: Bytes::mib(700),
            reservation: Bytes::mib(1200),
            minimum: Bytes::mib(300),
            entitlement: Bytes::mib(300),
            lent: Bytes::mib(200),
            protected: Bytes::mib(300),
            enforced: false,
            view_ceiling: Limit::At(Bytes::mib(980)),
            failures: 1,
            saving: None,
            exempt_reason: None,
            decisions: vec![MemoryDecision {
                at: Micros::secs(7),
                what: lend,
                inputs,
                because: "because".into(),
            }],
        }
    }

    fn report() -> MemoryReport {
        let pool = PoolView {
            path: "/kubepods/burstable/a-very-long-name".into(),
            size: Bytes::gib(1000),
            free: Bytes::mib(1000),
            reserved: Bytes::gib(1000),
            short: true,
            containers: 1000,
            needing_more: 999,
        };
        let container = ContainerRef {
            id: "0123".into(),
            name: Some("a-name-of-many-letters".into()),
            path: "/x".into(),
        };
        let subject = AlertSubject { group: Some(CgroupId(1)), ..AlertSubject::node(AlertKind::Starved) };
        let alert = Alert::new(subject, Micros::secs(1), "it misses\nits objective".into());
        let alert = AlertView::new(alert, None, Some(container.clone()));
        MemoryReport {
            mode: GovernorMode::Observe,
            not_enforced: None,
            pools: vec![pool],
            containers: vec![ContainerMemory { container, status: status(), verdict: Verdict::default() }],
            alerts: vec![alert],
        }
    }

    #[test]
    fn tables_fit_eighty_columns() {
        let mut report = report();
        // The longest word of each column.
        report.containers[0].verdict.status = VerdictStatus::WaitingDisk;
        let longest = text(&report, TableStyle::PLAIN);
        assert!(longest.lines().all(|line| line.chars().count() < 80), "{longest}");
        assert!(longest.contains("more will not help  waiting disk"), "{longest}");
        // Where the container's verdict is of its memory, both columns say so.
        report.containers[0].verdict.status = VerdictStatus::WaitingMemory;
        let text = text(&report, TableStyle::PLAIN);
        assert!(text.lines().all(|line| line.chars().count() < 80), "{text}");
        assert!(text.contains("MORE MEMORY") && text.contains("needs more   waiting memory"), "{text}");
        assert!(text.starts_with("observing: decisions are shown"), "{text}");
        assert!(
            text.contains("STARVED        a-name-of-many-letters\n    it misses\\nits objective\n"),
            "{text}"
        );
    }

    #[test]
    fn what_is_saved_has_a_column_and_a_reason_where_saving_is_on() {
        let mut report = report();
        assert!(!text(&report, TableStyle::PLAIN).contains("SAVED"));
        let saving = SavingStatus { saved: Bytes::mib(120), active: false, because: "it started now".into() };
        report.containers[0].status.saving = Some(saving.clone());
        let table = text(&report, TableStyle::PLAIN);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert!(table.contains("SAVED") && table.contains("\n120M saved\n"), "{table}");
        assert!(table.contains("nothing is taken of a-name-of-many~:\n    it started now\n"), "{table}");
        let (now, status) = (Micros::secs(5), &mut report.containers[0].status);
        assert!(
            memory_explanation(status, VerdictStatus::Ok, now)
                .contains("120MiB; nothing is taken: it started now")
        );
        status.saving =
            Some(SavingStatus { active: true, because: "no container needs it".into(), ..saving });
        assert!(
            memory_explanation(status, VerdictStatus::Ok, now)
                .contains("120MiB; more is taken: no container needs it")
        );
        assert!(!text(&report, TableStyle::PLAIN).contains("nothing is taken"));
    }

    #[test]
    fn a_status_says_which_rule_judged_and_what_is_not_in_force() {
        let line = memory_status_text(&status(), VerdictStatus::Ok);
        let expect = "more will not help (by its probe, 125% of its objective), paused, entitled to 300MiB, minimum \
                      300MiB, 200MiB lent out, 300MiB protected (not in force), shows at most 980MiB";
        assert_eq!(line, expect);
    }

    #[test]
    fn one_that_needs_more_by_its_verdict_says_so_and_counts() {
        let mut status = ContainerMemoryStatus {
            colour: Colour::Yellow,
            source: ColourSource::Stalls,
            stall: Some(0.0),
            state: LendingState::Spare,
            ..status()
        };
        let line = |status: &ContainerMemoryStatus, verdict| memory_status_text(status, verdict);
        let tight = line(&status, VerdictStatus::Tight);
        assert!(tight.starts_with("needs more (its verdict is tight), entitled to "), "{tight}");
        let ok = line(&status, VerdictStatus::Ok);
        assert!(ok.starts_with("fine (it waits for memory 0.0% of the time), can lend, "), "{ok}");
        let mut report = report();
        report.pools[0] =
            PoolView { path: "/".into(), needing_more: 0, containers: 1, ..report.pools[0].clone() };
        report.containers[0].status = status.clone();
        let need = |report: &MemoryReport| {
            let mut report = report.clone();
            report.count_needers();
            report.pools[0].needing_more
        };
        assert_eq!(need(&report), 0);
        report.containers[0].verdict.status = VerdictStatus::Tight;
        assert_eq!(need(&report), 1);
        report.pools[0].path = "/xy".into();
        assert_eq!(need(&report), 0);
        // What makes it need more by its colour is told before its verdict.
        (status.colour, status.stall) = (Colour::Red, Some(0.12));
        let waits = line(&status, VerdictStatus::WaitingMemory);
        assert!(waits.starts_with("needs more (it waits for memory 12.0% of the time), entitled"), "{waits}");
    }

    #[test]
    fn decisions_come_with_their_numbers() {
        let text = memory_explanation(&status(), VerdictStatus::Ok, Micros::secs(5));
        assert!(
            text.contains(
                "lends 20MiB: because [more will not help, used 1GiB, entitled to 300MiB, minimum 300MiB, 9MiB free]"
            ),
            "{text}"
        );
        assert!(
            text.contains("lends nothing     ends in 4 s") && text.contains("       in 2 s  lends"),
            "{text}"
        );
    }

    #[test]
    fn a_report_reads_back_from_its_json() {
        let json = serde_json::to_string(&report()).unwrap();
        assert!(json.contains(r#""what":"lend","amount":20971520"#), "{json}");
        let back: MemoryReport = serde_json::from_str(&json).unwrap();
        assert_eq!((back.pools, back.containers), (report().pools, report().containers));
    }
}
