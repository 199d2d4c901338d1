//! What a container adds to GPU programs, and where their time goes: the thesis' four kinds of programs (stencil, LU decomposition,
//! particle filter, LeNet), each natively and in a container of runc, in turns.
//!
//! The measuring is `elbowroom profile gpu`; this job runs it for each program and puts the answers together.

use crate::job::{Folder, Job, Lab, table};
use crate::plot;
use crate::stats::{Spread, short};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The benchmarks, and how many kernels each launches.
const BENCHMARKS: [(&str, u64); 4] =
    [("stencil", 50), ("lu", 2 * 511), ("particle", 2 * 20), ("lenet", 6 * 20)];

/// Arguments of `profile-gpu`.
#[derive(clap::Args, Debug)]
pub(crate) struct ProfileGpu {
    /// How often in each of the two places, traced and not.
    #[arg(long, default_value_t = 10)]
    runs: u32,
    /// The benchmarks.
    #[arg(long, value_name = "FILE", default_value = "target/gpu/bench")]
    bench: PathBuf,
    /// What the program needs of the host besides /usr, to be seen in the container at the same path; repeatable.
    #[arg(long, value_name = "PATH")]
    see: Vec<PathBuf>,
    /// One more program, and its arguments.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// All programs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raw {
    /// The GPU's model, and the driver's version.
    gpu: String,
    programs: Vec<Program>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Program {
    name: String,
    /// How many kernels it launches, where that is known.
    launches: Option<u64>,
    #[serde(flatten)]
    answer: Answer,
}

/// What the product prints.
#[derive(Debug, Deserialize)]
struct Printed {
    answer: Answer,
}

/// Those of its numbers that are kept.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    runtime: String,
    runs: Vec<Run>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Run {
    container: bool,
    wall_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sums: Option<Sums>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Sums {
    traced_ns: u64,
    before_ns: u64,
    kernel_ns: u64,
    kernels: u64,
    copy_ns: u64,
    copy_bytes: u64,
    overhead_ns: u64,
    lost: u64,
    complete: bool,
    calls: BTreeMap<String, Calls>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Calls {
    calls: u64,
    ns: u64,
}

/// A time of a run.
type Value<'a> = &'a dyn Fn(&Run) -> Option<u64>;
/// One that tables have in a row, and figures in a bar.
type Part = (&'static str, Box<dyn Fn(&Run) -> Option<u64>>);

/// Kinds of calls as the product names them, and as tables do.
const CALLS: [(&str, &str); 7] = [
    ("start", "start"),
    ("module", "module load, JIT"),
    ("malloc", "malloc"),
    ("memcpy", "memcpy"),
    ("launch", "launch"),
    ("wait", "wait"),
    ("other", "other calls"),
];

impl Job for ProfileGpu {
    const NAME: &'static str = "profile-gpu";
    type Raw = Raw;

    fn record(&self, lab: &Lab) -> Result<Raw> {
        let bench = std::path::absolute(&self.bench).context("while finding the benchmarks")?;
        if !bench.is_file() {
            bail!("{} is missing: `make gpu` makes it", bench.display());
        }
        let mut raw = Raw { gpu: gpu()?, programs: Vec::new() };
        let of = |(name, launches): (&str, u64)| {
            (name.to_owned(), Some(launches), vec![bench.display().to_string(), name.to_owned()])
        };
        let mut programs: Vec<_> = BENCHMARKS.into_iter().map(of).collect();
        if let Some(command) = self.command.first() {
            let words: Vec<_> = [command].into_iter().chain(self.command.last()).collect();
            let name = words.iter().filter_map(|word| word.rsplit('/').next()).collect::<Vec<_>>().join(" ");
            programs.push((name, None, self.command.clone()));
        }
        for (name, launches, command) in programs {
            lab.scope.check()?;
            eprintln!("{name}");
            let answer = self.measure(lab, &command).with_context(|| format!("while measuring {name}"))?;
            raw.programs.push(Program { name, launches, answer });
            lab.keep(&raw)?;
        }
        Ok(raw)
    }

    fn format(raw: &Raw, out: &mut Folder) -> Result<()> {
        let runtime = raw.programs.first().map_or("", |program| &program.answer.runtime);
        let runs = raw.programs.iter().map(|program| runs(program, false)).collect::<Vec<_>>();
        out.say(format!(
            "{}. Each program by turns on the host and in a container of {runtime} with the same /usr, {} times in each, and as often \
             traced. Milliseconds: medians (smallest to largest).",
            raw.gpu,
            runs.first().unwrap_or(&0)
        ));
        out.say("## End to end");
        out.say(
            "Not traced. *In the program* is of the traced runs, from `cuInit()` to the end: the rest of what a container adds is its \
             own start and end.",
        );
        let wall: Value = &|run| run.sums.is_none().then_some(run.wall_ns);
        let traced: Value = &|run| Some(run.sums.as_ref()?.traced_ns);
        let rows = raw.programs.iter().map(|program| {
            let mut row = vec![program.name.clone()];
            for value in [wall, traced] {
                let [native, container] = [false, true].map(|place| spread(program, place, value));
                let ratio = native.zip(container).map(|(n, c)| format!("{:.2}", c.median / n.median));
                row.extend([text(native), text(container), ratio.unwrap_or_default()]);
            }
            row
        });
        let head = [
            "program",
            "native",
            "container",
            "ratio",
            "in the program, native",
            "in the program, container",
            "ratio",
        ];
        out.say(table(&head, &rows.collect::<Vec<_>>()));
        out.say("## Where time goes");
        out.say(
            "Traced. Time in calls is given to the innermost one, and to no call while the tracing itself was in the way; time on the \
             GPU is when anything ran there. *cuInit()* is what it does once tracing has begun, with what that needs to begin.",
        );
        for program in &raw.programs {
            out.say(format!("### {}", program.name));
            let rows = parts().into_iter().map(|(name, value)| {
                let [native, container] = [false, true].map(|place| spread(program, place, &*value));
                let ratio = native.zip(container).filter(|(n, _)| n.median > 0.0);
                let ratio = ratio.map_or("-".into(), |(n, c)| format!("{:.2}", c.median / n.median));
                vec![name.to_owned(), text(native), text(container), ratio]
            });
            out.say(table(&["", "native", "container", "ratio"], &rows.collect::<Vec<_>>()));
        }
        let names = || raw.programs.iter().map(|program| program.name.as_str());
        let parts = parts();
        let bars = |programs: &[&Program]| -> Vec<(String, Vec<f64>)> {
            let mut bars = Vec::new();
            for program in programs {
                for (place, container) in [("native", false), ("container", true)] {
                    let of = |value: Value| spread(program, container, value).map_or(0.0, |s| s.median);
                    bars.push((
                        format!("{}, {place}", program.name),
                        parts.iter().map(|(_, v)| of(&**v)).collect(),
                    ));
                }
            }
            bars
        };
        let labels: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
        let title = "GPU and CUDA calls (ms)";
        let all: Vec<&Program> = raw.programs.iter().collect();
        out.figure("parts.svg", title, &plot::bars(title, "ms", &labels, &bars(&all))?)?;
        out.say("## The GPU's part");
        out.say(
            "Shares of the time in the program, traced: the GPU in kernels, the GPU copying, `cuInit()` and CUDA calls. The GPU works \
             while calls wait for it, so they may overlap.",
        );
        let share = |program: &Program, container: bool, value: &dyn Fn(&Sums) -> u64| {
            let of = |run: &Run| {
                let sums = run.sums.as_ref()?;
                Some(100.0 * value(sums) as f64 / sums.traced_ns as f64)
            };
            let values = program.answer.runs.iter().filter(|run| run.container == container).filter_map(of);
            Spread::of(values).map_or(String::new(), |spread| format!("{} %", short(spread.median)))
        };
        let calls = |sums: &Sums| sums.calls.values().map(|calls| calls.ns).sum();
        let mut rows = Vec::new();
        for (program, container) in all.iter().flat_map(|program| [(program, false), (program, true)]) {
            rows.push(vec![
                format!("{}, {}", program.name, if container { "container" } else { "native" }),
                share(program, container, &|sums| sums.kernel_ns),
                share(program, container, &|sums| sums.copy_ns),
                share(program, container, &|sums| sums.before_ns),
                share(program, container, &calls),
            ]);
        }
        out.say(table(&["", "kernels", "copies", "cuInit()", "CUDA calls"], &rows));
        out.say("## How sure this is");
        let rows = names().zip(&raw.programs).map(|(name, program)| {
            let sums = || program.answer.runs.iter().filter_map(|run| run.sums.as_ref());
            let found: Vec<u64> = sums().map(|sums| sums.kernels).collect();
            let (least, most) = (found.iter().min().unwrap_or(&0), found.iter().max().unwrap_or(&0));
            let plain = spread(program, false, wall).map(|s| s.median);
            let with =
                spread(program, false, &|run| run.sums.is_some().then_some(run.wall_ns)).map(|s| s.median);
            vec![
                name.to_owned(),
                program.launches.map_or("-".into(), |n| n.to_string()),
                if least == most { least.to_string() } else { format!("{least} to {most}") },
                sums().map(|sums| sums.lost).sum::<u64>().to_string(),
                sums().filter(|sums| !sums.complete).count().to_string(),
                plain.zip(with).map_or(String::new(), |(p, w)| format!("{:+.0} %", 100.0 * (w / p - 1.0))),
            ]
        });
        let head = [
            "program",
            "kernels launched",
            "kernels traced",
            "records lost",
            "traces without end",
            "longer when traced",
        ];
        out.say(table(&head, &rows.collect::<Vec<_>>()));
        Ok(())
    }
}

impl ProfileGpu {
    fn measure(&self, lab: &Lab, program: &[String]) -> Result<Answer> {
        let mut command = Command::new(lab.program());
        command.args(["profile", "gpu", "--format", "json", "--runs", &self.runs.to_string()]);
        self.see.iter().for_each(|path| {
            command.arg("--see").arg(path);
        });
        command.arg("--").args(program);
        let out = command.stdin(Stdio::null()).output().context("while starting the product")?;
        if !out.status.success() {
            bail!("{}", String::from_utf8_lossy(&out.stderr).trim());
        }
        let printed: Printed =
            serde_json::from_slice(&out.stdout).context("the product printed no profile")?;
        Ok(printed.answer)
    }
}

/// What times are told apart, in the order of tables.
fn parts() -> Vec<Part> {
    let mut parts: Vec<Part> = vec![
        ("GPU in kernels", Box::new(|run| Some(run.sums.as_ref()?.kernel_ns))),
        ("GPU copying", Box::new(|run| Some(run.sums.as_ref()?.copy_ns))),
        ("cuInit()", Box::new(|run| Some(run.sums.as_ref()?.before_ns))),
    ];
    for (kind, name) in CALLS {
        parts.push((
            name,
            Box::new(move |run| Some(run.sums.as_ref()?.calls.get(kind).map_or(0, |calls| calls.ns))),
        ));
    }
    parts
}

fn runs(program: &Program, container: bool) -> usize {
    program.answer.runs.iter().filter(|run| run.container == container && run.sums.is_none()).count()
}

/// In milliseconds.
fn spread(program: &Program, container: bool, value: Value) -> Option<Spread> {
    let of = program.answer.runs.iter().filter(|run| run.container == container).filter_map(value);
    Spread::of(of.map(|ns| ns as f64 / 1e6))
}

fn text(spread: Option<Spread>) -> String {
    spread.map_or_else(String::new, |spread| spread.text())
}

/// `NVIDIA H100 80GB HBM3, driver 580.159.04`.
fn gpu() -> Result<String> {
    let root = "/proc/driver/nvidia";
    let models = fs::read_dir(format!("{root}/gpus")).context("there is no NVIDIA GPU here")?;
    let mut names = Vec::new();
    for entry in models {
        let text = fs::read_to_string(entry?.path().join("information")).unwrap_or_default();
        names.extend(text.lines().find_map(|line| Some(line.strip_prefix("Model:")?.trim().to_owned())));
    }
    let version =
        fs::read_to_string(format!("{root}/version")).context("while reading the driver's version")?;
    let number = version.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    Ok(format!("{}, driver {}", names.join(", "), number.unwrap_or("of unknown version")))
}
