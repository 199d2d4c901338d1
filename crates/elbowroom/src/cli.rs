//! The command line: one verb, mostly one container.

use crate::help::nearest_verb;
use crate::verbs::version::VERSION;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use elbowroom_client::output::{ContainerArgs, OutputArgs, TableArgs};
use elbowroom_types::lookup::quoted;
use std::ffi::OsString;
use std::path::PathBuf;

/// Lets every container see, and get, the room it really has.
///
/// `elbowroom agent` measures how many CPUs and how much memory each container on this host can really use now. It shows them to the
/// container's programs in the files that they already read: /proc, /sys and the container's cgroup files.
#[derive(Parser)]
#[command(
    name = "elbowroom",
    version = VERSION,
    max_term_width = 100,
    after_help = "\nExit status: 0 yes or done, 1 no, 2 error; `run` exits as its command did.\n\
        `elbowroom help VERB` explains a verb."
)]
pub(crate) struct Cli {
    /// Directory of the agent's socket and views.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/run/elbowroom",
        env = "ELBOWROOM_RUN_DIR"
    )]
    pub(crate) run_dir: PathBuf,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Run the agent in the foreground until Ctrl-C or SIGTERM.
    #[command(
        after_help = "Examples:\n  elbowroom agent             decides about disks and memory and shows it, moves nothing\n  \
        elbowroom agent --enforce   limits bursts on disks, lends out idle memory\n\n\
        See `elbowroom check` for what this host offers."
    )]
    Agent(AgentArgs),
    /// Run a command in a container of its own, without an engine.
    Run(crate::run::RunArgs),
    /// Mount the view of a running container into it.
    Attach(ContainerArgs),
    /// Unmount a container's view again.
    Detach(ContainerArgs),
    /// Write a CDI device for Docker, Podman and containerd.
    ///
    /// The device is elbowroom.dev/view=on. A container that is given the device has its view before its first instruction. Without an
    /// agent the container starts as before.
    #[command(after_help = "Example:\n  elbowroom cdi\n  docker run --device elbowroom.dev/view=on ...")]
    Cdi(crate::verbs::engine_hooks::CdiArgs),
    /// Write an OCI hook for Podman and CRI-O.
    ///
    /// With it every container has its view before its first instruction.
    OciHooks(crate::verbs::engine_hooks::OciHooksArgs),
    /// List containers, how they are doing, and what they see and use.
    ///
    /// The worst first. ATTACHED: whether its view is in the container. DELAY, with -o wide: how long after its first process started the
    /// view came.
    #[command(visible_alias = "ps")]
    List(crate::verbs::containers::ListArgs),
    /// Show one container in full.
    #[command(visible_alias = "inspect")]
    Show(ContainerArgs),
    /// Say why a container sees what it sees, and what changed.
    #[command(visible_alias = "describe")]
    Explain(ContainerArgs),
    /// Watch all containers live, worst first.
    #[command(visible_alias = "stats")]
    Top(crate::verbs::top::TopArgs),
    /// Show the dashboard in a browser.
    ///
    /// It prints a link that works once, and serves the dashboard until Ctrl-C.
    Dashboard(crate::verbs::dashboard::DashboardArgs),
    /// Show disks: what they can do, what is promised, what is wrong.
    ///
    /// STATE: free (no limits); limiting bursts (no container is short now, and earlier limits grow); shared out (a container is
    /// short, and others are limited for it); slow (the same, and the disk does less than it could); limits backed off (they held all
    /// containers up while the disk was idle, and are off for a while). Numbers are bytes per second; operations are in the JSON.
    /// Why a container gets what it gets: `elbowroom explain CONTAINER`.
    Disks(TableArgs),
    /// Show memory: which container needs more, and what it lends out.
    ///
    /// MORE MEMORY: a container needs more (it misses its objective or waits for memory), is fine, or more will not help it.
    /// ENTITLED: what it may use now, however much its neighbours want. LENT OUT: what others use of that. With -o wide also BY (its
    /// probe, or what the kernel counts), MINIMUM (never taken from it) and PROTECTED (by the kernel, for the agent).
    /// Why: `elbowroom explain CONTAINER`.
    Memory(TableArgs),
    /// Show what is wrong, and what was within the last hour.
    ///
    /// Overload, starved containers, the doctor's findings, limits taken back.
    /// Exit status: 0 when nothing is wrong, 1 when something is, 2 error. To tell other programs: `[[receivers]]` in the configuration.
    Alerts(TableArgs),
    /// Say how an application is doing, or see what applications say.
    Probe(crate::verbs::probe::ProbeArgs),
    /// Have a setting of a server follow its container's room.
    ///
    /// PROGRAM reads and sets it (`get`, `set VALUE`); some are ready-made: mariadb, redis, nginx, php-fpm, postgres. With less room the
    /// setting is lowered at once. With more room that stays it is raised, but never beyond the user's value, which is restored at the end.
    #[command(
        after_help = "Example:\n  elbowroom follow shop-db --part 50% -- /usr/local/lib/elbowroom/actuators/mariadb"
    )]
    Follow(crate::verbs::follow::FollowArgs),
    /// Run a client of a container's server, without root's rights.
    ///
    /// It prints the last line that the client prints, and needs no agent. The server may be hostile: the client runs as the user `nobody`,
    /// has a clean environment and ten seconds. It reaches the socket that is in the container, or the container's network. Use it
    /// in programs of `exec` probes and in actuators of `follow`.
    #[command(after_help = "Example, in a program of `[[probes]]`:\n  \
        elbowroom ask --socket /run/mysqld/mysqld.sock -- mariadb --no-defaults --socket={} -Ne 'SELECT 1'")]
    Ask(crate::verbs::ask::AskArgs),
    /// Show free room on many nodes, and where a container would fit.
    ///
    /// It asks the nodes' agents, or Prometheus. SEEN: the CPUs that a node's containers see together. FREE: memory that no container uses
    /// or can call back. DISK: the fullest one. Exit status: 0 when every node was read, or the container fits somewhere; 1 when not, 2
    /// error.
    #[command(after_help = "Examples:\n  elbowroom fleet node1 node2 --token-file token\n  \
        elbowroom fleet --nodes nodes.txt --cpus 2 --memory 4GiB --disk rbps=50MiB/s")]
    Fleet(crate::fleet::FleetArgs),
    /// Answer system calls of static programs until SIGTERM.
    ///
    /// It answers sched_getaffinity and sysinfo of containers that ask for it: those with the label elbowroom.dev/seccomp=on that the
    /// wrapper runtime starts (docs/guide/seccomp.md). Static programs need it, because they read no file. While such a container runs, it
    /// needs its keeper.
    Keeper,
    /// Print everything as OpenMetrics text, for Prometheus.
    #[command(after_help = "Example, for node_exporter's textfile collector:\n  \
        elbowroom metrics > elbowroom.part && mv elbowroom.part elbowroom.prom")]
    Metrics(OutputArgs),
    /// Say what this host offers, and what is lost without it.
    Check(OutputArgs),
    /// Take off limits that a dead or hung agent left.
    ///
    /// It needs no agent. An agent does this by itself, when it starts and while it runs. Exit status: 0 when everything is as its users
    /// set it; 1 when another program changed a limit since, or a running agent holds some; 2 when one may still be in force.
    Restore(OutputArgs),
    /// Find what hurts containers here, say why, and fix it if asked.
    Doctor(elbowroom_doctor::verb::DoctorArgs),
    /// List the doctor's fixes, or take them back.
    Undo(elbowroom_doctor::verb::UndoArgs),
    /// Free the memory a container was promised before it needs it.
    ///
    /// It needs no agent. Touches and gives back memory outside the container, so that unused page cache goes now, and not while the
    /// container waits. Nothing is reserved: --hold keeps it for the container until it has grown. Exit status: 0 when all
    /// was made free, 1 when less, 2 error.
    #[command(after_help = "Example, before a JVM is started in the container:\n  \
        elbowroom pretouch web 4GiB --hold 5m")]
    Pretouch(elbowroom_doctor::verb::pretouch::PretouchArgs),
    /// List the host's own unlimited jobs, or give them a size.
    ///
    /// It needs no agent. SIZE becomes memory.high, or on cgroup v1 the soft limit: neither kills. `elbowroom undo` takes it back.
    Housekeeping(elbowroom_doctor::verb::housekeeping::HousekeepingArgs),
    /// Keep a container out of swap.
    ///
    /// It needs no agent. By default as far as that cannot kill it: memory.low over what it uses, or on cgroup v1 its memory.swappiness.
    /// `elbowroom undo` takes it back.
    Protect(elbowroom_doctor::verb::protect::ProtectArgs),
    /// Say what memory limit would do, and raise it if asked.
    ///
    /// The limit holds the container and the page cache that it reads again. It needs no agent. NEEDS is anonymous and shared memory,
    /// the cache that was read more than once, and a tenth. A limit is never lowered. `elbowroom undo` takes it back. Exit status: 0
    /// when the limits hold what is needed, 1 when one does not, 2 error.
    #[command(after_help = "Example:\n  elbowroom size web --for 30s --apply")]
    Size(elbowroom_doctor::verb::size::SizeArgs),
    /// Say which programs of an image would misread the host.
    Audit(elbowroom_audit::verb::AuditArgs),
    /// Measure where time and memory of containers go.
    Profile(elbowroom_profile::verb::ProfileArgs),
    /// Record samples to a file, or what an agent knows to a ring.
    #[command(
        after_help = "Examples:\n  elbowroom record load.json --for 60s\n  elbowroom record --ring /var/tmp/ring --max-size 1GiB\n\n\
        The agent keeps a ring of its own: [recorder] in the configuration."
    )]
    Record(crate::verbs::record::RecordArgs),
    /// Show a past moment of a ring, or decide a recording again.
    #[command(
        after_help = "Examples:\n  elbowroom replay load.json\n  elbowroom replay /var/lib/elbowroom/recorder --at -5m\n  elbowroom replay /var/lib/elbowroom/recorder --at 02:47 --serve 127.0.0.1:9274"
    )]
    Replay(crate::verbs::record::ReplayArgs),
    /// Run a verb on the host from within a container.
    ///
    /// It is the entry point of the image.
    /// The container needs --pid=host and the agent's rights (docs/guide/install.md). Paths in arguments are the host's; the image's
    /// directory of programs is /run/elbowroom/image there while an agent runs.
    #[command(
        after_help = "Example:\n  docker run --detach --privileged --pid host --cgroupns host elbowroom:VERSION agent"
    )]
    Host(crate::verbs::host::HostArgs),
    /// Print the version, the commit and the features of this program.
    Version(OutputArgs),
    /// Answers reads of views; started by the agent.
    #[command(hide = true)]
    ViewServer,
    /// Senses and decides; started by the agent.
    #[command(hide = true)]
    Policy(AgentChildArgs),
    /// Serves the HTTP API; started by the agent.
    #[command(hide = true)]
    ApiServer(AgentChildArgs),
    /// Answers for the keeper; started by it.
    #[command(hide = true)]
    KeeperWorker,
    /// Carries on for a supervisor that died; started by the agent's other processes.
    #[command(hide = true)]
    Supervise,
    /// Starts a supervisor where there is none; started by the agent.
    #[command(hide = true)]
    Standby,
    /// Takes views of the file system with this minor device number out of all containers; started by an agent that stops without
    /// knowing them.
    #[command(hide = true)]
    DetachViews { minor: u32 },
    /// Touches memory for `pretouch`; started by it.
    #[command(hide = true)]
    HoldMemory(elbowroom_doctor::verb::pretouch::HoldMemoryArgs),
    /// Becomes the command of `run`; started by it.
    #[command(hide = true)]
    RunChild(crate::run::child::ChildArgs),
    /// Removes the cgroups of a `run` whose command left processes; started by it.
    #[command(hide = true)]
    RunReaper(crate::run::cgroup_reaper::CgroupReaperArgs),
    /// Has an agent for the command of a `run` where none is; started by it.
    #[command(hide = true)]
    RunAttendant(crate::run::private_agent::AttendantArgs),
}

