//! An experiment and its three phases. **record** touches the machine and returns raw numbers. **study** is a function of
//! the raw numbers. **format** writes tables and figures of what was studied. Raw numbers are committed, so the last two
//! can be done again, years later, on another machine: `elbowroom-lab redraw DIR`.

use crate::backend::{Backend, Variant};
use crate::cgroup::Limits;
use crate::container::{Container, Engine, Maker};
use crate::product::Product;
use crate::scope::Scope;
use crate::sysinfo::SysInfo;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Largest raw file that belongs into a repository.
const RAW_LIMIT: u64 = 300_000;

/// An experiment.
pub(crate) trait Job {
    /// Its verb.
    const NAME: &'static str;
    /// What it records.
    type Raw: Serialize + DeserializeOwned;

    /// What its result directory is called after [`Self::NAME`], where several runs of it are results of their own.
    fn tag(&self) -> Option<String> {
        None
    }

    /// Touches the machine.
    fn record(&self, lab: &Lab) -> Result<Self::Raw>;

    /// Studies raw numbers and writes tables and figures to `out`.
    fn format(raw: &Self::Raw, out: &mut Folder) -> Result<()>;
}

/// Options of every experiment.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Common {
    /// Word added to the name of the result directory.
    #[arg(long)]
    tag: Option<String>,
    /// Directory that results go under.
    #[arg(long, value_name = "DIR", default_value = "lab/results")]
    results: PathBuf,
    /// The product's binary.
    #[arg(long, value_name = "FILE", default_value = "target/release/elbowroom")]
    elbowroom: PathBuf,
    /// A line of the agent's configuration, such as 'policy.policy="paper"'; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Sources of the program that runs inside containers.
    #[arg(long, value_name = "DIR", default_value = "lab/reader")]
    reader: PathBuf,
    /// Who makes the containers.
    #[arg(long, value_enum, default_value = "own")]
    engine: Engine,
}

/// What an experiment works with.
#[derive(Debug)]
pub(crate) struct Lab {
    /// The run's claim on the machine.
    pub(crate) scope: Arc<Scope>,
    /// Makes containers.
    pub(crate) maker: Maker,
    program: PathBuf,
    settings: Vec<String>,
    record: Record,
}

/// Where raw numbers go.
#[derive(Debug)]
struct Record {
    info: SysInfo,
    began: Instant,
    /// The directory of all results, and what this one's is called after.
    results: PathBuf,
    tags: [Option<String>; 2],
    /// This one's, once there is something in it.
    dir: Mutex<Option<PathBuf>>,
}

impl Lab {
    fn open<J: Job>(job: &J, common: &Common) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("experiments make cgroups and namespaces: run as root");
        }
        let reader = build_reader(&common.reader)?;
        let scope = Scope::open()?;
        let maker = Maker::new(common.engine, &scope, &reader)?;
        let program = std::path::absolute(&common.elbowroom).context("while finding the product")?;
        let record = Record {
            info: SysInfo::take(J::NAME, maker.layout(), &program),
            began: Instant::now(),
            results: common.results.clone(),
            tags: [job.tag(), common.tag.clone()],
            dir: Mutex::new(None),
        };
        Ok(Self { scope, maker, program, settings: common.settings.clone(), record })
    }

    /// Writes what was recorded until now. A job that takes long does so after every run: `redraw` works on what it leaves if it
    /// does not come to its end.
    pub(crate) fn keep(&self, raw: &impl Serialize) -> Result<()> {
        self.record.write(raw).map(drop)
    }

    /// The product's binary.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Starts a variant.
    pub(crate) fn start(&self, variant: Variant) -> Result<Backend> {
        let backend = Backend::start(variant, &self.scope, &self.maker, &self.program, &self.settings);
        backend.with_context(|| format!("while starting {variant}"))
    }

    /// Starts an agent for the containers whose names begin with `name` and a dash, beside others for others.
    pub(crate) fn agent(&self, name: &str, settings: &[String]) -> Result<Product> {
        let settings: Vec<String> = settings.iter().chain(&self.settings).cloned().collect();
        let glob = self.maker.cgroup_glob(&format!("{name}-"));
        Product::start(&self.scope, &self.program, name, &glob, &settings)
            .with_context(|| format!("while starting an agent for {name}"))
    }

    /// `count` containers of `backend`, numbered from 1; the limits are a function of the index, from 0.
    pub(crate) fn containers(
        &self,
        backend: &Backend,
        prefix: &str,
        count: usize,
        limits: impl Fn(usize) -> Limits,
    ) -> Result<Vec<Container>> {
        let make = |i| {
            self.scope.check()?;
            backend.container(&self.maker, &format!("{prefix}{}", i + 1), &limits(i))
        };
        (0..count).map(make).collect()
    }
}

