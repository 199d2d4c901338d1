//! Limits as people write them, and what that is in the files of a cgroup.

use super::hierarchies::{RunCgroupVersion, RunHierarchies, RunHierarchy};
use anyhow::{Context, bail, ensure};
use clap::Args;
use elbowroom_linux::root::Root;
use elbowroom_linux::sensor::online;
use elbowroom_types::cpuset::CpuSet;
use elbowroom_types::launch::LaunchLimits;
use elbowroom_types::unit::{Bytes, CpuShare, Micros, Millicpu, parse_bytes, parse_cpus};

/// The bandwidth period: the kernel's default.
const PERIOD: Micros = Micros::millis(100);
/// The kernel refuses a quota below this (`min_cfs_quota_period` in kernel/sched/core.c).
const MIN_QUOTA: Micros = Micros::millis(1);
/// Below this a command does not even get to its first line.
const MIN_MEMORY: Bytes = Bytes::mib(1);

/// The flags.
#[derive(Args, Debug, Default)]
pub(crate) struct LimitArgs {
    /// CPUs it may use, for example 1.5.
    #[arg(long)]
    cpus: Option<String>,
    /// Its share of CPU time among siblings on cgroup v2, 1 to 10000.
    #[arg(long, value_name = "N", conflicts_with = "cpu_shares")]
    cpu_weight: Option<u64>,
    /// Its share of CPU time among siblings on cgroup v1, 2 to 262144.
    #[arg(long, value_name = "N")]
    cpu_shares: Option<u64>,
    /// CPUs it may run on, for example 0-3.
    #[arg(long, value_name = "LIST")]
    cpuset: Option<String>,
    /// Memory it may use, for example 512MiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Memory it is promised when memory is short, for example 256MiB.
    #[arg(long, value_name = "SIZE")]
    memory_reservation: Option<String>,
}

/// What a command may use; `None` is the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunLimits {
    cpus: Option<Millicpu>,
    share: Option<CpuShare>,
    cpuset: Option<CpuSet>,
    memory: Option<Bytes>,
    reservation: Option<Bytes>,
}

impl RunLimits {
    /// Reads the flags; everything that is wrong on any machine is refused here.
    pub(crate) fn parse(args: &LimitArgs) -> anyhow::Result<Self> {
        let cpus = args.cpus.as_deref().map(parse_cpus).transpose().context("--cpus")?;
        if let Some(cpus) = cpus {
            ensure!(quota(cpus) >= MIN_QUOTA, "--cpus {cpus}: the kernel gives no less than 0.01");
        }
        let share = match (args.cpu_weight, args.cpu_shares) {
            (Some(weight), _) => {
                ensure!((1..=10_000).contains(&weight), "--cpu-weight {weight}: give 1 to 10000");
                Some(CpuShare::Weight(weight))
            }
            (None, Some(shares)) => {
                ensure!((2..=262_144).contains(&shares), "--cpu-shares {shares}: give 2 to 262144");
                Some(CpuShare::Shares(shares))
            }
            (None, None) => None,
        };
        let cpuset: Option<CpuSet> =
            args.cpuset.as_deref().map(str::parse).transpose().context("--cpuset")?;
        ensure!(cpuset.is_none_or(|set| !set.is_empty()), "--cpuset names no CPU: give for example 0-3");
        let memory = args.memory.as_deref().map(parse_bytes).transpose().context("--memory")?;
        ensure!(memory.is_none_or(|n| n >= MIN_MEMORY), "--memory: give at least {MIN_MEMORY}");
        let reservation = args
            .memory_reservation
            .as_deref()
            .map(parse_bytes)
            .transpose()
            .context("--memory-reservation")?;
        if let (Some(memory), Some(reservation)) = (memory, reservation) {
            ensure!(
                reservation <= memory,
                "--memory-reservation {reservation} is more than --memory {memory}"
            );
        }
        Ok(Self { cpus, share, cpuset, memory, reservation })
    }

