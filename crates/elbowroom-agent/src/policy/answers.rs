//! What the owner answers to those who ask on the control socket.

use super::owner::Owner;
use super::resident::{Attach, STAYS};
use elbowroom_client::api::{
    ContainerView, DisksReport, Explanation, MemoryReport, Pids, Prepared, Request, Response, Snapshot,
    Status,
};
use elbowroom_linux::{process, timer};
use elbowroom_types::probe::Record;
use elbowroom_types::sample::{Event, Group, GroupId};
use elbowroom_types::unit::Micros;
use rustix::process::Pid;
use std::sync::mpsc;

/// How long a `prepare` waits for the container's cgroup to be noticed.
const PREPARE_WITHIN: Micros = Micros::secs(1);
/// How long after a `prepare` the agent looks whether the view is mounted.
const LOOK_AFTER: Micros = Micros::millis(500);

impl Owner {
    /// Answers a request, now or when what it needs has happened.
    pub(super) fn ask(&mut self, request: Request, peer: i32, answer: mpsc::SyncSender<Response>) {
        let response = match request {
            Request::List => Response::List(self.describe_all()),
            Request::Show(name) => match self.find(&name).and_then(|id| self.describe_or_gone(id, &name)) {
                Ok(view) => Response::Container(Box::new(view)),
                Err(error) => Response::Error(error),
            },
            Request::Explain(name) => match self.explain(&name) {
                Ok(explanation) => Response::Explain(Box::new(explanation)),
                Err(error) => Response::Error(error),
            },
            Request::Attach(name) => match self.find(&name) {
                Ok(id) => return self.attach(id, timer::now(), Some(answer)),
                Err(error) => Response::Error(error),
            },
            Request::Detach(name) => match self.find(&name) {
                Ok(id) => return self.detach(id, Some(answer)),
                Err(error) => Response::Error(error),
            },
            Request::Prepare(mut prepare) => {
                if prepare.pid <= 1 {
                    prepare.pid = peer;
                }
                let deadline = timer::now().saturating_add(PREPARE_WITHIN);
                self.preparing.push((prepare, deadline, answer));
                return self.notice_changes();
            }
            Request::Launch(container) => Response::Launch(self.config.given(container)),
            Request::Label(labelling) => {
                let name = labelling.container.clone();
                self.answer_labels(&name, |owner, id| owner.label(id, labelling))
            }
            Request::Unlabel(name) => self.answer_labels(&name, Self::unlabel),
            Request::Probe { container, record } => match self.heard_for(&container, record) {
                Ok(view) => Response::Container(Box::new(view)),
                Err(error) => Response::Error(error),
            },
            Request::Disks => Response::Disks(Box::new(self.disks_report())),
            Request::Memory => Response::Memory(Box::new(self.memory_report())),
            Request::Alerts => Response::Alerts(Box::new(self.alerts.report())),
            Request::Findings => Response::Findings(Box::new(self.alerts.findings())),
            Request::Status => Response::Status(Box::new(self.status())),
            Request::Snapshot => Response::Snapshot(Box::new(Snapshot {
                time_unix_ms: elbowroom_linux::timer::unix_ms(),
                node: self.machine.view(),
                status: self.status(),
                containers: self.describe_all(),
                disks: self.disks_report(),
                memory: self.memory_report(),
                changes: self.recent_changes(),
                alerts: self.alerts.report(),
            })),
            // Answered before it comes here: nothing on this thread reads a disk.
            Request::Profiles | Request::Profile(_) => {
                Response::Error("profiles are not the owner's affair".into())
            }
        };
        let _ = answer.send(response);
    }

    fn answer_labels(&mut self, name: &str, change: impl FnOnce(&mut Self, GroupId)) -> Response {
        let found = self.find(name).and_then(|id| {
            change(self, id);
            self.describe_or_gone(id, name)
        });
        found.map_or_else(Response::Error, |view| Response::Container(Box::new(view)))
    }

    pub(super) fn prepare_pending(&mut self) {
        let now = timer::now();
        for (prepare, deadline, answer) in std::mem::take(&mut self.preparing) {
            let paths = process::cgroup_paths(prepare.pid);
            let found = process::groups_around(&paths).into_iter().find_map(|path| {
                self.residents.iter().find(|(_, resident)| resident.path == path).map(|(id, _)| *id)
            });
            let container = found.and_then(|id| self.views.group(id)?.container.as_ref());
            let refused = container.and_then(|container| self.config.containers.refuses(container));
            if let Some(why) = refused {
                let _ = answer.send(Response::Error(why.to_owned()));
                continue;
            }
            match found {
                Some(id) => {
                    let prepared = Prepared {
                        view_dir: self.view_dir(id),
                        surfaces: self.surfaces(),
                        page: Some(self.page_path(id)),
                    };
                    if let Some(resident) = self.residents.get_mut(&id) {
                        resident.attach = resident.attach.by_another(now.saturating_add(LOOK_AFTER));
                    }
                    let _ = answer.send(Response::Prepared(prepared));
                }
                None if now < deadline && process::started(prepare.pid).is_some() => {
                    self.preparing.push((prepare, deadline, answer));
                }
                None => {
                    let _ = answer.send(Response::Error(format!(
                        "process {} is in no container's cgroup that the agent knows",
                        prepare.pid
                    )));
                }
            }
        }
    }

