//! What Kubernetes hears of a node's Elbowroom, and what Elbowroom hears of the node's pods.
//!
//! ```text
//!  agent, api.sock ──► Snapshot ─┬─► node_condition::Latch ─► node conditions, taints
//!                                └─► kube_events::EventDeduplicator ─► Events
//!  API server, watch ──► Pod ────► claims::pod_labels ────► agent, agent.sock: labels
//!  agent, api.sock ──► verdicts ─► resize::ResizeLadder ──► API server: pods/resize, with --resize
//! ```
//!
//! Everything is told again as long as it is not so: a process that is killed and started anew, here or there, changes nothing.

mod agent;
mod claims;
mod controller;
mod kube_events;
mod node;
mod node_condition;
mod quantity;
mod resize;
mod run;

use anyhow::{Context, Result};
use clap::Parser;
use elbowroom_types::unit::{Micros, parse_duration};
use elbowroom_types::visible::{Visible, write_log_field};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::debug_fn;

/// Tells Kubernetes what Elbowroom knows of a node, and Elbowroom what Kubernetes knows of the node's pods.
///
/// Runs beside `elbowroom agent`, once per node. Which API server: as kubectl, or as a pod's service account says.
#[derive(Debug, Parser)]
#[command(name = "elbowroom-kube", version, max_term_width = 100)]
pub(crate) struct KubeArgs {
    /// Directory of the agent's sockets.
    #[arg(long, value_name = "DIR", default_value = "/run/elbowroom", env = "ELBOWROOM_RUN_DIR")]
    run_dir: PathBuf,
    /// Name of the Node object of this node.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node: String,
    /// What taints do while the node is overloaded, overcommitted, or has a degraded disk.
    #[arg(long, value_enum, default_value = "prefer-no-schedule")]
    taint: node::TaintEffect,
    /// How long an alert has lasted before Kubernetes is told.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    hold: Micros,
    /// How long an alert has been over before Kubernetes is told, and how long containers keep their labels after this program ends.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse_duration)]
    linger: Micros,
    /// Which requests and annotations of pods become claims on the node.
    #[arg(long, value_enum, default_value = "all")]
    claims: claims::ClaimPolicy,
    /// Raise the limits of containers that need more, up to their pods' annotations elbowroom.dev/memory-max and cpu-max.
    #[arg(long)]
    resize: bool,
}

fn main() -> ExitCode {
    let args = match KubeArgs::try_parse() {
        Ok(args) => args,
        Err(error) if error.use_stderr() => {
            say(&usage_error_line(&error.to_string()));
            return ExitCode::from(2);
        }
        Err(answer) => answer.exit(),
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        // They are told by `eprintln!`, which panics where no program reads standard error.
        .log_internal_errors(false)
        .fmt_fields(
            debug_fn(|writer, field, value| write_log_field(writer, field.name(), value)).delimited(" "),
        )
        .init();
    match start(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&one_line(&error));
            ExitCode::from(2)
        }
    }
}

fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "elbowroom-kube: {}", Visible::line(line));
}

fn start(args: KubeArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("starting")?.block_on(run::run(args))
}

/// What is wrong with the arguments, on one line.
fn usage_error_line(text: &str) -> String {
    let what = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    format!("{}: see --help", what.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// An error with its causes on one line. Many errors tell their causes themselves; those are not said twice.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().replace('\n', "; ");
        if !line.contains(&text) {
            line.push_str(if line.is_empty() { "" } else { ": " });
            line.push_str(&text);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_each_cause_once_and_on_one_line() {
        let error = anyhow::anyhow!("no such\nfile").context("reading it: no such; file").context("starting");
        assert_eq!(one_line(&error), "starting: reading it: no such; file");
    }

    #[test]
    fn wrong_arguments_are_one_line_that_says_which() {
        for (words, expect) in [
            (&["--node", "n", "--hold", "30"][..], "invalid value '30' for '--hold <TIME>'"),
            (&["--node", "n", "--taint", "no-execute"], "invalid value 'no-execute' for '--taint <TAINT>'"),
            (&["--nod", "n"], "unexpected argument '--nod'"),
        ] {
            let words = ["elbowroom-kube"].iter().chain(words);
            let line = usage_error_line(&KubeArgs::try_parse_from(words).unwrap_err().to_string());
            assert!(line.starts_with(expect) && !line.contains('\n'), "{line}");
        }
    }
}