    /// Refuses what this machine cannot do.
    pub(crate) fn check(&self, layout: &RunHierarchies) -> anyhow::Result<()> {
        for (flag, controller, asked) in [
            ("--cpus", "cpu", self.cpus.is_some()),
            ("--cpu-weight or --cpu-shares", "cpu", self.share.is_some()),
            ("--cpuset", "cpuset", self.cpuset.is_some()),
            ("--memory", "memory", self.memory.is_some()),
            ("--memory-reservation", "memory", self.reservation.is_some()),
        ] {
            if asked && layout.hierarchy_with(controller).is_none() {
                bail!("{flag}: this host has no {controller} controller: run without");
            }
        }
        match (self.share, layout.hierarchy_with("cpu").map(|hierarchy| hierarchy.version)) {
            (Some(CpuShare::Weight(_)), Some(RunCgroupVersion::V1)) => {
                bail!("--cpu-weight: the cpu controller of this host is cgroup v1: give --cpu-shares")
            }
            (Some(CpuShare::Shares(_)), Some(RunCgroupVersion::V2)) => {
                bail!("--cpu-shares: the cpu controller of this host is cgroup v2: give --cpu-weight")
            }
            _ => {}
        }
        if let Some(asked) = &self.cpuset {
            let online = online(&Root::host()?)?;
            let absent = asked.difference(&online);
            ensure!(absent.is_empty(), "--cpuset {asked}: CPU {absent} is not online, {online} is");
        }
        Ok(())
    }

    /// Whether a limit needs `controller`.
    pub(crate) fn needs_controller(&self, controller: &str) -> bool {
        match controller {
            "cpu" => self.cpus.is_some() || self.share.is_some(),
            "cpuset" => self.cpuset.is_some(),
            "memory" => self.memory.is_some() || self.reservation.is_some(),
            _ => false,
        }
    }

    /// The room that limits leave, where they leave less than the machine has.
    pub(crate) fn room(&self) -> LaunchLimits {
        let whole = self.cpus.map(|cpus| cpus.get().div_ceil(1_000).max(1) as u32);
        let cpus = whole.into_iter().chain(self.cpuset.map(|set| set.count())).min();
        LaunchLimits { cpus, memory: self.memory }
    }

    /// File names and contents for the controllers of one hierarchy, in the order to write them.
    pub(crate) fn cgroup_files(&self, hierarchy: &RunHierarchy) -> Vec<(&'static str, String)> {
        let v1 = hierarchy.version == RunCgroupVersion::V1;
        let mut files = Vec::new();
        if hierarchy.has("cpu") {
            if let Some(cpus) = self.cpus {
                let (quota, period) = (quota(cpus).get(), PERIOD.get());
                match v1 {
                    true => {
                        files.push(("cpu.cfs_period_us", period.to_string()));
                        files.push(("cpu.cfs_quota_us", quota.to_string()));
                    }
                    false => files.push(("cpu.max", format!("{quota} {period}"))),
                }
            }
            match self.share {
                Some(CpuShare::Shares(shares)) => files.push(("cpu.shares", shares.to_string())),
                Some(CpuShare::Weight(weight)) => files.push(("cpu.weight", weight.to_string())),
                None => {}
            }
        }
        if let (true, Some(cpus)) = (hierarchy.has("cpuset"), self.cpuset) {
            files.push(("cpuset.cpus", cpus.to_string()));
        }
        if hierarchy.has("memory") {
            let (max, low) = if v1 {
                ("memory.limit_in_bytes", "memory.soft_limit_in_bytes")
            } else {
                ("memory.max", "memory.low")
            };
            files.extend(self.memory.map(|bytes| (max, bytes.get().to_string())));
            files.extend(self.reservation.map(|bytes| (low, bytes.get().to_string())));
        }
        files
    }
}

