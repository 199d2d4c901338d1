//! The configuration file: TOML, every key optional, unknown keys and bare numbers refused.

use anyhow::{Context, Result};
use elbowroom_core::unit::{Micros, parse_duration};
use elbowroom_core::view::Policy;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::{Path, PathBuf};

/// Where the file is looked for when `--config` does not say.
pub(crate) const DEFAULT_PATH: &str = "/etc/elbowroom/elbowroom.toml";

/// Everything that can be configured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// How the host is sensed.
    pub(crate) sense: Sense,
    /// Which containers get views.
    pub(crate) containers: Containers,
    /// How views are refreshed.
    pub(crate) views: Views,
    /// The rules views follow.
    pub(crate) policy: Policy,
}

/// How the host is sensed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sense {
    /// Time between two updates of effective CPU and memory; the paper takes the scheduling period, 24 ms.
    #[serde(with = "duration")]
    pub(crate) period: Micros,
    /// Time between two full scans of the cgroup hierarchies, a safety net under the kernel's notifications.
    #[serde(with = "duration")]
    pub(crate) rescan: Micros,
    /// `auto` takes BPF where the kernel and this build have it.
    pub(crate) tier: Tier,
}

/// What tells which containers ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tier {
    /// The best this host has.
    #[default]
    Auto,
    /// Reads of cgroup files with back-off.
    Files,
    /// The `sched_switch` accumulator, or refuse to start.
    Bpf,
}

/// Which containers get views.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Containers {
    /// Mount views into containers as they appear. Off: only `attach`, `run` and the OCI hook do.
    pub(crate) attach: bool,
    /// Cgroups without an engine that count as containers, as glob patterns of paths below the hierarchy's root.
    pub(crate) cgroups: Vec<String>,
    /// Where dockerd keeps its containers, for a dockerd with `--data-root` on its command line.
    pub(crate) docker_root: Option<PathBuf>,
    /// Names or ids, as glob patterns, that are left alone.
    pub(crate) exclude: Vec<String>,
}

/// How often the numbers on dynamic pages (`meminfo`, `stat`, ...) are renewed. Limits and CPU counts are pushed at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Views {
    /// For containers that read such a page in the last ten seconds.
    #[serde(with = "duration")]
    pub(crate) refresh_hot: Micros,
    /// For all others.
    #[serde(with = "duration")]
    pub(crate) refresh_cold: Micros,
}

impl Default for Sense {
    fn default() -> Self {
        Self { period: Micros::millis(24), rescan: Micros::secs(30), tier: Tier::Auto }
    }
}

impl Default for Containers {
    fn default() -> Self {
        Self { attach: true, cgroups: Vec::new(), docker_root: None, exclude: Vec::new() }
    }
}

impl Default for Views {
    fn default() -> Self {
        Self { refresh_hot: Micros::millis(250), refresh_cold: Micros::secs(2) }
    }
}

impl Config {
    /// Reads `path`, or the default file where there is one, or gives the built-in values.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => match PathBuf::from(DEFAULT_PATH) {
                path if path.exists() => path,
                _ => return Ok(Self::default()),
            },
        };
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Reads a configuration from text; errors say line, key and what would be right.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text).map_err(|e| anyhow::anyhow!("{}", one_line(text, &e)))?;
        let least = Micros::millis(1);
        for (key, value) in [
            ("sense.period", config.sense.period),
            ("sense.rescan", config.sense.rescan),
            ("views.refresh_hot", config.views.refresh_hot),
            ("views.refresh_cold", config.views.refresh_cold),
        ] {
            anyhow::ensure!(value >= least, "{key}: \"{value}\" is too short: at least \"1ms\"");
        }
        Ok(config)
    }
}

fn one_line(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = error.message().trim().replace('\n', "; ");
    match line {
        Some(line) => format!("line {line}: {message}"),
        None => message,
    }
}

mod duration {
    use super::{Deserializer, Micros, Serializer, parse_duration};

    pub(super) fn serialize<S: Serializer>(value: &Micros, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&value.to_string())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Micros, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Micros;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a duration with its unit, for example \"250ms\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Micros, E> {
                parse_duration(text).map_err(E::custom)
            }
        }
        d.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn the_default_prints_as_a_file_that_reads_back() {
        let text = toml::to_string(&Config::default()).unwrap();
        assert_eq!(Config::parse(&text).unwrap(), Config::default(), "{text}");
    }

    #[test]
    fn bad_files_name_line_and_way_out() {
        for (text, expect) in [
            ("[sense]\nperiod = 24", "line 2: invalid type: integer `24`, expected a duration with its unit"),
            ("[sense]\nperiod = \"24\"", "line 2: \"24\" has no unit: write for example \"250ms\""),
            ("[sense]\nperoid = \"24ms\"", "line 2: unknown field `peroid`, expected one of"),
            ("[sense]\nperiod = \"1us\"", "sense.period: \"1us\" is too short"),
            ("[sens]\n", "unknown field `sens`"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(expect), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
