//! The words of a command that an image starts through a shell: `/bin/sh -c "cd / && exec /app --port 80"` starts `/app`, as
//! `["/app", "--port", "80"]` does. Nothing is run: quotes, operators and variables that are known are read, the rest is left as it is.

use std::collections::BTreeMap;

/// Shells that take a script as the word behind `-c`.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];
/// Scripts within scripts that are read.
const MAX_DEPTH: usize = 4;
/// Words of a command, and of all scripts of one depth, among which shells are looked for.
const MAX_WORDS: usize = 4096;
/// Bytes of all scripts and of all variables' values that are put into words: Linux gives a program 2 MiB of words by default. A
/// variable may hold another one twice, and a third one that twice.
const MAX_EXPANDED: usize = 2 << 20;

/// The words of `command`, with those of its scripts behind them. `env` are the image's variables, `NAME=value`.
pub(super) fn command_words(command: &[String], env: &[String]) -> Vec<String> {
    let known = env
        .iter()
        .filter_map(|entry| entry.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut variables: BTreeMap<String, String> = known.collect();
    let (mut words, mut from, mut room) = (command.to_vec(), 0, MAX_EXPANDED);
    for _ in 0..MAX_DEPTH {
        let scripts = scripts(&words[from..], &mut room);
        from = words.len();
        for script in scripts {
            words.extend(script_words(&script, &mut variables, &mut room));
        }
    }
    words
}

/// What shells among the words are given to run, as far as there is room.
fn scripts(words: &[String], room: &mut usize) -> Vec<String> {
    let words = &words[..words.len().min(MAX_WORDS)];
    let is_shell = |word: &String| SHELLS.contains(&word.rsplit('/').next().unwrap_or_default());
    let shells = words.iter().enumerate().filter(|(_, word)| is_shell(word));
    let script = |at: usize| {
        let options = &words[at + 1..];
        let flag = options
            .iter()
            .position(|word| word.starts_with('-') && !word.starts_with("--") && word.contains('c'))?;
        // What is before it are other options, or their values: `-o pipefail -c`.
        let is_option =
            |word: &String| word.starts_with(['-', '+']) || word.bytes().all(|b| b.is_ascii_lowercase());
        options[..flag]
            .iter()
            .all(is_option)
            .then(|| options[flag + 1..].iter().find(|word| !word.starts_with('-')))?
    };
    let given = shells.filter_map(|(at, _)| script(at));
    given.take_while(|script| take(room, script)).cloned().collect()
}

/// Takes the room of a text, and of looking at it; whether there was as much.
fn take(room: &mut usize, text: &str) -> bool {
    let left = room.checked_sub(text.len() + 1);
    *room = left.unwrap_or(*room);
    left.is_some()
}

/// The words of a script, in order; what it assigns is known from there on.
fn script_words(script: &str, variables: &mut BTreeMap<String, String>, room: &mut usize) -> Vec<String> {
    let mut reader =
        ScriptReader { rest: script.chars().peekable(), variables, room, words: Vec::new(), word: None };
    reader.read();
    reader.words
}

struct ScriptReader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    variables: &'a mut BTreeMap<String, String>,
    /// What of [`MAX_EXPANDED`] is left.
    room: &'a mut usize,
    words: Vec<String>,
    /// The word that is being read.
    word: Option<String>,
}

