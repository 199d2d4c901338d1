//! Disks that are really slow, and whose speed changes while they are used: slowness below the kernel's block layer, which
//! sees it as it sees any slow disk, in queues and waits.
//!
//! On this machine each disk is a process of its own, `qemu-storage-daemon`, that exports a throttled image through FUSE, and
//! a loop device on it with direct I/O. In a guest of `tools/vm -d ...` disks are NVMe devices that QEMU throttles; the guest
//! asks for another speed over a port.

use crate::procfs;
use crate::qmp::Qmp;
use crate::scope::{Created, Scope};
use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{MountFlags, mount};
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Bytes of a disk on this machine: with requests at random places, only that it is more than any cache.
const SIZE: u64 = 1 << 30;

/// Where `tools/vm` tells a guest the port to its emulator.
const GUEST_PORT: &str = "ELBOWROOM_VM_MONITOR";

/// A slow disk. Dropping it takes it down.
#[derive(Debug)]
pub(crate) struct SlowDisk {
    /// Its name below `/sys/block`.
    pub(crate) name: String,
    /// `MAJOR:MINOR`.
    pub(crate) number: String,
    throttle: Throttle,
    scope: Arc<Scope>,
    parts: Vec<Created>,
}

#[derive(Debug)]
enum Throttle {
    None,
    Daemon(Mutex<Qmp<UnixStream>>),
    Guest { id: String, port: Arc<Mutex<Qmp<File>>> },
}

/// `count` disks of `bytes_per_s`, equal in everything. On this machine they keep nothing of what is written and read as
/// zeros, so no memory and no other disk is involved.
pub(crate) fn open(scope: &Arc<Scope>, count: usize, bytes_per_s: u64) -> Result<Vec<SlowDisk>> {
    let disks = match std::env::var_os(GUEST_PORT) {
        Some(port) => in_guest(scope, count, Path::new(&port))?,
        None => (0..count).map(|i| on_host(scope, i)).collect::<Result<_>>()?,
    };
    disks.iter().try_for_each(|disk| disk.set_speed(bytes_per_s))?;
    Ok(disks)
}

/// `count` disks for file systems. In a guest they are of `bytes_per_s`; on this machine they are as fast as what is below
/// their images, because QEMU's FUSE export loses concurrent writes: before QEMU 10.1, `fuse_write` polls, and the next request
/// then overwrites the buffer it writes from.
pub(crate) fn open_for_files(scope: &Arc<Scope>, count: usize, bytes_per_s: u64) -> Result<Vec<SlowDisk>> {
    if let Some(port) = std::env::var_os(GUEST_PORT) {
        let disks = in_guest(scope, count, Path::new(&port))?;
        disks.iter().try_for_each(|disk| disk.set_speed(bytes_per_s))?;
        return Ok(disks);
    }
    let dir = fs::canonicalize(scope.dir()).context("while finding the run's directory")?;
    let disk = |i| {
        let image = dir.join(format!("image{i}"));
        File::create(&image).and_then(|f| f.set_len(SIZE)).context("while making an image")?;
        loop_device(scope, &image, Throttle::None, Vec::new())
    };
    (0..count).map(disk).collect()
}

/// Whether this is a guest of `tools/vm` with disks of its own.
pub(crate) fn is_guest() -> bool {
    std::env::var_os(GUEST_PORT).is_some()
}

/// Makes an ext4 on a disk and mounts it in the run's directory.
pub(crate) fn mount_ext4(scope: &Scope, disk: &SlowDisk) -> Result<PathBuf> {
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(disk.path());
    let out = make.output().context("while running mkfs.ext4")?;
    ensure!(out.status.success(), "mkfs.ext4: {}", String::from_utf8_lossy(&out.stderr).trim());
    let at = fs::canonicalize(scope.dir()).context("while finding the run's directory")?.join("files");
    fs::create_dir(&at).context("while making a mount point")?;
    scope.add(Created::Mount(at.clone()))?;
    mount(disk.path(), &at, "ext4", MountFlags::empty(), None).context("while mounting ext4")?;
    Ok(at)
}

impl SlowDisk {
    /// Its device node.
    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// Makes it this fast from now on: bytes per second, read and written together.
    pub(crate) fn set_speed(&self, bytes_per_s: u64) -> Result<()> {
        let done = match &self.throttle {
            Throttle::None => bail!("nothing makes {} slow", self.name),
            Throttle::Daemon(qmp) => {
                let limits = json!({ "bps-total": bytes_per_s });
                let arguments = json!({ "path": "/objects/speed", "property": "limits", "value": limits });
                qmp.lock().expect("no holder of this lock panics").execute("qom-set", &arguments)
            }
            Throttle::Guest { id, port } => {
                let mut arguments = json!({ "device": id, "bps": bytes_per_s });
                for other in ["bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"] {
                    arguments[other] = json!(0);
                }
                port.lock()
                    .expect("no holder of this lock panics")
                    .execute("block_set_io_throttle", &arguments)
            }
        };
        done.with_context(|| format!("while setting the speed of {}", self.name))
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.parts.iter().rev().for_each(|part| self.scope.take_down(part));
    }
}

