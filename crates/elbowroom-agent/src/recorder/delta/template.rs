//! A JSON text, taken apart into its numbers and everything else.

use super::number::Number;
use std::fmt::Write;

/// Stands for a number in a template: a byte that JSON never contains, in strings it is written `\u0000`.
pub(super) const HOLE: u8 = 0;

/// A text without its numbers, and those.
pub(super) struct Template {
    pub(super) template: Vec<u8>,
    pub(super) numbers: Vec<Number>,
}

/// Takes a text apart. What is no number stays in the template, so any text comes out again.
pub(super) fn split(json: &str) -> Template {
    let bytes = json.as_bytes();
    let (mut template, mut numbers) = (Vec::with_capacity(bytes.len()), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        let from = at;
        match bytes[at] {
            b'"' => {
                at = end_of_string(bytes, at);
                template.extend(&bytes[from..at]);
            }
            b'-' | b'0'..=b'9' => {
                while at < bytes.len() && matches!(bytes[at], b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')
                {
                    at += 1;
                }
                match Number::parse(&json[from..at]) {
                    Some(number) => {
                        template.push(HOLE);
                        numbers.push(number);
                    }
                    None => template.extend(&bytes[from..at]),
                }
            }
            byte => {
                at += 1;
                // A text with this byte is no JSON, and its template must not have a hole too many.
                template.push(if byte == HOLE { b' ' } else { byte });
            }
        }
    }
    Template { template, numbers }
}

/// Puts a text together again.
pub(super) fn join(template: &[u8], numbers: &[Number]) -> String {
    let mut text = String::with_capacity(template.len() + numbers.len() * 8);
    for (n, piece) in template.split(|byte| *byte == HOLE).enumerate() {
        if let Some(number) = n.checked_sub(1).and_then(|n| numbers.get(n)) {
            let _ = write!(text, "{number}");
        }
        text.push_str(&String::from_utf8_lossy(piece));
    }
    text
}

/// Behind the closing quote, or at the end where there is none.
fn end_of_string(bytes: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_strings_belong_to_the_template() {
        let json = r#"{"a1":-5,"b":"7 \"8\\","c":[1.5,null,true,2]}"#;
        let Template { template, numbers } = split(json);
        assert_eq!(template, b"{\"a1\":\0,\"b\":\"7 \\\"8\\\\\",\"c\":[\0,null,true,\0]}");
        assert_eq!(numbers.len(), 3);
        assert_eq!(join(&template, &numbers), json);
    }

    #[test]
    fn what_is_no_json_does_not_confuse() {
        for text in ["", "\"", "\"\\", "-", "1e", "--1", "1.2.3", "12\"3"] {
            let Template { template, numbers } = split(text);
            assert_eq!(join(&template, &numbers), text);
        }
    }
}
