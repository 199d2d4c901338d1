//! `host`: any verb in the namespaces of the host, for a container that has the host's process ids.

use anyhow::{Context, Result};
use clap::Args;
use elbowroom_agent::view_server::image;
use elbowroom_linux::host_namespaces::{copy_tree, enter_host};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of `host`.
#[derive(Args)]
pub(crate) struct HostArgs {
    /// The verb and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "VERB")]
    words: Vec<OsString>,
}

/// What has to be known of the verb before the host is entered.
pub(crate) struct HostVerb {
    pub(crate) run_dir: PathBuf,
    pub(crate) is_agent: bool,
}

/// Becomes the verb; returns where that fails. `parse` reads the words as this program's command line.
pub(crate) fn host(
    run_dir: &Path,
    args: &HostArgs,
    parse: impl FnOnce(&[OsString]) -> Result<HostVerb>,
) -> Result<std::convert::Infallible> {
    let run_dir = std::path::absolute(run_dir)?;
    let words = [OsString::from("elbowroom"), "--run-dir".into(), run_dir.into()]
        .into_iter()
        .chain(args.words.iter().cloned());
    let words: Vec<OsString> = words.collect();
    // Before anything is entered or mounted. Help and versions end here.
    let verb = parse(&words)?;
    let own = std::env::current_exe().context("this program's own path")?;
    let program = rustix::fs::open(&own, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| own.display().to_string())?;
    let directory = own.parent().context("the directory of this program is not known")?;
    let tree = verb.is_agent.then(|| copy_tree(directory)).transpose()?;
    let entered = enter_host()?;
    let path = match tree.filter(|_| entered) {
        Some(tree) => image::mount(&verb.run_dir, &tree)
            .with_context(|| format!("{}: mounting the image's programs there", verb.run_dir.display()))?
            .join(image::PROGRAM),
        None => PathBuf::from(format!("/proc/self/fd/{}", program.as_raw_fd())),
    };
    // The descriptor of a program may be closed as it starts, but not of a script.
    let error = Command::new(&path).args(&words[1..]).current_dir("/").exec();
    Err(error).with_context(|| path.display().to_string())
}
