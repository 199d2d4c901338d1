//! Views in containers from their first instruction on: an OCI `createContainer` hook and a runtime that puts the hook into
//! the bundle for engines that cannot.
//!
//! Both fail open: whatever goes wrong, the container starts, with the host's files.
//!
//! They are a small program of their own, `elbowroom-runtime`: engines run it several times for a container's start, and a large
//! program takes longer to begin.

pub(crate) mod bundle;
pub mod hook;
pub mod injection;
pub(crate) mod runtime;
pub mod seccomp;

pub use hook::parse_state;
pub use injection::bundle_container;
pub use runtime::{apply_plan, bundle_of};

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// The program `elbowroom-runtime`: the hook, if that is its first argument, else the runtime.
pub fn main() -> ExitCode {
    elbowroom_linux::process::use_one_malloc_arena();
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    match args.split_first() {
        Some((verb, rest)) if verb == hook::VERB => hook::main(rest),
        _ => runtime::main(&args),
    }
}

/// Says something on stderr, whether it is read or not: `eprintln!` panics where it is not, and the container would not
/// start.
fn write_stderr(what: &str) {
    elbowroom_client::output::say(what);
}

/// The whole environment of hooks. Without one, older versions of runc (seen with 1.1.5) give them the container's, which its image sets.
/// A hook would then load the image's `LD_PRELOAD`, as root and outside of the container (as in CVE-2025-23266, in a hook of NVIDIA's).
pub const HOOK_ENV: [&str; 1] = ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"];

/// The program that hooks run: `elbowroom-runtime` beside this one, or, where only this one was installed, this one.
pub fn hook_program() -> std::io::Result<PathBuf> {
    let own = own_path()?;
    let runtime = own.with_file_name(runtime::PROGRAM);
    Ok(if runtime.is_file() { runtime } else { own })
}

/// Where this program is, or was before an upgrade put another file in its place (proc(5), /proc/pid/exe).
fn own_path() -> std::io::Result<PathBuf> {
    let own = env::current_exe()?;
    Ok(own.to_str().map_or(own.clone(), |path| path.trim_end_matches(" (deleted)").into()))
}
