//! Mounting views into containers, and out of them again: what the policy loop wants of the mounter, and what came of it.

use super::facts::apply_start_time;
use super::log_change;
use super::managed_container::{AttachState, DETACH_FAILED, DETACHED};
use super::mounter::{MountJob, MountOutcome, MountTask, MountTicket, MountWaiter};
use super::policy_loop::PolicyLoop;
use super::quotas::QuotaTopic;
use elbowroom_client::api::{ControlResponse, PreparedView};
use elbowroom_linux::mount::MountSurface;
use elbowroom_linux::{Sensor, mount, process, timer};
use elbowroom_types::container::ContainerEngine;
use elbowroom_types::id::CgroupId;
use elbowroom_types::unit::Micros;
use elbowroom_view::pages::view_mounts;
use std::sync::mpsc;

/// Why the first process of a container is not looked for now.
const LATER: &str = "its processes are looked at later: those of the container around it take too long";
/// How long a container that its runtime is about to start waits for its cgroup to be noticed, which was made some time before.
const NOTICE_TIMEOUT: Micros = Micros::millis(200);
/// A runtime has left the host's root file system this long after its container's first process started.
const PIVOT_ROOT_GRACE: Micros = Micros::secs(2);
/// A runtime takes about as long from a container's first process to its program.
const START_TIME: Micros = Micros::millis(50);
/// A container has all of its file systems this long after its first process started.
const SETUP_GRACE: Micros = Micros::secs(10);

impl PolicyLoop {
    /// Hands the mounter what is due.
    pub(super) fn attach_due(&mut self, now: Micros) {
        let due: Vec<CgroupId> =
            self.containers.iter().filter(|(_, r)| r.attach.is_due(now)).map(|(id, _)| *id).collect();
        for id in due {
            self.attach(id, now, None);
        }
    }

    /// Has the view mounted of a container that its runtime is about to start, as soon as its cgroup is noticed.
    pub(super) fn attach_before_start(&mut self, id: String, answer: mpsc::SyncSender<ControlResponse>) {
        let deadline = timer::now().saturating_add(NOTICE_TIMEOUT);
        self.starting.push((id, deadline, answer));
        self.handle_cgroup_changes();
    }

    /// The same for all that wait for that.
    pub(super) fn attach_starting(&mut self) {
        let now = timer::now();
        for (name, deadline, answer) in std::mem::take(&mut self.starting) {
            let is_it = |id: &CgroupId| {
                let container = self.views.group(*id).and_then(|group| group.container.as_ref());
                container.is_some_and(|container| container.id == name)
            };
            let found = self.containers.keys().copied().find(is_it);
            let attach = found.and_then(|id| self.containers.get(&id)).map(|managed| &managed.attach);
            match (found, attach) {
                // It is not to have one.
                (_, Some(AttachState::Disabled(_))) => {}
                (Some(id), _) => self.attach(id, now, Some(MountWaiter { answer, is_operator: false })),
                (None, _) if now < deadline && !self.without_view.iter().any(is_it) => {
                    self.starting.push((name, deadline, answer));
                }
                (None, _) => {}
            }
        }
    }

    /// Has a view mounted; `asked`: the caller that waits for the answer, if any.
    pub(super) fn attach(&mut self, id: CgroupId, now: Micros, asked: Option<MountWaiter>) {
        let by_operator = asked.as_ref().is_some_and(|waiter| waiter.is_operator);
        let found = if asked.is_some() { Some(self.init_pid(id)) } else { self.init_pid_in_turn(id) };
        let Some(pid) = found else {
            if let Some(managed) = self.containers.get_mut(&id) {
                managed.attach = managed.attach.put_off(now, LATER);
            }
            return;
        };
        let started = pid.and_then(|pid| process::start_time(pid as i32));
        let Some(managed) = self.containers.get_mut(&id) else { return };
        let Some(pid) = pid else {
            managed.attach = managed.attach.retry(now, "it has no process".into());
            if let Some(waiter) = asked {
                let _ = waiter.answer.send(ControlResponse::Error("not attached: it has no process".into()));
            }
            return;
        };
        self.restart_times(id, now);
        let container = self.views.group(id).and_then(|group| group.container.as_ref());
        let engine = container.map(|container| container.engine);
        // An operator's request overrides this refusal.
        let host_pid_refusal = container
            .filter(|_| !by_operator)
            .and_then(|container| self.config.containers.host_pid_refusal(container));
        let Some(managed) = self.containers.get_mut(&id) else { return };
        if let Some(started) = started {
            managed.found_process = Some((pid, started));
            apply_start_time(&mut managed.facts, started);
        }
        managed.attach = managed.attach.in_flight();
        // A process on the host's root is in `elbowroom run`, or belongs to a service, or to a runtime that is just entering the
        // container, which does not take long.
        let settled = started.is_some_and(|at| timer::now_boot().saturating_sub(at) >= PIVOT_ROOT_GRACE);
        let on_host_root = match engine {
            Some(ContainerEngine::Elbowroom) => true,
            Some(ContainerEngine::Plain) => by_operator || settled,
            _ => by_operator,
        };
        let path = managed.path.clone();
        let task = MountTask::Attach { pid, view: self.prepared_view(id), on_host_root, host_pid_refusal };
        let _ = self.mounter.send(MountJob::Run(self.ticket(id, path, asked), task));
    }