    fn find(&self, name: &str) -> Result<GroupId, String> {
        let groups = || self.residents.keys().filter_map(|id| self.views.group(*id));
        let container = |g: &&Group| g.container.as_ref().map(|c| (c.id.clone(), c.name.clone()));
        let exact: Vec<GroupId> = groups()
            .filter(|g| {
                g.path == name || container(g).is_some_and(|(id, n)| id == name || n.as_deref() == Some(name))
            })
            .map(|g| g.id)
            .collect();
        let matches = if exact.is_empty() {
            groups()
                .filter(|g| !name.is_empty() && container(g).is_some_and(|(id, _)| id.starts_with(name)))
                .map(|g| g.id)
                .collect()
        } else {
            exact
        };
        match matches[..] {
            [id] => Ok(id),
            [] => Err(format!("no container {}: see `elbowroom list`", shown(name))),
            _ => Err(format!("{} containers match {}: write more of the id", matches.len(), shown(name))),
        }
    }

    fn describe_or_gone(&self, id: GroupId, name: &str) -> Result<ContainerView, String> {
        self.describe(id).ok_or_else(|| format!("container {} is gone", shown(name)))
    }

    pub(super) fn describe(&self, id: GroupId) -> Option<ContainerView> {
        let (resident, group, view) = (self.residents.get(&id)?, self.views.group(id)?, self.views.get(id)?);
        let container = group.container.as_ref()?;
        let (attached, attach_note, missing) = match &resident.attach {
            Attach::Done { missing } => (true, None, missing.clone()),
            Attach::Waiting { note, .. } => (false, Some(note.clone()), Vec::new()),
            Attach::InFlight { .. } => (false, Some("being attached".into()), Vec::new()),
            Attach::LetAlone(why) => (*why == STAYS, Some((*why).into()), Vec::new()),
        };
        Some(ContainerView {
            id: container.id.clone(),
            name: container.name.clone(),
            engine: container.engine,
            pod: container.pod.clone(),
            labels: container.labels.clone(),
            labels_by: self.labelled.by(id).map(str::to_owned),
            path: group.path.clone(),
            attached,
            attach_note,
            late_usec: resident.late.map(Micros::get),
            missing,
            view_dir: self.view_dir(id),
            view: *view,
            usage: resident.usage,
            cpu_used_millicpu: resident.cpu_used_millicpu,
            disk: self.disk.standings(id, false),
            memory: self.memory.standing(id, false),
            probe: self.voices.view(id, timer::now()),
        })
    }

    /// Takes a record that somebody who may ask brings for a container.
    fn heard_for(&mut self, name: &str, record: Record) -> Result<ContainerView, String> {
        let id = self.find(name)?;
        let record = record.check().map_err(|error| error.to_string());
        if let Some(heard) = self.voices.take(id, record, timer::now())? {
            self.apply(&[Event::Heard(heard)]);
        }
        self.describe_or_gone(id, name)
    }

    fn explain(&self, name: &str) -> Result<Explanation, String> {
        let id = self.find(name)?;
        let container = self.describe_or_gone(id, name)?;
        let explain = self.views.explain(id).ok_or_else(|| format!("container {} is gone", shown(name)))?;
        let (disk, memory) = (self.disk.standings(id, true), self.memory.standing(id, true));
        Ok(Explanation { container, explain, disk, memory })
    }

    fn describe_all(&self) -> Vec<ContainerView> {
        self.residents.keys().filter_map(|id| self.describe(*id)).collect()
    }

    fn disks_report(&self) -> DisksReport {
        self.disk.report(|alert| self.alerts.name(alert))
    }

    fn memory_report(&self) -> MemoryReport {
        self.memory.report(|alert| self.alerts.name(alert))
    }

    fn status(&self) -> Status {
        let (supervisor, view_server) = self.publisher.peers();
        let number = |pid: Option<Pid>| pid.map_or(0, |pid| pid.as_raw_nonzero().get());
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pids: Pids {
                supervisor: number(supervisor),
                view_server: number(view_server),
                policy: std::process::id() as i32,
            },
            run_dir: self.run_dir.clone(),
            tier: self.sensor.tier().name().to_owned(),
            containers: self.residents.len(),
            attached: self.residents.values().filter(|r| matches!(r.attach, Attach::Done { .. })).count(),
            ticks: self.ticks,
            ticks_missed: self.ticks_missed,
            cpu_usec: process::own_cpu().get(),
            disk: self.disk.status(),
            memory: self.memory.status(),
            hooks: self.alerts.hooks(),
        }
    }
}

/// A name as an error may repeat it: short, on one line.
fn shown(name: &str) -> String {
    let mut text: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    if name.chars().count() > 80 {
        text.push_str("...");
    }
    format!("\"{text}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_errors_are_short_and_on_one_line() {
        assert_eq!(shown("a\nb"), "\"a\\nb\"");
        assert!(shown(&"x".repeat(10_000)).len() < 100);
    }
}
