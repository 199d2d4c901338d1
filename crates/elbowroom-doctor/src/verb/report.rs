//! Findings for people: worst first, one paragraph a check, however many containers it found.

use crate::checks::{HostFacts, is_fixable, is_harmful};
use elbowroom_client::table::clip;
use elbowroom_types::finding::{DoctorFinding, Severity};
use elbowroom_types::unit::counted;
use elbowroom_types::verdict::Verdict;
use elbowroom_types::visible::Visible;
use std::fmt::Write;
use std::io::IsTerminal;

/// How the answer may look.
#[derive(Clone, Copy)]
pub(super) struct ReportStyle {
    /// Columns.
    pub(super) width: usize,
    /// Colour, which only a terminal gets.
    pub(super) colour: bool,
}

impl ReportStyle {
    /// As standard output can show it.
    pub(super) fn of_stdout() -> Self {
        if !std::io::stdout().is_terminal() {
            return Self { width: 80, colour: false };
        }
        let width = ratatui::crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns));
        Self { width: width.clamp(60, 100), colour: std::env::var_os("NO_COLOR").is_none() }
    }

    /// Adds `text` in a colour, where there are colours.
    fn paint(self, to: &mut Visible, text: &str, code: &'static str) {
        match self.colour {
            true => to.push_painted(text, code),
            false => drop(to.write_str(&Visible::line(text))),
        }
    }
}

/// The report: of one container first the agent's `verdict`. Without `all`, notes are only counted and one container stands for those
/// with the same finding.
pub(super) fn report(
    facts: &HostFacts,
    verdict: Option<&Verdict>,
    findings: &[DoctorFinding],
    all: bool,
    style: ReportStyle,
) -> Visible {
    let mut text = Visible::default();
    verdict.into_iter().for_each(|verdict| write_verdict(&mut text, verdict, style));
    let shown = findings.iter().filter(|f| all || is_harmful(f));
    if all {
        shown.for_each(|f| write_paragraph(&mut text, &[f], style));
    } else {
        for group in by_check(shown) {
            write_paragraph(&mut text, &group, style);
        }
    }
    let containers = facts.containers().count();
    let problems = findings.iter().filter(|f| is_harmful(f)).count();
    match problems {
        0 if verdict.is_some_and(|v| v.status.hurts()) => drop(text.write_str("no finding")),
        0 => style.paint(&mut text, "healthy", "32"),
        n => drop(text.write_str(&counted(n, "problem"))),
    }
    let _ = writeln!(
        text,
        ": {} and the host, {:.1} s",
        counted(containers, "container"),
        facts.elapsed.get() as f64 / 1e6
    );
    let mut notes: Vec<&str> = findings.iter().filter(|f| !is_harmful(f)).map(|f| f.check.as_str()).collect();
    notes.sort_unstable();
    let count = notes.len();
    notes.dedup();
    if count > 0 && !all {
        let line = format!("{} (--all): {}", counted(count, "note"), notes.join(", "));
        let _ = text.write_str(&wrap(&line, "", style.width));
    }
    if !all && findings.iter().any(|f| is_harmful(f) && is_fixable(f)) {
        let _ = text.write_str("`elbowroom doctor --fix` shows what it would write, and asks\n");
    }
    text
}

/// The agent's verdict, in the words of `elbowroom show`.
fn write_verdict(text: &mut Visible, verdict: &Verdict, style: ReportStyle) {
    let key = |key: &str| format!("{key:<VERDICT_KEY$}");
    let indent = " ".repeat(VERDICT_KEY);
    let sentence =
        wrap(&Visible::line(&format!("{}: {}", verdict.status, verdict.reason)), &indent, style.width);
    let _ = text.write_str(&sentence.replacen(&indent, &key("verdict"), 1));
    if let Some(command) = &verdict.command {
        let _ = writeln!(text, "{}{}", key("what helps"), Visible::line(command));
    }
    let _ = writeln!(text);
}

/// Columns of the names of lines, as `elbowroom show` has them.
const VERDICT_KEY: usize = 18;