    /// A container's first process is another one, which may have a mount namespace of its own: a service's `ExecStart=` after an
    /// `ExecStartPre=` that took long. Where it has not, the view is there, and mounting it changes nothing.
    pub(super) fn recheck_attach(&mut self, id: CgroupId) {
        if let Some(managed) = self.containers.get_mut(&id)
            && matches!(managed.attach, AttachState::Done { .. })
        {
            managed.attach = AttachState::now();
        }
    }

    /// The container's init, as the host numbers it.
    pub(super) fn init_pid(&mut self, id: CgroupId) -> Option<u32> {
        self.sensor.processes(id).first().and_then(|pid| u32::try_from(*pid).ok())
    }

    /// The same where its tenant has a turn ([`elbowroom_linux::Sensor::in_turn`]); `None`: later.
    pub(super) fn init_pid_in_turn(&mut self, id: CgroupId) -> Option<Option<u32>> {
        let first =
            |sensor: &mut Sensor| sensor.processes(id).first().and_then(|pid| u32::try_from(*pid).ok());
        self.sensor.in_turn(id, first)
    }

    /// Has a container's view taken out, and does not mount it again until a client asks for it.
    pub(super) fn detach(&mut self, id: CgroupId, asked: Option<mpsc::SyncSender<ControlResponse>>) {
        if let Some(managed) = self.containers.get_mut(&id) {
            // At once: what waits to be mounted, or is being mounted, would come after this.
            managed.attach = AttachState::Disabled(DETACHED);
        }
        let view = Some(self.view_name(id));
        self.send_detach(id, view, asked);
    }

    /// Has a view, or every one, taken out from where processes of a container are, but for those of containers inside it: they have
    /// views of their own.
    fn send_detach(
        &mut self,
        group: CgroupId,
        view: Option<String>,
        asked: Option<mpsc::SyncSender<ControlResponse>>,
    ) {
        let Some(path) = self.containers.get(&group).map(|managed| managed.path.clone()) else { return };
        let containers = &self.containers;
        let pids = self.sensor.processes_beside(group, |inside| containers.contains_key(&inside));
        let pids = pids.into_iter().filter_map(|pid| u32::try_from(pid).ok()).collect();
        let asked = asked.map(|answer| MountWaiter { answer, is_operator: true });
        let ticket = self.ticket(group, path, asked);
        let _ = self.mounter.send(MountJob::Run(ticket, MountTask::Detach { pids, view }));
    }

    fn ticket(&self, group: CgroupId, path: String, reply_to: Option<MountWaiter>) -> MountTicket {
        MountTicket { group, tenant: self.sensor.tenant_of(group), path, reply_to }
    }

    /// What is mounted in a container.
    pub(super) fn prepared_view(&self, id: CgroupId) -> PreparedView {
        PreparedView {
            view_dir: self.view_dir(id),
            surfaces: self.surfaces(),
            page: Some(self.page_path(id)),
            pressure_dir: self.pressure_dir(),
        }
    }

    pub(super) fn surfaces(&self) -> Vec<MountSurface> {
        let [cpu, memory] = self.limits_in_v2;
        view_mounts::view_mounts(cpu, memory).into_iter().map(surface).collect()
    }

    /// Takes note of how a mount job ended, and answers the caller that asked for it.
    pub(super) fn on_mount_done(&mut self, ticket: MountTicket, outcome: MountOutcome) {
        let MountTicket { group: id, path, reply_to: asked, .. } = ticket;
        let error = outcome.error();
        self.record_outcome(id, outcome);
        let Some(MountWaiter { answer, is_operator }) = asked else { return };
        let answer = answer.send(match (self.describe(id), error) {
            (None, _) => ControlResponse::Error("the container is gone".into()),
            (Some(_), Some(error)) => ControlResponse::Error(format!("{path}: {error}")),
            (Some(view), None) => ControlResponse::Container(Box::new(view)),
        });
        // Its runtime waited, so none of its instructions was run.
        if let Some(managed) = self.containers.get_mut(&id).filter(|_| !is_operator && answer.is_ok())
            && matches!(managed.attach, AttachState::Done { .. })
        {
            managed.view_delay = None;
        }
    }

