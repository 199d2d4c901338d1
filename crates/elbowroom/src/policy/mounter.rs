//! Mounts and unmounts views in containers, on a thread of its own: a mount can wait for a container's file systems, the
//! owner never does.

use super::{Mailbox, Message};
use crate::api::Response;
use elbowroom_core::sample::GroupId;
use elbowroom_host::mount::{self, MountError, Place, Surface};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// What the mounter is sent.
pub(super) enum Job {
    /// Something to mount or unmount.
    Do(Ticket, Task),
    /// Answer when everything before this is done.
    Flush(mpsc::SyncSender<()>),
}

/// Whose a job is; it comes back with the outcome.
pub(super) struct Ticket {
    pub(super) group: GroupId,
    /// Path of its cgroup.
    pub(super) path: String,
    /// Who asked for the job and waits for its end.
    pub(super) asked: Option<mpsc::SyncSender<Response>>,
}

/// Something to mount or unmount.
pub(super) enum Task {
    /// Mount `view_dir` into the container of process `pid`.
    Attach {
        pid: u32,
        view_dir: PathBuf,
        page: PathBuf,
        surfaces: Vec<Surface>,
        /// Whether the container is known to live on the host's own root file system.
        on_host_root: bool,
    },
    /// Unmount whatever of ours is where these processes are, the container's first one in front.
    Detach { pids: Vec<u32> },
}

/// How a job ended.
pub(super) enum Outcome {
    /// The view is mounted; these surfaces have no file to go over in this container. `anew`: some were not there before.
    Attached { missing: Vec<String>, anew: bool },
    /// The container is still being made: try again soon.
    NotYet(&'static str),
    /// Nothing of ours is mounted any more.
    Detached,
    /// It could not be mounted, and nothing is half done.
    Failed(String),
    /// It could not be unmounted.
    Stays(String),
}

impl Outcome {
    /// What is wrong, if anything is.
    pub(super) fn error(&self) -> Option<String> {
        match self {
            Self::Attached { .. } | Self::Detached => None,
            Self::NotYet(why) => Some(format!("not attached: {why}")),
            Self::Failed(why) => Some(format!("not attached: {why}")),
            Self::Stays(why) => Some(format!("not detached: {why}")),
        }
    }
}

/// Starts the thread; it ends when the sender is dropped.
pub(super) fn spawn(mailbox: Mailbox) -> mpsc::Sender<Job> {
    let (jobs, queue) = mpsc::channel::<Job>();
    std::thread::Builder::new()
        .name("mounter".into())
        .spawn(move || {
            for job in queue {
                match job {
                    Job::Do(ticket, task) => {
                        let outcome = task.carry_out(&ticket.path);
                        mailbox.send(Message::Mounted(ticket, outcome));
                    }
                    Job::Flush(done) => {
                        let _ = done.send(());
                    }
                }
            }
        })
        .expect("threads can be created at start");
    jobs
}

impl Task {
    /// Does it in the container whose cgroup is `path`.
    fn carry_out(self, path: &str) -> Outcome {
        match self {
            Self::Attach { pid, view_dir, page, surfaces, on_host_root } => {
                attach(path, pid, &view_dir, &page, &surfaces, on_host_root)
            }
            Self::Detach { pids } => detach(path, &pids),
        }
    }
}

fn attach(
    path: &str,
    pid: u32,
    view_dir: &Path,
    page: &Path,
    surfaces: &[Surface],
    on_host_root: bool,
) -> Outcome {
    // Once for all: between two looks the number can become that of a process of another container.
    let place = match Place::in_group(pid, path) {
        Ok(place) => place,
        Err(e) => return failed(e),
    };
    match place.stage() {
        Ok(mount::Stage::HostNamespace) => return Outcome::NotYet("it shares the host's mount namespace"),
        // A runtime enters the container's mount namespace before it changes the root: until then a mount would go over
        // the host's own tree.
        Ok(mount::Stage::HostRoot) if !on_host_root => {
            return Outcome::NotYet("its root file system is still the host's");
        }
        Ok(_) => {}
        Err(e) => return failed(e),
    }
    match place.plan(surfaces, view_dir).and_then(|plan| place.attach(&plan)) {
        Ok(attached) => {
            let mut missing: Vec<String> = attached.skipped.iter().map(ToString::to_string).collect();
            // The files are the view; a kernel that cannot mount the page (before Linux 5.12) still shows those.
            match place.attach_page(page) {
                Ok(true) => {}
                Ok(false) => missing.push(format!("{}: the container has no such file", mount::PAGE_TARGET)),
                Err(error) => missing.push(error.to_string()),
            }
            Outcome::Attached { missing, anew: attached.mounted > 0 }
        }
        Err(e) => failed(e),
    }
}

fn detach(path: &str, pids: &[u32]) -> Outcome {
    match mount::detach_group(path, pids) {
        Ok(_) => Outcome::Detached,
        Err(e) => Outcome::Stays(e.to_string()),
    }
}

fn failed(error: MountError) -> Outcome {
    match error {
        MountError::Vanished { .. } => Outcome::NotYet("its process is gone"),
        MountError::HostNamespace { .. } => Outcome::NotYet("it shares the host's mount namespace"),
        error => Outcome::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_mounted_for_a_process_of_another_group() {
        let none = Path::new("/nowhere");
        let outcome = attach("/docker/4f5e", std::process::id(), none, none, &[], true);
        assert!(matches!(outcome, Outcome::NotYet("its process is gone")));
    }
}
