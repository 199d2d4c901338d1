//! `list`, `show`, `explain`, `attach`, `detach`.

use super::memory;
use super::probe::probe_text;
use super::reach::{cpus_seen, reach_text};
use anyhow::Result;
use clap::Args;
use elbowroom_client::api::{
    AgentSnapshot, ContainerView, ControlRequest, ControlResponse, Explanation, display_name,
};
use elbowroom_client::control::ControlClient;
use elbowroom_client::dated::Dated;
use elbowroom_client::number_format;
use elbowroom_client::output::{ContainerArgs, OutputArgs, TableArgs, unexpected_response};
use elbowroom_client::table::{Align, Keep, TableStyle, clip};
use elbowroom_govern::disk::{ContainerDiskStatus, HeldBy};
use elbowroom_linux::containers::ContainerSelector;
use elbowroom_linux::discover::ContainerSources;
use elbowroom_linux::reach::{self, ReachReport};
use elbowroom_linux::timer;
use elbowroom_types::io::IoMax;
use elbowroom_types::unit::{Micros, Millicpu, counted};
use elbowroom_types::visible::Visible;
use elbowroom_view::rules::{ViewChange, ViewDelta, ViewExplanation};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// Arguments of `list`.
#[derive(Args, Clone, Copy)]
pub(crate) struct ListArgs {
    /// Also list containers that ended within the last hour. Those killed for memory within the last two minutes are listed without.
    #[arg(short, long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

/// `elbowroom list`: the worst first.
pub(crate) fn list(run_dir: &Path, args: ListArgs) -> Result<String> {
    // At one moment, in which one that is started again either runs or has ended.
    let snapshot = fetch_snapshot(&mut ControlClient::connect(run_dir)?)?;
    let mut containers = match args.all {
        true => [snapshot.containers, snapshot.ended].concat(),
        false => snapshot.shown_containers(),
    };
    worst_first(&mut containers);
    let names = || containers.iter().map(|c| c.name.clone().unwrap_or_else(|| c.id.clone())).collect();
    args.table.answer(&Dated(&containers), names, |style| {
        list_text(&containers, style) + kernel_cpus_note(&containers, online_cpus(), style)
    })
}

/// What the agent knows at one moment.
pub(super) fn fetch_snapshot(client: &mut ControlClient) -> Result<AgentSnapshot> {
    match client.request(&ControlRequest::Snapshot)? {
        ControlResponse::Snapshot(snapshot) => Ok(*snapshot),
        _ => unexpected_response(),
    }
}

/// The worst first, and those that are as bad by name, as `top` has them.
fn worst_first(containers: &mut [ContainerView]) {
    containers.sort_by_cached_key(|c| (std::cmp::Reverse(c.verdict.severity()), display_name(c)));
}

/// `elbowroom show`, `attach` and `detach`: ask, and print the container.
pub(crate) fn show_container(run_dir: &Path, request: ControlRequest, output: OutputArgs) -> Result<String> {
    let ControlResponse::Container(container) = ControlClient::connect(run_dir)?.request(&request)? else {
        return unexpected_response();
    };
    output.answer(&Dated(&container), || show_text(&container))
}

/// The agent's explanation, and what this program looks up, so that the agent need not look at each process.
#[derive(Serialize)]
struct ExplainOutput {
    #[serde(flatten)]
    explanation: Explanation,
    /// What reaches each process.
    reached: ReachReport,
}

/// `elbowroom explain`.
pub(crate) fn explain(run_dir: &Path, args: ContainerArgs) -> Result<String> {
    let request = ControlRequest::Explain(args.container);
    let ControlResponse::Explain(explanation) = ControlClient::connect(run_dir)?.request(&request)? else {
        return unexpected_response();
    };
    let pids = ContainerSelector::open(&ContainerSources::default())?.processes(&explanation.container.path);
    let reached = reach::inspect(&pids, &run_dir.join("pages"));
    let answer = ExplainOutput { explanation: *explanation, reached };
    args.output.answer(&Dated(&answer), || {
        let ExplainOutput { explanation, reached } = &answer;
        let seen = cpus_seen(&explanation.container, &explanation.explain.inputs, reached);
        explanation_text(explanation, timer::now()) + &reach_text(reached, seen)
    })
}

/// Most characters of a name in a table.
const NAME_WIDTH: usize = 28;

fn list_text(containers: &[ContainerView], style: TableStyle) -> String {
    let rows: Vec<Vec<String>> = containers
        .iter()
        .map(|c| {
            vec![
                clip(&display_name(c), NAME_WIDTH),
                c.verdict.status.to_string(),
                c.view.cpus.to_string(),
                format!("{}-{}", c.view.cpus_lower, c.view.cpus_upper),
                format!("{:.2}", c.cpu_used_millicpu as f64 / 1_000.0),
                c.view.memory.to_string(),
                c.usage.memory.to_string(),
                match c.attached {
                    _ if c.ended_unix_ms.is_some() => "ended",
                    true => "yes",
                    false => "no",
                }
                .to_owned(),
                c.view_delay_usec
                    .map_or_else(|| "-".to_owned(), |late| number_format::short_duration(Micros(late))),
                format!("{:?}", c.engine).to_lowercase(),
                c.id.chars().take(12).collect(),
                c.path.clone(),
            ]
        })
        .collect();
    let heading = [
        ("CONTAINER", Align::Left, Keep::Always),
        ("VERDICT", Align::Left, Keep::Always),
        ("CPUS", Align::Right, Keep::Always),
        ("BOUNDS", Align::Right, Keep::Rank(2)),
        ("USED", Align::Right, Keep::Rank(1)),
        ("MEMORY", Align::Right, Keep::Always),
        ("USED", Align::Right, Keep::Rank(1)),
        ("ATTACHED", Align::Left, Keep::Rank(3)),
        ("DELAY", Align::Right, Keep::Wide),
        ("ENGINE", Align::Left, Keep::Wide),
        ("ID", Align::Left, Keep::Wide),
        ("CGROUP", Align::Left, Keep::Wide),
    ];
    style.table(&heading, &rows)
}

/// CPUs that a program without a view is told of here.
fn online_cpus() -> u32 {
    rustix::thread::sched_getaffinity(None).map_or(0, |cpus| cpus.count())
}

/// What a terminal is told below a list with a container that sees fewer CPUs than the kernel tells its programs.
fn kernel_cpus_note(containers: &[ContainerView], online: u32, style: TableStyle) -> &'static str {
    let sees_fewer = |c: &ContainerView| c.attached && c.ended_unix_ms.is_none() && c.view.cpus < online;
    match style.headers && style.width.is_some() && containers.iter().any(sees_fewer) {
        true => KERNEL_CPUS_NOTE,
        false => "",
    }
}

