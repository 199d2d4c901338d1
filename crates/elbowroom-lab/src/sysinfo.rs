//! The machine and the moment a run was recorded on: what a reader needs to judge its numbers. No host name.

use crate::cgroup::Layout;
use crate::lxcfs::Lxcfs;
use crate::procfs;
use crate::product::Product;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// `sysinfo.json` of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SysInfo {
    /// Which experiment.
    pub(crate) job: String,
    /// UTC, `2026-11-20`.
    pub(crate) date: String,
    /// The command line, less the path of the program.
    pub(crate) command: String,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Model name of the first CPU.
    pub(crate) cpu_model: String,
    /// Online CPUs.
    pub(crate) cpus: u32,
    /// MemTotal in KiB.
    pub(crate) memory_kib: u64,
    /// `v1`, `v2` or hybrid.
    pub(crate) cgroups: String,
    /// What clock reads come from.
    pub(crate) clocksource: String,
    /// `elbowroom --version`, where it could be run.
    pub(crate) elbowroom: Option<String>,
    /// `lxcfs --version`, where it is installed.
    pub(crate) lxcfs: Option<String>,
    /// Commit of the working directory; `+` where it has changes.
    pub(crate) commit: Option<String>,
    /// Load average when the run began: anything well above 0 is other work on the machine.
    pub(crate) load_before: [f64; 3],
    /// Load average when it ended, its own load included.
    pub(crate) load_after: [f64; 3],
    /// How long recording took, in seconds.
    pub(crate) seconds: f64,
}

impl SysInfo {
    /// What is known before a run.
    pub(crate) fn take(job: &str, layout: &Layout, program: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        Self {
            job: job.to_owned(),
            date: date(SystemTime::now()),
            command: command(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu_model: field(&read("/proc/cpuinfo"), "model name"),
            cpus: online_cpus(),
            memory_kib: field(&read("/proc/meminfo"), "MemTotal")
                .trim_end_matches(" kB")
                .parse()
                .unwrap_or(0),
            cgroups: layout.describe().to_owned(),
            clocksource: read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .trim()
                .to_owned(),
            elbowroom: Product::version(program),
            lxcfs: Lxcfs::version(),
            commit: commit(),
            load_before: procfs::loadavg(),
            load_after: [0.0; 3],
            seconds: 0.0,
        }
    }

    /// One line for the foot of a summary.
    pub(crate) fn text(&self) -> String {
        format!(
            "{} CPUs ({}), {:.1} GiB, Linux {}, cgroups {}, clock {}; load average {:.2} before, {:.2} after; commit {}",
            self.cpus,
            if self.cpu_model.is_empty() { "model unknown" } else { &self.cpu_model },
            self.memory_kib as f64 / f64::from(1 << 20),
            self.kernel,
            self.cgroups,
            self.clocksource,
            self.load_before[0],
            self.load_after[0],
            self.commit.as_deref().unwrap_or("unknown"),
        )
    }
}

/// Online CPUs of the host.
pub(crate) fn online_cpus() -> u32 {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(last.parse::<u32>().ok()? + 1 - first.parse::<u32>().ok()?)
    };
    text.trim().split(',').filter_map(count).sum::<u32>().max(1)
}

fn command() -> String {
    let args: Vec<String> = std::env::args().skip(1).collect();
    format!("elbowroom-lab {}", args.join(" "))
}

fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).stdin(Stdio::null()).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    Some(commit + if changed { "+" } else { "" })
}

/// The civil date of an instant, UTC (the days-to-civil algorithm with years that begin in March).
fn date(at: SystemTime) -> String {
    let days = at.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400) as i64 + 719_468;
    let era = days / 146_097;
    let day_of_era = days - era * 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_right_at_the_edges_of_years_and_leap_days() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_798_675_199, "2026-12-30"),
            (1_798_761_600, "2027-01-01"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }
}
