use elbowroom_profile::gpu::{GpuRun, GpuTrace, TraceTotals, compare};

/// Arbitrary bytes as a trace of a GPU program: sums that fit, or an error, no panic.
pub fn run(data: &[u8]) {
    let Ok(trace) = GpuTrace::parse(data) else { return };
    let sums = TraceTotals::of(&trace);
    assert_eq!(sums.kernels, sums.by_kernel.values().map(|calls| calls.calls).sum::<u64>());
    let _ = compare(&[GpuRun { container: false, wall_ns: sums.traced_ns, sums: Some(sums) }]);
}
