//! What a container's network interfaces have carried.
//!
//! The kernel counts bytes per network namespace, not per cgroup: `/proc/PID/net/dev` is what the namespace of one process has
//! counted, for every process in it. Where that is the host's, nothing can be said of the container alone.

use crate::probe::network::NetNamespace;
use crate::proc;
use crate::root::{ReadError, Root};
use elbowroom_types::sample::NetworkCounters;
use rustix::io::Errno;
use std::io;

/// What the network namespace of process `pid` has counted; `None` where that is the host's.
///
/// # Errors
/// A file cannot be read, which [`ReadError::is_absent`] where the process is gone, or does not keep its format.
pub fn counters(pid: u32) -> Result<Option<NetworkCounters>, ReadError> {
    // An agent in a container may have a network of its own. A security module may guard process 1.
    let host = NetNamespace::of(1).or_else(|_| NetNamespace::own());
    if NetNamespace::of(pid).map_err(unread(pid))? == host.map_err(unread(1))? {
        return Ok(None);
    }
    let path = format!("/proc/{pid}/net/dev");
    let text = Root::host()?.read(&path)?;
    proc::net_dev(&text).map(Some).map_err(|error| ReadError::malformed(path, error))
}

fn unread(pid: u32) -> impl Fn(io::Error) -> ReadError {
    move |error| ReadError::Io {
        operation: "looking at",
        path: format!("/proc/{pid}/ns/net").into(),
        source: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounded;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_of_the_host_is_not_counted_and_one_that_is_gone_is_absent() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root to look at process 1");
        }
        if NetNamespace::of(1).ok() == NetNamespace::own().ok() {
            assert_eq!(counters(std::process::id()).unwrap(), None);
        }
        assert!(counters(i32::MAX as u32).unwrap_err().is_absent());
    }

    #[test]
    fn a_namespace_of_its_own_has_carried_nothing() {
        // Its end of the pipe keeps it, and with it the namespace, as long as the test.
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo there; exec cat"]);
        let made = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let Ok(mut child) = made else { return eprintln!("skipped: needs unshare(1)") };
        let said = bounded::beginning(child.stdout.take().expect("it is piped"), 6).unwrap();
        let counted = counters(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        if said != b"there\n" {
            return eprintln!("skipped: needs the right to make a network namespace");
        }
        assert_eq!(counted.unwrap(), Some(NetworkCounters::default()));
    }
}
