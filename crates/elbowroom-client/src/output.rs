//! Forms of output: text, tables, JSON or YAML, and errors on one line. Every verb prints through here, and only what a terminal does
//! not obey ([`Visible`]).

use crate::table::TableStyle;
use crate::yaml::yaml;
use anyhow::{Result, bail};
use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use elbowroom_types::visible::{Visible, visible_json};
use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

/// How the answer is printed.
#[derive(Args, Clone, Copy)]
pub struct OutputArgs {
    /// How to print the answer.
    #[arg(short = 'o', long, visible_alias = "output", value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// A form of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Data(DataFormat),
}

/// A form that programs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFormat {
    /// JSON, indented.
    Json,
    /// YAML, with the same keys.
    Yaml,
}

/// A verb about one container.
#[derive(Args)]
pub struct ContainerArgs {
    /// Name, id, cgroup path, or the beginning of a name or an id that no other container has.
    pub container: String,
    /// How the answer is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// How a table of things is printed.
#[derive(Args, Clone, Copy)]
pub struct TableArgs {
    /// How to print the answer: wide has all columns, name only names.
    #[arg(short = 'o', long, visible_alias = "output", value_enum, default_value_t = TableFormat::Text)]
    format: TableFormat,
    /// Print names only, one a line, for scripts; the same as -o name.
    #[arg(short, long, conflicts_with = "format")]
    quiet: bool,
    /// Leave out the line of headings.
    #[arg(long)]
    no_headers: bool,
    /// Print again every two seconds, until Ctrl-C.
    #[arg(short, long)]
    watch: bool,
}

/// A form of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFormat {
    /// The columns that fit the terminal.
    Text,
    /// All columns.
    Wide,
    /// Names, one a line.
    Name,
    /// For programs.
    Data(DataFormat),
}

impl ValueEnum for Format {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Text, Self::Data(DataFormat::Json), Self::Data(DataFormat::Yaml)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::Text => "text",
            Self::Data(data) => data.name(),
        }))
    }
}

impl ValueEnum for TableFormat {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Text, Self::Wide, Self::Name, Self::Data(DataFormat::Json), Self::Data(DataFormat::Yaml)]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Self::Text => "text",
            Self::Wide => "wide",
            Self::Name => "name",
            Self::Data(data) => data.name(),
        }))
    }
}

impl DataFormat {
    const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Yaml => "yaml",
        }
    }

    /// The whole answer in this form, with a final newline.
    ///
    /// # Errors
    /// What cannot be serialized.
    pub fn document(self, value: &impl serde::Serialize) -> Result<String> {
        match self {
            Self::Json => json(value),
            Self::Yaml => Ok(visible_json(yaml(&serde_json::to_value(value)?))),
        }
    }
}

impl OutputArgs {
    /// The answer as it was asked for: `value` for programs, `text` for people.
    ///
    /// # Errors
    /// What cannot be serialized.
    pub fn answer(self, value: &impl serde::Serialize, text: impl FnOnce() -> String) -> Result<String> {
        match self.format {
            Format::Data(data) => data.document(value),
            Format::Text => Ok(fold(&text(), terminal_width())),
        }
    }
}

impl TableArgs {
    /// The answer as it was asked for: `value` for programs, `names` for scripts, `text` for people.
    ///
    /// # Errors
    /// What cannot be serialized.
    pub fn answer(
        self,
        value: &impl serde::Serialize,
        names: impl FnOnce() -> Vec<String>,
        text: impl FnOnce(TableStyle) -> String,
    ) -> Result<String> {
        let headers = !self.no_headers;
        let width = terminal_width();
        match self.format {
            TableFormat::Data(data) => data.document(value),
            TableFormat::Name => Ok(lines(names())),
            TableFormat::Text if self.quiet => Ok(lines(names())),
            TableFormat::Text => Ok(fold(&text(TableStyle { headers, wide: false, width }), width)),
            TableFormat::Wide => Ok(text(TableStyle { headers, wide: true, width: None })),
        }
    }

    /// Prints what `look` gives: once, or until the reader goes away or Ctrl-C with `--watch`. What `look` says of the exit status is
    /// given back.
    ///
    /// # Errors
    /// Those of `look`, and those of a write.
    pub fn print<T>(self, mut look: impl FnMut() -> Result<(String, T)>) -> Result<T> {
        loop {
            let (text, status) = look()?;
            if self.watch {
                clear_screen()?;
            }
            write_stdout(&text)?;
            if !self.watch {
                return Ok(status);
            }
            std::thread::sleep(WATCH_PERIOD);
        }
    }
}

/// Time between two answers of `--watch`, as watch(1) has it.
const WATCH_PERIOD: Duration = Duration::from_secs(2);

fn lines(words: Vec<String>) -> String {
    words.into_iter().map(|word| Visible::line(&word).to_string() + "\n").collect()
}

/// Columns of the terminal that standard output is; `None` where it is none.
pub(crate) fn terminal_width() -> Option<usize> {
    let out = std::io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&out).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Text with its lines broken at blanks where they are longer than the terminal is wide; what follows is indented like its line, and
