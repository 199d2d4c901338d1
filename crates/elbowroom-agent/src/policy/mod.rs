//! The policy process: senses the host, decides every container's view, publishes it, mounts it.
//!
//! One thread, [`Owner`], owns all state and handles one closed [`Message`] at a time. Whatever may block has a thread of
//! its own and talks to the owner by message: the control socket ([`control`]), mounting ([`mounter`]), limits ([`limiter`])
//! and the notifier inside the [`Publisher`].

mod alerts;
mod answers;
mod attaching;
mod bells;
mod capacities;
mod control;
mod disk;
mod doctor;
mod facts;
mod labelled;
mod limiter;
mod load;
mod machine;
mod masks;
mod memory;
mod mounter;
mod names;
mod orders;
mod owner;
mod publishing;
mod recent;
mod recording;
mod resident;

pub use capacities::load as disks_kept;

use crate::config::{Config, Tier};
use crate::engines::nri;
use crate::probes::{self, Said, Voices};
use crate::view_server::publisher::Publisher;
use alerts::AlertsRoom;
use anyhow::{Context, Result};
use control::Door;
use disk::DiskRoom;
use elbowroom_client::api::{Request, Response};
use elbowroom_client::control::{labels_dir, socket_path};
use elbowroom_client::kept::Profiles;
use elbowroom_linux::signal::Signals;
use elbowroom_linux::timer::{Ticker, prefer_realtime};
use elbowroom_linux::{Sensor, SensorConfig};
use memory::MemoryRoom;
use owner::Owner;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::Signal;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, mpsc};

/// What can reach the owner besides the clock and the kernel's notifications.
enum Message {
    /// Somebody asks on the control socket; `peer` is the asking process.
    Ask { request: Request, peer: i32, answer: mpsc::SyncSender<Response> },
    /// A mount job is done.
    Mounted(mounter::Ticket, mounter::Outcome),
    /// What came of an order to the limiter.
    Limiter(limiter::Told),
    /// An application said something about itself.
    Probe(Said),
    /// The doctor looked at the host.
    Looked(doctor::Looked),
}

/// A way to reach the owner from another thread.
#[derive(Clone)]
struct Mailbox {
    queue: mpsc::Sender<Message>,
    wake: Arc<OwnedFd>,
}

