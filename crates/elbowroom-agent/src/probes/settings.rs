//! `[[probes]]` of the configuration, and the same on one line: `elbowroom run --probe`, the label `elbowroom.dev/probe`.

use anyhow::{Context, Result, bail, ensure};
use elbowroom_types::container::ContainerIdentity;
use elbowroom_types::glob;
use elbowroom_types::probe::prometheus::MetricMapping;
use elbowroom_types::probe::{DEFAULT_TTL, MeasureKind, ProbeDefaults};
use elbowroom_types::unit::{Micros, parse_duration};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use ureq::http::Uri;

/// Longest such line.
const MAX_LINE_BYTES: usize = 4096;
/// The one name in an address: 127.0.0.1.
pub(super) const LOCALHOST: &str = "localhost";
/// Shortest times there are.
const MIN_TIME: Micros = Micros::millis(100);
/// Longest that an answer is waited for, and that a source's thread outlives its container.
const MAX_TIMEOUT: Micros = Micros::secs(30);
/// Shortest period that a label may set: no container pays for the agent's work.
const MIN_LABEL_PERIOD: Micros = Micros::secs(1);

/// One entry. Without file, scrape and exec, the terms of what the application sends by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProbeSettings {
    /// Which containers: a glob pattern of their names or ids.
    pub container: String,
    /// A file in the container that holds one record, replaced each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// An `http://` address of a page of metrics, as a process of the container would ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scrape: Option<String>,
    /// A program on the host, and its arguments, that prints a record.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exec: Vec<String>,
    /// Which of the page's metrics are which numbers.
    #[serde(skip_serializing_if = "is_empty")]
    pub metrics: MetricMapping,
    /// What the number is, for records that do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<MeasureKind>,
    /// What is promised, for records that do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<f64>,
    /// Time between two questions.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub every: Micros,
    /// How long an answer may take.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub timeout: Micros,
    /// How long a record counts.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub ttl: Micros,
}

fn is_empty(metrics: &MetricMapping) -> bool {
    metrics.0.is_empty()
}

impl Default for ProbeSettings {
    fn default() -> Self {
        Self {
            container: String::new(),
            file: None,
            scrape: None,
            exec: Vec::new(),
            metrics: MetricMapping::default(),
            kind: None,
            objective: None,
            every: Micros::secs(1),
            timeout: Micros::secs(1),
            ttl: DEFAULT_TTL,
        }
    }
}

impl ProbeSettings {
    /// Whether this entry is about `container`.
    pub(crate) fn matches_container(&self, container: &ContainerIdentity) -> bool {
        glob::matches(&self.container, &container.id)
            || container.name.as_deref().is_some_and(|name| glob::matches(&self.container, name))
    }

    /// What the operator says for records that do not.
    pub const fn terms(&self) -> ProbeDefaults {
        ProbeDefaults { kind: self.kind, objective: self.objective }
    }