/// two more.
pub fn fold(text: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| *width >= MIN_FOLD) else { return text.to_owned() };
    let mut folded = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.trim_end().chars().count() <= width {
            folded.push_str(line);
            continue;
        }
        let indent = (line.len() - line.trim_start_matches(' ').len() + 2).min(width / 2);
        let mut used = 0;
        for word in line.trim_end().split_inclusive(' ') {
            let length = word.trim_end().chars().count();
            if used > indent && used + length > width {
                folded.truncate(folded.trim_end_matches(' ').len());
                folded.push('\n');
                folded.push_str(&" ".repeat(indent));
                used = indent;
            }
            folded.push_str(word);
            used += word.chars().count();
        }
        folded.push('\n');
    }
    folded
}

/// Below this a terminal is no place to read.
const MIN_FOLD: usize = 20;

/// Pretty JSON with a final newline.
pub fn json(value: &impl serde::Serialize) -> Result<String> {
    Ok(visible_json(serde_json::to_string_pretty(value)?) + "\n")
}

/// Writes the answer to standard output.
///
/// # Errors
/// As a write has it; [`is_broken_pipe`] tells a reader that went away.
pub fn write_stdout(text: impl Into<Visible>) -> Result<()> {
    let text = text.into();
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Clears the screen, as clear(1) does, where standard output is one.
///
/// # Errors
/// As a write has it.
pub fn clear_screen() -> Result<()> {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        out.write_all(b"\x1b[H\x1b[2J")?;
    }
    Ok(())
}

/// Whether colours are wanted where a terminal shows the answer: not with `NO_COLOR` (<https://no-color.org>) or a terminal without.
pub fn is_colour_wanted() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Has the terminal tell clicks and the wheel as xterm does (SGR, mode 1006), or not any more. One that cannot tells none.
pub fn capture_mouse(on: bool) {
    let end = if on { 'h' } else { 'l' };
    let mut out = std::io::stdout().lock();
    let _ = write!(out, "\x1b[?1000{end}\x1b[?1006{end}").and_then(|()| out.flush());
}

/// Says a line to the caller, on standard error. Where that cannot be written, no caller waits.
pub fn say(text: impl Into<Visible>) {
    let _ = writeln!(std::io::stderr(), "{}", text.into());
}

/// Asks for an answer on the terminal, without ending the line.
pub fn ask(question: &str) {
    let _ = write!(std::io::stderr(), "{}", Visible::line(question));
}

/// Says how far something is, over what was said so before; nothing where no terminal shows it. The last one ends the line.
pub fn say_progress(text: &str, is_last: bool) {
    let mut err = std::io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r{}\x1b[K{}", Visible::line(text), if is_last { "\n" } else { "" });
    }
}

/// The error of an answer that does not fit its question.
///
/// # Errors
/// Always.
pub fn unexpected_response<T>() -> Result<T> {
    bail!("the agent's answer does not fit the question: is it of another version?")
}

/// An error with its causes on one line, control characters made visible. Most errors tell their cause themselves; it is not said
/// twice.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = Visible::line(&cause.to_string().replace('\n', "; "));
        let is_said = line.ends_with(&*text) || line.split(": ").any(|part| part == &*text);
        if !is_said {
            line.push_str(if line.is_empty() { "" } else { ": " });
            line.push_str(&text);
        }
    }
    line
}

/// An error as the program ends with it: on one line, and with the way out where the kernel refused what only root may do.
pub fn error_line(error: &anyhow::Error) -> String {
    let line = one_line(error);
    let is_refused =
        is_permission_denied(error) || line.contains("ermission denied") || line.contains("not permitted");
    let hint = if is_refused && !rustix::process::geteuid().is_root() && !line.contains("needs root") {
        ": this needs root: try with sudo"
    } else {
        ""
    };
    format!("elbowroom: {line}{hint}")
}

fn has_cause(error: &anyhow::Error, is: impl Fn(ErrorKind) -> bool) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>()).any(|cause| is(cause.kind()))
}

/// Whether the kernel refused what only another user may do.
pub fn is_permission_denied(error: &anyhow::Error) -> bool {
    has_cause(error, |kind| kind == ErrorKind::PermissionDenied)
}

/// Whether the reader of the answer went away.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    has_cause(error, |kind| kind == ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_where_the_terminal_ends() {
        let text = "short\n    one two three four five six seven\n";
        assert_eq!(fold(text, Some(25)), "short\n    one two three four\n      five six seven\n");
        assert_eq!(fold(text, None), text);
        assert!(fold(&"word ".repeat(100), Some(20)).lines().all(|line| line.len() <= 20));
    }

    #[test]
    fn an_error_says_each_cause_once_and_on_one_line() {
        let inner = std::io::Error::other("no such\ndevice\x1b[2J");
        let error = anyhow::Error::from(inner).context("opening /dev/fuse").context("starting");
        assert_eq!(one_line(&error), "starting: opening /dev/fuse: no such; device\\u{1b}[2J");
        let error = anyhow::anyhow!("no space").context("writing x: no space: free some");
        assert_eq!(one_line(&error), "writing x: no space: free some");
    }
}
