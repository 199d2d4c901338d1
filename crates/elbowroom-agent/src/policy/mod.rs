//! The policy process: senses the host, decides every container's view, publishes it, mounts it.
//!
//! One thread, [`PolicyLoop`], owns all state and handles one closed [`PolicyMessage`] at a time. Whatever may block has a thread of
//! its own and talks to the policy loop by message: the control socket ([`control`]), mounting ([`mounter`]), limits ([`limiter`])
//! and the notifier inside the [`Publisher`].

mod alerts;
mod attaching;
mod control;
mod control_requests;
mod deaths;
mod disk;
mod disk_capacities;
mod doctor;
mod event_pipeline;
mod facts;
mod io_limit_overlay;
mod judging;
mod kept_details;
mod label_overrides;
mod limiter;
mod loadavg;
mod managed_container;
mod memory;
mod mounter;
mod names;
mod news;
mod node_meter;
mod pace;
mod pending_limits;
mod policy_loop;
mod pressure_notifier;
mod publishing;
mod quotas;
mod recent_changes;
mod recorder_thread;
mod relabelling;
mod user_limit_overlay;
mod verdicts;

/// Logs what became of a container. A container may start and end nested ones without a pause, so those are logged at debug level only.
macro_rules! log_change {
    ($is_nested:expr, $($event:tt)*) => {
        if $is_nested { tracing::debug!($($event)*) } else { tracing::info!($($event)*) }
    };
}
use log_change;

use elbowroom_client::control::FEED_SOCKET;

use crate::config::{AgentConfig, SensorSource};
use crate::engines::nri;
use crate::otlp;
use crate::probes::{self, ProbeEvent, ProbeRegistry};
use crate::view_server::publisher::Publisher;
pub use disk_capacities::load_capacities;

use alerts::AlertDispatcher;
use anyhow::{Context, Result, bail};
use control::Endpoint;
use disk::DiskEnforcer;
use elbowroom_client::api::{AgentMode, AgentSnapshot, ControlRequest, ControlResponse};
use elbowroom_client::control::{labels_dir, socket_path};
use elbowroom_client::profile_store::ProfileStore;
use elbowroom_linux::signal::SignalFd;
use elbowroom_linux::timer::{Ticker, prefer_realtime};
use elbowroom_linux::{Sensor, SensorConfig};
use elbowroom_types::unit::Micros;
use memory::MemoryEnforcer;
use policy_loop::PolicyLoop;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::Signal;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// What can reach the policy loop besides the clock and the kernel's notifications.
enum PolicyMessage {
    /// A client asks on the control socket; `peer` is the asking process.
    ControlRequest { request: ControlRequest, peer: i32, answer: mpsc::SyncSender<ControlResponse> },
    /// A client asks for a process of the container that is called so; the answer may be why there is none.
    FindProcess { container: String, answer: mpsc::SyncSender<Result<u32, String>> },
    /// A runtime is about to start the container of this identifier, and waits until its view is there.
    ContainerStarts { id: String, answer: mpsc::SyncSender<ControlResponse> },
    /// A mount job is done.
    MountDone(mounter::MountTicket, mounter::MountOutcome),
    /// What came of an order to the limiter.
    Limiter(limiter::LimiterReply),
    /// An application said something about itself.
    Probe(ProbeEvent),
    /// The doctor looked at the host.
    DoctorDone(doctor::DoctorRun),
}

/// A way to reach the policy loop from another thread.
#[derive(Clone)]
struct Mailbox {
    queue: mpsc::Sender<PolicyMessage>,
    wake: Arc<OwnedFd>,
}

