//! JSON values as YAML 1.2, in blocks. Strings are quoted as JSON quotes them, which YAML reads the same; so no word becomes a number,
//! a date or a `no`.

use serde_json::Value;
use std::fmt::Write;

/// A document with a final newline.
pub(crate) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Array(items) if !items.is_empty() => sequence(&mut text, items, 0),
        Value::Object(fields) if !fields.is_empty() => mapping(&mut text, fields, 0, 0),
        flow => _ = writeln!(text, "{flow}"),
    }
    text
}

fn sequence(text: &mut String, items: &[Value], indent: usize) {
    for item in items {
        let _ = write!(text, "{:indent$}-", "");
        match item {
            Value::Object(fields) if !fields.is_empty() => mapping(text, fields, 1, indent + 2),
            Value::Array(inner) if !inner.is_empty() => {
                text.push('\n');
                sequence(text, inner, indent + 2);
            }
            flow => _ = writeln!(text, " {flow}"),
        }
    }
}

/// Fields; the first one is indented by `first` only, for it may follow a dash.
fn mapping(text: &mut String, fields: &serde_json::Map<String, Value>, first: usize, indent: usize) {
    for (place, (key, value)) in fields.iter().enumerate() {
        let by = if place == 0 { first } else { indent };
        let _ = write!(text, "{:by$}", "");
        match key.starts_with(|c: char| c.is_ascii_alphabetic()) && is_plain(key) {
            true => text.push_str(key),
            false => _ = write!(text, "{}", Value::from(key.as_str())),
        }
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                text.push_str(":\n");
                mapping(text, inner, indent + 2, indent + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                text.push_str(":\n");
                sequence(text, items, indent);
            }
            flow => _ = writeln!(text, ": {flow}"),
        }
    }
}

/// Whether a key reads as itself without quotes.
fn is_plain(key: &str) -> bool {
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && !words.contains(&key.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn blocks_are_indented_and_strings_are_quoted() {
        let value = json!([
            {"id": "no", "list": [1, [2, 3], {"a": null}], "empty": [], "on": {}},
            "x: \"y\"\n"
        ]);
        let expect = "- empty: []\n  id: \"no\"\n  list:\n  - 1\n  -\n    - 2\n    - 3\n  - a: null\n  \"on\": {}\n- \"x: \\\"y\\\"\\n\"\n";
        assert_eq!(yaml(&value), expect);
        assert_eq!(yaml(&json!({"a": {"b": 1.5}})), "a:\n  b: 1.5\n");
        assert_eq!(yaml(&json!([])), "[]\n");
    }
}
