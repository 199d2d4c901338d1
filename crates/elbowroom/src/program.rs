//! The program: from its arguments to the crate that does the work, and from the answer to an exit status.

use crate::cli::{self, Cli, Verb};
use crate::verbs::{
    alerts, ask, check, containers, dashboard, disks, engine_hooks, follow, host, memory, probe, record,
    restore, top, version,
};
use crate::{fleet, run};
use anyhow::Result;
use clap::{FromArgMatches, Parser};
use elbowroom_agent::supervisor::{self, SupervisorArgs};
use elbowroom_agent::{config, engines, http, log, policy, seccomp, view_server};
use elbowroom_client::api::{AgentMode, ControlRequest};
use elbowroom_client::control;
use elbowroom_client::output::{
    ContainerArgs, TableArgs, error_line, is_broken_pipe, one_line, say, write_stdout,
};
use elbowroom_linux::discover::ContainerSources;
use elbowroom_types::id::DeviceNumber;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// The program: reads its arguments, does what they say, and gives the exit status.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    elbowroom_linux::process::use_one_malloc_arena();
    // Runtimes pass arguments that are not ours to refuse.
    if args.get(1).is_some_and(|verb| verb == engines::oci::hook::VERB) {
        return engines::oci::hook::main(&args[2..]);
    }
    // A program that is started by `/proc/self/exe` or a descriptor is called `exe` or a number until then.
    let _ = rustix::thread::set_name(c"elbowroom");
    // Not of the definition that manual pages are made of: another build's features are not this one's.
    let command = crate::command().long_version(version::long_version());
    let cli = match command.try_get_matches_from(&args).and_then(|found| Cli::from_arg_matches(&found)) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => {
            say(&cli::refusal(&error, &args));
            return ExitCode::from(2);
        }
        // Help and version.
        Err(answer) => answer.exit(),
    };
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            say(&error_line(&error));
            ExitCode::from(2)
        }
    }
}

/// Does what the command line says.
fn dispatch(cli: Cli) -> Result<ExitCode> {
    use elbowroom_audit::verb as audit;
    use elbowroom_client::metrics;
    use elbowroom_doctor::verb as doctor;
    use elbowroom_profile::verb as profile;
    let run_dir = cli.run_dir.as_path();
    match cli.verb {
        Verb::Agent(args) => process(args.verbose, || run_agent(run_dir, &args)),
        Verb::ViewServer => process(0, || Ok(view_server::server::main()?)),
        Verb::Policy(child) => process(child.verbose, || run_policy(run_dir, &child)),
        Verb::ApiServer(child) => process(child.verbose, || {
            http::server::main(run_dir, &config::AgentConfig::load(child.config.as_deref())?.api)
        }),
        Verb::Keeper => process(0, || seccomp::run_supervisor(run_dir)),
        Verb::KeeperWorker => process(0, seccomp::run_worker),
        Verb::DetachViews { minor } => process(0, || detach_views(minor)),
        Verb::Supervise => process(0, supervisor::resume),
        Verb::Standby => process(0, supervisor::stand_by),
        Verb::Host(args) => match host::host(run_dir, &args, host_verb)? {},
        Verb::Run(args) => Ok(run::main(&args, run_dir)),
        Verb::RunChild(args) => Ok(run::child::main(&args, run_dir)),
        Verb::RunReaper(args) => run::cgroup_reaper::main(&args, run_dir).map(|()| ExitCode::SUCCESS),
        Verb::RunAttendant(args) => run::private_agent::main(&args, run_dir).map(|()| ExitCode::SUCCESS),
        Verb::Cdi(args) => print(&engine_hooks::cdi(run_dir, &args)?),
        Verb::OciHooks(args) => print(&engine_hooks::oci_hooks(run_dir, &args)?),
        Verb::List(args) => watch(args.table, || containers::list(run_dir, args)),
        Verb::Show(one) => print_container(run_dir, one, ControlRequest::Show),
        Verb::Attach(one) => print_container(run_dir, one, ControlRequest::Attach),
        Verb::Detach(one) => print_container(run_dir, one, ControlRequest::Detach),
        Verb::Explain(one) => print(&containers::explain(run_dir, one)?),
        Verb::Top(args) => print(&top::top(run_dir, &args)?),
        Verb::Dashboard(args) => dashboard::main(run_dir, &args).map(|()| ExitCode::SUCCESS),
        Verb::Disks(args) => watch(args, || disks::disks(run_dir, args)),
        Verb::Memory(args) => watch(args, || memory::memory(run_dir, args)),
        Verb::Alerts(args) => args.print(|| alerts::alerts(run_dir, args)),
        Verb::Probe(args) => probe::main(run_dir, &args),
        Verb::Follow(args) => follow::main(run_dir, &args),
        Verb::Ask(args) => ask::main(&args),
        Verb::Fleet(args) => fleet::main(&args),
        Verb::Metrics(output) => print(&metrics::metrics(run_dir, output)?),
        Verb::Check(output) => check::check(run_dir, output).map(no_is_one).and_then(print_with_status),
        Verb::Restore(output) => restore::restore(run_dir, output)
            .map(|(text, status)| (text, ExitCode::from(status)))
            .and_then(print_with_status),
        Verb::Doctor(args) => doctor::doctor(&args, container_sources),
        Verb::Undo(args) => doctor::undo(&args),
        Verb::Pretouch(args) => doctor::pretouch::main(&args, container_sources),
        Verb::Housekeeping(args) => doctor::housekeeping::main(&args, container_sources),
        Verb::Size(args) => doctor::size::main(&args, container_sources),
        Verb::Protect(args) => doctor::protect::main(&args, container_sources),
        Verb::HoldMemory(args) => doctor::pretouch::hold_memory(&args).map(|()| ExitCode::SUCCESS),
        Verb::Audit(args) => audit::main(&args),
        Verb::Profile(args) => profile::main(&args, container_sources),
        Verb::Version(output) => print(&version::version(run_dir, output)?),
        Verb::Record(args) => record::record(run_dir, &args).map(|()| ExitCode::SUCCESS),
        Verb::Replay(args) => record::replay(&args).map(no_is_one).and_then(print_with_status),
    }
}

