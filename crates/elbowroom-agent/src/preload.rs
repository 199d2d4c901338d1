//! Libraries that are loaded into programs of a container. Their file system lives as long as the container's mount namespace, so
//! programs find them even after the agent has stopped or this program was replaced.

use crate::java;
use anyhow::{Context, ensure};
use elbowroom_linux::bounded;
use elbowroom_linux::mount::NamespaceRoot;
use elbowroom_types::label::RuntimeInjection;
use elbowroom_types::launch::{INJECTION_DIR, JAVA_AGENT, JAVA_NATIVE_LIBRARY, LIBC_LIBRARY, OPENMP_LIBRARY};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};
use std::borrow::Cow;
use std::fs::File;
use std::io::Write;
use std::path::Path;

const OPENMP_CONTENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libelbowroom-openmp.so"));
const LIBC_CONTENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libelbowroom-libc.so"));

/// `f_type` of sysfs (`SYSFS_MAGIC`) and of fusectl (`FUSE_CTL_SUPER_MAGIC`): what may be covered.
const COVERABLE_FS_MAGIC: [u32; 2] = [0x6265_6572, 0x6573_5543];

/// Mounts the files of what is wanted at [`INJECTION_DIR`] below `root` in this process's mount namespace, which must not be the host's.
/// Nothing in `root` is followed or written; a second time changes nothing.
///
/// Says what of `wanted` is not there for this machine or this installation, or which system call was refused.
pub fn mount_preloads(root: &Path, wanted: RuntimeInjection) -> anyhow::Result<()> {
    let files = preload_files(wanted)?;
    if files.is_empty() {
        return Ok(());
    }
    let place = NamespaceRoot::of_this_process(root)?;
    let root =
        rustix::fs::openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| root.display().to_string())?;
    let target = open_mount_point(&root)
        .with_context(|| format!("{INJECTION_DIR}: no place for the libraries to preload"))?;
    if files.iter().all(|(name, _)| is_there(&target, name)) {
        return Ok(());
    }
    let kind = rustix::fs::fstatfs(&target)?.f_type as u32;
    ensure!(
        COVERABLE_FS_MAGIC.contains(&kind),
        "{INJECTION_DIR}: no part of sysfs there, but something that is not to be covered"
    );
    place.refuse_shared(Path::new(INJECTION_DIR))?;
    detached_tmpfs(&files)
        .and_then(|tree| {
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            Ok(rustix::mount::move_mount(&tree, c"", &target, c"", flags)?)
        })
        .with_context(|| format!("{INJECTION_DIR}: mounting the libraries to preload"))
}

/// Whether [`mount_preloads`] has a place in containers of this host, and what `wanted` needs is installed.
pub(crate) fn check_installed(wanted: RuntimeInjection) -> anyhow::Result<()> {
    ensure!(Path::new(INJECTION_DIR).is_dir(), "{INJECTION_DIR} is not there: load the kernel's module fuse");
    preload_files(wanted).map(drop)
}

/// A file's name and content.
type PreloadFile = (&'static str, Cow<'static, [u8]>);

fn preload_files(wanted: RuntimeInjection) -> anyhow::Result<Vec<PreloadFile>> {
    let mut files: Vec<PreloadFile> = Vec::new();
    for (wanted, name, content) in
        [(wanted.openmp, OPENMP_LIBRARY, OPENMP_CONTENT), (wanted.libc, LIBC_LIBRARY, LIBC_CONTENT)]
    {
        ensure!(!wanted || !content.is_empty(), "{name} is not there for this architecture yet: run without");
        if wanted {
            files.push((name, content.into()));
        }
    }
    if wanted.java {
        let jar = java::find_jar()?;
        let jar = bounded::file(&jar, MAX_JAR_BYTES).with_context(|| jar.display().to_string())?;
        files.extend(java::read_library(&jar).map(|library| (JAVA_NATIVE_LIBRARY, library.into())));
        files.push((JAVA_AGENT, jar.into()));
    }
    Ok(files)
}

/// The most bytes of the agent for HotSpot; it has less than one MiB.
const MAX_JAR_BYTES: u64 = 16 << 20;

fn open_mount_point(root: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, INJECTION_DIR.trim_start_matches('/'), flags, Mode::empty(), resolve)
}

fn is_there(dir: &OwnedFd, name: &str) -> bool {
    rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// A read-only file system with these files in it, mounted nowhere yet (Linux 5.2).
fn detached_tmpfs(files: &[PreloadFile]) -> anyhow::Result<OwnedFd> {
    use rustix::mount::{
        fsconfig_create, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
    };
    let fs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("source", "elbowroom"), ("mode", "0755"), ("size", "4m")] {
        fsconfig_set_string(fs.as_fd(), key, value)?;
    }
    fsconfig_create(fs.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let tree = fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    for (name, content) in files {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&tree, *name, flags, Mode::from_raw_mode(0o755))?);
        file.write_all(content)?;
        // Whatever the umask.
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o755))?;
    }
    fsconfig_set_flag(fs.as_fd(), "ro")?;
    fsconfig_reconfigure(fs.as_fd())?;
    Ok(tree)
}