/// Findings of one check together, in the order of the worst of each.
fn by_check<'a>(findings: impl Iterator<Item = &'a DoctorFinding>) -> Vec<Vec<&'a DoctorFinding>> {
    let mut groups: Vec<Vec<&DoctorFinding>> = Vec::new();
    for finding in findings {
        match groups.iter_mut().find(|g| g[0].check == finding.check) {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups
}

fn write_paragraph(text: &mut Visible, group: &[&DoctorFinding], style: ReportStyle) {
    let first = group[0];
    let (word, code) = match first.severity {
        Severity::Critical => ("CRITICAL", "1;31"),
        Severity::Warning => ("WARNING", "1;33"),
        Severity::Info => ("note", "2"),
    };
    let names: Vec<String> =
        group.iter().filter_map(|f| f.container.as_deref()).map(|n| clip(n, 40)).collect();
    let heading = format!("{word}  {}", first.check);
    let who = match &names[..] {
        [] => String::new(),
        [one] => format!("  {one}"),
        many => {
            let counted = format!("  {} containers: ", many.len());
            let room = style.width.saturating_sub(heading.len() + counted.len());
            counted + &join_fitting(many, room)
        }
    };
    style.paint(text, word, code);
    let _ = writeln!(text, "{}{who}", &heading[word.len()..]);
    let subject = if names.len() > 1 { format!("{}: ", names[0]) } else { String::new() };
    let _ = text.write_str(&wrap(&format!("{subject}{}", Visible::line(&first.sentence)), "  ", style.width));
    let width =
        first.evidence.iter().map(|e| short_file_name(&e.file).chars().count()).max().unwrap_or(0).min(44);
    for evidence in &first.evidence {
        let line =
            format!("    {:<width$}  {}", short_file_name(&evidence.file), annotate_bytes(&evidence.value));
        style.paint(text, &line, "2");
        let _ = writeln!(text);
    }
    if let Some(fix) = &first.fix {
        for command in &fix.commands {
            let _ = write!(text, "  ");
            style.paint(text, "$", "32");
            let _ = writeln!(text, " {}", Visible::line(command));
        }
        if group.len() > 1 && is_fixable(first) {
            let _ = write!(text, "  ");
            style.paint(text, "$", "32");
            let _ = writeln!(text, " elbowroom doctor --fix {}    (all of them)", first.check);
        }
    }
    if let Some(advice) = &first.advice {
        let _ = text.write_str(&wrap(advice, "  ", style.width));
    }
    let _ = writeln!(text, "{}", wrap(&format!("see {}", first.reference), "  ", style.width));
}

/// As many names as fit, and dots for the rest.
fn join_fitting(names: &[String], room: usize) -> String {
    let mut line = String::new();
    for (at, name) in names.iter().enumerate() {
        let rest = if at + 1 == names.len() { 0 } else { ", ...".len() };
        let separator = if at == 0 { "" } else { ", " };
        if at > 0 && line.chars().count() + separator.len() + name.chars().count() + rest > room {
            line.push_str(", ...");
            break;
        }
        line.push_str(separator);
        line.push_str(name);
    }
    line
}

/// A cgroup's file by its name alone: whose it is the heading says. The machine's own files in full.
fn short_file_name(file: &str) -> String {
    let machine = ["/proc/", "/sys/kernel/", "/sys/block/", "/sys/module/", "/sys/devices/"];
    let (path, key) = file.split_once(' ').map_or((file, ""), |(path, key)| (path, key));
    let name = if machine.iter().any(|m| file.starts_with(m)) {
        path
    } else {
        path.rsplit('/').next().unwrap_or(path)
    };
    if key.is_empty() { name.to_owned() } else { format!("{name} {key}") }
}

/// A large bare number is bytes.
fn annotate_bytes(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(n) if n >= i64::MAX as u64 & !0xffff => "max".to_owned(),
        Ok(n) if n >= 1 << 20 => format!("{value} ({})", elbowroom_types::unit::Bytes(n)),
        _ => value.to_owned(),
    }
}

