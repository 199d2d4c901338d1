//! One room per verb that only asks and prints.

pub(crate) mod alerts;
pub(crate) mod ask;
pub(crate) mod check;
pub(crate) mod containers;
pub(crate) mod dashboard;
pub(crate) mod disks;
pub(crate) mod engine_hooks;
pub(crate) mod follow;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod probe;
pub(crate) mod reach;
pub(crate) mod record;
pub(crate) mod restore;
pub(crate) mod ring_recording;
pub(crate) mod top;
pub(crate) mod version;

use elbowroom_types::unit::{Micros, parse_duration};

/// A time between two looks, which is never zero.
fn parse_interval(text: &str) -> Result<Micros, String> {
    match parse_duration(text).map_err(|e| e.to_string())? {
        Micros(0) => Err(format!("{text} is no time at all: write for example \"500ms\"")),
        interval => Ok(interval),
    }
}
