//! What the policy loop answers to requests on the control socket.

use super::managed_container::{AttachState, DETACH_FAILED};
use super::mounter::MountWaiter;
use super::policy_loop::PolicyLoop;
use elbowroom_client::api::{
    AgentPids, AgentSnapshot, AgentStatus, ContainerView, ControlRequest, ControlResponse, DisksReport,
    Explanation, MemoryReport, display_name,
};
use elbowroom_linux::{process, timer};
use elbowroom_types::container::ContainerEngine;
use elbowroom_types::id::CgroupId;
use elbowroom_types::lookup::{ContainerNames, LookupError, find_container, quoted};
use elbowroom_types::probe::ProbeRecord;
use elbowroom_types::sample::HostEvent;
use elbowroom_types::unit::Micros;
use rustix::process::Pid;
use std::sync::mpsc;

/// How long a `prepare` waits for the container's cgroup to be noticed.
const PREPARE_TIMEOUT: Micros = Micros::secs(1);
/// How long after a `prepare` the agent looks whether the view is mounted.
const MOUNT_CHECK_DELAY: Micros = Micros::millis(500);

impl PolicyLoop {
    /// Answers a request, now or when what it needs has happened.
    pub(super) fn handle_request(
        &mut self,
        request: ControlRequest,
        peer: i32,
        answer: mpsc::SyncSender<ControlResponse>,
    ) {
        let response = match request {
            ControlRequest::List => ControlResponse::List(self.describe_all()),
            ControlRequest::Ended => ControlResponse::List(self.ended_containers()),
            ControlRequest::Show(name) => {
                match self.find(&name).and_then(|id| self.describe_or_gone(id, &name)) {
                    Ok(view) => ControlResponse::Container(Box::new(view)),
                    Err(error) => match self.verdicts.ended.find(&name) {
                        Some(last) => ControlResponse::Container(Box::new(last.container.clone())),
                        None => ControlResponse::Error(error),
                    },
                }
            }
            ControlRequest::Explain(name) => match self.explain(&name) {
                Ok(explanation) => ControlResponse::Explain(Box::new(explanation)),
                Err(error) => ControlResponse::Error(error),
            },
            ControlRequest::Attach(name) => match self.find(&name) {
                Ok(id) => {
                    return self.attach(id, timer::now(), Some(MountWaiter { answer, is_operator: true }));
                }
                Err(error) => ControlResponse::Error(error),
            },
            ControlRequest::Detach(name) => match self.find(&name) {
                Ok(id) => return self.detach(id, Some(answer)),
                Err(error) => ControlResponse::Error(error),
            },
            ControlRequest::Prepare(mut prepare) => {
                if prepare.pid <= 1 {
                    prepare.pid = peer;
                }
                let deadline = timer::now().saturating_add(PREPARE_TIMEOUT);
                self.preparing.push((prepare, deadline, answer));
                return self.handle_cgroup_changes();
            }
            ControlRequest::Launch(container) => ControlResponse::Launch(self.config.launch_grant(container)),
            ControlRequest::Label(labelling) => {
                let name = labelling.container.clone();
                self.change_labels(&name, |policy_loop, id| policy_loop.label(id, labelling))
            }
            ControlRequest::Unlabel(name) => self.change_labels(&name, Self::unlabel),
            ControlRequest::Probe { container, record } => {
                match self.apply_probe_record(&container, record) {
                    Ok(view) => ControlResponse::Container(Box::new(view)),
                    Err(error) => ControlResponse::Error(error),
                }
            }
            ControlRequest::Disks => ControlResponse::Disks(Box::new(self.disks_report())),
            ControlRequest::Memory => ControlResponse::Memory(Box::new(self.memory_report())),
            ControlRequest::Alerts => ControlResponse::Alerts(Box::new(self.alerts.report())),
            ControlRequest::Findings => ControlResponse::Findings(Box::new(self.alerts.findings())),
            ControlRequest::Status => ControlResponse::Status(Box::new(self.status())),
            ControlRequest::Snapshot => ControlResponse::Snapshot(Box::new(self.snapshot())),
            ControlRequest::SnapshotAfter(since) => return self.news.wait(since, answer),
            // Answered before it comes here: nothing on this thread reads a disk, or a list that is as long as a container likes.
            ControlRequest::Profiles | ControlRequest::Profile(_) | ControlRequest::Network(_) => {
                ControlResponse::Error("profiles and networks are not the policy_loop's affair".into())
            }
        };
        let _ = answer.send(response);
    }

