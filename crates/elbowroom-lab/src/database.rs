//! A database server in a container, and those who ask it: MariaDB and sysbench as distributions package them.
//!
//! The server caches little itself and reads its files through the kernel's page cache (`innodb_flush_method=fsync`), so what
//! a container has of memory is what it has of its database, and the kernel can take it back.

use crate::container::Container;
use crate::scope::{Created, Scope};
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// What is asked, as sysbench calls it.
const OLTP: &str = "oltp_read_only";
/// Threads of a sysbench, each with a connection.
const CLIENTS: u32 = 8;
/// How long a server may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// A transaction of [`OLTP`]'s rows, asked for by one statement instead of ten: a third of the CPU time,
/// where CPUs are emulated.
const ROWS_AT_ONCE: &str = r#"
sysbench.cmdline.options = { tables = {"", 1}, table_size = {"", 1} }
function thread_init() con = sysbench.sql.driver():connect() end
function thread_done() con:disconnect() end
function event()
  local ids = {}
  for i = 1, 10 do ids[i] = sysbench.rand.default(1, sysbench.opt.table_size) end
  con:query("SELECT c FROM sbtest1 WHERE id IN (" .. table.concat(ids, ",") .. ")")
end
"#;

/// What makes the server small and steady: no memory of its own that grows, nothing in the background.
const SERVER: [&str; 16] = [
    "--no-defaults",
    "--user=root",
    "--skip-networking",
    "--innodb-flush-method=fsync",
    "--innodb-buffer-pool-size=8M",
    "--innodb-buffer-pool-chunk-size=1M",
    "--innodb-log-file-size=8M",
    "--innodb-log-buffer-size=2M",
    "--innodb-buffer-pool-dump-at-shutdown=OFF",
    "--innodb-buffer-pool-load-at-startup=OFF",
    "--innodb-stats-persistent=OFF",
    "--performance-schema=OFF",
    "--key-buffer-size=8",
    "--aria-pagecache-buffer-size=131072",
    "--max-connections=40",
    "--table-open-cache=40",
];

/// A server. Dropping it ends it, gently where it still answers.
#[derive(Debug)]
pub(crate) struct Server {
    socket: PathBuf,
    child: Child,
    /// For one outside of any container, whose end is nobody else's affair.
    process: Option<(Arc<Scope>, Created)>,
}

/// A sysbench at work.
#[derive(Debug)]
pub(crate) struct Load {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    /// It says on stdout what went wrong.
    fatal: String,
}

/// What sysbench says of one second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Second {
    /// Transactions done.
    pub(crate) done: f64,
    /// Transactions that were asked for and wait until a thread is free.
    pub(crate) queue: u64,
}

/// How many pages rows are in, by InnoDB's statistics.
const LEAF_PAGES: &str = "SELECT stat_value FROM mysql.innodb_index_stats WHERE table_name = 'sbtest1' AND index_name = 'PRIMARY' \
    AND stat_name = 'n_leaf_pages'";

/// InnoDB's page.
pub(crate) const PAGE: u64 = 16 << 10;

/// Makes a database of `rows` rows below `dir/0`, and as many copies of it beside it as make `count`; returns the bytes of the pages
/// that rows of one are in. Its file is larger, by what InnoDB keeps ready.
pub(crate) fn prepare(scope: &Arc<Scope>, dir: &Path, count: usize, rows: u64) -> Result<u64> {
    let first = dir.join("0");
    let mut install = Command::new("mariadb-install-db");
    install.args([
        "--no-defaults",
        "--user=root",
        "--auth-root-authentication-method=normal",
        "--skip-test-db",
    ]);
    install.arg("--skip-name-resolve").arg(format!("--datadir={}", first.display()));
    run(&mut install)?;
    let pages = {
        let server = Server::start(scope, None, &first, &scope.dir().join("prepare"))?;
        run(&mut server.say("CREATE DATABASE sbtest"))?;
        let mut fill = Command::new("sysbench");
        fill.arg(OLTP).args(arguments(&server.socket, rows)).args(["--create_secondary=off", "prepare"]);
        run(&mut fill)?;
        // The server keeps none otherwise.
        run(&mut server.say("ALTER TABLE sbtest.sbtest1 STATS_PERSISTENT=1; ANALYZE TABLE sbtest.sbtest1"))?;
        let pages = server.number(LEAF_PAGES)?;
        run(&mut server.say("ALTER TABLE sbtest.sbtest1 STATS_PERSISTENT=DEFAULT"))?;
        pages
    };
    for i in 1..count {
        run(Command::new("cp").arg("--archive").arg(&first).arg(dir.join(i.to_string())))?;
    }
    rustix::fs::syncfs(File::open(dir).context("while opening the databases")?)
        .context("while writing the databases")?;
    Ok(pages * PAGE)
}

/// The file that transactions read.
pub(crate) fn table(data: &Path) -> PathBuf {
    data.join("sbtest/sbtest1.ibd")
}

/// Versions of the server and of sysbench.
pub(crate) fn versions() -> Result<String> {
    let first = |name: &str| {
        let out = Command::new(name).arg("--version").output();
        let out = out.with_context(|| format!("while running {name}; tools/setup lab brings it"))?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        anyhow::Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    };
    let server = first("mariadbd")?;
    let number = server.split_whitespace().nth(2).unwrap_or("?");
    let number = number.split('-').next().unwrap_or(number);
    let bench = first("sysbench")?;
    Ok(format!("MariaDB {number}, {}", bench.split(" (").next().unwrap_or(&bench)))
}

