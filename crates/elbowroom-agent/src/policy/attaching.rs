//! Mounting views into containers, and out of them again: what the owner wants of the mounter, and what came of it.

use super::facts::take_start;
use super::mounter::{Job, Outcome, Task, Ticket};
use super::owner::Owner;
use super::resident::{Attach, DETACHED, Resident, STAYS};
use elbowroom_client::api::Response;
use elbowroom_linux::mount;
use elbowroom_linux::mount::Surface;
use elbowroom_linux::{process, timer};
use elbowroom_types::sample::{Engine, GroupId};
use elbowroom_types::unit::Micros;
use elbowroom_view::pages::tree;
use std::collections::HashSet;
use std::sync::mpsc;

/// A runtime has left the host's root file system this long after its container's first process started.
const SETTLED_AFTER: Micros = Micros::secs(2);

impl Owner {
    /// Hands the mounter what is due.
    pub(super) fn attach_due(&mut self, now: Micros) {
        let due: Vec<GroupId> = self
            .residents
            .iter()
            .filter(|(_, r)| matches!(r.attach, Attach::Waiting { retry_at, .. } if retry_at <= now))
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            self.attach(id, now, None);
        }
    }

    /// Has a view mounted; `asked`: by somebody, who knows that the container is there, and waits for the answer.
    pub(super) fn attach(&mut self, id: GroupId, now: Micros, asked: Option<mpsc::SyncSender<Response>>) {
        let pid = self.first_process(id);
        let started = pid.and_then(|pid| process::started(pid as i32));
        let Some(resident) = self.residents.get_mut(&id) else { return };
        let Some(pid) = pid else {
            resident.attach = resident.attach.later(now, "it has no process".into());
            if let Some(answer) = asked {
                let _ = answer.send(Response::Error("not attached: it has no process".into()));
            }
            return;
        };
        if let Some(started) = started {
            take_start(&mut resident.facts, started);
        }
        let delay = match resident.attach {
            Attach::Waiting { delay, .. } => delay,
            _ => Micros::millis(5),
        };
        resident.attach = Attach::InFlight { delay };
        // A process on the host's root is in `elbowroom run`, or it is a service's, or a runtime's that is still on its way
        // into a container: that one does not take long.
        let settled = started.is_some_and(|at| timer::now_boot().saturating_sub(at) >= SETTLED_AFTER);
        let engine = self.views.group(id).and_then(|g| g.container.as_ref()).map(|c| c.engine);
        let on_host_root = match engine {
            Some(Engine::Elbowroom) => true,
            Some(Engine::Plain) => asked.is_some() || settled,
            _ => asked.is_some(),
        };
        let path = resident.path.clone();
        let task = Task::Attach {
            pid,
            view_dir: self.view_dir(id),
            page: self.page_path(id),
            surfaces: self.surfaces(),
            on_host_root,
        };
        let _ = self.mounter.send(Job::Do(Ticket { group: id, path, asked }, task));
    }

    /// A container's first process is another one, which may have a mount namespace of its own: a service's `ExecStart=` after an
    /// `ExecStartPre=` that took long. Where it has not, the view is there, and mounting it changes nothing.
    pub(super) fn look_again(&mut self, id: GroupId) {
        if let Some(resident) = self.residents.get_mut(&id)
            && matches!(resident.attach, Attach::Done { .. })
        {
            resident.attach = Attach::now();
        }
    }

    /// The container's init, as the host numbers it.
    pub(super) fn first_process(&mut self, id: GroupId) -> Option<u32> {
        self.sensor.processes(id).first().and_then(|pid| u32::try_from(*pid).ok())
    }

    /// Has a container's view taken out, and lets it alone until somebody asks for it.
    pub(super) fn detach(&mut self, id: GroupId, asked: Option<mpsc::SyncSender<Response>>) {
        if let Some(resident) = self.residents.get_mut(&id) {
            // At once: what waits to be mounted, or is being mounted, would come after this.
            resident.attach = Attach::LetAlone(DETACHED);
        }
        let view = Some(self.view_name(id));
        self.send_detach(id, view, asked);
    }

    /// Has a view, or every one, taken out from where processes of a container are, but for those of containers inside it: they have
    /// views of their own.
    fn send_detach(
        &mut self,
        group: GroupId,
        view: Option<String>,
        asked: Option<mpsc::SyncSender<Response>>,
    ) {
        let Some(path) = self.residents.get(&group).map(|resident| resident.path.clone()) else { return };
        let is_inside =
            |other: &Resident| other.path.strip_prefix(&path).is_some_and(|rest| rest.starts_with('/'));
        let inside: Vec<GroupId> =
            self.residents.iter().filter(|(_, other)| is_inside(other)).map(|(id, _)| *id).collect();
        let theirs: HashSet<i32> = inside.into_iter().flat_map(|id| self.sensor.processes(id)).collect();
        let pids = self.sensor.processes(group).into_iter().filter(|pid| !theirs.contains(pid));
        let pids = pids.filter_map(|pid| u32::try_from(pid).ok()).collect();
        let _ = self.mounter.send(Job::Do(Ticket { group, path, asked }, Task::Detach { pids, view }));
    }

    pub(super) fn surfaces(&self) -> Vec<Surface> {
        let [cpu, memory] = self.limits_in_v2;
        tree::surfaces(cpu, memory).into_iter().map(surface).collect()
    }

    /// Takes note of how a mount job ended, and answers who asked for it.
    pub(super) fn mounted(&mut self, ticket: Ticket, outcome: Outcome) {
        let Ticket { group: id, path, asked } = ticket;
        let error = outcome.error();
        self.note(id, outcome);
        let Some(answer) = asked else { return };
        let _ = answer.send(match (self.describe(id), error) {
            (None, _) => Response::Error("the container is gone".into()),
            (Some(_), Some(error)) => Response::Error(format!("{path}: {error}")),
            (Some(view), None) => Response::Container(Box::new(view)),
        });
    }

    fn note(&mut self, id: GroupId, outcome: Outcome) {
        let Some(resident) = self.residents.get_mut(&id) else { return };
        let name = &resident.path;
        match &outcome {
            Outcome::Attached { missing, anew } => {
                // Whatever was to mount it when the container was made has not: there is none, or it failed.
                let late = anew.then(|| timer::now_boot().saturating_sub(resident.facts.started));
                resident.late = late.or(resident.late);
                let late = late.map(tracing::field::display);
                tracing::info!(container = name, missing = missing.len(), late, "view attached");
            }
            Outcome::Detached => tracing::info!(container = name, "view detached"),
            Outcome::Stays(why) => tracing::warn!(container = name, because = why, "view not detached"),
            Outcome::Failed(why) => tracing::warn!(container = name, because = why, "view not attached"),
            Outcome::NotYet(_) | Outcome::Stuck => {}
        }
        // A mount that kept a detach from being done has ended after all.
        let overdue =
            matches!(outcome, Outcome::Attached { .. }) && resident.attach == Attach::LetAlone(STAYS);
        resident.attach = resident.attach.after(outcome, timer::now());
        if resident.attach == Attach::LetAlone(DETACHED) {
            resident.retire_page();
        }
        if overdue {
            self.detach(id, None);
        }
    }

    /// Begins to take every view out of every container, so that a clean stop leaves nothing behind; who receives on the channel waits
    /// until that is done.
    pub(super) fn detach_all(&mut self) -> mpsc::Receiver<()> {
        let ids: Vec<_> = self
            .residents
            .iter()
            // Also those that wait: somebody else may be mounting what was prepared, or may have. And those that were
            // detached: something may have stayed.
            .filter(|(_, r)| !matches!(r.attach, Attach::LetAlone(why) if why != DETACHED && why != STAYS))
            .map(|(id, _)| *id)
            .collect();
        tracing::info!(containers = ids.len(), "detaching");
        for group in ids {
            self.send_detach(group, None, None);
        }
        let (done, wait) = mpsc::sync_channel(1);
        let _ = self.mounter.send(Job::Flush(done));
        wait
    }
}

/// A node of the view tree and its place, as the mount room knows it.
fn surface(surface: tree::Surface) -> Surface {
    let kind = match surface.kind {
        tree::Kind::Fixed(path) => mount::Kind::Fixed(path.into()),
        tree::Kind::Cgroup { controller, file } => {
            mount::Kind::Cgroup { controller: controller.to_owned(), file: file.to_owned() }
        }
    };
    Surface { source: surface.node.path().into(), kind }
}