/// CPU time per period.
fn quota(cpus: Millicpu) -> Micros {
    Micros(cpus.get().saturating_mul(PERIOD.get()) / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(flags: &[(&str, &str)]) -> LimitArgs {
        let get =
            |name: &str| flags.iter().find(|(flag, _)| *flag == name).map(|(_, value)| (*value).to_owned());
        LimitArgs {
            cpus: get("cpus"),
            cpu_weight: get("weight").map(|n| n.parse().unwrap()),
            cpu_shares: get("shares").map(|n| n.parse().unwrap()),
            cpuset: get("cpuset"),
            memory: get("memory"),
            memory_reservation: get("reservation"),
        }
    }

    #[test]
    fn impossible_limits_are_refused_with_the_way_out() {
        for (flags, expect) in [
            (vec![("cpus", "0.001")], "--cpus 0.001: the kernel gives no less than 0.01"),
            (
                vec![("cpus", "two")],
                "--cpus: \"two\" is not a number of CPUs above zero: write for example \"1.5\"",
            ),
            (vec![("weight", "0")], "--cpu-weight 0: give 1 to 10000"),
            (vec![("shares", "1")], "--cpu-shares 1: give 2 to 262144"),
            (vec![("cpuset", "")], "--cpuset names no CPU: give for example 0-3"),
            (
                vec![("cpuset", "3-1")],
                "--cpuset: \"3-1\" is not a CPU list (range runs backwards): write for example \"0-3,8\"",
            ),
            (vec![("memory", "512")], "--memory: \"512\" has no unit: write for example \"512MiB\""),
            (vec![("memory", "4k")], "--memory: give at least 1MiB"),
            (
                vec![("memory", "1g"), ("reservation", "2g")],
                "--memory-reservation 2GiB is more than --memory 1GiB",
            ),
        ] {
            let error = format!("{:#}", RunLimits::parse(&args(&flags)).unwrap_err());
            assert_eq!(error, expect);
        }
    }

    #[test]
    fn limits_become_the_files_of_each_version() {
        let flags = [
            ("cpus", "1.5"),
            ("shares", "512"),
            ("cpuset", "0"),
            ("memory", "512MiB"),
            ("reservation", "256MiB"),
        ];
        let limits = RunLimits::parse(&args(&flags)).unwrap();
        let check = |version, controllers: &[&str], expect: &[(&str, &str)]| {
            let hierarchy = RunHierarchy::new("/x", version, controllers);
            let files = limits.cgroup_files(&hierarchy);
            let files: Vec<(&str, &str)> =
                files.iter().map(|(name, value)| (*name, value.as_str())).collect();
            assert_eq!(files, expect);
        };
        let cpu = [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "150000"), ("cpu.shares", "512")];
        check(RunCgroupVersion::V1, &["cpu", "cpuacct"], &cpu);
        check(RunCgroupVersion::V1, &["cpuset"], &[("cpuset.cpus", "0")]);
        let memory = [("memory.limit_in_bytes", "536870912"), ("memory.soft_limit_in_bytes", "268435456")];
        check(RunCgroupVersion::V1, &["memory"], &memory);
        check(RunCgroupVersion::V1, &["pids"], &[]);
        let limits = RunLimits { share: Some(CpuShare::Weight(50)), ..limits };
        let files =
            limits.cgroup_files(&RunHierarchy::new("/x", RunCgroupVersion::V2, &["cpu", "cpuset", "memory"]));
        let expect = [
            ("cpu.max", "150000 100000"),
            ("cpu.weight", "50"),
            ("cpuset.cpus", "0"),
            ("memory.max", "536870912"),
            ("memory.low", "268435456"),
        ];
        assert_eq!(files, expect.map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn a_machine_without_the_controller_is_named() {
        let layout = RunHierarchies::of(vec![RunHierarchy::new("/c", RunCgroupVersion::V1, &["cpu"])]);
        let check = |flags: &[(&str, &str)], expect: &str| {
            let limits = RunLimits::parse(&args(flags)).unwrap();
            assert_eq!(format!("{:#}", limits.check(&layout).unwrap_err()), expect);
        };
        check(&[("memory", "1g")], "--memory: this host has no memory controller: run without");
        check(
            &[("weight", "100")],
            "--cpu-weight: the cpu controller of this host is cgroup v1: give --cpu-shares",
        );
        let limits = RunLimits::parse(&args(&[("shares", "100"), ("cpus", "1")])).unwrap();
        limits.check(&layout).unwrap();
    }
}
