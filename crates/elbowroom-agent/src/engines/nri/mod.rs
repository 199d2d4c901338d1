//! The NRI plugin: containerd and CRI-O ask it what to change about a container that is being made
//! (<https://github.com/containerd/nri>), and get a [`Plan`](elbowroom_types::launch::Plan).
//!
//! # Approach
//! A thread of the policy process for each socket connects to the runtime, and again whenever the connection ends. It answers from
//! the configuration, and looks no further than whether what it promises is installed, so a container costs the runtime one message. Views
//! are not mounted by NRI but by the `createContainer` hook that goes into the container: why, and why Docker is left alone, is in
//! `docs/decisions/0023-engines.md`. Where runtimes take no hooks of plugins, the runtime waits with the container's start until the agent
//! has mounted the view.
//!
//! # Failure
//! A runtime whose plugin is gone goes on without; one whose plugin is silent for two seconds (its `plugin_request_timeout`)
//! throws it out and goes on. The agent then mounts the view as soon as it sees the container.

mod frame;
mod messages;
mod session;

use crate::config::{AgentConfig, ContainerSettings};
use crate::engines::oci;
use crate::engines::oci::hook;
use elbowroom_linux::{bounded, process};
use rustix::fs::{Access, access};
use session::{NriEvent, NriSession};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long until a socket is tried again: a runtime that restarts is back with its plugins at once.
const RECONNECT_DELAY: Duration = Duration::from_millis(500);
/// The same where there was no runtime for [`ABSENT_AFTER`].
const ABSENT_RECONNECT_DELAY: Duration = Duration::from_secs(5);
/// No restart takes so long.
const ABSENT_AFTER: Duration = Duration::from_secs(60);

/// Why a conversation with a runtime ended.
#[derive(Debug, Error)]
pub enum NriError {
    /// Of the socket.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The runtime closed it: it stopped, or was not answered in time.
    #[error("the runtime ended the connection: it stopped, or did not get an answer in time")]
    Ended,
    /// A frame of this many bytes.
    #[error("a message of {0} bytes: this is not NRI")]
    TooLong(usize),
    /// It does not take this plugin.
    #[error("the runtime refuses the plugin: {0}")]
    Refused(String),
    /// It is Docker.
    #[error(
        "Docker's NRI takes no hooks: use its runtime wrapper or CDI instead (docs/guide/engines.md); not tried again"
    )]
    Docker,
}

/// The program that hooks run.
pub(crate) struct HookProgram {
    path: PathBuf,
    args: Vec<String>,
}

impl HookProgram {
    /// Ours, for the agent of `run_dir`.
    fn own(run_dir: &Path) -> Option<Self> {
        let path = oci::hook_program().ok()?;
        Some(Self { path, args: hook::hook_args(run_dir.to_str()?).into() })
    }

    /// Path and arguments, where the program is there at this moment: a container whose hook is missing does not start.
    fn command(&self) -> Option<(String, Vec<String>)> {
        access(&self.path, Access::EXEC_OK).ok()?;
        Some((self.path.to_str()?.to_owned(), self.args.clone()))
    }
}

/// What plans are made by, beside what a container asks for.
pub(crate) struct PluginContext {
    containers: ContainerSettings,
    /// Whether programs are asked for memory.
    memory_pressure: bool,
    /// `None`: without hooks.
    hook: Option<HookProgram>,
}

/// What a runtime that sends `bytes` is answered, by the built-in configuration.
///
/// # Errors
/// [`NriError`]: the conversation is over.
pub fn answer(bytes: &[u8]) -> Result<Vec<u8>, NriError> {
    let hook = HookProgram { path: "/".into(), args: Vec::new() };
    let node =
        PluginContext { containers: ContainerSettings::default(), memory_pressure: true, hook: Some(hook) };
    let mut out = Vec::new();
    NriSession::new(&node, &mut Vec::new()).read(bytes, &mut out)?;
    Ok(out)
}

/// Configuration of runtimes that take plugins, and directories of more of it.
const RUNTIME_CONFIGS: [&str; 4] = [
    "/etc/containerd/config.toml",
    "/etc/crio/crio.conf",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
];
const RUNTIME_CONFIG_DIRS: [&str; 2] = ["/etc/containerd/conf.d", "/etc/crio/crio.conf.d"];

/// The file by which a runtime of this host makes no container to which a plugin adds a hook.
fn hook_refusal() -> Option<PathBuf> {
    let more = RUNTIME_CONFIG_DIRS.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    let files = RUNTIME_CONFIGS.iter().map(PathBuf::from).chain(more.map(|entry| entry.path()));
    let mut refusing = files.filter(|path| {
        bounded::file_text(path, bounded::SETTINGS_FILE).is_ok_and(|text| refuses_hooks(&text))
    });
    refusing.next()
}

/// Whether a runtime with this configuration refuses hooks: `reject_oci_hook_adjustment` of containerd's validator of adjustments, and
/// CRI-O's `nri_validator_reject_oci_hook_adjustment`.
fn refuses_hooks(config: &str) -> bool {
    let settings = config.lines().filter_map(|line| line.split('#').next()?.split_once('='));
    settings
        .into_iter()
        .any(|(key, value)| key.trim().ends_with("reject_oci_hook_adjustment") && value.trim() == "true")
}

