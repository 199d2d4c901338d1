//! The file that the tracing library (`gpu/trace.c`) writes: its form is `gpu/trace.h`.
//!
//! Everything is little-endian. A header of 24 bytes: `ELBOWGPU`, version (u32), process (u32), when tracing began (u64, ns of CUPTI's
//! clock). Then records of 40 bytes and a name: kind (u32), bytes of the whole record, a multiple of 8 (u32), begin, end, value (u64
//! each), detail, thread (u32 each), and the name, filled up with zeros. The process that is killed leaves a file without its end. The
//! first record counts those that found no room, as the library goes on.

use serde::{Deserialize, Serialize};

/// First bytes of a file.
pub const MAGIC: &[u8; 8] = b"ELBOWGPU";
/// The version of the form.
pub const VERSION: u32 = 1;
/// The library writes no larger file: `ELBOWROOM_GPU_LARGEST`. 4 GiB are a hundred million records.
pub(crate) const MAX_TRACE_SIZE: u64 = 4 << 30;
const HEADER_SIZE: usize = 24;
const RECORD_SIZE: usize = 40;

/// Why a file is no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuTraceError {
    /// It begins with something else.
    #[error("this is no GPU trace: it does not begin with ELBOWGPU")]
    NotATrace,
    /// Another version of the library wrote it.
    #[error(
        "the trace has version {0}, and this program reads version 1: use the tracing library that came with it"
    )]
    Version(u32),
    /// A record whose size cannot be.
    #[error("the record at byte {0} has an impossible size")]
    Malformed(usize),
}

/// What one record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceRecordKind {
    /// The GPU ran a kernel.
    Kernel,
    /// The GPU copied memory; `value` is bytes.
    Copy,
    /// The GPU set memory; `value` is bytes.
    Set,
    /// The program called a function of the CUDA runtime.
    Runtime,
    /// The program, or the runtime, called a function of the driver.
    Driver,
    /// CUDA translated or loaded code for a call that is not for that, or CUPTI was in the way: `detail` is CUPTI's kind.
    Overhead,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// What it tells.
    pub kind: TraceRecordKind,
    /// Nanoseconds of CUPTI's clock.
    pub begin: u64,
    /// The same; not before `begin`.
    pub end: u64,
    /// By kind.
    pub value: u64,
    /// By kind.
    pub detail: u32,
    /// The thread, of calls and of what holds them up.
    pub thread: u32,
    /// Of a kernel or a function; empty where there is none.
    pub name: String,
}

/// A decoded file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuTrace {
    /// The process that was traced, in its own namespace.
    pub pid: u32,
    /// When tracing began, in nanoseconds of CUPTI's clock.
    pub begin: u64,
    /// When it ended; `None` where the process did not come to that.
    pub end: Option<u64>,
    /// In the order they were written, which is not that of time.
    pub records: Vec<TraceRecord>,
    /// Records for which there was no room, with CUPTI or in the file.
    pub lost: u64,
}

impl GpuTrace {
    /// Decodes a file. One that ends within a record, as that of a killed process does, is what came before. Kinds that are not
    /// known are passed over.
    ///
    /// # Errors
    /// The file is something else, of another version, or has a record of an impossible size.
    pub fn parse(bytes: &[u8]) -> Result<Self, GpuTraceError> {
        if bytes.len() < HEADER_SIZE || bytes[..8] != MAGIC[..] {
            return Err(GpuTraceError::NotATrace);
        }
        let version = read_u32(bytes, 8);
        if version != VERSION {
            return Err(GpuTraceError::Version(version));
        }
        let mut trace = Self { pid: read_u32(bytes, 12), begin: read_u64(bytes, 16), ..Self::default() };
        let mut at = HEADER_SIZE;
        while bytes.len() - at >= RECORD_SIZE {
            let size = read_u32(bytes, at + 4) as usize;
            if size < RECORD_SIZE || !size.is_multiple_of(8) {
                return Err(GpuTraceError::Malformed(at));
            }
            let Some(record) = bytes.get(at..at.saturating_add(size)) else { break };
            trace.push_record(record);
            at += size;
        }
        Ok(trace)
    }

