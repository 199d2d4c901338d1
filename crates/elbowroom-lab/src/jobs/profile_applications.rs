//! Page tables and page faults of applications, four containers of each on one CPU: what the thesis' chapter 5 asks of them.

use crate::job::{Folder, Job, Lab, table};
use crate::program::Program;
use crate::stats::Spread;
use crate::{database, plot};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Containers of one application.
const CONTAINERS: usize = 4;
const APPLICATIONS: [&str; 6] = ["mariadb", "httpd", "fio", "pagerank", "dense", "sparse"];
/// How a program's addresses are chosen, and what it is started by for that: on the first CPU, so that there are as many containers per
/// core as the thesis has.
const ADDRESSES: [(&str, &[&str]); 2] =
    [("randomised", &["taskset", "-c", "0"]), ("fixed", &["taskset", "-c", "0", "setarch", "-R"])];
/// Bytes of the file that fio and the functions map.
const FILE: u64 = 64 << 20;
/// Rows of a database, some megabytes.
const ROWS: u64 = 20_000;
const CLASSES: [&str; 6] = ["read", "cow", "shared", "anonymous", "swap", "write-protect"];

/// Arguments of `profile-applications`.
#[derive(clap::Args, Debug)]
pub(crate) struct ProfileApplications {
    /// How often everything is measured.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Seconds between the first look, right after the last container has started, and the one at the steady state. The thesis has 120;
    /// the default is for a quick run.
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
    run: usize,
    name: String,
    addresses: String,
    /// Seconds from the start of the last container until page tables had been read for each look. Without it, the first look came
    /// only when faults had been counted.
    #[serde(default)]
    read_s: Option<[f64; 2]>,
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

/// What applications are started with: the file that is mapped, the directory of databases, and what starts them.
struct Given<'a> {
    file: &'a Path,
    data: &'a Path,
    by: &'a [&'a str],
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
        for run in 0..self.runs {
            eprintln!("run {} of {}", run + 1, self.runs);
            for name in APPLICATIONS {
                for (addresses, by) in ADDRESSES {
                    lab.scope.check()?;
                    let given = Given { file: &file, data: &data, by };
                    let measured = self.measure(lab, run, name, addresses, &given);
                    raw.applications.push(measured.with_context(|| format!("while measuring {name}"))?);
                }
            }
        }
        Ok(raw)
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        let cases: Vec<Case<'_>> = APPLICATIONS
            .into_iter()
            .flat_map(|name| ADDRESSES.map(|(addresses, _)| Case { raw, name, addresses }))
            .filter(|case| case.runs().next().is_some())
            .collect();
        let runs = cases.iter().map(|case| case.runs().count()).min().unwrap_or(0);
        out.say(format!(
            "Page tables and page faults of four containers of each application, on one CPU. {}; active entries were used within half a second. \
             Faults are those from the start of the first container until {} s after that of the last. \"fixed\" is without randomised addresses \
             (`setarch -R`). {runs} runs, applications in turn; median (smallest to largest), shares in percent of entries, \"groupable of active\" \
             of active entries.",
            looks(raw),
            raw.faults_s
        ));
        let mut rows = Vec::new();
        for case in &cases {
            for (when, look) in LOOKS {
                let share = |part: fn(&Tally) -> u64| case.text(|a| percent(part(look(a)), look(a).entries));
                rows.push(vec![
                    format!("{}, {}, {when}", case.name, case.addresses),
                    case.text(|a| look(a).entries as f64),
                    share(|t| t.groupable),
                    share(|t| t.groupable_across),
                    share(|t| t.elsewhere),
                    share(|t| t.zero),
                    share(|t| t.huge),
                    share(|t| t.active),
                    case.text(|a| percent(look(a).active_groupable, look(a).active)),
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
        let bars = |case: &Case<'_>, when: &str, values: &[&dyn Fn(&Application) -> f64]| {
            let name = format!("{} {}{when}", case.name, case.addresses);
            (name, values.iter().map(|value| case.median(value)).collect::<Vec<f64>>())
        };
        let split: Vec<(String, Vec<f64>)> = cases
            .iter()
            .flat_map(|case| {
                LOOKS.map(|(when, look)| {
                    let of = |part: fn(&Tally) -> u64| {
                        move |a: &Application| percent(part(look(a)), look(a).entries)
                    };
                    let when = format!(", {when}");
                    bars(
                        case,
                        &when,
                        &[
                            &of(|t| t.groupable),
                            &of(|t| t.elsewhere),
                            &of(|t| t.entries.saturating_sub(t.groupable + t.elsewhere + t.zero)),
                            &of(|t| t.zero),
                        ],
                    )
                })
            })
            .collect();
        let parts = ["groupable", "elsewhere", "exclusive", "zeros"];
        let svg = plot::bars("Page-table entries of four containers", "percent of entries", &parts, &split)?;
        out.figure("entries.svg", "Who could share page-table entries", &svg)?;
        let active: Vec<(String, Vec<f64>)> = cases
            .iter()
            .map(|case| {
                let of = |part: fn(&Tally) -> u64| {
                    move |a: &Application| percent(part(&a.steady), a.steady.entries)
                };
                let others = of(|t| t.active.saturating_sub(t.active_groupable));
                bars(case, "", &[&of(|t| t.active_groupable), &others])
            })
            .collect();
        let svg = plot::bars(
            "Active entries in the steady state",
            "percent of entries",
            &["groupable", "others"],
            &active,
        )?;
        out.figure("active.svg", "Active entries", &svg)?;
        let rows: Vec<Vec<String>> = cases
            .iter()
            .map(|case| {
                let mut cells =
                    vec![format!("{}, {}", case.name, case.addresses), case.text(|a| a.faults.total as f64)];
                cells.extend(
                    (0..CLASSES.len()).map(|i| case.text(|a| percent(a.faults.classes[i], a.faults.total))),
                );
                cells.push(case.text(|a| percent(a.faults.duplicates, a.faults.total)));
                cells.push(case.text(|a| a.faults.total as f64 * 1e6 / a.faults.cpu_usec.max(1) as f64));
                cells
            })
            .collect();
        let mut head = vec!["application", "faults"];
        head.extend(CLASSES);
        head.extend(["duplicated", "per CPU second"]);
        out.say(table(&head, &rows));
        let classes: Vec<(String, Vec<f64>)> = cases
            .iter()
            .map(|case| {
                let of = |i: usize| move |a: &Application| percent(a.faults.classes[i], a.faults.total);
                let values: Vec<f64> = (0..CLASSES.len()).map(|i| case.median(of(i))).collect();
                (format!("{} {}", case.name, case.addresses), values)
            })
            .collect();
        let svg = plot::bars("Page faults by class", "percent of faults", &CLASSES, &classes)?;
        out.figure("classes.svg", "Page faults by class", &svg)?;
        let tiers: BTreeSet<&str> = raw.applications.iter().map(|app| app.faults.tier.as_str()).collect();
        out.say(format!("Faults were followed by {}.", tiers.into_iter().collect::<Vec<_>>().join(" and ")));
        Ok(())
    }
}

/// One application with addresses of one kind.
struct Case<'a> {
    raw: &'a Raw,
    name: &'a str,
    addresses: &'a str,
}

