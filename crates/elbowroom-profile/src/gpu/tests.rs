//! Traces that are written here, by hand, and one that was recorded on an NVIDIA H100 (driver 580.159, CUPTI of CUDA 13.0).

use super::trace::tests::Writer;
use super::*;
use proptest::prelude::*;

#[test]
fn a_moment_belongs_to_the_innermost_call_and_to_one_kernel() {
    let mut file = Writer::new(100);
    // The runtime's malloc begins a context, loads code, and then allocates.
    file.record(4, (100, 1_000), 0, 1, "cudaMalloc");
    file.record(5, (150, 350), 0, 1, "cuDevicePrimaryCtxRetain");
    file.record(5, (400, 700), 0, 1, "cuModuleLoadData");
    file.record(5, (800, 900), 0, 1, "cuMemAlloc_v2");
    file.record(4, (1_000, 1_100), 0, 1, "cudaLaunchKernel");
    // Another thread waits meanwhile.
    file.record(5, (500, 2_000), 0, 2, "cuStreamSynchronize");
    // Two kernels at once, and one more.
    file.record(1, (1_100, 1_500), 0, 0, "lu");
    file.record(1, (1_400, 1_700), 0, 0, "lu");
    file.record(1, (1_800, 1_900), 0, 0, "stencil");
    file.record(2, (1_000, 1_050), 4_096, 0, "");
    file.record(3, (1_040, 1_060), 64, 0, "");
    // What is not known, while nothing was called.
    file.overhead(0, (2_000, 2_010), 1);
    file.record(8, (0, 2_100), 0, 0, "");
    let sums = TraceTotals::of(&GpuTrace::parse(&file.0).unwrap());
    let ns = |call| sums.ns(call);
    assert_eq!(
        (ns(GpuCallKind::Start), ns(GpuCallKind::Module), ns(GpuCallKind::Launch), ns(GpuCallKind::Wait)),
        (200, 300, 100, 1_500)
    );
    assert_eq!(ns(GpuCallKind::Malloc), 900 - 200 - 300);
    assert_eq!(sums.calls[&GpuCallKind::Malloc].calls, 2);
    assert_eq!(sums.call_ns(), 1_000 + 1_500);
    assert_eq!((sums.kernels, sums.kernel_ns), (3, 600 + 100));
    assert_eq!(sums.by_kernel["lu"], CallTotals { calls: 2, ns: 700 });
    assert_eq!((sums.copy_ns, sums.copy_bytes), (60, 4_160));
    assert_eq!((sums.traced_ns, sums.before_ns, sums.overhead_ns), (2_000, 0, 0));
    assert_eq!((sums.complete, sums.lost), (true, 0));
}

#[test]
fn code_that_a_call_needs_first_is_loading_and_what_cupti_holds_up_is_on_no_account() {
    let mut file = Writer::new(100);
    file.record(4, (300, 1_000), 0, 1, "cudaLaunchKernel");
    file.record(5, (310, 400), 0, 1, "cuLaunchKernel");
    let (lazily, compiler, instrumentation, flush) = (5 << 16, 1, 2 << 16, 1 << 16);
    file.overhead(lazily, (500, 600), 1);
    file.overhead(compiler, (600, 650), 1);
    file.overhead(instrumentation, (700, 900), 1);
    // On a thread of CUPTI's own.
    file.overhead(flush, (850, 950), 2);
    let sums = TraceTotals::of(&GpuTrace::parse(&file.0).unwrap());
    assert_eq!((sums.ns(GpuCallKind::Launch), sums.ns(GpuCallKind::Module)), (700 - 350, 150));
    assert_eq!((sums.overhead_ns, sums.before_ns), (250, 200));
    let calls: Vec<_> = sums.calls.iter().map(|(call, calls)| (*call, calls.calls)).collect();
    assert_eq!(calls, [(GpuCallKind::Module, 0), (GpuCallKind::Launch, 2)]);
}

