//! Small C programs of known behaviour (`lab/programs`), in a cgroup of the run, spoken to line by line.

use crate::cgroup::{Cgroups, Limits};
use crate::job::Lab;
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running program. Dropping it ends it and waits for it.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Where it runs, with what it starts.
    cgroups: Cgroups,
}

impl Program {
    /// Builds `lab/programs/NAME.c` and starts it in a cgroup of its own called `group`; returns when it says that it is ready.
    pub(crate) fn start(lab: &Lab, name: &str, group: &str, arguments: &[String]) -> Result<Self> {
        Self::start_by(lab, &[], name, group, arguments)
    }

    /// The same, started by another program, whose command line begins with `by`.
    pub(crate) fn start_by(
        lab: &Lab,
        by: &[String],
        name: &str,
        group: &str,
        arguments: &[String],
    ) -> Result<Self> {
        let words = [by, &[build(name)?.display().to_string()], arguments].concat();
        Self::of(lab, "read go; exec \"$@\"", group, &words)
    }

    /// The same for a program of the system, which is taken to be ready as soon as it is there, and whose output is of no interest.
    pub(crate) fn foreign(lab: &Lab, group: &str, words: &[String]) -> Result<Self> {
        Self::of(lab, "read go; echo ready; exec \"$@\" >/dev/null 2>&1", group, words)
    }

    fn of(lab: &Lab, script: &str, group: &str, words: &[String]) -> Result<Self> {
        let name = &words[0];
        let cgroups = lab.maker.group(group, &Limits::default())?;
        let mut child = Command::new("sh")
            .args(["-c", script, "sh"])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("while starting {name}"))?;
        lab.scope.add_child(&child)?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let mut started = Self { child, input, output, cgroups };
        for (_, dir) in started.cgroups.dirs() {
            let procs = dir.join("cgroup.procs");
            fs::write(&procs, started.child.id().to_string())
                .with_context(|| format!("while writing {}", procs.display()))?;
        }
        match started.ask("go")?.as_str() {
            "ready" => Ok(started),
            other => bail!("{name} said {other:?} and was not ready"),
        }
    }

    /// Writes a line, and reads one.
    pub(crate) fn ask(&mut self, line: &str) -> Result<String> {
        let input = self.input.as_mut().expect("it is open until the program is dropped");
        writeln!(input, "{line}").context("while telling the program to go on")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).context("while listening to the program")?;
        Ok(answer.trim_end().to_owned())
    }

    /// Path of its cgroup from the root of its hierarchy.
    pub(crate) fn cgroup(&self, lab: &Lab) -> Result<String> {
        let pid = self.child.id();
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).context("while asking where it runs")?;
        let line = |wanted: &str| {
            text.lines()
                .find(|line| line.split(':').nth(1).is_some_and(|c| c.split(',').any(|c| c == wanted)))
        };
        let line = if lab.maker.layout().is_v2() { line("") } else { line("memory") };
        let path = line.and_then(|line| line.splitn(3, ':').nth(2)).context("it is in no cgroup")?;
        Ok(path.to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds a program of `lab/programs` that needs no libraries where it runs.
pub(crate) fn build(name: &str) -> Result<PathBuf> {
    compile(name, &["-O1", "-static"], "")
}

/// Builds `lab/programs/NAME.c` with some flags of the compiler; the file has the extension, where there is one.
pub(crate) fn compile(name: &str, flags: &[&str], extension: &str) -> Result<PathBuf> {
    let program = Path::new("target/lab").join(name).with_extension(extension);
    fs::create_dir_all("target/lab").context("while making target/lab")?;
    let source = Path::new("lab/programs").join(name).with_extension("c");
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .arg("-lm")
        .status()
        .context("while running cc; on Debian: apt install gcc libc6-dev")?;
    if !status.success() {
        bail!("cc could not build {}; run from the root of the repository", source.display());
    }
    std::path::absolute(&program).context("while finding the program")
}

/// A file of `pages` pages of 4 KiB, all in memory, written page by page: what is written at once may lie in one large folio,
/// which one fault maps whole.
pub(crate) fn file(lab: &Lab, pages: usize) -> Result<PathBuf> {
    let path = lab.scope.dir().join("file");
    let mut file = fs::File::create(&path).context("while making a file")?;
    for _ in 0..pages {
        file.write_all(&[1; 4096]).context("while writing a file")?;
    }
    Ok(path)
}
