//! The listener in a container's own seccomp policy: two calls wait for an answer of the keeper, everything else is as it was.

use crate::seccomp as keeper;
use anyhow::Result;
use elbowroom_linux::seccomp::SYSCALLS;
use serde_json::{Map, Value, json};
use std::path::Path;

const ALLOW: &str = "SCMP_ACT_ALLOW";
const NOTIFY: &str = "SCMP_ACT_NOTIFY";

/// The architectures that programs of this machine may be built for (runtime-spec, config-linux.md). libseccomp kills programs of an
/// architecture that a policy does not name. A policy without names allows only the machine's own.
const ARCHITECTURES: &[&str] = if cfg!(target_arch = "x86_64") {
    &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]
} else if cfg!(target_arch = "aarch64") {
    &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]
} else {
    &[]
};

/// Has the keeper of `run_dir` answer for a container that is about to be made.
///
/// # Errors
/// Why it does not; the configuration is not to be used then.
pub(super) fn inject_listener(config: &mut Value, run_dir: &Path) -> Result<()> {
    keeper::check_running(run_dir)?;
    add_listener(config, &keeper::socket_path(run_dir)).map_err(anyhow::Error::msg)
}

/// Makes the calls that a policy allows wait for the listener at `socket`. What it refuses stays refused. A container without a
/// policy gets one that allows everything else.
///
/// # Errors
/// A policy with a listener of its own, or that allows none of the calls, or of another shape. The configuration may be half
/// changed then, and is not to be used.
pub fn add_listener(config: &mut Value, socket: &Path) -> Result<(), String> {
    let socket = socket.to_str().ok_or("the keeper's socket has no UTF-8 path")?;
    let linux =
        config.as_object_mut().ok_or("config.json is no object")?.entry("linux").or_insert_with(|| json!({}));
    let linux = linux.as_object_mut().ok_or("linux is no object")?;
    let policy = linux.entry("seccomp").or_insert(Value::Null);
    if policy.is_null() {
        *policy = json!({ "defaultAction": ALLOW, "architectures": ARCHITECTURES });
    }
    let policy = policy.as_object_mut().ok_or("linux.seccomp is no object")?;
    let rules = policy.get("syscalls").unwrap_or(&Value::Null);
    let rules = if rules.is_null() {
        &[]
    } else {
        rules.as_array().ok_or("linux.seccomp.syscalls is no list")?.as_slice()
    };
    let default =
        policy.get("defaultAction").and_then(Value::as_str).ok_or("linux.seccomp has no defaultAction")?;
    let listens = |rule: &Value| action(rule) == Some(NOTIFY);
    if policy.contains_key("listenerPath") || default == NOTIFY || rules.iter().any(listens) {
        return Err("its seccomp policy has a listener of its own".into());
    }
    let allows = |call: &str| {
        let mut naming = rules.iter().filter(|rule| names(rule).any(|name| name == call)).peekable();
        match naming.peek() {
            Some(_) => naming.all(|rule| action(rule) == Some(ALLOW) && is_unconditional(rule)),
            None => default == ALLOW,
        }
    };
    let calls: Vec<&str> = SYSCALLS.into_iter().map(|(name, _)| name).filter(|name| allows(name)).collect();
    if calls.is_empty() {
        return Err(
            "its seccomp policy does not allow sched_getaffinity and sysinfo without conditions".into()
        );
    }
    let mut rules: Vec<Value> = rules.iter().filter_map(|rule| remove_calls(rule, &calls)).collect();
    rules.push(json!({ "names": calls, "action": NOTIFY }));
    policy.insert("syscalls".into(), rules.into());
    policy.insert("listenerPath".into(), socket.into());
    Ok(())
}

fn action(rule: &Value) -> Option<&str> {
    rule.get("action")?.as_str()
}

