//! What a profiler itself costs: CPU time of this process, while how much time passed.

use elbowroom_linux::{process, timer};
use elbowroom_types::unit::Micros;
use serde::Serialize;

/// A measurement that goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverheadMeter {
    cpu: Micros,
    wall: Micros,
}

/// What profiling cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ProfilerOverhead {
    /// CPU time of the profiler's own process, in microseconds.
    #[serde(rename = "cpu_usec")]
    pub cpu: Micros,
    /// Time that passed, in microseconds.
    #[serde(rename = "wall_usec")]
    pub wall: Micros,
    /// Samples that the kernel could not hand over.
    pub lost: u64,
}

impl OverheadMeter {
    /// Begins.
    pub fn start() -> Self {
        Self { cpu: process::own_cpu_time(), wall: timer::now() }
    }

    /// What it cost since; `lost` is how many samples the kernel said that it lost.
    pub fn stop(self, lost: u64) -> ProfilerOverhead {
        let cpu = process::own_cpu_time().saturating_sub(self.cpu);
        ProfilerOverhead { cpu, wall: timer::now().saturating_sub(self.wall), lost }
    }
}

impl ProfilerOverhead {
    /// Two measurements, one after the other.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_add(other.cpu),
            wall: self.wall.saturating_add(other.wall),
            lost: self.lost + other.lost,
        }
    }

    /// CPU time in percent of one CPU.
    pub(crate) fn percent_of_one_cpu(&self) -> f64 {
        100.0 * self.cpu.get() as f64 / self.wall.get().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_this_process_is_counted() {
        let meter = OverheadMeter::start();
        let begin = process::own_cpu_time();
        while process::own_cpu_time().saturating_sub(begin) < Micros(2_000) {
            std::hint::black_box(begin);
        }
        let overhead = meter.stop(3);
        assert!(overhead.cpu >= Micros(2_000) && overhead.lost == 3, "{overhead:?}");
        assert_eq!(overhead.plus(overhead).lost, 6);
    }
}
