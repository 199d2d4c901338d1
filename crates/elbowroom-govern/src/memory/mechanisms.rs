//! What an experiment switches off.

/// The mechanisms of the governor, each of which an experiment can switch off: what its place in the table of `docs/decisions` was
/// measured with. No configuration reaches this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMechanisms {
    /// `memory.low` and soft limits are written.
    pub protection: bool,
    /// They follow the colour; else they are the reservation, always.
    pub protection_by_colour: bool,
    /// Green containers lend.
    pub lending: bool,
    /// Containers above their entitlement give back.
    pub recall: bool,
    /// After a loan that hurt nothing is taken for a while.
    pub holds: bool,
    /// Page cache that programs run from does not count as reclaimable.
    pub mapped: bool,
}

impl Default for MemoryMechanisms {
    fn default() -> Self {
        Self {
            protection: true,
            protection_by_colour: true,
            lending: true,
            recall: true,
            holds: true,
            mapped: true,
        }
    }
}