fn names(rule: &Value) -> impl Iterator<Item = &str> {
    rule.get("names").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn is_unconditional(rule: &Value) -> bool {
    rule.get("args").is_none_or(|args| args.is_null() || args.as_array().is_some_and(Vec::is_empty))
}

/// The rule without these calls; `None` where nothing is left of it: a rule without names is refused by runtimes.
fn remove_calls(rule: &Value, calls: &[&str]) -> Option<Value> {
    if !names(rule).any(|name| calls.contains(&name)) {
        return Some(rule.clone());
    }
    let left: Vec<&str> = names(rule).filter(|name| !calls.contains(name)).collect();
    let mut rule: Map<String, Value> = rule.as_object()?.clone();
    rule.insert("names".into(), left.clone().into());
    (!left.is_empty()).then_some(rule.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(seccomp: Value) -> Result<Value, String> {
        let mut config = json!({ "linux": { "x": 1, "seccomp": seccomp } });
        add_listener(&mut config, Path::new("/k")).map(|()| config["linux"]["seccomp"].take())
    }

    #[test]
    fn only_the_two_calls_change_and_nothing_is_loosened() {
        let wait = json!({ "names": ["sched_getaffinity", "sysinfo"], "action": NOTIFY });
        for (before, after) in [
            (
                Value::Null,
                json!({
                    "defaultAction": ALLOW, "architectures": ARCHITECTURES, "syscalls": [wait], "listenerPath": "/k",
                }),
            ),
            (
                json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "architectures": ["SCMP_ARCH_X86_64"], "syscalls": [
                    { "names": ["read", "sysinfo", "sched_getaffinity"], "action": ALLOW, "args": [] },
                    { "names": ["sysinfo"], "action": ALLOW },
                    { "names": ["ptrace"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 },
                ] }),
                json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "architectures": ["SCMP_ARCH_X86_64"], "syscalls": [
                    { "names": ["read"], "action": ALLOW, "args": [] },
                    { "names": ["ptrace"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 },
                    wait,
                ], "listenerPath": "/k" }),
            ),
            (
                json!({ "defaultAction": ALLOW, "syscalls": [{ "names": ["sysinfo"], "action": "SCMP_ACT_ERRNO" }] }),
                json!({ "defaultAction": ALLOW, "syscalls": [
                    { "names": ["sysinfo"], "action": "SCMP_ACT_ERRNO" }, { "names": ["sched_getaffinity"], "action": NOTIFY },
                ], "listenerPath": "/k" }),
            ),
        ] {
            assert_eq!(changed(before).unwrap(), after);
        }
        let mut config = json!({});
        add_listener(&mut config, Path::new("/k")).unwrap();
        assert_eq!(config["linux"]["seccomp"]["listenerPath"], "/k");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_policy_of_ours_kills_no_32_bit_program() {
        let policy = changed(Value::Null).unwrap();
        assert_eq!(policy["architectures"], json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]));
    }

    #[test]
    fn a_policy_that_listens_or_refuses_or_is_of_another_shape_is_left_alone() {
        let refuses = json!({ "names": ["sysinfo", "sched_getaffinity"], "action": "SCMP_ACT_KILL" });
        let sometimes =
            json!({ "names": ["sysinfo", "sched_getaffinity"], "action": ALLOW, "args": [{ "index": 0 }] });
        for (policy, expect) in [
            (json!({ "defaultAction": ALLOW, "listenerPath": "/other" }), "of its own"),
            (
                json!({ "defaultAction": ALLOW, "syscalls": [{ "names": ["mount"], "action": NOTIFY }] }),
                "of its own",
            ),
            (json!({ "defaultAction": "SCMP_ACT_ERRNO" }), "does not allow"),
            (json!({ "defaultAction": ALLOW, "syscalls": [refuses] }), "does not allow"),
            (json!({ "defaultAction": "SCMP_ACT_ERRNO", "syscalls": [sometimes] }), "does not allow"),
            (json!({}), "no defaultAction"),
            (json!({ "defaultAction": ALLOW, "syscalls": 1 }), "no list"),
            (json!(1), "no object"),
        ] {
            let error = changed(policy.clone()).unwrap_err();
            assert!(error.contains(expect), "{policy}: {error}");
        }
    }
}
