//! The process that touches memory: a copy of this program in the root group, so that what it touches is charged to no container.
//! It is the first that the kernel ends where memory runs out. It ends by itself when its starter is gone.

use crate::checks::{HierarchyController, HostFacts};
use crate::fixes::pretouch::{CHUNK, LockedMemory};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use elbowroom_linux::bounded::LineReader;
use elbowroom_linux::process::set_oom_score_adj;
use elbowroom_types::unit::Bytes;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The hidden verb.
const VERB: &str = "hold-memory";

/// The most bytes of a line: a number.
const MAX_LINE_BYTES: u64 = 64;

/// What the process is told.
#[derive(Args)]
pub struct HoldMemoryArgs {
    /// The cgroup to be in.
    #[arg(long)]
    cgroup: PathBuf,
}

/// Touches and gives back as it is told on standard input: each line is a number of bytes, each answer what is held.
pub fn hold_memory(args: &HoldMemoryArgs) -> Result<()> {
    let procs = args.cgroup.join("cgroup.procs");
    // 0 is the process that writes.
    std::fs::write(&procs, "0").with_context(|| format!("{}: joining", procs.display()))?;
    set_oom_score_adj(1000).context("being the first to end where memory runs out")?;
    let mut held = LockedMemory::default();
    let mut out = std::io::stdout().lock();
    let (mut lines, mut line) = (LineReader::new(std::io::stdin().lock(), MAX_LINE_BYTES), Vec::new());
    while lines.next_line(&mut line)? {
        let wanted = number(&line)?;
        while held.size().get() > wanted {
            held.shrink();
        }
        while held.size().get().saturating_add(CHUNK.get()) <= wanted {
            held.grow().context("touching memory")?;
        }
        writeln!(out, "{}", held.size().get())?;
        out.flush()?;
    }
    Ok(())
}

fn number(line: &[u8]) -> Result<u64> {
    Ok(std::str::from_utf8(line)?.trim().parse()?)
}

/// That process, from outside.
pub(super) struct MemoryHolder {
    child: Child,
    requests: Option<ChildStdin>,
    replies: LineReader<ChildStdout>,
    size: Bytes,
}

impl MemoryHolder {
    /// Starts it.
    pub(super) fn start(facts: &HostFacts) -> Result<Self> {
        let dir = facts.root().and_then(|g| g.dirs.get(&HierarchyController::Memory));
        let dir = dir.map(Path::new).context("there is no memory controller on this host")?;
        let mut child = Command::new("/proc/self/exe")
            .arg(VERB)
            .arg("--cgroup")
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a process to touch memory")?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let answers = LineReader::new(answers.expect("piped above"), MAX_LINE_BYTES);
        let mut holder = Self { child, requests: orders, replies: answers, size: Bytes::ZERO };
        holder.resize(Bytes::ZERO)?;
        Ok(holder)
    }

    /// Lets it hold `wanted`, in whole pieces; what it holds then.
    pub(super) fn resize(&mut self, wanted: Bytes) -> Result<Bytes> {
        let orders = self.requests.as_mut().expect("open until it is dropped");
        let mut answer = Vec::new();
        if writeln!(orders, "{}", wanted.get()).is_ok() {
            self.replies.next_line(&mut answer)?;
        }
        if answer.is_empty() {
            bail!("the process that touches memory ended: see above, or the kernel's log");
        }
        self.size = Bytes(number(&answer)?);
        ensure!(self.size <= wanted, "{} are held instead of {wanted}", self.size);
        Ok(self.size)
    }

    pub(super) fn size(&self) -> Bytes {
        self.size
    }
}

impl Drop for MemoryHolder {
    /// Ends it, and waits until its memory is free.
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}
