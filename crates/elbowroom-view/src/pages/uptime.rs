//! `/proc/uptime` (fs/proc/uptime.c `uptime_proc_show`).
//!
//! | field | shown |
//! |---|---|
//! | first | computed: seconds since the container started |
//! | second | container: idle seconds, summed over CPUs as `/proc/stat` sums them |
//!
//! Programs that subtract a start time of `/proc/PID/stat`, which counts from the host's boot, from the first field get too little,
//! down to nothing: elapsed time and %CPU of procps' `ps` (lxcfs#444). When a process started comes from `btime`, which is the
//! host's ([`super::stat`]).
//!
//! The idle sum runs up to as many times as fast as the first field as the view has CPUs, as on a real machine.

use super::snapshot::{ContainerSnapshot, CpuTimes};
use super::stat::ticks;
use super::text::push_line;
use elbowroom_types::unit::Micros;

/// Two numbers of up to 14 digits, each with its two decimals.
const WIDTH: usize = 2 * 17 + 1;

/// The page. `now` is the boot clock.
pub(super) fn text(facts: &ContainerSnapshot, times: &[CpuTimes], now: Micros) -> String {
    let up = now.saturating_sub(facts.started).get() / 10_000;
    let idle: u64 = times.iter().map(|t| ticks(t.idle)).sum();
    let mut out = String::new();
    push_line(&mut out, &format!("{}.{:02} {}.{:02}", up / 100, up % 100, idle / 100, idle % 100), WIDTH);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_the_containers_start_and_sums_idle_time_over_its_cpus() {
        let facts = ContainerSnapshot { started: Micros::secs(100), ..ContainerSnapshot::EMPTY };
        let times = vec![CpuTimes { idle: Micros::millis(49_870), ..CpuTimes::default() }; 4];
        assert_eq!(text(&facts, &times, Micros::millis(150_010)).trim_end(), "50.01 199.48");
        assert_eq!(text(&facts, &[], Micros::ZERO).trim_end(), "0.00 0.00");
    }

    #[test]
    fn its_length_never_changes() {
        let facts = ContainerSnapshot::EMPTY;
        let times = vec![CpuTimes { idle: Micros(u64::MAX), ..CpuTimes::default() }; 1024];
        assert_eq!(text(&facts, &times, Micros(u64::MAX)).len(), WIDTH + 1);
        assert_eq!(text(&facts, &[], Micros::ZERO).len(), WIDTH + 1);
    }
}
