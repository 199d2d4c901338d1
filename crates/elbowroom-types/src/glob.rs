//! Patterns of cgroup paths, container names and disks, as people write them in the configuration.
//!
//! `*` and `?` stay within one component of a path, a component `**` stands for any number of them.

/// Whether a path fits a pattern; a leading slash in either makes no difference.
pub fn matches(pattern: &str, path: &str) -> bool {
    let split =
        |t: &str| -> Vec<String> { t.split('/').filter(|c| !c.is_empty()).map(str::to_owned).collect() };
    components_match(&split(pattern), &split(path))
}

fn components_match(pattern: &[String], path: &[String]) -> bool {
    match pattern.split_first() {
        None => path.is_empty(),
        Some((first, rest)) if first == "**" => {
            (0..=path.len()).any(|skip| components_match(rest, &path[skip..]))
        }
        Some((first, rest)) => path.split_first().is_some_and(|(name, below)| {
            component_matches(first.as_bytes(), name.as_bytes()) && components_match(rest, below)
        }),
    }
}

/// The usual two-pointer match: on a mismatch, the last `*` takes one byte more.
fn component_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(b) if *b == b'?' || *b == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_stay_within_a_component_unless_doubled() {
        for (pattern, path, expect) in [
            ("/batch/*", "batch/a", true),
            ("/batch/*", "batch/a/b", false),
            ("/batch/**", "batch/a/b", true),
            ("**/job-?", "x/y/job-1", true),
            ("**/job-?", "x/y/job-12", false),
            ("/a*c*e", "abcde", true),
            ("/a*c*e", "abcdf", false),
            ("/", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, path), expect, "{pattern} {path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_pattern_or_path_panics(pattern in "[a/*?]{0,12}", path in "(/|\\*|a|.){0,12}") {
            let _ = matches(&pattern, &path);
        }
    }
}
