//! `elbowroom profile gpu`: one GPU program natively and in a container, in turns, and what the container adds.

mod text;

use crate::engine::{ContainerOptions, ContainerProgram, EngineKind, EngineSession, ScratchDir, clean};
use crate::gpu::{GpuComparison, GpuRun, GpuTrace, MAX_TRACE_SIZE, TraceTotals, compare};
use crate::overhead::OverheadMeter;
use crate::report::ReportArgs;
use anyhow::{Context, Result, bail};
use clap::Args;
use elbowroom_client::output::say;
use elbowroom_linux::bounded;
use elbowroom_linux::signal::SignalFd;
use rustix::process::Signal;
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Where `make install` puts the tracing library, below the binary's prefix; and where `make gpu` leaves it.
const LIBRARY_PATHS: [&str; 2] = ["../lib/elbowroom/libelbowroom-gpu.so", "../gpu/libelbowroom-gpu.so"];

/// Where CUDA keeps what it compiled.
const CUDA_CACHE: &str = "CUDA_CACHE_PATH";
/// What names of traces begin with, before a process's number; the program may leave files of its own beside them.
const TRACE_PREFIX: &str = "trace.";

/// Arguments of `profile gpu`.
#[derive(Args)]
#[command(
    after_help = "The program runs as it is, by turns on the host and in a container of runc that has the same /usr, once as it \
    is and once traced: end-to-end times are of the first, everything else is of the second.\n\n\
    Examples:\n  elbowroom profile gpu --runs 10 -- target/gpu/bench stencil\n  \
    elbowroom profile gpu --see /opt/model -- python3 /opt/model/infer.py\n  elbowroom profile gpu --trace trace.1234"
)]
pub struct GpuArgs {
    /// The program and its arguments.
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "trace")]
    command: Vec<String>,
    /// Runs in each of the two places, traced and again untraced.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// What the program needs of the host besides /usr, to be seen in the container at the same path; repeatable.
    #[arg(long, value_name = "PATH")]
    see: Vec<PathBuf>,
    /// The tracing library, where it is not beside this program.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// CUPTI, where the dynamic linker does not find libcupti.so.13 or .12.
    #[arg(long, value_name = "FILE")]
    cupti: Option<PathBuf>,
    /// Add up existing traces instead of running a program; repeatable.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["command", "runs", "see", "library", "cupti"])]
    trace: Vec<PathBuf>,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Serialize)]
struct GpuReport {
    kernel: String,
    command: Vec<String>,
    /// The container's runtime, where one ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<String>,
    runs: Vec<GpuRun>,
    /// Medians, in nanoseconds.
    compared: Vec<GpuComparison>,
    /// By how much tracing lengthens the program on the host: 0.1 is a tenth.
    #[serde(skip_serializing_if = "Option::is_none")]
    tracing_adds: Option<f64>,
}

