//! The configuration file: TOML, every key optional, unknown keys and bare numbers refused.

mod containers;

pub use containers::ContainerSettings;

use crate::alerts::settings::{self as receivers, AlertSettings, ReceiverSettings};
use crate::http::settings as api;
use crate::otlp::settings::OtlpSettings;
use crate::probes::settings::{self as probes, ProbeSettings};
use crate::recorder::settings::RecorderSettings;
use anyhow::{Context, Result, ensure};
use elbowroom_client::api::{AgentMode, LaunchGrant, LaunchRequest};
use elbowroom_govern::{GovernorMode, disk, memory};
use elbowroom_linux::bounded;
use elbowroom_types::claim::{Claim, WEIGHT_RANGE};
use elbowroom_types::container::{ContainerEngine, ContainerIdentity};
use elbowroom_types::label::ContainerLabels;
use elbowroom_types::unit::Micros;
use elbowroom_view::rules::ViewRules;
use rustix::fs::{Access, access};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the file is looked for when `--config` does not say.
pub(crate) const DEFAULT_PATH: &str = "/etc/elbowroom/elbowroom.toml";

/// Everything that can be configured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// The file that it was read from; `None` where there was none.
    #[serde(skip)]
    pub file: Option<PathBuf>,
    /// How much of what follows is done.
    pub mode: AgentMode,
    /// How the host is sensed.
    pub sense: SensorSettings,
    /// Which containers get views.
    pub containers: ContainerSettings,
    /// Runtimes that ask what to change about containers they make.
    pub nri: NriSettings,
    /// How views are refreshed.
    pub views: ViewSettings,
    /// The rules views follow.
    pub view_rules: ViewRules,
    /// How disks are divided.
    pub disk: disk::DiskSettings,
    /// How memory is divided when it is short.
    pub memory: memory::MemorySettings,
    /// What single containers are promised; the first entry that fits a container counts.
    pub claims: Vec<Claim>,
    /// What applications say about themselves, and how it comes here; the first entry that fits a container counts.
    pub probes: Vec<ProbeSettings>,
    /// How often people are told of alerts.
    pub alerts: AlertSettings,
    /// What the agent has the doctor look at.
    pub doctor: DoctorSettings,
    /// The black box.
    pub recorder: RecorderSettings,
    /// Where alerts go.
    pub receivers: Vec<ReceiverSettings>,
    /// The HTTP API.
    pub api: api::ApiSettings,
    /// The push of metrics to a collector.
    pub otlp: OtlpSettings,
}

/// How the host is sensed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SensorSettings {
    /// Time between two updates of effective CPU and memory; the paper takes the scheduling period, 24 ms.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub period: Micros,
    /// Time between two full scans of the cgroup hierarchies, a safety net under the kernel's notifications.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub rescan: Micros,
    /// `auto` takes BPF where the kernel and this build have it.
    pub source: SensorSource,
}

/// What tells which containers ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SensorSource {
    /// The best this host has.
    #[default]
    Auto,
    /// Reads of cgroup files with back-off.
    Files,
    /// The `sched_switch` accumulator, or refuse to start.
    Bpf,
}

/// The NRI plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NriSettings {
    /// Sockets of runtimes; one that is not there is tried again.
    pub sockets: Vec<PathBuf>,
    /// Whether containers are given a hook that mounts their view. Without, the runtime waits with a container's start until the agent
    /// has: for runtimes that refuse hooks of plugins (containerd's default validator with `reject_oci_hook_adjustment`).
    pub hooks: bool,
}

/// The doctor's checks, made by the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DoctorSettings {
    /// Whether the agent looks at all.
    pub enabled: bool,
    /// Time between two looks. One that took long is followed by a longer pause, so that looking costs 1 % of a CPU at most.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub period: Micros,
}

/// How often the numbers on dynamic pages (`meminfo`, `stat`, ...) are renewed. Limits and CPU counts are pushed at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ViewSettings {
    /// For containers that read such a page in the last ten seconds.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub refresh_hot: Micros,
    /// For all others.
    #[serde(with = "elbowroom_types::unit::duration")]
    pub refresh_cold: Micros,
}

impl Default for SensorSettings {
    fn default() -> Self {
        Self { period: Micros::millis(24), rescan: Micros::secs(30), source: SensorSource::Auto }
    }
}

