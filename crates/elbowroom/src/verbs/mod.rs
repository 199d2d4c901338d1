//! One room per verb that only asks and prints.

pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod containers;
pub(crate) mod disks;
pub(crate) mod doctor;
pub(crate) mod metrics;
pub(crate) mod rates;
pub(crate) mod record;
pub(crate) mod restore;
pub(crate) mod table;
pub(crate) mod top;
