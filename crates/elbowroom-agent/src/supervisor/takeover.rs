//! Taking the supervisor's role, and the mount and the memory: those of an agent before, or new ones.

use super::watched_process::{REAP_TIMEOUT, warn_undead};
use crate::view_server::handover::{AgentOptions, Connection, Handover};
use crate::view_server::roles::{AgentRole, RoleLock, wait_readable};
use crate::view_server::service_manager::StoredFds;
use crate::view_server::slots::{ShutdownMode, Slots};
use crate::view_server::{FuseError, pages, run_dir, session};
use anyhow::Context;
use elbowroom_linux::{bounded, process};
use elbowroom_types::cpuset::CpuSet;
use rustix::fd::OwnedFd;
use rustix::process::{Signal, pidfd_send_signal};
use std::path::Path;
use std::time::{Duration, Instant};

/// Takes the supervisor's role in a run directory, and makes sure that no other process has a role there. With `adopting`, it
/// does not wait until they have ended: the caller takes over what they hold.
pub(super) fn acquire_supervisor_role(start: &AgentOptions, adopting: bool) -> Result<RoleLock, FuseError> {
    const SETTLE: Duration = Duration::from_secs(2);
    let began = Instant::now();
    let mut aborted = false;
    loop {
        let roles = RoleLock::open(&start.run_dir)?;
        if !roles.acquire(AgentRole::Supervisor) {
            // The container before this one was killed: its views are just being taken away.
            if start.contained && began.elapsed() < start.stop_deadline {
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            return Err(start.already_running(AgentRole::Supervisor, roles.holder(AgentRole::Supervisor)));
        }
        if !roles.is_same_file(&start.run_dir) {
            // An agent that stopped removed the file between our opening and locking it.
            continue;
        }
        if adopting {
            return Ok(roles);
        }
        let peer = [AgentRole::Policy, AgentRole::Server, AgentRole::Standby];
        let peer = peer.into_iter().find_map(|r| Some((r, roles.watch(r)?)));
        let Some((role, (pid, pidfd))) = peer else { return Ok(roles) };
        let waited = began.elapsed();
        if waited > REAP_TIMEOUT && process::is_dying(pid.as_raw_nonzero().get()) {
            warn_undead(role, pid);
            roles.abandon(role);
            continue;
        }
        // Processes of an agent whose supervisor was just killed: they start a new one if they are let.
        roles.release(AgentRole::Supervisor);
        if waited > 2 * SETTLE {
            return Err(start.already_running(role, Some(pid)));
        }
        if waited > SETTLE {
            // They do not: killed, and asleep in the kernel for an answer that no process is left to give.
            if !aborted {
                tracing::warn!(
                    pid = pid.as_raw_nonzero(),
                    because = "it has no supervisor and starts none",
                    "ending a process of the previous agent"
                );
                for connection in Connection::ALL {
                    let mounts = session::mounts_on(&start.mount_point(connection))?;
                    mounts
                        .iter()
                        .filter(|line| line.is_ours())
                        .try_for_each(|line| session::abort(line.minor))?;
                }
                aborted = true;
            }
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
        wait_readable(&pidfd, Some(Duration::from_millis(50)));
    }
}

/// Ends the API server of an earlier agent whose other processes were all killed: it has that agent's settings.
pub(super) fn stop_stale_api_server(start: &AgentOptions) {
    let Ok(roles) = RoleLock::open_api(&start.run_dir) else { return };
    if let Some((pid, pidfd)) = roles.watch(AgentRole::Api)
        && pidfd_send_signal(&pidfd, Signal::KILL).is_ok()
        && !wait_readable(&pidfd, Some(Duration::from_secs(1)))
    {
        warn_undead(AgentRole::Api, pid);
        roles.abandon(AgentRole::Api);
    }
}

/// Takes over the mount and the memory that a previous agent left with the service manager. Makes them anew if they are no longer valid,
/// or if this program lays out that memory in another way.
pub(super) fn adopt(
    start: AgentOptions,
    roles: RoleLock,
    program: OwnedFd,
    kept: StoredFds,
    capacity: u32,
) -> anyhow::Result<Handover> {
    let is_there = |path: &Path, ours: fn(&session::MountLine) -> bool| -> Result<bool, FuseError> {
        Ok(session::mounts_on(path)?.last().is_some_and(ours))
    };
    let mounted = is_there(&start.views(), session::MountLine::is_ours)?
        && is_there(&start.pages(), pages::is_page_mount)?;
    let place = start.mount_point(Connection::Triggers);
    let triggers = match kept.triggers {
        Some(triggers) if is_there(&place, session::MountLine::is_ours)? => triggers,
        // The agent before had none: containers have read-only files in their place until their views are looked at again.
        _ => {
            session::remove_stale(&place)?;
            run_dir::make(&start)?;
            session::mount(&place, Connection::Triggers)?.fuse
        }
    };
    let fuse = [kept.views, triggers];
    let handover = Handover { options: start, fuse, slots: kept.slots, role_lock: roles, program };
    let because = match open_slots(&handover) {
        Ok(slots) if mounted && handover.is_connected() => {
            slots.set_shutdown_mode(ShutdownMode::None);
            tracing::info!(containers = slots.iter_from(0).count(), "views of the agent before adopted");
            return Ok(handover);
        }
        Ok(_) => "they were unmounted".to_owned(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(because, "the views of the agent before cannot be adopted: making new ones");
    let Handover { options: start, role_lock: roles, program, .. } = handover;
    connect(start, roles, program, capacity)
}

/// Makes the mount and the memory.
pub(super) fn connect(
    start: AgentOptions,
    roles: RoleLock,
    program: OwnedFd,
    capacity: u32,
) -> anyhow::Result<Handover> {
    for connection in Connection::ALL {
        session::remove_stale(&start.mount_point(connection))?;
    }
    let memory = Slots::create(capacity, possible_cpus()?)?;
    pages::remove(&start.pages())?;
    run_dir::make(&start)?;
    pages::mount(&start.pages(), capacity)?;
    let mount = |connection| session::mount(&start.mount_point(connection), connection);
    let mounted = mount(Connection::Views).and_then(|views| {
        let triggers = mount(Connection::Triggers);
        // A connection ends with its descriptor, and its mount is to go too.
        let triggers = triggers.inspect_err(|_| session::unmount(&start.views()))?;
        Ok((views, triggers.fuse))
    });
    let (connected, triggers) = match mounted {
        Ok(mounted) => mounted,
        Err(error) => {
            let _ = pages::remove(&start.pages());
            return Err(error.into());
        }
    };
    memory.set_can_resend(connected.can_resend);
    if !connected.can_resend {
        tracing::warn!(
            because = "this kernel has no FUSE_NOTIFY_RESEND (Linux 6.9)",
            "a view server that is killed with a read under way costs all views: they are made anew"
        );
    }
    let slots = memory.memory().try_clone_to_owned().map_err(FuseError::io("duplicating", "slots"))?;
    let fuse = [connected.fuse, triggers];
    Ok(Handover { options: start, fuse, slots, role_lock: roles, program })
}

/// Highest possible CPU number and one.
fn possible_cpus() -> anyhow::Result<u32> {
    const PATH: &str = "/sys/devices/system/cpu/possible";
    let text = bounded::file_text(PATH, bounded::KERNEL_FILE).map_err(FuseError::io("reading", PATH))?;
    let set: CpuSet = text.parse().with_context(|| format!("while reading {PATH}"))?;
    Ok(set.iter().last().map_or(1, |cpu| cpu + 1))
}

pub(super) fn open_slots(handover: &Handover) -> anyhow::Result<Slots> {
    let memory = handover.slots.try_clone().map_err(FuseError::io("duplicating", "slots"))?;
    Ok(Slots::open(memory)?)
}
