//! The fields of an OCI bundle's `config.json` that matter here (opencontainers/runtime-spec, config.md).

use super::HOOK_ENV;
use anyhow::{Context, bail};
use elbowroom_linux::bounded;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// The file of a bundle that says what the container is.
const CONFIG: &str = "config.json";

/// Absolute path of the container's root filesystem.
pub(crate) fn rootfs(bundle: &Path) -> anyhow::Result<PathBuf> {
    let config = read(bundle)?;
    let path =
        config.pointer("/root/path").and_then(Value::as_str).context("config.json has no root.path")?;
    Ok(bundle.join(path))
}

/// Changes the bundle's `config.json`, as [`write`] does, where anything changed.
pub(crate) fn edit(
    bundle: &Path,
    change: impl FnOnce(&mut Value) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let before = read(bundle)?;
    let mut config = before.clone();
    change(&mut config)?;
    if config == before { Ok(()) } else { write(bundle, &config) }
}

/// Adds `program` with `args` to the `createContainer` hooks, once; a version before this one added it without an environment.
pub(crate) fn add_hook(config: &mut Value, program: &Path, args: &[String]) -> anyhow::Result<()> {
    let path = program.to_str().context("this program's path is not UTF-8")?;
    let bare = json!({ "path": path, "args": args });
    let hook = json!({ "path": path, "args": args, "env": HOOK_ENV });
    let hooks = entry(config, "hooks", json!({}))?;
    let Some(list) = entry(hooks, "createContainer", json!([]))?.as_array_mut() else {
        bail!("hooks.createContainer is not a list");
    };
    list.retain(|there| *there != bare);
    if !list.contains(&hook) {
        list.push(hook);
    }
    Ok(())
}

/// The value of `key`, which is set to `default` where it is absent or null.
pub(super) fn entry<'a>(value: &'a mut Value, key: &str, default: Value) -> anyhow::Result<&'a mut Value> {
    let object = value.as_object_mut().with_context(|| format!("{key} cannot be set: not in an object"))?;
    let slot = object.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = default;
    }
    Ok(slot)
}

/// The bundle's `config.json`.
pub(super) fn read(bundle: &Path) -> anyhow::Result<Value> {
    let path = bundle.join(CONFIG);
    let text = bounded::file(&path, bounded::KERNEL_FILE).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// Replaces the bundle's `config.json` in one step. The file keeps its owner and mode, and unchanged fields keep their values.
pub(super) fn write(bundle: &Path, config: &Value) -> anyhow::Result<()> {
    let path = bundle.join(CONFIG);
    replace(&path, &serde_json::to_vec(config)?).with_context(|| path.display().to_string())
}

fn replace(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    let old = std::fs::metadata(path)?;
    let new = path.with_file_name(format!(".config.json.elbowroom-{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text)?;
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
        file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        put_in_place(&new, path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })?;
    Ok(())
}

/// Gives `new` the name `path`, by exchanging the two where the file system can. When a file is renamed over another, ext4 begins to write
/// its blocks at once (fs/ext4/namei.c, `ext4_rename`), which adds milliseconds to a container's start. Durability is not needed: no bundle
/// is used again after a crash of the machine.
fn put_in_place(new: &Path, path: &Path) -> std::io::Result<()> {
    match renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE) {
        // The old file is left under the new name; nothing reads it.
        Ok(()) => {
            let _ = std::fs::remove_file(new);
            Ok(())
        }
        Err(_) => std::fs::rename(new, path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(config: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        dir
    }

    #[test]
    fn the_root_is_relative_to_the_bundle_or_absolute() {
        let dir = bundle(r#"{"root":{"path":"rootfs"}}"#);
        assert_eq!(rootfs(dir.path()).unwrap(), dir.path().join("rootfs"));
        let dir = bundle(r#"{"root":{"path":"/var/lib/x/merged"}}"#);
        assert_eq!(rootfs(dir.path()).unwrap(), Path::new("/var/lib/x/merged"));
        assert!(rootfs(bundle("{}").path()).is_err());
    }

    #[test]
    fn the_hook_is_added_once_and_nothing_else_changes() {
        let bare = json!({ "path": "/usr/bin/elbowroom", "args": ["elbowroom", "hook"] });
        let hook = json!({ "path": "/usr/bin/elbowroom", "args": ["elbowroom", "hook"], "env": HOOK_ENV });
        for (before, after) in [
            (
                json!({ "x": 18446744073709551615u64 }),
                json!({ "x": 18446744073709551615u64, "hooks": { "createContainer": [hook] } }),
            ),
            (json!({ "hooks": null }), json!({ "hooks": { "createContainer": [hook] } })),
            (
                json!({ "hooks": { "createContainer": [bare] } }),
                json!({ "hooks": { "createContainer": [hook] } }),
            ),
            (
                json!({ "hooks": { "prestart": [{ "path": "/a" }], "createContainer": [{ "path": "/b" }] } }),
                json!({ "hooks": { "prestart": [{ "path": "/a" }], "createContainer": [{ "path": "/b" }, hook] } }),
            ),
        ] {
            let dir = bundle(&before.to_string());
            let path = dir.path().join("config.json");
            std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            for _ in 0..2 {
                let args = ["elbowroom".into(), "hook".into()];
                edit(dir.path(), |config| add_hook(config, Path::new("/usr/bin/elbowroom"), &args)).unwrap();
                assert_eq!(read(dir.path()).unwrap(), after);
            }
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
        }
    }

    #[test]
    fn a_config_of_another_shape_is_left_alone() {
        for config in ["[]", r#"{"hooks":[]}"#, r#"{"hooks":{"createContainer":{}}}"#, "{", ""] {
            let dir = bundle(config);
            assert!(edit(dir.path(), |config| add_hook(config, Path::new("/x"), &[])).is_err(), "{config}");
            assert_eq!(std::fs::read_to_string(dir.path().join("config.json")).unwrap(), config);
        }
    }
}
