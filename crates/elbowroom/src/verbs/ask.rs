//! `elbowroom ask`: a client of a server in a container, with nothing of root's ([`elbowroom_linux::probe::confined`]).

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use elbowroom_agent::alerts::StopFlag;
use elbowroom_agent::probes::source::exec::{PID_ENV, last_line_of};
use elbowroom_client::output::write_stdout;
use elbowroom_linux::probe::confined::{ServerPlace, become_nobody, confine};
use elbowroom_types::unit::Micros;
use rustix::process::geteuid;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// How long a server may take to answer; `follow` waits as long for an actuator.
const ANSWER_TIMEOUT: Micros = Micros::secs(10);

/// Arguments of `ask`.
#[derive(Args)]
pub(crate) struct AskArgs {
    /// A process of the container, as the host counts.
    #[arg(long, env = PID_ENV)]
    pid: Option<u32>,
    /// A path of the server's socket in the container, without links; the first that is there counts. The client finds it where its
    /// arguments say {}.
    #[arg(long = "socket", value_name = "PATH")]
    sockets: Vec<PathBuf>,
    /// Ask in the container's network; without this and --socket in the host's.
    #[arg(long, conflicts_with = "sockets")]
    network: bool,
    /// A file of this host that is for this server, such as a password; the client finds it as /tmp/secret.
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// A variable for the client; without a value the one that this program has.
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    environment: Vec<String>,
    /// The client and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Prints the last line of the client's answer.
pub(crate) fn main(args: &AskArgs) -> Result<ExitCode> {
    let place = place(args)?;
    ensure!(
        geteuid().is_root(),
        "`elbowroom ask` leaves root's rights behind: this needs root: try with sudo"
    );
    let path = confine(&place, args.secret.as_deref()).context("confining the client")?;
    let path = path.map(|path| path.display().to_string());
    let fill = |word: &String| path.as_ref().map_or_else(|| word.clone(), |path| word.replace("{}", path));
    let (program, words) = args.command.split_first().context("no client is named")?;
    let mut client = Command::new(program);
    become_nobody(client.args(words.iter().map(fill)), &place);
    for variable in &args.environment {
        match variable.split_once('=') {
            Some((name, value)) => client.env(name, value),
            None => client.envs(std::env::var_os(variable).map(|value| (variable, value))),
        };
    }
    let line = last_line_of(&mut client, program, ANSWER_TIMEOUT, &StopFlag::new()?)?.unwrap_or_default();
    ensure!(
        !line.contains(|c: char| !matches!(c, '\t' | ' '..='~')),
        "{program}: the answer is no plain text"
    );
    write_stdout(&format!("{line}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn place(args: &AskArgs) -> Result<ServerPlace> {
    if args.sockets.is_empty() && !args.network {
        return Ok(ServerPlace::Named);
    }
    let pid = args.pid.with_context(|| format!("no container: set {PID_ENV}, or write --pid"))?;
    if args.network {
        let runs = pid > 0 && Path::new(&format!("/proc/{pid}")).exists();
        ensure!(runs, "no process {pid}: nothing runs in the container any more");
        return Ok(ServerPlace::Network(pid));
    }
    if pid > 0
        && let Ok(place) = ServerPlace::socket(pid, &args.sockets)
    {
        return Ok(place);
    }
    let paths: Vec<String> = args.sockets.iter().map(|path| path.display().to_string()).collect();
    bail!(
        "no socket of a server in the container: looked for {}, without links; name it as the container does",
        paths.join(", ")
    )
}