    fn push_record(&mut self, record: &[u8]) {
        let (begin, end, value) = (read_u64(record, 8), read_u64(record, 16), read_u64(record, 24));
        let kind = match read_u32(record, 0) {
            1 => TraceRecordKind::Kernel,
            2 => TraceRecordKind::Copy,
            3 => TraceRecordKind::Set,
            4 => TraceRecordKind::Runtime,
            5 => TraceRecordKind::Driver,
            6 => TraceRecordKind::Overhead,
            7 => {
                self.lost = self.lost.saturating_add(value);
                return;
            }
            8 => {
                self.end = Some(end);
                return;
            }
            _ => return,
        };
        let name = &record[RECORD_SIZE..];
        let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(name.len())];
        self.records.push(TraceRecord {
            kind,
            begin,
            end: end.max(begin),
            value,
            detail: read_u32(record, 32),
            thread: read_u32(record, 36),
            name: String::from_utf8_lossy(name).into_owned(),
        });
    }
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A file as the library writes it.
    pub(in crate::gpu) struct Writer(pub(in crate::gpu) Vec<u8>);

    impl Writer {
        pub(in crate::gpu) fn new(begin: u64) -> Self {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(VERSION.to_le_bytes());
            bytes.extend(77u32.to_le_bytes());
            bytes.extend(begin.to_le_bytes());
            Self(bytes)
        }

        pub(in crate::gpu) fn record(
            &mut self,
            kind: u32,
            span: (u64, u64),
            value: u64,
            thread: u32,
            name: &str,
        ) {
            self.detailed(kind, span, value, 0, thread, name);
        }

        pub(in crate::gpu) fn overhead(&mut self, kind: u32, span: (u64, u64), thread: u32) {
            self.detailed(6, span, 0, kind, thread, "");
        }

        fn detailed(
            &mut self,
            kind: u32,
            span: (u64, u64),
            value: u64,
            detail: u32,
            thread: u32,
            name: &str,
        ) {
            let size = RECORD_SIZE + name.len().next_multiple_of(8);
            let before = self.0.len();
            self.0.extend(kind.to_le_bytes());
            self.0.extend((size as u32).to_le_bytes());
            [span.0, span.1, value].iter().for_each(|n| self.0.extend(n.to_le_bytes()));
            self.0.extend(detail.to_le_bytes());
            self.0.extend(thread.to_le_bytes());
            self.0.extend(name.as_bytes());
            self.0.resize(before + size, 0);
        }
    }

    #[test]
    fn what_was_written_is_read_and_what_is_not_known_is_passed_over() {
        let mut file = Writer::new(5);
        file.record(1, (10, 30), 0, 0, "stencil");
        file.record(99, (1, 2), 3, 4, "of a later version");
        file.record(4, (8, 9), 0, 3, "cudaMalloc");
        file.record(7, (0, 0), 12, 0, "");
        file.record(8, (0, 50), 0, 0, "");
        let trace = GpuTrace::parse(&file.0).unwrap();
        assert_eq!((trace.pid, trace.begin, trace.end, trace.lost), (77, 5, Some(50), 12));
        let names: Vec<(&str, TraceRecordKind)> =
            trace.records.iter().map(|r| (r.name.as_str(), r.kind)).collect();
        assert_eq!(names, [("stencil", TraceRecordKind::Kernel), ("cudaMalloc", TraceRecordKind::Runtime)]);
    }

    #[test]
    fn what_a_killed_process_left_is_what_came_before() {
        let mut file = Writer::new(5);
        file.record(1, (10, 30), 0, 0, "whole");
        let whole = file.0.len();
        file.record(1, (30, 40), 0, 0, "cut off");
        for end in whole..file.0.len() {
            let trace = GpuTrace::parse(&file.0[..end]).unwrap();
            assert_eq!((trace.records.len(), trace.end), (1, None), "{end}");
        }
    }

    #[test]
    fn the_library_writes_no_larger_file_than_is_read() {
        let header = include_str!("../../../../gpu/trace.h");
        let largest = header.lines().find_map(|line| line.strip_prefix("#define ELBOWROOM_GPU_LARGEST "));
        assert_eq!((largest, MAX_TRACE_SIZE), (Some("(4ULL << 30)"), 4 << 30));
    }

    #[test]
    fn other_files_are_refused_on_one_line() {
        let mut other = Writer::new(0);
        other.0[8] = 2;
        let mut endless = Writer::new(0);
        endless.record(1, (1, 2), 0, 0, "");
        endless.0[HEADER_SIZE + 4] = 0;
        let cases = [(b"\x7fELF".to_vec(), "no GPU trace"), (other.0, "version 2"), (endless.0, "byte 24")];
        for (bytes, reason) in cases {
            let error = GpuTrace::parse(&bytes).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains('\n'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut file = Writer::new(0).0;
            file.extend(bytes);
            if let Ok(trace) = GpuTrace::parse(&file) {
                prop_assert!(trace.records.iter().all(|record| record.begin <= record.end));
            }
        }
    }
}