impl Server {
    /// Starts a server on `data` that listens at `name`.sock, in `container` or, without one, beside the lab. Returns when it
    /// answers.
    pub(crate) fn start(
        scope: &Arc<Scope>,
        container: Option<&Container>,
        data: &Path,
        name: &Path,
    ) -> Result<Self> {
        let program = Path::new("/usr/bin/env");
        let mut command = container.map_or_else(|| Command::new(program), |inside| inside.command(program));
        let (socket, log) = (name.with_extension("sock"), name.with_extension("mariadb.log"));
        command.args(["mariadbd"]).args(SERVER).arg(format!("--datadir={}", data.display()));
        command.arg(format!("--socket={}", socket.display()));
        command.arg(format!("--pid-file={}", name.with_extension("pid").display()));
        let log_file = File::create(&log).context("while making a log for mariadbd")?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log_file);
        let child = command.spawn().context("while starting mariadbd; tools/setup lab brings it")?;
        let process = match container {
            Some(_) => None,
            None => Some((Arc::clone(scope), scope.add_child(&child)?)),
        };
        let mut server = Self { socket, child, process };
        let last_words = || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            text.lines().rev().take(3).collect::<Vec<_>>().join("; ")
        };
        scope.wait_for("the server answering", PATIENCE, || {
            if server.child.try_wait().context("while asking for mariadbd")?.is_some() {
                bail!("mariadbd ended: {}", last_words());
            }
            Ok(server.say("SELECT 1").output().is_ok_and(|out| out.status.success()))
        })?;
        Ok(server)
    }

    /// A sysbench that asks this server for `rate` transactions a second, for so many seconds, from inside `container`; `at_once` for
    /// their rows by one statement each.
    pub(crate) fn load(
        &self,
        container: &Container,
        rows: u64,
        at_once: bool,
        rate: u32,
        seconds: u32,
    ) -> Result<Load> {
        let mut command = container.command(Path::new("/usr/bin/env"));
        command.arg("sysbench");
        if at_once {
            let script = self.socket.with_extension("lua");
            fs::write(&script, ROWS_AT_ONCE)
                .with_context(|| format!("while writing {}", script.display()))?;
            command.arg(script);
        } else {
            command.args([OLTP, "--range_selects=off"]);
        }
        command.args(arguments(&self.socket, rows));
        command
            .arg(format!("--rate={rate}"))
            .arg(format!("--time={seconds}"))
            .arg(format!("--threads={CLIENTS}"));
        // Ten rows at random a transaction, each with the same probability: no part of the database is enough.
        command.args(["--rand-type=uniform", "--report-interval=1", "run"]);
        let mut child = command.spawn().context("while starting sysbench")?;
        let stdout = child.stdout.take().context("sysbench has no stdout")?;
        Ok(Load { child, lines: BufReader::new(stdout).lines(), fatal: String::new() })
    }

    /// What it answers to a question for a number.
    fn number(&self, sql: &str) -> Result<u64> {
        let out = self.say(sql).args(["--batch", "--skip-column-names"]).output();
        let out = out.context("while running mariadb; tools/setup lab brings it")?;
        let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).trim().to_owned();
        said.parse().with_context(|| format!("{sql}: the server says {said:?}"))
    }

    fn say(&self, sql: &str) -> Command {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "--user=root"]).arg(format!("--socket={}", self.socket.display()));
        command.arg(format!("--execute={sql}")).stdin(Stdio::null());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let asked = self.say("SHUTDOWN").output();
        if !asked.is_ok_and(|out| out.status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
        if let Some((scope, process)) = &self.process {
            scope.take_down(process);
        }
    }
}

impl Load {
    /// What happened in the next second; `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Second>> {
        let mut done = None;
        for line in self.lines.by_ref() {
            let line = line.context("while reading what sysbench says")?;
            if line.starts_with("FATAL") {
                self.fatal.clone_from(&line);
            }
            done = number(&line, "tps: ").or(done);
            if let (Some(done), Some(queue)) = (done, number(&line, "queue length: ")) {
                return Ok(Some(Second { done, queue: queue as u64 }));
            }
        }
        Ok(None)
    }

    /// Waits for its end.
    pub(crate) fn finish(self) -> Result<()> {
        let out = self.child.wait_with_output().context("while waiting for sysbench")?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(out.status.success(), "sysbench ({}): {} {}", out.status, self.fatal, said.trim());
        Ok(())
    }
}

fn arguments(socket: &Path, rows: u64) -> Vec<String> {
    vec![
        "--mysql-user=root".to_owned(),
        format!("--mysql-socket={}", socket.display()),
        "--tables=1".to_owned(),
        format!("--table-size={rows}"),
    ]
}

/// Runs a command to its end.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().display().to_string();
    let out = command.stdin(Stdio::null()).output();
    let out = out.with_context(|| format!("while running {name}; tools/setup lab brings what this needs"))?;
    let said = [out.stdout, out.stderr].concat();
    ensure!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&said).trim());
    Ok(())
}

/// The number after `key`.
fn number(line: &str, key: &str) -> Option<f64> {
    let rest = &line[line.find(key)? + key.len()..];
    rest.split([' ', ',']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_sysbench_gives_its_numbers_and_another_none() {
        let line = "[ 3s ] thds: 8 tps: 197.01 qps: 2364.12 (r/w/o: 1970.10/0.00/394.02) lat (ms,95%): 1.25 err/s: 0.00";
        assert_eq!(number(line, "tps: "), Some(197.01));
        assert_eq!(number("[ 3s ] queue length: 12, concurrency: 8", "queue length: "), Some(12.0));
        assert_eq!(number("Threads started!", "tps: "), None);
    }
}
