//! `elbowroom dashboard`: prints a link to the dashboard that works once, and forwards the browser's requests to the agent until Ctrl-C.

use anyhow::Result;
use clap::Args;
use elbowroom_agent::http::forward::{Forwarder, link};
use elbowroom_client::output::{say, write_stdout};
use std::path::Path;

/// Arguments of `dashboard`.
#[derive(Args)]
pub(crate) struct DashboardArgs {
    /// Port on 127.0.0.1; without it any that is free.
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
}

/// Serves the dashboard until SIGINT or SIGTERM.
pub(crate) fn main(run_dir: &Path, args: &DashboardArgs) -> Result<()> {
    let forwarder = Forwarder::listen(run_dir, args.port)?;
    let address = forwarder.address;
    write_stdout(&format!("{}\n", link(address, forwarder.code())))?;
    let port = address.port();
    say(&format!(
        "This link works once; the next one follows. Ctrl-C ends the dashboard.\n\
         From another machine, first run there: ssh -L {port}:127.0.0.1:{port} {}",
        host_name()
    ));
    forwarder.serve(move |code| {
        let _ = write_stdout(&format!("{}\n", link(address, code)));
    })
}

/// What other machines may call this one.
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
