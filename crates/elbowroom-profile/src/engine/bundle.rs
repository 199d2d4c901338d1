//! Containers of the host's own programs: a root of a few directories over which the host's `/usr` is mounted, and the OCI
//! configuration for runtimes that have no engine around them.

use super::{EngineError, ProfilerRun, StartTarget, file_error};
use elbowroom_linux::bounded;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Directories of the root; what is mounted over is among them.
pub(super) const DIRECTORIES: [&str; 9] =
    ["dev", "etc", "etc/alternatives", "proc", "run", "sys", "tmp", "usr", "root"];
/// Links of a merged `/usr`.
pub(super) const LINKS: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// What of the host is seen inside, read-only.
pub(super) const HOST_PATHS: [&str; 2] = ["/usr", "/etc/alternatives"];
pub(super) const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Those of [`HOST_PATHS`] that there are.
pub(super) fn present_host_paths() -> impl Iterator<Item = &'static str> {
    HOST_PATHS.into_iter().filter(|path| Path::new(path).is_dir())
}

/// The root that host programs run in; made once.
pub(super) fn root(dir: &Path) -> Result<PathBuf, EngineError> {
    let root = dir.join("root");
    for name in DIRECTORIES {
        let path = root.join(name);
        fs::create_dir_all(&path).map_err(file_error("making", &path))?;
    }
    let tmp = root.join("tmp");
    let opened_up =
        fs::File::open(&tmp).and_then(|dir| dir.set_permissions(fs::Permissions::from_mode(0o1777)));
    opened_up.map_err(file_error("opening up", &tmp))?;
    for name in LINKS {
        let path = root.join(name);
        match symlink(format!("usr/{name}"), &path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(file_error("linking", &path)(error));
            }
            _ => {}
        }
    }
    Ok(root)
}

/// Refuses what is no bundle.
pub(super) fn check(dir: &Path) -> Result<(), EngineError> {
    configuration(dir).map(|_| ())
}

/// Writes the bundle of one container.
pub(super) fn write(run: &ProfilerRun, subject: &StartTarget, name: &str) -> Result<(), EngineError> {
    let mut config = match subject {
        StartTarget::Bundle(dir) => {
            let mut config = configuration(dir)?;
            let root = config["root"]["path"].as_str().unwrap_or("rootfs").to_owned();
            let root = dir.join(root);
            config["root"]["path"] = json!(std::path::absolute(&root).map_err(file_error("finding", &root))?);
            config
        }
        StartTarget::Host(words) => host_configuration(&root(&run.dir)?, words),
        StartTarget::Image(..) => unreachable!("`prepare` refuses images without an engine"),
    };
    config["process"]["terminal"] = json!(false);
    // One cgroup each: containers of one bundle would share the one that it names.
    config["linux"]["cgroupsPath"] = json!(format!("/{name}"));
    let dir = run.dir.join("bundles").join(name);
    fs::create_dir_all(&dir).map_err(file_error("making", &dir))?;
    let path = dir.join("config.json");
    fs::write(&path, config.to_string()).map_err(file_error("writing", &path))
}

fn configuration(dir: &Path) -> Result<Value, EngineError> {
    let path = dir.join("config.json");
    let text = bounded::file_text(&path, bounded::KERNEL_FILE).map_err(file_error("reading", &path))?;
    let wrong =
        |why: String| EngineError::File { operation: "reading", path: path.display().to_string(), why };
    let config: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    match config["process"]["args"].is_array() && config["root"].is_object() {
        true => Ok(config),
        false => {
            Err(wrong("it is no OCI configuration: it needs \"process\" with \"args\", and \"root\"".into()))
        }
    }
}

/// What `runc spec` would write, with the host's `/usr`, without a terminal and without a network.
pub(super) fn host_configuration(root: &Path, words: &[String]) -> Value {
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]}),
        json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["nosuid", "noexec", "newinstance", "mode=0620"]}),
        json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev", "mode=1777"]}),
        json!({"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"]}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]}),
        json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]}),
    ];
    mounts.extend(present_host_paths().map(
        |path| json!({"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro"]}),
    ));
    let namespaces = ["pid", "ipc", "uts", "mount", "network"].map(|kind| json!({"type": kind}));
    let capabilities = json!(["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]);
    json!({
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": words,
            "env": [PATH],
            "cwd": "/",
            "noNewPrivileges": true,
            "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
        },
        "root": {"path": root, "readonly": true},
        "mounts": mounts,
        "linux": {
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "namespaces": namespaces,
            "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_container_of_a_bundle_gets_a_cgroup_of_its_own_and_no_terminal() {
        let dir = tempfile::tempdir().unwrap();
        let run = ProfilerRun { tag: "1-2".into(), dir: dir.path().to_owned() };
        let bundle = dir.path().join("user");
        fs::create_dir(&bundle).unwrap();
        let config = r#"{"process":{"args":["sh"],"terminal":true},"root":{"path":"rootfs"},"linux":{"cgroupsPath":"/shared"}}"#;
        fs::write(bundle.join("config.json"), config).unwrap();
        write(&run, &StartTarget::Bundle(bundle.clone()), "a").unwrap();
        let written = configuration(&dir.path().join("bundles/a")).unwrap();
        assert_eq!(written["linux"]["cgroupsPath"], "/a");
        assert_eq!(written["process"]["terminal"], false);
        assert_eq!(written["root"]["path"], bundle.join("rootfs").to_str().unwrap());
    }

    #[test]
    fn what_is_no_bundle_is_refused_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().contains("config.json"));
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        assert!(check(dir.path()).unwrap_err().to_string().contains("no OCI configuration"));
    }
}
