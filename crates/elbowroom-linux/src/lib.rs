//! The kernel's edge: cgroups, `/proc`, mounts, notifications, leases, reclaim.
//!
//! [`sensor::Sensor`] turns kernel files and notifications into `elbowroom_types::sample` events. Its parts are public for
//! the other crates: a [`root::Root`] that the host's files are opened below, the [`cgroup`] layout and readers, the
//! [`proc`] parsers, [`discover`] for containers, [`disk`] for stacked devices and [`timer`] for the tick. [`mount`] gets
//! views into containers. [`fixture`] makes hosts out of text.
//!
//! What stays true: every limit is a lease ([`lease`]). What vanishes in the middle is a value, not an error. The host's files are
//! opened below a [`root::Root`], except those of the running kernel alone: `/dev/kmsg`, and processes by number.

pub mod activity;
pub mod bounded;
#[cfg(feature = "bpf")]
pub mod bpf;
pub mod cgroup;
pub mod containers;
pub mod discover;
pub mod disk;
pub mod elf;
pub mod fixture;
pub mod host_namespaces;
pub mod lease;
pub mod memory;
pub mod mount;
pub mod mountinfo;
pub mod network;
pub mod new_file;
pub mod numa;
pub mod parse;
pub mod privilege;
pub mod probe;
pub mod proc;
pub mod process;
pub mod reach;
pub mod root;
pub mod seccomp;
pub mod selinux;
pub mod sensor;
pub mod shortage;
pub mod signal;
pub mod timer;
pub mod unix_socket;
pub mod view_page;
pub mod warnings;
pub mod watch;
pub mod zfs;

pub use parse::Malformed;
pub use sensor::{GroupDetails, Sensor, SensorConfig, SensorError};
