//! Times as people write and read them.

use anyhow::{Result, anyhow};
use elbowroom_types::unit::parse_duration;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// Reads a time, in milliseconds since 1970: RFC 3339 (`2026-11-21T02:47:00Z`), local time (`2026-11-21T02:47`), a time of today
/// (`02:47`), or how long ago (`-5m`).
pub fn parse(text: &str, now_unix_ms: u64) -> Result<u64> {
    parse_in(text, now_unix_ms, &TimeZone::system()).ok_or_else(|| {
        anyhow!(
            "{text:?} is no time: write for example \"2026-11-21T02:47\" (local), \"2026-11-21T02:47:00Z\", \"02:47\" (today) or \
             \"-5m\" (ago)"
        )
    })
}

/// A time as it reads back, in local time.
pub fn format_local(unix_ms: u64) -> String {
    let zoned = zoned(unix_ms, &TimeZone::system());
    zoned.map_or_else(|| format!("{unix_ms} ms"), |zoned| zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
}

fn parse_in(text: &str, now_unix_ms: u64, zone: &TimeZone) -> Option<u64> {
    if let Some(ago) = text.strip_prefix('-') {
        let ago = parse_duration(ago).ok()?.get() / 1_000;
        return now_unix_ms.checked_sub(ago);
    }
    let unix_ms = |time: Timestamp| u64::try_from(time.as_millisecond()).ok();
    if let Ok(time) = text.parse::<Timestamp>() {
        return unix_ms(time);
    }
    let local = |time: DateTime| unix_ms(time.to_zoned(zone.clone()).ok()?.timestamp());
    if let Ok(time) = text.parse::<jiff::civil::Time>()
        && !text.contains('-')
    {
        return local(zoned(now_unix_ms, zone)?.date().to_datetime(time));
    }
    local(text.parse().ok()?)
}

fn zoned(unix_ms: u64, zone: &TimeZone) -> Option<Zoned> {
    let time = Timestamp::from_millisecond(i64::try_from(unix_ms).ok()?).ok()?;
    Some(time.to_zoned(zone.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_may_be_given_in_any_of_the_usual_ways() {
        // 2026-11-21T02:47:00Z, on a machine that is an hour ahead.
        let (at, zone) = (1_795_229_220_000, TimeZone::fixed(jiff::tz::offset(1)));
        for text in [
            "2026-11-21T02:47:00Z",
            "2026-11-21T02:47Z",
            "2026-11-21T04:47:00+02:00",
            "2026-11-21T03:47",
            "2026-11-21 03:47:00",
            "03:47",
            "03:47:00",
            "-0s",
        ] {
            assert_eq!(parse_in(text, at, &zone), Some(at), "{text}");
        }
        assert_eq!(parse_in("-5m", at, &zone), Some(at - 300_000));
        assert_eq!(parse_in("2026-11-21T02:47:00.250Z", at, &zone), Some(at + 250));
        for text in ["", "-", "-5", "yesterday", "25:00", "2026-13-01T00:00"] {
            assert_eq!(parse_in(text, at, &zone), None, "{text}");
        }
    }
}
