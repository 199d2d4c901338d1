//! The commands that change a container's resources: those of the tool that made it, which would write its own value back otherwise.
//!
//! One place makes them, for the doctor's fixes and for verdicts. Nothing here lowers a limit: callers only ask for more.

use crate::container::{ContainerEngine, Pod};
use crate::finding::{FileWrite, UnitProperty};
use crate::unit::{Bytes, Limit, Micros, Millicpu};
use crate::visible::is_hidden;
use std::fmt::Write;

/// A resource of a container with its new value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceSetting {
    /// The memory limit, and memory and swap together where that has to move with it.
    MemoryLimit {
        /// The new limit.
        limit: Bytes,
        /// The new sum of memory and swap; `None` where the old one allows the new limit.
        with_swap: Option<Limit<Bytes>>,
    },
    /// `memory.low`, or on v1 the soft limit.
    MemoryReservation(Bytes),
    /// The CPU quota.
    Cpus(Millicpu),
    /// v1 `cpu.shares`; Docker and Podman convert it for v2.
    CpuShares(u64),
    /// The most processes and threads.
    Pids(u64),
}

/// The tool that keeps a container's settings, and where they are in its cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceOwner {
    /// The program that made the container.
    pub engine: ContainerEngine,
    /// What that program knows it by.
    pub name: String,
    /// The Kubernetes pod around it.
    pub pod: Option<Pod>,
    /// Its cgroup below the root of the hierarchy.
    pub path: String,
    /// Its directory in the hierarchy of memory, and whether that is v2; empty where it has none.
    pub memory_dir: (String, bool),
    /// The same for CPU.
    pub cpu_dir: (String, bool),
    /// The length of the period of its CPU quota.
    pub cpu_period: Micros,
}

impl ResourceOwner {
    /// The command that makes this change; `None` where the container's cgroup has no such file.
    pub fn command(&self, setting: &ResourceSetting) -> Option<String> {
        engine_command(self.engine, &self.name, self.pod.as_ref(), setting)
            .or_else(|| self.write(setting).map(|write| plain_command(&write)))
    }

    /// Whether what [`Self::command`] sets of memory outlives the container's cgroup: its engine, its cluster or, for a service, the
    /// system's manager keeps it.
    pub fn keeps_memory_limit(&self) -> bool {
        let setting = ResourceSetting::MemoryLimit { limit: Bytes::ZERO, with_swap: None };
        let is_service = |write: FileWrite| write.unit.is_some_and(|p| p.unit.ends_with(".service"));
        engine_command(self.engine, &self.name, self.pod.as_ref(), &setting).is_some()
            || self.write(&setting).is_some_and(is_service)
    }

