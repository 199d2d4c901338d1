//! Elbowroom: a node agent that lets every container see, and get, the room it really has.
//!
//! This is the command line: [`main`] reads the arguments and calls the crate that does the work (`program.rs`). Here are the verbs
//! that only ask and print, [`run`], [`fleet`] and [`follow`]. Nothing below imports this crate.

mod cli;
pub mod fleet;
pub mod follow;
mod help;
mod program;
mod run;
mod verbs;

pub use program::main;
pub use verbs::follow::parse_setting;
pub use verbs::record::replay_recording;

/// The command line's definition, for manual pages and completions.
pub fn command() -> clap::Command {
    // Without a verb there is more to say than clap's short help.
    help::with_groups(<cli::Cli as clap::CommandFactory>::command().arg_required_else_help(false))
}
