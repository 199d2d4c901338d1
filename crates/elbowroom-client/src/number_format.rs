//! How numbers and states are written for people: short, and the same everywhere.

use elbowroom_govern::disk::{DiskState, HeldBy};
use elbowroom_govern::memory;
use elbowroom_types::io::IoMax;
use elbowroom_types::probe::Colour;
use elbowroom_types::unit::{Bytes, Limit, Micros};
use elbowroom_types::verdict::VerdictStatus;

/// Bytes per second, at most six characters: `0`, `812K`, `4.5M`, `1.2G`.
pub fn short_bytes(rate: u64) -> String {
    let units = [(1u64 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match units.iter().find(|(scale, _)| rate >= *scale) {
        Some((scale, unit)) => {
            let scaled = rate as f64 / *scale as f64;
            if scaled < 9.95 { format!("{scaled:.1}{unit}") } else { format!("{scaled:.0}{unit}") }
        }
        None => rate.to_string(),
    }
}

/// A part of 1 as a percentage, in at most four characters; `-` where it is not known.
pub fn percent(part: Option<f64>) -> String {
    match part {
        None => "-".to_owned(),
        // No "-0%": an empty sum of floats is -0.
        Some(part) if part < 9.995 => format!("{:.0}%", (part * 100.0).round_ties_even() + 0.0),
        Some(part) => format!("{:.0}x", part.min(999.0)),
    }
}

/// A short time, at most six characters: `80us`, `12.3ms`, `2.5s`.
pub fn short_duration(time: Micros) -> String {
    match time.get() {
        n if n < 1_000 => format!("{n}us"),
        n if n < 999_950 => format!("{:.1}ms", n as f64 / 1e3),
        n => format!("{:.1}s", n as f64 / 1e6),
    }
}

/// Limits as people read them: `read 50MiB/s, write 500/s`; `max` where there is none.
pub fn io_limits(max: IoMax) -> String {
    let bytes = |what: &str, limit: Limit<u64>| limit.value().map(|n| format!("{what} {}/s", Bytes(n)));
    let operations = |what: &str, limit: Limit<u64>| limit.value().map(|n| format!("{what} {n}/s"));
    let words: Vec<String> = [
        bytes("read", max.rbps),
        bytes("write", max.wbps),
        operations("reads", max.riops),
        operations("writes", max.wiops),
    ]
    .into_iter()
    .flatten()
    .collect();
    if words.is_empty() { "max".to_owned() } else { words.join(", ") }
}

/// What holds a container back, in a word for a column.
pub fn held_by_cell(held_by: HeldBy) -> &'static str {
    match held_by {
        HeldBy::Nothing => "-",
        HeldBy::Cap => "cap",
        HeldBy::User => "user",
        HeldBy::Others => "others",
        HeldBy::Disk => "disk",
    }
}

/// A disk's state, as metrics spell it.
pub(crate) const fn disk_state(state: DiskState) -> &'static str {
    match state {
        DiskState::Free => "free",
        DiskState::Guard => "guard",
        DiskState::Share => "share",
        DiskState::Slow => "slow",
        DiskState::Inversion => "inversion",
    }
}

/// A disk's state for people: in tables and on the dashboard.
pub const fn disk_state_words(state: DiskState) -> &'static str {
    match state {
        DiskState::Free => "free",
        DiskState::Guard => "limiting bursts",
        DiskState::Share => "shared out",
        DiskState::Slow => "slow",
        DiskState::Inversion => "limits backed off",
    }
}

/// A probe's judgement, as probes and metrics spell it.
pub const fn colour_name(colour: Colour) -> &'static str {
    match colour {
        Colour::Red => "red",
        Colour::Yellow => "yellow",
        Colour::Green => "green",
    }
}

/// Whether more memory would help a container, for people: in tables, sentences and on the dashboard. One whose limit is too small for
/// it needs more, though it waits for nothing.
pub const fn more_memory(colour: Colour, verdict: VerdictStatus) -> &'static str {
    match colour {
        _ if needs_more(colour, verdict) => "needs more",
        Colour::Red | Colour::Yellow => "fine",
        Colour::Green => "more will not help",
    }
}

/// Whether a container needs more memory, by its colour or else by its verdict.
pub const fn needs_more(colour: Colour, verdict: VerdictStatus) -> bool {
    matches!(colour, Colour::Red)
        || matches!(verdict, VerdictStatus::Tight | VerdictStatus::WaitingMemory | VerdictStatus::Killed)
}

/// What happens to a container's memory beside whether it needs more; `None` where it could lend but for its own need.
pub const fn shown_memory_state(
    colour: Colour,
    verdict: VerdictStatus,
    state: memory::LendingState,
) -> Option<&'static str> {
    match state {
        memory::LendingState::Spare if needs_more(colour, verdict) => None,
        state => Some(memory_state(state)),
    }
}