const KERNEL_CPUS_NOTE: &str = "\
CPUS is what files in a container say. `nproc` asks the kernel instead, and may say more: `elbowroom explain CONTAINER`.
";

pub(super) fn show_text(c: &ContainerView) -> String {
    let view = &c.view;
    let short = |text: &str| shorten(c, text);
    let mut lines = vec![
        ("container", clip(&display_name(c), 200)),
        ("verdict", format!("{}: {}", c.verdict.status, clip(&c.verdict.reason, 300))),
        ("id", clip(short(&c.id).trim_end_matches('.'), 200)),
        ("engine", format!("{:?}", c.engine).to_lowercase()),
    ];
    if let Some(command) = &c.verdict.command {
        lines.insert(2, ("what helps", clip(command, 300)));
    }
    if let Some(ended) = c.ended_unix_ms {
        let ago = elbowroom_linux::timer::unix_ms().saturating_sub(ended) / 1_000;
        lines.insert(1, ("ended", format!("{} ago", Micros::secs(ago))));
    }
    if let Some(pod) = &c.pod {
        let name = pod.name.as_deref().unwrap_or("?");
        lines.push(("pod", format!("{}/{name} ({})", pod.namespace.as_deref().unwrap_or("?"), pod.uid)));
    }
    lines.extend([
        ("cgroup", clip(&short(&c.path), 200)),
        (
            "effective CPU",
            format!(
                "{} of {}-{} ({} CPU), online: CPU {}",
                view.cpus, view.cpus_lower, view.cpus_upper, view.millicpu, view.online
            ),
        ),
        ("CPU used", format!("{} of the last second", Millicpu(c.cpu_used_millicpu))),
        ("effective memory", format!("{} of {}-{}", view.memory, view.memory_soft, view.memory_hard)),
        ("memory used", c.usage.memory.to_string()),
        (
            "attached",
            match (&c.attached, &c.attach_note) {
                (true, _) => match c.view_delay_usec {
                    Some(late) => format!("yes, {} after its first process started", Micros(late)),
                    None => "yes".to_owned(),
                },
                (false, Some(note)) if !note.is_empty() => format!("no: {note}"),
                (false, _) => "no".to_owned(),
            },
        ),
        ("view", short(&c.view_dir.display().to_string())),
    ]);
    if !c.missing.is_empty() {
        lines.push(("not in container", c.missing.join(" ")));
    }
    match &c.labels_by {
        Some(by) => lines.push(("labels", format!("{} (given by {})", c.labels, clip(by, 80)))),
        None if c.labels.is_empty() => {}
        None => lines.push(("labels", c.labels.to_string())),
    }
    lines.extend(c.probe.iter().map(|probe| ("probe", probe_text(probe))));
    lines.extend(
        c.memory.iter().map(|status| ("memory", memory::memory_status_text(status, c.verdict.status))),
    );
    lines.extend(c.disk.iter().map(|status| ("disk", disk_status_text(status))));
    let mut text = String::new();
    for (key, value) in lines {
        // Words of makers have no lines of their own.
        let _ = writeln!(text, "{key:<17} {}", Visible::line(&value));
    }
    text
}

