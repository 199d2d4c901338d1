//! A report for people: worst first, below 80 columns.

use crate::rules::judge::{Answer, Finding, Report, Verdict};
use elbowroom_client::table::{Align, clip, table};
use std::fmt::Write;

const WIDTH: usize = 79;

/// One image.
pub(super) fn report(report: &Report, all: bool) -> String {
    let mut text = String::new();
    let verdict = match report.limits == report.views {
        true => report.limits.words().to_owned(),
        false => format!("{}; with views {}", report.limits.words(), report.views.words()),
    };
    let _ = writeln!(text, "{}: {verdict}", clip(&report.image, WIDTH - 2));
    let (shown, left): (Vec<&Finding>, Vec<&Finding>) =
        report.findings.iter().partition(|f| all || f.counts && f.worst(false) != Verdict::Nothing);
    for group in groups(&shown) {
        text.push('\n');
        text.push_str(&finding(&group));
    }
    let mut rest = String::new();
    let quiet = names(left.iter().filter(|f| f.counts));
    if !quiet.is_empty() {
        wrapped(&mut rest, "  ask nothing ", &quiet);
    }
    let others = names(left.iter().filter(|f| !f.counts && f.worst(false) != Verdict::Nothing));
    if !others.is_empty() {
        wrapped(&mut rest, "  also ask    ", &format!("{others} (--all says what)"));
    }
    for skipped in &report.skipped {
        wrapped(&mut rest, "  not seen    ", &clip(skipped, 300));
    }
    if !rest.is_empty() {
        text.push('\n');
        text.push_str(&rest);
    }
    text + "\n"
}

/// The paper's Fig. 1 for these images.
pub(super) fn summary(counts: &[(Verdict, usize, usize)], images: usize) -> String {
    let cell = |count: usize| format!("{count} ({:.0} %)", 100.0 * count as f64 / images.max(1) as f64);
    let rows: Vec<Vec<String>> = counts
        .iter()
        .map(|(verdict, limits, views)| vec![verdict.words().to_owned(), cell(*limits), cell(*views)])
        .collect();
    let heading = [("IMAGES", Align::Left), ("LIMITS ALONE", Align::Right), ("WITH VIEWS", Align::Right)];
    table(&heading, &rows)
}

/// Findings that say the same about several files of one program.
fn groups<'a>(findings: &[&'a Finding]) -> Vec<Vec<&'a Finding>> {
    let mut groups: Vec<Vec<&Finding>> = Vec::new();
    for finding in findings {
        let same = |group: &&mut Vec<&Finding>| {
            let first = group[0];
            (first.name, first.program.version, &first.cpu, &first.memory, first.counts)
                == (finding.name, finding.program.version, &finding.cpu, &finding.memory, finding.counts)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}

fn finding(group: &[&Finding]) -> String {
    let first = group[0];
    let mut text = String::new();
    let _ = writeln!(text, "  {:<16} {}", first.worst(false).words(), title(first));
    let (path, users) = (&first.program.path, first.program.users);
    let more = match (group.len() - 1, users) {
        (0, None) => String::new(),
        (0, Some(1)) => " (used by 1 file)".to_owned(),
        (0, Some(users)) => format!(" (used by {users} files)"),
        (more, _) => format!(" and {more} more"),
    };
    wrapped(&mut text, "    in       ", &format!("{}{more}", clip(path, 300)));
    for (name, answer) in [("CPUs", &first.cpu), ("memory", &first.memory)] {
        if answer.limits != Verdict::Nothing || !answer.note.is_empty() {
            wrapped(&mut text, &format!("    {name:<8} "), &words(answer));
        }
    }
    let settings = [&first.cpu, &first.memory].into_iter().filter(|answer| needs_setting(answer));
    let settings: Vec<&str> = settings.map(|answer| answer.set).filter(|set| !set.is_empty()).collect();
    if !settings.is_empty() {
        wrapped(&mut text, "    set      ", &settings.join("; "));
    }
    text
}

/// A person must act where views do not help, or where there may be none.
fn needs_setting(answer: &Answer) -> bool {
    matches!(answer.limits, Verdict::Host | Verdict::Unknown)
}

fn words(answer: &Answer) -> String {
    let mut words = vec![match (&answer.settled, answer.limits == answer.views) {
        (Some(settled), _) => format!("settled: {}", clip(settled, 60)),
        (None, true) => answer.limits.words().to_owned(),
        (None, false) => format!("{}; with views {}", answer.limits.words(), answer.views.words()),
    }];
    if !answer.reads.is_empty() {
        let names: Vec<&str> = answer.reads.iter().map(|source| source.name()).collect();
        words.push(format!("reads {}", names.join(", ")));
    }
    if !answer.note.is_empty() {
        words.push(answer.note.to_owned());
    }
    words.join("; ")
}

fn title(finding: &Finding) -> String {
    match finding.program.version {
        Some(version) => format!("{} {version}", finding.name),
        None => finding.name.to_owned(),
    }
}

/// Every name once: of known programs with the version, of others the file's.
fn names<'a>(findings: impl Iterator<Item = &'a &'a Finding>) -> String {
    let mut names: Vec<String> = findings
        .map(|finding| match finding.program.id.as_str() {
            "program" | "go" | "rust" => {
                clip(finding.program.path.rsplit('/').next().unwrap_or_default(), 40)
            }
            _ => title(finding),
        })
        .collect();
    names.sort();
    names.dedup();
    names.join(", ")
}