/// Words in lines of at most `width`, each behind `indent`.
pub(super) fn wrap(words: &str, indent: &str, width: usize) -> String {
    let mut text = String::new();
    let mut line = String::new();
    for word in words.split_whitespace() {
        if !line.is_empty() && indent.len() + line.chars().count() + 1 + word.chars().count() > width {
            let _ = writeln!(text, "{indent}{line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{indent}{line}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::finding::{FindingEvidence, FindingFix};

    fn finding(check: &str, severity: Severity, container: Option<&str>) -> DoctorFinding {
        DoctorFinding {
            check: check.into(),
            severity,
            container: container.map(Into::into),
            cgroup: None,
            sentence:
                "It says something that is long enough to need a second line when it is printed for people."
                    .into(),
            evidence: vec![FindingEvidence {
                file: "/sys/fs/cgroup/a/memory.max".into(),
                value: "268435456".into(),
            }],
            fix: Some(FindingFix { commands: vec!["echo 1 > /x".into()], writes: Vec::new() }),
            advice: None,
            reference: "a page".into(),
        }
    }

    const PIPED: ReportStyle = ReportStyle { width: 80, colour: false };

    #[test]
    fn two_hundred_containers_are_one_paragraph_within_80_columns() {
        let names: Vec<String> = (0..200).map(|n| format!("web-{n}")).collect();
        let found: Vec<DoctorFinding> =
            names.iter().map(|n| finding("memory-not-reserved", Severity::Warning, Some(n))).collect();
        let text = report(&HostFacts::default(), None, &found, false, PIPED);
        assert!(text.starts_with("WARNING  memory-not-reserved  200 containers: web-0, web-1, "), "{text}");
        assert!(text.lines().count() < 12, "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        assert!(text.contains("memory.max  268435456 (256MiB)"), "{text}");
        let all = report(&HostFacts::default(), None, &found, true, PIPED);
        assert!(all.lines().filter(|l| l.starts_with("WARNING")).count() == 200);
    }

    #[test]
    fn a_verdict_comes_first_and_what_it_says_is_not_called_healthy() {
        let mut verdict = Verdict {
            status: elbowroom_types::verdict::VerdictStatus::Throttled,
            reason: "its quota of 0.2 CPUs holds its threads back 812 ms of every second".into(),
            command: Some("docker update --cpus 0.3 web".into()),
            raise: None,
        };
        let text =
            |verdict: &Verdict| report(&HostFacts::default(), Some(verdict), &[], false, PIPED).to_string();
        assert_eq!(
            text(&verdict),
            "verdict           throttled: its quota of 0.2 CPUs holds its threads back 812 ms\n                  \
             of every second\nwhat helps        docker update --cpus 0.3 web\n\n\
             no finding: 0 containers and the host, 0.0 s\n"
        );
        verdict = Verdict::default();
        assert_eq!(
            text(&verdict),
            "verdict           ok: it gets what it asks for\n\nhealthy: 0 containers and the host, 0.0 s\n"
        );
        verdict.reason = "\x1b[8m".into();
        assert!(!text(&verdict).contains('\x1b'));
    }

    #[test]
    fn names_cannot_hide_what_is_found() {
        let mut found = finding("a", Severity::Warning, Some("cron-\x1b[8m"));
        found.sentence.push_str("cron-\x1b[8m");
        found.evidence[0].file.push_str(" cron-\x1b[8m");
        found.fix = Some(FindingFix { commands: vec!["echo 1 > /cron-\x1b[8m".into()], writes: Vec::new() });
        let text = report(&HostFacts::default(), None, &[found], false, PIPED);
        assert!(!text.contains('\x1b'), "{text:?}");
        assert_eq!(text.matches("cron-\\u{1b}[8m").count(), 4, "{text}");
    }

    #[test]
    fn notes_are_counted_and_leave_a_host_healthy() {
        let found = [finding("b", Severity::Info, None), finding("a", Severity::Info, None)];
        let text = report(&HostFacts::default(), None, &found, false, PIPED);
        assert!(text.starts_with("healthy: 0 containers and the host"), "{text}");
        assert!(text.contains("2 notes (--all): a, b\n"), "{text}");
        assert!(!text.contains('\x1b'));
    }
}
