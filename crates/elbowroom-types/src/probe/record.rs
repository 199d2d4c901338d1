//! One record of a probe as it comes over a socket, from a file or out of a program.

use super::{Colour, MeasureKind};
use serde::{Deserialize, Serialize};

/// Longest record, in bytes.
pub const MAX_RECORD_LEN: usize = 4096;

/// What an application says: numbers of now, counters since some beginning, or just a colour.
///
/// As words, `served=812 offered=900 objective=800 kind=throughput`, as JSON with the same keys, or as one word, `green`.
/// Unknown keys are ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ProbeRecord {
    /// Whether more is better (`throughput`, the default) or less (`latency`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<MeasureKind>,
    /// Operations in the last second, or the latency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served: Option<f64>,
    /// Operations since some beginning: the rate is computed from two records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_total: Option<f64>,
    /// Operations asked for in the last second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered: Option<f64>,
    /// Operations asked for since some beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_total: Option<f64>,
    /// Time that all of `served_total` took together: with `kind=latency` their mean latency is computed from two records.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_total: Option<f64>,
    /// What is promised, in the unit of `served`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<f64>,
    /// The application's own judgement, in place of numbers.
    #[serde(alias = "color", skip_serializing_if = "Option::is_none")]
    pub colour: Option<Colour>,
}

/// Why a record was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeRecordError {
    /// It is longer than [`MAX_RECORD_LEN`].
    #[error("a record of {0} bytes: at most {MAX_RECORD_LEN}")]
    TooLong(usize),
    /// A word that is neither `key=value` nor a colour.
    #[error("\"{0}\" is not key=value or a colour: write for example served=812 objective=800")]
    Word(String),
    /// A value that a known key cannot have.
    #[error("{key}={value}: not {expected}")]
    Value {
        /// The key.
        key: String,
        /// What it was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
    /// It begins like JSON and is none.
    #[error("not a record: {0}")]
    Json(String),
    /// Nothing to judge by.
    #[error(
        "it says neither served, served_total nor colour: write for example served=812 objective=800, or green"
    )]
    Empty,
    /// A mean latency needs two counters.
    #[error("a latency of counters is time_total by served_total: give both, or served itself")]
    IncompleteLatency,
}

const NUMBER: &str = "a number from 0 up";

impl ProbeRecord {
    /// Reads one record.
    ///
    /// # Errors
    /// See [`ProbeRecordError`]; nothing of a refused record counts.
    pub fn parse(bytes: &[u8]) -> Result<Self, ProbeRecordError> {
        if bytes.len() > MAX_RECORD_LEN {
            return Err(ProbeRecordError::TooLong(bytes.len()));
        }
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        let record = if text.starts_with('{') { parse_json(text)? } else { parse_words(text)? };
        record.check()
    }

    /// Refuses what is well spelled and cannot be meant.
    ///
    /// # Errors
    /// See [`ProbeRecordError`].
    pub fn check(self) -> Result<Self, ProbeRecordError> {
        for (key, value) in self.numbers() {
            if value.is_some_and(|n| !n.is_finite() || n < 0.0) {
                return Err(invalid_value(key, &value.unwrap_or_default().to_string(), NUMBER));
            }
        }
        if self.objective == Some(0.0) {
            return Err(invalid_value("objective", "0", "a number above 0"));
        }
        let latency = self.kind == Some(MeasureKind::Latency);
        match self {
            Self { colour: Some(_), .. } | Self { served: Some(_), .. } => Ok(self),
            Self { served_total: Some(_), time_total, .. } if latency == time_total.is_some() => Ok(self),
            Self { served_total: Some(_), .. } | Self { time_total: Some(_), .. } => {
                Err(ProbeRecordError::IncompleteLatency)
            }
            _ => Err(ProbeRecordError::Empty),
        }
    }