/// Keeps a plugin at each of the sockets that are configured. `await_view` returns when the view of the container of that identifier is
/// mounted, or cannot be, or after so long; `wake` is the descriptor that it uses.
pub(crate) fn spawn(
    config: &AgentConfig,
    run_dir: &Path,
    await_view: impl Fn(&str, Duration) + Clone + Send + 'static,
    wake: RawFd,
) {
    for socket in &config.nri.sockets {
        let plugin = NriPlugin {
            socket: socket.clone(),
            containers: config.containers.clone(),
            memory_pressure: config.notifies_memory_pressure(),
            hooks: config.nri.hooks,
            run_dir: run_dir.to_owned(),
        };
        let await_view = await_view.clone();
        let thread = std::thread::Builder::new().name("nri".into());
        let run = move || {
            // A runtime learns at once that the process was killed, whatever keeps it from ending.
            // SAFETY: `wake` is there as long as `await_view`; beside it the thread opens by path all that it uses, and logs nothing but
            // by the standard descriptors.
            unsafe { process::unshare_open_files_except(&mut [wake]) };
            plugin.run(&await_view);
        };
        let spawned = thread.spawn(run);
        if let Err(error) = spawned {
            tracing::error!(because = %error, "no NRI plugin");
        }
    }
}

/// A plugin at one socket.
struct NriPlugin {
    socket: PathBuf,
    containers: ContainerSettings,
    memory_pressure: bool,
    /// Whether containers may be given hooks.
    hooks: bool,
    run_dir: PathBuf,
}

impl NriPlugin {
    /// Connects again and again. A socket that is not there is not worth a word: the runtime is not installed, or restarts.
    fn run(&self, await_view: &impl Fn(&str, Duration)) {
        let socket = self.socket.display();
        let mut said = String::new();
        let mut spoke_at = Instant::now();
        loop {
            // Without a socket, this check is the whole cost.
            if self.socket.exists()
                && let Ok(stream) = UnixStream::connect(&self.socket)
            {
                let context = self.context();
                let mut connected = false;
                let Err(error) = serve_connection(stream, &context, |news| {
                    connected |= matches!(news, NriEvent::Connected { .. });
                    if let NriEvent::Starting { id, patience } = &news {
                        await_view(id, *patience);
                    }
                    log_event(&self.socket, news);
                });
                let because = error.to_string();
                if connected || because != said {
                    tracing::warn!(%socket, because, "NRI: containers get their views late for now");
                }
                if matches!(error, NriError::Docker) {
                    return;
                }
                said = because;
                spoke_at = Instant::now();
            }
            let is_absent = spoke_at.elapsed() >= ABSENT_AFTER;
            std::thread::sleep(if is_absent { ABSENT_RECONNECT_DELAY } else { RECONNECT_DELAY });
        }
    }

    /// What plans are made by now: a runtime that connects may have another configuration than before.
    fn context(&self) -> PluginContext {
        let refusal = hook_refusal().filter(|_| self.hooks);
        if let Some(file) = &refusal {
            let because = "this runtime refuses hooks of plugins";
            tracing::info!(file = %file.display(), because, "NRI: containers wait for their views when they start");
        }
        let hook = (self.hooks && refusal.is_none()).then(|| HookProgram::own(&self.run_dir)).flatten();
        PluginContext { containers: self.containers.clone(), memory_pressure: self.memory_pressure, hook }
    }
}

fn serve_connection(
    mut stream: UnixStream,
    node: &PluginContext,
    mut tell: impl FnMut(NriEvent),
) -> Result<std::convert::Infallible, NriError> {
    let mut out = Vec::new();
    let mut session = NriSession::new(node, &mut out);
    let mut bytes = vec![0; 64 << 10];
    loop {
        stream.write_all(&out)?;
        out.clear();
        let read = match stream.read(&mut bytes)? {
            0 => return Err(NriError::Ended),
            read => read,
        };
        for news in session.read(&bytes[..read], &mut out)? {
            tell(news);
        }
    }
}

fn log_event(socket: &Path, news: NriEvent) {
    let socket = socket.display();
    match news {
        NriEvent::Connected { runtime, version } => {
            tracing::info!(%socket, runtime, version, "NRI: containers get their views before they start");
        }
        NriEvent::Planned { id, hook, env } => {
            tracing::debug!(%socket, container = id, hook, env, "NRI: container planned");
        }
        NriEvent::Starting { id, .. } => tracing::debug!(%socket, container = id, "NRI: container starts"),
        NriEvent::Reduced { id, because } => {
            tracing::warn!(%socket, container = id, because, "NRI: the container does not get all that its labels ask for");
        }
        NriEvent::Undecodable { method } => {
            tracing::warn!(%socket, method, "NRI: a request was not understood and changes nothing");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::refuses_hooks;

    #[test]
    fn a_runtime_says_in_its_configuration_that_it_takes_no_hooks() {
        let containerd = "[plugins.'io.containerd.nri.v1.nri'.default_validator]\n  enable = true\n  reject_oci_hook_adjustment = true # no\n";
        let crio = "[crio.nri.default_validator]\nnri_validator_reject_oci_hook_adjustment = true\n";
        assert!(refuses_hooks(containerd) && refuses_hooks(crio));
        for text in [
            "",
            "reject_oci_hook_adjustment = false",
            "#reject_oci_hook_adjustment = true",
            "reject_oci_hook_adjustment",
        ] {
            assert!(!refuses_hooks(text), "{text}");
        }
    }
}
