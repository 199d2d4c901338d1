//! `elbowroom doctor --since`: compared with a look that was kept.

use crate::checks::HostFacts;
use crate::facts::CounterSampleStore;
use anyhow::{Result, bail};
use elbowroom_client::output::say;
use elbowroom_linux::timer::now_boot;
use elbowroom_types::unit::parse_duration;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the epoch.
pub(super) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The facts with the look that `since` names as the first one.
pub(super) fn compare_with_past(
    facts: HostFacts,
    looks: &CounterSampleStore,
    since: PastTime,
) -> Result<HostFacts> {
    let asked = since.unix_seconds_at(unix_seconds());
    let Some((at, look)) = looks.find(asked)? else {
        bail!(
            "no look was kept since this host was started, and counters alone do not say when they grew: keep one now and \
             then with `elbowroom doctor --keep`, for example by a timer"
        )
    };
    if at > asked {
        say(&format!(
            "no look was kept before then; the first one after it was made {} s ago",
            unix_seconds().saturating_sub(at)
        ));
    }
    Ok(facts.since(look, now_boot()))
}

/// A moment in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PastTime {
    /// This many seconds ago.
    Ago(u64),
    /// Seconds since the epoch.
    At(u64),
}

impl PastTime {
    fn unix_seconds_at(self, now: u64) -> u64 {
        match self {
            Self::Ago(seconds) => now.saturating_sub(seconds),
            Self::At(time) => time,
        }
    }
}

/// `2h`, `2026-11-21T04:30Z`, `@1795236600`.
pub(super) fn parse_past_time(text: &str) -> Result<PastTime, String> {
    if let Ok(ago) = parse_duration(text) {
        return Ok(PastTime::Ago(ago.get() / 1_000_000));
    }
    let at = text.strip_prefix('@').map_or_else(|| parse_utc(text), |seconds| seconds.parse().ok());
    let hint = "is neither a duration nor a time: write for example \"2h\" or \"2026-11-21T04:30Z\"";
    at.map(PastTime::At).ok_or_else(|| format!("\"{text}\" {hint}"))
}

/// A time in UTC; seconds may be left out.
fn parse_utc(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers = |text: &str, mark: char| -> Option<Vec<u64>> {
        let digits =
            |n: &str| (n.len() >= 2 && n.bytes().all(|b| b.is_ascii_digit())).then(|| n.parse().ok())?;
        text.split(mark).map(digits).collect()
    };
    let [year @ 1970..=9999, month @ 1..=12, day @ 1..=31] = numbers(date, '-')?[..] else { return None };
    let (hour, minute, second) = match numbers(time, ':')?[..] {
        [hour @ 0..=23, minute @ 0..=59] => (hour, minute, 0),
        [hour @ 0..=23, minute @ 0..=59, second @ 0..=60] => (hour, minute, second),
        _ => return None,
    };
    // Years that begin in March have their leap day at the end.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = (y * 365 + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1).checked_sub(719_468)?;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_so_long_ago_or_a_time_in_utc() {
        for (text, expect) in [
            ("2h", Some(PastTime::Ago(7_200))),
            ("1d", Some(PastTime::Ago(86_400))),
            ("@17", Some(PastTime::At(17))),
            ("1970-01-01T00:00Z", Some(PastTime::At(0))),
            ("2000-02-29T12:00:01Z", Some(PastTime::At(951_825_601))),
            ("2026-11-21T04:30Z", Some(PastTime::At(1_795_235_400))),
            ("2026-11-21T04:30", None),
            ("2026-13-21T04:30Z", None),
            ("2026-11-21T24:30Z", None),
            ("yesterday", None),
            ("", None),
            ("@", None),
        ] {
            assert_eq!(parse_past_time(text).ok(), expect, "{text}");
        }
        assert_eq!(PastTime::Ago(9).unix_seconds_at(4), 0);
    }
}
