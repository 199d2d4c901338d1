//! BPF programs of the profilers.

pub mod faults;
pub mod page_tables;
