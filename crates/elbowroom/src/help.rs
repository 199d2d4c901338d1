//! `elbowroom --help`: verbs in the groups that people look for them in, and what was meant by a verb that is none.

use clap::Command;
use elbowroom_types::lookup::nearest;

/// Every verb that people use, by what they want to do. `tests` sees to it that none is missing.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "See",
        &[
            "list",
            "show",
            "explain",
            "top",
            "dashboard",
            "alerts",
            "memory",
            "disks",
            "fleet",
            "metrics",
            "replay",
        ],
    ),
    ("Fix", &["doctor", "undo", "size", "protect", "pretouch", "housekeeping", "restore"]),
    ("Measure", &["profile", "audit", "probe", "record", "ask"]),
    ("Run", &["run", "follow", "attach", "detach"]),
    ("Set up", &["agent", "check", "cdi", "oci-hooks", "keeper", "host", "version", "help"]),
];

/// Words by which docker, kubectl and systemctl call what a verb of another name does (docs/guide/habits.md).
const OTHER_TOOLS: &[(&str, &str)] =
    &[("status", "list"), ("get", "list"), ("ls", "list"), ("events", "alerts"), ("info", "check")];

/// Columns of the longest verb, with the blanks around it.
const VERB_WIDTH: usize = 16;

/// The command line with its verbs in groups.
pub(crate) fn with_groups(command: Command) -> Command {
    let mut verbs = String::new();
    for (group, names) in GROUPS {
        verbs.push_str(&format!("\n{group}:\n"));
        for name in *names {
            let about = command.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            let about = about.unwrap_or_else(|| "Print this, or the help of a verb".to_owned());
            verbs.push_str(&format!("  {name:<VERB_WIDTH$}{about}\n"));
        }
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{verbs}\nOptions:\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// The verb that was meant by one that is none; programs' own verbs are not offered.
pub(crate) fn nearest_verb(command: &Command, word: &str) -> Option<String> {
    if let Some((_, verb)) = OTHER_TOOLS.iter().find(|(theirs, _)| *theirs == word) {
        return Some((*verb).to_owned());
    }
    let visible = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let names: Vec<&str> =
        visible.flat_map(|verb| [verb.get_name()].into_iter().chain(verb.get_all_aliases())).collect();
    nearest(word, names).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_verb_is_in_one_group_and_no_line_is_wider_than_a_terminal() {
        let command = crate::command();
        let visible = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let verbs: BTreeSet<&str> = visible.map(Command::get_name).chain(["help"]).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(grouped.iter().copied().collect::<BTreeSet<_>>(), verbs);
        assert_eq!(grouped.len(), verbs.len(), "a verb is in two groups");
        let help = crate::command().term_width(80).render_help().to_string();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for internal in ["view-server", "run-child", "hold-memory"] {
            assert!(!help.contains(internal), "{help}");
        }
    }

    #[test]
    fn verbs_that_are_near_are_offered_and_the_programs_own_are_not() {
        let command = crate::command();
        let near = ["lsit", "pss", "explian", "docter", "api-serve", "frobnicate"]
            .map(|word| nearest_verb(&command, word));
        let near = near.each_ref().map(Option::as_deref);
        assert_eq!(near, [Some("list"), Some("ps"), Some("explain"), Some("doctor"), None, None]);
        for (theirs, verb) in OTHER_TOOLS {
            assert!(command.find_subcommand(theirs).is_none(), "{theirs} is a verb of its own");
            assert!(command.find_subcommand(verb).is_some(), "{verb}");
            assert_eq!(nearest_verb(&command, theirs).as_deref(), Some(*verb));
        }
    }
}
