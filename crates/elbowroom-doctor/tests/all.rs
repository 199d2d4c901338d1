//! The tests of the checks and strategies: one program, which is linked once.

mod doctor_checks;
mod doctor_fine_print;
mod doctor_host;
mod doctor_limits_around;
mod doctor_strategies;
mod doctor_whole_hosts;
