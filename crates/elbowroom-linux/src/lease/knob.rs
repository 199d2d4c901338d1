//! One value in a cgroup file: where it is, how it is read, how it is written.

use crate::cgroup::{CgroupDir, is_cgroup, v1};
use crate::parse::{Malformed, malformed, number};
use elbowroom_types::id::DeviceNumber;
use elbowroom_types::unit::Limit;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// One limit in a cgroup file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CgroupKnob {
    /// The cgroup's directory.
    pub dir: PathBuf,
    /// The directory's inode, which is the cgroup's own: another cgroup that has its path now has another one.
    pub inode: u64,
    /// The file in it.
    pub file: String,
    /// Which of the file's values; `None` where it has only one.
    pub key: Option<KnobKey>,
    /// How the file says that there is no limit.
    pub unset: UnsetValue,
}

/// Which value of a file with many.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KnobKey {
    /// The line: `MAJOR:MINOR` at its beginning.
    pub device: DeviceNumber,
    /// The `field=value` in that line (`io.max`); `None` where the line holds one value.
    pub field: Option<String>,
}

/// How a file spells that there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnsetValue {
    /// `0`: `blkio.throttle.*` (block/blk-throttle.c, `tg_set_conf`).
    Zero,
    /// `max`: cgroup v2 limits.
    Max,
    /// `default`: weights.
    Default,
    /// `-1`: v1 `memory.*limit_in_bytes`, which reads as the largest number of whole pages
    /// (mm/memcontrol-v1.c, `mem_cgroup_write`).
    MinusOne,
}

/// Why a knob could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KnobError {
    /// The cgroup is gone, or another one has its path.
    #[error("the cgroup is gone")]
    Gone,
    /// The kernel has no such file, or refused.
    #[error("{0}")]
    Refused(Errno),
    /// The file does not keep its format.
    #[error("{0}")]
    Malformed(Malformed),
}

/// What a lease may be on: limits and weights. Another file, such as `cgroup.freeze`, is one that a forged record names.
const LEASED_FILES: [&str; 15] = [
    "io.max",
    "io.weight",
    "io.bfq.weight",
    "blkio.bfq.weight_device",
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
    "memory.max",
    "memory.high",
    "memory.low",
    "memory.min",
    "memory.limit_in_bytes",
    "memory.soft_limit_in_bytes",
    "memory.swappiness",
];

/// Longest file that is read: `io.max` of a machine with a few thousand disks.
const MAX_FILE_BYTES: usize = 1 << 18;

impl CgroupKnob {
    /// A knob in a cgroup that is there; `None` where it is not.
    pub fn new(dir: &CgroupDir<'_>, file: &str, key: Option<KnobKey>, unset: UnsetValue) -> Option<Self> {
        Some(Self { dir: dir.path(), inode: dir.inode()?, file: file.to_owned(), key, unset })
    }

