//! `elbowroom run`.

use crate::agent::Agent;
use crate::{PROGRAM, skip, wait_until};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A name that no other test or machine user has.
fn name(test: &str) -> String {
    format!("test-attach-{test}-{}", std::process::id())
}

fn run(agent: &Agent, args: &[&str]) -> Command {
    // A shell in the background ignores SIGINT and SIGQUIT, nohup SIGHUP, and what they start inherits that.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=HUP,INT,QUIT", PROGRAM, "--run-dir"])
        .arg(agent.run_dir())
        .arg("run")
        .args(args);
    command
}

fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Every directory of the cgroup that exists.
fn cgroups(name: &str) -> Vec<PathBuf> {
    let roots = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
    let roots = roots.chain(["/sys/fs/cgroup".into()]);
    roots.map(|root| root.join("elbowroom").join(name)).filter(|dir| dir.exists()).collect()
}

/// Starts a command and reads its first line.
fn start(command: &mut Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

fn kill(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

#[test]
fn a_command_reads_its_view_and_leaves_nothing() {
    if skip() {
        return;
    }
    let (agent, name) = (Agent::start(), name("view"));
    let script = "cat /proc/meminfo /sys/devices/system/cpu/online; cat /proc/self/cgroup";
    let (code, out, err) = output(&mut run(&agent, &["--name", &name, "--", "sh", "-c", script]));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("view proc/meminfo\nview sys/devices/system/cpu/online\n"), "{out}");
    assert!(out.contains(&format!(":/elbowroom/{name}\n")), "{out}");
    assert!(std::fs::read_to_string("/proc/meminfo").unwrap().contains("MemTotal"), "the host sees itself");
    assert_eq!(cgroups(&name), Vec::<PathBuf>::new());

    let asked = agent.asked();
    assert_eq!(asked[0].request, serde_json::json!({ "prepare": { "pid": 0 } }));
    assert!(asked[0].cgroups.contains(&format!(":/elbowroom/{name}\n")), "asked from inside the cgroup");
    assert_eq!(asked.len(), 1);
}

#[test]
fn the_view_covers_the_commands_own_cgroup_file() {
    if skip() {
        return;
    }
    let (agent, name) = (Agent::start(), name("own"));
    let script =
        "cat /sys/fs/cgroup/cpu/elbowroom/$0/cpu.shares /sys/fs/cgroup/elbowroom/$0/cpu.max 2>/dev/null; :";
    let (code, out, _) = output(&mut run(&agent, &["--name", &name, "--", "sh", "-c", script, &name]));
    assert_eq!(code, 0);
    assert!(["view cgroup/cpu.shares\n", "view cgroup/cpu.max\n"].contains(&out.as_str()), "{out}");
}

#[test]
fn limits_are_in_the_kernels_files() {
    if skip() {
        return;
    }
    let (agent, name) = (Agent::silent(), name("limits"));
    let v1 = Path::new("/sys/fs/cgroup/cpu/cpu.shares").exists();
    let share = if v1 { ["--cpu-shares", "512"] } else { ["--cpu-weight", "50"] };
    let limits = ["--cpus", "1.5", "--cpuset", "0", "--memory", "512MiB", "--memory-reservation", "256MiB"];
    let files: &[(&str, &str)] = match v1 {
        true => &[
            ("cpu/elbowroom/$0/cpu.cfs_quota_us", "150000"),
            ("cpu/elbowroom/$0/cpu.shares", "512"),
            ("cpuset/elbowroom/$0/cpuset.cpus", "0"),
            ("memory/elbowroom/$0/memory.limit_in_bytes", "536870912"),
            ("memory/elbowroom/$0/memory.soft_limit_in_bytes", "268435456"),
        ],
        false => &[
            ("elbowroom/$0/cpu.max", "150000 100000"),
            ("elbowroom/$0/cpu.weight", "50"),
            ("elbowroom/$0/cpuset.cpus", "0"),
            ("elbowroom/$0/memory.max", "536870912"),
            ("elbowroom/$0/memory.low", "268435456"),
        ],
    };
    let script: Vec<String> = files.iter().map(|(file, _)| format!("cat /sys/fs/cgroup/{file}")).collect();
    let script = script.join("; ");
    let mut args = vec!["--no-views", "--name", &name];
    args.extend(share.iter().chain(&limits));
    args.extend(["--", "sh", "-c", &script, &name]);
    let (code, out, err) = output(&mut run(&agent, &args));
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(out.lines().collect::<Vec<_>>(), files.iter().map(|(_, value)| *value).collect::<Vec<_>>());
    assert_eq!(cgroups(&name), Vec::<PathBuf>::new());
}

#[test]
fn the_commands_status_is_the_runners() {
    if skip() {
        return;
    }
    let agent = Agent::silent();
    for (command, expect) in [
        (vec!["sh", "-c", "exit 7"], 7),
        (vec!["sh", "-c", "kill -TERM $$"], 128 + 15),
        (vec!["/no/such/command"], 127),
        (vec!["/etc"], 126),
        (vec!["true"], 0),
    ] {
        let mut args = vec!["--no-views", "--"];
        args.extend(&command);
        let (code, _, err) = output(&mut run(&agent, &args));
        assert_eq!(code, expect, "{command:?}: {err}");
        assert_eq!(err.is_empty(), !matches!(expect, 126 | 127), "{err}");
    }
}

#[test]
fn signals_reach_the_command() {
    if skip() {
        return;
    }
    let (agent, name) = (Agent::silent(), name("signal"));
    for (signal, code) in [("TERM", 11), ("INT", 12), ("HUP", 13), ("QUIT", 14)] {
        let script = format!("trap 'exit {code}' {signal}; echo ready; while :; do sleep 0.01; done");
        let (mut runner, line) =
            start(&mut run(&agent, &["--no-views", "--name", &name, "--", "sh", "-c", &script]));
        assert_eq!(line, "ready");
        kill(&format!("-{signal}"), &runner.id().to_string());
        assert_eq!(runner.wait().unwrap().code(), Some(code), "{signal}");
    }
    assert_eq!(cgroups(&name), Vec::<PathBuf>::new());
}

#[test]
fn a_bad_request_touches_nothing() {
    if skip() {
        return;
    }
    let (agent, name) = (Agent::silent(), name("bad"));
    for args in [
        vec!["--name", "../x", "--", "true"],
        vec!["--name", &name, "--memory", "512", "--", "true"],
        vec!["--name", &name, "--cpuset", "1000", "--", "true"],
        vec!["--name", &name, "--cpus", "0.001", "--", "true"],
    ] {
        let (code, _, err) = output(&mut run(&agent, &args));
        assert_eq!((code, err.lines().count()), (2, 1), "{args:?}: {err}");
        assert_eq!(cgroups(&name), Vec::<PathBuf>::new());
    }
}

#[test]
fn processes_left_behind_are_not_killed_and_their_cgroup_goes_with_the_last() {
    if skip() {
        return;
    }
    let (agent, first) = (Agent::silent(), name("daemon"));
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!";
    let (code, out, err) =
        output(&mut run(&agent, &["--no-views", "--name", &first, "--", "sh", "-c", script]));
    let daemon = out.trim();
    assert_eq!(code, 0);
    assert!(err.contains("is still in use (1 process in ") && err.lines().count() == 1, "{err}");
    assert!(err.ends_with("it is removed when the last of them ends\n"), "{err}");
    assert!(Path::new("/proc").join(daemon).exists());
    let left = cgroups(&first);
    assert!(!left.is_empty());

    // The name is taken as long as the daemon lives.
    let (code, _, err) = output(&mut run(&agent, &["--no-views", "--name", &first, "--", "true"]));
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("another `elbowroom run` has a command of this name"), "{err}");

    kill("-KILL", daemon);
    wait_until("the cgroup to go with the daemon", || cgroups(&first).is_empty());
}