/// Arguments of `agent`.
#[derive(Args)]
pub(crate) struct AgentArgs {
    /// Configuration file; without it /etc/elbowroom/elbowroom.toml, where there is one.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) govern: GovernArgs,
    /// Log more; twice for everything.
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// Arguments of `agent` that its policy process has too.
#[derive(Args, Clone)]
pub(crate) struct GovernArgs {
    /// Carry out what governors decide, instead of only showing it. One that the configuration switches off stays off.
    #[arg(long)]
    pub(crate) enforce: bool,
    /// Where what was learned is kept over a restart.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/elbowroom", env = "ELBOWROOM_STATE_DIR")]
    pub(crate) state_dir: PathBuf,
    /// Look after this cgroup alone, and govern nothing; given by `run`.
    #[arg(long, value_name = "CGROUP", hide = true)]
    pub(crate) only: Option<String>,
}

/// Arguments the agent gives its own processes.
#[derive(Args)]
pub(crate) struct AgentChildArgs {
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) govern: GovernArgs,
    /// The agent has only the rights that views need.
    #[arg(long)]
    pub(crate) views_only: bool,
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// What a refused command line is answered with: the help where a verb is missing, else what is wrong.
pub(crate) fn refusal(error: &clap::Error, args: &[OsString]) -> String {
    let help = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Some(error.render().to_string()),
        ErrorKind::MissingSubcommand => help_without_verb(error),
        _ => None,
    };
    help.map_or_else(
        || format!("elbowroom: {}", usage_error_line(error, args)),
        |help| help.trim_end().to_owned(),
    )
}

