//! Readers: five ways to get at the bytes of a view file, and what those bytes must say.

use super::policy::memory_of;
use rustix::fs::{Advice, Mode, OFlags, fadvise};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `open`, `read`, `close`.
    Open,
    /// `pread` of a descriptor held open.
    Held,
    /// A copy out of a new shared mapping of a descriptor held open.
    Mmap,
    /// `sendfile` into a pipe.
    Sendfile,
    /// `splice` into a pipe.
    Splice,
}

pub const EVERY_WAY: [How; 5] = [How::Open, How::Held, How::Mmap, How::Sendfile, How::Splice];

pub struct Reader {
    how: How,
    path: PathBuf,
    held: File,
    pipe: Option<(File, File)>,
}

impl Reader {
    pub fn new(how: How, path: &Path) -> io::Result<Self> {
        let pipe = match how {
            How::Sendfile | How::Splice => {
                let (read, write) = rustix::pipe::pipe()?;
                Some((File::from(read), File::from(write)))
            }
            _ => None,
        };
        Ok(Self { how, path: path.to_owned(), held: File::open(path)?, pipe })
    }

    /// Drops the file's cached pages, so that the next read goes to the view server.
    pub fn forget_cached(&self) {
        let _ = fadvise(&self.held, 0, None, Advice::DontNeed);
    }

    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 4096];
        let got = match self.how {
            How::Open => {
                let file = rustix::fs::open(&self.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                rustix::io::read(&file, &mut buffer)?
            }
            How::Held => self.held.read_at(&mut buffer, 0)?,
            How::Mmap => {
                let len = self.held.metadata()?.len() as usize;
                // SAFETY: a new read-only mapping somewhere; it is copied from and unmapped before anything else.
                // What the file's pages say may change meanwhile, which a byte copy of foreign memory can live with.
                unsafe {
                    let at = rustix::mm::mmap(
                        std::ptr::null_mut(),
                        len,
                        ProtFlags::READ,
                        MapFlags::SHARED,
                        &self.held,
                        0,
                    )?;
                    std::ptr::copy_nonoverlapping(at.cast::<u8>(), buffer.as_mut_ptr(), len);
                    rustix::mm::munmap(at, len)?;
                }
                len
            }
            How::Sendfile | How::Splice => {
                let (from_pipe, to_pipe) = self.pipe.as_mut().expect("these ways have a pipe");
                let mut offset = 0;
                let sent = if self.how == How::Sendfile {
                    rustix::fs::sendfile(&*to_pipe, &self.held, Some(&mut offset), 4096)?
                } else {
                    let flags = rustix::pipe::SpliceFlags::empty();
                    rustix::pipe::splice(&self.held, Some(&mut offset), &*to_pipe, None, 4096, flags)?
                };
                from_pipe.read_exact(&mut buffer[..sent])?;
                sent
            }
        };
        buffer.truncate(got);
        Ok(buffer)
    }
}

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Two versions, or not the text at all.
    Torn(String),
    /// Another container's numbers.
    OfContainer(usize),
}

/// Looks at a `meminfo` of a container; returns its version.
pub fn check_meminfo(text: &[u8], container: usize) -> Result<u64, Wrong> {
    let text = String::from_utf8_lossy(text);
    let torn = || Wrong::Torn(text.chars().take(200).collect());
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let total = value("MemTotal:").ok_or_else(torn)?;
    if total != memory_of(container).as_kib() {
        return match (total / 1024).checked_sub(1024) {
            Some(other) if total.is_multiple_of(1024) && other < 4096 => {
                Err(Wrong::OfContainer(other as usize))
            }
            _ => Err(torn()),
        };
    }
    let versions = ["Active(anon):", "AnonPages:", "PageTables:"].map(value);
    match versions {
        [Some(a), Some(b), Some(c)] if a == b && b == c && !text.contains('\0') && text.ends_with('\n') => {
            Ok(a)
        }
        _ => Err(torn()),
    }
}
