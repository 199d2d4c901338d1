//! What the maker of a container asks of Elbowroom: labels of Docker, annotations of all other engines.
//!
//! | key | value |
//! |---|---|
//! | `elbowroom.dev/views` | `on`, `off`: whether the container gets its view |
//! | `elbowroom.dev/env` | `on`, `off`: whether its limits are put into its environment, for runtimes that read no file |
//! | `elbowroom.dev/governors` | `on`, `off`: whether its disks and memory are governed |
//! | `elbowroom.dev/priority` | a weight, 1 to 10000; or `weight=300 tier=1 class=latency`, each where wanted |
//! | `elbowroom.dev/memory-reservation` | `2GiB` |
//! | `elbowroom.dev/memory-saving` | `on`, `off`: whether memory that it does not use is taken while no container needs it |
//! | `elbowroom.dev/disk-reservation` | `rbps=50MiB/s wiops=200/s`, with the keys of `io.max` |
//! | `elbowroom.dev/seccomp` | `on`, `off`: whether its system calls are answered too |
//! | `elbowroom.dev/probe` | a probe on one line |
//! | `elbowroom.dev/java`, `openmp`, `libc` | `on`, `off`: what is loaded into programs that read no file |
//! | `elbowroom.dev/memory-max`, `cpu-max` | bounds of `elbowroom-kube --resize`, which reads them itself |
//!
//! Labels come from users who may create containers: what is not understood is kept by name and told, never guessed.

use crate::claim::{Claim, DiskReservation, MemoryClaim, ServiceClass, WEIGHT_RANGE};

use crate::unit::{Bytes, parse_bytes};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What the keys begin with.
pub const PREFIX: &str = "elbowroom.dev/";
/// Most labels that are told as not understood, and how much of each.
const MAX_IGNORED: usize = 8;
const MAX_IGNORED_LEN: usize = 200;
/// The most bytes of a label's value; a probe's is the longest.
const MAX_VALUE_LEN: usize = 4_096;

/// Ways into programs that read no file, or none more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RuntimeInjection {
    /// The agent for HotSpot.
    pub java: bool,
    /// A library that makes OpenMP's parallel regions as wide as the effective CPU.
    pub openmp: bool,
    /// A library that answers the C library's calls from the view.
    pub libc: bool,
    /// Environment variables that tell the limits.
    pub env: bool,
}

impl RuntimeInjection {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Those that a container can have that gets no view. The agent for HotSpot follows limits too.
    pub fn without_views(self) -> Self {
        Self { openmp: false, libc: false, ..self }
    }

    /// Those that need no file in the container.
    pub fn without_files(self) -> Self {
        Self { env: self.env, ..Self::default() }
    }

    /// The names of those that are wanted.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [(self.java, "java"), (self.openmp, "openmp"), (self.libc, "libc"), (self.env, "env")];
        all.into_iter().filter(|(wanted, _)| *wanted).map(|(_, name)| name)
    }
}

/// A container's labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ContainerLabels {
    /// Whether it gets its view; absent: as the configuration says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub views: Option<bool>,
    /// Whether its limits are put into its environment too; absent: as the configuration says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<bool>,
    /// Whether it is governed; absent: as the configuration says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governors: Option<bool>,
    /// Its part when there is not enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<PriorityLabel>,
    /// Its reservation of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_reservation: Option<Bytes>,
    /// The part of it that the operator promised; the rest counts at most to the container's own limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_promised: Option<Bytes>,
    /// Whether memory that it does not use is taken while no container needs it; absent: as the configuration says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_saving: Option<bool>,
    /// Its reservation of every disk it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_reservation: Option<DiskReservation>,
    /// Whether the operator promised that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disk_promised: bool,
    /// How its application says how it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<String>,
    /// What is loaded into its programs when they start; of `env` it says nothing.
    #[serde(skip_serializing_if = "RuntimeInjection::is_none")]
    pub injections: RuntimeInjection,
    /// Whether its system calls are answered too (`elbowroom keeper`); decided when it is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<bool>,
    /// What was not understood, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ignored: Vec<String>,
}