/// A result directory being written.
#[derive(Debug)]
pub(crate) struct Folder {
    dir: PathBuf,
    summary: String,
}

impl Folder {
    /// Adds a paragraph, heading or table to the summary.
    pub(crate) fn say(&mut self, text: impl AsRef<str>) {
        self.summary.push_str(text.as_ref().trim_end());
        self.summary.push_str("\n\n");
    }

    /// Adds a figure and its caption to the summary.
    pub(crate) fn figure(&mut self, name: &str, caption: &str, svg: &str) -> Result<()> {
        self.file(name, svg)?;
        self.say(format!("![{caption}]({name})"));
        Ok(())
    }

    /// Writes a file beside the summary.
    pub(crate) fn file(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, text).with_context(|| format!("while writing {}", path.display()))
    }
}

impl Record {
    /// Writes raw numbers and the machine's description; returns where, and the description.
    fn write(&self, raw: &impl Serialize) -> Result<(PathBuf, SysInfo)> {
        let mut info = self.info.clone();
        info.seconds = self.began.elapsed().as_secs_f64();
        info.load_after = crate::procfs::loadavg();
        let mut made = self.dir.lock().expect("nobody panics while writing");
        let dir = match &*made {
            Some(dir) => dir.clone(),
            None => made.insert(new_dir(&self.results, &info, self.tags.clone())?).clone(),
        };
        // In one step: who is ended meanwhile leaves what was there.
        let write = |name: &str, text: &str| -> Result<()> {
            let new = dir.join(format!(".{name}"));
            fs::write(&new, text).with_context(|| format!("while writing {}", new.display()))?;
            fs::rename(&new, dir.join(name)).with_context(|| format!("while writing {name}"))
        };
        write("raw.json", &serde_json::to_string(raw).context("while writing raw numbers")?)?;
        let text = serde_json::to_string_pretty(&info).context("while writing sysinfo")? + "\n";
        write("sysinfo.json", &text)?;
        Ok((dir, info))
    }
}

/// Records, then studies and formats; prints where.
pub(crate) fn run<J: Job>(job: &J, common: &Common) -> Result<()> {
    let lab = Lab::open(job, common)?;
    let raw = job.record(&lab).inspect_err(|_| {
        if let Some(dir) = &*lab.record.dir.lock().expect("nobody panics while writing") {
            eprintln!("what was recorded before is kept: elbowroom-lab redraw {}", dir.display());
        }
    })?;
    let (dir, info) = lab.record.write(&raw)?;
    let size = fs::metadata(dir.join("raw.json")).context("while looking at raw.json")?.len();
    if size > RAW_LIMIT {
        let kb = size / 1000;
        eprintln!("warning: raw.json has {kb} kB; keep it out of the repository or record less");
    }
    format::<J>(&dir, &raw, &info)
}

/// Formats a recorded run again; `None` where it is another job's.
pub(crate) fn redraw<J: Job>(dir: &Path) -> Result<Option<()>> {
    let read = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).with_context(|| format!("while reading {}", path.display()))
    };
    let info: SysInfo =
        serde_json::from_str(&read("sysinfo.json")?).context("sysinfo.json is not one of ours")?;
    if info.job != J::NAME {
        return Ok(None);
    }
    let raw: J::Raw = serde_json::from_str(&read("raw.json")?).context("raw.json is of another version")?;
    format::<J>(dir, &raw, &info).map(Some)
}