#[test]
fn a_killed_runner_leaves_its_command_alone_and_its_cgroup_to_the_next() {
    if skip() {
        return;
    }
    let (agent, name) = (Agent::silent(), name("killed"));
    let script = "echo $$; exec sleep 1000 >/dev/null";
    let (mut runner, command) =
        start(&mut run(&agent, &["--no-views", "--name", &name, "--", "sh", "-c", script]));

    let (code, _, err) = output(&mut run(&agent, &["--no-views", "--name", &name, "--", "true"]));
    assert_eq!(code, 2);
    assert!(err.contains("another `elbowroom run` has a command of this name"), "{err}");

    runner.kill().unwrap();
    runner.wait().unwrap();
    assert!(Path::new("/proc").join(&command).exists(), "the command goes on");
    assert_eq!(output(&mut run(&agent, &["--no-views", "--", "true"])).0, 0);
    assert!(!cgroups(&name).is_empty(), "what is in use stays");
    kill("-KILL", &command);
    let left = cgroups(&name);
    wait_until("the command to end", || {
        left.iter()
            .all(|dir| std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().is_empty())
    });
    assert_eq!(output(&mut run(&agent, &["--no-views", "--", "true"])).0, 0);
    assert_eq!(cgroups(&name), Vec::<PathBuf>::new());
}