impl Mailbox {
    fn send(&self, message: Message) {
        if self.queue.send(message).is_ok() {
            // A full counter means that the owner has not woken yet: it will find this message too.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

/// Messages taken before the clock and the kernel are looked at again: whoever sends many keeps no tick from coming.
const MESSAGES_PER_LOOK: usize = 256;

/// Name of the socket below the run directory where the API server asks.
pub(crate) const FEED: &str = "feed.sock";

/// Runs the policy process until it is told to stop.
pub fn main(run_dir: &Path, state_dir: &Path, config_file: Option<&Path>, config: Config) -> Result<()> {
    let signals = Signals::block(&[Signal::TERM, Signal::INT, Signal::HUP]).context("blocking signals")?;
    let publisher =
        Publisher::from_inherited().context("taking over the views' memory from the supervisor")?;
    let sensor = open_sensor(&config, run_dir)?;
    let (queue, inbox) = mpsc::channel();
    let wake =
        Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("creating an eventfd")?);
    let mailbox = Mailbox { queue, wake: wake.clone() };
    let mounter = (mounter::spawn(mailbox.clone()), mounter::spawn_ahead());
    // Before anything is sensed: what an agent that died left in knobs is not the user's.
    let disk = DiskRoom::open(&config, run_dir, state_dir, mailbox.clone())?;
    let memory = MemoryRoom::open(&config, disk.limiter()).context("opening the cgroup hierarchies")?;
    let alerts = AlertsRoom::open(&config, run_dir)?;
    if config.doctor.enabled {
        doctor::spawn(config.doctor.period, config_file, run_dir, state_dir, mailbox.clone());
    }
    if config.recorder.enabled {
        recording::spawn(&config.recorder, state_dir, mailbox.clone());
    }
    let voices = {
        let mailbox = mailbox.clone();
        let tell = Arc::new(move |said| mailbox.send(Message::Probe(said)));
        Voices::open(config.probes.clone(), &probes::socket_path(run_dir), tell)
    };
    let mut owner = Owner::new(
        config.clone(),
        run_dir.to_owned(),
        sensor,
        publisher,
        mounter,
        (disk, memory, alerts),
        voices,
    );
    owner.start();
    let profiles = Profiles::at(state_dir);
    let _socket = control::listen(&socket_path(run_dir), Door::Control, mailbox.clone(), profiles.clone())?;
    let _feed = config.api.enabled.then(|| feed(run_dir, mailbox, profiles));
    nri::spawn(&config, run_dir);
    let ticker = Ticker::new(config.sense.period).context("starting the sampling timer")?;
    tracing::info!(period = %config.sense.period, priority = ?prefer_realtime(), "sampling");

    loop {
        let (ticked, woken, stopped) = {
            let mut fds = [
                PollFd::new(&ticker, PollFlags::IN),
                PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN),
                PollFd::new(&signals, PollFlags::IN),
                PollFd::from_borrowed_fd(owner.sensor_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).context("waiting for the clock, the kernel or a request"),
            }
            let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            (ready(&fds[0]), ready(&fds[1]), ready(&fds[2]))
        };
        owner.notice_changes();
        if ticked {
            owner.tick(ticker.wait()?);
        }
        if stopped && signals.next().context("reading signals")?.is_some() {
            return owner.stop();
        }
        if woken {
            let _ = rustix::io::read(&wake, &mut [0u8; 8]);
            let mut taken = 0;
            for message in inbox.try_iter().take(MESSAGES_PER_LOOK) {
                taken += 1;
                match message {
                    Message::Ask { request, peer, answer } => owner.ask(request, peer, answer),
                    Message::Mounted(ticket, outcome) => owner.mounted(ticket, outcome),
                    Message::Limiter(told) => owner.told(told),
                    Message::Probe(said) => owner.said(said),
                    Message::Looked(looked) => owner.alerts.looked(looked),
                }
            }
            if taken == MESSAGES_PER_LOOK {
                let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
            }
        }
    }
}

/// Where the API server asks. Nothing here ends when there is no such place.
fn feed(run_dir: &Path, mailbox: Mailbox, profiles: Profiles) -> Option<control::Socket> {
    let door = Door::Feed { run_dir: run_dir.to_owned() };
    match control::listen(&run_dir.join(FEED), door, mailbox, profiles) {
        Ok(socket) => Some(socket),
        Err(error) => {
            tracing::error!(
                because = elbowroom_client::output::one_line(&error),
                "the API has nobody to ask"
            );
            None
        }
    }
}

/// Whether this host can be sensed at all: a policy process that cannot start would be started again for ever.
pub fn can_sense(mut config: Config, run_dir: &Path) -> Result<()> {
    // BPF is loaded for that only where nothing else is to do.
    if config.sense.tier == Tier::Auto {
        config.sense.tier = Tier::Files;
    }
    // What there is to be said the policy process says.
    let nobody = tracing::subscriber::NoSubscriber::default();
    tracing::subscriber::with_default(nobody, || open_sensor(&config, run_dir)).map(drop)
}

/// Opens the sensor that the configuration asks for, for the agent of `run_dir`.
pub fn open_sensor(config: &Config, run_dir: &Path) -> Result<Sensor> {
    let sensor_config = SensorConfig {
        plain: config.containers.cgroups.clone(),
        docker_root: config.containers.docker_root.clone(),
        containerd_state: config.containers.containerd_state.clone(),
        run_labels: Some(std::path::absolute(labels_dir(run_dir))?),
        labels: config.containers.labels,
        rescan: config.sense.rescan,
        bpf: config.sense.tier != Tier::Files,
        period: config.sense.period,
        ..SensorConfig::default()
    };
    let mut sensor = Sensor::open(&sensor_config).context("opening the cgroup hierarchies")?;
    sensor.watch_disks(&config.disk.devices);
    let tier = sensor.tier().name();
    anyhow::ensure!(
        config.sense.tier != Tier::Bpf || tier == "bpf",
        "sense.tier = \"bpf\": this build or this kernel has no BPF tier: build with --features bpf, or use \"auto\""
    );
    Ok(sensor)
}
