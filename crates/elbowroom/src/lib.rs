//! Elbowroom: a node agent that lets every container see, and get, the room it really has.
//!
//! This is the command line: [`main`] reads the arguments and calls the crate that does the work. Here are the verbs that only ask
//! and print, [`run`], [`fleet`] and [`follow`]. Nothing below imports this crate.

mod cli;
pub mod fleet;
pub mod follow;
mod run;
mod verbs;

pub use verbs::follow::parse_setting as setting;
pub use verbs::record::replay_recording as replay;

use anyhow::Result;
use clap::Parser;
use cli::{Cli, Verb};
use elbowroom_agent::supervisor::{self, SupervisorArgs};
use elbowroom_agent::{config, engines, http, log, policy, seccomp, view_server};
use elbowroom_client::api::ControlRequest;
use elbowroom_client::control;
use elbowroom_client::output::{is_broken_pipe, one_line};
use elbowroom_linux::discover::ContainerSources;
use elbowroom_types::id::DeviceNumber;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// The command line's definition, for manual pages and completions.
pub fn command() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

/// The program: reads its arguments, does what they say, and gives the exit status.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    elbowroom_linux::process::use_one_malloc_arena();
    // Runtimes pass arguments that are not ours to refuse.
    if args.get(1).is_some_and(|verb| verb == engines::oci::hook::VERB) {
        return engines::oci::hook::main(&args[2..]);
    }
    // Who is started by `/proc/self/exe` or a descriptor is called `exe` or a number until then.
    let _ = rustix::thread::set_name(c"elbowroom");
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            let _ = writeln!(std::io::stderr(), "elbowroom: {}", cli::usage_error_line(&error));
            return ExitCode::from(2);
        }
        // Help and version.
        Err(answer) => answer.exit(),
    };
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "elbowroom: {}", one_line(&error));
            ExitCode::from(2)
        }
    }
}