impl Default for NriSettings {
    /// Where containerd and CRI-O listen (containerd/nri, pkg/adaptation, `DefaultSocketPath`).
    fn default() -> Self {
        Self { sockets: vec!["/var/run/nri/nri.sock".into()], hooks: true }
    }
}

impl Default for DoctorSettings {
    fn default() -> Self {
        Self { enabled: true, period: Micros::secs(300) }
    }
}

impl Default for ViewSettings {
    fn default() -> Self {
        Self { refresh_hot: Micros::millis(500), refresh_cold: Micros::secs(2) }
    }
}

impl AgentConfig {
    /// Reads `path`, or the default file where there is one that this user may read, or gives the built-in values.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => match PathBuf::from(DEFAULT_PATH) {
                path if access(&path, Access::READ_OK).is_ok() => path,
                _ => return Ok(Self::default()),
            },
        };
        let text = bounded::file_text(&path, bounded::SETTINGS_FILE)
            .with_context(|| format!("reading {}", path.display()))?;
        let config = Self::parse(&text).with_context(|| path.display().to_string())?;
        Ok(Self { file: std::path::absolute(path).ok(), ..config })
    }

    /// Why other users of the host learn secrets from `path`, or the default file: every user can read it, and it has headers for a
    /// collector, or webhooks, whose addresses mostly hold a token.
    pub fn exposure(&self, path: Option<&Path>) -> Option<String> {
        let path = path.unwrap_or(Path::new(DEFAULT_PATH));
        let mode = std::fs::metadata(path).ok()?.mode() & 0o777;
        let secrets = match self.receivers.iter().any(|receiver| receiver.webhook.is_some()) {
            true => "the addresses of webhooks",
            false if !self.otlp.headers.is_empty() => "otlp.headers",
            false => return None,
        };
        (mode & 0o004 != 0).then(|| {
            format!(
                "{}: mode {mode:04o}: every user can read {secrets}, which may hold tokens: chmod 0640 it",
                path.display()
            )
        })
    }

    /// Reads a configuration from text; errors say line, key and what would be right.
    pub fn parse(text: &str) -> Result<Self> {
        let mut config: Self =
            toml::from_str(text).map_err(|e| anyhow::anyhow!("{}", parse_error_line(text, &e)))?;
        config.validate()?;
        if config.mode == AgentMode::Views {
            refuse_beside_views(&toml::from_str(text)?)?;
            config.switch_off_all_but_views();
        }
        Ok(config)
    }

    /// What [`AgentMode::Views`] means.
    fn switch_off_all_but_views(&mut self) {
        (self.disk.mode, self.memory.mode) = (GovernorMode::Off, GovernorMode::Off);
        self.doctor.enabled = false;
        // For BPF it has no right.
        self.sense.source = SensorSource::Files;
    }

    /// The same for an agent that gave up at its start what only [`AgentMode::Full`] needs.
    pub fn with_views_only(mut self, views_only: bool) -> Self {
        if views_only && self.mode == AgentMode::Full {
            tracing::warn!("mode = \"full\": the agent was started for views alone: restart it");
            self.mode = AgentMode::Views;
            self.switch_off_all_but_views();
            self.alerts.journald = false;
            self.receivers.clear();
        }
        self
    }

    /// The same with every governor that is not off carrying out what it decides, where `enforce` asks for it.
    pub fn with_enforcement(mut self, enforce: bool) -> Self {
        for mode in [&mut self.disk.mode, &mut self.memory.mode] {
            if enforce && *mode == GovernorMode::Observe {
                *mode = GovernorMode::Enforce;
            }
        }
        self
    }

    /// The same for an agent that looks after one cgroup, where `only` names one: it shows a view, and neither governs nor serves.
    pub fn with_only(self, only: Option<&str>) -> Self {
        let Some(only) = only else { return self };
        Self {
            containers: ContainerSettings { only: Some(only.to_owned()), ..self.containers },
            // Loading BPF takes longer than many a command runs.
            sense: SensorSettings { source: SensorSource::Files, ..self.sense },
            nri: NriSettings { sockets: Vec::new(), ..NriSettings::default() },
            disk: disk::DiskSettings { mode: GovernorMode::Off, ..self.disk },
            memory: memory::MemorySettings { mode: GovernorMode::Off, ..self.memory },
            doctor: DoctorSettings { enabled: false, ..self.doctor },
            recorder: RecorderSettings { enabled: false, ..self.recorder },
            api: api::ApiSettings { enabled: false, ..self.api },
            receivers: Vec::new(),
            otlp: OtlpSettings::default(),
            ..self
        }
    }

    /// What a container that is about to be made is given beside its view.
    pub(crate) fn launch_grant(&self, made: LaunchRequest) -> LaunchGrant {
        let labels = made.labels.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let labels = ContainerLabels::parse(labels, self.containers.labels);
        let made = ContainerIdentity {
            id: made.id,
            name: made.name,
            engine: ContainerEngine::Plain,
            pod: None,
            labels,
        };
        LaunchGrant {
            injections: self.containers.launch_plan(&made).injections,
            asks: self.notifies_memory_pressure(),
        }
    }

    /// Whether programs that watch for that are asked for memory ([`elbowroom_types::launch::PRESSURE_FILE`]).
    pub(crate) fn notifies_memory_pressure(&self) -> bool {
        self.memory.mode != GovernorMode::Off
    }

    /// Refuses what is well spelled and cannot be meant.
    fn validate(&self) -> Result<()> {
        let least = Micros::millis(1);
        for (key, value, least) in [
            ("sense.period", self.sense.period, least),
            ("sense.rescan", self.sense.rescan, least),
            ("views.refresh_hot", self.views.refresh_hot, least),
            ("views.refresh_cold", self.views.refresh_cold, least),
            ("disk.period", self.disk.period, Micros::millis(100)),
            ("memory.period", self.memory.period, Micros::millis(500)),
            ("doctor.period", self.doctor.period, Micros::secs(5)),
        ] {
            ensure!(value >= least, "{key}: \"{value}\" is too short: at least \"{least}\"");
        }
        ensure!(
            self.sense.period <= Micros::secs(1),
            "sense.period: \"{}\" is too long: every second the guard of limits is to hear that the agent works: at most \"1s\"",
            self.sense.period
        );
        ensure!(
            self.disk.period <= Micros::secs(5),
            "disk.period: \"{}\" is too long to hold back a burst in time: at most \"5s\"",
            self.disk.period
        );
        ensure!(
            self.memory.period <= Micros::secs(5),
            "memory.period: \"{}\" is too long to take something back in time: at most \"5s\"",
            self.memory.period
        );
        ensure!(
            self.memory.short.of(100) <= 50,
            "memory.short: \"{}\" of memory free is not short: at most \"50%\"",
            self.memory.short
        );
        ensure!(
            (1..=100).contains(&self.memory.saving_pressure.of(10_000)),
            "memory.saving_pressure: \"{}\": write which part of the time may be waited, from \"0.01%\" to \"1%\"",
            self.memory.saving_pressure
        );
        ensure!(self.disk.aridac.samples >= 1, "disk.aridac.samples: at least 1");
        ensure!(
            self.disk.aridac.max_disk_io > 0,
            "disk.aridac.max_disk_io: write what the disk can do, for example \"100MiB/s\""
        );
        if let Some(pattern) = self.disk.devices.iter().find(|p| p.is_empty() || p.contains('/')) {
            anyhow::bail!(
                "disk.devices: {pattern:?} is no name below /sys/block: write for example \"nvme*\""
            );
        }
        for (n, claim) in self.claims.iter().enumerate() {
            let entry = n + 1;
            ensure!(
                !claim.container.is_empty(),
                "claims, entry {entry}: container: write whose claim it is, for example \"db*\", or \"*\" for all"
            );
            ensure!(
                WEIGHT_RANGE.contains(&claim.weight),
                "claims, entry {entry}: weight: {} is not between 1 and 10000",
                claim.weight
            );
            ensure!(
                claim.memory.objective.is_none_or(|objective| objective.is_finite() && objective > 0.0),
                "claims, entry {entry}: memory.objective: write what is promised, for example 800"
            );
        }
        self.containers.validate()?;
        if let Some(socket) = self.nri.sockets.iter().find(|socket| !socket.is_absolute()) {
            anyhow::bail!("nri.sockets: write absolute paths, not {}", socket.display());
        }
        self.api.validate()?;
        self.otlp.validate()?;
        probes::validate(&self.probes)?;
        self.alerts.validate()?;
        self.recorder.validate()?;
        receivers::validate(&self.receivers)
    }
}