/// The verb.
pub fn main(args: &GpuArgs) -> Result<ExitCode> {
    args.report.prepare()?;
    let meter = OverheadMeter::start();
    let (runs, runtime) = if args.trace.is_empty() {
        measure(args)?
    } else {
        let read = |path: &PathBuf| {
            let sums = TraceTotals::of(&read_trace(path)?);
            anyhow::Ok(GpuRun { container: false, wall_ns: sums.traced_ns, sums: Some(sums) })
        };
        (args.trace.iter().map(read).collect::<Result<_>>()?, None)
    };
    let lost = runs.iter().filter_map(|run| run.sums.as_ref()).map(|sums| sums.lost).sum();
    let answer = GpuReport {
        kernel: crate::report::kernel_fact().1,
        command: args.command.clone(),
        runtime,
        compared: compare(&runs),
        tracing_adds: text::tracing_overhead(&compare(&runs)).filter(|_| args.trace.is_empty()),
        runs,
    };
    args.report.emit("gpu", &text::report(&answer), &meter.stop(lost), &answer)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the program in turns, so that a machine that changes meanwhile changes for both.
fn measure(args: &GpuArgs) -> Result<(Vec<GpuRun>, Option<String>)> {
    let devices = gpu_devices();
    if devices.is_empty() {
        bail!(
            "there is no NVIDIA GPU here: /dev/nvidiactl and /dev/nvidia0 are missing (--trace reads traces of other machines)"
        );
    }
    let library = find_library(args.library.as_deref())?;
    let signals = SignalFd::block(&[Signal::INT, Signal::TERM, Signal::HUP]).context("blocking signals")?;
    let (_, left) = clean();
    left.iter().for_each(|error| say(&format!("elbowroom: left by a killed profiler: {error}")));
    let engine = EngineSession::open(EngineKind::Runc, &ContainerOptions::default())?;
    let runtime = format!("{} {}", engine.kind(), engine.version());
    let measured = run_interleaved(args, &engine, &library, devices, &signals);
    let left = engine.close();
    left.iter().for_each(|error| say(&format!("elbowroom: {error}")));
    Ok((measured?, Some(runtime)))
}

fn run_interleaved(
    args: &GpuArgs,
    engine: &EngineSession,
    library: &Path,
    devices: Vec<PathBuf>,
    signals: &SignalFd,
) -> Result<Vec<GpuRun>> {
    let scratch = ScratchDir::new()?;
    let there = |path: &PathBuf| path.canonicalize().with_context(|| format!("{}", path.display()));
    let mut seen = args.see.iter().map(there).collect::<Result<Vec<_>>>().context("--see")?;
    // What is named by a link is called by it.
    seen.extend(args.see.iter().filter_map(|path| std::path::absolute(path).ok()));
    seen.sort();
    seen.dedup();
    let cupti = args.cupti.as_ref().map(there).transpose().context("--cupti")?;
    let mut plain = ContainerProgram {
        words: args.command.clone(),
        environment: utf8_variables(std::env::vars_os()),
        readable_paths: seen,
        work_dir: scratch.path().to_owned(),
        devices,
    };
    plain.words[0] = find_program(&args.command[0])?;
    for file in [Some(library), Some(Path::new(&plain.words[0])), cupti.as_deref()].into_iter().flatten() {
        plain.readable_paths.extend(parent_directories(file));
    }
    // What the driver compiles is kept for the next run in both places, or the container would compile each time.
    let cache = scratch.path().join("cuda-cache");
    fs::create_dir(&cache).with_context(|| format!("while making {}", cache.display()))?;
    plain.environment.retain(|(name, _)| name != CUDA_CACHE);
    plain.environment.push((CUDA_CACHE.to_owned(), cache.display().to_string()));
    let mut traced = plain.clone();
    let trace = scratch.path().join(TRACE_PREFIX.trim_end_matches('.'));
    let set = |name: &str, value: &Path| (name.to_owned(), value.display().to_string());
    traced.environment.extend([set("CUDA_INJECTION64_PATH", library), set("ELBOWROOM_GPU_TRACE", &trace)]);
    traced.environment.extend(cupti.as_deref().map(|path| set("ELBOWROOM_CUPTI", path)));
    let mut runs = Vec::new();
    for round in 0..args.runs {
        // The first place changes from round to round.
        let order = if round % 2 == 0 { [false, true] } else { [true, false] };
        for (traces, container) in [false, true].into_iter().flat_map(|traces| order.map(|c| (traces, c))) {
            let program = if traces { &traced } else { &plain };
            let begin = Instant::now();
            let status = match container {
                true => engine.run(program, runs.len(), signals)?,
                false => program
                    .run_on_host(signals)
                    .with_context(|| format!("while starting {}", args.command[0]))?,
            };
            let wall_ns = begin.elapsed().as_nanos() as u64;
            let Some(status) = status else { bail!("interrupted: the program was ended") };
            if !status.success() {
                let place = if container { "in a container" } else { "on the host" };
                bail!("{} failed {place} ({status}): its error output is above", args.command[0]);
            }
            let sums = if traces { Some(take_trace(scratch.path())?) } else { None };
            runs.push(GpuRun { container, wall_ns, sums });
        }
    }
    Ok(runs)
}

/// The trace of the run that has just ended: of the process that did most, where several used the GPU. Removes all.
fn take_trace(dir: &Path) -> Result<TraceTotals> {
    let mut best: Option<TraceTotals> = None;
    for entry in fs::read_dir(dir).with_context(|| format!("while reading {}", dir.display()))? {
        let path = entry?.path();
        let process = path.file_name().and_then(|name| name.to_str()?.strip_prefix(TRACE_PREFIX));
        if !process.is_some_and(|pid| pid.bytes().all(|byte| byte.is_ascii_digit())) {
            continue;
        }
        let sums = TraceTotals::of(&read_trace(&path)?);
        fs::remove_file(&path).with_context(|| format!("while removing {}", path.display()))?;
        let work = |sums: &TraceTotals| (sums.kernels, sums.call_ns());
        if best.as_ref().is_none_or(|best| work(best) < work(&sums)) {
            best = Some(sums);
        }
    }
    best.context("the program left no trace: it did not use CUDA, or CUPTI was not found (--cupti FILE says where it is)")
}

fn read_trace(path: &Path) -> Result<GpuTrace> {
    let reading = || format!("while reading {}", path.display());
    GpuTrace::parse(&bounded::file(path, MAX_TRACE_SIZE).with_context(reading)?).with_context(reading)
}

/// The nodes of GPUs and of what programs need beside them; none without a GPU.
fn gpu_devices() -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("nvidia")))
        .filter(|path| !path.is_dir())
        .collect();
    all.sort();
    let is_gpu = |path: &PathBuf| {
        let name = path.to_string_lossy();
        name.strip_prefix("/dev/nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    if !all.iter().any(is_gpu) {
        all.clear();
    }
    all
}

