//! What is to be started, as people write it: `[NAME=]WORD WORD...`, words in quotes where they hold spaces.

/// A name, and words of which there is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StartupApplication {
    /// Its name in tables: the given one, else the last part of the first word.
    pub(super) name: String,
    /// A command, or an image and a command, or a directory.
    pub(super) words: Vec<String>,
}

/// Reads one.
pub(super) fn parse_application(text: &str) -> Result<StartupApplication, String> {
    let (name, rest) = match text.split_once('=') {
        Some((name, rest)) if is_name(name) => (Some(name.to_owned()), rest),
        _ => (None, text),
    };
    let words = split_words(rest)?;
    let first = words.first().ok_or("nothing to start: write [NAME=]WORDS")?;
    let name =
        name.unwrap_or_else(|| first.trim_end_matches('/').rsplit('/').next().unwrap_or(first).to_owned());
    Ok(StartupApplication { name, words })
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 40
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// Words between white space; quotes of either kind keep what is in them, a backslash the next character outside `'`.
fn split_words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let (mut word, mut quote) = (None::<String>, None);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('\\', None | Some('"')) => {
                word.get_or_insert_default()
                    .push(rest.next().ok_or("a backslash at the end stands for nothing")?);
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    match quote {
        Some(quote) => Err(format!("a {quote} is not closed")),
        None => {
            words.extend(word);
            Ok(words)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_a_shell_would() {
        let check = |text: &str, name: &str, words: &[&str]| {
            let app = parse_application(text).unwrap();
            assert_eq!(
                (app.name.as_str(), app.words.iter().map(String::as_str).collect()),
                (name, words.to_vec()),
                "{text}"
            );
        };
        check("sleep 1000", "sleep", &["sleep", "1000"]);
        check("py=/usr/bin/python3 -c 'print(\"a b\")'", "py", &["/usr/bin/python3", "-c", "print(\"a b\")"]);
        check(
            "library/nginx:1 nginx -g \"daemon off;\"",
            "nginx:1",
            &["library/nginx:1", "nginx", "-g", "daemon off;"],
        );
        check("a\\ b ''", "a b", &["a b", ""]);
        check("/srv/bundle/", "bundle", &["/srv/bundle/"]);
        check("/bin/env A=b sh", "env", &["/bin/env", "A=b", "sh"]);
    }

    #[test]
    fn what_starts_nothing_is_refused() {
        for bad in ["", "  ", "name=", "sh -c 'x", "x\\"] {
            assert!(parse_application(bad).is_err(), "{bad:?}");
        }
    }
}
