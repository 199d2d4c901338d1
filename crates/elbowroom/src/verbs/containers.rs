//! `list`, `show`, `explain`, `attach`, `detach`.

use super::memory;
use super::probe::probe_text;
use anyhow::Result;
use elbowroom_client::api::{ContainerView, Explanation, Request, Response, label};
use elbowroom_client::control::Client;
use elbowroom_client::output::{Format, OneContainer, Output};
use elbowroom_client::output::{json, unexpected};
use elbowroom_client::rates;
use elbowroom_client::table::{Align, clip, table};
use elbowroom_govern::disk::{HeldBy, Standing};
use elbowroom_linux::containers::Containers;
use elbowroom_linux::discover::ContainerSources;
use elbowroom_linux::reach;
use elbowroom_linux::reach::{By, Process, Reached};
use elbowroom_types::sample::IoMax;
use elbowroom_types::unit::{Micros, Millicpu};
use elbowroom_view::rules::Explain;
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// `elbowroom list`.
pub(crate) fn list(run_dir: &Path, output: Output) -> Result<String> {
    let Response::List(containers) = Client::connect(run_dir)?.ask(&Request::List)? else {
        return unexpected();
    };
    match output.format {
        Format::Json => json(&containers),
        Format::Text => Ok(list_text(&containers)),
    }
}

/// `elbowroom show`, `attach` and `detach`: ask, and print the container.
pub(crate) fn one(run_dir: &Path, request: Request, output: Output) -> Result<String> {
    let Response::Container(container) = Client::connect(run_dir)?.ask(&request)? else {
        return unexpected();
    };
    match output.format {
        Format::Json => json(&container),
        Format::Text => Ok(show_text(&container)),
    }
}

/// The agent's explanation, and what is looked up here: the agent has nothing to do with how many processes there are.
#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    explanation: Explanation,
    /// What reaches each process.
    reached: Reached,
}

/// `elbowroom explain`.
pub(crate) fn explain(run_dir: &Path, args: OneContainer) -> Result<String> {
    let request = Request::Explain(args.container);
    let Response::Explain(explanation) = Client::connect(run_dir)?.ask(&request)? else {
        return unexpected();
    };
    let pids = Containers::open(&ContainerSources::default())?.processes(&explanation.container.path);
    let reached = reach::look(&pids, &run_dir.join("pages"));
    match args.output.format {
        Format::Json => json(&Explained { explanation: *explanation, reached }),
        Format::Text => Ok(explain_text(&explanation) + &reached_text(&reached)),
    }
}

/// Most rows that are printed; processes of one name that are reached alike share a row.
const MOST_ROWS: usize = 40;

fn reached_text(reached: &Reached) -> String {
    let mut rows: Vec<(&Process, usize)> = Vec::new();
    for process in &reached.processes {
        match rows.iter_mut().find(|(known, _)| known.command == process.command && known.by == process.by) {
            Some((_, count)) => *count += 1,
            None => rows.push((process, 1)),
        }
    }
    let left: usize = rows.iter().skip(MOST_ROWS).map(|(_, count)| count).sum::<usize>() + reached.more;
    let yes = |yes: bool| if yes { "yes" } else { "-" }.to_owned();
    let cells = |(process, count): &(&Process, usize)| {
        let By { files, mapped, java, told } = &process.by;
        let java = match (java, mapped.java_native) {
            (_, true) => "native",
            (true, false) => "agent",
            (false, false) => "-",
        };
        vec![
            process.pid.to_string(),
            if *count == 1 { String::new() } else { format!("+{}", count - 1) },
            clip(&process.command, 20),
            files.to_string(),
            yes(mapped.page),
            yes(mapped.openmp),
            yes(mapped.libc),
            java.to_owned(),
            if told.is_empty() { "-".to_owned() } else { told.join(" ") },
        ]
    };
    let heading = [
        ("PID", Align::Right),
        ("MORE", Align::Left),
        ("COMMAND", Align::Left),
        ("FILES", Align::Right),
        ("PAGE", Align::Left),
        ("OPENMP", Align::Left),
        ("LIBC", Align::Left),
        ("JAVA", Align::Left),
        ("TOLD", Align::Left),
    ];
    let rows: Vec<Vec<String>> = rows.iter().take(MOST_ROWS).map(cells).collect();
    let mut text = format!("\nwhat reaches its processes\n\n{}", table(&heading, &rows));
    if left > 0 {
        let _ = writeln!(text, "and {left} more processes");
    }
    text
}