    /// The same as a write to the container's cgroup.
    fn write(&self, setting: &ResourceSetting) -> Option<FileWrite> {
        let ((memory, memory_v2), (cpu, cpu_v2)) = (&self.memory_dir, &self.cpu_dir);
        let pick = |v2: &bool, names: [&'static str; 2]| names[usize::from(*v2)];
        let (dir, name, to) = match setting {
            ResourceSetting::MemoryLimit { limit, .. } => {
                (memory, pick(memory_v2, ["memory.limit_in_bytes", "memory.max"]), limit.get().to_string())
            }
            ResourceSetting::MemoryReservation(keep) => {
                let names = ["memory.soft_limit_in_bytes", "memory.low"];
                (memory, pick(memory_v2, names), keep.get().to_string())
            }
            ResourceSetting::Cpus(cpus) => {
                let period = self.cpu_period.get();
                let quota = cpus.get().saturating_mul(period) / 1_000;
                let to = if *cpu_v2 { format!("{quota} {period}") } else { quota.to_string() };
                (cpu, pick(cpu_v2, ["cpu.cfs_quota_us", "cpu.max"]), to)
            }
            // Shares mean something on v1 only; the weight of v2 has another scale.
            ResourceSetting::CpuShares(shares) if !cpu_v2 => (cpu, "cpu.shares", shares.to_string()),
            ResourceSetting::CpuShares(_) | ResourceSetting::Pids(_) => return None,
        };
        let (file, unit) = (format!("{dir}/{name}"), unit_property(&self.path, name));
        (!dir.is_empty()).then(|| FileWrite { file, to, unit, ..FileWrite::default() })
    }
}

/// The command of the tool that keeps the setting: Docker, Podman, or Kubernetes; `None` where no tool does, and where the name is a path:
/// what is in a container is not the host's engine's.
pub fn engine_command(
    engine: ContainerEngine,
    name: &str,
    pod: Option<&Pod>,
    setting: &ResourceSetting,
) -> Option<String> {
    if name.starts_with('/') {
        return None;
    }
    if let Some(pod) = pod {
        return pod_command(name, pod, setting);
    }
    let tool = match engine {
        ContainerEngine::Docker => "docker",
        ContainerEngine::Podman => "podman",
        _ => return None,
    };
    let mut command = format!("{tool} update ");
    let _ = match setting {
        ResourceSetting::MemoryLimit { limit, with_swap } => {
            let _ = write!(command, "--memory {}", short_size(*limit));
            match with_swap {
                Some(Limit::At(both)) => write!(command, " --memory-swap {}", short_size(*both)),
                Some(Limit::Max) => write!(command, " --memory-swap -1"),
                None => Ok(()),
            }
        }
        ResourceSetting::MemoryReservation(keep) => {
            write!(command, "--memory-reservation {}", short_size(*keep))
        }
        ResourceSetting::Cpus(cpus) => write!(command, "--cpus {cpus}"),
        ResourceSetting::CpuShares(shares) => write!(command, "--cpu-shares {shares}"),
        ResourceSetting::Pids(pids) => write!(command, "--pids-limit {pids}"),
    };
    let _ = write!(command, " {}", shell_quoted(name));
    Some(command)
}

/// A pod's resources are those of its manifest, which `kubectl set resources` changes where the pod's name says what made it.
fn pod_command(container: &str, pod: &Pod, setting: &ResourceSetting) -> Option<String> {
    let resource = match setting {
        ResourceSetting::MemoryLimit { limit, .. } => format!("--limits=memory={}", kube_size(*limit)),
        ResourceSetting::MemoryReservation(keep) => format!("--requests=memory={}", kube_size(*keep)),
        ResourceSetting::Cpus(cpus) => format!("--limits=cpu={}m", cpus.get()),
        // The kubelet makes 1,024 shares of a request of one CPU.
        ResourceSetting::CpuShares(shares) => format!("--requests=cpu={}m", shares * 1_000 / 1_024),
        ResourceSetting::Pids(_) => return None,
    };
    let namespace = shell_quoted(pod.namespace.as_deref().unwrap_or("default"));
    let workload = shell_quoted(&workload(pod.name.as_deref()?)?);
    let container = shell_quoted(container);
    Some(format!("kubectl -n {namespace} set resources {workload} --containers={container} {resource}"))
}

/// What made a pod, by the shape of its name: `web-5d4f8c7b9-x2x7k` is a Deployment's, `db-0` a StatefulSet's, `log-x2x7k` a DaemonSet's.
fn workload(pod: &str) -> Option<String> {
    let (rest, last) = pod.rsplit_once('-')?;
    if last.parse::<u32>().is_ok() {
        return Some(format!("statefulset/{rest}"));
    }
    // The API server's random words have no vowels and no 0, 1 or 3 (apimachinery, `rand.String`).
    let random =
        |word: &str| !word.is_empty() && word.chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c));
    if last.len() != 5 || !random(last) {
        return None;
    }
    match rest.rsplit_once('-') {
        Some((name, hash)) if hash.len() >= 6 && random(hash) => Some(format!("deployment/{name}")),
        _ => Some(format!("daemonset/{rest}")),
    }
}