/// What happens to a container's memory, in a word or two.
pub const fn memory_state(state: memory::LendingState) -> &'static str {
    match state {
        memory::LendingState::Observe => "new",
        memory::LendingState::Protected => "in use",
        memory::LendingState::Spare => "can lend",
        memory::LendingState::Lending => "lending",
        memory::LendingState::Hold => "paused",
        memory::LendingState::Dead => "empty",
    }
}

/// A decision of `at` in a few words.
pub fn what(what: memory::MemoryAction, at: Micros) -> String {
    match what {
        memory::MemoryAction::Lend { amount } => format!("lends {amount}"),
        memory::MemoryAction::Ask { ceiling } => format!("sees {ceiling}"),
        memory::MemoryAction::Recall { amount } => format!("gives back {amount}"),
        memory::MemoryAction::Drain { amount } => format!("emptied of {amount}"),
        memory::MemoryAction::Save { amount } => format!("saves {amount}"),
        memory::MemoryAction::Hold { until } => {
            format!("left alone for {}", until.saturating_sub(at))
        }
    }
}

/// Text with each identifier of 64 hexadecimal digits shortened to the 12 that engines print: `/docker/0123456789ab...`.
pub fn short_ids(text: &str) -> String {
    let is_other = |c: char| !c.is_ascii_hexdigit();
    let short = |part: &str| match part.trim_end_matches(is_other).len() {
        64 => [&part[..12], "...", &part[64..]].concat(),
        _ => part.to_owned(),
    };
    text.split_inclusive(is_other).map(short).collect()
}

/// A moment as people tell it, seen from `now` on the same clock: `now`, `3 min ago`, `in 9 s`.
pub fn relative(at: Micros, now: Micros) -> String {
    match (span(now.saturating_sub(at)), span(at.saturating_sub(now))) {
        (Some(ago), _) => format!("{ago} ago"),
        (_, Some(ahead)) => format!("in {ahead}"),
        (None, None) => "now".to_owned(),
    }
}

/// A time in its largest unit that has two or more of it; `None` below a second.
fn span(time: Micros) -> Option<String> {
    match time.get() / 1_000_000 {
        0 => None,
        s if s < 120 => Some(format!("{s} s")),
        s if s < 7_200 => Some(format!("{} min", s / 60)),
        s if s < 172_800 => Some(format!("{} h", s / 3_600)),
        s => Some(format!("{} d", s / 86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_fit_their_column() {
        for (rate, expect) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (10 << 10, "10K"),
            ((1 << 20) - 1, "1024K"),
            (9 << 20, "9.0M"),
            (3 << 30, "3.0G"),
            (500 << 30, "500G"),
        ] {
            assert_eq!(short_bytes(rate), expect);
        }
        let parts =
            [None, Some(0.0), Some(-0.0), Some(-0.001), Some(0.125), Some(9.99), Some(10.0), Some(1e9)]
                .map(percent);
        assert_eq!(parts, ["-", "0%", "0%", "0%", "12%", "999%", "10x", "999x"]);
        assert_eq!([80, 12_345, 999_999].map(|n| short_duration(Micros(n))), ["80us", "12.3ms", "1.0s"]);
    }

    #[test]
    fn moments_are_told_from_now() {
        let now = Micros::secs(1_000_000);
        let told = [0, 999_879, 999_998, 1_000_000, 1_000_009, 1_009_000]
            .map(|seconds| relative(Micros::secs(seconds), now));
        assert_eq!(told, ["11 d ago", "2 min ago", "2 s ago", "now", "in 9 s", "in 2 h"]);
    }

    #[test]
    fn identifiers_are_as_short_as_engines_print_them() {
        let id = "0123456789abcdef".repeat(4);
        for (text, expect) in [
            (format!("/docker/{id}"), "/docker/0123456789ab..."),
            (
                format!("/a/cri-containerd-{id}.scope/{id}"),
                "/a/cri-containerd-0123456789ab....scope/0123456789ab...",
            ),
            (format!("{id}0 web"), &*format!("{id}0 web")),
            ("/système/web.service".into(), "/système/web.service"),
        ] {
            assert_eq!(short_ids(&text), expect);
        }
    }

    #[test]
    fn only_limits_that_are_there_are_named() {
        assert_eq!(io_limits(IoMax::MAX), "max");
        let max = IoMax { rbps: Limit::At(50 << 20), wiops: Limit::At(500), ..IoMax::MAX };
        assert_eq!(io_limits(max), "read 50MiB/s, writes 500/s");
    }
}