    /// Sends a snapshot to those who wait for one and are to have it.
    pub(super) fn tell_news(&mut self) {
        for answer in self.news.take_due(timer::unix_ms()) {
            let _ = answer.send(ControlResponse::Snapshot(Box::new(self.snapshot())));
        }
    }

    fn snapshot(&mut self) -> AgentSnapshot {
        AgentSnapshot {
            time_unix_ms: timer::unix_ms(),
            node: self.node.view(),
            status: self.status(),
            containers: self.describe_all(),
            left_out: 0,
            ended: self.ended_containers(),
            disks: self.disks_report(),
            memory: self.memory_report(),
            changes: self.recent_changes(),
            alerts: self.alerts.report(),
        }
    }

    /// A process of a container that was found and still lives.
    pub(super) fn living_process(&self, id: CgroupId) -> Option<u32> {
        let (pid, started) = self.containers.get(&id)?.found_process?;
        (process::start_time(pid as i32) == Some(started)).then_some(pid)
    }

    /// A process of the container that `name` means. One that was found counts for as long as it lives: a container may have thousands
    /// of processes and cgroups, and a page that is open asks every two seconds.
    pub(super) fn find_process(&mut self, name: &str) -> Result<u32, String> {
        let none = |container: &ContainerView| {
            let name = quoted(&display_name(container));
            format!("container {name} has no process, and so no network that could be read")
        };
        let ended = || self.verdicts.ended.find(name).map(|last| none(&last.container));
        let id = self.find(name).map_err(|error| ended().unwrap_or(error))?;
        if let Some(pid) = self.living_process(id) {
            return Ok(pid);
        }
        let found = self.init_pid_in_turn(id).ok_or("its processes take too long to look at: try again")?;
        let found = found.and_then(|pid| Some((pid, process::start_time(pid as i32)?)));
        if let Some(managed) = self.containers.get_mut(&id) {
            managed.found_process = found;
        }
        match found {
            Some((pid, _)) => Ok(pid),
            None => Err(none(&self.describe_or_gone(id, name)?)),
        }
    }

    fn change_labels(&mut self, name: &str, change: impl FnOnce(&mut Self, CgroupId)) -> ControlResponse {
        let found = self.find(name).and_then(|id| {
            change(self, id);
            self.describe_or_gone(id, name)
        });
        found.map_or_else(ControlResponse::Error, |view| ControlResponse::Container(Box::new(view)))
    }

    pub(super) fn prepare_pending(&mut self) {
        let now = timer::now();
        for (prepare, deadline, answer) in std::mem::take(&mut self.preparing) {
            let paths = process::cgroup_paths(prepare.pid);
            let containers = self.containers.iter().map(|(id, managed)| (*id, managed.path.as_str()));
            let found = process::innermost_group(&paths, containers);
            if let Some(why) = found.and_then(|id| self.hook_refusal(id, prepare.pid)) {
                let _ = answer.send(ControlResponse::Error(why.to_owned()));
                continue;
            }
            match found {
                Some(id) => {
                    let prepared = self.prepared_view(id);
                    if let Some(managed) = self.containers.get_mut(&id) {
                        managed.attach =
                            managed.attach.mounted_by_caller(now.saturating_add(MOUNT_CHECK_DELAY));
                    }
                    // A container's start waits for the answer, and for nothing else. Its program reads milliseconds later.
                    let _ = answer.send(ControlResponse::Prepared(prepared));
                    self.restart_times(id, now);
                    if let Some(managed) = self.containers.get_mut(&id) {
                        managed.is_unread = false;
                    }
                }
                None if now < deadline && process::start_time(prepare.pid).is_some() => {
                    self.preparing.push((prepare, deadline, answer));
                }
                None => {
                    let _ = answer.send(ControlResponse::Error(format!(
                        "process {} is in no container's cgroup that the agent knows",
                        prepare.pid
                    )));
                }
            }
        }
    }