/// Text about a container without the length of its identifier, where it has a name to be called by.
fn shorten(c: &ContainerView, text: &str) -> String {
    if c.name.is_some() { number_format::short_ids(text) } else { text.to_owned() }
}

/// A container at a disk, on one line.
fn disk_status_text(s: &ContainerDiskStatus) -> String {
    let mut line = format!(
        "{}: read {}/s, write {}/s, {} used, protected rate (lifeline) {}",
        clip(&s.name, 40),
        number_format::short_bytes(s.rbps),
        number_format::short_bytes(s.wbps),
        number_format::percent(s.used),
        number_format::percent(s.lifeline)
    );
    if s.cap.is_some() || s.max != IoMax::MAX {
        let _ = write!(line, ", cap {}", number_format::percent(s.cap));
        line.push_str(if s.enforced { "" } else { " (not in force)" });
    }
    if s.held_by != HeldBy::Nothing {
        let _ = write!(line, ", held back by {}", held_by_text(s.held_by));
    }
    line
}

fn held_by_text(held_by: HeldBy) -> &'static str {
    match held_by {
        HeldBy::Nothing => "nothing",
        HeldBy::Cap => "a cap of the agent",
        HeldBy::User => "its user's limit",
        HeldBy::Others => "others on the disk",
        HeldBy::Disk => "the disk, which is slow",
    }
}

/// A part of what a disk can do, which it may not have shown yet.
fn of_disk(part: Option<f64>) -> String {
    part.map_or_else(
        || "part of the disk not known yet".to_owned(),
        |part| format!("{} of the disk", number_format::percent(Some(part))),
    )
}

/// What decided about a container's I/O on one disk.
fn disk_explanation(s: &ContainerDiskStatus, now: Micros) -> String {
    let mut text = format!("\ndisk {}\n\n", clip(&s.name, 40));
    let in_force = if s.enforced { "in force" } else { "not in force" };
    for (key, value) in [
        (
            "now",
            format!(
                "read {}/s, write {}/s, {}",
                number_format::short_bytes(s.rbps),
                number_format::short_bytes(s.wbps),
                of_disk(s.used)
            ),
        ),
        ("protected rate", format!("{} (lifeline)", of_disk(s.lifeline))),
        (
            "cap",
            match s.max {
                IoMax::MAX => "none".to_owned(),
                max => format!(
                    "{} of the disk: {} ({in_force})",
                    number_format::percent(s.cap),
                    number_format::io_limits(max)
                ),
            },
        ),
        ("held back by", held_by_text(s.held_by).to_owned()),
    ] {
        let _ = writeln!(text, "{key:<17} {value}");
    }
    if !s.decisions.is_empty() {
        let _ = writeln!(text, "\nlast decisions");
    }
    for cap in s.decisions.iter().rev() {
        let _ = writeln!(
            text,
            "{:>13}  {}: {}",
            number_format::relative(cap.at, now),
            number_format::io_limits(cap.max),
            cap.because
        );
    }
    text
}

