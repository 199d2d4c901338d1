//! `/proc/uptime` (fs/proc/uptime.c `uptime_proc_show`).
//!
//! | field | shown |
//! |---|---|
//! | first | host: seconds since it was booted |
//! | second | container: idle seconds, summed over CPUs as `/proc/stat` sums them |
//!
//! A process's start time in `/proc/PID/stat` counts from the host's boot. `ps` subtracts it from the first field for how long a
//! process runs and its %CPU. `ps` also adds it to the time of day less the first field for when the process started (lxcfs#444). So the
//! three must have one beginning: that of `btime` ([`super::stat`]) and of sysinfo(2). The age of a container's process 1 says how
//! old the container is.
//!
//! The idle sum runs up to as many times as fast as the first field as the view has CPUs, as on a real machine.

use super::snapshot::CpuTimes;
use super::stat::ticks;
use super::text::push_line;
use elbowroom_types::unit::Micros;

/// Two numbers of up to 14 digits, each with its two decimals.
const WIDTH: usize = 2 * 17 + 1;

/// The page. `now` is the boot clock.
pub(super) fn text(times: &[CpuTimes], now: Micros) -> String {
    let up = now.get() / 10_000;
    let idle: u64 = times.iter().map(|t| ticks(t.idle)).sum();
    let mut out = String::new();
    push_line(&mut out, &format!("{}.{:02} {}.{:02}", up / 100, up % 100, idle / 100, idle % 100), WIDTH);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_the_boot_and_sums_idle_time_over_its_cpus() {
        let times = vec![CpuTimes { idle: Micros::millis(49_870), ..CpuTimes::default() }; 4];
        assert_eq!(text(&times, Micros::millis(150_010)).trim_end(), "150.01 199.48");
        assert_eq!(text(&[], Micros::ZERO).trim_end(), "0.00 0.00");
    }

    #[test]
    fn its_length_never_changes() {
        let times = vec![CpuTimes { idle: Micros(u64::MAX), ..CpuTimes::default() }; 1024];
        assert_eq!(text(&times, Micros(u64::MAX)).len(), WIDTH + 1);
        assert_eq!(text(&[], Micros::ZERO).len(), WIDTH + 1);
    }
}