fn find_library(named: Option<&Path>) -> Result<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    let beside = own.parent().unwrap_or(Path::new("/"));
    let looked: Vec<PathBuf> = match named {
        Some(path) => vec![path.to_owned()],
        None => LIBRARY_PATHS.iter().map(|path| beside.join(path)).collect(),
    };
    let Some(found) = looked.iter().find_map(|path| path.canonicalize().ok()) else {
        bail!(
            "the tracing library is not at {}: `make gpu` makes it, --library FILE says where it is",
            looked[0].display()
        );
    };
    Ok(found)
}

/// The path of a command, as the container will be told it. A link stays one: by the name it has been called by, Python knows its
/// environment and a program of many names what it is to do.
fn find_program(command: &str) -> Result<String> {
    let path = match command.contains('/') {
        true => Some(PathBuf::from(command)).filter(|path| path.is_file()),
        false => {
            let directories = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&directories).map(|dir| dir.join(command)).find(|path| path.is_file())
        }
    };
    let path = path.and_then(|path| std::path::absolute(path).ok());
    let path =
        path.with_context(|| format!("there is no program {command:?}: write its path, or a name in PATH"))?;
    Ok(path.display().to_string())
}

/// The directory of a file, and that of the file which it leads to.
fn parent_directories(file: &Path) -> Vec<PathBuf> {
    let files = [Some(file.to_owned()), file.canonicalize().ok()].into_iter().flatten();
    let mut directories: Vec<PathBuf> = files.filter_map(|file| Some(file.parent()?.to_owned())).collect();
    directories.dedup();
    directories
}

/// Variables that an OCI configuration can hold: it is UTF-8.
fn utf8_variables(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<(String, String)> {
    variables.filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_program_that_is_a_link_is_called_by_its_own_name() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (real, link) = (dir.join("python3/bin"), dir.join("venv/bin/python"));
        fs::create_dir_all(&real).unwrap();
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        fs::write(real.join("python3"), "").unwrap();
        symlink("../../python3/bin/python3", &link).unwrap();
        assert_eq!(find_program(link.to_str().unwrap()).unwrap(), link.to_str().unwrap());
        assert_eq!(parent_directories(&link), [link.parent().unwrap(), &real]);
        assert_eq!(parent_directories(&real.join("python3")), [real]);
        for missing in [dir.join("python3"), dir.join("no")] {
            assert!(find_program(missing.to_str().unwrap()).is_err(), "{}", missing.display());
        }
    }

    #[test]
    fn variables_that_are_no_text_are_left_out() {
        let text = |text: &str| OsString::from(text);
        let all =
            [(text("A"), text("1")), (text("B"), OsString::from_vec(vec![0xff])), (text("C"), text(""))];
        assert_eq!(utf8_variables(all.into_iter()), [("A".into(), "1".into()), ("C".into(), String::new())]);
    }

    #[test]
    fn the_trace_of_the_process_that_did_most_is_taken_and_all_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let trace = |kernels: u64| {
            let mut bytes = b"ELBOWGPU".to_vec();
            bytes.extend([1u32, 7].iter().flat_map(|n| n.to_le_bytes()));
            bytes.extend(0u64.to_le_bytes());
            for i in 0..kernels {
                bytes.extend([1u32, 40].iter().flat_map(|n| n.to_le_bytes()));
                bytes.extend([i * 10, i * 10 + 5, 0, 0].iter().flat_map(|n: &u64| n.to_le_bytes()));
            }
            bytes
        };
        assert!(take_trace(dir.path()).unwrap_err().to_string().contains("no trace"));
        // The program's own.
        fs::write(dir.path().join("trace.json"), "0.1").unwrap();
        fs::create_dir(dir.path().join("checkpoint")).unwrap();
        for (pid, kernels) in [(1, 2), (2, 5), (3, 0)] {
            fs::write(dir.path().join(format!("trace.{pid}")), trace(kernels)).unwrap();
        }
        let sums = take_trace(dir.path()).unwrap();
        assert_eq!((sums.kernels, sums.kernel_ns), (5, 25));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
