//! Page tables and page faults of applications, four containers of each: what the thesis' chapter 5 asks of them.

use crate::database;
use crate::job::{Folder, Job, Lab, table};
use crate::plot;
use crate::program::Program;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Containers of one application.
const CONTAINERS: usize = 4;
const APPLICATIONS: [&str; 6] = ["mariadb", "httpd", "fio", "pagerank", "dense", "sparse"];
/// Bytes of the file that fio and the functions map.
const FILE: u64 = 64 << 20;
/// Rows of a database, some megabytes.
const ROWS: u64 = 20_000;
const CLASSES: [&str; 6] = ["read", "cow", "shared", "anonymous", "swap", "write-protect"];

/// Arguments of `profile-applications`.
#[derive(clap::Args, Debug)]
pub(crate) struct ProfileApplications {
    /// Seconds between the first look and the one at the steady state.
    #[arg(long, default_value_t = 10)]
    steady: u32,
    /// Seconds in which faults are counted after the last container has started; their starts are counted too.
    #[arg(long, default_value_t = 6)]
    faults: u32,
    /// The first of the ports that web servers listen on.
    #[arg(long, default_value_t = 19_500)]
    port: u16,
}

/// All measurements of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    steady_s: u32,
    faults_s: u32,
    applications: Vec<Application>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Application {
    name: String,
    initial: Tally,
    steady: Tally,
    faults: Faults,
}

/// Entries of all four containers, as the product tells them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Tally {
    entries: u64,
    groupable: u64,
    groupable_across: u64,
    elsewhere: u64,
    zero: u64,
    huge: u64,
    #[serde(default)]
    active: u64,
    #[serde(default)]
    active_groupable: u64,
}

/// Page faults of all four, from their start on.
#[derive(Debug, Serialize, Deserialize)]
struct Faults {
    total: u64,
    duplicates: u64,
    cpu_usec: u64,
    /// In the order of [`CLASSES`].
    classes: Vec<u64>,
    tier: String,
}

/// Who asks servers; ends with this.
struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        // Its whole group: a shell has children.
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

impl Job for ProfileApplications {
    const NAME: &'static str = "profile-applications";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let dir = lab.scope.dir();
        let file = dir.join("file");
        fs::write(&file, vec![1; FILE as usize]).context("while making a file")?;
        let data = dir.join("databases");
        fs::create_dir_all(&data).context("while making room for databases")?;
        database::prepare(&lab.scope, &data, CONTAINERS, ROWS)?;
        let mut raw = Raw { steady_s: self.steady, faults_s: self.faults, applications: Vec::new() };
        for name in APPLICATIONS {
            lab.scope.check()?;
            eprintln!("{name}");
            raw.applications.push(self.measure(lab, name, &file, &data)?);
        }
        Ok(raw)
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        out.say(format!(
            "Page tables and page faults of four containers of each application. \"initial\" is when they have just started, \"steady\" \
             {} s later; active entries were used within half a second. Faults are those from the start of the first container until {} s after \
             that of the last. One run; counts, not times.",
            raw.steady_s, raw.faults_s
        ));
        let percent = |part: u64, whole: u64| match whole {
            0 => "-".to_owned(),
            _ => format!("{:.1} %", 100.0 * part as f64 / whole as f64),
        };
        let mut rows = Vec::new();
        for app in &raw.applications {
            for (when, t) in [("initial", &app.initial), ("steady", &app.steady)] {
                rows.push(vec![
                    format!("{}, {when}", app.name),
                    t.entries.to_string(),
                    percent(t.groupable, t.entries),
                    percent(t.groupable_across, t.entries),
                    percent(t.elsewhere, t.entries),
                    percent(t.zero, t.entries),
                    percent(t.huge, t.entries),
                    percent(t.active, t.entries),
                    percent(t.active_groupable, t.active),
                ]);
            }
        }
        let head = [
            "application",
            "entries",
            "groupable",
            "across",
            "elsewhere",
            "zeros",
            "huge",
            "active",
            "groupable of active",
        ];
        out.say(table(&head, &rows));
        let parts = ["groupable", "elsewhere", "exclusive", "zeros"];
        let split = |t: &Tally| {
            let exclusive = t.entries.saturating_sub(t.groupable + t.elsewhere + t.zero);
            [t.groupable, t.elsewhere, exclusive, t.zero]
                .map(|n| 100.0 * n as f64 / t.entries.max(1) as f64)
                .to_vec()
        };
        let bars: Vec<(String, Vec<f64>)> = raw
            .applications
            .iter()
            .flat_map(|app| {
                [
                    (format!("{} initial", app.name), split(&app.initial)),
                    (format!("{} steady", app.name), split(&app.steady)),
                ]
            })
            .collect();
        let svg = plot::bars("Page-table entries of four containers", "percent of entries", &parts, &bars)?;
        out.figure("entries.svg", "Who could share page-table entries", &svg)?;
        let active: Vec<(String, Vec<f64>)> = raw
            .applications
            .iter()
            .map(|app| {
                let t = &app.steady;
                let of = |n: u64| 100.0 * n as f64 / t.entries.max(1) as f64;
                (
                    app.name.clone(),
                    vec![of(t.active_groupable), of(t.active.saturating_sub(t.active_groupable))],
                )
            })
            .collect();
        let svg = plot::bars(
            "Active entries in the steady state",
            "percent of entries",
            &["groupable", "others"],
            &active,
        )?;
        out.figure("active.svg", "Active entries", &svg)?;
        let rows: Vec<Vec<String>> = raw
            .applications
            .iter()
            .map(|app| {
                let f = &app.faults;
                let mut cells = vec![app.name.clone(), f.total.to_string()];
                cells.extend(f.classes.iter().map(|n| percent(*n, f.total)));
                cells.push(percent(f.duplicates, f.total));
                cells.push(match f.cpu_usec {
                    0 => "-".to_owned(),
                    cpu => format!("{:.0}", f.total as f64 * 1e6 / cpu as f64),
                });
                cells
            })
            .collect();
        let mut head = vec!["application", "faults"];
        head.extend(CLASSES);
        head.extend(["duplicated", "per CPU second"]);
        out.say(table(&head, &rows));
        let bars: Vec<(String, Vec<f64>)> = raw
            .applications
            .iter()
            .map(|app| {
                let of = |n: &u64| 100.0 * *n as f64 / app.faults.total.max(1) as f64;
                (app.name.clone(), app.faults.classes.iter().map(of).collect())
            })
            .collect();
        let svg = plot::bars("Page faults by class", "percent of faults", &CLASSES, &bars)?;
        out.figure("classes.svg", "Page faults by class", &svg)?;
        let tiers: Vec<&str> = raw.applications.iter().map(|app| app.faults.tier.as_str()).collect();
        out.say(format!("Faults were followed by {}.", tiers.first().unwrap_or(&"nobody")));
        Ok(())
    }
}

