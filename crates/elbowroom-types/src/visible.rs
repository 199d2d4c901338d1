//! Text of others, as it may be shown.
//!
//! Problem: a container's name, its labels, commands, mount paths and what it says of itself may hold control characters. A terminal
//! obeys them: they hide lines, forge others, or change what is typed next. In a log they forge lines.
//!
//! Approach: what goes to a terminal or a log is [`Visible`], in which a control character shows as its escape. No other type is
//! printed (`tools/house` refuses `println!` and its like), so no text needs to be remembered as foreign.

use std::fmt::{self, Debug, Write};
use std::ops::Deref;

/// Text without a character that a terminal obeys, but for newlines, tabs, and colours that were put in as such.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible(String);

impl Visible {
    /// Text on one line: its newlines show as escapes too.
    pub fn line(text: &str) -> Self {
        let mut line = String::with_capacity(text.len());
        push_escaped(&mut line, text, is_hidden);
        Self(line)
    }

    /// Adds text in a colour or weight, by its code (ECMA-48, SGR).
    pub fn push_painted(&mut self, text: &str, code: &'static str) {
        self.0.push_str(&format!("\x1b[{code}m"));
        push_escaped(&mut self.0, text, is_hidden);
        self.0.push_str("\x1b[0m");
    }
}

/// Adds text of several lines.
impl Write for Visible {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        push_escaped(&mut self.0, text, |c| !matches!(c, '\n' | '\t') && is_hidden(c));
        Ok(())
    }
}

/// Text of several lines.
impl<T: AsRef<str> + ?Sized> From<&T> for Visible {
    fn from(text: &T) -> Self {
        let mut page = Self(String::with_capacity(text.as_ref().len()));
        let _ = page.write_str(text.as_ref());
        page
    }
}

impl Deref for Visible {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Visible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Whether a terminal obeys this character instead of showing it, or shows what is behind it elsewhere. These are control
/// characters, and those of Unicode that have no width or change the direction of writing: category Cf, the separators of lines,
/// and what is `Default_Ignorable_Code_Point`, but for U+034F and U+FE00 to U+FE0F, which belong to the character before them.
pub const fn is_hidden(c: char) -> bool {
    matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{9f}' | '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
        | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// The text of a JSON document in which every hidden character but a newline is escaped as JSON has it: serde escapes the first 32 only.
pub fn visible_json(json: String) -> String {
    let hidden = |c: char| c != '\n' && is_hidden(c);
    if !json.contains(hidden) {
        return json;
    }
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        match hidden(c) {
            true => {
                c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")))
            }
            false => text.push(c),
        }
    }
    text
}

/// Writes a field of a log's line: the message as it is, another as `name=value`, hidden characters as escapes.
///
/// # Errors
/// As `writer` has it.
pub fn write_log_field(writer: &mut dyn Write, name: &str, value: &dyn Debug) -> fmt::Result {
    let text = Visible::line(&format!("{value:?}"));
    match name {
        "message" => writer.write_str(&text),
        name => write!(writer, "{name}={text}"),
    }
}

fn push_escaped(to: &mut String, text: &str, is_hidden: impl Fn(char) -> bool) {
    for c in text.chars() {
        match is_hidden(c) {
            true => match c.escape_debug() {
                shown if shown.len() > 1 => to.extend(shown),
                _ => to.extend(c.escape_unicode()),
            },
            false => to.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_shows_as_an_escape() {
        for (text, line) in [
            ("web-1 (größer)", "web-1 (größer)"),
            ("a\nb\r\t", "a\\nb\\r\\t"),
            ("\x1b[31m\u{9b}2J\x07\x7f", "\\u{1b}[31m\\u{9b}2J\\u{7}\\u{7f}"),
            ("a\u{202e}b\u{200b}c\u{feff}", "a\\u{202e}b\\u{200b}c\\u{feff}"),
            ("a\u{61c}\u{3164}b\u{e0041}\u{ad}", "a\\u{61c}\\u{3164}b\\u{e0041}\\u{ad}"),
        ] {
            assert_eq!(&*Visible::line(text), line);
            assert_eq!(Visible::line(line).to_string(), line, "it stays as it is");
        }
        assert_eq!(&*Visible::from("a\n\x1b[2Jb\n"), "a\n\\u{1b}[2Jb\n");
    }

    #[test]
    fn colours_are_those_that_were_put_in() {
        let mut text = Visible::default();
        text.push_painted("a\x1b[8m", "31");
        let _ = text.write_str(" b\x1b[8m\n");
        assert_eq!(&*text, "\x1b[31ma\\u{1b}[8m\x1b[0m b\\u{1b}[8m\n");
    }

    #[test]
    fn json_stays_json() {
        let said = "a\u{9b}\x1b\u{202e}\u{e0041}\"\n";
        let json = visible_json(serde_json::to_string_pretty(&[said]).unwrap());
        assert!(!json.contains(|c| c != '\n' && is_hidden(c)), "{json}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), [said]);
    }

    #[test]
    fn a_field_of_a_log_is_on_its_line() {
        let field = |name, value: &dyn Debug| {
            let mut line = String::new();
            write_log_field(&mut line, name, value).unwrap();
            line
        };
        assert_eq!(field("message", &format_args!("a\nb\x1b[1m")), "a\\nb\\u{1b}[1m");
        assert_eq!(field("because", &format_args!("\u{9b}")), "because=\\u{9b}");
        assert_eq!(field("name", &"a\n"), "name=\"a\\n\"");
    }
}
