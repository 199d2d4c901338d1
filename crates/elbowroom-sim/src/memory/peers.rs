//! What governors without reservations would do.

use super::scenario::MemoryPolicy;
use elbowroom_types::probe::Colour;

/// The part that is taken per second.
const STEP: f64 = 0.02;

/// How much each gives, of its usage.
pub(super) fn take(rule: MemoryPolicy, short: bool, colours: &[(Colour, f64)]) -> Vec<f64> {
    if rule != MemoryPolicy::MemOpLight || !short {
        return vec![0.0; colours.len()];
    }
    let red = colours.iter().any(|(colour, _)| *colour == Colour::Red);
    let part = |(colour, usage): &(Colour, f64)| match colour {
        Colour::Green => STEP * usage,
        Colour::Yellow if red => STEP * usage,
        Colour::Yellow | Colour::Red => 0.0,
    };
    colours.iter().map(part).collect()
}
