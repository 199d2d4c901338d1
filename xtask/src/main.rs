//! Chores of the repository: `cargo xtask man DIR` and `cargo xtask completions DIR`.

mod completions;

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["man", dir] => man(Path::new(dir)),
        ["completions", dir] => completions::write(Path::new(dir)),
        _ => bail!("usage: cargo xtask man DIR | cargo xtask completions DIR"),
    }
}

/// One page for the program and one for each verb.
fn man(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    clap_mangen::generate_to(elbowroom::command(), dir).with_context(|| dir.display().to_string())
}
