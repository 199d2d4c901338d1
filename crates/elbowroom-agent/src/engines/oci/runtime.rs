//! The runtime wrapper, for engines without hooks of their own (`docker run --runtime elbowroom`). It puts the hook into the
//! bundle of a container that is being made, and becomes the real runtime with the same arguments. Whatever goes wrong, the
//! real runtime runs, on the bundle as it was.

use super::{bundle, hook, injection, seccomp, write_stderr};
use crate::config::AgentConfig;
use anyhow::{Context, bail};
use elbowroom_client::control as client;
use elbowroom_types::launch::LaunchPlan;
use serde_json::Value;
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The name of the program.
pub(crate) const PROGRAM: &str = "elbowroom-runtime";
/// Environment: the real runtime, a path or a name.
const RUNTIME_ENV: &str = "ELBOWROOM_OCI_RUNTIME";
/// Environment: the agent's directory, where it is not the usual one. The command line's `--run-dir` reads the same.
const RUN_DIR_ENV: &str = "ELBOWROOM_RUN_DIR";

/// Global options of runc, crun and youki that take a value.
const GLOBAL_VALUES: [&str; 9] =
    ["cgroup-manager", "criu", "l", "log", "log-format", "log-level", "r", "root", "rootless"];
/// Options of their `create` and `run` that take a value.
const COMMAND_VALUES: [&str; 4] = ["console-socket", "pid-file", "pidfd-socket", "preserve-fds"];
/// Global options that take none.
const GLOBAL_SWITCHES: [&str; 8] =
    ["debug", "h", "help", "s", "systemd-cgroup", "systemd-log", "v", "version"];

/// Becomes the real runtime; returns only where there is none.
pub(super) fn main(args: &[OsString]) -> ExitCode {
    // A panic has printed its message already.
    if let Some(bundle) = bundle_of(args)
        && let Ok(Err(error)) = catch_unwind(|| patch_bundle(&bundle))
    {
        write_stderr(&format!("{PROGRAM}: {}: no view: {error:#}", bundle.display()));
    }
    match real_runtime() {
        Ok(runtime) => {
            let error = Command::new(&runtime).args(args).exec();
            write_stderr(&format!("{PROGRAM}: {}: {error}", runtime.display()));
        }
        Err(error) => write_stderr(&format!("{PROGRAM}: {error:#}")),
    }
    ExitCode::FAILURE
}

fn patch_bundle(bundle: &Path) -> anyhow::Result<()> {
    let program = super::hook_program().context("this program's own path")?;
    let program = program.to_str().context("this program's path is not UTF-8")?;
    let run_dir = env::var_os(RUN_DIR_ENV).unwrap_or_else(|| client::DEFAULT_RUN_DIR.into());
    let run_dir = run_dir.to_str().with_context(|| format!("{RUN_DIR_ENV} is not UTF-8"))?;
    // One that is broken keeps no container from starting; the agent says what is wrong with it.
    let node = AgentConfig::load(None).unwrap_or_default().containers;
    let mut config = bundle::read(bundle)?;
    let plan = injection::launch_plan(bundle, &config, Path::new(run_dir), &node);
    if plan.hook || !plan.injections.is_none() {
        apply_plan(&mut config, plan, Path::new(program), run_dir)?;
        bundle::write(bundle, &config)?;
    }
    if plan.seccomp
        && let Err(error) =
            bundle::edit(bundle, |config| seccomp::inject_listener(config, Path::new(run_dir)))
    {
        write_stderr(&format!("{PROGRAM}: {}: no answers to system calls: {error:#}", bundle.display()));
    }
    Ok(())
}

/// Puts what `plan` says into a bundle's configuration: `program` as the hook, for the agent of `run_dir`, and variables.
///
/// # Errors
/// A configuration of another shape. It may be half changed then, and is not to be used.
pub fn apply_plan(config: &mut Value, plan: LaunchPlan, program: &Path, run_dir: &str) -> anyhow::Result<()> {
    let files = injection::hook_arguments(plan.injections);
    if plan.hook || !files.is_empty() {
        let args = [&hook::hook_args(run_dir)[..], &files].concat();
        bundle::add_hook(config, program, &args)?;
    }
    if plan.injections.is_none() { Ok(()) } else { injection::add_variables(config, plan) }
}