    /// What it says of records wherever they are heard, in words that [`Self::parse`] takes; empty where that is nothing.
    pub fn terms_text(&self) -> String {
        let kind = self.kind.map(|kind| match kind {
            MeasureKind::Throughput => "kind=throughput".to_owned(),
            MeasureKind::Latency => "kind=latency".to_owned(),
        });
        let objective = self.objective.map(|objective| format!("objective={objective}"));
        let ttl = (self.ttl != DEFAULT_TTL).then(|| format!("ttl={}", self.ttl));
        [kind, objective, ttl].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Whether there is something to ask, beside what comes by itself.
    pub const fn is_polled(&self) -> bool {
        self.file.is_some() || self.scrape.is_some() || !self.exec.is_empty()
    }

    /// Where it is heard, in few words, without what may be secret in an address.
    pub fn source(&self) -> String {
        match (&self.file, &self.scrape, &self.exec[..]) {
            (Some(file), _, _) => format!("file {}", file.display()),
            (_, Some(url), _) => {
                let uri: Option<Uri> = url.parse().ok();
                let place = uri.as_ref().and_then(|uri| Some(format!("{}{}", uri.authority()?, uri.path())));
                format!("scrape {}", place.as_deref().and_then(|p| p.rsplit('@').next()).unwrap_or_default())
            }
            (_, _, [program, ..]) => format!("exec {program}"),
            _ => "socket".to_owned(),
        }
    }

    /// Reads a probe from one line: `file:PATH`, `http://HOST:PORT/PATH`, or, where programs may be named, `exec:PROGRAM
    /// ARGUMENTS`. Words such as `served_total=METRIC`, `objective=800`, `kind=latency`, `every=2s`, `timeout=500ms` and `ttl=10s`
    /// stand before an `exec:`, and after the others.
    pub fn parse(line: &str, may_exec: bool) -> Result<Self> {
        ensure!(line.len() <= MAX_LINE_BYTES, "a probe of {} bytes: at most {MAX_LINE_BYTES}", line.len());
        let mut probe = Self { container: "*".to_owned(), ..Self::default() };
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            if let Some(path) = word.strip_prefix("file:") {
                probe.file = Some(path.into());
            } else if word.starts_with("http://") {
                probe.scrape = Some(word.to_owned());
            } else if let Some(program) = word.strip_prefix("exec:") {
                ensure!(may_exec, "exec: a label cannot have the host start programs: use the configuration");
                probe.exec = std::iter::once(program).chain(words.by_ref()).map(str::to_owned).collect();
            } else if let Some((key, value)) = word.split_once('=') {
                probe.set(key, value).with_context(|| format!("{key}={value}"))?;
            } else {
                bail!("{word:?} is no probe: write file:PATH, http://HOST:PORT/PATH or exec:PROGRAM");
            }
        }
        probe.validate()?;
        ensure!(
            may_exec || probe.every >= MIN_LABEL_PERIOD,
            "every: \"{}\" is too short for a label: at least \"{MIN_LABEL_PERIOD}\"",
            probe.every
        );
        Ok(probe)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "kind" => {
                self.kind = Some(match value {
                    "throughput" => MeasureKind::Throughput,
                    "latency" => MeasureKind::Latency,
                    _ => bail!("throughput or latency"),
                });
            }
            "objective" => self.objective = Some(value.parse()?),
            "every" => self.every = parse_duration(value)?,
            "timeout" => self.timeout = parse_duration(value)?,
            "ttl" => self.ttl = parse_duration(value)?,
            key => drop(self.metrics.0.insert(key.to_owned(), value.parse()?)),
        }
        Ok(())
    }

    /// Refuses what can never work.
    fn validate(&self) -> Result<()> {
        ensure!(
            !self.container.is_empty(),
            "container: write whose probe it is, for example \"db*\", or \"*\" for all"
        );
        let ways = [self.file.is_some(), self.scrape.is_some(), !self.exec.is_empty()];
        ensure!(
            ways.into_iter().filter(|way| *way).count() <= 1,
            "more than one of file, scrape and exec: make an entry of each, for different containers"
        );
        if let Some(file) = &self.file {
            ensure!(file.is_absolute(), "file: {file:?} is no absolute path in the container");
        }
        if let Some(url) = &self.scrape {
            let uri: Option<Uri> = url.parse().ok();
            let host = uri.as_ref().filter(|uri| uri.scheme_str() == Some("http")).and_then(Uri::host);
            let host = host.context("scrape: write an address that begins with http://")?;
            // In a container's network it is the container that answers for names, to a resolver that runs as root here.
            ensure!(
                host == LOCALHOST || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok(),
                "scrape: {host:?} is a name, and names are not looked up in a container's network: write 127.0.0.1 or another number"
            );
            ensure!(
                !is_empty(&self.metrics),
                "metrics: say which of the page's metrics is which number, for example served_total = \"http_requests_total\""
            );
        } else {
            ensure!(is_empty(&self.metrics), "metrics: only for scrape");
        }
        self.metrics.check().context("metrics")?;
        if let [program, ..] = &self.exec[..] {
            ensure!(
                program.starts_with('/'),
                "exec: {program:?} is no absolute path: write for example [\"/usr/local/lib/elbowroom/probes/mariadb\"]"
            );
        }
        if let Some(objective) = self.objective {
            ensure!(objective.is_finite() && objective > 0.0, "objective: {objective} is no number above 0");
        }
        for (key, value) in [("every", self.every), ("timeout", self.timeout), ("ttl", self.ttl)] {
            ensure!(value >= MIN_TIME, "{key}: \"{value}\" is too short: at least \"{MIN_TIME}\"");
        }
        ensure!(
            self.timeout <= MAX_TIMEOUT,
            "timeout: \"{}\" is too long: at most \"{MAX_TIMEOUT}\"",
            self.timeout
        );
        ensure!(
            self.ttl >= self.every,
            "ttl: \"{}\" is over before the next question, \"{}\" later: raise it",
            self.ttl,
            self.every
        );
        Ok(())
    }
}