    fn record_outcome(&mut self, id: CgroupId, outcome: MountOutcome) {
        if matches!(outcome, MountOutcome::Stuck | MountOutcome::Slow) {
            let tenant = self.sensor.tenant_of(id);
            let path = self.containers.get(&tenant).or_else(|| self.containers.get(&id));
            let path = path.map(|managed| managed.path.clone()).unwrap_or_default();
            self.quotas.note(tenant, QuotaTopic::Mounts, &path, timer::now());
        }
        // systemd-nspawn alone mounts procfs, sysfs and cgroups in a container after it has changed its root (nspawn.c, inner_child).
        let container = self.views.group(id).and_then(|group| group.container.as_ref());
        let mounts_late = container.is_some_and(|container| container.engine == ContainerEngine::Nspawn);
        let Some(managed) = self.containers.get_mut(&id) else { return };
        let (name, is_nested) = (&managed.path, managed.is_nested);
        match &outcome {
            MountOutcome::Attached { missing, anew, .. } => {
                // Whatever was to mount it when the container was made has not: there is none, or it failed.
                let late = anew.then(|| timer::now_boot().saturating_sub(managed.facts.started));
                managed.view_delay = late.or(managed.view_delay);
                let late = late.map(tracing::field::display);
                if !matches!(managed.attach, AttachState::Done { .. }) {
                    log_change!(is_nested, container = name, missing = missing.len(), late, "view attached");
                }
            }
            MountOutcome::Detached => log_change!(is_nested, container = name, "view detached"),
            MountOutcome::DetachFailed(why) => {
                tracing::warn!(container = name, because = why, "view not detached")
            }
            // It is tried again, and again.
            MountOutcome::Failed(why) if managed.told_failure != *why => {
                tracing::warn!(container = name, because = why, "view not attached");
                managed.told_failure.clone_from(why);
            }
            MountOutcome::Refused(why) => log_change!(is_nested, container = name, because = why, "no view"),
            MountOutcome::Failed(_)
            | MountOutcome::NotReady(_)
            | MountOutcome::Stuck
            | MountOutcome::Slow => {}
        }
        let is_starting = matches!(outcome, MountOutcome::Attached { is_starting: true, .. });
        // A mount that kept a detach from being done has ended after all.
        let overdue = matches!(outcome, MountOutcome::Attached { .. })
            && managed.attach == AttachState::Disabled(DETACH_FAILED);
        managed.is_unread &= matches!(outcome, MountOutcome::NotReady(_) | MountOutcome::Refused(_));
        // What was mounted and still is, is no news.
        let is_same =
            matches!((&outcome, &managed.attach), (MountOutcome::Attached { .. }, AttachState::Done { .. }));
        managed.attach = managed.attach.after_job(outcome, timer::now());
        if !is_same {
            self.news.note(timer::unix_ms());
        }
        // Again when it is twice as old.
        let age = managed.found_process.map(|(_, started)| timer::now_boot().saturating_sub(started));
        if is_starting {
            managed.attach.look_again(timer::now(), age.unwrap_or_default().max(START_TIME), true);
        } else if let Some(age) = age.filter(|age| mounts_late && *age < SETUP_GRACE) {
            managed.attach.look_again(timer::now(), age, false);
        }
        if managed.attach == AttachState::Disabled(DETACHED) {
            managed.retire_page();
        }
        if overdue {
            self.detach(id, None);
        }
    }

    /// Begins to take every view out of every container, so that a clean stop leaves nothing behind. The channel gets a message when that
    /// is done.
    pub(super) fn detach_all(&mut self) -> mpsc::Receiver<()> {
        let ids: Vec<_> = self
            .containers
            .iter()
            // Also containers that wait: another process, such as a hook, may be mounting a prepared view, or may have. And
            // detached ones: something may have stayed.
            .filter(|(_, r)| !matches!(r.attach, AttachState::Disabled(why) if why != DETACHED && why != DETACH_FAILED))
            .map(|(id, _)| *id)
            .collect();
        tracing::info!(containers = ids.len(), "detaching");
        for group in ids {
            self.send_detach(group, None, None);
        }
        let (done, wait) = mpsc::sync_channel(1);
        let _ = self.mounter.send(MountJob::Flush(done));
        wait
    }
}

/// A node of the view tree and its place, as `elbowroom_linux::mount` knows it.
fn surface(surface: view_mounts::ViewMount) -> MountSurface {
    let kind = match surface.target {
        view_mounts::ViewMountTarget::Fixed(path) => mount::SurfaceTarget::Fixed(path.into()),
        view_mounts::ViewMountTarget::Cgroup { controller, file } => {
            mount::SurfaceTarget::Cgroup { controller: controller.to_owned(), file: file.to_owned() }
        }
    };
    MountSurface { source: surface.node.path().into(), kind }
}
