//! Arbitrary bytes as a trace of a GPU program: sums that fit, or an error, no panic.
#![no_main]

use elbowroom_profile::gpu::{Run, Sums, Trace, compare};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(trace) = Trace::parse(data) else { return };
    let sums = Sums::of(&trace);
    assert_eq!(sums.kernels, sums.by_kernel.values().map(|calls| calls.calls).sum::<u64>());
    let _ = compare(&[Run { container: false, wall_ns: sums.traced_ns, sums: Some(sums) }]);
});
