//! `cdi`, `oci-hooks`: files that tell engines to run the hook.
//!
//! Both outlive this program on a host: an engine that finds a hook's program missing does not start the container. So what they name
//! is a shell that runs this program where it is there.

use anyhow::{Context, Result};
use clap::Args;
use elbowroom_agent::engines::oci;
use elbowroom_agent::engines::oci::{HOOK_ENV, hook};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file's name in its directory.
const FILE_NAME: &str = "elbowroom.json";
/// `$0` is the program. Nothing is said where it is missing: a hook that fails keeps the container from starting.
const GUARDED_EXEC: &str = r#"[ ! -x "$0" ] || exec "$0" "$@""#;

/// Arguments of `cdi`.
#[derive(Args)]
pub(crate) struct CdiArgs {
    /// Directory to write elbowroom.json into; /var/run/cdi is read too, and is empty after a restart.
    #[arg(default_value = "/etc/cdi")]
    dir: PathBuf,
}

/// Arguments of `oci-hooks`.
#[derive(Args)]
pub(crate) struct OciHooksArgs {
    /// Directory to write elbowroom.json into.
    #[arg(default_value = "/etc/containers/oci/hooks.d")]
    dir: PathBuf,
}

/// Writes the device's specification; says where.
pub(crate) fn cdi(run_dir: &Path, args: &CdiArgs) -> Result<String> {
    write_atomically(&args.dir, &cdi_device(&guarded_command(run_dir)?))
}

/// Writes the hook's file; says where.
pub(crate) fn oci_hooks(run_dir: &Path, args: &OciHooksArgs) -> Result<String> {
    write_atomically(&args.dir, &oci_hook(&guarded_command(run_dir)?))
}

/// Path and arguments of the hook.
fn guarded_command(run_dir: &Path) -> Result<(&'static str, Vec<String>)> {
    let program = oci::hook_program().context("this program's own path")?;
    let program = program.to_str().context("this program's path is not UTF-8")?;
    let run_dir = std::path::absolute(run_dir)?;
    let [_, words @ ..] = hook::hook_args(run_dir.to_str().context("--run-dir is not UTF-8")?);
    let mut args = ["sh", "-c", GUARDED_EXEC, program].map(str::to_owned).to_vec();
    args.extend(words);
    Ok(("/bin/sh", args))
}

/// Container Device Interface (<https://github.com/cncf-tags/container-device-interface>, SPEC.md). 0.5.0 is the newest version that
/// Podman 4.3 reads.
fn cdi_device((path, args): &(&str, Vec<String>)) -> Value {
    json!({
        "cdiVersion": "0.5.0",
        "kind": "elbowroom.dev/view",
        "devices": [{
            "name": "on",
            "containerEdits": { "hooks": [{ "hookName": "createContainer", "path": path, "args": args, "env": HOOK_ENV }] },
        }],
    })
}

/// containers/common, pkg/hooks/docs/oci-hooks.5.md.
fn oci_hook((path, args): &(&str, Vec<String>)) -> Value {
    json!({
        "version": "1.0.0",
        "hook": { "path": path, "args": args, "env": HOOK_ENV },
        "when": { "always": true },
        "stages": ["createContainer"],
    })
}

/// In one step: an engine reads the directory at any time.
fn write_atomically(dir: &Path, text: &Value) -> Result<String> {
    let path = dir.join(FILE_NAME);
    let new = dir.join(format!(".{FILE_NAME}.{}", std::process::id()));
    let written = || -> Result<()> {
        std::fs::create_dir_all(dir)?;
        let mut file = std::fs::File::create(&new)?;
        file.write_all((serde_json::to_string_pretty(text)? + "\n").as_bytes())?;
        std::fs::rename(&new, &path)?;
        Ok(())
    };
    written()
        .inspect_err(|_| drop(std::fs::remove_file(&new)))
        .with_context(|| path.display().to_string())?;
    Ok(format!("{}\n", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_names_the_hook_and_starts_without_it() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        let hook = guarded_command(Path::new("/run/x")).unwrap();
        for text in [cdi_device(&hook), oci_hook(&hook)] {
            write_atomically(&below, &text).unwrap();
            let read: Value = serde_json::from_slice(&std::fs::read(below.join(FILE_NAME)).unwrap()).unwrap();
            assert_eq!(read, text);
            assert_eq!(std::fs::read_dir(&below).unwrap().count(), 1, "no temporary file is left");
        }
        let mut args = hook.1;
        assert_eq!(args[4..], ["hook", "--run-dir", "/run/x"]);
        args[3] = "/nowhere/elbowroom".into();
        let status = std::process::Command::new(hook.0).args(&args[1..]).status().unwrap();
        assert!(status.success(), "a program that is gone keeps no container from starting");
        assert!(write_atomically(Path::new("/proc/none"), &Value::Null).is_err());
    }
}
