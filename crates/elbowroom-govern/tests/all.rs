//! The tests of the governors: one program, which is linked once.

mod disk_policy_aridac;
mod disk_policy_lifeline;
mod disk_policy_properties;
mod disk_scenarios;
mod disk_scenarios_random;
mod many;
mod memory_governor;
mod memory_saving;
mod memory_scenarios;
mod memory_scenarios_random;
mod toy_disk;
