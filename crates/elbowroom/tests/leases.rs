//! The real supervisor as the guard of a policy process that changes limits as fast as it can (`examples/fuse_rig.rs`), on a
//! real cgroup: kills of each process, of two and of all. Needs root and /dev/fuse; says so where it cannot run.

#[allow(dead_code, unreachable_pub, reason = "shared with the example, which uses the rest")]
#[path = "../../elbowroom-agent/tests/rig/mod.rs"]
mod rig;

use elbowroom_agent::view_server::roles::AgentRole;
use elbowroom_linux::process;
use rig::agent::{Agent, ROLES, Watchdog, cannot_run};
use rig::limits::{Group, KNOBS, USERS};
use rustix::process::{Signal, kill_process};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longer than any of these tests takes.
const LIMIT: Duration = Duration::from_secs(180);

/// An agent whose policy process can limit a group, or the reason why there is none.
macro_rules! governed {
    () => {{
        if let Some(why) = cannot_run() {
            eprintln!("{why}");
            return;
        }
        let Some(group) = Group::new() else { return };
        let agent = Agent::start(1, 0);
        let watchdog = Watchdog::over(agent.dir.path(), LIMIT);
        write_knobs(&agent, &group);
        (agent, group, watchdog)
    }};
}

fn write_knobs(agent: &Agent, group: &Group) {
    let knobs = serde_json::to_string(&group.knobs).unwrap();
    std::fs::write(agent.dir.path().join(KNOBS), knobs).unwrap();
}

