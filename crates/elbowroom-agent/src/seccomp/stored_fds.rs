//! Descriptors that the service manager keeps over a restart of the process that holds them, and what they are called there.

use super::{MAX_CONTAINERS, SeccompContainer};
use crate::view_server::service_manager::{send_state, take_listen_fds};
use elbowroom_linux::seccomp::{NotificationLog, SeccompListener};
use elbowroom_types::unit::Micros;
use rustix::fd::{BorrowedFd, OwnedFd};
use sd_notify::NotifyState;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What descriptors are called at the service manager: listeners this, and the container's slot, pid, when that started, and identifier.
const LISTENER_PREFIX: &str = "listener-";
pub(super) const RECORD_FD_NAME: &str = "record";

pub(super) fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

pub(super) fn notify_service_manager(state: &[NotifyState<'_>]) {
    if let Err(error) = send_state(state, &[]) {
        tracing::warn!(%error, ?state, "the service manager was not told");
    }
}

/// What a listener is called at the service manager: no colon or control character, at most 255 bytes (sd_notify(3)).
pub(super) fn listener_name(slot: usize, container: &SeccompContainer) -> String {
    let SeccompContainer { id, pid, started, .. } = container;
    let plain = |c: char| if c.is_ascii_graphic() && c != ':' { c } else { '-' };
    let started = started.map_or_else(String::new, |Micros(usec)| format!(".{usec}"));
    format!("{LISTENER_PREFIX}{slot}-{pid}{started}-{}", id.chars().map(plain).take(128).collect::<String>())
}

/// The service manager keeps it too, until its last process ends.
pub(super) fn store_fd(name: &str, fd: BorrowedFd<'_>) {
    if is_managed() {
        let state = [NotifyState::FdStore, NotifyState::FdName(name)];
        if let Err(error) = send_state(&state, &[fd]) {
            tracing::warn!(%error, name, "the service manager does not keep this descriptor");
        }
    }
}

/// What a keeper before left with the service manager.
pub(super) fn take_stored() -> (Option<NotificationLog>, BTreeMap<usize, SeccompContainer>) {
    let (mut record, mut containers) = (None, BTreeMap::new());
    for (fd, name) in take_listen_fds() {
        if name == RECORD_FD_NAME {
            record = NotificationLog::open(fd).ok();
        } else if let Some((slot, container)) = listener(fd, &name) {
            containers.insert(slot, container);
        }
    }
    (record, containers)
}

fn listener(fd: OwnedFd, name: &str) -> Option<(usize, SeccompContainer)> {
    let (slot, pid, started, id) = parse_listener_name(name)?;
    let listener = Arc::new(SeccompListener::new(fd).ok()?);
    (slot < MAX_CONTAINERS).then(|| {
        (slot, SeccompContainer { id: id.to_owned(), pid, started, listener, page: None, page_checked: true })
    })
}

/// What the name of a listener at the service manager says: slot, pid, when that started, identifier.
pub fn parse_listener_name(name: &str) -> Option<(usize, i32, Option<Micros>, &str)> {
    let mut words = name.strip_prefix(LISTENER_PREFIX)?.splitn(3, '-');
    let (slot, process, id) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    let (pid, started) = match process.split_once('.') {
        Some((pid, usec)) => (pid, Some(Micros(usec.parse().ok()?))),
        None => (process, None),
    };
    Some((slot, pid.parse().ok()?, started, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_listener_says_whose_it_is() {
        let started = Some(Micros(61_230_000));
        assert_eq!(parse_listener_name("listener-7-4711.61230000-web-1"), Some((7, 4711, started, "web-1")));
        assert_eq!(parse_listener_name("listener-0-4711-a"), Some((0, 4711, None, "a")));
        for bad in [
            "record",
            "listener-",
            "listener-7-4711",
            "listener-7--a",
            "listener-x-1.2-a",
            "listener-7-1.x-a",
        ] {
            assert_eq!(parse_listener_name(bad), None, "{bad}");
        }
    }
}
