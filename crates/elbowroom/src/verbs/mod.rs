//! One room per verb that only asks and prints.

pub(crate) mod alerts;
pub(crate) mod audit;
pub(crate) mod black_box;
pub(crate) mod check;
pub(crate) mod containers;
pub(crate) mod disks;
pub(crate) mod doctor;
pub(crate) mod engine;
pub(crate) mod follow;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod probe;
pub(crate) mod profile;
pub(crate) mod rates;
pub(crate) mod record;
pub(crate) mod restore;
pub(crate) mod table;
pub(crate) mod top;