impl ScriptReader<'_> {
    fn read(&mut self) {
        while let Some(c) = self.rest.next() {
            match c {
                '\'' => self.quoted('\''),
                '"' => self.quoted('"'),
                '\\' => match self.rest.next() {
                    // The line goes on.
                    Some('\n') | None => {}
                    Some(c) => self.push(c),
                },
                '$' => self.variable(false),
                '#' if self.word.is_none() => while self.rest.next_if(|c| *c != '\n').is_some() {},
                c if c.is_whitespace() || ";&|()<>`".contains(c) => self.end_word(),
                c => self.push(c),
            }
        }
        self.end_word();
    }

    /// Up to the closing quote, or to the end where there is none.
    fn quoted(&mut self, quote: char) {
        self.word.get_or_insert_default();
        while let Some(c) = self.rest.next() {
            match c {
                c if c == quote => return,
                '$' if quote == '"' => self.variable(true),
                '\\' if quote == '"' => match self.rest.next() {
                    Some(c @ ('"' | '\\' | '$' | '`')) => self.push(c),
                    Some('\n') | None => {}
                    Some(c) => {
                        self.push('\\');
                        self.push(c);
                    }
                },
                c => self.push(c),
            }
        }
    }

    /// `$NAME`, `${NAME}` and `${NAME:-default}`; one that is not known is empty, and one that is not quoted may be several words, as in a
    /// shell.
    fn variable(&mut self, is_quoted: bool) {
        let is_braced = self.rest.next_if_eq(&'{').is_some();
        let mut name = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
        }
        let mut default = String::new();
        if is_braced {
            let mut depth = 1;
            for c in self.rest.by_ref() {
                depth += i32::from(c == '{') - i32::from(c == '}');
                if depth == 0 {
                    break;
                }
                default.push(c);
            }
        } else if name.is_empty() {
            // `$(` begins a command, whose words count too; `$@`, `$1` and their like are words of the command line.
            self.rest.next_if(|c| "@*#?!$-".contains(*c));
            return;
        }
        let fallback = default.strip_prefix(":-").or_else(|| default.strip_prefix('-')).unwrap_or_default();
        let value = self.variables.get(&name).map(String::as_str).filter(|value| !value.is_empty());
        let value = value.unwrap_or(fallback);
        if !take(self.room, value) {
            return;
        }
        let value = value.to_owned();
        if is_quoted {
            return value.chars().for_each(|c| self.push(c));
        }
        for (at, part) in value.split_whitespace().enumerate() {
            if at > 0 {
                self.end_word();
            }
            part.chars().for_each(|c| self.push(c));
        }
    }

    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        let is_name =
            |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if let Some((name, value)) = word.split_once('=').filter(|(name, _)| is_name(name)) {
            self.variables.insert(name.to_owned(), value.to_owned());
        }
        self.words.extend(Some(word).filter(|word| !word.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &[&str], expect: &[&str]) {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let env = ["APP_HOME=/opt/app", "EMPTY=", "OPTS=-a -b"].map(str::to_owned);
        let words = command_words(&command, &env);
        assert_eq!(words[..command.len()], command, "what was given stays");
        assert_eq!(words[command.len()..], *expect, "{command:?}");
    }

    #[test]
    fn a_script_gives_the_words_that_it_starts() {
        for (script, expect) in [
            ("/app --port 80", &["/app", "--port", "80"][..]),
            ("exec /app", &["exec", "/app"]),
            ("cd / && /app", &["cd", "/", "/app"]),
            ("set -e;/app&", &["set", "-e", "/app"]),
            ("'/app' \"--name=x\"", &["/app", "--name=x"]),
            ("/a\\pp \\\n  -v # -x", &["/app", "-v"]),
            ("$APP_HOME/bin/app ${EMPTY}", &["/opt/app/bin/app"]),
            ("exec ${APP:-/app} ${APP_HOME:-/none}/x", &["exec", "/app", "/opt/app/x"]),
            ("APP=/app; exec \"$APP\" \"$@\"", &["APP=/app", "exec", "/app"]),
            ("/app $OPTS", &["/app", "-a", "-b"]),
            ("(GOMAXPROCS=2 /app)", &["GOMAXPROCS=2", "/app"]),
            ("/app $(cat /opts) >/log 2>&1", &["/app", "cat", "/opts", "/log", "2", "1"]),
            ("/app 'a", &["/app", "a"]),
            ("echo '$APP_HOME'", &["echo", "$APP_HOME"]),
        ] {
            check(&["/bin/sh", "-c", script], expect);
        }
    }

    #[test]
    fn a_shell_is_known_wherever_it_stands_and_however_it_is_told() {
        for command in [
            &["bash", "-lc", "/app"][..],
            &["/bin/bash", "-o", "pipefail", "-c", "/app"],
            &["tini", "--", "/bin/sh", "-ec", "/app"],
            &["/bin/busybox", "sh", "-c", "/app"],
            &["sh", "-c", "--", "/app"],
        ] {
            check(command, &["/app"]);
        }
        check(&["sh", "-c", "exec bash -c '/app -v'"], &["exec", "bash", "-c", "/app -v", "/app", "-v"]);
        for command in [
            &["/app", "-c", "/etc/app.conf"][..],
            &["sh", "/start.sh", "-c", "x"],
            &["sh", "-c"],
            &["sh"],
            &[],
        ] {
            check(command, &[]);
        }
    }

    #[test]
    fn what_is_made_of_a_small_command_has_a_bound() {
        let twice = |n| format!("B{n}=$B{0}$B{0};", n - 1);
        let doubled = (1..15).map(twice).fold("B0=$A;".to_owned(), |script, line| script + &line);
        for (shells, script) in [(1, doubled), (1, "$A ".repeat(20_000)), (4_000, "x".repeat(20_000))] {
            let command: Vec<String> =
                std::iter::repeat_n("sh", shells).chain(["-c", &script]).map(str::to_owned).collect();
            let words = command_words(&command, &[format!("A={}", "x".repeat(1_000))]);
            let made: usize = words[command.len()..].iter().map(String::len).sum();
            assert!(made <= script.len() + MAX_EXPANDED, "{made} of {}", script.len());
        }
    }

    #[test]
    fn no_script_is_read_for_ever() {
        let command = ["sh", "-c", "sh -c 'sh -c sh -c sh -c sh -c sh'"].map(str::to_owned);
        assert!(command_words(&command, &[]).len() < 40);
    }
}
