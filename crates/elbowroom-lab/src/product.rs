//! A private instance of the product, driven as a black box: its command line, its JSON, its processes.

use crate::procfs;
use crate::scope::{Created, Scope, reap};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// A running agent with a run directory of its own. Dropping it stops the agent.
#[derive(Debug)]
pub(crate) struct Product {
    scope: Arc<Scope>,
    program: PathBuf,
    run_dir: PathBuf,
    log: PathBuf,
    supervisor: i32,
}

/// The agent's processes by what they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Pids {
    /// Holds the file system; restarts the others.
    pub(crate) supervisor: i32,
    /// Answers reads.
    pub(crate) view_server: i32,
    /// Senses and decides.
    pub(crate) policy: i32,
}

impl Product {
    /// Starts an agent that takes cgroups matching `glob` for containers and attaches only what it is asked to; `settings`
    /// are further lines of its configuration, `name` tells it from others of the same run.
    pub(crate) fn start(
        scope: &Arc<Scope>,
        program: &Path,
        name: &str,
        glob: &str,
        settings: &[String],
    ) -> Result<Self> {
        let run_dir = scope.dir().join(name);
        fs::create_dir_all(&run_dir).context("while making a run directory")?;
        let config = scope.dir().join(format!("{name}.toml"));
        let log = scope.dir().join(format!("{name}.log"));
        let ours = ["containers.attach = false".to_owned(), format!("containers.cgroups = [\"{glob}\"]")];
        let lines: Vec<&str> = ours.iter().chain(settings).map(String::as_str).collect();
        fs::write(&config, lines.join("\n") + "\n")
            .with_context(|| format!("while writing {}", config.display()))?;
        let log_file = File::create(&log).context("while making a log for the agent")?;
        for mount in MOUNTS {
            scope.add(Created::Mount(run_dir.join(mount)))?;
        }
        let child = Command::new(program)
            .arg("agent")
            .arg("--run-dir")
            .arg(&run_dir)
            .arg("--state-dir")
            .arg(scope.dir().join(format!("{name}.state")))
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log_file.try_clone().context("while sharing a log")?)
            .stderr(log_file)
            .spawn()
            .with_context(|| {
                format!("while starting {}; build it or say --elbowroom FILE", program.display())
            })?;
        let supervisor = child.id() as i32;
        scope.add_child(&child)?;
        let product =
            Self { scope: Arc::clone(scope), program: program.to_owned(), run_dir, log, supervisor };
        let up = scope.wait_for("the agent answering", Duration::from_secs(20), || {
            if procfs::is_zombie(supervisor) {
                bail!("the agent ended");
            }
            Ok(product.ask(&["list"]).is_ok())
        });
        up.with_context(|| product.last_words())?;
        Ok(product)
    }

    /// Where its sockets are.
    pub(crate) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// Mounts the container's view into it; the agent may not have noticed a new container yet.
    pub(crate) fn attach(&self, id: &str) -> Result<()> {
        let mut error = None;
        let done = self.scope.wait_for("attaching", Duration::from_secs(10), || {
            error = self.ask(&["attach", id]).err();
            Ok(error.is_none())
        });
        done.map_err(|late| error.unwrap_or(late)).with_context(|| format!("while attaching {id}"))
    }

    /// The agent's processes, as it says itself.
    pub(crate) fn roles(&self) -> Result<Pids> {
        #[derive(Deserialize)]
        struct Report {
            agent: Option<Agent>,
        }
        #[derive(Deserialize)]
        struct Agent {
            pids: Pids,
        }
        let text = self.ask(&["check"])?;
        let report: Report = serde_json::from_str(&text).context("while reading `elbowroom check`")?;
        Ok(report.agent.context("the agent does not answer")?.pids)
    }

    /// The process that serves HTTP, as `/proc` says: the agent does not tell. None where it is being started again.
    pub(crate) fn api_server(&self) -> Option<i32> {
        let run_dir = self.run_dir.to_string_lossy();
        let is_it = |pid: &i32| {
            let args = procfs::cmdline(*pid);
            args.iter().any(|a| *a == run_dir) && args.iter().any(|a| a == "api-server")
        };
        procfs::all_pids().into_iter().find(|pid| is_it(pid) && !procfs::is_zombie(*pid))
    }

    /// Puts processes that the agent started since in the ledger: `clean` must find them should this run be killed.
    pub(crate) fn note(&self, pids: &Pids) -> Result<()> {
        for pid in [pids.supervisor, pids.view_server, pids.policy] {
            if let Ok(started) = procfs::started(pid) {
                self.scope.add(Created::Process { pid, started })?;
            }
        }
        Ok(())
    }

    /// Every process of the agent, as `/proc` says: whatever runs this program with this run directory or descends from
    /// one that does. Unlike [`Product::roles`] it asks nobody who may just have been killed.
    pub(crate) fn pids(&self) -> Vec<i32> {
        let run_dir = self.run_dir.to_string_lossy();
        let is_ours = |pid: &i32| {
            let args = procfs::cmdline(*pid);
            args.iter().any(|a| *a == run_dir) && args.iter().any(|a| VERBS.contains(&a.as_str()))
        };
        let mut pids: Vec<i32> =
            procfs::all_pids().into_iter().filter(is_ours).flat_map(procfs::family).collect();
        pids.extend(procfs::family(self.supervisor).into_iter().filter(|pid| !procfs::is_zombie(*pid)));
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// `elbowroom --version`, where there is such a program.
    pub(crate) fn version(program: &Path) -> Option<String> {
        let out = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    }

    /// What it answers, as JSON.
    pub(crate) fn ask(&self, args: &[&str]) -> Result<String> {
        let out = Command::new(&self.program)
            .args(args)
            .args(["--format", "json", "--run-dir"])
            .arg(&self.run_dir)
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("while running {}", self.program.display()))?;
        // 1 is an answer too ("no"); what cannot be answered is 2.
        if !matches!(out.status.code(), Some(0 | 1)) {
            bail!("elbowroom {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
        }
        String::from_utf8(out.stdout).context("the answer is not text")
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("the agent's log ends with:\n{}", lines[lines.len().saturating_sub(10)..].join("\n"))
    }
}

/// Verbs of the agent's long-running processes.
const VERBS: [&str; 4] = ["agent", "view-server", "policy", "api-server"];
/// Where the agent mounts something, below its run directory.
const MOUNTS: [&str; 2] = ["private/views", "pages"];

impl Drop for Product {
    fn drop(&mut self) {
        // The supervisor first: it takes its children and its mount with it. The rest is for one that cannot.
        let supervisor = self.roles().map_or(self.supervisor, |roles| roles.supervisor);
        for pid in std::iter::once(supervisor).chain(self.pids()) {
            if let Ok(started) = procfs::started(pid) {
                self.scope.take_down(&Created::Process { pid, started });
            }
        }
        reap(self.supervisor);
        for mount in MOUNTS {
            self.scope.take_down(&Created::Mount(self.run_dir.join(mount)));
        }
    }
}