#[test]
fn what_a_gpu_did_is_read_from_what_was_recorded_on_one() {
    let trace = GpuTrace::parse(include_bytes!("../../../../gpu/tests/recorded/lenet.trace")).unwrap();
    let sums = TraceTotals::of(&trace);
    // `bench lenet 4 2`: six kernels a step, five uploads, one download of ten numbers.
    let launches: Vec<(&str, u64)> =
        sums.by_kernel.iter().map(|(name, c)| (name.as_str(), c.calls)).collect();
    assert_eq!((sums.kernels, launches), (12, vec![("connect", 4), ("convolve", 4), ("pool", 4)]));
    assert_eq!(sums.copy_bytes, 4 * (4 * 28 * 28 + 6 * 25 + 16 * 6 * 25 + 120 * 256 + 10 * 120 + 10));
    assert_eq!((sums.calls[&GpuCallKind::Launch].calls, sums.calls[&GpuCallKind::Malloc].calls), (12, 11));
    assert_eq!((sums.complete, sums.lost), (true, 0));
    // The context is made once, and is most of all that is called; in it CUPTI makes itself ready.
    assert!(sums.ns(GpuCallKind::Start) > sums.call_ns() / 2 && sums.overhead_ns > 1_000_000, "{sums:?}");
    assert!(sums.before_ns + sums.call_ns() < sums.traced_ns && sums.kernel_ns < 1_000_000, "{sums:?}");
}

#[test]
fn functions_are_what_they_are_for() {
    let cases = [
        ("cuInit", GpuCallKind::Start),
        ("cuDevicePrimaryCtxRetain", GpuCallKind::Start),
        ("cuCtxSynchronize", GpuCallKind::Wait),
        ("cudaDeviceSynchronize", GpuCallKind::Wait),
        ("cuModuleLoadDataEx", GpuCallKind::Module),
        ("cuLibraryLoadData", GpuCallKind::Module),
        ("cuMemAlloc_v2", GpuCallKind::Malloc),
        ("cudaFree", GpuCallKind::Malloc),
        ("cudaMemcpyAsync", GpuCallKind::Memcpy),
        ("cuMemcpyHtoD_v2", GpuCallKind::Memcpy),
        ("cuMemsetD8_v2", GpuCallKind::Memcpy),
        ("cudaLaunchKernel", GpuCallKind::Launch),
        ("cuStreamCreate", GpuCallKind::Other),
        ("", GpuCallKind::Other),
    ];
    for (name, call) in cases {
        assert_eq!(GpuCallKind::of(name), call, "{name}");
    }
}

#[test]
fn a_container_adds_what_its_median_is_more() {
    let run = |container, wall_ns, module| GpuRun {
        container,
        wall_ns,
        sums: Some(TraceTotals {
            calls: BTreeMap::from([(GpuCallKind::Module, CallTotals { calls: 1, ns: module })]),
            kernel_ns: 50,
            ..TraceTotals::default()
        }),
    };
    let runs = [
        run(false, 100, 10),
        run(true, 130, 10),
        run(false, 102, 30),
        run(true, 128, 60),
        run(false, 900, 20),
        run(true, 131, 50),
        GpuRun { container: true, wall_ns: 7, sums: None },
    ];
    let compared = compare(&runs);
    let of = |quantity| compared.iter().find(|c| c.quantity == quantity).unwrap();
    let module = of(GpuQuantity::Call(GpuCallKind::Module));
    assert_eq!((module.native, module.container, module.runs), (Some(20.0), Some(50.0), [3, 3]));
    assert_eq!((module.added(), module.ratio()), (Some(30.0), Some(2.5)));
    let wall = of(GpuQuantity::Wall);
    assert_eq!((wall.native, wall.container), (Some(102.0), Some(129.0)));
    assert_eq!(of(GpuQuantity::Kernel).ratio(), Some(1.0));
    assert_eq!(of(GpuQuantity::Call(GpuCallKind::Wait)).ratio(), None);
    assert!(compare(&[]).iter().all(|c| c.added().is_none()));
}

proptest! {
    #[test]
    fn exclusive_times_never_exceed_what_is_covered(
        spans in prop::collection::vec((0u64..1_000, 0u64..200, 0u32..3), 0..40)
    ) {
        let names = ["cudaMalloc", "cuModuleLoad", "cuLaunchKernel"];
        let mut file = Writer::new(0);
        for (i, (begin, long, thread)) in spans.iter().enumerate() {
            file.record(4 + i as u32 % 2, (*begin, begin + long), 0, *thread, names[i % 3]);
        }
        let sums = TraceTotals::of(&GpuTrace::parse(&file.0).unwrap());
        let covered: u64 = (0..3)
            .map(|thread| {
                let of = |s: &&(u64, u64, u32)| s.2 == thread;
                super::union(spans.iter().filter(of).map(|(b, l, _)| (*b, b + l)).collect())
            })
            .sum();
        prop_assert!(sums.call_ns() <= covered, "{} {covered}", sums.call_ns());
        prop_assert_eq!(sums.calls.values().map(|c| c.calls).sum::<u64>(), spans.len() as u64);
    }
}