/// Tells the policy process to begin, and returns when it has.
fn limit(agent: &Agent, group: &Group) {
    assert_eq!(agent.ask("limit"), "limiting");
    let until = Instant::now() + second() * 30;
    while group.limits().iter().zip(USERS).any(|(now, users)| *now == users) {
        assert!(Instant::now() < until, "no limit is set");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// One second, and more where everything takes longer.
fn second() -> Duration {
    let patience = std::env::var("ELBOWROOM_TEST_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(1) * patience.unwrap_or(1)
}

#[test]
fn whichever_process_is_killed_with_the_policy_process_limits_are_back_within_a_second() {
    let (agent, group, _watchdog) = governed!();
    let (mut slowest, mut late) = (Duration::ZERO, 0);
    let turns: [&[AgentRole]; 5] = [
        &[AgentRole::Policy],
        &[AgentRole::Supervisor, AgentRole::Policy],
        &[AgentRole::Policy, AgentRole::Server],
        &[AgentRole::Policy, AgentRole::Supervisor],
        &[AgentRole::Policy, AgentRole::Standby],
    ];
    let rounds = 24 / second().as_secs() as usize;
    for round in 0..rounds {
        for (turn, roles) in turns.into_iter().enumerate() {
            limit(&agent, &group);
            // Any two may be killed at once: of those that are there.
            for role in ROLES {
                agent.wait_for(role, None);
            }
            // Somewhere else in its work each time.
            std::thread::sleep(Duration::from_micros((round * 997 + turn * 331) as u64 % 5_000));
            let old = roles.iter().map(|role| (*role, agent.wait_for(*role, None)));
            let old: Vec<_> = old.collect();
            for (_, pid) in &old {
                kill_process(*pid, Signal::KILL).unwrap();
            }
            let took = group.wait_for_users(second() * 5);
            (slowest, late) = (slowest.max(took), late + usize::from(took > second()));
            for (role, pid) in old {
                agent.wait_for(role, Some(pid));
            }
        }
    }
    println!("{} kills, limits back within {slowest:?}", rounds * turns.len());
    // What else the machine does may hold one of so many up.
    assert!(late <= 1, "{late} times limits were there for more than {:?}", second());
}

#[test]
fn a_supervisor_that_is_killed_alone_costs_no_limit() {
    let (agent, group, _watchdog) = governed!();
    limit(&agent, &group);
    for _ in 0..5 {
        agent.kill(&[AgentRole::Supervisor]);
    }
    assert_ne!(group.limits(), USERS);
    assert_eq!(agent.ask("lost"), "0");
    agent.kill(&[AgentRole::Policy]);
    group.wait_for_users(second());
}

#[test]
fn a_policy_process_that_hangs_is_replaced_and_loses_its_limits() {
    let (agent, group, _watchdog) = governed!();
    limit(&agent, &group);
    let policy = agent.wait_for(AgentRole::Policy, None);
    kill_process(policy, Signal::STOP).unwrap();
    let took = group.wait_for_users(second() * 6);
    assert!(took > Duration::from_secs(1), "{took:?}: a late beat is no silence");
    agent.wait_for(AgentRole::Policy, Some(policy));
    limit(&agent, &group);
}

#[test]
fn when_both_were_stopped_neither_was_silent() {
    let (agent, group, _watchdog) = governed!();
    limit(&agent, &group);
    let pids = [AgentRole::Supervisor, AgentRole::Policy].map(|role| agent.wait_for(role, None));
    pids.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
    std::thread::sleep(Duration::from_secs(6));
    pids.iter().for_each(|pid| kill_process(*pid, Signal::CONT).unwrap());
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(agent.ask("lost"), "0");
    assert_ne!(group.limits(), USERS);
}

/// Kills everything, and returns the directory it was in.
fn kill_all(mut agent: Agent) -> tempfile::TempDir {
    let pids: Vec<_> = ROLES.iter().map(|role| agent.wait_for(*role, None)).collect();
    // Stopped first, so that none can start another.
    pids.iter().for_each(|pid| kill_process(*pid, Signal::STOP).unwrap());
    let until = Instant::now() + second() * 30;
    while !pids.iter().all(|pid| is_stopped(pid.as_raw_nonzero().get())) {
        assert!(Instant::now() < until, "they do not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    // The supervisor last: at its death the kernel lets stopped process groups go on that it leaves orphaned.
    pids.iter().rev().for_each(|pid| kill_process(*pid, Signal::KILL).unwrap());
    let another = tempfile::Builder::new().prefix("elbowroom-test-fuse-").tempdir().unwrap();
    let dir = std::mem::replace(&mut agent.dir, another);
    drop(agent);
    dir
}

/// Whether every thread of a process is stopped.
fn is_stopped(pid: i32) -> bool {
    let stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
    let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.all(|thread| std::fs::read_to_string(thread.unwrap().path().join("stat")).is_ok_and(stopped))
}

fn restore(run_dir: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_elbowroom"));
    let output = command.arg("--run-dir").arg(run_dir).arg("restore").output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr),
    )
}

#[test]
fn when_all_are_killed_restore_takes_limits_off_and_says_which() {
    let (agent, group, _watchdog) = governed!();
    limit(&agent, &group);
    let (code, text) = restore(agent.dir.path());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("held by the agent"), "{text}");
    let dir = kill_all(agent);
    assert_ne!(group.limits(), USERS, "no process is left to take them off");
    let (code, text) = restore(dir.path());
    assert_eq!((code, group.limits()), (Some(0), USERS), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("restored  /")).count(), 2, "{text}");
    let (code, text) = restore(dir.path());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("nothing to restore"), "{text}");
    std::fs::write(dir.path().join("leases/x.json"), "{").unwrap();
    assert_eq!(restore(dir.path()).0, Some(2));
    drop(Agent::start_in(dir, 1, 0));
}

#[test]
fn when_all_are_killed_the_next_agent_takes_limits_off() {
    let (agent, group, _watchdog) = governed!();
    limit(&agent, &group);
    let dir = kill_all(agent);
    assert_ne!(group.limits(), USERS);
    let mut agent = Agent::start_in(dir, 1, 0);
    assert_eq!(group.limits(), USERS);
    write_knobs(&agent, &group);
    limit(&agent, &group);
    assert!(agent.stop());
    assert_eq!(group.limits(), USERS);
    assert!(!agent.dir.path().join("leases").exists(), "nothing stays behind");
}

#[test]
fn the_agents_processes_are_the_last_to_be_killed_for_memory() {
    if process::set_oom_score_adj(process::oom_score_adj() - 1).is_err() {
        println!("skipped: needs CAP_SYS_RESOURCE");
        return;
    }
    let (agent, _group, _watchdog) = governed!();
    for role in ROLES {
        let pid = agent.wait_for(role, None).as_raw_nonzero();
        let score = || std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        // It is set once the process has its role.
        let until = Instant::now() + second() * 30;
        while score() != "-999\n" {
            assert!(Instant::now() < until, "{role}: {}", score());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