/// Words below a heading, broken between words, further lines below the first word.
fn wrapped(text: &mut String, heading: &str, words: &str) {
    let indent = heading.chars().count();
    let mut line = heading.to_owned();
    let mut empty = true;
    for word in words.split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = " ".repeat(indent);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::evidence::{Call, Elf, Evidence, GoBuild, Inventory, Libc};
    use crate::rules::judge::judge;
    use crate::rules::source::Cgroup;

    fn image() -> Inventory {
        let elf = Elf { program: true, libc: Libc::Glibc, ..Elf::default() };
        let go = GoBuild { version: "go1.22.1".to_owned(), ..GoBuild::default() };
        let of = |elf: Elf| Evidence::Elf(Box::new(elf));
        let files = [
            ("/app", of(Elf { go: Some(go.clone()), ..elf.clone() })),
            ("/usr/bin/a\nb", of(Elf { go: Some(go), ..elf.clone() })),
            ("/usr/bin/nproc", of(Elf { calls: [Call::Affinity].into(), ..elf.clone() })),
            ("/usr/bin/python3.11", of(Elf { defines: ["Py_BytesMain".to_owned()].into(), ..elf })),
        ];
        let files = files.into_iter().map(|(path, evidence)| (path.to_owned(), evidence)).collect();
        Inventory { files, skipped: vec!["y".repeat(400)], ..Inventory::default() }
    }

    #[test]
    fn a_report_is_worst_first_and_below_eighty_columns() {
        let text = report(&judge("shop/web:1", &image(), Cgroup::V2), false);
        let places: Vec<usize> = ["Go 1.22.1", "CPython 3.11", "also ask    nproc"]
            .iter()
            .map(|part| text.find(part).unwrap_or_else(|| panic!("{part} is not in:\n{text}")))
            .collect();
        assert!(places.is_sorted(), "{text}");
        assert!(text.contains("/app and 1 more") && text.contains("GOMAXPROCS=N"), "{text}");
        let wide =
            text.lines().filter(|line| line.len() > WIDTH && line.contains(' ') && !line.contains("yyyy"));
        assert_eq!(wide.collect::<Vec<_>>(), Vec::<&str>::new());
        assert!(!report(&judge("x", &image(), Cgroup::V2), true).contains("a\nb"));
    }

    #[test]
    fn the_summary_gives_parts_of_a_whole() {
        let reports = [judge("a", &image(), Cgroup::V2), judge("b", &Inventory::default(), Cgroup::V2)];
        let text = summary(&crate::rules::judge::summary(&reports), 2);
        assert!(text.contains("sees the host         1 (50 %)    1 (50 %)"), "{text}");
    }
}