    /// The value in force. A value that is not in the file is no limit.
    ///
    /// # Errors
    /// See [`KnobError`].
    pub fn read(&self) -> Result<Limit<u64>, KnobError> {
        let file = self.open(OFlags::RDONLY)?;
        let mut bytes = vec![0; 4096];
        let mut length = 0;
        // A seq_file gives at most a page per read.
        loop {
            match rustix::io::read(&file, &mut bytes[length..]) {
                Ok(0) => break,
                Ok(n) => length += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.error_of(errno)),
            }
            if length == MAX_FILE_BYTES {
                return Err(KnobError::Refused(Errno::FBIG));
            }
            if length == bytes.len() {
                bytes.resize(2 * length, 0);
            }
        }
        self.parse_value(&String::from_utf8_lossy(&bytes[..length])).map_err(KnobError::Malformed)
    }

    /// Writes the value, and leaves every other value of the file alone.
    ///
    /// # Errors
    /// See [`KnobError`].
    pub fn write(&self, value: Limit<u64>) -> Result<(), KnobError> {
        // A cgroup file is not truncated by O_TRUNC; it is there for files that stand for one in tests.
        self.write_with(value, OFlags::TRUNC, |file, line| {
            loop {
                match rustix::io::write(file, line) {
                    Ok(n) if n == line.len() => return Ok(()),
                    // One write is one value: a part of it was taken for another value.
                    Ok(_) => return Err(Errno::IO),
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
        })
    }

    /// As [`Self::write`], with `write` to bring the line into the open file.
    pub(crate) fn write_with(
        &self,
        value: Limit<u64>,
        flags: OFlags,
        write: impl FnOnce(&OwnedFd, &[u8]) -> Result<(), Errno>,
    ) -> Result<(), KnobError> {
        let file = self.open(OFlags::WRONLY | flags)?;
        write(&file, self.format_line(value).as_bytes()).map_err(|errno| self.error_of(errno))
    }

    /// Whether the knob could be one: what a file of the ledger says is not believed.
    pub(super) fn is_plausible(&self) -> bool {
        let word = |text: &str| {
            !text.is_empty()
                && text.len() <= 64
                && !text.starts_with('.')
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        let field = self.key.as_ref().and_then(|key| key.field.as_deref());
        self.dir.is_absolute() && LEASED_FILES.contains(&self.file.as_str()) && field.is_none_or(word)
    }

    /// The value that the file's text holds.
    pub fn parse_value(&self, text: &str) -> Result<Limit<u64>, Malformed> {
        let Some(key) = &self.key else {
            let line = text.strip_suffix('\n').unwrap_or(text);
            return self.parse_number(line, line);
        };
        let device = key.device.to_string();
        let mut lines = text.lines().filter_map(|line| Some((line, line.split_once(' ')?)));
        let Some((line, (_, rest))) = lines.find(|(_, (first, _))| *first == device) else {
            return Ok(Limit::Max);
        };
        let Some(field) = &key.field else { return self.parse_number(rest, line) };
        let mut fields = rest.split(' ').filter_map(|word| word.split_once('='));
        match fields.find(|(name, _)| name == field) {
            Some((_, value)) => self.parse_number(value, line),
            None => Err(malformed(line, "a line with the limit that was asked for")),
        }
    }

    /// The file's text with another value in it.
    pub(super) fn with_value(&self, text: &str, value: Limit<u64>) -> String {
        let spelled = match (value, self.unset) {
            (Limit::At(n), _) => n.to_string(),
            (Limit::Max, UnsetValue::MinusOne) => {
                (i64::MAX as u64 & !(rustix::param::page_size() as u64 - 1)).to_string()
            }
            (Limit::Max, unset) => unset.spelling().to_owned(),
        };
        let Some(key) = &self.key else { return spelled + "\n" };
        let device = key.device.to_string();
        let mut all = String::new();
        for line in text.lines() {
            let line = match (line.split_once(' '), &key.field) {
                (Some((first, rest)), Some(field)) if first == device => {
                    let words = rest.split(' ').map(|word| match word.split_once('=') {
                        Some((name, _)) if name == field => format!("{name}={spelled}"),
                        _ => word.to_owned(),
                    });
                    let words: Vec<String> = words.collect();
                    // The kernel has no line for a disk without limits, or without a weight of its own.
                    if words.iter().all(|word| word.ends_with("=max")) {
                        continue;
                    }
                    format!("{device} {}", words.join(" "))
                }
                (Some((first, _)), None) if first == device => match value {
                    Limit::Max => continue,
                    Limit::At(_) => format!("{device} {spelled}"),
                },
                _ => line.to_owned(),
            };
            all += &line;
            all.push('\n');
        }
        all
    }

    fn parse_number(&self, text: &str, line: &str) -> Result<Limit<u64>, Malformed> {
        if text == self.unset.spelling() {
            return Ok(Limit::Max);
        }
        match number(text, line, "a limit")? {
            n if self.unset == UnsetValue::MinusOne && n >= v1::NO_LIMIT => Ok(Limit::Max),
            n => Ok(Limit::At(n)),
        }
    }

    /// What is written to the file.
    pub(crate) fn format_line(&self, value: Limit<u64>) -> String {
        let value = match value {
            Limit::Max => self.unset.spelling().to_owned(),
            Limit::At(n) => n.to_string(),
        };
        match &self.key {
            None => value,
            Some(KnobKey { device, field: None }) => format!("{device} {value}"),
            Some(KnobKey { device, field: Some(field) }) => format!("{device} {field}={value}"),
        }
    }

    /// Opens the file, if the directory at the path still is the cgroup.
    fn open(&self, flags: OFlags) -> Result<OwnedFd, KnobError> {
        let dir = self.open_dir()?;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&dir, self.file.as_str(), flags, Mode::empty())
            .map_err(|errno| self.error_of(errno))
    }

    fn open_dir(&self) -> Result<OwnedFd, KnobError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(&self.dir, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(KnobError::Gone),
            Err(errno) => return Err(KnobError::Refused(errno)),
        };
        let stat = rustix::fs::fstat(&dir).map_err(KnobError::Refused)?;
        match stat.st_ino == self.inode && is_cgroup(&dir).map_err(KnobError::Refused)? {
            true => Ok(dir),
            false => Err(KnobError::Gone),
        }
    }

    /// What an errno means: `ENOENT` and `ENODEV` are what a removed cgroup answers, but also what one that is there
    /// answers about a file or a disk that is not.
    fn error_of(&self, errno: Errno) -> KnobError {
        let there = || {
            let dir = self.open_dir().ok()?;
            rustix::fs::statat(&dir, "cgroup.procs", AtFlags::empty()).ok()
        };
        match errno {
            Errno::NOENT | Errno::NODEV if there().is_none() => KnobError::Gone,
            errno => KnobError::Refused(errno),
        }
    }
}

impl UnsetValue {
    const fn spelling(self) -> &'static str {
        match self {
            Self::Zero => "0",
            Self::Max => "max",
            Self::Default => "default",
            Self::MinusOne => "-1",
        }
    }
}