/// What `host` must know of the verb that it becomes. Help and versions end here.
fn host_verb(words: &[OsString]) -> Result<host::HostVerb> {
    match Cli::try_parse_from(words) {
        Ok(cli) => Ok(host::HostVerb { is_agent: matches!(cli.verb, Verb::Agent(_)), run_dir: cli.run_dir }),
        Err(error) if error.use_stderr() => anyhow::bail!("{}", cli::usage_error_line(&error, words)),
        Err(answer) => answer.exit(),
    }
}

/// Runs one of the agent's processes, which log.
fn process(verbose: u8, main: impl FnOnce() -> Result<()>) -> Result<ExitCode> {
    log::init(verbose);
    main().map(|()| ExitCode::SUCCESS)
}

/// `sun_path` of unix(7), with the zero at its end.
const MAX_SOCKET_PATH: usize = 108;

/// Checks everything that can be checked before anything is touched, then supervises.
fn run_agent(run_dir: &Path, args: &cli::AgentArgs) -> Result<()> {
    let load = || {
        let config = config::AgentConfig::load(args.config.as_deref())?;
        anyhow::ensure!(
            !(args.govern.enforce && config.mode == AgentMode::Views),
            "--enforce: mode = \"views\" governs nothing: leave --enforce out, or write mode = \"full\""
        );
        Ok(config)
    };
    let config = load().or_else(|error| {
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
    if let Some(only) = &args.govern.only {
        child_args.extend(["--only".into(), only.into()]);
    }
    child_args.extend((0..args.verbose).map(|_| "-v".into()));
    let config = config.with_only(args.govern.only.as_deref());
    let (api, mode) = (config.api.enabled, config.mode);
    if mode == AgentMode::Views {
        child_args.push("--views-only".into());
    }
    let supervisor = SupervisorArgs { policy_args: child_args, api, mode, ..SupervisorArgs::new(run_dir) };
    supervisor::main(supervisor, || policy::can_sense(config, run_dir))
}

fn run_policy(run_dir: &Path, child: &cli::AgentChildArgs) -> Result<()> {
    let config = config::AgentConfig::load(child.config.as_deref())?
        .with_views_only(child.views_only)
        .with_enforcement(child.govern.enforce)
        .with_only(child.govern.only.as_deref());
    if let Some(because) = config.exposure(child.config.as_deref()) {
        tracing::warn!(because, "secrets of the configuration are open to other users");
    }
    policy::main(run_dir, &child.govern.state_dir, child.config.as_deref(), config)
}

fn detach_views(minor: u32) -> Result<()> {
    let containers = elbowroom_linux::mount::detach_all(DeviceNumber { major: 0, minor });
    tracing::info!(containers, because = "their agent did not", "views detached");
    Ok(())
}

/// Where containers are looked for, by the configuration.
fn container_sources(file: Option<&Path>) -> Result<ContainerSources> {
    Ok(config::AgentConfig::load(file)?.containers.sources())
}

/// Prints a table, again and again where that was asked for.
fn watch(args: TableArgs, look: impl Fn() -> Result<String>) -> Result<ExitCode> {
    args.print(|| Ok((look()?, ExitCode::SUCCESS)))
}

fn print(text: &str) -> Result<ExitCode> {
    write_stdout(text).map(|()| ExitCode::SUCCESS)
}

fn print_container(
    run_dir: &Path,
    one: ContainerArgs,
    request: impl FnOnce(String) -> ControlRequest,
) -> Result<ExitCode> {
    print(&containers::show_container(run_dir, request(one.container), one.output)?)
}

fn print_with_status((text, status): (String, ExitCode)) -> Result<ExitCode> {
    print(&text)?;
    Ok(status)
}

/// The exit status of a question whose answer is yes or no.
fn no_is_one((text, yes): (String, bool)) -> (String, ExitCode) {
    (text, ExitCode::from(u8::from(!yes)))
}