fn format<J: Job>(dir: &Path, raw: &J::Raw, info: &SysInfo) -> Result<()> {
    let mut out = Folder { dir: dir.to_owned(), summary: String::new() };
    out.say(format!("# {}, {}", J::NAME, info.date));
    out.say(format!("`{}` ({:.0} s)", info.command, info.seconds));
    J::format(raw, &mut out)?;
    let versions = |name: &str, version: &Option<String>| version.as_ref().map(|v| format!("{name}{v}"));
    let versions: Vec<String> =
        [versions("", &info.elbowroom), versions("lxcfs ", &info.lxcfs)].into_iter().flatten().collect();
    out.say(format!("{}. {}.", info.text(), versions.join(", ")));
    let text = out.summary.trim_end().to_owned() + "\n";
    out.file("summary.md", &text)?;
    eprintln!("written to {}", dir.display());
    print!("{text}");
    Ok(())
}

fn new_dir(results: &Path, info: &SysInfo, tags: [Option<String>; 2]) -> Result<PathBuf> {
    let words = [Some(info.date.clone()), Some(info.job.clone())].into_iter().chain(tags).flatten();
    let base = words.collect::<Vec<_>>().join("-");
    fs::create_dir_all(results).with_context(|| format!("while making {}", results.display()))?;
    for n in 1.. {
        let dir = results.join(if n == 1 { base.clone() } else { format!("{base}-{n}") });
        match fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e).with_context(|| format!("while making {}", dir.display())),
        }
    }
    bail!("every name like {base} is taken")
}

/// Builds the reader where it is missing or older than its sources.
fn build_reader(sources: &Path) -> Result<PathBuf> {
    let program = PathBuf::from("target/lab/reader");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-static", "-pthread", "-o"]).arg(&program);
    build(sources, "c", &program, &mut cc, "on Debian: apt install gcc libc6-dev")?;
    Ok(program)
}

/// Builds the Java program where it is missing or older than its source; returns its class path.
pub(crate) fn build_java(sources: &Path) -> Result<PathBuf> {
    let classes = PathBuf::from("target/lab");
    let mut javac = Command::new("javac");
    javac.args(["--release", "11", "-d"]).arg(&classes);
    let advice = "on Debian: apt install openjdk-17-jdk-headless";
    build(sources, "java", &classes.join("Application.class"), &mut javac, advice)?;
    std::path::absolute(&classes).context("while finding the Java program")
}

fn build(
    sources: &Path,
    extension: &str,
    program: &Path,
    compiler: &mut Command,
    advice: &str,
) -> Result<()> {
    let entries = fs::read_dir(sources).with_context(|| {
        format!("while reading {}; run from the root of the repository", sources.display())
    })?;
    let files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let changed = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let newest = files.iter().filter_map(|file| changed(file)).max();
    if changed(program) >= newest && program.exists() {
        return Ok(());
    }
    fs::create_dir_all("target/lab").context("while making target/lab")?;
    let is_source = |file: &&PathBuf| file.extension().is_some_and(|e| e == extension);
    compiler.args(files.iter().filter(is_source));
    let name = compiler.get_program().display().to_string();
    let status = compiler.status().with_context(|| format!("while running {name}; {advice}"))?;
    if !status.success() {
        bail!("{name} could not build {}", sources.display());
    }
    Ok(())
}

/// A Markdown table: first column to the left, others to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<&str> = cells.collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = head.iter().enumerate().map(|(i, _)| if i == 0 { ":--" } else { "--:" });
    let mut text = line(&mut head.iter().copied()) + &line(&mut rule.map(|r| r as &str));
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// Nanoseconds on CLOCK_MONOTONIC, which the lab and the readers in containers share.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
