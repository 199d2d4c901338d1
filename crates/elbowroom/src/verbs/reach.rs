//! The end of `explain`: what reaches a container's processes, and how many CPUs programs in it see.

use elbowroom_client::api::ContainerView;
use elbowroom_client::table::{Align, clip, table};
use elbowroom_linux::reach::{ProcessReach, ReachReport, ReachedProcess};
use elbowroom_types::unit::counted;
use elbowroom_view::rules::ViewInputs;
use std::fmt::Write;

/// Most rows that are printed; processes of one name that are reached alike share a row.
const MAX_ROWS: usize = 40;

const LEGEND: &str = "\
FILES: files of the view that it sees. PAGE: the view page, mapped.
OPENMP, LIBC, JAVA: libraries that follow it. ENVIRONMENT: sizes set there.
";

/// A table of the processes, below the sentence about the CPUs that they see.
pub(super) fn reach_text(reached: &ReachReport, seen: Option<String>) -> String {
    // Of a container that ended.
    if reached.processes.is_empty() && reached.more == 0 {
        return String::new();
    }
    let mut rows: Vec<(&ReachedProcess, usize)> = Vec::new();
    for process in &reached.processes {
        match rows.iter_mut().find(|(known, _)| known.command == process.command && known.by == process.by) {
            Some((_, count)) => *count += 1,
            None => rows.push((process, 1)),
        }
    }
    let left: usize = rows.iter().skip(MAX_ROWS).map(|(_, count)| count).sum::<usize>() + reached.more;
    let heading = [
        ("PID", Align::Right),
        ("MORE", Align::Left),
        ("COMMAND", Align::Left),
        ("FILES", Align::Right),
        ("PAGE", Align::Left),
        ("OPENMP", Align::Left),
        ("LIBC", Align::Left),
        ("JAVA", Align::Left),
        ("ENVIRONMENT", Align::Left),
    ];
    let rows: Vec<Vec<String>> = rows.iter().take(MAX_ROWS).map(cells).collect();
    let seen = seen.map_or_else(String::new, |seen| seen + "\n\n");
    let mut text = format!("\nwhat reaches its processes\n\n{seen}{}", table(&heading, &rows));
    if left > 0 {
        let _ = writeln!(text, "and {left} more processes");
    }
    text + LEGEND
}

fn cells((process, count): &(&ReachedProcess, usize)) -> Vec<String> {
    let yes = |yes: bool| if yes { "yes" } else { "-" }.to_owned();
    let ProcessReach { files, mapped, java, told } = &process.by;
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
}

/// Which programs see the effective CPU, and which ask the kernel, which knows no view. `None` if both get the same answer, or if system
/// calls are answered from the view too.
pub(super) fn cpus_seen(c: &ContainerView, inputs: &ViewInputs, reached: &ReachReport) -> Option<String> {
    let kernel = inputs.cpuset.count().min(inputs.online);
    let is_answered = c.labels.injections.libc
        || c.labels.seccomp == Some(true)
        || reached.processes.iter().any(|process| process.by.mapped.libc);
    if !c.attached || is_answered || c.view.cpus == kernel {
        return None;
    }
    let files = c.view.cpus;
    Some(format!(
        "Programs that read files (getconf, JVMs, Go 1.25) see {}; those that ask the kernel (`nproc`, musl, Python's \
         affinity) see {kernel}.",
        counted(files, "CPU")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_linux::reach::MapsSummary;

    #[test]
    fn processes_that_are_reached_alike_share_a_row_and_hostile_names_stay_in_theirs() {
        let by = ProcessReach {
            files: 23,
            mapped: MapsSummary { page: true, ..MapsSummary::default() },
            ..ProcessReach::default()
        };
        let process = |pid, command: &str, by: &ProcessReach| ReachedProcess {
            pid,
            command: command.into(),
            by: by.clone(),
        };
        let processes = vec![
            process(7, "web", &by),
            process(8, "web", &by),
            process(9, "a\nb\x1b[2J", &ProcessReach::default()),
        ];
        let text = reach_text(&ReachReport { processes, more: 5 }, Some("Programs see 1 CPU.".into()));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[3].join(" "), "Programs see 1 CPU.");
        assert_eq!(lines[6], ["7", "+1", "web", "23", "yes", "-", "-", "-", "-"]);
        assert_eq!(lines[7][..2], ["9", "a\\nb\\u{1b}[2J"]);
        assert_eq!(lines[8], ["and", "5", "more", "processes"]);
        assert!(text.ends_with(LEGEND) && LEGEND.lines().all(|line| line.len() < 80));
        // Each heading between the number, how many more and the name is explained.
        for column in lines[5].iter().skip(3) {
            assert!(LEGEND.contains(column), "{column}");
        }
    }

    #[test]
    fn however_many_processes_there_are_the_answer_is_short() {
        let process =
            |pid: i32| ReachedProcess { pid, command: format!("worker{pid}"), by: ProcessReach::default() };
        let text = reach_text(&ReachReport { processes: (1..=500).map(process).collect(), more: 3 }, None);
        let legend = LEGEND.lines().count();
        assert_eq!(text.lines().count(), 5 + MAX_ROWS + legend);
        assert!(text.contains(&format!("and {} more processes\n", 500 - MAX_ROWS + 3)));
    }
}
