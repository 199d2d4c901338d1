//! A record from a page of metrics: the text format that Prometheus and OpenMetrics scrapers read
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>), as far as samples go.

use super::record::{ProbeRecord, ProbeRecordError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Which metric is which number of a record: `served_total = "http_requests_total{code=\"200\"}"`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MetricMapping(pub BTreeMap<String, MetricSelector>);

/// A metric's name, and labels that its samples must have. What several samples say is added up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricSelector {
    name: String,
    labels: MetricLabels,
}

/// Names and values.
type MetricLabels = Vec<(String, String)>;

/// Why a selector or a page was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetricsError {
    /// Not a metric.
    #[error(
        "\"{0}\" is no metric: write for example http_requests_total or http_requests_total{{code=\"200\"}}"
    )]
    Selector(String),
    /// A key that no record has.
    #[error(
        "\"{0}\" is no number of a record: use served, served_total, offered, offered_total, time_total, objective"
    )]
    Key(String),
    /// The page has no such metric.
    #[error("the page has no {0}: see what it offers with curl")]
    Absent(String),
    /// What the page says makes no record.
    #[error(transparent)]
    Record(#[from] ProbeRecordError),
}

impl MetricMapping {
    /// Refuses keys that no record has.
    ///
    /// # Errors
    /// [`MetricsError::Key`].
    pub fn check(&self) -> Result<(), MetricsError> {
        let unknown = self.0.keys().find(|key| ProbeRecord::default().number_mut(key).is_none());
        unknown.map_or(Ok(()), |key| Err(MetricsError::Key(key.clone())))
    }

    /// The record that a page of metrics makes; `base` is what no metric says, such as its kind.
    ///
    /// # Errors
    /// See [`MetricsError`].
    pub fn record(&self, page: &str, base: ProbeRecord) -> Result<ProbeRecord, MetricsError> {
        let mut sums: Vec<Option<f64>> = vec![None; self.0.len()];
        for line in page.lines() {
            let Some((name, labels, value)) = parse_sample(line) else { continue };
            for (sum, selector) in sums.iter_mut().zip(self.0.values()) {
                if selector.name == name && selector.matches(&labels) {
                    *sum = Some(sum.unwrap_or(0.0) + value);
                }
            }
        }
        let mut record = base;
        for ((key, selector), sum) in self.0.iter().zip(sums) {
            let sum = sum.ok_or_else(|| MetricsError::Absent(selector.to_string()))?;
            *record.number_mut(key).ok_or_else(|| MetricsError::Key(key.clone()))? = Some(sum);
        }
        Ok(record.check()?)
    }
}

/// Name, labels and value of a sample's line; `None` for comments and for what is no sample.
fn parse_sample(line: &str) -> Option<(&str, MetricLabels, f64)> {
    let end = line.find(|c: char| !is_name(c)).filter(|end| *end > 0)?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?;
    Some((name, labels, value.parse().ok()?))
}

/// `a="b",c="d"}`, and what follows it.
fn parse_labels(text: &str) -> Option<(MetricLabels, &str)> {
    let mut labels = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once('=')?;
        let after = after.trim_start().strip_prefix('"')?;
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    c => value.push(c),
                },
                (_, c) => value.push(c),
            }
        };
        labels.push((name.trim().to_owned(), value));
        rest = &after[end + 1..];
    }
}

const fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

impl MetricSelector {
    fn matches(&self, labels: &[(String, String)]) -> bool {
        self.labels.iter().all(|wanted| labels.contains(wanted))
    }
}

impl FromStr for MetricSelector {
    type Err = MetricsError;

    fn from_str(text: &str) -> Result<Self, MetricsError> {
        let refused = || MetricsError::Selector(text.chars().take(80).flat_map(char::escape_debug).collect());
        let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(refused());
        }
        let labels = match rest.strip_prefix('{') {
            Some(rest) => parse_labels(rest).filter(|(_, rest)| rest.is_empty()).ok_or_else(refused)?.0,
            None if rest.is_empty() => Vec::new(),
            None => return Err(refused()),
        };
        Ok(Self { name: name.to_owned(), labels })
    }
}

impl fmt::Display for MetricSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.labels.is_empty() {
            return Ok(());
        }
        let label = |(name, value): &(String, String)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{name}=\"{value}\"")
        };
        write!(f, "{{{}}}", self.labels.iter().map(label).collect::<Vec<_>>().join(","))
    }
}

impl Serialize for MetricSelector {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MetricSelector {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: &str = r#"# HELP http_requests_total The "total" number {of} requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="get",code="200",} 3
http_requests_total{method="post",code="400"}    3 1395066363000
odd{path="C:\\DIR\\\"a, b\"} \n}"} 1.5e+02
up 1
not_a_number NaN
requests_seconds_sum 12.5
"#;

    fn record(pairs: &[(&str, &str)]) -> Result<ProbeRecord, MetricsError> {
        let metrics = MetricMapping(
            pairs.iter().map(|(key, text)| ((*key).to_owned(), text.parse().unwrap())).collect(),
        );
        metrics.check()?;
        metrics.record(PAGE, ProbeRecord::default())
    }

    #[test]
    fn samples_that_fit_are_added_up() {
        let total = |pairs: &[(&str, &str)]| record(pairs).unwrap().served_total;
        assert_eq!(total(&[("served_total", "http_requests_total")]), Some(1033.0));
        assert_eq!(total(&[("served_total", r#"http_requests_total{code="200"}"#)]), Some(1030.0));
        assert_eq!(total(&[("served_total", r#"http_requests_total{code="200",method="get"}"#)]), Some(3.0));
        let odd = record(&[("served", r#"odd{path="C:\\DIR\\\"a, b\"} \n}"}"#)]).unwrap();
        assert_eq!(odd.served, Some(150.0));
    }

    #[test]
    fn what_the_page_does_not_say_is_not_zero() {
        for (pairs, expect) in [
            (&[("served_total", "http_requests")][..], "the page has no http_requests"),
            (&[("served_total", r#"up{job="a"}"#)], r#"the page has no up{job="a"}"#),
            (&[("served", "not_a_number")], "served=NaN"),
            (&[("speed", "up")], "\"speed\" is no number of a record"),
        ] {
            let error = record(pairs).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
    }

    #[test]
    fn selectors_read_back_and_bad_ones_are_refused() {
        for text in ["up", "a:b_c", r#"x{a="b"}"#, r#"x{a="b",c="q\"\\\n"}"#] {
            assert_eq!(text.parse::<MetricSelector>().unwrap().to_string(), text);
        }
        for text in ["", "1a", "a b", "a{", "a{b}", "a{b=c}", r#"a{b="c"} "#, "a-b"] {
            assert!(text.parse::<MetricSelector>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(page in ".{0,300}", selector in ".{0,60}") {
            let _ = selector.parse::<MetricSelector>();
            page.lines().for_each(|line| drop(parse_sample(line)));
            let metrics = MetricMapping([("served".to_owned(), "a".parse().unwrap())].into());
            let _ = metrics.record(&page, ProbeRecord::default());
        }
    }
}