pub(super) fn explanation_text(explanation: &Explanation, now: Micros) -> String {
    let ViewExplanation { inputs, rule, changes, .. } = &explanation.explain;
    // Memory and disks have sections of their own below.
    let container = explanation.container.clone();
    let short = |text: &str| shorten(&explanation.container, text);
    let mut text = show_text(&ContainerView { disk: Vec::new(), memory: None, ..container });
    let _ = writeln!(text, "\n{}\n", short(rule));
    for over in &explanation.over_quota {
        let _ = writeln!(text, "{:<17} {}", "over its quota", short(over));
    }
    let of = |path: &Option<String>| {
        path.as_deref().map_or(String::new(), |path| format!(" (set by {})", short(path)))
    };
    let share = inputs.cpu_share.map_or("none".to_owned(), |share| share.raw().to_string());
    for (key, value) in [
        ("share", format!("{share}, {} of {} that compete", inputs.weight, inputs.weight_sum)),
        ("fair share", format!("{} of {}", inputs.fair, counted(inputs.online, "CPU"))),
        ("quota", format!("{}{}", inputs.quota, of(&inputs.quota_of))),
        ("cpuset", inputs.cpuset.to_string()),
        ("hard limit", format!("{}{}", explanation.container.view.memory_hard, of(&inputs.memory_hard_of))),
    ] {
        let _ = writeln!(text, "{key:<17} {value}");
    }
    if let Some(hold) = inputs.growth_hold {
        let _ = writeln!(text, "{:<17} {hold}", "growth is held");
    }
    text.push_str(&changes_text(changes, now));
    explanation.memory.iter().for_each(|status| {
        text.push_str(&memory::memory_explanation(status, explanation.container.verdict.status, now))
    });
    explanation.disk.iter().for_each(|status| text.push_str(&disk_explanation(status, now)));
    text
}