/// Keys that ask for what [`AgentMode::Views`] leaves out, and what they may say beside it.
const BEYOND_VIEWS: [(&str, &[&str], &[&str]); 8] = [
    ("sense", &["source"], &["files", "auto"]),
    ("disk", &["mode"], &["off"]),
    ("memory", &["mode"], &["off"]),
    ("doctor", &["enabled"], &["false"]),
    ("alerts", &["journald"], &["false"]),
    ("receivers", &[], &[]),
    ("probes", &[], &[]),
    ("probe", &[], &[]),
];

/// Refuses a file that says `mode = "views"` and asks for more.
fn refuse_beside_views(file: &toml::Table) -> Result<()> {
    for (key, below, harmless) in BEYOND_VIEWS {
        let value = below.iter().try_fold(file.get(key), |value, key| Some(value?.get(key)));
        let Some(value) = value.flatten() else { continue };
        let said = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let key = [&[key], below].concat().join(".");
        ensure!(
            harmless.contains(&said.as_str()) || value.as_array().is_some_and(Vec::is_empty),
            "{key}: mode = \"views\" leaves that out: remove {key}, or write mode = \"full\""
        );
    }
    Ok(())
}

/// The configuration of a text, as a text that says all of it: for the fuzzer.
///
/// # Errors
/// As where the file is read.
pub fn normalized_toml(text: &str) -> Result<String> {
    Ok(toml::to_string(&AgentConfig::parse(text)?)?)
}