impl ProfileApplications {
    fn measure(&self, lab: &Lab, name: &str, file: &Path, data: &Path) -> Result<Application> {
        // Cgroups first, so that faults are counted from the first one on.
        let parent = format!("profile-{name}");
        let mut faults = Command::new(lab.program())
            .args(["profile", "faults", "--format", "json", "--for", "1h"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .args(["--config"])
            .arg(self.config(lab, &parent)?)
            .spawn()
            .context("while running the product")?;
        let mut line = String::new();
        BufReader::new(faults.stderr.take().expect("its talk is a pipe")).read_line(&mut line)?;
        if !line.contains("counting") {
            faults.wait().context("while waiting for the product")?;
            bail!("the product does not count faults: {}", line.trim());
        }
        let mut containers = Vec::new();
        for i in 0..CONTAINERS {
            containers.push(self.start(lab, name, &format!("{parent}-{i}"), i, file, data)?);
        }
        let cgroups = containers.iter().map(|c: &Program| c.cgroup(lab)).collect::<Result<Vec<_>>>()?;
        let loads = (0..CONTAINERS)
            .filter_map(|i| self.load(name, i, lab).transpose())
            .collect::<Result<Vec<Load>>>()?;
        // The steady state begins when the last one has worked for a while.
        std::thread::sleep(std::time::Duration::from_secs(self.faults.into()));
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&faults),
            rustix::process::Signal::INT,
        )
        .context("while stopping the product")?;
        let done = faults.wait_with_output().context("while waiting for the product")?;
        let counted = answer(&done)?;
        let steady = format!("{}s", self.steady);
        let done = Command::new(lab.program())
            .args(["profile", "pages", "--format", "json", "--active", "500ms", "--after", &steady])
            .args(&cgroups)
            .output()
            .context("while running the product")?;
        let pages = answer(&done)?;
        drop(loads);
        let tally = |look: usize| -> Result<Tally> {
            serde_json::from_value(pages["looks"][look]["total"].clone()).context("its answer has no sums")
        };
        Ok(Application {
            name: name.to_owned(),
            initial: tally(0)?,
            steady: tally(1)?,
            faults: sum(&counted, &parent)?,
        })
    }

    /// A configuration by which the cgroups of one application are containers.
    fn config(&self, lab: &Lab, parent: &str) -> Result<std::path::PathBuf> {
        let path = lab.scope.dir().join(format!("{parent}.toml"));
        let glob = lab.maker.cgroup_glob(&format!("{parent}-"));
        fs::write(&path, format!("[containers]\ncgroups = [{glob:?}]\n"))
            .context("while writing a configuration")?;
        Ok(path)
    }