/// The unit and property behind a file, where the system's manager made the cgroup. Its units are in slices only: what is below
/// a scope or a service is a user's or a container's own, and may have the name of a unit of the system.
pub fn unit_property(path: &str, file: &str) -> Option<UnitProperty> {
    let (around, unit) = path.rsplit_once('/')?;
    let in_slices = around.split('/').skip(1).all(|name| name.ends_with(".slice"));
    let suffixed = [".scope", ".slice", ".service"].iter().any(|s| unit.ends_with(s));
    let name = match file {
        "memory.low" => "MemoryLow",
        "memory.max" => "MemoryMax",
        "memory.high" => "MemoryHigh",
        "memory.swap.max" => "MemorySwapMax",
        "memory.limit_in_bytes" => "MemoryLimit",
        "cpu.max" | "cpu.cfs_quota_us" => "CPUQuota",
        "cpu.weight" => "CPUWeight",
        "cpu.shares" => "CPUShares",
        "pids.max" => "TasksMax",
        _ => return None,
    };
    (in_slices && suffixed).then(|| UnitProperty { unit: unit.to_owned(), name: name.to_owned() })
}

/// What a person types where no engine keeps the setting.
pub fn plain_command(write: &FileWrite) -> String {
    match &write.unit {
        Some(p) => {
            format!("systemctl set-property --runtime {} {}", shell_quoted(&p.unit), p.assignment(&write.to))
        }
        None => echo_command(&write.to, &write.file),
    }
}

/// What a person types to write a value to a file. The file may be in a cgroup that a stranger named.
pub fn echo_command(value: &str, file: &str) -> String {
    format!("echo {} > {}", shell_quoted(value), shell_quoted(file))
}

/// A word for the shell. Characters that a terminal obeys, which a person may paste, are escaped as the shells of today read them
/// (`$'...'`, POSIX.1-2024, 2.2.4): in other quotes an end of line would be one, and Ctrl-C end the quotes.
pub fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:,=+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if !word.contains(is_hidden) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut quoted = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            // Three octal digits, whatever follows.
            c if is_hidden(c) => {
                c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| quoted.push_str(&format!("\\{byte:03o}")));
            }
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

/// A size as `docker` and `podman` take it: `128m`.
fn short_size(size: Bytes) -> String {
    match (size.get(), size.get() / MIB) {
        (n, _) if !n.is_multiple_of(MIB) => n.to_string(),
        (_, mib) if mib >= 1_024 && mib.is_multiple_of(1_024) => format!("{}g", mib / 1_024),
        (_, mib) => format!("{mib}m"),
    }
}

/// A size as Kubernetes takes it: `128Mi`.
fn kube_size(size: Bytes) -> String {
    match size.get() {
        n if n.is_multiple_of(MIB) => format!("{}Mi", n / MIB),
        n => n.to_string(),
    }
}

