//! What a program does with a GPU, and what a container adds to it.
//!
//! **Problem.** A GPU program in a container uses the same driver and the same GPU; what it may pay more for is on the host's side:
//! start-up, loading and translating code, allocation, copies.
//!
//! **Approach.** A trace has what the GPU did (kernels, copies) and what the program called (functions of CUDA's runtime and of the
//! driver). Time on the GPU is the union of its intervals: two kernels at once are not twice the time. Time in calls is *exclusive*: the
//! runtime calls the driver, and a moment belongs to the innermost call of a thread. Code is loaded when it is first used, inside calls
//! that are for something else; CUPTI says when, and that is time of loading. When it holds up a call itself, that belongs to no call.
//!
//! **Properties.** Exclusive times of a thread, and what CUPTI holds it up, add up to the time it spends in calls, however they are
//! nested.
//!
//! The thesis does not name its tool. CUPTI's activities are what NVIDIA's own profilers read.

mod compare;
mod trace;
pub mod verb;

pub use compare::{GpuComparison, GpuQuantity, GpuRun, compare};
pub(crate) use trace::MAX_TRACE_SIZE;
pub use trace::{GpuTrace, GpuTraceError, TraceRecord, TraceRecordKind};

use crate::gpu::trace::TraceRecordKind as K;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// What calls are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuCallKind {
    /// Making the driver, devices and contexts ready.
    Start,
    /// Loading code onto the GPU, and translating PTX for it; also when another call needs that first.
    Module,
    /// Allocating and freeing memory.
    Malloc,
    /// Copying and setting memory, from the program's side.
    Memcpy,
    /// Handing kernels to the GPU.
    Launch,
    /// Waiting for the GPU.
    Wait,
    /// Everything else.
    Other,
}

impl GpuCallKind {
    /// All, in the order of reports.
    pub const ALL: [Self; 7] =
        [Self::Start, Self::Module, Self::Malloc, Self::Memcpy, Self::Launch, Self::Wait, Self::Other];

    /// A word for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Module => "module load, JIT",
            Self::Malloc => "malloc",
            Self::Memcpy => "memcpy",
            Self::Launch => "launch",
            Self::Wait => "wait",
            Self::Other => "other calls",
        }
    }

    /// By the name of a function of CUDA's runtime or of the driver, with or without its version (`cuMemAlloc_v2`).
    pub fn of(function: &str) -> Self {
        let name = function.strip_prefix("cuda").or_else(|| function.strip_prefix("cu")).unwrap_or(function);
        let begins = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
        if begins(&["Module", "Library", "Link", "Kernel", "FuncGetModule", "FuncLoad"]) {
            Self::Module
        } else if begins(&["Memcpy", "Memset"]) {
            Self::Memcpy
        } else if begins(&[
            "Malloc",
            "Free",
            "Mem",
            "HostAlloc",
            "HostRegister",
            "HostUnregister",
            "Mipmapped",
            "Array",
        ]) {
            Self::Malloc
        } else if begins(&["Launch", "GraphLaunch"]) {
            Self::Launch
        } else if name.contains("Synchronize") || begins(&["StreamWait", "EventQuery", "StreamQuery"]) {
            Self::Wait
        } else if begins(&[
            "Init",
            "Ctx",
            "Device",
            "PrimaryCtx",
            "Driver",
            "GetDevice",
            "SetDevice",
            "GetProc",
        ]) {
            Self::Start
        } else {
            Self::Other
        }
    }
}

/// Calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallTotals {
    /// How many.
    pub calls: u64,
    /// Time in them and in nothing that they call, in nanoseconds, all threads together.
    pub ns: u64,
}

/// A trace, added up. Times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceTotals {
    /// From the begin of tracing, inside `cuInit()`, to its end, or to the last record.
    pub traced_ns: u64,
    /// From the begin of tracing to the first call: what is left of `cuInit()`, which is no call of the trace, and what CUPTI needs to
    /// make itself ready. All of it where nothing was called.
    pub before_ns: u64,
    /// Time in which at least one kernel ran.
    pub kernel_ns: u64,
    /// Kernels that ran.
    pub kernels: u64,
    /// Time in which the GPU copied or set memory.
    pub copy_ns: u64,
    /// Bytes that were copied or set.
    pub copy_bytes: u64,
    /// Calls, by what they are for.
    pub calls: BTreeMap<GpuCallKind, CallTotals>,
    /// Time in which CUPTI itself was in the way, in calls and beside them.
    pub overhead_ns: u64,
    /// Records for which there was no room, with CUPTI or in the trace.
    pub lost: u64,
    /// Whether the process came to its end while it was traced.
    pub complete: bool,
    /// Launches and time by kernel.
    pub by_kernel: BTreeMap<String, CallTotals>,
}