    /// Every number by its key.
    fn numbers(&self) -> [(&'static str, Option<f64>); 6] {
        [
            ("served", self.served),
            ("served_total", self.served_total),
            ("offered", self.offered),
            ("offered_total", self.offered_total),
            ("time_total", self.time_total),
            ("objective", self.objective),
        ]
    }

    /// Where the number of that key is kept; `None` for an unknown key.
    pub(super) fn number_mut(&mut self, key: &str) -> Option<&mut Option<f64>> {
        Some(match key {
            "served" => &mut self.served,
            "served_total" => &mut self.served_total,
            "offered" => &mut self.offered,
            "offered_total" => &mut self.offered_total,
            "time_total" => &mut self.time_total,
            "objective" => &mut self.objective,
            _ => return None,
        })
    }
}

fn parse_json(text: &str) -> Result<ProbeRecord, ProbeRecordError> {
    serde_json::from_str(text).map_err(|e| ProbeRecordError::Json(e.to_string()))
}

fn parse_words(text: &str) -> Result<ProbeRecord, ProbeRecordError> {
    let mut record = ProbeRecord::default();
    for word in text.split_whitespace() {
        let Some((key, value)) = word.split_once('=') else {
            record.colour =
                Some(parse_word::<Colour>(word).ok_or_else(|| ProbeRecordError::Word(excerpt(word)))?);
            continue;
        };
        match key {
            "kind" => {
                let kind =
                    parse_word(value).ok_or_else(|| invalid_value(key, value, "throughput or latency"))?;
                record.kind = Some(kind);
            }
            "colour" | "color" => {
                let colour =
                    parse_word(value).ok_or_else(|| invalid_value(key, value, "red, yellow or green"))?;
                record.colour = Some(colour);
            }
            key => {
                if let Some(number) = record.number_mut(key) {
                    *number = Some(value.parse().map_err(|_| invalid_value(key, value, NUMBER))?);
                }
            }
        }
    }
    Ok(record)
}

/// One of a closed list of words, as its type spells them.
fn parse_word<T: for<'a> Deserialize<'a>>(word: &str) -> Option<T> {
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, StrDeserializer};
    let word: StrDeserializer<'_, Error> = word.into_deserializer();
    T::deserialize(word).ok()
}

fn invalid_value(key: &str, value: &str, expected: &'static str) -> ProbeRecordError {
    ProbeRecordError::Value { key: key.to_owned(), value: excerpt(value), expected }
}

/// As a message may repeat it.
fn excerpt(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn served(served: f64) -> ProbeRecord {
        ProbeRecord { served: Some(served), ..ProbeRecord::default() }
    }

    #[test]
    fn words_and_json_say_the_same() {
        let all = ProbeRecord {
            offered: Some(900.0),
            objective: Some(800.0),
            kind: Some(MeasureKind::Throughput),
            ..served(812.0)
        };
        let counters = ProbeRecord {
            kind: Some(MeasureKind::Latency),
            served_total: Some(1e3),
            time_total: Some(2.5),
            ..ProbeRecord::default()
        };
        let red = ProbeRecord { colour: Some(Colour::Red), ..ProbeRecord::default() };
        for (text, expect) in [
            ("served=812 offered=900 objective=800 kind=throughput", all),
            ("served=812\noffered=900\nobjective=800\nkind=throughput\n", all),
            (r#"{"served": 812, "offered": 900, "objective": 800, "kind": "throughput"}"#, all),
            ("kind=latency served_total=1000 time_total=2.5", counters),
            ("served=0 version=3 host=a=b", served(0.0)),
            (r#"{"served": 1, "version": 3, "objective": null}"#, served(1.0)),
            ("red\n", red),
            ("colour=red", red),
            (r#"{"color":"red"}"#, red),
            ("\0 served=1\0", served(1.0)),
        ] {
            assert_eq!(ProbeRecord::parse(text.as_bytes()), Ok(expect), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_way_out() {
        for (text, expect) in [
            ("", "neither served"),
            ("offered=9", "neither served"),
            ("{}", "neither served"),
            ("served", "\"served\" is not key=value"),
            ("blue", "\"blue\" is not key=value"),
            ("served=", "served=: not a number"),
            ("served=1,5", "served=1,5: not a number"),
            ("served=-1", "served=-1: not a number"),
            ("served=nan", "served=NaN: not a number"),
            ("served=inf", "served=inf: not a number"),
            ("served=1 objective=0", "objective=0: not a number above 0"),
            ("served=1 kind=fast", "kind=fast: not throughput or latency"),
            ("served_total=5 kind=latency", "time_total by served_total"),
            ("time_total=5", "time_total by served_total"),
            (r#"{"served": "many"}"#, "not a record"),
            (r#"{"served": 1"#, "not a record"),
            (r#"{"served": -1}"#, "served=-1: not a number"),
        ] {
            let error = ProbeRecord::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expect) && !error.contains('\n'), "{text:?}: {error}");
        }
        assert_eq!(
            ProbeRecord::parse(&[b' '; MAX_RECORD_LEN + 1]),
            Err(ProbeRecordError::TooLong(MAX_RECORD_LEN + 1))
        );
    }

    proptest! {
        #[test]
        fn nothing_panics_and_what_is_taken_has_only_good_numbers(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(record) = ProbeRecord::parse(&bytes) {
                prop_assert!(record.check().is_ok());
            }
        }

        #[test]
        fn a_record_reads_back_from_its_own_json(served in 0..1u32 << 30, objective in 1..1u32 << 30) {
            let record = ProbeRecord {
                served: Some(served.into()), objective: Some(objective.into()), ..ProbeRecord::default()
            };
            let text = serde_json::to_vec(&record).unwrap();
            prop_assert_eq!(ProbeRecord::parse(&text).unwrap(), record);
        }
    }
}