/// The bundle, if these are the arguments of a command that makes a container. An option that is not known may or may not
/// take a value; rather than guess, the container is left alone.
pub fn bundle_of(args: &[OsString]) -> Option<PathBuf> {
    let mut rest = args.iter().map(|arg| arg.as_bytes());
    loop {
        let option = GoFlag::read(rest.next()?)?;
        match option {
            GoFlag::Word(b"create" | b"run") => break,
            GoFlag::Word(_) => return None,
            GoFlag::WithValue(..) => {}
            GoFlag::Plain(name) if GLOBAL_SWITCHES.iter().any(|known| known.as_bytes() == name) => {}
            GoFlag::Plain(name) if GLOBAL_VALUES.iter().any(|known| known.as_bytes() == name) => {
                rest.next()?;
            }
            GoFlag::Plain(_) => return None,
        }
    }
    let mut bundle = PathBuf::from(".");
    while let Some(arg) = rest.next() {
        match GoFlag::read(arg) {
            Some(GoFlag::Plain(b"bundle" | b"b")) => bundle = OsStr::from_bytes(rest.next()?).into(),
            Some(GoFlag::WithValue(b"bundle" | b"b", value)) => bundle = OsStr::from_bytes(value).into(),
            Some(GoFlag::Plain(name)) if COMMAND_VALUES.iter().any(|known| known.as_bytes() == name) => {
                rest.next()?;
            }
            None => break,
            Some(_) => {}
        }
    }
    Some(bundle)
}

/// One argument as Go's flag package reads it: one dash or two are the same.
enum GoFlag<'a> {
    Word(&'a [u8]),
    Plain(&'a [u8]),
    WithValue(&'a [u8], &'a [u8]),
}

impl<'a> GoFlag<'a> {
    /// `None` for `--`, which ends the options.
    fn read(arg: &'a [u8]) -> Option<Self> {
        let name = match arg {
            b"--" => return None,
            b"-" | b"" => return Some(Self::Word(arg)),
            [b'-', b'-', name @ ..] | [b'-', name @ ..] => name,
            word => return Some(Self::Word(word)),
        };
        Some(match name.iter().position(|byte| *byte == b'=') {
            Some(at) => Self::WithValue(&name[..at], &name[at + 1..]),
            None => Self::Plain(name),
        })
    }
}

/// What [`RUNTIME_ENV`] names, else `runc`, looked up in PATH; never this program itself.
fn real_runtime() -> anyhow::Result<PathBuf> {
    let name = env::var_os(RUNTIME_ENV).filter(|name| !name.is_empty()).unwrap_or_else(|| "runc".into());
    let path = env::var_os("PATH")
        .unwrap_or_else(|| "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into());
    let own = super::own_path().ok();
    match find_runtime(&name, &path, own.as_deref()) {
        Some(runtime) => Ok(runtime),
        None => bail!("no runtime {name:?} in PATH: install it, or name another in {RUNTIME_ENV}"),
    }
}

fn find_runtime(name: &OsStr, path: &OsStr, own: Option<&Path>) -> Option<PathBuf> {
    let candidates: Vec<PathBuf> = match name.as_bytes().contains(&b'/') {
        true => vec![name.into()],
        false => env::split_paths(path).map(|dir| dir.join(name)).collect(),
    };
    // A link of that name to this program would start it again and again.
    let usable =
        |path: &PathBuf| path.is_file() && (own.is_none() || path.canonicalize().ok().as_deref() != own);
    candidates.into_iter().find(usable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_is_found_in_the_arguments_that_engines_use() {
        for (line, expect) in [
            // containerd-shim-runc-v2
            (
                "--root /run/docker/runtime-runc/moby --log /run/x/log.json --log-format json --systemd-cgroup create \
                 --bundle /run/x --pid-file /run/x/init.pid --console-socket /tmp/pty.sock 4f5e",
                Some("/run/x"),
            ),
            // conmon
            (
                "--systemd-cgroup --log-format=json --root=/run/runc create -b /b --pid-file /p 4f5e",
                Some("/b"),
            ),
            ("-log /l create --bundle=/b x", Some("/b")),
            ("--cgroup-manager cgroupfs --log-level warn run -b=/b x", Some("/b")),
            ("run x", Some(".")),
            ("--root create run --bundle b x", Some("b")),
            ("create --pid-file --bundle x", Some(".")),
            ("create -- --bundle /b", Some(".")),
            ("start x", None),
            ("--root /r state create", None),
            ("--root /r delete --force x", None),
            ("--new-option run create x", None),
            ("--new-option=1 create -b /b x", Some("/b")),
            ("features", None),
            ("--version", None),
            ("create --bundle", None),
            ("--root", None),
            ("", None),
        ] {
            let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(bundle_of(&args).as_deref(), expect.map(Path::new), "{line}");
        }
    }

    #[test]
    fn the_real_runtime_is_never_the_wrapper_itself() {
        let dir = tempfile::tempdir().unwrap();
        let (wrapper, first, second) =
            (dir.path().join("elbowroom"), dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&wrapper, "").unwrap();
        for dir in [&first, &second] {
            std::fs::create_dir(dir).unwrap();
        }
        std::os::unix::fs::symlink(&wrapper, first.join("runc")).unwrap();
        std::fs::write(second.join("runc"), "").unwrap();
        let path = env::join_paths([&first, &second]).unwrap();
        let own = wrapper.canonicalize().unwrap();
        assert_eq!(find_runtime("runc".as_ref(), &path, Some(&own)), Some(second.join("runc")));
        assert_eq!(find_runtime(first.join("runc").as_ref(), &path, Some(&own)), None);
        assert_eq!(find_runtime("crun".as_ref(), &path, Some(&own)), None);
    }
}
