//! Forms of output: text or JSON, and errors on one line. Every verb prints through here, and only what a terminal does not obey
//! ([`Visible`]).

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use elbowroom_types::visible::{Visible, visible_json};
use std::io::{IsTerminal, Write};

/// How the answer is printed.
#[derive(Args, Clone, Copy)]
pub struct OutputArgs {
    /// How to print the answer.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// A form of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// A verb about one container.
#[derive(Args)]
pub struct ContainerArgs {
    /// Name, id, unique beginning of an id, or cgroup path.
    pub container: String,
    /// How the answer is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

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

/// Says a line to whoever waits for the answer, on standard error. Where that cannot be written, nobody waits.
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
        if !line.ends_with(&*text) {
            line.push_str(if line.is_empty() { "" } else { ": " });
            line.push_str(&text);
        }
    }
    line
}

/// Whether the reader of the answer went away.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_each_cause_once_and_on_one_line() {
        let inner = std::io::Error::other("no such\ndevice\x1b[2J");
        let error = anyhow::Error::from(inner).context("opening /dev/fuse").context("starting");
        assert_eq!(one_line(&error), "starting: opening /dev/fuse: no such; device\\u{1b}[2J");
    }
}