fn list_text(containers: &[ContainerView]) -> String {
    let rows: Vec<Vec<String>> = containers
        .iter()
        .map(|c| {
            vec![
                clip(&label(c), 28),
                c.view.cpus.to_string(),
                format!("{}-{}", c.view.cpus_lower, c.view.cpus_upper),
                format!("{:.2}", c.cpu_used_millicpu as f64 / 1_000.0),
                c.view.memory.to_string(),
                c.usage.memory.to_string(),
                match (c.attached, c.late_usec) {
                    (false, _) => "no",
                    (true, Some(_)) => "late",
                    (true, None) => "yes",
                }
                .to_owned(),
            ]
        })
        .collect();
    let heading = [
        ("CONTAINER", Align::Left),
        ("CPUS", Align::Right),
        ("BOUNDS", Align::Right),
        ("USED", Align::Right),
        ("MEMORY", Align::Right),
        ("USED", Align::Right),
        ("ATTACHED", Align::Left),
    ];
    table(&heading, &rows)
}

fn show_text(c: &ContainerView) -> String {
    let view = &c.view;
    let mut lines = vec![
        ("container", clip(&label(c), 200)),
        ("id", clip(&c.id, 200)),
        ("engine", format!("{:?}", c.engine).to_lowercase()),
    ];
    if let Some(pod) = &c.pod {
        let name = pod.name.as_deref().unwrap_or("?");
        lines.push(("pod", format!("{}/{name} ({})", pod.namespace.as_deref().unwrap_or("?"), pod.uid)));
    }
    lines.extend([
        ("cgroup", clip(&c.path, 200)),
        (
            "effective CPU",
            format!(
                "{} of {}-{} ({} CPU), online {}",
                view.cpus, view.cpus_lower, view.cpus_upper, view.millicpu, view.online
            ),
        ),
        ("CPU used", format!("{} of the last second", Millicpu(c.cpu_used_millicpu))),
        ("effective memory", format!("{} of {}-{}", view.memory, view.memory_soft, view.memory_hard)),
        ("memory used", c.usage.memory.to_string()),
        (
            "attached",
            match (&c.attached, &c.attach_note) {
                (true, _) => match c.late_usec {
                    Some(late) => format!("yes, {} after its first process started", Micros(late)),
                    None => "yes".to_owned(),
                },
                (false, Some(note)) if !note.is_empty() => format!("no: {note}"),
                (false, _) => "no".to_owned(),
            },
        ),
        ("view", c.view_dir.display().to_string()),
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
    lines.extend(c.memory.iter().map(|standing| ("memory", memory::standing_text(standing))));
    lines.extend(c.disk.iter().map(|standing| ("disk", standing_text(standing))));
    let mut text = String::new();
    for (key, value) in lines {
        let _ = writeln!(text, "{key:<17} {value}");
    }
    text
}

/// A container at a disk, on one line.
fn standing_text(s: &Standing) -> String {
    let mut line = format!(
        "{}: read {}/s, write {}/s, {} used, lifeline {}",
        clip(&s.name, 40),
        rates::bytes(s.rbps),
        rates::bytes(s.wbps),
        rates::part(s.used),
        rates::part(s.lifeline)
    );
    if s.cap.is_some() || s.max != IoMax::MAX {
        let _ = write!(line, ", cap {}", rates::part(s.cap));
        line.push_str(if s.enforced { "" } else { " (not in force)" });
    }
    if s.held_by != HeldBy::Nothing {
        let _ = write!(line, ", held back by {}", holder(s.held_by));
    }
    line
}

fn holder(held_by: HeldBy) -> &'static str {
    match held_by {
        HeldBy::Nothing => "nothing",
        HeldBy::Cap => "a cap of ours",
        HeldBy::User => "its user's limit",
        HeldBy::Contention => "others on the disk",
        HeldBy::Disk => "the disk, which is slow",
    }
}

/// What decided about a container's I/O on one disk.
fn disk_text(s: &Standing) -> String {
    let mut text = format!("\ndisk {}\n\n", clip(&s.name, 40));
    let in_force = if s.enforced { "in force" } else { "not in force" };
    for (key, value) in [
        (
            "now",
            format!(
                "read {}/s, write {}/s, {} of the disk",
                rates::bytes(s.rbps),
                rates::bytes(s.wbps),
                rates::part(s.used)
            ),
        ),
        ("lifeline", format!("{} of the disk", rates::part(s.lifeline))),
        (
            "cap",
            match s.max {
                IoMax::MAX => "none".to_owned(),
                max => format!("{} of the disk: {} ({in_force})", rates::part(s.cap), rates::limits(max)),
            },
        ),
        ("held back by", holder(s.held_by).to_owned()),
    ] {
        let _ = writeln!(text, "{key:<17} {value}");
    }
    if !s.decisions.is_empty() {
        let _ = writeln!(text, "\nlast decisions");
    }
    for cap in s.decisions.iter().rev() {
        let seconds = cap.at.get() as f64 / 1e6;
        let _ = writeln!(text, "{seconds:>12.3}s  {}: {}", rates::limits(cap.max), cap.because);
    }
    text
}

fn explain_text(explanation: &Explanation) -> String {
    let Explain { inputs, rule, changes, .. } = &explanation.explain;
    // Memory and disks have sections of their own below.
    let container = explanation.container.clone();
    let mut text = show_text(&ContainerView { disk: Vec::new(), memory: None, ..container });
    let _ = writeln!(text, "\n{rule}\n");
    let of =
        |path: &Option<String>| path.as_deref().map_or(String::new(), |path| format!(" (set by {path})"));
    let share = inputs.cpu_share.map_or("none".to_owned(), |share| share.raw().to_string());
    for (key, value) in [
        ("share", format!("{share}, {} of {} that compete", inputs.weight, inputs.weight_sum)),
        ("fair share", format!("{} of {} CPUs", inputs.fair, inputs.online)),
        ("quota", format!("{}{}", inputs.quota, of(&inputs.quota_of))),
        ("cpuset", inputs.cpuset.to_string()),
        ("hard limit", format!("{}{}", explanation.container.view.memory_hard, of(&inputs.memory_hard_of))),
    ] {
        let _ = writeln!(text, "{key:<17} {value}");
    }
    if !changes.is_empty() {
        let _ = writeln!(text, "\nlast changes");
    }
    for change in changes.iter().rev() {
        let seconds = change.at.get() as f64 / 1e6;
        let _ = writeln!(text, "{seconds:>12.3}s  {change}");
    }
    explanation.memory.iter().for_each(|standing| text.push_str(&memory::explain_text(standing)));
    explanation.disk.iter().for_each(|standing| text.push_str(&disk_text(standing)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::reach::Mapped;

    #[test]
    fn processes_that_are_reached_alike_share_a_row_and_hostile_names_stay_in_theirs() {
        let by = By { files: 23, mapped: Mapped { page: true, ..Mapped::default() }, ..By::default() };
        let process = |pid, command: &str, by: &By| Process { pid, command: command.into(), by: by.clone() };
        let processes =
            vec![process(7, "web", &by), process(8, "web", &by), process(9, "a\nb\x1b[2J", &By::default())];
        let text = reached_text(&Reached { processes, more: 5 });
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[4], ["7", "+1", "web", "23", "yes", "-", "-", "-", "-"]);
        assert_eq!(lines[5][..2], ["9", "a\\nb\\u{1b}[2J"]);
        assert_eq!(lines[6..], [["and", "5", "more", "processes"]]);
    }

    #[test]
    fn however_many_processes_there_are_the_answer_is_short() {
        let process = |pid: i32| Process { pid, command: format!("worker{pid}"), by: By::default() };
        let text = reached_text(&Reached { processes: (1..=500).map(process).collect(), more: 3 });
        assert_eq!(text.lines().count(), 5 + MOST_ROWS);
        assert!(text.ends_with(&format!("and {} more processes\n", 500 - MOST_ROWS + 3)));
    }
}