impl TraceTotals {
    /// Adds up a trace.
    pub fn of(trace: &GpuTrace) -> Self {
        let mut sums = Self { lost: trace.lost, complete: trace.end.is_some(), ..Self::default() };
        let (mut kernels, mut copies, mut overheads) = (Vec::new(), Vec::new(), Vec::new());
        let mut threads: HashMap<u32, Vec<CallSpan>> = HashMap::new();
        let (mut last, mut first) = (trace.begin, u64::MAX);
        for record in &trace.records {
            let (span, long) = ((record.begin, record.end), record.end - record.begin);
            last = last.max(record.end);
            match record.kind {
                K::Kernel => {
                    sums.kernels += 1;
                    let one = sums.by_kernel.entry(record.name.clone()).or_default();
                    one.calls += 1;
                    one.ns = one.ns.saturating_add(long);
                    kernels.push(span);
                }
                K::Copy | K::Set => {
                    sums.copy_bytes = sums.copy_bytes.saturating_add(record.value);
                    copies.push(span);
                }
                K::Runtime | K::Driver => {
                    first = first.min(record.begin);
                    let call = GpuCallKind::of(&record.name);
                    sums.calls.entry(call).or_default().calls += 1;
                    threads.entry(record.thread).or_default().push((
                        span.0,
                        Reverse(span.1),
                        record.kind as u8,
                        Some(call),
                    ));
                }
                K::Overhead => {
                    let of = overhead_kind(record.detail);
                    if of == OverheadKind::Cupti {
                        overheads.push(span);
                    }
                    let of = match of {
                        OverheadKind::Cupti => None,
                        OverheadKind::Code => Some(GpuCallKind::Module),
                        OverheadKind::Other => continue,
                    };
                    threads.entry(record.thread).or_default().push((
                        span.0,
                        Reverse(span.1),
                        record.kind as u8,
                        of,
                    ));
                }
            }
        }
        sums.traced_ns = trace.end.unwrap_or(last).saturating_sub(trace.begin);
        sums.before_ns = first.saturating_sub(trace.begin).min(sums.traced_ns);
        sums.kernel_ns = union(kernels);
        sums.copy_ns = union(copies);
        sums.overhead_ns = union(overheads);
        threads.into_values().for_each(|spans| sums.add_exclusive_times(spans));
        sums
    }

    /// Time of all calls.
    pub(crate) fn call_ns(&self) -> u64 {
        self.calls.values().fold(0, |sum, calls| sum.saturating_add(calls.ns))
    }

    /// Time of calls of one kind.
    pub fn ns(&self, call: GpuCallKind) -> u64 {
        self.calls.get(&call).map_or(0, |calls| calls.ns)
    }

    /// Of one thread: outer calls before those inside them.
    fn add_exclusive_times(&mut self, mut spans: Vec<CallSpan>) {
        spans.sort_unstable();
        let mut open: Vec<(Option<GpuCallKind>, u64)> = Vec::new();
        let mut since = 0;
        for (begin, Reverse(end), _, call) in spans {
            while let Some((call, end)) = open.last().copied().filter(|(_, end)| *end <= begin) {
                self.add_time(call, since, end);
                since = since.max(end);
                open.pop();
            }
            if let Some((call, _)) = open.last() {
                self.add_time(*call, since, begin);
            }
            since = since.max(begin);
            // A clock that is read twice can let an inner call end after its outer one.
            let end = open.last().map_or(end, |(_, outer)| end.min(*outer));
            open.push((call, end));
        }
        while let Some((call, end)) = open.pop() {
            self.add_time(call, since, end);
            since = since.max(end);
        }
    }

    fn add_time(&mut self, call: Option<GpuCallKind>, from: u64, to: u64) {
        let Some(call) = call else { return };
        let spent = &mut self.calls.entry(call).or_default().ns;
        *spent = spent.saturating_add(to.saturating_sub(from));
    }
}

/// Begin, end, depth where both are equal, and whose time it is; `None` belongs to none.
type CallSpan = (u64, Reverse<u64>, u8, Option<GpuCallKind>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum OverheadKind {
    Code,
    Cupti,
    Other,
}

/// By CUPTI's numbers (`CUpti_ActivityOverheadKind`).
const fn overhead_kind(kind: u32) -> OverheadKind {
    match kind {
        // The driver's compiler; the runtime and the driver load what is used for the first time.
        1 | 0x4_0000 | 0x5_0000 => OverheadKind::Code,
        // Buffers, instrumentation, resources; one more buffer; its own beginning.
        0x1_0000..=0x3_0000 | 0x7_0000 | 0x8_0000 => OverheadKind::Cupti,
        _ => OverheadKind::Other,
    }
}

/// Length of what is covered by at least one of the intervals.
fn union(mut spans: Vec<(u64, u64)>) -> u64 {
    spans.sort_unstable();
    let (mut sum, mut until) = (0, 0);
    for (begin, end) in spans {
        sum += end.saturating_sub(begin.max(until));
        until = until.max(end);
    }
    sum
}

#[cfg(test)]
mod tests;