impl Mailbox {
    /// What a thread needs that shares no open files with the others, to send.
    fn raw_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    fn send(&self, message: PolicyMessage) {
        if self.queue.send(message).is_ok() {
            // A full counter means that the policy loop has not woken yet: it will find this message too.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Waits until the view of a container that is about to start is mounted, or cannot be, or for so long.
    fn await_view(&self, id: &str, patience: Duration) {
        let (answer, response) = mpsc::sync_channel(1);
        self.send(PolicyMessage::ContainerStarts { id: id.to_owned(), answer });
        let _ = response.recv_timeout(patience);
    }

    /// Asks the policy loop for all that it knows, and waits.
    fn request_snapshot(&self) -> Result<AgentSnapshot> {
        self.ask_for_snapshot(ControlRequest::Snapshot)
    }

    /// The same, once there is news since the snapshot of this time ([`ControlRequest::SnapshotAfter`]).
    fn await_snapshot(&self, since: u64) -> Result<AgentSnapshot> {
        self.ask_for_snapshot(ControlRequest::SnapshotAfter(since))
    }

    fn ask_for_snapshot(&self, request: ControlRequest) -> Result<AgentSnapshot> {
        let (answer, response) = mpsc::sync_channel(1);
        self.send(PolicyMessage::ControlRequest { request, peer: 0, answer });
        match response.recv_timeout(SNAPSHOT_TIMEOUT) {
            Ok(ControlResponse::Snapshot(snapshot)) => Ok(*snapshot),
            _ => bail!("the agent is busy or stopping"),
        }
    }
}

/// How long the policy loop may take for a snapshot that a thread of this process asks for.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// Shortest time between two reads of the kernel's notifications. So a container that writes its settings without a pause, or has its
/// processes killed, keeps nothing else waiting.
const CHANGES_PAUSE: Duration = Duration::from_millis(2);

/// Messages taken before the clock and the kernel are looked at again: a client that sends many keeps no tick from coming.
const MESSAGES_PER_WAKEUP: usize = 256;

/// Runs the policy process until it is told to stop.
pub fn main(run_dir: &Path, state_dir: &Path, config_file: Option<&Path>, config: AgentConfig) -> Result<()> {
    let signals = SignalFd::block(&[Signal::TERM, Signal::INT, Signal::HUP]).context("blocking signals")?;
    let (queue, inbox) = mpsc::channel();
    let wake =
        Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("creating an eventfd")?);
    let mailbox = Mailbox { queue, wake: wake.clone() };
    let mut policy_loop = open_policy_loop(run_dir, state_dir, &config, &mailbox)?;
    if config.doctor.enabled {
        doctor::spawn(config.doctor.period, config_file, run_dir, state_dir, mailbox.clone());
    }
    if config.recorder.enabled {
        recorder_thread::spawn(&config.recorder, state_dir, mailbox.clone());
    }
    let snapshots = mailbox.clone();
    policy_loop.otlp = otlp::spawn(&config.otlp, move || snapshots.request_snapshot());
    policy_loop.start();
    let profiles = ProfileStore::at(state_dir);
    let _socket =
        control::listen(&socket_path(run_dir), Endpoint::Control, mailbox.clone(), profiles.clone())?;
    let _feed = config.api.enabled.then(|| listen_feed(run_dir, mailbox.clone(), profiles));
    let wake_fd = mailbox.raw_fd();
    nri::spawn(&config, run_dir, move |id, patience| mailbox.await_view(id, patience), wake_fd);
    let mut period = config.sense.period;
    let ticker = Ticker::new(period).context("starting the sampling timer")?;
    tracing::info!(%period, priority = ?prefer_realtime(), "sampling");

    let mut told_at = Instant::now();
    loop {
        let pause = CHANGES_PAUSE.saturating_sub(told_at.elapsed());
        let Woken { ticked, asked: woken, stopped, told } =
            wait(&ticker, &wake, &signals, &policy_loop, (period, pause))?;
        policy_loop.heartbeat();
        let retries = pause.is_zero() && policy_loop.is_awaited();
        if told || retries {
            told_at = Instant::now();
        }
        if told {
            policy_loop.note_kills();
        }
        let missed = if ticked { Some(ticker.wait()?) } else { None };
        let missed = missed.filter(|missed| !policy_loop.peek(*missed));
        if told || missed.is_some() || retries {
            policy_loop.handle_cgroup_changes();
        }
        if let Some(missed) = missed {
            policy_loop.tick(missed);
        }
        policy_loop.look_at_disks();
        // A hang-up is for the supervisor to answer. The kernel sends one to a process that is stopped while its supervisor dies, too
        // (kernel/exit.c, `kill_orphaned_pgrp`), and views must outlive that.
        let asked = match stopped {
            true => signals.next().context("reading signals")?,
            false => None,
        };
        if asked.is_some_and(|received| received.signal != Signal::HUP) {
            return policy_loop.stop();
        }
        if woken {
            let _ = rustix::io::read(&wake, &mut [0u8; 8]);
            let messages = inbox.try_iter().take(MESSAGES_PER_WAKEUP);
            if messages.map(|message| handle(&mut policy_loop, message)).count() == MESSAGES_PER_WAKEUP {
                let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
            }
        }
        policy_loop.tell_news();
        if policy_loop.tick_period() != period {
            period = policy_loop.tick_period();
            ticker.set_period(period).context("changing the sampling timer")?;
        }
    }
}

/// What a wait ended with.
struct Woken {
    /// A tick is due.
    ticked: bool,
    /// There are messages.
    asked: bool,
    /// There is a signal.
    stopped: bool,
    /// The kernel told of something.
    told: bool,
}

/// Waits until something is to be done: in a `period` at the latest. The kernel is not heard before `pause` is over.
fn wait(
    ticker: &Ticker,
    wake: &OwnedFd,
    signals: &SignalFd,
    policy_loop: &PolicyLoop,
    (period, pause): (Micros, Duration),
) -> Result<Woken> {
    let mut fds = vec![
        PollFd::new(ticker, PollFlags::IN),
        PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN),
        PollFd::new(signals, PollFlags::IN),
    ];
    let own = fds.len();
    fds.extend(policy_loop.kernel_fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    let rest = Duration::from_micros(policy_loop.rest(period).get());
    let (most, until) = if pause.is_zero() { (fds.len(), rest) } else { (own, rest.min(pause)) };
    let until = if policy_loop.is_awaited() { until.min(CHANGES_PAUSE) } else { until };
    let until = Timespec::try_from(until).expect("a few seconds");
    match poll(&mut fds[..most], Some(&until)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e).context("waiting for the clock, the kernel or a request"),
    }
    let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
    let told = fds[own..most].iter().any(ready);
    Ok(Woken { ticked: ready(&fds[0]), asked: ready(&fds[1]), stopped: ready(&fds[2]), told })
}