/// A container's label `elbowroom.dev/probe` as the entry of a configuration: for the fuzzer.
///
/// # Errors
/// As where the label is read.
pub fn probe_label_toml(label: &str) -> Result<String> {
    let probes = vec![ProbeSettings::parse(label, false)?];
    Ok(toml::to_string(&AgentConfig { probes, ..AgentConfig::default() })?)
}

fn parse_error_line(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = error.message().trim().replace('\n', "; ");
    match line {
        Some(line) => format!("line {line}: {message}"),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn agents_of_a_node_see_the_node_unless_asked_otherwise() {
        let refuses = |config: &str, engine, views: Option<bool>| {
            let labels = ContainerLabels { views, ..ContainerLabels::default() };
            let made = ContainerIdentity { id: "4f5e".into(), name: None, engine, pod: None, labels };
            AgentConfig::parse(config).unwrap().containers.host_pid_refusal(&made).is_some()
        };
        assert!(
            refuses("", ContainerEngine::Docker, None) && refuses("", ContainerEngine::Crio, Some(false))
        );
        assert!(!refuses("", ContainerEngine::Docker, Some(true)));
        assert!(!refuses("[containers]\nhost_pid = true", ContainerEngine::Docker, None));
        assert!(!refuses("", ContainerEngine::Elbowroom, None) && !refuses("", ContainerEngine::Plain, None));
    }

    #[test]
    fn a_file_with_webhooks_that_all_users_can_read_is_told_of() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        let exposure = |text: &str, mode| {
            std::fs::write(file.path(), text).unwrap();
            std::fs::set_permissions(file.path(), PermissionsExt::from_mode(mode)).unwrap();
            AgentConfig::load(Some(file.path())).unwrap().exposure(Some(file.path()))
        };
        let webhook = "[[receivers]]\nwebhook = \"https://a/token\"";
        let told = exposure(webhook, 0o644).unwrap();
        assert!(told.contains("mode 0644") && told.contains(file.path().to_str().unwrap()), "{told}");
        assert_eq!(exposure(webhook, 0o640), None);
        assert_eq!(exposure("[[receivers]]\nexec = [\"/a\"]", 0o644), None);
        let collector = "[otlp]\nendpoint = \"http://a\"\n";
        let told = exposure(&format!("{collector}headers = {{ authorization = \"x\" }}"), 0o644).unwrap();
        assert!(told.contains("read otlp.headers, which"), "{told}");
        assert_eq!(exposure(collector, 0o644), None);
    }

    #[test]
    fn a_container_is_given_what_it_asks_for_unless_the_operator_says_otherwise() {
        let asked = |config: &str, words: &[(&str, &str)]| {
            let labels =
                words.iter().map(|(key, value)| (format!("elbowroom.dev/{key}"), (*value).to_owned()));
            let made =
                LaunchRequest { id: "4f5e".into(), name: Some("web".into()), labels: labels.collect() };
            let given = AgentConfig::parse(config).unwrap().launch_grant(made);
            given.injections.names().collect::<Vec<_>>()
        };
        let all = [("java", "on"), ("openmp", "on"), ("libc", "on"), ("env", "on")];
        assert_eq!(asked("", &all), ["java", "openmp", "libc", "env"]);
        assert_eq!(asked("", &[("env", "on"), ("java", "off"), ("libc", "?")]), ["env"]);
        assert_eq!(asked("[containers]\nlabels = \"harmless\"", &all).len(), 4);
        assert!(asked("[containers]\nlabels = \"none\"", &all).is_empty());
        assert!(asked("[containers]\nexclude = [\"web\"]", &all).is_empty());
        assert_eq!(asked("", &[&all[..], &[("views", "off")]].concat()), ["java", "env"]);
    }

    #[test]
    fn programs_are_told_to_watch_where_a_label_or_the_operator_asks() {
        let asks = |config: &str| {
            let made = LaunchRequest { id: "4f5e".into(), name: None, labels: BTreeMap::new() };
            AgentConfig::parse(config).unwrap().launch_grant(made).asks
        };
        assert!(asks("") && asks("[memory]\nmode = \"enforce\""));
        assert!(!asks("[memory]\nmode = \"off\""));
    }

    #[test]
    fn only_views_are_left_in_that_mode() {
        let config = AgentConfig::parse("mode = \"views\"\n[disk]\nmode = \"off\"\n").unwrap();
        let config = config.with_enforcement(true);
        assert_eq!((config.disk.mode, config.memory.mode), (GovernorMode::Off, GovernorMode::Off));
        assert!(!config.doctor.enabled && !config.notifies_memory_pressure());
        assert_eq!(config.sense.source, SensorSource::Files);
        assert!(AgentConfig::parse("mode = \"views\"\n[sense]\nsource = \"auto\"").is_ok());
        let later =
            AgentConfig::parse("[[receivers]]\nwebhook = \"http://a\"").unwrap().with_views_only(true);
        assert!(later.mode == AgentMode::Views && later.receivers.is_empty() && !later.doctor.enabled);
        for (more, key) in [
            ("[disk]\nmode = \"observe\"", "disk.mode"),
            ("[memory]\nmode = \"enforce\"", "memory.mode"),
            ("[doctor]\nenabled = true", "doctor.enabled"),
            ("[alerts]\njournald = true", "alerts.journald"),
            ("[[probes]]\ncontainer = \"a\"\nfile = \"/a\"", "probes"),
            ("[[receivers]]\nwebhook = \"http://a\"", "receivers"),
            ("[sense]\nsource = \"bpf\"", "sense.source"),
        ] {
            assert!(AgentConfig::parse(more).is_ok(), "{more}");
            let error = AgentConfig::parse(&format!("mode = \"views\"\n{more}")).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{key}: mode = \"views\"")), "{error}");
        }
        assert!(AgentConfig::parse("mode = \"views\"\nreceivers = []\n[doctor]\nperiod = \"1m\"").is_ok());
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(AgentConfig::parse("").unwrap(), AgentConfig::default());
    }

    #[test]
    fn the_default_prints_as_a_file_that_reads_back() {
        let text = toml::to_string(&AgentConfig::default()).unwrap();
        assert_eq!(AgentConfig::parse(&text).unwrap(), AgentConfig::default(), "{text}");
    }

    /// The file that packages install.
    const PACKAGED: &str = include_str!("../../../packaging/elbowroom.toml");

    #[test]
    fn the_packaged_file_changes_nothing() {
        assert_eq!(AgentConfig::parse(PACKAGED).unwrap(), AgentConfig::default());
    }

    #[test]
    fn the_packaged_examples_are_good() {
        for (text, entries) in [
            (include_str!("../../../packaging/examples/claims.toml"), 2),
            (include_str!("../../../packaging/examples/receivers.toml"), 2),
            (include_str!("../../../packaging/examples/probes.toml.in"), 2),
        ] {
            let config = AgentConfig::parse(&text.replace("@PREFIX@", "/usr")).unwrap();
            assert_eq!(config.claims.len() + config.receivers.len() + config.probes.len(), entries, "{text}");
        }
    }

    #[test]
    fn the_packaged_file_shows_every_key_with_its_default() {
        // `#key = value` is a key, `# words` are words.
        let shown = PACKAGED.lines().map(|line| match line.strip_prefix('#') {
            Some(key) if key.starts_with(|c: char| !c.is_whitespace()) => key,
            _ => line,
        });
        let shown = shown.collect::<Vec<_>>().join("\n");
        assert_eq!(AgentConfig::parse(&shown).unwrap(), AgentConfig::default());
        let shown: toml::Table = shown.parse().unwrap();
        let default = toml::Table::try_from(AgentConfig::default()).unwrap();
        assert_eq!(missing("", &default, &shown), [""; 0], "add them to packaging/elbowroom.toml");
    }

    fn missing(at: &str, table: &toml::Table, from: &toml::Table) -> Vec<String> {
        let mut keys = Vec::new();
        for (key, value) in table {
            match (value, from.get(key)) {
                (toml::Value::Table(table), Some(toml::Value::Table(from))) => {
                    keys.extend(missing(&format!("{at}{key}."), table, from));
                }
                (_, None) => keys.push(format!("{at}{key}")),
                _ => {}
            }
        }
        keys
    }

    #[test]
    fn bad_files_name_line_and_way_out() {
        for (text, expect) in [
            ("[sense]\nperiod = 24", "line 2: \"24\" has no unit: write for example \"250ms\""),
            ("[view_rules]\ncpu_busy = 95", "line 2: \"95\" has no unit: write for example \"20%\""),
            ("[recorder]\nmax_size = 5", "line 2: \"5\" has no unit: write for example \"512MiB\""),
            ("[disk.aridac]\nmax_disk_io = 5", "line 2: \"5\" is not an amount of data per second"),
            ("[sense]\nperiod = \"24\"", "line 2: \"24\" has no unit: write for example \"250ms\""),
            ("[sense]\nperoid = \"24ms\"", "line 2: unknown field `peroid`, expected one of"),
            ("[sense]\nperiod = \"1us\"", "sense.period: \"1us\" is too short"),
            ("[sense]\nperiod = \"5s\"", "sense.period: \"5s\" is too long"),
            ("[sens]\n", "unknown field `sens`"),
            (
                "[disk]\nmode = \"enforced\"",
                "line 2: unknown variant `enforced`, expected one of `off`, `observe`",
            ),
            ("[disk]\nperiod = \"99ms\"", "disk.period: \"99ms\" is too short: at least \"100ms\""),
            ("[disk]\nperiod = \"11s\"", "disk.period: \"11s\" is too long"),
            ("[disk]\ndevices = [\"/dev/sda\"]", "disk.devices: \"/dev/sda\" is no name below /sys/block"),
            ("[disk.aridac]\nsamples = 0", "disk.aridac.samples: at least 1"),
            ("[disk.aridac]\nmax_disk_io = \"0B/s\"", "disk.aridac.max_disk_io: write what"),
            ("[[claims]]\nweight = 5", "claims, entry 1: container: write whose"),
            (
                "[[claims]]\ncontainer = \"a\"\n[[claims]]\ncontainer = \"b\"\nweight = 0",
                "claims, entry 2: weight: 0",
            ),
            ("[[probes]]\nfile = \"/a\"", "probes, entry 1: container: write whose"),
            (
                "[[probes]]\ncontainer = \"a\"\nscrape = \"http://127.0.0.1\"",
                "probes, entry 1: metrics: say which",
            ),
            ("[memory]\nperiod = \"1ms\"", "memory.period: \"1ms\" is too short: at least \"500ms\""),
            ("[memory]\nperiod = \"1m\"", "memory.period: \"60s\" is too long"),
            ("[memory]\nshort = \"80%\"", "memory.short: \"80%\" of memory free is not short"),
            (
                "[memory]\nsaving_pressure = \"0%\"",
                "memory.saving_pressure: \"0%\": write which part of the time",
            ),
            (
                "[memory]\nsaving_pressure = \"5%\"",
                "memory.saving_pressure: \"5%\": write which part of the time",
            ),
            (
                "[[claims]]\ncontainer = \"a\"\nmemory = { objective = -1.0 }",
                "claims, entry 1: memory.objective: write what is promised",
            ),
            ("[containers]\ndocker_root = \"a\"", "containers.docker_root: write an absolute path"),
            ("[nri]\nsockets = [\"a\"]", "nri.sockets: write absolute paths, not a"),
            ("[api]\nlisten = \"9273\"", "api.listen: \"9273\" is no address with a port"),
            (
                "[api]\nlisten = \"0.0.0.0:1\"",
                "api.listen: 0.0.0.0:1 is open to the network: set api.token_file",
            ),
            ("[api]\ntoken_file = \"/a\"", "api.token_file: nothing listens on TCP"),
            ("[api]\nlisten = \"[::1]:1\"\ntoken_file = \"a\"", "api.token_file: a is no absolute path"),
            ("[api]\nlisten = \"[::1]:1\"\ntls_key = \"/a\"", "one is of no use without the other"),
            ("[otlp]\nendpoint = \"a:4318\"", "otlp.endpoint: write for example \"http://127.0.0.1:4318\""),
            ("[otlp]\nendpoint = \"http://a/b?c\"", "otlp.endpoint: write for example"),
            ("[otlp]\nendpoint = \"http://u:p@a\"", "otlp.endpoint: write for example"),
            ("[otlp]\ninterval = \"1ms\"", "otlp.interval: \"1ms\" is not between \"1s\" and \"1h\""),
            ("[otlp]\nheaders = { a = \"b\" }", "otlp.headers: nothing is pushed: set otlp.endpoint too"),
            (
                "[otlp]\nendpoint = \"http://a\"\nheaders = { \"a b\" = \"c\" }",
                "otlp.headers: \"a b\" is no name of a header",
            ),
            (
                "[otlp]\nendpoint = \"http://a\"\nheaders = { a = \"b\\nc\" }",
                "otlp.headers: the value of a has characters",
            ),
            (
                "[otlp]\nendpoint = \"http://a\"\nheaders = { Content-Type = \"b\" }",
                "otlp.headers: Content-Type is the agent's to set",
            ),
            ("[recorder]\nmax_size = \"1KiB\"", "recorder.max_size: 1KiB is too small: at least 1MiB"),
            ("[recorder]\nperiod = \"1ms\"", "recorder.period: \"1ms\" is too short"),
            ("[recorder]\nperiod = \"10s\"", "recorder.period: \"10s\" is too long"),
            ("[recorder]\ndirectory = \"a\"", "recorder.directory: write an absolute path"),
            ("[doctor]\nperiod = \"1s\"", "doctor.period: \"1s\" is too short: at least \"5s\""),
            ("[alerts]\nquiet = \"0s\"", "alerts.quiet: \"0us\" is not between"),
            ("[alerts]\nburst = 0", "alerts.burst: 0 is not between 1 and 10000"),
            (
                "[[receivers]]\nexec = [\"/a\"]\nformat = \"alertmanager\"",
                "receivers, entry 1: format: only what is posted",
            ),
            ("[[receivers]]\nwebhook = \"http://a\"\nformat = \"slack\"", "line 3: unknown variant `slack`"),
            (
                "[[receivers]]\nwebhook = \"http://a\"\nresend = \"1ms\"",
                "receivers, entry 1: resend: \"1ms\" is too short",
            ),
            ("[[receivers]]\nkinds = [\"STARVED\"]", "receivers, entry 1: it has neither exec nor webhook"),
            ("[[receivers]]\nexec = [\"scale\"]", "receivers, entry 1: exec: \"scale\" is no absolute path"),
            ("[[receivers]]\nexec = [\"/a\"]\nwebhook = \"http://a\"", "receivers, entry 1: both"),
            (
                "[[receivers]]\nwebhook = \"ftp://a/b\"",
                "receivers, entry 1: webhook: write an address that begins",
            ),
            ("[[receivers]]\nwebhook = \"http://a\"\nkinds = [\"SLOW\"]", "line 3: unknown variant `SLOW`"),
            (
                "[[receivers]]\nwebhook = \"http://a\"\ntimeout = \"1ms\"",
                "receivers, entry 1: timeout: \"1ms\" is too short",
            ),
        ] {
            let error = elbowroom_client::output::one_line(&AgentConfig::parse(text).unwrap_err());
            assert!(error.contains(expect), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
