//! The libraries that are preloaded into a program, on a file system that lives as long as the program's mount namespace: a
//! command that starts when the agent has stopped, or this program was replaced, still finds them.

use anyhow::{Context, ensure};
use rustix::mount::MountFlags;
use std::path::Path;

/// Where they are: a directory of sysfs that is there wherever FUSE is, made to have something mounted on it (fusectl), which
/// is of no use in a container.
const DIR: &str = "/sys/fs/fuse/connections";

/// One library inside this binary.
struct Library {
    name: &'static str,
    content: &'static [u8],
}

const OPENMP: Library = Library {
    name: "libelbowroom-openmp.so",
    content: include_bytes!(concat!(env!("OUT_DIR"), "/libelbowroom-openmp.so")),
};
const LIBC: Library = Library {
    name: "libelbowroom-libc.so",
    content: include_bytes!(concat!(env!("OUT_DIR"), "/libelbowroom-libc.so")),
};

/// Mounts those that are wanted into this process's mount namespace, which must be its own, and says where each is.
pub(super) fn provide(openmp: bool, libc: bool) -> anyhow::Result<Vec<String>> {
    let wanted: Vec<&Library> = [(openmp, &OPENMP), (libc, &LIBC)]
        .into_iter()
        .filter(|(want, _)| *want)
        .map(|(_, lib)| lib)
        .collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    ensure!(
        wanted.iter().all(|library| !library.content.is_empty()),
        "--openmp and --libc are not there for this architecture yet: run without"
    );
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("elbowroom", DIR, "tmpfs", flags, c"mode=0755,size=1m")
        .with_context(|| format!("{DIR}: mounting the libraries to preload"))?;
    for library in &wanted {
        let path = Path::new(DIR).join(library.name);
        std::fs::write(&path, library.content).with_context(|| path.display().to_string())?;
        // Whatever the umask.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .with_context(|| path.display().to_string())?;
    }
    rustix::mount::mount_remount(DIR, flags | MountFlags::RDONLY, "")
        .with_context(|| format!("{DIR}: making it read-only"))?;
    Ok(wanted.iter().map(|library| format!("{DIR}/{}", library.name)).collect())
}
