//! Runs of one program, native and in a container, side by side.

use super::{GpuCallKind, TraceTotals};
use serde::{Deserialize, Serialize};

/// One run of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRun {
    /// In a container, or not.
    pub container: bool,
    /// From its start until its end, in nanoseconds.
    pub wall_ns: u64,
    /// What its trace says; `None` for a run that was not traced. End-to-end times come from those: tracing costs time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sums: Option<TraceTotals>,
}

/// What is compared, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuQuantity {
    /// From start to end, of runs that were not traced; of all where all were.
    Wall,
    /// The same of runs that were traced.
    WallTraced,
    /// Of runs that were traced, from `cuInit()` to their end: without the start of the container, and of the program before that.
    Traced,
    /// From the begin of tracing to the first call: what is left of `cuInit()`.
    Before,
    /// Time in which the GPU ran a kernel.
    Kernel,
    /// Time in which the GPU copied or set memory.
    Copy,
    /// Time in calls, all kinds.
    Calls,
    /// Time in calls of one kind.
    Call(GpuCallKind),
}

/// Medians of one quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuComparison {
    /// Which one.
    pub quantity: GpuQuantity,
    /// Median of native runs.
    pub native: Option<f64>,
    /// Median of runs in containers.
    pub container: Option<f64>,
    /// How many runs each is of: native, in containers.
    pub runs: [usize; 2],
}

impl GpuComparison {
    /// What a container adds, in nanoseconds.
    pub fn added(&self) -> Option<f64> {
        Some(self.container? - self.native?)
    }

    /// How many times as long; `None` where a native run does none of it.
    pub fn ratio(&self) -> Option<f64> {
        let (native, container) = (self.native?, self.container?);
        (native > 0.0).then(|| container / native)
    }
}

/// Compares all quantities. Medians, because a GPU that others use too is late once in a while, and never early.
pub fn compare(runs: &[GpuRun]) -> Vec<GpuComparison> {
    let plain = runs.iter().any(|run| run.sums.is_none() && !run.container)
        && runs.iter().any(|run| run.sums.is_none() && run.container);
    let quantities = [
        GpuQuantity::Wall,
        GpuQuantity::WallTraced,
        GpuQuantity::Traced,
        GpuQuantity::Kernel,
        GpuQuantity::Copy,
        GpuQuantity::Before,
        GpuQuantity::Calls,
    ];
    let compared = quantities.into_iter().chain(GpuCallKind::ALL.map(GpuQuantity::Call)).map(|quantity| {
        let value = |run: &GpuRun| match (quantity, &run.sums) {
            (GpuQuantity::Wall, sums) => (!plain || sums.is_none()).then_some(run.wall_ns),
            (_, None) => None,
            (GpuQuantity::WallTraced, Some(_)) => Some(run.wall_ns),
            (GpuQuantity::Traced, Some(sums)) => Some(sums.traced_ns),
            (GpuQuantity::Before, Some(sums)) => Some(sums.before_ns),
            (GpuQuantity::Kernel, Some(sums)) => Some(sums.kernel_ns),
            (GpuQuantity::Copy, Some(sums)) => Some(sums.copy_ns),
            (GpuQuantity::Calls, Some(sums)) => Some(sums.call_ns()),
            (GpuQuantity::Call(call), Some(sums)) => Some(sums.ns(call)),
        };
        let of = |container| {
            let values: Vec<u64> =
                runs.iter().filter(|run| run.container == container).filter_map(value).collect();
            (values.len(), median(values))
        };
        let ((natives, native), (containers, container)) = (of(false), of(true));
        GpuComparison { quantity, native, container, runs: [natives, containers] }
    });
    compared.collect()
}

/// The middle one; of two middle ones their mean.
fn median(mut values: Vec<u64>) -> Option<f64> {
    values.sort_unstable();
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle] as f64),
        _ => Some((values[middle - 1] as f64 + values[middle] as f64) / 2.0),
    }
}