impl fmt::Display for CgroupKnob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dir.join(&self.file).display())?;
        match &self.key {
            None => Ok(()),
            Some(KnobKey { device, field: None }) => write!(f, " {device}"),
            Some(KnobKey { device, field: Some(field) }) => write!(f, " {device} {field}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom_types::unit::Limit::{At, Max};

    fn knob(key: Option<(&str, Option<&str>)>, unset: UnsetValue) -> CgroupKnob {
        let key = key.map(|(device, field)| KnobKey {
            device: device.parse().unwrap(),
            field: field.map(str::to_owned),
        });
        CgroupKnob { dir: "/cg/a".into(), inode: 7, file: "io.max".into(), key, unset }
    }

    #[test]
    fn each_kind_of_file_is_read_and_written_in_its_own_words() {
        let v1 = knob(Some(("254:0", None)), UnsetValue::Zero);
        let io_max = knob(Some(("8:16", Some("wbps"))), UnsetValue::Max);
        let weight = knob(Some(("8:16", None)), UnsetValue::Default);
        let high = knob(None, UnsetValue::Max);
        let v1_memory = knob(None, UnsetValue::MinusOne);
        for (knob, text, value, line) in [
            (&v1, "", Max, "254:0 0"),
            (&v1, "25:0 1\n254:0 1048576\n254:1 2\n", At(1 << 20), "254:0 1048576"),
            (&v1, "254:0 0\n", Max, "254:0 0"),
            (&io_max, "", Max, "8:16 wbps=max"),
            (&io_max, "8:1 rbps=1 wbps=2\n8:16 rbps=5 wbps=7 riops=max wiops=max\n", At(7), "8:16 wbps=7"),
            (&io_max, "8:16 rbps=5 wbps=max riops=max wiops=max\n", Max, "8:16 wbps=max"),
            (&weight, "default 100\n", Max, "8:16 default"),
            (&weight, "default 100\n8:16 250\n", At(250), "8:16 250"),
            (&high, "max\n", Max, "max"),
            (&v1_memory, "9223372036854771712\n", Max, "-1"),
            (&v1_memory, "4096\n", At(4096), "4096"),
            (&high, "4096\n", At(4096), "4096"),
        ] {
            assert_eq!(knob.parse_value(text), Ok(value), "{text:?}");
            assert_eq!(knob.format_line(value), line);
        }
        for (knob, text) in [
            (&v1, "254:0 fast\n"),
            (&v1, "254:0 \n"),
            (&v1, "254:0 -1\n"),
            (&io_max, "8:16 rbps=5\n"),
            (&io_max, "8:16 wbps=\n"),
            (&high, ""),
            (&high, "1\n2\n"),
        ] {
            assert!(knob.parse_value(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_text_with_another_value_is_what_the_kernel_would_say() {
        let v1 = knob(Some(("254:0", None)), UnsetValue::Zero);
        let io_max = knob(Some(("8:16", Some("wbps"))), UnsetValue::Max);
        let weight = knob(Some(("8:16", None)), UnsetValue::Default);
        for (knob, text, value, expect) in [
            (&v1, "25:0 1\n254:0 1048576\n254:1 2\n", Max, "25:0 1\n254:1 2\n"),
            (&v1, "254:0 1048576\n", At(7), "254:0 7\n"),
            (
                &io_max,
                "8:1 rbps=1 wbps=2\n8:16 rbps=5 wbps=7\n",
                Max,
                "8:1 rbps=1 wbps=2\n8:16 rbps=5 wbps=max\n",
            ),
            (&io_max, "8:16 rbps=max wbps=7\n", Max, ""),
            (&weight, "default 100\n8:16 250\n", Max, "default 100\n"),
            (&knob(None, UnsetValue::Max), "4096\n", Max, "max\n"),
            (&knob(None, UnsetValue::Max), "4096\n", At(0), "0\n"),
        ] {
            assert_eq!(knob.with_value(text, value), expect, "{text:?}");
            assert_eq!(knob.parse_value(expect), Ok(value));
        }
        let v1_memory = knob(None, UnsetValue::MinusOne);
        assert_eq!(v1_memory.parse_value(&v1_memory.with_value("4096\n", Max)), Ok(Max));
    }

    #[test]
    fn only_plain_names_are_plausible() {
        assert!(knob(Some(("8:0", Some("rbps"))), UnsetValue::Max).is_plausible());
        for file in ["", ".", "..", "cgroup.freeze", "cgroup.kill", "memory.reclaim", "../io.max", "io.max\n"]
        {
            assert!(
                !CgroupKnob { file: file.to_owned(), ..knob(None, UnsetValue::Max) }.is_plausible(),
                "{file:?}"
            );
        }
        assert!(!knob(Some(("8:0", Some("rbps=1 wbps"))), UnsetValue::Max).is_plausible());
        assert!(!CgroupKnob { dir: "cg/a".into(), ..knob(None, UnsetValue::Max) }.is_plausible());
    }
}
