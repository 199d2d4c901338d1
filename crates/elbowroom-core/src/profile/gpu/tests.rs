//! The traces are written here, by hand; none was recorded on a GPU.

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
    file.record(7, (700, 700), 2_048, 0, "");
    file.record(6, (100, 120), 0, 0, "");
    file.record(9, (0, 2_100), 0, 0, "");
    let sums = Sums::of(&Trace::parse(&file.0).unwrap());
    let ns = |call| sums.ns(call);
    assert_eq!((ns(Call::Start), ns(Call::Module), ns(Call::Launch), ns(Call::Wait)), (200, 300, 100, 1_500));
    assert_eq!(ns(Call::Malloc), 900 - 200 - 300);
    assert_eq!(sums.calls[&Call::Malloc].calls, 2);
    assert_eq!(sums.call_ns(), 1_000 + 1_500);
    assert_eq!((sums.kernels, sums.kernel_ns), (3, 600 + 100));
    assert_eq!(sums.by_kernel["lu"], Calls { calls: 2, ns: 700 });
    assert_eq!((sums.copy_ns, sums.copy_bytes), (60, 4_160));
    assert_eq!((sums.modules, sums.module_bytes, sums.overhead_ns), (1, 2_048, 20));
    assert_eq!((sums.traced_ns, sums.complete, sums.lost), (2_000, true, 0));
}

#[test]
fn functions_are_what_they_are_for() {
    let cases = [
        ("cuInit", Call::Start),
        ("cuDevicePrimaryCtxRetain", Call::Start),
        ("cuCtxSynchronize", Call::Wait),
        ("cudaDeviceSynchronize", Call::Wait),
        ("cuModuleLoadDataEx", Call::Module),
        ("cuLibraryLoadData", Call::Module),
        ("cuMemAlloc_v2", Call::Malloc),
        ("cudaFree", Call::Malloc),
        ("cudaMemcpyAsync", Call::Memcpy),
        ("cuMemcpyHtoD_v2", Call::Memcpy),
        ("cuMemsetD8_v2", Call::Memcpy),
        ("cudaLaunchKernel", Call::Launch),
        ("cuStreamCreate", Call::Other),
        ("", Call::Other),
    ];
    for (name, call) in cases {
        assert_eq!(Call::of(name), call, "{name}");
    }
}

#[test]
fn a_container_adds_what_its_median_is_more() {
    let run = |container, wall_ns, module| Run {
        container,
        wall_ns,
        sums: Some(Sums {
            calls: BTreeMap::from([(Call::Module, Calls { calls: 1, ns: module })]),
            kernel_ns: 50,
            ..Sums::default()
        }),
    };
    let runs = [
        run(false, 100, 10),
        run(true, 130, 10),
        run(false, 102, 30),
        run(true, 128, 60),
        run(false, 900, 20),
        run(true, 131, 50),
        Run { container: true, wall_ns: 7, sums: None },
    ];
    let compared = compare(&runs);
    let of = |quantity| compared.iter().find(|c| c.quantity == quantity).unwrap();
    let module = of(Quantity::Call(Call::Module));
    assert_eq!((module.native, module.container, module.runs), (Some(20.0), Some(50.0), [3, 3]));
    assert_eq!((module.added(), module.ratio()), (Some(30.0), Some(2.5)));
    let wall = of(Quantity::Wall);
    assert_eq!((wall.native, wall.container), (Some(102.0), Some(129.0)));
    assert_eq!(of(Quantity::Kernel).ratio(), Some(1.0));
    assert_eq!(of(Quantity::Call(Call::Wait)).ratio(), None);
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
        let sums = Sums::of(&Trace::parse(&file.0).unwrap());
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
