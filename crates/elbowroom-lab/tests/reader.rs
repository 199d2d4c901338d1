//! The program that runs inside containers: does it see what it is there to see?

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const GOOD: &str = "MemTotal:         524288 kB\nMemFree:          100000 kB\nHugePages_Total:       0   \n";

#[test]
fn a_text_of_its_own_container_is_neither_torn_nor_foreign() {
    check_verify("good", GOOD, "\"torn\":0,\"foreign\":0");
}

#[test]
fn another_containers_memtotal_is_foreign() {
    check_verify("foreign", &GOOD.replace("524288", "262144"), "\"torn\":0,\"foreign\":1");
}

#[test]
fn texts_that_no_kernel_writes_are_torn() {
    for (name, text) in [
        ("cut", GOOD[..GOOD.len() - 20].to_owned()),
        ("nul", GOOD.replace("100000", "1\x00\x00000")),
        ("line", GOOD.replace("MemFree:   ", "MemFree\n   ")),
        ("more-free-than-there-is", GOOD.replace("100000", "600000")),
        ("no-memtotal", GOOD.replace("MemTotal", "MemOther")),
    ] {
        check_verify(name, &text, "\"torn\":1,\"foreign\":0");
    }
}

#[test]
fn an_empty_file_counts_as_a_failed_read() {
    check_verify("empty", "", "\"failed\":1,\"torn\":0,\"foreign\":0");
}

#[test]
fn a_poller_reports_each_read_and_each_wrong_answer() {
    let Some(reader) = reader() else { return };
    let file = write("poll", GOOD);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let start = (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).to_string();
    for (expected, last_lines) in [("524288", "wrong 0\nfailed 0\n"), ("1", "wrong 1\nfailed 0\n")] {
        let args = ["poll", &start, "60000", "1", expected];
        let out = Command::new(reader).args(args).arg(&file).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(text.lines().count() == 3 && text.ends_with(last_lines), "{text}");
    }
}

#[test]
fn a_plan_of_load_runs_to_its_end_and_a_malformed_one_says_so() {
    let Some(reader) = reader() else { return };
    let file = write("scan", GOOD);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let start = (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).to_string();
    let load = |plan: &str| {
        let mut command = Command::new(reader);
        command.args(["load", &start]).args(plan.split(' '));
        let out = command.arg(&file).output().unwrap();
        let [said, complained] = [out.stdout, out.stderr].map(|text| String::from_utf8(text).unwrap());
        (out.status.code(), said, complained)
    };
    // The last word of a plan is the file's path. What is in use was gone over once.
    for (plan, said) in [
        ("grow 0 20 1 40 churn 0 80 1 40 lock 0 20 1 40 scan 0 40 1", "0 MiB\n"),
        ("use 0 20 1 40 shm 0 20 1 40 scan 0 40 1", "2 MiB\n"),
    ] {
        assert_eq!(load(plan), (Some(0), said.to_owned(), String::new()));
    }
    for (plan, complaint) in [
        ("scan 0 40 0", "nothing to do"),
        ("scan 40 0 1", "ends before it starts"),
        ("scan 0 40", "malformed plan"),
        ("churn 0 80 1 20", "too fast"),
        ("idle 0 40 1", "malformed plan"),
    ] {
        let (code, _, said) = load(plan);
        assert!(code == Some(1) && said.contains(complaint), "{plan}: {said}");
    }
}

#[test]
fn a_benchmark_answers_in_json_with_its_clock_stated() {
    let Some(reader) = reader() else { return };
    let file = write("bench", GOOD);
    for op in ["open", "pread"] {
        let out = Command::new(reader).args(["bench", op, "100", "2"]).arg(&file).output().unwrap();
        let bench: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(bench["samples"], 200);
        assert_eq!(bench["bytes"], GOOD.len());
        assert!(
            bench["clock_ns"].as_u64().unwrap() > 0 && bench["p50"].as_u64() <= bench["p99"].as_u64(),
            "{bench}"
        );
    }
}

/// Runs `verify` for one pass that expects 512 MiB.
fn check_verify(name: &str, text: &str, expected: &str) {
    let Some(reader) = reader() else { return };
    let file = write(name, text);
    // It looks at stdin before each pass: the first time it finds a byte, the second time the end.
    let stdin = File::open(write(&format!("stdin-of-{name}"), ".")).unwrap();
    let out =
        Command::new(reader).args(["verify", "524288", "1", "0"]).arg(&file).stdin(stdin).output().unwrap();
    let tallies = String::from_utf8(out.stdout).unwrap();
    let read = tallies.split("},").next().unwrap();
    assert!(read.contains("\"method\":\"read\",\"reads\":1,") && read.contains(expected), "{name}: {read}");
}

fn write(name: &str, text: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("meminfo-{name}"));
    std::fs::write(&file, text).unwrap();
    file
}

/// The reader, built once; `None`, and a line that says why, where this machine cannot build it.
fn reader() -> Option<&'static Path> {
    static READER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/reader");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reader");
        let is_c = |path: &PathBuf| path.extension().is_some_and(|e| e == "c");
        let files = std::fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path()).filter(is_c);
        let flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-static", "-pthread", "-o"];
        match Command::new("cc").args(flags).arg(&program).args(files).output() {
            Ok(out) if out.status.success() => Some(program),
            Ok(out) => panic!("{}", String::from_utf8_lossy(&out.stderr)),
            Err(error) => {
                eprintln!("skipped: needs cc ({error})");
                None
            }
        }
    };
    READER.get_or_init(build).as_deref()
}
