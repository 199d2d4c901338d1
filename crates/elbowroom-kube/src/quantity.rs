//! Quantities as Kubernetes writes them: `500m`, `1.5`, `2Gi`, `1e9`.

/// Suffixes of a quantity (apimachinery, `pkg/api/resource/suffix.go`), and what they multiply with and divide by.
const SUFFIXES: [(&str, u128, u128); 16] = [
    ("", 1, 1),
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
];

/// Thousandths of a quantity, rounded up as Kubernetes does; `None` for what is none, or below zero.
pub(crate) fn milli(text: &str) -> Option<u64> {
    scaled(text, 1_000)
}

/// A quantity in whole units, rounded up; `None` for what is none, or below zero.
pub(crate) fn units(text: &str) -> Option<u64> {
    scaled(text, 1)
}

fn scaled(text: &str, scale: u128) -> Option<u64> {
    // `1E` is a suffix, `1e3` and `1E3` have exponents: a suffix is all that follows the last digit or dot.
    let end = text.rfind(|c: char| c.is_ascii_digit() || c == '.')? + 1;
    let (number, suffix) = text.split_at(end);
    let (_, times, over) = SUFFIXES.iter().find(|(name, ..)| *name == suffix)?;
    let (number, exponent) = match number.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i32>().ok()?),
        None => (number, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse::<u64>().ok()?.into();
    let power = exponent.checked_sub(fraction.len() as i32)?;
    let ten = |power: u32| 10u128.checked_pow(power);
    let (above, below) = match u32::try_from(power) {
        Ok(power) => (ten(power).unwrap_or(u128::MAX), 1),
        Err(_) => (1, ten(power.unsigned_abs()).unwrap_or(u128::MAX)),
    };
    let above = digits.saturating_mul(*times).saturating_mul(scale).saturating_mul(above);
    Some(u64::try_from(above.div_ceil(below.saturating_mul(*over))).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_read_as_kubernetes_writes_them() {
        for (text, thousandths) in [
            ("500m", Some(500)),
            ("1", Some(1_000)),
            ("1.5", Some(1_500)),
            ("0.1", Some(100)),
            ("100u", Some(1)),
            ("2k", Some(2_000_000)),
            ("1e3", Some(1_000_000)),
            ("1E", Some(u64::MAX)),
            ("0", Some(0)),
            ("-1", None),
            ("", None),
            ("m", None),
            ("1x", None),
            ("nan", None),
            ("1 Gi", None),
        ] {
            assert_eq!(milli(text), thousandths, "{text}");
        }
        assert_eq!(units("2Gi"), Some(2 << 30));
        assert_eq!(units("1.5Gi"), Some(3 << 29));
        assert_eq!(units("128974848"), Some(128_974_848));
        assert_eq!(units("129e6"), Some(129_000_000));
        assert_eq!(
            (units("1.5e1"), units("15e-1"), units("1e999"), units("1e-999")),
            (Some(15), Some(2), Some(u64::MAX), Some(1))
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,20}") {
            let _ = (milli(&text), units(&text));
        }

        #[test]
        fn whole_numbers_stay_what_they_are(n in 0u64..1 << 40) {
            prop_assert_eq!(units(&n.to_string()), Some(n));
            prop_assert_eq!(units(&format!("{n}m")), Some(n.div_ceil(1_000)));
            prop_assert_eq!(milli(&format!("{n}m")), Some(n));
        }
    }
}
