//! Records of a perf ring buffer (`include/uapi/linux/perf_event.h`, perf_event_open(2)), as [`super::Sampler`] asks for them:
//! samples with IP, TID, TIME and CALLCHAIN, everything else with TID and TIME at its end.
//!
//! The kernel writes them, and parts of them are names that any user chose; what does not fit its length is no record.

/// A record with a use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PerfRecord {
    /// A CPU was here.
    Sample {
        /// Process.
        pid: u32,
        /// Innermost first, with the kernel's markers of what follows: [`CONTEXT_KERNEL`], [`CONTEXT_USER`].
        chain: Vec<u64>,
    },
    /// A process mapped a file to run it.
    Mmap(ExecMapping),
    /// A process has a new name; by exec if `exec`, and then an empty address space.
    Comm {
        /// Process.
        pid: u32,
        /// Thread.
        tid: u32,
        /// `comm`.
        name: String,
        /// Whether it is another program now.
        exec: bool,
    },
    /// A process or a thread began.
    Fork {
        /// Process.
        pid: u32,
        /// The process it comes from; the same for a thread.
        parent: u32,
    },
    /// The buffer was full.
    Lost(u64),
}

/// A file that is mapped to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecMapping {
    /// Process.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// Behind the last one.
    pub end: u64,
    /// What of the file is at `start`.
    pub offset: u64,
    /// The file's path, as the process sees it.
    pub path: String,
    /// What its linker called this build; empty where the kernel did not say.
    pub build_id: Vec<u8>,
}

/// What follows in a chain is the kernel's (`PERF_CONTEXT_KERNEL`).
pub(crate) const CONTEXT_KERNEL: u64 = -128i64 as u64;
/// What follows is the program's (`PERF_CONTEXT_USER`).
pub(crate) const CONTEXT_USER: u64 = -512i64 as u64;
/// Addresses from here on are markers (`PERF_CONTEXT_MAX`).
pub(crate) const CONTEXT_MAX: u64 = -4095i64 as u64;

const LOST: u32 = 2;
const COMM: u32 = 3;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
/// `PERF_RECORD_MISC_COMM_EXEC`.
const MISC_EXEC: u16 = 1 << 13;
/// `PERF_RECORD_MISC_MMAP_BUILD_ID`.
const MISC_BUILD_ID: u16 = 1 << 14;
/// `perf_event_header`.
const HEADER: usize = 8;
/// TID and TIME behind what is no sample.
const TRAILER: usize = 16;
/// `PROT_EXEC`.
const PROT_EXEC: u32 = 4;

/// The record that `bytes` begin with, when it happened (ns), and how long it is; `None` at their end or at what cannot be one.
/// A record without a use is `Some((None, ..))`.
pub fn next(bytes: &[u8]) -> Option<(Option<(u64, PerfRecord)>, usize)> {
    let head = bytes.get(..HEADER)?;
    let kind = u32_at(head, 0)?;
    let misc = u16::from_ne_bytes([head[4], head[5]]);
    let size = usize::from(u16::from_ne_bytes([head[6], head[7]]));
    if size < HEADER {
        return None;
    }
    let body = bytes.get(HEADER..size)?;
    Some((parse(kind, misc, body), size))
}

fn parse(kind: u32, misc: u16, body: &[u8]) -> Option<(u64, PerfRecord)> {
    if kind == SAMPLE {
        // IP is the chain's first address again.
        let (pid, time, count) = (u32_at(body, 8)?, u64_at(body, 16)?, u64_at(body, 24)?);
        let chain = body.get(32..)?.get(..usize::try_from(count).ok()?.checked_mul(8)?)?;
        let chain = chain.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        return Some((time, PerfRecord::Sample { pid, chain }));
    }
    let end = body.len().checked_sub(TRAILER)?;
    let (time, own) = (u64_at(body, end + 8)?, &body[..end]);
    let record = match kind {
        LOST => PerfRecord::Lost(u64_at(own, 8)?),
        COMM => PerfRecord::Comm {
            pid: u32_at(own, 0)?,
            tid: u32_at(own, 4)?,
            name: text(own.get(8..)?),
            exec: misc & MISC_EXEC != 0,
        },
        FORK => PerfRecord::Fork { pid: u32_at(own, 0)?, parent: u32_at(own, 4)? },
        MMAP2 if u32_at(own, 56)? & PROT_EXEC != 0 => {
            let (start, length) = (u64_at(own, 8)?, u64_at(own, 16)?);
            let build_id = match misc & MISC_BUILD_ID != 0 {
                true => own.get(36..36 + usize::from(own[32]).min(20))?.to_vec(),
                false => Vec::new(),
            };
            PerfRecord::Mmap(ExecMapping {
                pid: u32_at(own, 0)?,
                start,
                end: start.checked_add(length)?,
                offset: u64_at(own, 24)?,
                path: text(own.get(64..)?),
                build_id,
            })
        }
        _ => return None,
    };
    Some((time, record))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(((HEADER + body.len()) as u16).to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn words32(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn words64(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// TID and TIME.
    fn trailer(time: u64) -> Vec<u8> {
        [words32(&[7, 7]), words64(&[time])].concat()
    }

    #[test]
    fn a_sample_has_its_chain() {
        let body = [words64(&[0x10]), words32(&[7, 8]), words64(&[99, 3, CONTEXT_USER, 0x10, 0x20])].concat();
        let (parsed, size) = next(&record(SAMPLE, 0, &body)).unwrap();
        let chain = vec![CONTEXT_USER, 0x10, 0x20];
        assert_eq!((parsed, size), (Some((99, PerfRecord::Sample { pid: 7, chain })), 8 + body.len()));
    }

    #[test]
    fn a_mapping_has_its_file_and_its_build() {
        let mut body = [words32(&[7, 7]), words64(&[0x1000, 0x500, 0x200])].concat();
        body.extend([20, 0, 0, 0]);
        body.extend([0xab; 20]);
        body.extend(words32(&[5, 2]));
        body.extend(b"/usr/sbin/runc\0\0");
        body.extend(trailer(5));
        let Some((Some((5, PerfRecord::Mmap(map))), _)) = next(&record(MMAP2, MISC_BUILD_ID, &body)) else {
            panic!("no mapping")
        };
        assert_eq!((map.start, map.end, map.offset), (0x1000, 0x1500, 0x200));
        assert_eq!((map.path.as_str(), map.build_id), ("/usr/sbin/runc", vec![0xab; 20]));
        body[56] = 1;
        assert_eq!(next(&record(MMAP2, 0, &body)).unwrap().0, None, "what is not run is of no use");
    }

    #[test]
    fn an_exec_is_told_from_a_new_name() {
        let body = [words32(&[7, 9]), b"runc\0\0\0\0".to_vec(), trailer(6)].concat();
        for (misc, exec) in [(MISC_EXEC, true), (0, false)] {
            let expect = PerfRecord::Comm { pid: 7, tid: 9, name: "runc".into(), exec };
            assert_eq!(next(&record(COMM, misc, &body)).unwrap().0, Some((6, expect)));
        }
    }

    proptest! {
        #[test]
        fn damage_is_no_record_and_no_panic(kind in 0u32..12, misc: u16, body in prop::collection::vec(any::<u8>(), 0..120)) {
            let bytes = record(kind, misc, &body);
            let (_, size) = next(&bytes).expect("it is as long as it says");
            prop_assert_eq!(size, bytes.len());
            prop_assert!(next(&bytes[..bytes.len() - 1]).is_none());
        }
    }
}
