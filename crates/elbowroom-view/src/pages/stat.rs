//! `/proc/stat` (fs/proc/stat.c `show_stat`).
//!
//! | field | shown |
//! |---|---|
//! | `cpuN` lines | one for each CPU online in the view, under its real number |
//! | user, system, idle of `cpuN` | container: what that CPU did for it ([`CpuTimes`]), in ticks of 1/100 s |
//! | nice, iowait, irq, softirq, steal, guest, guest_nice | 0: no kernel counts them per cgroup and CPU |
//! | `cpu` | computed: sums over all CPUs that ever did something for it, shown now or not, so that it never falls |
//! | `intr` `ctxt` `softirq` | host: no kernel counts them per cgroup, and `/proc/interrupts` and `/proc/softirqs` beside this file are the host's; the list of single interrupts is left out |
//! | `procs_blocked` | 0: the host's |
//! | `btime` | host: a process's start time in `/proc/PID/stat` counts from the host's boot, and programs add the two |
//! | `processes` | container: processes created, 0 where not known |
//! | `procs_running` | container: runnable threads, at least one, the reader |
//!
//! A program that takes a counter of zero for a machine that stands still (psutil's own tests) is right on a machine. Between
//! numbers is one space, as the kernel has it: programs split there (`cut -d' '`, Podman before 4.2). Spaces at the end of each line keep
//! its length: for a reader that takes the file in several reads of different versions, each line begins where it did.

use super::snapshot::{ContainerSnapshot, CpuTimes};
use super::text::{max_of_width, push_line, value_of_key};
use elbowroom_types::unit::Micros;

/// Microseconds in a tick: `USER_HZ` is 100 on every architecture views run on.
const TICK: u64 = 10_000;
/// Digits of one CPU's counters (317 years) and of the sums over 1,024 CPUs, and how many of them are not always 0.
const CPU_DIGITS: usize = 12;
const SUM_DIGITS: usize = 16;
const CPU_COUNTERS: usize = 3;
/// Digits of what the kernel counts in 64 bits.
const COUNTER_DIGITS: usize = 20;
/// Numbers in the line of software interrupts: their sum and the ten kinds (`NR_SOFTIRQS`).
const SOFTIRQS: usize = 11;

/// The page, from the host's text.
pub(super) fn text(facts: &ContainerSnapshot, times: &[CpuTimes], host: &str) -> String {
    let online = facts.shown_online();
    let counters = |t: &CpuTimes| [t.user, t.system, t.idle].map(ticks);
    let mut total = [0; CPU_COUNTERS];
    for cpu in times {
        total.iter_mut().zip(counters(cpu)).for_each(|(sum, t)| *sum += t);
    }
    let mut out = String::new();
    push_cpu(&mut out, "cpu ", total, SUM_DIGITS);
    for cpu in online.iter() {
        let own = times.get(cpu as usize).map_or([0; CPU_COUNTERS], counters);
        push_cpu(&mut out, &format!("cpu{cpu}"), own, CPU_DIGITS);
    }
    for key in ["intr", "ctxt", "btime"] {
        let hosts = value_of_key(host, key).unwrap_or(0);
        push_line(&mut out, &format!("{key} {hosts}"), key.len() + 1 + COUNTER_DIGITS);
    }
    push_line(&mut out, &format!("processes {}", facts.nr_processes), "processes ".len() + 10);
    push_line(&mut out, &format!("procs_running {}", facts.nr_running.max(1)), "procs_running ".len() + 10);
    out.push_str("procs_blocked 0\n");
    push_line(
        &mut out,
        &format!("softirq {}", softirqs(host)),
        "softirq".len() + SOFTIRQS * (1 + COUNTER_DIGITS),
    );
    out
}

/// The host's sum of software interrupts, and what it consists of.
fn softirqs(host: &str) -> String {
    let line = host.lines().find_map(|line| line.strip_prefix("softirq ")).unwrap_or_default();
    let counters =
        line.split_ascii_whitespace().map(|n| n.parse::<u64>().unwrap_or(0)).chain(std::iter::repeat(0));
    counters.take(SOFTIRQS).map(|n| n.to_string()).collect::<Vec<_>>().join(" ")
}

/// Time in ticks, never more than its column holds.
pub(super) fn ticks(time: Micros) -> u64 {
    (time.get() / TICK).min(max_of_width(CPU_DIGITS as u32))
}

fn push_cpu(out: &mut String, name: &str, counters: [u64; CPU_COUNTERS], digits: usize) {
    let line =
        |[user, system, idle]: [u64; CPU_COUNTERS]| format!("{name} {user} 0 {system} {idle} 0 0 0 0 0 0");
    let width = line([0; CPU_COUNTERS]).len() + CPU_COUNTERS * (digits - 1);
    push_line(out, &line(counters), width);
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::cpuset::CpuSet;

    fn facts(online: &str, present: &str) -> ContainerSnapshot {
        ContainerSnapshot {
            online: online.parse().unwrap(),
            present: present.parse().unwrap(),
            started: Micros::secs(1_000),
            ..ContainerSnapshot::EMPTY
        }
    }

    fn columns(line: &str) -> Vec<u64> {
        line.split_ascii_whitespace().skip(1).map(|n| n.parse().unwrap()).collect()
    }

    #[test]
    fn lines_are_the_online_cpus_under_their_real_numbers_and_the_sum_is_over_all() {
        let mut times = vec![CpuTimes::default(); 10];
        for (i, cpu) in [(1, 2), (2, 5), (3, 9)] {
            times[cpu] =
                CpuTimes { user: Micros::secs(i), system: Micros::secs(10 * i), idle: Micros::secs(100 * i) };
        }
        let page =
            text(&facts("2,5", "2,5,9"), &times, "intr 7 1 6\nctxt 8\nbtime 1795214744\nsoftirq 9 1 8\n");
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[0].trim_end(), "cpu  600 0 6000 60000 0 0 0 0 0 0");
        assert!(
            lines[1].starts_with("cpu2 ") && lines[2].starts_with("cpu5 ") && lines[3].trim_end() == "intr 7"
        );
        assert_eq!(lines[2].trim_end(), "cpu5 200 0 2000 20000 0 0 0 0 0 0");
        assert_eq!(value_of_key(&page, "btime"), Some(1_795_214_744));
        assert_eq!([value_of_key(&page, "ctxt"), value_of_key(&page, "procs_running")], [Some(8), Some(1)]);
        assert_eq!(columns(lines[9]), [9, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn lines_keep_their_place_while_their_numbers_grow() {
        let times = |n| vec![CpuTimes { user: Micros(n), system: Micros(n), idle: Micros(n) }; 2];
        let f = facts("0-1", "0-1");
        let host = |n| format!("intr {n}\nctxt {n}\nbtime {n}\nsoftirq {n} {n}\n");
        let lengths = |n| text(&f, &times(n), &host(n)).lines().map(str::len).collect::<Vec<_>>();
        assert_eq!(lengths(0), lengths(u64::MAX));
        let all = ContainerSnapshot { present: CpuSet::first_n(1024), online: CpuSet::first_n(1024), ..f };
        let many = vec![times(u64::MAX)[0]; 1024];
        assert_eq!(text(&all, &many, &host(1)).len(), text(&all, &[], "").len());
    }

    #[test]
    fn the_sum_does_not_shrink_when_a_cpu_goes_offline() {
        let times = vec![CpuTimes { user: Micros::secs(7), ..CpuTimes::default() }; 4];
        let user = |online| columns(text(&facts(online, "0-3"), &times, "").lines().next().unwrap())[0];
        assert_eq!(user("0-3"), user("0"));
    }
}