/// The last changes, the newest first, without those that change nothing on the screen.
fn changes_text(changes: &[ViewChange], now: Micros) -> String {
    let shows = |change: &&ViewChange| match change.what {
        ViewDelta::Cpu { from, to } => from != to,
        ViewDelta::Memory { from, to } => from.to_string() != to.to_string(),
    };
    let mut text = String::new();
    for change in changes.iter().rev().filter(shows) {
        // What was there before the agent first looked at the clock.
        let when = match change.at {
            Micros::ZERO => "at the start".to_owned(),
            at => number_format::relative(at, now),
        };
        let _ = writeln!(text, "{when:>13}  {change}");
    }
    if text.is_empty() { text } else { format!("\nlast changes\n{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::id::CgroupId;
    use elbowroom_types::unit::Bytes;
    use elbowroom_types::verdict::VerdictStatus;
    use elbowroom_view::rules::ViewChangeReason;

    fn container(cpus: u32, attached: bool) -> ContainerView {
        let view = serde_json::json!({
            "cpus": cpus, "millicpu": cpus * 1_000, "cpus_lower": 1, "cpus_upper": 4, "online": "0", "present": "0-3", "possible": "0-3",
            "memory": 1 << 29, "memory_soft": 1 << 27, "memory_hard": 1 << 30, "swap_max": null
        });
        let usage = serde_json::json!({"cpu": 0, "throttled": null, "memory": 0});
        serde_json::from_value(serde_json::json!({
            "id": "ab".repeat(32), "name": "web", "engine": "docker", "pod": null, "path": format!("/docker/{}", "ab".repeat(32)),
            "attached": attached, "attach_note": null, "missing": [], "view_dir": "/run/v", "view": view, "usage": usage,
            "cpu_used_millicpu": 0, "disk": []
        }))
        .unwrap()
    }

    #[test]
    fn one_that_ended_counts_as_killed_for_two_minutes_and_is_not_attached() {
        let mut dead = container(1, false);
        (dead.ended_unix_ms, dead.killed_unix_ms) = (Some(600_500), Some(600_000));
        dead.attach_note = Some("it has ended".to_owned());
        assert!(!dead.is_killed(600_500), "it ended well");
        dead.verdict.status = VerdictStatus::Killed;
        assert!(dead.is_killed(600_500) && dead.is_killed(719_999) && !dead.is_killed(720_000));
        assert!(!ContainerView { killed_unix_ms: None, ..dead.clone() }.is_killed(600_500), "an older agent");
        let table = list_text(&[dead.clone()], TableStyle::PLAIN);
        assert!(table.lines().nth(1).unwrap().split_whitespace().any(|cell| cell == "ended"), "{table}");
        assert!(show_text(&dead).contains("attached          no: it has ended\n"));
    }

    #[test]
    fn words_of_others_have_no_line_of_their_own_and_any_identifier_has_a_name() {
        let mut hostile = container(1, false);
        hostile.attach_note = Some("x\nverdict           ok\x1b[2J".to_owned());
        hostile.missing = vec!["a\nattached          yes".to_owned()];
        let text = show_text(&hostile);
        assert!(text.contains("no: x\\nverdict           ok\\u{1b}[2J\n"), "{text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("attached")).count(), 1, "{text}");
        (hostile.name, hostile.id) = (None, "\u{e4}".repeat(32));
        assert_eq!(display_name(&hostile), "\u{e4}".repeat(12));
        hostile.id = format!("a{}b", "\u{e4}".repeat(31));
        assert!(display_name(&hostile).starts_with('a'));
    }

    #[test]
    fn a_terminal_is_told_of_nproc_where_a_view_is_smaller_than_the_machine() {
        let terminal = TableStyle { width: Some(80), ..TableStyle::PLAIN };
        let note = |c, style| !kernel_cpus_note(&[c], 2, style).is_empty();
        assert!(note(container(1, true), terminal));
        // One paragraph, which the terminal's width alone breaks.
        assert_eq!(kernel_cpus_note(&[container(1, true)], 2, terminal).lines().count(), 1);
        assert!(!note(container(2, true), terminal) && !note(container(1, false), terminal));
        assert!(!note(container(1, true), TableStyle::PLAIN));
        assert!(!note(container(1, true), TableStyle { headers: false, ..terminal }));
        // And its identifier is as short as Docker prints it, where it has a name.
        let mut named = container(1, true);
        let text = show_text(&named);
        assert!(
            text.contains("id                abababababab\n") && text.contains("/docker/abababababab...\n"),
            "{text}"
        );
        named.name = None;
        assert!(show_text(&named).contains(&format!("/docker/{}\n", "ab".repeat(32))));
        // Not a number of CPUs, and none of them zero.
        assert!(show_text(&named).contains("1 of 1-4 (1 CPU), online: CPU 0\n"));
        // Those that are as bad are in the order of names, whenever they were found.
        let mut found = ["web", "app-2", "app-1"].map(|name| {
            let mut one = container(1, true);
            one.name = Some(name.to_owned());
            one
        });
        found[0].verdict.status = VerdictStatus::Throttled;
        worst_first(&mut found);
        assert_eq!(found.map(|c| c.name.unwrap_or_default()), ["web", "app-1", "app-2"]);
    }

    #[test]
    fn explain_says_what_keeps_memory_from_growing() {
        let inputs = serde_json::json!({
            "online": 2, "cpu_share": null, "weight": 1, "weight_sum": 1, "fair": 1_000, "quota": "max", "quota_of": null, "cpuset": "0-1",
            "memory_hard_of": null, "period": null, "used": 0, "throttled": null, "slack": null, "usage": 0, "usage_before": 0,
            "mem_free": 0, "mem_free_before": 0, "low_mark": 0, "high_mark": 0,
            "growth_hold": {"why": "hurt_before", "free": 300 << 20, "mark": 256 << 20}
        });
        let container = container(1, true);
        let explain = serde_json::json!({
            "id": 1, "path": "/docker/web", "view": container.view, "inputs": inputs, "rule": "", "changes": []
        });
        let explain = serde_json::from_value(explain).unwrap();
        let explanation =
            Explanation { container, explain, disk: Vec::new(), memory: None, over_quota: Vec::new() };
        let text = explanation_text(&explanation, Micros::ZERO);
        let expect =
            "\ngrowth is held    growth has hurt other programs with less than 256MiB left on the machine";
        assert!(text.contains(expect), "{text}");
    }

    #[test]
    fn changes_that_show_are_told_from_now() {
        let memory = |at, from, to| ViewChange {
            at: Micros::secs(at),
            id: CgroupId(1),
            what: ViewDelta::Memory { from: Bytes::mib(from), to: Bytes::mib(to) },
            because: ViewChangeReason::Appeared,
        };
        let text = changes_text(&[memory(0, 0, 32), memory(5, 32, 32), memory(7, 32, 64)], Micros::secs(9));
        let lines: Vec<&str> = text.lines().skip(2).map(|line| line.split(": ").next().unwrap()).collect();
        assert_eq!(lines, ["      2 s ago  memory 32MiB -> 64MiB", " at the start  memory 0B -> 32MiB"]);
        assert_eq!(changes_text(&[memory(5, 32, 32)], Micros::secs(9)), "");
    }
}
