//! The hook and the wrapper under real runc.

use crate::agent::Agent;
use crate::{PROGRAM, skip};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A bundle with busybox as its root, which prints what the container sees.
struct Bundle {
    dir: tempfile::TempDir,
    id: String,
}

impl Bundle {
    /// `None`, with the reason, where such a container cannot run.
    fn new(test: &str) -> Option<Self> {
        if skip() {
            return None;
        }
        let runc = Command::new("runc").arg("--version").output();
        let busybox = ["/usr/bin/busybox", "/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
        let (Ok(_), Some(busybox)) = (runc, busybox) else {
            println!("skipped: needs runc and busybox-static");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("rootfs/bin");
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::copy(busybox, bin.join("busybox")).unwrap();
        assert!(Command::new("runc").arg("spec").current_dir(&dir).status().unwrap().success());
        let bundle = Self { dir, id: format!("elbowroom-test-attach-{test}-{}", std::process::id()) };
        let mut config = bundle.config();
        let script = "/bin/busybox cat /proc/meminfo /sys/devices/system/cpu/online /sys/fs/cgroup/cpu/cpu.shares \
                      /sys/fs/cgroup/cpu.max 2>/dev/null; /bin/busybox grep -c fuse.elbowroom /proc/self/mounts; true";
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] = json!(["/bin/busybox", "sh", "-c", script]);
        config["linux"]["cgroupsPath"] = json!(format!("/{}", bundle.id));
        bundle.write(&config);
        Some(bundle)
    }

    fn config(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.dir.path().join("config.json")).unwrap()).unwrap()
    }

    fn write(&self, config: &Value) {
        std::fs::write(self.dir.path().join("config.json"), config.to_string()).unwrap();
    }

    /// Adds the hook as a person would, in the configuration.
    fn add_hook(&self, agent: &Agent) {
        let mut config = self.config();
        let args = json!(["elbowroom", "hook", "--run-dir", agent.run_dir()]);
        config["hooks"] = json!({ "createContainer": [{ "path": PROGRAM, "args": args }] });
        self.write(&config);
    }

    fn run(&self, runtime: &Path, agent: &Agent) -> String {
        let mut command = Command::new(runtime);
        command.arg("--root").arg(self.dir.path().join("state"));
        command.args(["run", "--bundle"]).arg(self.dir.path()).arg(&self.id);
        let Output { status, stdout, stderr } =
            command.env("ELBOWROOM_RUN_DIR", agent.run_dir()).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{out}{err}");
        out.into_owned()
    }
}

fn sees_its_view(seen: &str) -> bool {
    seen.starts_with("view proc/meminfo\nview sys/devices/system/cpu/online\nview cgroup/cpu.")
}

#[test]
fn the_hook_puts_the_view_into_a_container_before_its_first_instruction() {
    let Some(bundle) = Bundle::new("hook") else { return };
    let agent = Agent::start();
    bundle.add_hook(&agent);
    let seen = bundle.run(Path::new("runc"), &agent);
    assert!(sees_its_view(&seen), "{seen}");
    assert!(std::fs::read_to_string("/proc/meminfo").unwrap().contains("MemTotal"), "the host sees itself");

    let asked = agent.asked();
    assert_eq!(asked[0].request, json!({ "prepare": { "pid": 0 } }));
    assert!(
        asked[0].cgroups.contains(&format!(":/{}\n", bundle.id)),
        "asked from inside: {}",
        asked[0].cgroups
    );
}

#[test]
fn the_wrapper_adds_the_hook_and_runs_the_real_runtime() {
    let Some(bundle) = Bundle::new("wrapper") else { return };
    let agent = Agent::start();
    let wrapper = Path::new(env!("CARGO_BIN_EXE_elbowroom-runtime"));
    let before = bundle.config();
    let seen = bundle.run(wrapper, &agent);
    assert!(sees_its_view(&seen), "{seen}");
    let mut after = bundle.config();
    let hooks = after.as_object_mut().unwrap().remove("hooks").unwrap();
    assert_eq!(after, before);
    assert_eq!(hooks["createContainer"].as_array().unwrap().len(), 1);

    // Once more, on the bundle as it is now.
    let seen = bundle.run(wrapper, &agent);
    assert!(sees_its_view(&seen), "{seen}");
    assert_eq!(bundle.config()["hooks"], hooks);
}

#[test]
fn the_wrapper_runs_the_real_runtime_whether_or_not_its_output_is_read() {
    // It says why there is no view: there is no such bundle.
    let words = ["run", "--bundle", "/no/such/bundle", "x"];
    let gone = || std::io::pipe().unwrap().1;
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    for stderr in [Stdio::from(gone()), Stdio::from(full)] {
        let mut wrapper = Command::new(env!("CARGO_BIN_EXE_elbowroom-runtime"));
        wrapper.args(words).env("ELBOWROOM_OCI_RUNTIME", "/bin/echo").stderr(stderr);
        let output = wrapper.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.trim_end() == words.join(" "), "{}: {said}", output.status);
    }
}

#[test]
fn without_an_agent_containers_start_as_ever() {
    let Some(bundle) = Bundle::new("no-agent") else { return };
    let agent = Agent::silent();
    bundle.add_hook(&agent);
    let seen = bundle.run(Path::new("runc"), &agent);
    assert!(seen.starts_with("MemTotal:"), "{seen}");
}

#[test]
fn an_agent_that_hangs_delays_a_container_by_two_seconds_at_most() {
    let Some(bundle) = Bundle::new("hang") else { return };
    let agent = Agent::silent();
    let _listener = std::os::unix::net::UnixListener::bind(agent.run_dir().join("agent.sock")).unwrap();
    bundle.add_hook(&agent);
    let start = Instant::now();
    let seen = bundle.run(Path::new("runc"), &agent);
    assert!(seen.starts_with("MemTotal:"), "{seen}");
    let took = start.elapsed();
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn a_view_that_is_gone_or_lies_outside_does_not_keep_a_container_from_starting() {
    let Some(bundle) = Bundle::new("gone") else { return };
    let agent = Agent::start();
    bundle.add_hook(&agent);
    std::fs::remove_dir_all(agent.run_dir().join("views/one")).unwrap();
    let seen = bundle.run(Path::new("runc"), &agent);
    assert!(seen.starts_with("MemTotal:"), "{seen}");
}

#[test]
fn the_hook_succeeds_whatever_it_is_given() {
    if skip() {
        return;
    }
    let agent = Agent::silent();
    for state in ["", "{", "[]", r#"{"id":"x","bundle":"/no/such/bundle"}"#] {
        let file: PathBuf = agent.run_dir().join("state");
        std::fs::write(&file, state).unwrap();
        let stdin = std::fs::File::open(&file).unwrap();
        let output = Command::new(PROGRAM).arg("hook").stdin(stdin).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{state}: {err}");
        assert!(err.starts_with("elbowroom: no view: ") && err.lines().count() == 1, "{state}: {err}");
    }
}

#[test]
fn the_hook_succeeds_without_room_for_a_thread() {
    // A stack that no address space holds fails as a thread too many does: with EAGAIN.
    let mut hook = Command::new(PROGRAM);
    let output = hook.arg("hook").env("RUST_MIN_STACK", (1u64 << 60).to_string()).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{err}");
    assert!(err.starts_with("elbowroom: no view: starting a thread: ") && err.lines().count() == 1, "{err}");
}