fn dispatch(cli: Cli) -> Result<ExitCode> {
    use elbowroom_audit::verb as audit;
    use elbowroom_client::metrics;
    use elbowroom_doctor::verb as doctor;
    use elbowroom_profile::verb as profile;
    use verbs::{
        alerts, check, containers, disks, engine_hooks, follow, memory, probe, record, restore, top,
    };
    let run_dir = cli.run_dir.as_path();
    match cli.verb {
        Verb::Agent(args) => {
            log::init(args.verbose);
            run_agent(run_dir, &args)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::ViewServer => {
            log::init(0);
            view_server::server::main()?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Policy(child) => {
            log::init(child.verbose);
            let config =
                config::AgentConfig::load(child.config.as_deref())?.with_enforcement(child.govern.enforce);
            policy::main(run_dir, &child.govern.state_dir, child.config.as_deref(), config)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::ApiServer(child) => {
            log::init(child.verbose);
            http::server::main(run_dir, &config::AgentConfig::load(child.config.as_deref())?.api)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Keeper => {
            log::init(0);
            seccomp::hold(run_dir)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::KeeperAnswerer => {
            log::init(0);
            seccomp::answer()?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::DetachViews { minor } => {
            log::init(0);
            let containers = elbowroom_linux::mount::detach_all(DeviceNumber { major: 0, minor });
            tracing::info!(containers, because = "their agent did not", "views detached");
            Ok(ExitCode::SUCCESS)
        }
        Verb::Supervise => {
            log::init(0);
            supervisor::resume()?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Run(args) => Ok(run::main(&args, run_dir)),
        Verb::RunChild(args) => Ok(run::child::main(&args, run_dir)),
        Verb::RunHeir(args) => run::cgroup_reaper::main(&args, run_dir).map(|()| ExitCode::SUCCESS),
        Verb::Cdi(args) => print(&engine_hooks::cdi(run_dir, &args)?),
        Verb::OciHooks(args) => print(&engine_hooks::oci_hooks(run_dir, &args)?),
        Verb::List(output) => print(&containers::list(run_dir, output)?),
        Verb::Show(one) => {
            print(&containers::show_container(run_dir, ControlRequest::Show(one.container), one.output)?)
        }
        Verb::Attach(one) => {
            print(&containers::show_container(run_dir, ControlRequest::Attach(one.container), one.output)?)
        }
        Verb::Detach(one) => {
            print(&containers::show_container(run_dir, ControlRequest::Detach(one.container), one.output)?)
        }
        Verb::Explain(one) => print(&containers::explain(run_dir, one)?),
        Verb::Top(args) => print(&top::top(run_dir, &args)?),
        Verb::Disks(output) => print(&disks::disks(run_dir, output)?),
        Verb::Memory(output) => print(&memory::memory(run_dir, output)?),
        Verb::Alerts(output) => {
            let (text, code) = alerts::alerts(run_dir, output)?;
            print(&text)?;
            Ok(code)
        }
        Verb::Probe(args) => probe::main(run_dir, &args),
        Verb::Follow(args) => follow::main(run_dir, &args),
        Verb::Fleet(args) => fleet::main(&args),
        Verb::Metrics(output) => print(&metrics::metrics(run_dir, output)?),
        Verb::Check(output) => {
            let (text, ready) = check::check(run_dir, output)?;
            print(&text)?;
            Ok(ExitCode::from(u8::from(!ready)))
        }
        Verb::Restore(output) => {
            let (text, status) = restore::restore(run_dir, output)?;
            print(&text)?;
            Ok(ExitCode::from(status))
        }
        Verb::Doctor(args) => doctor::doctor(&args, container_sources),
        Verb::Undo(args) => doctor::undo(&args),
        Verb::Pretouch(args) => doctor::pretouch::main(&args, container_sources),
        Verb::Housekeeping(args) => doctor::housekeeping::main(&args, container_sources),
        Verb::Size(args) => doctor::size::main(&args, container_sources),
        Verb::Protect(args) => doctor::protect::main(&args, container_sources),
        Verb::HoldMemory(args) => doctor::pretouch::hold_memory(&args).map(|()| ExitCode::SUCCESS),
        Verb::Audit(args) => audit::main(&args),
        Verb::Profile(args) => profile::main(&args, container_sources),
        Verb::Record(args) => record::record(run_dir, &args).map(|()| ExitCode::SUCCESS),
        Verb::Replay(args) => {
            let (text, same) = record::replay(&args)?;
            print(&text)?;
            Ok(ExitCode::from(u8::from(!same)))
        }
    }
}

/// `sun_path` of unix(7), with the zero at its end.
const MAX_SOCKET_PATH: usize = 108;

/// Checks everything that can be checked before anything is touched, then supervises.
fn run_agent(run_dir: &Path, args: &cli::AgentArgs) -> Result<()> {
    let config = config::AgentConfig::load(args.config.as_deref()).or_else(|error| {
        // Views that the agent before left are answered meanwhile; its processes start as soon as it is repaired.
        anyhow::ensure!(supervisor::has_stored_views(), error);
        tracing::error!(
            error = one_line(&error),
            "the configuration is refused: views stay as they are until it is repaired"
        );
        Ok(config::AgentConfig::default())
    })?;
    let socket = control::socket_path(&std::path::absolute(run_dir)?);
    anyhow::ensure!(
        socket.as_os_str().len() < MAX_SOCKET_PATH,
        "{}: too long for a socket's path: choose a shorter run directory",
        socket.display()
    );
    let mut child_args: Vec<OsString> =
        vec!["--run-dir".into(), std::path::absolute(run_dir)?.into_os_string()];
    if let Some(config) = &args.config {
        child_args.extend(["--config".into(), std::path::absolute(config)?.into_os_string()]);
    }
    child_args.extend(["--state-dir".into(), std::path::absolute(&args.govern.state_dir)?.into_os_string()]);
    if args.govern.enforce {
        child_args.push("--enforce".into());
    }
    child_args.extend((0..args.verbose).map(|_| "-v".into()));
    let api = config.api.enabled;
    let supervisor = SupervisorArgs { policy_args: child_args, api, ..SupervisorArgs::new(run_dir) };
    supervisor::main(supervisor, || policy::can_sense(config, run_dir))
}

/// Where containers are looked for, by the configuration.
fn container_sources(file: Option<&Path>) -> Result<ContainerSources> {
    Ok(config::AgentConfig::load(file)?.containers.sources())
}

/// The answer goes to standard output; a reader that went away is no error.
fn print(text: &str) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