    fn start(
        &self,
        lab: &Lab,
        name: &str,
        group: &str,
        i: usize,
        file: &Path,
        data: &Path,
    ) -> Result<Program> {
        let path = file.display().to_string();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        match name {
            "mariadb" => {
                let (data, socket) = (data.join(i.to_string()), self.socket(lab, i));
                let mut all = words(&[
                    "mariadbd",
                    "--no-defaults",
                    "--user=root",
                    "--skip-networking",
                    "--innodb-buffer-pool-size=32M",
                ]);
                all.push(format!("--datadir={}", data.display()));
                all.push(format!("--socket={socket}"));
                all.push(format!("--pid-file={socket}.pid"));
                Program::foreign(lab, group, &all)
            }
            "httpd" => {
                let root = lab.scope.dir().join(format!("httpd-{i}"));
                fs::create_dir_all(&root).context("while making a directory for httpd")?;
                fs::write(root.join("index.html"), vec![b'x'; 65_536]).context("while writing a page")?;
                let modules = "/usr/lib/apache2/modules";
                let text = format!(
                    "ServerName localhost\nListen 127.0.0.1:{}\nDocumentRoot {root}\nPidFile {root}/pid\nErrorLog {root}/log\n\
                     LoadModule mpm_event_module {modules}/mod_mpm_event.so\nLoadModule authz_core_module {modules}/mod_authz_core.so\n\
                     LoadModule dir_module {modules}/mod_dir.so\nMutex file:{root}\n",
                    usize::from(self.port) + i,
                    root = root.display()
                );
                let config = root.join("httpd.conf");
                fs::write(&config, text).context("while configuring httpd")?;
                // One process: what a container has of them is the same times four.
                Program::foreign(lab, group, &words(&["apache2", "-X", "-f", &config.display().to_string()]))
            }
            "fio" => {
                let filename = format!("--filename={path}");
                let size = format!("--size={FILE}");
                Program::foreign(
                    lab,
                    group,
                    &words(&[
                        "fio",
                        "--name=x",
                        "--ioengine=mmap",
                        "--rw=randread",
                        "--bs=4k",
                        "--time_based",
                        "--runtime=3600",
                        "--thread",
                        "--invalidate=0",
                        "--rate_iops=20000",
                        &filename,
                        &size,
                    ]),
                )
            }
            own => Program::start(lab, "applications", group, &words(&[own, &path])),
        }
    }

    fn socket(&self, lab: &Lab, i: usize) -> String {
        lab.scope.dir().join(format!("m{i}.sock")).display().to_string()
    }

    fn load(&self, name: &str, i: usize, lab: &Lab) -> Result<Option<Load>> {
        let script = match name {
            "mariadb" => format!(
                "until mariadb --no-defaults -uroot -S{0} -e 'SELECT 1'; do sleep 0.2; done; exec sysbench oltp_read_only \
                 --mysql-user=root --mysql-socket={0} --tables=1 --table-size={ROWS} --rate=20 --time=3600 run",
                self.socket(lab, i)
            ),
            "httpd" => format!(
                "while :; do curl --silent --max-time 1 -o /dev/null 'http://127.0.0.1:{}/?[1-20]'; sleep 0.2; done",
                usize::from(self.port) + i
            ),
            _ => return Ok(None),
        };
        let child = Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("while starting who asks")?;
        Ok(Some(Load(child)))
    }
}

fn answer(done: &std::process::Output) -> Result<Value> {
    if !done.status.success() {
        bail!("the product refused: {}", String::from_utf8_lossy(&done.stderr).trim());
    }
    let mut all: Value = serde_json::from_slice(&done.stdout).context("its answer is no JSON")?;
    Ok(all["answer"].take())
}

/// Faults of all containers whose cgroup is one of ours.
fn sum(answer: &Value, parent: &str) -> Result<Faults> {
    let all = answer["containers"].as_array().context("its answer has no containers")?;
    let ours: Vec<&Value> =
        all.iter().filter(|c| c["cgroup"].as_str().is_some_and(|path| path.contains(parent))).collect();
    if ours.len() != CONTAINERS {
        bail!("faults of {} containers were counted, not of {CONTAINERS}", ours.len());
    }
    let total = |value: fn(&Value) -> u64| ours.iter().map(|c| value(c)).sum();
    Ok(Faults {
        total: total(|c| c["total"].as_u64().unwrap_or(0)),
        duplicates: total(|c| c["duplicates"].as_u64().unwrap_or(0)),
        cpu_usec: total(|c| c["work"]["cpu"].as_u64().unwrap_or(0)),
        classes: CLASSES
            .map(|class| ours.iter().map(|c| c["classes"][class].as_u64().unwrap_or(0)).sum())
            .to_vec(),
        tier: answer["tier"].as_str().unwrap_or("unknown").to_owned(),
    })
}