/// Refuses probes that can never work.
pub(crate) fn validate(probes: &[ProbeSettings]) -> Result<()> {
    for (n, probe) in probes.iter().enumerate() {
        probe.validate().with_context(|| format!("probes, entry {}", n + 1))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_the_same_as_an_entry() {
        let line =
            "http://127.0.0.1:9104/metrics served_total=mysql_global_status_questions objective=800 every=2s";
        let entry = r#"
            container = "*"
            scrape = "http://127.0.0.1:9104/metrics"
            objective = 800.0
            every = "2s"
            metrics.served_total = "mysql_global_status_questions"
        "#;
        assert_eq!(ProbeSettings::parse(line, false).unwrap(), toml::from_str(entry).unwrap());
        let exec = ProbeSettings::parse("kind=latency exec:/bin/probe --db a=b", true).unwrap();
        assert_eq!(
            (exec.exec, exec.kind),
            (vec!["/bin/probe".into(), "--db".into(), "a=b".into()], Some(MeasureKind::Latency))
        );
        assert_eq!(ProbeSettings::parse("objective=5", false).unwrap().source(), "socket");
        let terms = ProbeSettings::parse("file:/x ttl=1.5s kind=latency objective=0.05", true).unwrap();
        assert_eq!(terms.terms_text(), "kind=latency objective=0.05 ttl=1.5s");
        let again = ProbeSettings::parse(&terms.terms_text(), false).unwrap();
        assert_eq!((again.terms(), again.ttl), (terms.terms(), terms.ttl));
        assert_eq!(ProbeSettings::default().terms_text(), "");
    }

    #[test]
    fn what_can_never_work_is_refused_with_the_way_out() {
        for (line, expect) in [
            ("ftp://a/b", "is no probe: write file:PATH"),
            ("http://localhost", "metrics: say which"),
            ("http://a served=c", "names are not looked up"),
            ("http://[::1] speed=x", "\"speed\" is no number of a record"),
            ("file:probe", "no absolute path"),
            ("file:/a http://127.0.0.1 served=c", "more than one"),
            ("file:/a served=c", "metrics: only for scrape"),
            ("exec:/bin/true", "a label cannot have the host start programs"),
            ("file:/a objective=-1", "objective: -1 is no number above 0"),
            ("file:/a every=5", "has no unit"),
            ("file:/a every=1ms", "every: \"1ms\" is too short"),
            ("file:/a every=500ms", "too short for a label: at least \"1s\""),
            ("file:/a timeout=31s", "timeout: \"31s\" is too long: at most \"30s\""),
            ("file:/a every=9s", "ttl: \"5s\" is over before"),
            ("file:/a kind=fast", "throughput or latency"),
        ] {
            let error = elbowroom_client::output::one_line(&ProbeSettings::parse(line, false).unwrap_err());
            assert!(error.contains(expect), "{line}: {error}");
        }
        assert!(ProbeSettings::parse(&"x".repeat(5_000), true).is_err());
    }

    #[test]
    fn what_may_be_secret_in_an_address_is_not_shown() {
        let probe =
            ProbeSettings::parse("http://user:word@127.0.0.1:80/metrics?token=secret served=up", false)
                .unwrap();
        assert_eq!(probe.source(), "scrape 127.0.0.1:80/metrics");
    }
}