    /// Why a container gets no view for which `peer` asks, a process in it.
    fn hook_refusal(&mut self, id: CgroupId, peer: i32) -> Option<&'static str> {
        let container = self.views.group(id)?.container.as_ref()?;
        if let Some(why) = self.config.containers.view_refusal(container) {
            return Some(why);
        }
        let why = self.config.containers.host_pid_refusal(container)?;
        // Not the process that asks: a hook may still be in its runtime's namespaces.
        let first = self.init_pid(id).map_or(peer, |pid| pid as i32);
        process::is_in_own_pid_namespace(first).then_some(why)
    }

    fn find(&self, name: &str) -> Result<CgroupId, String> {
        let groups: Vec<(CgroupId, ContainerNames<'_>)> = self
            .containers
            .keys()
            .filter_map(|id| self.views.group(*id))
            .filter_map(|group| Some((group.id, group.container.as_ref()?.names(&group.path))))
            .collect();
        let names: Vec<ContainerNames<'_>> = groups.iter().map(|(_, names)| *names).collect();
        match find_container(&names, name) {
            Ok(place) => Ok(groups[place].0),
            Err(error @ LookupError::Unknown { meant: None, .. }) => {
                Err(format!("{error}: `elbowroom list` shows those that run{}", self.unnamed_note()))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Why a container of Docker may be known by its identifier only: every one of them has a name.
    fn unnamed_note(&self) -> &'static str {
        let of = |id| self.views.group(id)?.container.as_ref();
        let is_unnamed = |id: &CgroupId| {
            of(*id).is_some_and(|container| {
                container.engine == ContainerEngine::Docker && container.name.is_none()
            })
        };
        match self.containers.keys().any(is_unnamed) {
            true => {
                "; where dockerd has a --data-root, containers have no names until containers.docker_root says so"
            }
            false => "",
        }
    }

    fn describe_or_gone(&self, id: CgroupId, name: &str) -> Result<ContainerView, String> {
        self.describe(id).ok_or_else(|| format!("container {} is gone", quoted(name)))
    }

    pub(super) fn describe(&self, id: CgroupId) -> Option<ContainerView> {
        let (managed, group, view) = (self.containers.get(&id)?, self.views.group(id)?, self.views.get(id)?);
        let container = group.container.as_ref()?;
        let (attached, attach_note, missing) = match &managed.attach {
            AttachState::Done { missing, .. } => (true, None, missing.clone()),
            AttachState::Waiting { note, .. } => (false, Some(note.clone()), Vec::new()),
            AttachState::InFlight { .. } => (false, Some("being attached".into()), Vec::new()),
            AttachState::Disabled(why) => (*why == DETACH_FAILED, Some((*why).into()), Vec::new()),
        };
        Some(ContainerView {
            id: container.id.clone(),
            name: container.name.clone(),
            engine: container.engine,
            pod: container.pod.clone(),
            labels: container.labels.clone(),
            labels_by: self.pipeline.labels.given_by(id).map(str::to_owned),
            path: group.path.clone(),
            made_in: self.made_in(id),
            attached,
            attach_note,
            view_delay_usec: managed.view_delay.map(Micros::get),
            missing,
            view_dir: self.view_dir(id),
            view: *view,
            usage: managed.usage,
            cpu_used_millicpu: managed.cpu_used_millicpu,
            cpu_throttled_millicpu: managed.cpu_throttled_millicpu,
            cpu_pressure: (managed.facts.has_pressure != 0)
                .then(|| f64::from(managed.facts.pressure[0].some.avg10) / 10_000.0),
            disk: self.disk.container_statuses(id, false),
            memory: self.memory.container_status(id, false),
            probe: self.probes.view(id, timer::now()),
            verdict: managed.verdict.clone(),
            ended_unix_ms: None,
            killed_unix_ms: self.killed_unix_ms(id, timer::now()),
        })
    }

    /// See [`ContainerView::made_in`].
    fn made_in(&self, id: CgroupId) -> Option<String> {
        let tenant = Some(self.sensor.tenant_of(id)).filter(|tenant| *tenant != id)?;
        Some(self.views.group(tenant)?.path.clone())
    }

    /// Takes a record that a client that may ask brings for a container.
    fn apply_probe_record(&mut self, name: &str, record: ProbeRecord) -> Result<ContainerView, String> {
        let id = self.find(name)?;
        let record = record.check().map_err(|error| error.to_string());
        if let Some(heard) = self.probes.accept_record(id, record, timer::now())? {
            self.apply(&[HostEvent::Probe(heard)]);
        }
        self.describe_or_gone(id, name)
    }

    fn explain(&self, name: &str) -> Result<Explanation, String> {
        let found = self.find(name);
        match (found, self.verdicts.ended.find(name)) {
            (Ok(id), _) => {
                self.explain_container(id).ok_or_else(|| format!("container {} is gone", quoted(name)))
            }
            (Err(_), Some(last)) => Ok(last.clone()),
            (Err(error), None) => Err(error),
        }
    }

    /// What is known of a container; `None` where it is gone.
    pub(super) fn explain_container(&self, id: CgroupId) -> Option<Explanation> {
        let (container, explain) = (self.describe(id)?, self.views.explain(id)?);
        let (disk, memory) = (self.disk.container_statuses(id, true), self.memory.container_status(id, true));
        let outermost = self.containers.get(&id).map_or(id, |managed| managed.outermost);
        let over_quota = self.quotas.of(outermost);
        Some(Explanation { container, explain, disk, memory, over_quota })
    }

    fn describe_all(&self) -> Vec<ContainerView> {
        self.containers.keys().filter_map(|id| self.describe(*id)).collect()
    }

    fn disks_report(&self) -> DisksReport {
        self.disk.report(|alert| self.alerts.view_of(alert))
    }

    fn memory_report(&self) -> MemoryReport {
        let verdict =
            |id| self.containers.get(&id).map(|managed| managed.verdict.clone()).unwrap_or_default();
        self.memory.report(|alert| self.alerts.view_of(alert), verdict)
    }

    fn status(&self) -> AgentStatus {
        let (supervisor, view_server) = self.publisher.peers();
        let number = |pid: Option<Pid>| pid.map_or(0, |pid| pid.as_raw_nonzero().get());
        AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: self.config.mode,
            pids: AgentPids {
                supervisor: number(supervisor),
                view_server: number(view_server),
                policy: std::process::id() as i32,
            },
            run_dir: self.run_dir.clone(),
            config: self.config.file.clone(),
            source: self.sensor.source().name().to_owned(),
            containers: self.containers.len(),
            attached: self
                .containers
                .values()
                .filter(|r| matches!(r.attach, AttachState::Done { .. }))
                .count(),
            ticks: self.ticks,
            ticks_missed: self.ticks_missed,
            cpu_usec: process::own_cpu_time().get(),
            disk: self.disk.status(),
            memory: self.memory.status(),
            receivers: self.alerts.receivers(),
            otlp: self.otlp.as_ref().map(|counts| counts.status()),
        }
    }
}
