//! A report for people: worst first, below 80 columns.

use crate::rules::verdict::{AuditFinding, AuditVerdict, ImageReport, ResourceVerdict};
use elbowroom_client::table::{Align, clip, table};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;

const WIDTH: usize = 79;

/// One image.
pub(super) fn report(report: &ImageReport, all: bool) -> String {
    let mut text = String::new();
    let verdict = match report.limits == report.views {
        true => report.limits.label().to_owned(),
        false => format!("{}; with views {}", report.limits.label(), report.views.label()),
    };
    let _ = writeln!(text, "{}: {verdict}", clip(&report.image, WIDTH - 2));
    let (shown, left): (Vec<&AuditFinding>, Vec<&AuditFinding>) =
        report.findings.iter().partition(|f| all || f.counts && f.worst(false) != AuditVerdict::Nothing);
    for group in groups(&shown) {
        text.push('\n');
        text.push_str(&finding(&group));
    }
    let mut rest = String::new();
    let quiet = names(left.iter().filter(|f| f.counts));
    if !quiet.is_empty() {
        wrapped(&mut rest, "  ask nothing ", &quiet);
    }
    let others = names(left.iter().filter(|f| !f.counts && f.worst(false) != AuditVerdict::Nothing));
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
pub(super) fn summary(counts: &[(AuditVerdict, usize, usize)], images: usize) -> String {
    let cell = |count: usize| format!("{count} ({:.0} %)", 100.0 * count as f64 / images.max(1) as f64);
    let rows: Vec<Vec<String>> = counts
        .iter()
        .map(|(verdict, limits, views)| vec![verdict.label().to_owned(), cell(*limits), cell(*views)])
        .collect();
    let heading = [("IMAGES", Align::Left), ("LIMITS ALONE", Align::Right), ("WITH VIEWS", Align::Right)];
    table(&heading, &rows)
}

/// Findings that say the same about several files of one program, in the order of the first ones.
fn groups<'a>(findings: &[&'a AuditFinding]) -> Vec<Vec<&'a AuditFinding>> {
    let mut groups: Vec<Vec<&AuditFinding>> = Vec::new();
    let mut places: HashMap<_, usize> = HashMap::new();
    for finding in findings {
        let said = (finding.name, finding.program.version, &finding.cpu, &finding.memory, finding.counts);
        match places.entry(said) {
            Entry::Occupied(place) => groups[*place.get()].push(finding),
            Entry::Vacant(place) => {
                place.insert(groups.len());
                groups.push(vec![finding]);
            }
        }
    }
    groups
}

fn finding(group: &[&AuditFinding]) -> String {
    let first = group[0];
    let mut text = String::new();
    let _ = writeln!(text, "  {:<16} {}", first.worst(false).label(), title(first));
    let (path, users) = (&first.program.path, first.program.users);
    let more = match (group.len() - 1, users) {
        (0, None) => String::new(),
        (0, Some(1)) => " (used by 1 file)".to_owned(),
        (0, Some(users)) => format!(" (used by {users} files)"),
        (more, _) => format!(" and {more} more"),
    };
    wrapped(&mut text, "    in       ", &format!("{}{more}", clip(path, 300)));
    for (name, answer) in [("CPUs", &first.cpu), ("memory", &first.memory)] {
        if answer.limits != AuditVerdict::Nothing || !answer.note.is_empty() {
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
fn needs_setting(answer: &ResourceVerdict) -> bool {
    matches!(answer.limits, AuditVerdict::Host | AuditVerdict::Unknown)
}

fn words(answer: &ResourceVerdict) -> String {
    let mut words = vec![match (&answer.settled, answer.limits == answer.views) {
        (Some(settled), _) => format!("settled: {}", clip(settled, 60)),
        (None, true) => answer.limits.label().to_owned(),
        (None, false) => format!("{}; with views {}", answer.limits.label(), answer.views.label()),
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

fn title(finding: &AuditFinding) -> String {
    match finding.program.version {
        Some(version) => format!("{} {version}", finding.name),
        None => finding.name.to_owned(),
    }
}

/// Every name once: of known programs with the version, of others the file's.
fn names<'a>(findings: impl Iterator<Item = &'a &'a AuditFinding>) -> String {
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
    use crate::rules::evidence::{ElfEvidence, FileEvidence, GoBuild, Inventory, Libc, SizingCall};
    use crate::rules::source::CgroupInterface;
    use crate::rules::verdict::assess;

    fn image() -> Inventory {
        let elf = ElfEvidence { program: true, libc: Libc::Glibc, ..ElfEvidence::default() };
        let go = GoBuild { version: "go1.22.1".to_owned(), ..GoBuild::default() };
        let of = |elf: ElfEvidence| FileEvidence::Elf(Box::new(elf));
        let files = [
            ("/app", of(ElfEvidence { go: Some(go.clone()), ..elf.clone() })),
            ("/usr/bin/a\nb", of(ElfEvidence { go: Some(go), ..elf.clone() })),
            ("/usr/bin/nproc", of(ElfEvidence { calls: [SizingCall::Affinity].into(), ..elf.clone() })),
            ("/usr/bin/python3.11", of(ElfEvidence { defines: ["Py_BytesMain".to_owned()].into(), ..elf })),
        ];
        let files = files.into_iter().map(|(path, evidence)| (path.to_owned(), evidence)).collect();
        Inventory { files, skipped: vec!["y".repeat(400)], ..Inventory::default() }
    }

    #[test]
    fn a_report_is_worst_first_and_below_eighty_columns() {
        let text = report(&assess("shop/web:1", &image(), CgroupInterface::V2), false);
        let places: Vec<usize> = ["Go 1.22.1", "CPython 3.11", "also ask    nproc"]
            .iter()
            .map(|part| text.find(part).unwrap_or_else(|| panic!("{part} is not in:\n{text}")))
            .collect();
        assert!(places.is_sorted(), "{text}");
        assert!(text.contains("/app and 1 more") && text.contains("GOMAXPROCS=N"), "{text}");
        let wide =
            text.lines().filter(|line| line.len() > WIDTH && line.contains(' ') && !line.contains("yyyy"));
        assert_eq!(wide.collect::<Vec<_>>(), Vec::<&str>::new());
        assert!(!report(&assess("x", &image(), CgroupInterface::V2), true).contains("a\nb"));
    }

    #[test]
    fn the_summary_gives_parts_of_a_whole() {
        let reports = [
            assess("a", &image(), CgroupInterface::V2),
            assess("b", &Inventory::default(), CgroupInterface::V2),
        ];
        let text = summary(&crate::rules::verdict::summary(&reports), 2);
        assert!(text.contains("sees the host         1 (50 %)    1 (50 %)"), "{text}");
    }
}
