//! The fields of an OCI bundle's `config.json` that matter here (opencontainers/runtime-spec, config.md).

use anyhow::Context;
use elbowroom_core::launch::{self, Plan, Room};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Absolute path of the container's root filesystem.
pub(crate) fn rootfs(bundle: &Path) -> anyhow::Result<PathBuf> {
    let config = read(&bundle.join("config.json"))?;
    let path =
        config.pointer("/root/path").and_then(Value::as_str).context("config.json has no root.path")?;
    Ok(bundle.join(path))
}

/// Carries a plan out: `hook` goes to the `createContainer` hooks, once, and variables to the environment. The file is replaced
/// in one step, where anything changes, and keeps its owner and mode; everything else in it keeps its value. `plan` makes the plan
/// of what the bundle asks for.
pub(crate) fn apply(bundle: &Path, hook: &Value, plan: impl FnOnce(&Asked) -> Plan) -> anyhow::Result<()> {
    let path = bundle.join("config.json");
    let mut config = read(&path)?;
    // Of another shape, it asks for nothing.
    let plan = plan(&Asked::deserialize(&config).unwrap_or_default());
    let mut changed = false;
    if plan.hook {
        let hooks = entry(&mut config, "hooks", json!({}))?;
        let list = list(hooks, "createContainer")?;
        changed = !list.contains(hook);
        if changed {
            list.push(hook.clone());
        }
    }
    if !plan.env.is_empty() {
        changed = true;
        let process = entry(&mut config, "process", json!({}))?;
        let vars = plan.env.iter().map(|(name, value)| json!(format!("{name}={value}")));
        list(process, "env")?.extend(vars);
    }
    match changed {
        true => replace(&path, &serde_json::to_vec(&config)?).with_context(|| path.display().to_string()),
        false => Ok(()),
    }
}

/// What a container's maker asks for, as far as a plan depends on it.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    pub(crate) annotations: HashMap<String, String>,
    process: Process,
    linux: Linux,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Process {
    env: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Linux {
    resources: Resources,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    cpu: Cpu,
    memory: Memory,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Cpu {
    quota: i64,
    period: u64,
    cpus: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Memory {
    limit: i64,
}

impl Asked {
    /// The room that its limits leave.
    pub(crate) fn room(&self) -> Room {
        let Resources { cpu, memory } = &self.linux.resources;
        Room::of_limits(cpu.quota, cpu.period, &cpu.cpus, memory.limit)
    }

    /// Whether its environment has a variable.
    pub(crate) fn sets(&self, name: &str) -> bool {
        launch::sets(&self.process.env, name)
    }
}

fn list<'a>(value: &'a mut Value, key: &str) -> anyhow::Result<&'a mut Vec<Value>> {
    entry(value, key, json!([]))?.as_array_mut().with_context(|| format!("{key} is not a list"))
}

/// The value of `key`, which is set to `default` where it is absent or null.
fn entry<'a>(value: &'a mut Value, key: &str, default: Value) -> anyhow::Result<&'a mut Value> {
    let object = value.as_object_mut().with_context(|| format!("{key} cannot be set: not in an object"))?;
    let slot = object.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = default;
    }
    Ok(slot)
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

fn replace(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    let old = std::fs::metadata(path)?;
    let new = path.with_file_name(format!(".config.json.elbowroom-{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text)?;
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
        file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        std::fs::rename(&new, path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_core::label::{Heed, Labels};

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
        let hook = json!({ "path": "/usr/bin/elbowroom", "args": ["elbowroom", "hook"] });
        for (before, after) in [
            (
                json!({ "x": 18446744073709551615u64 }),
                json!({ "x": 18446744073709551615u64, "hooks": { "createContainer": [hook] } }),
            ),
            (json!({ "hooks": null }), json!({ "hooks": { "createContainer": [hook] } })),
            (
                json!({ "hooks": { "prestart": [{ "path": "/a" }], "createContainer": [{ "path": "/b" }] } }),
                json!({ "hooks": { "prestart": [{ "path": "/a" }], "createContainer": [{ "path": "/b" }, hook] } }),
            ),
        ] {
            let dir = bundle(&before.to_string());
            let path = dir.path().join("config.json");
            std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            for _ in 0..2 {
                apply(dir.path(), &hook, |_| Plan { hook: true, ..Plan::default() }).unwrap();
                assert_eq!(read(&path).unwrap(), after);
            }
            assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
        }
    }

    #[test]
    fn a_plan_is_made_of_what_the_bundle_asks_for() {
        let before = json!({
            "annotations": { "elbowroom.dev/env": "on", "x": "y" },
            "process": { "env": ["PATH=/bin", "GOMAXPROCS=1"] },
            "linux": { "resources": { "cpu": { "quota": 150000, "period": 100000 }, "memory": { "limit": 1 << 30 } } },
        });
        let dir = bundle(&before.to_string());
        let seen = |asked: &Asked| {
            let labels = asked.annotations.iter().map(|(k, v)| (k.as_str(), v.as_str()));
            Plan::new(&Labels::read(labels, Heed::All), false, false, asked.room(), |name| asked.sets(name))
        };
        apply(dir.path(), &json!({}), seen).unwrap();
        let after = read(&dir.path().join("config.json")).unwrap();
        let vars: Vec<&str> =
            after["process"]["env"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(vars[..3], ["PATH=/bin", "GOMAXPROCS=1", "OMP_NUM_THREADS=2"]);
        assert!(after.get("hooks").is_none());
        let text = r#"{"annotations":{"elbowroom.dev/views":"off"},"process":{}}"#;
        let dir = bundle(text);
        apply(dir.path(), &json!({}), seen).unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.path().join("config.json")).unwrap(),
            text,
            "not even written"
        );
    }

    #[test]
    fn a_config_of_another_shape_is_left_alone() {
        let plan = Plan { hook: true, env: vec![("A", "b".into())] };
        for config in [
            "[]",
            r#"{"hooks":[]}"#,
            r#"{"hooks":{"createContainer":{}}}"#,
            r#"{"process":{"env":1}}"#,
            "{",
            "",
        ] {
            let dir = bundle(config);
            assert!(apply(dir.path(), &json!({}), |_| plan.clone()).is_err(), "{config}");
            assert_eq!(std::fs::read_to_string(dir.path().join("config.json")).unwrap(), config);
        }
    }
}