const MIB: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Option<Pod> {
        Some(Pod { uid: "u".into(), name: Some(name.into()), namespace: Some("shop".into()) })
    }

    fn owner(engine: ContainerEngine, pod: Option<Pod>, path: &str) -> ResourceOwner {
        ResourceOwner {
            engine,
            name: "web".into(),
            pod,
            path: path.into(),
            memory_dir: (format!("/sys/fs/cgroup/memory{path}"), false),
            cpu_dir: (format!("/sys/fs/cgroup{path}"), true),
            cpu_period: Micros::millis(100),
        }
    }

    #[test]
    fn a_command_is_that_of_the_tool_that_keeps_the_setting() {
        use ContainerEngine as E;
        let more = ResourceSetting::MemoryLimit { limit: Bytes::mib(128), with_swap: None };
        let cpus = ResourceSetting::Cpus(Millicpu(750));
        let check = |owner: ResourceOwner, setting: &ResourceSetting, expect: &str| {
            assert_eq!(owner.command(setting).as_deref(), Some(expect));
        };
        check(owner(E::Docker, None, "/docker/1f"), &more, "docker update --memory 128m web");
        check(owner(E::Docker, None, "/docker/1f"), &cpus, "docker update --cpus 0.75 web");
        check(owner(E::Podman, None, "/libpod-1f"), &cpus, "podman update --cpus 0.75 web");
        check(
            owner(E::Containerd, pod("web-5d4f8c7b9-x2x7k"), "/kubepods/1f"),
            &more,
            "kubectl -n shop set resources deployment/web --containers=web --limits=memory=128Mi",
        );
        check(
            owner(E::Crio, pod("db-0"), "/kubepods/1f"),
            &cpus,
            "kubectl -n shop set resources statefulset/db --containers=web --limits=cpu=750m",
        );
        check(
            owner(E::Plain, None, "/system.slice/web.service"),
            &cpus,
            "systemctl set-property --runtime web.service CPUQuota=75%",
        );
        let inside = "/docker/1f/docker/2a";
        check(
            ResourceOwner { name: inside.into(), ..owner(E::Docker, pod("db-0"), inside) },
            &cpus,
            "echo '75000 100000' > /sys/fs/cgroup/docker/1f/docker/2a/cpu.max",
        );
        check(owner(E::Lxc, None, "/lxc/web"), &cpus, "echo '75000 100000' > /sys/fs/cgroup/lxc/web/cpu.max");
        check(
            owner(E::Lxc, None, "/lxc/web"),
            &more,
            "echo 134217728 > /sys/fs/cgroup/memory/lxc/web/memory.limit_in_bytes",
        );
    }

    #[test]
    fn what_is_only_in_a_cgroup_is_gone_with_it() {
        use ContainerEngine as E;
        for (engine, pod, path, expect) in [
            (E::Docker, None, "/docker/1f", true),
            (E::Podman, None, "/libpod-1f", true),
            (E::Containerd, pod("web-5d4f8c7b9-x2x7k"), "/kubepods/1f", true),
            (E::Containerd, pod("bare"), "/kubepods/1f", false),
            (E::Plain, None, "/system.slice/web.service", true),
            (E::Plain, None, "/user.slice/web.scope", false),
            (E::Plain, None, "/batch/job", false),
            (E::Elbowroom, None, "/elbowroom/web", false),
        ] {
            assert_eq!(owner(engine, pod, path).keeps_memory_limit(), expect, "{path}");
        }
    }

    #[test]
    fn swap_moves_with_memory_where_the_engine_would_refuse_it() {
        let command = |with_swap| {
            let setting = ResourceSetting::MemoryLimit { limit: Bytes::gib(1), with_swap };
            engine_command(ContainerEngine::Docker, "a b", None, &setting).unwrap()
        };
        assert_eq!(command(None), "docker update --memory 1g 'a b'");
        assert_eq!(command(Some(Limit::At(Bytes(5)))), "docker update --memory 1g --memory-swap 5 'a b'");
        assert_eq!(command(Some(Limit::Max)), "docker update --memory 1g --memory-swap -1 'a b'");
    }

    #[test]
    fn a_name_is_one_word_of_a_command_whatever_is_in_it() {
        for (word, expect) in [
            ("/sys/fs/cgroup/a.slice/memory.max", "/sys/fs/cgroup/a.slice/memory.max"),
            ("", "''"),
            ("a;reboot", "'a;reboot'"),
            ("$(reboot)`reboot`", "'$(reboot)`reboot`'"),
            ("a'b", r"'a'\''b'"),
            ("a\u{3}\rreboot\r#", r"$'a\003\015reboot\015#'"),
            ("\x1b'\\7", r"$'\033\'\\7'"),
            ("a\u{202e}b", r"$'a\342\200\256b'"),
        ] {
            assert_eq!(shell_quoted(word), expect);
            assert_eq!(echo_command(word, "/x"), format!("echo {expect} > /x"));
            assert_eq!(echo_command("0", word), format!("echo 0 > {expect}"));
        }
    }

    #[test]
    fn a_pod_of_unknown_making_has_no_command() {
        let check = |name: &str, expect: Option<&str>| assert_eq!(workload(name).as_deref(), expect);
        check("web-5d4f8c7b9-x2x7k", Some("deployment/web"));
        check("db-0", Some("statefulset/db"));
        check("log-x2x7k", Some("daemonset/log"));
        check("bare", None);
        check("by-hand", None);
    }
}
