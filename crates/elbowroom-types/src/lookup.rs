//! Which container, or verb, a word names.
//!
//! One rule for the agent, its HTTP API and the verbs that need no agent: an exact name, identifier or cgroup path goes first, then the
//! beginning of a name or an identifier, where only one container has it. A word that names nothing is answered with the nearest one.

use crate::container::MAX_NAME_LEN;
use std::collections::BTreeSet;

/// All that a container is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerNames<'a> {
    /// The engine's full identifier.
    pub id: &'a str,
    /// The name people use.
    pub name: Option<&'a str>,
    /// The name of the Kubernetes pod around it: `POD/NAME` names the container too.
    pub pod: Option<&'a str>,
    /// Its cgroup, with or without the leading slash.
    pub path: &'a str,
}

impl ContainerNames<'_> {
    fn qualified(&self) -> Option<String> {
        Some(format!("{}/{}", self.pod?, self.name?))
    }

    fn is(&self, wanted: &str) -> bool {
        self.id == wanted
            || self.name == Some(wanted)
            || self.path.trim_start_matches('/') == wanted.trim_start_matches('/')
            || self.qualified().as_deref() == Some(wanted)
    }

    fn begins(&self, wanted: &str) -> bool {
        self.id.starts_with(wanted)
            || self.name.is_some_and(|name| name.starts_with(wanted))
            || self.qualified().is_some_and(|name| name.starts_with(wanted))
    }

    /// Whether its name is the beginning of `wanted`, because a name is kept no longer.
    fn is_cut_from(&self, wanted: &str) -> bool {
        self.name.is_some_and(|name| wanted.starts_with(name) && name.chars().count() == MAX_NAME_LEN)
    }

    fn label(&self) -> String {
        self.name.map_or_else(|| short_id(self.id), str::to_owned)
    }
}

/// Characters of an identifier that people write, as engines print it.
const SHORT_ID: usize = 12;
/// Most containers that an error names.
const MAX_NAMED: usize = 4;
/// Most characters of a word that an error repeats, and that are compared.
const MAX_WORD: usize = 80;

/// Why a word names no container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No container is called so.
    #[error("no container {}{}", quoted(name), meant.as_ref().map_or(String::new(), |meant| format!(": did you mean {}?", quoted(meant))))]
    Unknown {
        /// As it was asked for.
        name: String,
        /// The nearest name, where one is near.
        meant: Option<String>,
    },
    /// Several are.
    #[error("{} is {count} containers ({}): write more of the name or the id", quoted(name), some.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", "))]
    Ambiguous {
        /// As it was asked for.
        name: String,
        /// How many.
        count: usize,
        /// Some of them.
        some: Vec<String>,
    },
}

/// The place of the one container that `wanted` names.
///
/// # Errors
/// None is called so, or several are.
pub fn find_container(all: &[ContainerNames<'_>], wanted: &str) -> Result<usize, LookupError> {
    let places = |fits: &dyn Fn(&ContainerNames<'_>) -> bool| -> Vec<usize> {
        (0..all.len()).filter(|place| fits(&all[*place])).collect()
    };
    let is_nothing = wanted.trim_matches('/').is_empty();
    let mut found = if is_nothing { Vec::new() } else { places(&|names| names.is(wanted)) };
    if found.is_empty() && !is_nothing {
        found = places(&|names| names.begins(wanted) || names.is_cut_from(wanted));
    }
    let name = wanted.to_owned();
    match found[..] {
        [one] => Ok(one),
        [] => {
            let known = all.iter().filter_map(|names| names.name);
            Err(LookupError::Unknown { meant: nearest(wanted, known).map(str::to_owned), name })
        }
        _ => {
            let some = found.iter().take(MAX_NAMED).map(|place| all[*place].label()).collect::<BTreeSet<_>>();
            Err(LookupError::Ambiguous { name, count: found.len(), some: some.into_iter().collect() })
        }
    }
}

/// The known word that is nearest to `word`; `None` where none is within a third of its letters.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters = word.chars().take(MAX_WORD).count();
    let most = (letters / 3).max(usize::from(letters > 1));
    let near = known.into_iter().map(|candidate| (distance(word, candidate), candidate));
    near.filter(|(distance, _)| *distance <= most).min().map(|(_, candidate)| candidate)
}

/// Letters to add, drop, change or exchange with their neighbour (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let [a, b] = [a, b].map(|word| word.chars().take(MAX_WORD).collect::<Vec<_>>());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// An identifier as engines print it; a path, which is one where no engine of the host answers for the container, as it is.
pub(crate) fn short_id(id: &str) -> String {
    if id.starts_with('/') { id.to_owned() } else { id.chars().take(SHORT_ID).collect() }
}

/// A word as an error may repeat it: short, quoted, on one line.
pub fn quoted(word: &str) -> String {
    format!("{:?}", word.chars().take(MAX_WORD).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ContainerNames<'static>; 4] = [
        ContainerNames { id: "abc123", name: Some("web"), pod: None, path: "/docker/abc123" },
        ContainerNames { id: "abd456", name: None, pod: None, path: "/docker/abd456" },
        ContainerNames { id: "fff", name: Some("web-cache"), pod: None, path: "docker/fff" },
        ContainerNames { id: "0a0", name: Some("main"), pod: Some("shop-1"), path: "/kubepods/0a0" },
    ];

    #[test]
    fn a_container_is_named_by_name_id_path_or_a_beginning_that_no_other_has() {
        for (word, place) in [
            ("web", 0),
            ("abd", 1),
            ("/docker/abc123", 0),
            ("docker/fff", 2),
            ("web-", 2),
            ("mai", 3),
            ("shop-1/main", 3),
            ("shop", 3),
        ] {
            assert_eq!(find_container(&ALL, word), Ok(place), "{word}");
        }
    }

    #[test]
    fn a_name_that_is_too_long_to_be_kept_names_its_container() {
        let whole = format!("{}-1", "stack_service.".repeat(20));
        let kept: String = whole.chars().take(MAX_NAME_LEN).collect();
        let long = ContainerNames { id: "fed", name: Some(&kept), pod: None, path: "/docker/fed" };
        assert_eq!(find_container(&[ALL[0], long], &whole), Ok(1));
        assert!(find_container(&ALL, "web2").is_err());
    }

    #[test]
    fn a_word_that_names_none_or_several_is_answered_with_those_that_are_near() {
        let told = |word: &str| find_container(&ALL, word).unwrap_err().to_string();
        assert_eq!(told("wbe"), "no container \"wbe\": did you mean \"web\"?");
        assert_eq!(told("mian"), "no container \"mian\": did you mean \"main\"?");
        assert_eq!(told("nobody"), "no container \"nobody\"");
        assert_eq!(
            told("ab"),
            "\"ab\" is 2 containers (\"abd456\", \"web\"): write more of the name or the id"
        );
        for nothing in ["", "/", "//", "x\n"] {
            assert!(told(nothing).starts_with("no container \""), "{nothing}");
            assert!(!told(nothing).contains('\n'));
        }
        assert!(told(&"x".repeat(10_000)).len() < 120);
    }

    #[test]
    fn near_is_a_third_of_the_letters() {
        let verbs = ["list", "explain", "top"];
        let near =
            ["lsit", "lis", "explian", "exlpain", "tpo", "x", "listing", ""].map(|word| nearest(word, verbs));
        assert_eq!(
            near,
            [Some("list"), Some("list"), Some("explain"), Some("explain"), Some("top"), None, None, None]
        );
    }
}