/// The help of the command that lacks a verb: clap names those that are hidden too.
fn help_without_verb(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(called)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let mut command = crate::command();
    command.build();
    let found = called.split(' ').skip(1).try_fold(&mut command, |at, word| at.find_subcommand_mut(word))?;
    Some(found.render_long_help().to_string())
}

/// A refused command line on one line, whatever bytes it quotes: people see it in logs, and terminals interpret it.
pub(crate) fn usage_error_line(error: &clap::Error, args: &[OsString]) -> String {
    let mut text = error.render().to_string();
    if let (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) =
        (error.kind(), error.get(ContextKind::InvalidSubcommand))
    {
        text = format!("no verb {}", quoted(word));
        if let Some(verb) = nearest_verb(&crate::command(), word) {
            text += &format!(": did you mean `elbowroom {verb}`?");
        }
    }
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\n\nUsage:", "\n\nFor more information"].into_iter().filter_map(|tail| text.find(tail)).min();
    let words: Vec<&str> = text[..end.unwrap_or(text.len())].split_whitespace().collect();
    let mut line = String::new();
    for c in words.join(" ").chars().take(600) {
        match c {
            '\'' | '"' | '\\' => line.push(c),
            c => line.extend(c.escape_debug()),
        }
    }
    let end = if line.ends_with('?') { " See" } else { ": see" };
    format!("{line}{end} `elbowroom {}`", help_words(args))
}

