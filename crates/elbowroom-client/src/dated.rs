//! Moments in answers for programs: RFC 3339, whatever clock the agent reads.

use elbowroom_linux::timer;
use jiff::Timestamp;
use serde::ser::Error;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// An answer whose moments are written in RFC 3339, in UTC. On the control socket `at`, `since` and `until` count on the monotonic
/// clock, which says nothing outside this boot. A key such as `ended_unix_ms` stays, and gets `ended` beside it.
pub struct Dated<'a, T>(pub &'a T);

impl<T: Serialize> Serialize for Dated<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut value = serde_json::to_value(self.0).map_err(S::Error::custom)?;
        Clocks { monotonic_us: timer::now().get(), unix_ms: timer::unix_ms() }.date(&mut value);
        value.serialize(serializer)
    }
}

/// Keys of moments on the monotonic clock, in microseconds.
const MONOTONIC_KEYS: [&str; 3] = ["at", "since", "until"];
/// The end of the keys of moments in milliseconds since 1970.
const UNIX_SUFFIX: &str = "_unix_ms";

/// One moment, as both clocks have it.
#[derive(Clone, Copy)]
struct Clocks {
    monotonic_us: u64,
    unix_ms: u64,
}

impl Clocks {
    fn date(self, value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(|item| self.date(item)),
            Value::Object(fields) => {
                // `{"at": 7}` alone is a limit (`elbowroom_types::unit::Limit`), and no moment.
                let is_limit = fields.len() == 1;
                for (key, field) in fields.iter_mut() {
                    match field.as_u64() {
                        Some(at) if MONOTONIC_KEYS.contains(&key.as_str()) && !is_limit => {
                            // Before the agent first looked at the clock.
                            *field = (at > 0).then(|| rfc3339(self.unix_ms_of(at))).into();
                        }
                        _ => self.date(field),
                    }
                }
                let dated = |(key, field): (&String, &Value)| {
                    Some((key.strip_suffix(UNIX_SUFFIX)?.to_owned(), rfc3339(field.as_u64()?).into()))
                };
                let more: Vec<(String, Value)> = fields.iter().filter_map(dated).collect();
                fields.extend(more);
            }
            _ => {}
        }
    }

    /// A moment on the monotonic clock, in milliseconds since 1970.
    const fn unix_ms_of(self, monotonic_us: u64) -> u64 {
        let ago = self.monotonic_us.saturating_sub(monotonic_us) / 1_000;
        let ahead = monotonic_us.saturating_sub(self.monotonic_us) / 1_000;
        self.unix_ms.saturating_sub(ago).saturating_add(ahead)
    }
}

/// `2026-11-21T02:46:00.5Z`; the epoch where no calendar has the moment.
pub fn rfc3339(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn moments_of_both_clocks_are_dated_and_limits_are_not() {
        let clocks = Clocks { monotonic_us: 10_000_000, unix_ms: 1_795_229_160_500 };
        let mut answer = json!({
            "since": 9_000_000, "since_unix_ms": 1_795_229_159_500_u64, "until": null, "ended_unix_ms": null,
            "max": {"rbps": {"at": 7}, "wbps": "max"},
            "changes": [{"at": 0, "id": 1}],
            "decisions": [{"at": 10_000_000, "what": "hold", "until": 12_000_000}],
        });
        clocks.date(&mut answer);
        let expect = json!({
            "since": "2026-11-21T02:45:59.5Z", "since_unix_ms": 1_795_229_159_500_u64, "until": null, "ended_unix_ms": null,
            "max": {"rbps": {"at": 7}, "wbps": "max"},
            "changes": [{"at": null, "id": 1}],
            "decisions": [{"at": "2026-11-21T02:46:00.5Z", "what": "hold", "until": "2026-11-21T02:46:02.5Z"}],
        });
        assert_eq!(answer, expect);
    }
}