/// The two looks at page tables.
type Look = fn(&Application) -> &Tally;
const LOOKS: [(&str, Look); 2] = [("initial", |a| &a.initial), ("steady", |a| &a.steady)];

/// When the looks were.
fn looks(raw: &Raw) -> String {
    let at = |look: usize| {
        let read = raw.applications.iter().filter_map(|app| Some(app.read_s?[look]));
        Spread::of(read).map(|spread| spread.text())
    };
    match (at(0), at(1)) {
        (Some(initial), Some(steady)) => {
            format!("\"initial\" is {initial} s after the last one has started, \"steady\" {steady} s after")
        }
        _ => format!(
            "\"initial\" is when faults had been counted, {} s after the last one has started, \"steady\" {} s later",
            raw.faults_s, raw.steady_s
        ),
    }
}

impl Case<'_> {
    fn runs(&self) -> impl Iterator<Item = &Application> {
        self.raw.applications.iter().filter(|a| a.name == self.name && a.addresses == self.addresses)
    }

    fn text(&self, value: impl Fn(&Application) -> f64) -> String {
        Spread::of(self.runs().map(value)).map_or("-".to_owned(), |spread| spread.text())
    }

    fn median(&self, value: impl Fn(&Application) -> f64) -> f64 {
        Spread::of(self.runs().map(value)).map_or(0.0, |spread| spread.median)
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

impl ProfileApplications {
    fn measure(
        &self,
        lab: &Lab,
        run: usize,
        name: &str,
        addresses: &str,
        given: &Given<'_>,
    ) -> Result<Application> {
        // Cgroups first, so that faults are counted from the first one on.
        let parent = format!("profile-{name}-{addresses}-{run}");
        let mut faults = Command::new(lab.program())
            .args(["profile", "faults", "--format", "json", "--for", "1h"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .args(["--config"])
            .arg(self.config(lab, &parent)?)
            .spawn()
            .context("while running the product")?;
        lab.scope.add_child(&faults)?;
        let mut line = String::new();
        BufReader::new(faults.stderr.take().expect("its talk is a pipe")).read_line(&mut line)?;
        if !line.contains("counting") {
            faults.wait().context("while waiting for the product")?;
            bail!("the product does not count faults: {}", line.trim());
        }
        let mut containers = Vec::new();
        for i in 0..CONTAINERS {
            containers.push(self.start(lab, name, &format!("{parent}-{i}"), i, given)?);
        }
        let started = SystemTime::now();
        let cgroups = containers.iter().map(|c: &Program| c.cgroup(lab)).collect::<Result<Vec<_>>>()?;
        // Looks before anything is asked of them, and again when they have worked for a while.
        let looks = Command::new(lab.program())
            .args(["profile", "pages", "--format", "json", "--active", "500ms", "--after"])
            .arg(format!("{}s", self.steady))
            .args(&cgroups)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("while running the product")?;
        lab.scope.add_child(&looks)?;
        let loads = (0..CONTAINERS)
            .filter_map(|i| self.load(name, i, lab).transpose())
            .collect::<Result<Vec<Load>>>()?;
        std::thread::sleep(Duration::from_secs(self.faults.into()));
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&faults),
            rustix::process::Signal::INT,
        )
        .context("while stopping the product")?;
        let done = faults.wait_with_output().context("while waiting for the product")?;
        let counted = answer(&done)?;
        let pages = answer(&looks.wait_with_output().context("while waiting for the product")?)?;
        drop(loads);
        let tally = |look: usize| tally(&pages["looks"][look]);
        let since = started.duration_since(UNIX_EPOCH).context("while asking the clock")?.as_millis() as f64;
        let read = |look: usize| pages["looks"][look]["read_unix_ms"].as_f64().map(|at| (at - since) / 1e3);
        Ok(Application {
            run,
            name: name.to_owned(),
            addresses: addresses.to_owned(),
            read_s: read(0).zip(read(1)).map(Into::into),
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

    fn start(&self, lab: &Lab, name: &str, group: &str, i: usize, given: &Given<'_>) -> Result<Program> {
        let Given { file, data, by } = given;
        let path = file.display().to_string();
        let words = |words: &[&str]| [*by, words].concat().into_iter().map(str::to_owned).collect::<Vec<_>>();
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
            own => {
                Program::start_by(lab, &words(&[]), "applications", group, &[own.to_owned(), path.clone()])
            }
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
        lab.scope.add_child(&child)?;
        Ok(Some(Load(child)))
    }
}

/// Sums of one look, in which a process of every container was compared.
fn tally(look: &Value) -> Result<Tally> {
    let compared = look["containers"].as_array().context("its answer has no containers")?;
    let compared = compared.iter().filter(|container| container["processes"].as_u64() > Some(0)).count();
    if compared != CONTAINERS {
        bail!("page tables of {compared} containers were compared, not of {CONTAINERS}");
    }
    serde_json::from_value(look["total"].clone()).context("its answer has no sums")
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_summary_tells_when_the_looks_were() {
        let tally = json!({"entries": 1, "groupable": 0, "groupable_across": 0, "elsewhere": 0, "zero": 0, "huge": 0});
        let faults =
            json!({"total": 1, "duplicates": 0, "cpu_usec": 1, "classes": [1, 0, 0, 0, 0, 0], "tier": "x"});
        let of = |read_s: Value| {
            let app = json!({"run": 0, "name": "fio", "addresses": "fixed", "read_s": read_s, "initial": tally, "steady": tally,
                "faults": faults});
            let raw = json!({"steady_s": 120, "faults_s": 6, "applications": [app]});
            looks(&serde_json::from_value(raw).unwrap())
        };
        let text = of(json!([0.7, 120.8]));
        assert!(text.contains("\"initial\" is 0.700 (") && text.contains("\"steady\" 121 ("), "{text}");
        assert!(of(Value::Null).contains("6 s after the last one"), "results from before are of that moment");
    }

    #[test]
    fn a_look_that_missed_a_container_stands_for_nothing() {
        let of = |processes: [u64; CONTAINERS]| {
            let containers = processes.map(|processes| json!({"processes": processes}));
            let total = json!({"entries": 9, "groupable": 0, "groupable_across": 0, "elsewhere": 0, "zero": 0, "huge": 0});
            tally(&json!({"containers": containers, "total": total}))
        };
        assert_eq!(of([1, 2, 1, 1]).unwrap().entries, 9);
        assert!(of([1, 0, 1, 1]).unwrap_err().to_string().contains("3 containers"));
    }
}