/// What shows the help of the verb in `args`, or that of all.
fn help_words(args: &[OsString]) -> String {
    let mut words = String::from("help");
    let root = crate::command();
    let found = root.clone().ignore_errors(true).try_get_matches_from(args).ok();
    let (mut at, mut rest) = (&root, found.as_ref());
    while let Some((name, inner)) = rest.and_then(|found| found.subcommand()) {
        let Some(verb) = at.find_subcommand(name).filter(|verb| !verb.is_hide_set()) else { break };
        words += &format!(" {name}");
        (at, rest) = (verb, Some(inner));
    }
    if words == "help" { "--help".to_owned() } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_verb_the_help_is_told_and_no_verb_of_the_programs_own() {
        for (words, verb) in [
            (&["elbowroom"][..], "\n  housekeeping "),
            (&["elbowroom", "--run-dir", "/run/x"], "\n  housekeeping "),
            (&["elbowroom", "probe"], "\n  send "),
        ] {
            let told = refusal(&crate::command().try_get_matches_from(words).unwrap_err(), &[]);
            assert!(told.contains(verb) && !told.contains("run-reaper"), "{words:?}: {told}");
            assert_eq!(told.trim_end(), told);
        }
        let bare = refusal(&crate::command().try_get_matches_from(["elbowroom"]).unwrap_err(), &[]);
        assert_eq!(bare, crate::command().render_long_help().to_string().trim_end());
    }

    #[test]
    fn a_refused_command_line_is_one_harmless_line() {
        for (words, end) in [
            (&["elbowroom", "--frobnicate"][..], ": see `elbowroom --help`"),
            (&["elbowroom", "fro\nb"], ": see `elbowroom --help`"),
            (&["elbowroom", "lits"], ": did you mean `elbowroom list`? See `elbowroom --help`"),
            (&["elbowroom", "list", "--format", "\x1b[31m\u{202e}"], ": see `elbowroom help list`"),
            (&["elbowroom", "show"], ": see `elbowroom help show`"),
            (&["elbowroom", "--run-dir", "list", "show"], ": see `elbowroom help show`"),
            (&["elbowroom", "ps", "--nosuch"], ": see `elbowroom help list`"),
            (
                &["elbowroom", "--run-dir", "/x", "profile", "pages", "-x"],
                ": see `elbowroom help profile pages`",
            ),
            (&["elbowroom", "top", "--interval", "0ms"], ": see `elbowroom help top`"),
        ] {
            let args: Vec<OsString> = words.iter().map(OsString::from).collect();
            let line = usage_error_line(&Cli::try_parse_from(words).err().expect("it is refused"), &args);
            assert!(!line.contains(['\n', '\x1b', '\u{202e}']), "{line:?}");
            assert!(line.len() > 30 && line.ends_with(end), "{line:?}");
        }
    }
}
