//! Where all CPUs of this machine are, many times a second: perf_event_open(2) with the software event `cpu-clock`, which every
//! kernel has, virtual ones too. No other program is needed.
//!
//! # Approach
//! One event and one ring per CPU. A thread empties the rings every 50 ms and hands records on in the order in which they
//! happened: what one CPU wrote late may be older than what another wrote early, so a record waits for one more round.
//! Idle CPUs are not sampled.

pub mod record;
mod ring;

use elbowroom_linux::bounded;
use record::PerfRecord;
use ring::PerfRing;
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Samples per second and CPU by default: not 1000, so that what happens every millisecond is seen as often as it is there.
pub(crate) const FREQUENCY: u64 = 999;
/// A CPU writes about half a megabyte per second into 2 MiB.
const RING_PAGES: usize = 512;
const READ_INTERVAL: Duration = Duration::from_millis(50);

/// Why there can be no samples.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PerfError {
    /// The kernel refuses.
    #[error(
        "perf_event_open refused cpu-clock on CPU {cpu}: {source}: sampling the whole machine needs root, or CAP_PERFMON and \
         CAP_SYS_PTRACE, and a seccomp profile that allows it"
    )]
    Open {
        /// Where.
        cpu: u32,
        /// Why.
        source: io::Error,
    },
    /// The ring cannot be mapped.
    #[error("while mapping the ring of CPU {cpu}: {source}: raise kernel.perf_event_mlock_kb")]
    Map {
        /// Where.
        cpu: u32,
        /// Why.
        source: io::Error,
    },
    /// No thread, or no list of CPUs.
    #[error("while {what}: {source}")]
    Io {
        /// What was done.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

/// Sampling that goes on until [`Sampler::stop`].
#[derive(Debug)]
pub(crate) struct Sampler<Sink> {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<Sink>,
}

/// `struct perf_event_attr` (`PERF_ATTR_SIZE_VER7`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_freq: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved_2: u16,
    aux_sample_size: u32,
    reserved_3: u32,
    sig_data: u64,
}

const TYPE_SOFTWARE: u32 = 1;
const COUNT_SW_CPU_CLOCK: u64 = 0;
/// IP, TID, TIME, CALLCHAIN.
const SAMPLE_TYPE: u64 = 1 | 2 | 4 | 32;
/// exclude_hv, exclude_idle, mmap, comm, freq, task, sample_id_all, mmap2, comm_exec, use_clockid.
const FLAGS: u64 =
    1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 13 | 1 << 18 | 1 << 23 | 1 << 24 | 1 << 25;
/// build_id, since Linux 5.12.
const FLAG_BUILD_ID: u64 = 1 << 34;
const FLAG_CLOEXEC: libc::c_ulong = 8;

impl<Sink: Send + 'static> Sampler<Sink> {
    /// Samples every CPU `frequency` times a second, and gives each record with its time (ns, CLOCK_MONOTONIC) to `take`, in order,
    /// on a thread of its own. `sink` is made once events are on: what it then reads of `/proc` leaves no gap.
    ///
    /// # Errors
    /// [`PerfError`]: the kernel refuses.
    pub fn start(
        frequency: u64,
        sink: impl FnOnce() -> Sink,
        mut take: impl FnMut(&mut Sink, u64, PerfRecord) + Send + 'static,
    ) -> Result<Self, PerfError> {
        let io = |what| move |source| PerfError::Io { what, source };
        let online = bounded::file_text("/sys/devices/system/cpu/online", bounded::KERNEL_FILE)
            .map_err(io("reading /sys/devices/system/cpu/online"))?;
        let online: elbowroom_types::cpuset::CpuSet = online
            .trim()
            .parse()
            .map_err(|_| io("reading /sys/devices/system/cpu/online")(io::ErrorKind::InvalidData.into()))?;
        let mut rings = Vec::new();
        for cpu in online.iter() {
            let event = open(cpu, frequency).map_err(|source| PerfError::Open { cpu, source })?;
            let ring = PerfRing::map(&event, RING_PAGES)
                .map_err(|errno| PerfError::Map { cpu, source: errno.into() })?;
            rings.push((event, ring));
        }
        let mut sink = sink();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let reader = std::thread::Builder::new().name("perf-reader".into()).spawn(move || {
            // On a machine that is all busy a reader that waits its turn loses records. Without CAP_SYS_NICE it waits.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -10);
            let (mut bytes, mut waiting) = (Vec::new(), Vec::new());
            let mut horizon = 0;
            loop {
                let last = stopped.load(Ordering::Acquire);
                let newest = waiting.iter().map(|(time, _)| *time).max().unwrap_or(horizon);
                for (_, ring) in &rings {
                    ring.take(&mut bytes);
                    decode(&bytes, &mut waiting);
                }
                horizon = if last { u64::MAX } else { newest };
                // Stable: of two records at one moment the first in its ring comes first.
                waiting.sort_by_key(|(time, _)| *time);
                let ready = waiting.partition_point(|(time, _)| *time <= horizon);
                waiting.drain(..ready).for_each(|(time, record)| take(&mut sink, time, record));
                if last {
                    return sink;
                }
                std::thread::park_timeout(READ_INTERVAL);
            }
        });
        Ok(Self { stop, reader: reader.map_err(io("starting a thread"))? })
    }

    /// Ends it, and gives back what records were given to.
    pub fn stop(self) -> Sink {
        self.stop.store(true, Ordering::Release);
        self.reader.thread().unpark();
        match self.reader.join() {
            Ok(sink) => sink,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn decode(mut bytes: &[u8], into: &mut Vec<(u64, PerfRecord)>) {
    while let Some((record, size)) = record::next(bytes) {
        into.extend(record);
        bytes = &bytes[size..];
    }
}

fn open(cpu: u32, frequency: u64) -> io::Result<OwnedFd> {
    let mut attr = PerfEventAttr {
        kind: TYPE_SOFTWARE,
        size: size_of::<PerfEventAttr>() as u32,
        config: COUNT_SW_CPU_CLOCK,
        sample_freq: frequency,
        sample_type: SAMPLE_TYPE,
        flags: FLAGS | FLAG_BUILD_ID,
        clockid: libc::CLOCK_MONOTONIC,
        ..PerfEventAttr::default()
    };
    match open_with(&attr, cpu) {
        // A kernel from before 5.12 knows no build ids: files are then known by their paths.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::E2BIG)) => {
            attr.flags = FLAGS;
            open_with(&attr, cpu)
        }
        opened => opened,
    }
}

fn open_with(attr: &PerfEventAttr, cpu: u32) -> io::Result<OwnedFd> {
    // SAFETY: the attribute is a whole `perf_event_attr` whose size it says itself; the call only reads it and returns a new
    // descriptor or -1. The pid -1 means every process.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const *attr, -1, cpu as libc::c_int, -1, FLAG_CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: perf_event_open just returned this descriptor; no other code knows or closes it.
    let event = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    debug_assert!(event.as_raw_fd() >= 0);
    Ok(event)
}