fn on_host(scope: &Arc<Scope>, i: usize) -> Result<SlowDisk> {
    let dir = fs::canonicalize(scope.dir()).context("while finding the run's directory")?; // as the kernel names it
    let file = |kind: &str| dir.join(format!("disk{i}.{kind}"));
    let (export, socket, log) = (file("export"), file("qmp"), file("log"));
    File::create(&export).context("while making a mount point")?;
    let mut parts = vec![Created::Mount(export.clone())];
    scope.add(parts[0].clone())?;
    let log_file = File::create(&log).context("while making a log for the storage daemon")?;
    let mut command = Command::new("qemu-storage-daemon");
    // What it starts with is no matter; a limit of none would leave the group without a timer.
    command.args(["--object", "throttle-group,id=speed,x-bps-total=1000000", "--blockdev"]);
    command.arg(format!("null-co,node-name=image,size={SIZE},read-zeroes=on"));
    command.args(["--blockdev", "throttle,node-name=slow,file=image,throttle-group=speed"]);
    command.arg("--chardev").arg(format!("socket,id=qmp,path={},server=on,wait=off", socket.display()));
    command.args(["--monitor", "qmp", "--export"]);
    command.arg(format!("fuse,id=export,node-name=slow,mountpoint={},writable=on", export.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file);
    let child = command.spawn().context("while starting qemu-storage-daemon; tools/setup lab brings it")?;
    let pid = child.id() as i32;
    parts.insert(0, scope.add_child(&child)?); // the mount is taken down before the process that serves it
    scope.wait_for("the storage daemon's export", Duration::from_secs(10), || {
        if procfs::is_zombie(pid) {
            bail!("qemu-storage-daemon ended: {}", fs::read_to_string(&log).unwrap_or_default().trim());
        }
        Ok(fs::metadata(&export).is_ok_and(|meta| meta.len() == SIZE))
    })?;
    let stream = UnixStream::connect(&socket).context("while connecting to the storage daemon")?;
    let qmp = Mutex::new(Qmp::new(stream)?);
    loop_device(scope, &export, Throttle::Daemon(qmp), parts)
}

/// `parts` are what it stands on.
fn loop_device(
    scope: &Arc<Scope>,
    file: &Path,
    throttle: Throttle,
    mut parts: Vec<Created>,
) -> Result<SlowDisk> {
    let device = Created::Loop { backing: file.to_owned() };
    scope.add(device.clone())?;
    parts.push(device);
    let out = Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file).output();
    let out = out.context("while running losetup")?;
    ensure!(out.status.success(), "losetup: {}", String::from_utf8_lossy(&out.stderr).trim());
    let name = String::from_utf8_lossy(&out.stdout).trim().trim_start_matches("/dev/").to_owned();
    // The kernel keeps the scheduler that whoever had the device before chose: bfq would divide by weight.
    fs::write(format!("/sys/block/{name}/queue/scheduler"), "none")
        .with_context(|| format!("while scheduling {name}"))?;
    Ok(SlowDisk { number: number(&name)?, name, throttle, scope: Arc::clone(scope), parts })
}

fn in_guest(scope: &Arc<Scope>, count: usize, port: &Path) -> Result<Vec<SlowDisk>> {
    let file = OpenOptions::new().read(true).write(true).open(port);
    let file = file.with_context(|| format!("while opening {}", port.display()))?;
    let qmp = Arc::new(Mutex::new(Qmp::new(file)?));
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").context("while reading /sys/block")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let serial = fs::read_to_string(format!("/sys/block/{name}/device/serial")).unwrap_or_default();
        if serial.trim().starts_with("disk") {
            found.push((serial.trim().to_owned(), name));
        }
    }
    if found.len() < count {
        bail!("this needs {count} disks and the guest has {}: give tools/vm more of -d", found.len());
    }
    found.sort();
    let disk = |(id, name): (String, String)| {
        let number = number(&name)?;
        let throttle = Throttle::Guest { id, port: Arc::clone(&qmp) };
        Ok(SlowDisk { name, number, throttle, scope: Arc::clone(scope), parts: Vec::new() })
    };
    found.into_iter().take(count).map(disk).collect()
}

fn number(name: &str) -> Result<String> {
    let path = format!("/sys/block/{name}/dev");
    let text = fs::read_to_string(&path).with_context(|| format!("while reading {path}"))?;
    Ok(text.trim().to_owned())
}
