//! What the doctor's checks say, and alerts with them.

use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Severity {
    /// Worth knowing; no container suffers now. Does not make a host unhealthy.
    Info,
    /// Something is slower or less safe than it has to be, now or as soon as it is needed.
    Warning,
    /// Something is being killed, stopped or starved.
    Critical,
}

/// What a file said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FindingEvidence {
    /// The file, with the key behind a space where it has any.
    pub file: String,
    /// Its value, or how fast it grew.
    pub value: String,
}

/// One thing that hurts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DoctorFinding {
    /// The check's id.
    pub check: String,
    /// How bad.
    pub severity: Severity,
    /// The container, by name; absent where it is the host.
    pub container: Option<String>,
    /// The cgroup's path, where there is one.
    pub cgroup: Option<String>,
    /// What happens, in one sentence.
    pub sentence: String,
    /// Why we think so.
    pub evidence: Vec<FindingEvidence>,
    /// What removes it, where one command does.
    pub fix: Option<FindingFix>,
    /// What else helps, in words.
    pub advice: Option<String>,
    /// Where to read about it.
    pub reference: String,
}

/// What a person would type, and the same as writes that can be taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FindingFix {
    /// Shell commands, in order.
    pub commands: Vec<String>,
    /// What `--fix` writes, in order; empty where the fix is for a person to make.
    pub writes: Vec<FileWrite>,
}

/// One file's new value. Undone in reverse order by writing `from`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileWrite {
    /// The file, from the machine's root.
    pub file: String,
    /// What it says now.
    pub from: String,
    /// What it is to say.
    pub to: String,
    /// The unit that owns the file and the property behind it: systemd writes it, or it would write it back.
    pub unit: Option<UnitProperty>,
    /// The file that says how much is in use: going back below that would be refused, or would kill.
    pub in_use: Option<String>,
}

/// A property of a systemd unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnitProperty {
    /// `docker-4f1c….scope`.
    pub unit: String,
    /// `MemoryLow`.
    pub name: String,
}

/// systemd's period of a quota, in microseconds.
pub const CPU_PERIOD: u64 = 100_000;

/// What a quota is of one CPU, in percent. `None` where it is no whole percent of systemd's period: it would write another one.
pub fn cpu_percent(quota: &str) -> Option<u64> {
    let (quota, period) = quota.split_once(' ').unwrap_or((quota, "100000"));
    let percent = CPU_PERIOD / 100;
    let quota: u64 = quota.parse().ok().filter(|q: &u64| q.is_multiple_of(percent))?;
    (period.parse() == Ok(CPU_PERIOD)).then_some(quota / percent)
}

impl UnitProperty {
    /// A value of the file as `systemctl set-property` takes it.
    pub fn assignment(&self, value: &str) -> String {
        let quota = cpu_percent(value).filter(|_| self.name == "CPUQuota");
        match (value, quota) {
            ("max" | "-1", _) => format!("{}=infinity", self.name),
            (_, Some(percent)) => format!("{}={percent}%", self.name),
            _ => format!("{}={value}", self.name),
        }
    }
}

impl DoctorFinding {
    /// A finding about the host, or about a cgroup if [`DoctorFinding::for_cgroup`] says so.
    pub fn new(severity: Severity, sentence: impl Into<String>) -> Self {
        Self {
            check: String::new(),
            severity,
            container: None,
            cgroup: None,
            sentence: sentence.into(),
            evidence: Vec::new(),
            fix: None,
            advice: None,
            reference: String::new(),
        }
    }

    /// Says that it is about this container, if it is one, and this cgroup.
    #[must_use]
    pub fn for_cgroup(mut self, container: Option<String>, cgroup: &str) -> Self {
        self.container = container;
        self.cgroup = Some(cgroup.to_owned());
        self
    }

    /// Adds what a file said.
    #[must_use]
    pub fn with_evidence(mut self, file: impl Into<String>, value: impl ToString) -> Self {
        self.evidence.push(FindingEvidence { file: file.into(), value: value.to_string() });
        self
    }

    /// Adds what removes it.
    #[must_use]
    pub fn with_fix(mut self, fix: Option<FindingFix>) -> Self {
        self.fix = fix;
        self
    }

    /// Adds what else helps.
    #[must_use]
    pub fn with_advice(mut self, words: impl Into<String>) -> Self {
        self.advice = Some(words.into());
        self
    }
}
