//! One file per verb that only asks and prints.

pub(crate) mod check;
pub(crate) mod containers;
pub(crate) mod record;
pub(crate) mod table;
pub(crate) mod top;