impl fmt::Display for ContainerLabels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |on: bool| if on { "on" } else { "off" };
        let priority = self.priority.map(|_| {
            let Claim { weight, tier, class, .. } = self.claim();
            format!("priority weight={weight} tier={tier} class={}", class.name())
        });
        let words = [
            self.views.map(|views| format!("views {}", on(views))),
            self.env.map(|env| format!("env {}", on(env))),
            self.governors.map(|governors| format!("governors {}", on(governors))),
            priority,
            self.memory_reservation.map(|size| format!("memory-reservation {size}")),
            self.memory_saving.map(|saving| format!("memory-saving {}", on(saving))),
            self.disk_reservation.map(|reservation| format!("disk-reservation {reservation}")),
            self.probe.as_ref().map(|_| "probe".to_owned()),
            (!self.injections.is_none()).then(|| self.injections.names().collect::<Vec<_>>().join(" ")),
            self.seccomp.map(|seccomp| format!("seccomp {}", on(seccomp))),
            (!self.ignored.is_empty()).then(|| format!("ignored: {}", self.ignored.join(", "))),
        ];
        f.write_str(&words.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}

/// As in a [`Claim`]; what is absent has the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct PriorityLabel {
    /// [`Claim::weight`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// [`Claim::tier`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<u8>,
    /// [`Claim::class`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<ServiceClass>,
}

/// Which labels count on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LabelPolicy {
    /// All.
    All,
    /// Those that change only what the container itself sees and says: `views`, `env`, `java`, `openmp`, `libc`, `seccomp`, `probe`.
    #[default]
    Harmless,
    /// None.
    None,
}

impl ContainerLabels {
    /// Reads what of `labels` is for Elbowroom.
    pub fn parse<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>, policy: LabelPolicy) -> Self {
        let mut ours: Vec<(&str, &str)> = labels
            .into_iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value.trim())))
            .collect();
        ours.sort_unstable();
        let mut read = Self::default();
        for (key, value) in ours {
            if policy == LabelPolicy::None {
                continue;
            }
            if let Err(why) = read.apply(key, value, policy) {
                read.add_ignored(key, value, &why);
            }
        }
        read
    }

    /// The same, by the operator.
    #[must_use]
    pub fn as_promised(self) -> Self {
        let (memory_promised, disk_promised) = (self.memory_reservation, self.disk_reservation.is_some());
        Self { memory_promised, disk_promised, ..self }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The same, and what `under` says wherever these say nothing.
    pub fn with_defaults(self, under: Self) -> Self {
        let priority = match (self.priority, under.priority) {
            (Some(priority), Some(under)) => Some(PriorityLabel {
                weight: priority.weight.or(under.weight),
                tier: priority.tier.or(under.tier),
                class: priority.class.or(under.class),
            }),
            (priority, under) => priority.or(under),
        };
        Self {
            views: self.views.or(under.views),
            env: self.env.or(under.env),
            injections: if self.injections.is_none() { under.injections } else { self.injections },
            governors: self.governors.or(under.governors),
            priority,
            memory_reservation: self.memory_reservation.or(under.memory_reservation),
            memory_promised: self.memory_promised.or(under.memory_promised),
            memory_saving: self.memory_saving.or(under.memory_saving),
            disk_promised: if self.disk_reservation.is_some() {
                self.disk_promised
            } else {
                under.disk_promised
            },
            disk_reservation: self.disk_reservation.or(under.disk_reservation),
            probe: self.probe.or(under.probe),
            seccomp: self.seccomp.or(under.seccomp),
            ignored: self.ignored.into_iter().chain(under.ignored).take(MAX_IGNORED).collect(),
        }
    }

    /// What they claim, where they claim anything.
    pub fn claim(&self) -> Claim {
        let priority = self.priority.unwrap_or_default();
        let unsaid = Claim::default();
        Claim {
            weight: priority.weight.unwrap_or(unsaid.weight),
            tier: priority.tier.unwrap_or(unsaid.tier),
            class: priority.class.unwrap_or(unsaid.class),
            disk: self.disk_reservation.unwrap_or(unsaid.disk),
            disk_is_asked: self.disk_reservation.is_some() && !self.disk_promised,
            memory: MemoryClaim {
                reservation: self.memory_reservation,
                promised: self.memory_reservation.map(|_| self.memory_promised.unwrap_or_default()),
                saving: self.memory_saving,
                ..unsaid.memory
            },
            ..unsaid
        }
    }

    fn apply(&mut self, key: &str, value: &str, policy: LabelPolicy) -> Result<(), String> {
        if value.len() > MAX_VALUE_LEN {
            return Err(format!("longer than {MAX_VALUE_LEN} bytes"));
        }
        match key {
            "governors" | "priority" | "memory-reservation" | "memory-saving" | "disk-reservation"
                if policy == LabelPolicy::Harmless =>
            {
                return Err("this node heeds no label that takes from others (containers.labels)".into());
            }
            "views" => self.views = Some(parse_switch(value)?),
            "env" => self.env = Some(parse_switch(value)?),
            "governors" => self.governors = Some(parse_switch(value)?),
            "seccomp" => self.seccomp = Some(parse_switch(value)?),
            "probe" => self.probe = Some(value.to_owned()),
            "java" => self.injections.java = parse_switch(value)?,
            "openmp" => self.injections.openmp = parse_switch(value)?,
            "libc" => self.injections.libc = parse_switch(value)?,
            "priority" => self.priority = Some(parse_priority(value)?),
            "memory-reservation" => {
                self.memory_reservation = Some(parse_bytes(value).map_err(|e| e.to_string())?);
            }
            "memory-saving" => self.memory_saving = Some(parse_switch(value)?),
            "disk-reservation" => self.disk_reservation = Some(parse_disk_reservation(value)?),
            // What it can read it does not hand on.
            "memory-max" | "cpu-max" => {
                return Err("a bound of `elbowroom-kube --resize`, which is off or cannot read it".into());
            }
            _ => return Err("there is no such label".into()),
        }
        Ok(())
    }

    fn add_ignored(&mut self, key: &str, value: &str, why: &str) {
        if self.ignored.len() < MAX_IGNORED {
            // What is long is cut before it is copied.
            let [key, value] =
                [key, value].map(|text| text.chars().take(MAX_IGNORED_LEN).collect::<String>());
            let sentence = format!("{PREFIX}{key} = \"{value}\": {why}");
            self.ignored.push(sentence.chars().flat_map(char::escape_debug).take(MAX_IGNORED_LEN).collect());
        }
    }
}

