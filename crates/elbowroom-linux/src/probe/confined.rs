//! Clients of servers that run in containers.
//!
//! Problem: such a server may be hostile. A client that runs as root gives it what is root's: a password in root's configuration, a file
//! that the server asks for, its own memory where it misreads an answer. And a path in a container may become a link to the host's
//! server between a look at it and its use.
//!
//! Approach: [`confine`] takes this process to where the server is, and [`become_nobody`] has the client start with nothing of root's. The
//! server's socket is opened below the container's root directory without links (openat2(2)), and the client connects to what was opened,
//! by way of `/proc/self/fd`.

use crate::bounded;
use crate::mount;
use crate::privilege::{NOBODY, ProcessRlimits, drop_privileges};
use crate::probe::network;
use crate::root::open_inside;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::MountFlags;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a client may have: an answer is a number, and a hostile one may be of any size.
const CLIENT_LIMITS: ProcessRlimits = ProcessRlimits { files: 64, data: 256 << 20, forks: false };
/// Longest file of options or passwords.
const MAX_SECRET_BYTES: u64 = 64 << 10;
/// Directory in which a client finds the socket and the secret; only it and its parent see this one.
const PRIVATE_DIR: &str = "/tmp";
/// Where a host's own servers have their sockets.
const HOST_SOCKETS_DIR: &str = "/run";
/// What a client has for an environment.
const ENVIRONMENT: [(&str, &str); 3] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/nonexistent"),
    ("LC_ALL", "C"),
];

/// Where a client's server is.
#[derive(Debug)]
pub enum ServerPlace {
    /// A socket in a container; its name.
    Socket(OwnedFd, PathBuf),
    /// The network namespace of the container of this process.
    Network(u32),
    /// Where the client's own arguments say, as the host's network has it.
    Named,
}

impl ServerPlace {
    /// The first of `paths` that is a socket, as process `pid` sees them. No part of a path may be a link: an absolute one would lead to
    /// the host's.
    ///
    /// # Errors
    /// `NotFound` where none is; as open(2) for `/proc/PID/root`.
    pub fn socket(pid: u32, paths: &[PathBuf]) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty())?;
        let open = |path: &Path| {
            let below = path.strip_prefix("/").unwrap_or(path);
            let socket = open_inside(&root, below, OFlags::PATH, ResolveFlags::NO_SYMLINKS).ok()?;
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&socket).ok()?.st_mode);
            (kind == FileType::Socket).then(|| Self::Socket(socket, path.file_name()?.into()).into())?
        };
        paths.iter().find_map(|path| open(path)).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

/// Takes this process to where the server is. The process must have one thread and no use for its file systems. What it starts sees
/// neither the host's `/tmp` nor other processes, and with a server in a container neither the host's network nor `/run`. Gives the
/// path by which a client finds the server's socket. `secret` is a file that the client finds as `/tmp/secret`, and may read.
///
/// # Errors
/// As unshare(2), setns(2), mount(2): without root's rights there is no way.
pub fn confine(place: &ServerPlace, secret: Option<&Path>) -> io::Result<Option<PathBuf>> {
    let secret = secret.map(read_secret).transpose()?;
    let network = match place {
        ServerPlace::Network(pid) => network::enter(*pid).map(|()| UnshareFlags::empty())?,
        ServerPlace::Socket(..) => UnshareFlags::NEWNET,
        ServerPlace::Named => UnshareFlags::empty(),
    };
    // SAFETY: none of these flags leaves the table of file descriptors, the only thing `unshare_unsafe` asks its callers to mind.
    unsafe { unshare_unsafe(network | UnshareFlags::NEWIPC | UnshareFlags::NEWPID) }?;
    mount::own_namespace().map_err(io::Error::other)?;
    let empty = |at| {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("tmpfs", at, "tmpfs", flags, Some(c"mode=755,size=256k"))
    };
    empty(PRIVATE_DIR)?;
    if !matches!(place, ServerPlace::Named) {
        empty(HOST_SOCKETS_DIR)?;
    }
    if let Some(secret) = secret {
        let path = Path::new(PRIVATE_DIR).join("secret");
        let mut file = File::create(&path)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o400))?;
        file.write_all(&secret)?;
        chown(&path, Some(NOBODY.uid), Some(NOBODY.gid))?;
    }
    let ServerPlace::Socket(socket, name) = place else { return Ok(None) };
    let link = Path::new(PRIVATE_DIR).join(name);
    symlink(format!("/proc/self/fd/{}", socket.as_raw_fd()), &link)?;
    Ok(Some(link))
}

fn read_secret(path: &Path) -> io::Result<Vec<u8>> {
    let said = |why: io::Error| io::Error::new(why.kind(), format!("{}: {why}", path.display()));
    bounded::file(path, MAX_SECRET_BYTES).map_err(said)
}

/// Has `client` start as the user `nobody`: without capabilities, groups or a way to get any, with a clean environment, and with no
/// open file but its standard ones and the server's socket.
pub fn become_nobody<'a>(client: &'a mut Command, place: &ServerPlace) -> &'a mut Command {
    let socket = match place {
        ServerPlace::Socket(socket, _) => Some(socket.as_raw_fd()),
        _ => None,
    };
    client.env_clear().envs(ENVIRONMENT).current_dir("/");
    // SAFETY: the closure makes system calls and touches no memory that fork could have left half changed; the socket is open, for the
    // caller holds `place` until the client has started.
    unsafe {
        client.pre_exec(move || {
            if libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) != 0 {
                return Err(io::Error::last_os_error());
            }
            if let Some(socket) = socket {
                fcntl_setfd(std::os::fd::BorrowedFd::borrow_raw(socket).as_fd(), FdFlags::empty())?;
            }
            Ok(drop_privileges(NOBODY, CLIENT_LIMITS)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_a_socket_that_no_link_leads_to_is_a_servers() {
        let dir = tempfile::tempdir().unwrap();
        let below = |name: &str| dir.path().join(name);
        let _server = UnixListener::bind(below("real")).unwrap();
        symlink(below("real"), below("link")).unwrap();
        symlink(dir.path(), below("around")).unwrap();
        std::fs::write(below("file"), "").unwrap();
        let find = |names: &[&str]| {
            let paths: Vec<PathBuf> = names.iter().map(|name| below(name)).collect();
            match ServerPlace::socket(std::process::id(), &paths) {
                Ok(ServerPlace::Socket(_, name)) => name.display().to_string(),
                Ok(other) => panic!("{other:?}"),
                Err(error) => error.kind().to_string(),
            }
        };
        for none in ["link", "around/real", "file", "", "nothing"] {
            assert_eq!(find(&[none]), io::ErrorKind::NotFound.to_string(), "{none}");
        }
        assert_eq!(find(&["link", "file", "real"]), "real");
    }
}
