//! `elbowroom dashboard`: prints a link to the dashboard that works once, and forwards the browser's requests to the agent until Ctrl-C.

use anyhow::Result;
use clap::Args;
use elbowroom_agent::http::forward::Forwarder;
use elbowroom_client::output::{say, write_stdout};
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// What opens a link in the user's browser (xdg-utils).
const OPENER: &str = "xdg-open";

/// Arguments of `dashboard`.
#[derive(Args)]
pub(crate) struct DashboardArgs {
    /// Port on 127.0.0.1; without it any that is free.
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Open the link in a browser of this machine too.
    #[arg(long)]
    open: bool,
}

/// Serves the dashboard until SIGINT or SIGTERM.
pub(crate) fn main(run_dir: &Path, args: &DashboardArgs) -> Result<()> {
    let forwarder = Forwarder::listen(run_dir, args.port)?;
    let address = forwarder.address;
    let first = link(address, forwarder.code());
    write_stdout(&format!("{first}\n"))?;
    let port = address.port();
    say(&format!(
        "This link works once; the next one follows. Ctrl-C ends the dashboard.\n\
         From another machine, first run there: ssh -L {port}:127.0.0.1:{port} {}",
        host_name()
    ));
    if args.open {
        open(&first);
    }
    forwarder.serve(move |code| {
        let _ = write_stdout(&format!("{}\n", link(address, code)));
    })
}

fn link(address: SocketAddr, code: &str) -> String {
    format!("http://{address}/#code={code}")
}

/// What other machines may call this one.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Opens a browser, where there is a screen and a program for that.
fn open(link: &str) {
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| value != OsStr::new("")));
    if !has_screen {
        return say(
            "--open: there is no screen here (DISPLAY and WAYLAND_DISPLAY are not set): open the link yourself",
        );
    }
    // A group of its own: Ctrl-C ends the dashboard and leaves the browser.
    let mut opener = Command::new(OPENER);
    opener.arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    if let Err(error) = opener.spawn() {
        say(&format!("--open: {OPENER}: {error}: open the link yourself"));
    }
}