/// The labels of a pod's container, by key, from annotations: `elbowroom.dev/KEY` is for all containers of the pod,
/// `elbowroom.dev/KEY.NAME` for `name` alone, and goes before that. What is for one that `is_other` knows is left out, and what
/// does not begin with [`PREFIX`]. Of two of one key the later counts.
pub fn for_container<'a>(
    annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
    name: &str,
    is_other: impl Fn(&str) -> bool,
) -> BTreeMap<&'a str, &'a str> {
    let (mut all, mut single) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in annotations {
        let Some(plain) = key.strip_prefix(PREFIX) else { continue };
        // No key that is known has a dot.
        match plain.split_once('.') {
            Some((stem, of)) if of == name => single.insert(&key[..PREFIX.len() + stem.len()], value),
            Some((_, of)) if is_other(of) => None,
            _ => all.insert(key, value),
        };
    }
    all.extend(single);
    all
}

fn parse_switch(value: &str) -> Result<bool, String> {
    match value {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err("write on or off".into()),
    }
}

/// A weight, or `weight=300 tier=1 class=latency`.
///
/// # Errors
/// What is not understood, in words.
pub fn parse_priority(value: &str) -> Result<PriorityLabel, String> {
    let priority = match value.parse() {
        Ok(weight) => PriorityLabel { weight: Some(weight), ..PriorityLabel::default() },
        Err(_) => parse_pairs(value)?,
    };
    match priority.weight {
        Some(weight) if !WEIGHT_RANGE.contains(&weight) => Err(format!(
            "weight: {weight} is not between {} and {}",
            WEIGHT_RANGE.start(),
            WEIGHT_RANGE.end()
        )),
        _ => Ok(priority),
    }
}

/// What something does on a disk, or is owed of it: `rbps=50MiB/s wiops=200/s`, with the keys of `io.max`.
///
/// # Errors
/// What is not understood, in words.
pub fn parse_disk_reservation(text: &str) -> Result<DiskReservation, String> {
    parse_pairs(text)
}