/// Everything that the loop owns, before anything is sensed.
fn open_policy_loop(
    run_dir: &Path,
    state_dir: &Path,
    config: &AgentConfig,
    mailbox: &Mailbox,
) -> Result<PolicyLoop> {
    let publisher =
        Publisher::from_inherited().context("taking over the views' memory from the supervisor")?;
    let sensor = open_sensor(config, run_dir)?;
    let mounter = (mounter::spawn(mailbox.clone()), mounter::spawn_prefetch());
    // Limits that a dead agent left in files are not the user's: the limiter takes them off first.
    let disk = DiskEnforcer::open(config, run_dir, state_dir, mailbox.clone())?;
    let memory =
        MemoryEnforcer::open(config, disk.memory_limiter()).context("opening the cgroup hierarchies")?;
    let alerts = AlertDispatcher::open(config, run_dir)?;
    let probes = match config.mode {
        AgentMode::Views => ProbeRegistry::disabled(),
        AgentMode::Full => {
            let (mailbox, wake) = (mailbox.clone(), mailbox.raw_fd());
            let tell = Arc::new(move |event| mailbox.send(PolicyMessage::Probe(event)));
            ProbeRegistry::open(config.probes.clone(), &probes::socket_path(run_dir), tell, Some(wake))
        }
    };
    let verdicts = verdicts::VerdictWatch::open().context("opening the cgroup hierarchies")?;
    let governors = (disk, memory, alerts, verdicts);
    Ok(PolicyLoop::new(config.clone(), run_dir.to_owned(), sensor, publisher, mounter, governors, probes))
}

/// Handles one message.
fn handle(policy_loop: &mut PolicyLoop, message: PolicyMessage) {
    match message {
        PolicyMessage::ControlRequest { request, peer, answer } => {
            policy_loop.handle_request(request, peer, answer)
        }
        PolicyMessage::FindProcess { container, answer } => {
            let _ = answer.send(policy_loop.find_process(&container));
        }
        PolicyMessage::ContainerStarts { id, answer } => policy_loop.attach_before_start(id, answer),
        PolicyMessage::MountDone(ticket, outcome) => policy_loop.on_mount_done(ticket, outcome),
        PolicyMessage::Limiter(reply) => policy_loop.on_limiter_reply(reply),
        PolicyMessage::Probe(event) => policy_loop.on_probe(event),
        PolicyMessage::DoctorDone(run) => policy_loop.alerts.on_doctor_run(run),
    }
}

/// Where the API server asks. Nothing here ends when there is no such place.
fn listen_feed(run_dir: &Path, mailbox: Mailbox, profiles: ProfileStore) -> Option<control::SocketFile> {
    let endpoint = Endpoint::ApiFeed { run_dir: run_dir.to_owned() };
    match control::listen(&run_dir.join(FEED_SOCKET), endpoint, mailbox, profiles) {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::error!(
                because = elbowroom_client::output::one_line(&error),
                "the API server cannot ask for the node's numbers"
            );
            None
        }
    }
}

/// Whether this host can be sensed at all: a policy process that cannot start would be started again for ever.
pub fn can_sense(mut config: AgentConfig, run_dir: &Path) -> Result<()> {
    // BPF is loaded for that only where nothing else is to do.
    if config.sense.source == SensorSource::Auto {
        config.sense.source = SensorSource::Files;
    }
    // Nothing is logged here: the policy process logs the same.
    let nobody = tracing::subscriber::NoSubscriber::default();
    tracing::subscriber::with_default(nobody, || open_sensor(&config, run_dir)).map(drop)
}

/// Opens the sensor that the configuration asks for, for the agent of `run_dir`.
pub fn open_sensor(config: &AgentConfig, run_dir: &Path) -> Result<Sensor> {
    let sensor_config = SensorConfig {
        container_patterns: config.containers.cgroups.clone(),
        docker_root: config.containers.docker_root.clone(),
        containerd_state: config.containers.containerd_state.clone(),
        run_labels: Some(std::path::absolute(labels_dir(run_dir))?),
        label_policy: config.containers.labels,
        only: config.containers.only.clone(),
        rescan: config.sense.rescan,
        bpf: config.sense.source != SensorSource::Files,
        period: config.sense.period,
        ..SensorConfig::default()
    };
    let mut sensor = Sensor::open(&sensor_config).context("opening the cgroup hierarchies")?;
    sensor.watch_disks(&config.disk.devices);
    let tier = sensor.source().name();
    anyhow::ensure!(
        config.sense.source != SensorSource::Bpf || tier == "bpf",
        "sense.source = \"bpf\": this build or this kernel has no BPF tier: build with --features bpf, or use \"auto\""
    );
    Ok(sensor)
}
