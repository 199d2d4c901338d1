//! `/proc/pressure/{cpu,io,memory}` (kernel/sched/psi.c `psi_show`).
//!
//! | field | shown |
//! |---|---|
//! | lines `some`, `full` | host: which of them this kernel has |
//! | `avg10` `avg60` `avg300` `total` | container; the host's where this kernel keeps no pressure for cgroups |
//!
//! The host's pressure is the one live number of the host a view may show, and only in place of none: a program that backs
//! off under pressure is better served by its machine's pressure than by a zero.

use super::snapshot::ContainerSnapshot;
use super::text::push_line;
use elbowroom_types::psi::{Pressure, Stall};
use elbowroom_types::unit::Micros;

/// Room for a line: `some`, three shares of up to 10 digits with two decimals, a total of 20 digits.
const WIDTH: usize = 4 + 7 + 7 + 8 + 3 * 11 + 7 + 20;

/// The page, from the host's text. `which` is the position in [`ContainerSnapshot::pressure`].
pub(super) fn text(facts: &ContainerSnapshot, which: usize, host: &str) -> String {
    let own = facts.pressure.get(which).filter(|_| facts.has_pressure != 0);
    let mut out = String::new();
    for line in host.lines() {
        let Some((kind, stall)) = parse(line) else { continue };
        let Stall { avg10, avg60, avg300, total, .. } = match (own, kind) {
            (Some(Pressure { some, .. }), "some") => *some,
            (Some(Pressure { full, .. }), _) => *full,
            (None, _) => stall,
        };
        let [avg10, avg60, avg300] =
            [avg10, avg60, avg300].map(|share| format!("{}.{:02}", share / 100, share % 100));
        let total = total.get();
        push_line(
            &mut out,
            &format!("{kind} avg10={avg10} avg60={avg60} avg300={avg300} total={total}"),
            WIDTH,
        );
    }
    out
}

/// One line of the kernel: `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn parse(line: &str) -> Option<(&str, Stall)> {
    let mut words = line.split_ascii_whitespace();
    let kind = words.next().filter(|kind| ["some", "full"].contains(kind))?;
    let mut stall = Stall::EMPTY;
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        match key {
            "avg10" => stall.avg10 = hundredths(value)?,
            "avg60" => stall.avg60 = hundredths(value)?,
            "avg300" => stall.avg300 = hundredths(value)?,
            "total" => stall.total = Micros(value.parse().ok()?),
            _ => {}
        }
    }
    Some((kind, stall))
}

/// `1.25` is 125.
fn hundredths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.')?;
    if part.len() != 2 {
        return None;
    }
    whole.parse::<u32>().ok()?.checked_mul(100)?.checked_add(part.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "some avg10=1.32 avg60=1.05 avg300=0.56 total=8448014\n\
        full avg10=0.00 avg60=100.00 avg300=0.00 total=0\nnoise\n";

    fn shown(facts: &ContainerSnapshot, which: usize) -> Vec<String> {
        text(facts, which, HOST).lines().map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn a_container_with_pressure_of_its_own_shows_it() {
        let mut facts = ContainerSnapshot { has_pressure: 1, ..ContainerSnapshot::EMPTY };
        facts.pressure[1].full =
            Stall { avg10: 150, avg60: 7, avg300: 10_000, reserved: 0, total: Micros(42) };
        assert_eq!(
            shown(&facts, 1),
            [
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=0",
                "full avg10=1.50 avg60=0.07 avg300=100.00 total=42"
            ]
        );
    }

    #[test]
    fn a_container_without_shows_the_hosts() {
        let lines: Vec<&str> = HOST.lines().take(2).collect();
        assert_eq!(shown(&ContainerSnapshot::EMPTY, 0), lines);
    }

    #[test]
    fn its_length_never_changes() {
        let most = Stall {
            avg10: u32::MAX,
            avg60: u32::MAX,
            avg300: u32::MAX,
            reserved: 0,
            total: Micros(u64::MAX),
        };
        let facts = ContainerSnapshot {
            has_pressure: 1,
            pressure: [Pressure { some: most, full: most }; 3],
            ..ContainerSnapshot::EMPTY
        };
        assert_eq!(text(&facts, 0, HOST).len(), text(&ContainerSnapshot::EMPTY, 2, HOST).len());
        assert_eq!(text(&facts, 0, HOST).len(), 2 * (WIDTH + 1));
    }
}