/// Reads `key=value` words as the fields of a structure.
fn parse_pairs<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let mut fields = serde_json::Map::new();
    for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("{word}: write KEY=VALUE"))?;
        let value = value.parse::<u32>().map_or_else(|_| value.into(), serde_json::Value::from);
        serde_json::from_value::<T>(serde_json::json!({ key: value })).map_err(|e| format!("{key}: {e}"))?;
        fields.insert(key.to_owned(), value);
    }
    serde_json::from_value(fields.into()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str, value: &str) -> ContainerLabels {
        ContainerLabels::parse([(format!("{PREFIX}{key}").as_str(), value)], LabelPolicy::All)
    }

    #[test]
    fn labels_read_as_people_write_them() {
        assert_eq!(read("views", "off").views, Some(false));
        assert_eq!(read("env", "on").env, Some(true));
        assert_eq!(read("governors", " on\n").governors, Some(true));
        assert_eq!(read("priority", "300").claim(), Claim { weight: 300, ..Claim::default() });
        let claim = Claim { weight: 5, tier: 2, class: ServiceClass::Latency, ..Claim::default() };
        assert_eq!(read("priority", "tier=2, class=latency weight=5").claim(), claim);
        assert_eq!(read("memory-reservation", "1.5GiB").claim().memory.reservation, Some(Bytes::mib(1536)));
        assert_eq!(read("memory-saving", "off").claim().memory.saving, Some(false));
        assert_eq!(read("memory-saving", "on").to_string(), "memory-saving on");
        let disk = read("disk-reservation", "rbps=50MiB/s wiops=200/s").claim().disk;
        assert_eq!(
            disk,
            DiskReservation { rbps: Some(50 << 20), wiops: Some(200), ..DiskReservation::default() }
        );
        assert_eq!(read("probe", "port=9000").probe.as_deref(), Some("port=9000"));
        assert!(read("java", "on").injections.java && !read("java", "off").injections.java);
        for name in ["java", "openmp", "libc"] {
            assert_eq!(read(name, "on").to_string(), name);
            assert_eq!(read(name, "yes").ignored.len(), 1);
        }
        let others = [("elbowroom", "x"), ("views", "off"), ("org.elbowroom.dev/views", "off")];
        assert!(ContainerLabels::parse(others, LabelPolicy::All).is_empty());
        let all = [
            ("elbowroom.dev/views", "on"),
            ("elbowroom.dev/priority", "tier=1"),
            ("elbowroom.dev/disk-reservation", "riops=5/s"),
            ("elbowroom.dev/x", "y"),
        ];
        let text = "views on; priority weight=100 tier=1 class=throughput; disk-reservation riops=5/s; \
            ignored: elbowroom.dev/x = \"y\": there is no such label";
        assert_eq!(ContainerLabels::parse(all, LabelPolicy::All).to_string(), text.replace('"', "\\\""));
    }

    #[test]
    fn what_is_not_understood_is_told_and_changes_nothing() {
        for (key, value, why) in [
            ("views", "maybe", "write on or off"),
            ("priority", "high", "high: write KEY=VALUE"),
            ("priority", "0", "weight: 0 is not between 1 and 10000"),
            ("priority", "wieght=3", "unknown field"),
            ("priority", "tier=300", "300"),
            ("memory-reservation", "5", "5"),
            ("memory-saving", "yes", "write on or off"),
            ("disk-reservation", "rbps=5", "rbps: \\\"5\\\" is not an amount of data per second"),
            ("reservation", "2GiB", "there is no such label"),
            ("memory-max", "2GiB", "`elbowroom-kube --resize`"),
        ] {
            let labels = read(key, value);
            let [sentence] = &labels.ignored[..] else { panic!("{key} {value}: {labels:?}") };
            assert!(sentence.contains(key) && sentence.contains(why), "{sentence}");
            assert_eq!(labels.claim(), Claim::default());
            assert_eq!((labels.views, labels.governors), (None, None));
        }
        let long = read("views", &"\n".repeat(1_000)).ignored.concat()
            + &read("x", &"\n\"".repeat(1_000)).ignored.concat();
        assert!(!long.contains('\n') && long.len() <= 2 * MAX_IGNORED_LEN, "{}", long.len());
    }

    #[test]
    fn labels_over_others_say_what_they_say_and_leave_the_rest() {
        let over = |over: &[(&str, &str)], under: &[(&str, &str)]| {
            let read = |labels: &[(&str, &str)]| {
                let keys: Vec<String> = labels.iter().map(|(key, _)| format!("{PREFIX}{key}")).collect();
                let pairs = keys.iter().zip(labels).map(|(key, (_, value))| (key.as_str(), *value));
                ContainerLabels::parse(pairs, LabelPolicy::All)
            };
            read(over).with_defaults(read(under))
        };
        let under = [("priority", "weight=50 tier=1"), ("memory-reservation", "1GiB"), ("x", "y")];
        let claim = over(&[("priority", "class=latency tier=0")], &under).claim();
        assert_eq!((claim.weight, claim.tier, claim.class), (50, 0, ServiceClass::Latency));
        assert_eq!(
            over(&[("memory-reservation", "2GiB")], &under).claim().memory.reservation,
            Some(Bytes::gib(2))
        );
        assert_eq!(over(&[("memory-saving", "on")], &[("memory-saving", "off")]).memory_saving, Some(true));
        assert_eq!(over(&[], &under), over(&under, &[]));
        assert_eq!(over(&[("views", "no")], &under).ignored.len(), 2);
    }

    #[test]
    fn annotations_of_a_pod_are_for_all_its_containers_or_for_one() {
        let annotations = [
            ("elbowroom.dev/priority.web", "7"),
            ("elbowroom.dev/priority", "300"),
            ("elbowroom.dev/views.side", "off"),
            ("elbowroom.dev/env", "off"),
            ("elbowroom.dev/env", "on"),
            ("elbowroom.dev/java.wep", "on"),
            ("example.com/views", "off"),
        ];
        let of = |name: &str, others: &[&str]| {
            let labels = for_container(annotations, name, |of| others.contains(&of));
            labels
                .into_iter()
                .map(|(key, value)| format!("{} {value}", &key[PREFIX.len()..]))
                .collect::<Vec<_>>()
        };
        assert_eq!(of("web", &["side"]), ["env on", "java.wep on", "priority 7"]);
        assert_eq!(of("side", &["web", "wep"]), ["env on", "priority 300", "views off"]);
    }

    #[test]
    fn by_default_only_labels_count_that_take_nothing_from_others() {
        let harmless = ["views", "env", "java", "openmp", "libc", "seccomp"].map(|key| (key, "on"));
        let taking = [
            ("governors", "off"),
            ("priority", "9999"),
            ("memory-reservation", "1TiB"),
            ("memory-saving", "off"),
            ("disk-reservation", "rbps=1GiB/s"),
        ];
        let read = |labels: &[(&str, &str)], policy| {
            let keys: Vec<String> = labels.iter().map(|(key, _)| format!("{PREFIX}{key}")).collect();
            ContainerLabels::parse(
                keys.iter().zip(labels).map(|(key, (_, value))| (key.as_str(), *value)),
                policy,
            )
        };
        let all = [&harmless[..], &taking, &[("probe", "file:/probe")]].concat();
        let by_default = read(&all, LabelPolicy::default());
        assert_eq!(
            (by_default.ignored.len(), by_default.claim(), by_default.governors),
            (5, Claim::default(), None)
        );
        let unclaimed = ContainerLabels { ignored: Vec::new(), ..by_default };
        assert_eq!(unclaimed.to_string(), "views on; env on; probe; java openmp libc; seccomp on");
        assert!(read(&all, LabelPolicy::None).is_empty());
        assert!(read(&all, LabelPolicy::All).ignored.is_empty());
    }

    #[test]
    fn what_is_asked_is_told_from_what_is_promised() {
        let labels = |size: &str| read("memory-reservation", size);
        let claim =
            |labels: ContainerLabels| (labels.claim().memory.reservation, labels.claim().memory.promised);
        let [one, two] = [1, 2].map(|gib| Some(Bytes::gib(gib)));
        assert_eq!(claim(labels("2GiB")), (two, Some(Bytes::ZERO)));
        assert_eq!(claim(labels("2GiB").with_defaults(labels("1GiB").as_promised())), (two, one));
        assert_eq!(claim(ContainerLabels::default().with_defaults(labels("1GiB").as_promised())), (one, one));
        let disk = read("disk-reservation", "riops=5/s");
        assert!(disk.claim().disk_is_asked && !disk.clone().as_promised().claim().disk_is_asked);
        assert!(disk.clone().with_defaults(disk.as_promised()).claim().disk_is_asked);
    }
}
