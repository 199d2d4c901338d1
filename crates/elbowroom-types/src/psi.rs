//! Pressure stall information, `Documentation/accounting/psi.rst`.

use crate::unit::Micros;
use serde::{Deserialize, Serialize};

/// One line of a pressure file: how much of the time some, or all, tasks waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct Stall {
    /// Share of the last 10 s, in hundredths of a percent (`avg10=1.25` is 125).
    pub avg10: u32,
    /// Share of the last 60 s, in hundredths of a percent.
    pub avg60: u32,
    /// Share of the last 300 s, in hundredths of a percent.
    pub avg300: u32,
    /// Padding, so that the layout has no hidden bytes.
    #[serde(skip)]
    pub reserved: u32,
    /// Time stalled since the group was created.
    pub total: Micros,
}

/// One pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// Every task waited.
    pub full: Stall,
}

impl Pressure {
    /// No task waited.
    pub const EMPTY: Self = Self { some: Stall::EMPTY, full: Stall::EMPTY };
}

impl Stall {
    /// No task waited.
    pub const EMPTY: Self = Self { avg10: 0, avg60: 0, avg300: 0, reserved: 0, total: Micros::ZERO };
}
