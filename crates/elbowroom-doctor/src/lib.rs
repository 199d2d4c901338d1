//! The doctor: what hurts containers on this host, why, and what removes it; and the strategies `pretouch`, `housekeeping`,
//! `protect` and `size`.
//!
//! A check is a pure function in [`checks`] from [`facts`] to findings; [`fixes`] writes what a finding suggests and takes it back;
//! [`verb`] is the command line. Begin with [`checks::CHECKS`].
//!
//! What stays true: `checks` and `strategies` read no clock, file or environment (`tools/house` refuses the words); a fix never lowers a
//! limit, switches swap off or kills.

pub mod checks;
pub mod facts;
pub mod fixes;
pub mod host_text;
pub mod strategies;
pub mod verb;
