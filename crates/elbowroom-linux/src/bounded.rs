//! Reads of bytes that another program wrote.
//!
//! Problem: a container chooses how long its mount table, its command lines and its files are. A read to the end takes as much memory
//! as it likes, in a process that every container needs.
//!
//! Approach: every read has a limit and ends at it, before more memory is taken. What is longer is an error that says so, or, where
//! its beginning is all that is wanted, is cut. `tools/house` refuses reads without a limit everywhere but here.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Output};

/// The most bytes of a file of procfs, sysfs or cgroupfs, and of an engine's state file: those have a few MiB at most.
pub const KERNEL_FILE: u64 = 16 << 20;
/// The most bytes of a file that an administrator writes, and of the few lines that a program keeps for itself.
pub const SETTINGS_FILE: u64 = 1 << 20;

/// All that comes, which is at most `most` bytes.
///
/// # Errors
/// As read(2); `FileTooLarge` where more comes.
pub fn bytes(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let bytes = beginning(from, most.saturating_add(1))?;
    if bytes.len() as u64 > most { Err(too_long(most)) } else { Ok(bytes) }
}

/// The same as text.
///
/// # Errors
/// As [`bytes`]; `InvalidData` for what is not UTF-8.
pub fn text(from: impl Read, most: u64) -> io::Result<String> {
    String::from_utf8(bytes(from, most)?).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// A whole file of at most `most` bytes.
///
/// # Errors
/// As open(2) and [`bytes`].
pub fn file(path: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
    bytes(File::open(path)?, most)
}

/// The same as text.
///
/// # Errors
/// As open(2) and [`text`].
pub fn file_text(path: impl AsRef<Path>, most: u64) -> io::Result<String> {
    text(File::open(path)?, most)
}

/// The first `most` bytes that come, and no more of them.
///
/// # Errors
/// As read(2).
pub fn beginning(from: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    append(from, most, &mut bytes)?;
    Ok(bytes)
}

/// Adds the first `most` bytes that come to `kept`.
///
/// # Errors
/// As read(2).
pub fn append(from: impl Read, most: u64, kept: &mut Vec<u8>) -> io::Result<()> {
    from.take(most).read_to_end(kept).map(drop)
}

/// Reads `count` bytes and forgets them; how many came.
///
/// # Errors
/// As read(2).
pub fn skip(from: impl Read, count: u64) -> io::Result<u64> {
    io::copy(&mut from.take(count), &mut io::sink())
}

/// What a process whose output is piped says until its end: all of its standard output, and the beginning of its errors. One that
/// says more than `most` bytes finds its pipe closed.
///
/// # Errors
/// As wait(2) and [`bytes`].
pub fn output(mut child: Child, most: u64) -> io::Result<Output> {
    let (said, errors) = (child.stdout.take(), child.stderr.take());
    let errors = errors.map(|errors| std::thread::spawn(move || beginning(errors, most)));
    let stdout = said.map_or(Ok(Vec::new()), |said| bytes(said, most));
    let status = child.wait()?;
    let stderr = errors.map(|errors| errors.join().expect("reading does not panic")).transpose()?;
    let stderr = stderr.unwrap_or_default();
    Ok(Output { status, stdout: stdout?, stderr })
}

/// Reads lines of bounded length.
#[derive(Debug)]
pub struct LineReader<R> {
    from: BufReader<R>,
    most: u64,
}

impl<R: Read> LineReader<R> {
    /// Lines of `from`, each at most `most` bytes with its end.
    pub fn new(from: R, most: u64) -> Self {
        Self { from: BufReader::new(from), most }
    }

    /// The source, past what was read ahead.
    pub fn get_mut(&mut self) -> &mut R {
        self.from.get_mut()
    }

    /// Puts the next line into `line`, with its newline where it has one; false at the end.
    ///
    /// # Errors
    /// As read(2); `FileTooLarge` for a line that is longer.
    pub fn next_line(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        line.clear();
        let got = (&mut self.from).take(self.most).read_until(b'\n', line)?;
        match got as u64 == self.most && line.last() != Some(&b'\n') {
            true => Err(too_long(self.most)),
            false => Ok(got > 0),
        }
    }
}

/// What follows the lines that were read.
impl<R: Read> Read for LineReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.from.read(buffer)
    }
}

fn too_long(most: u64) -> io::Error {
    io::Error::new(ErrorKind::FileTooLarge, format!("longer than {most} bytes, the most that is read"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// A source without an end that says how much of it was taken.
    struct Endless(u64);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            buffer.fill(b'x');
            self.0 += buffer.len() as u64;
            Ok(buffer.len())
        }
    }

    #[test]
    fn a_read_ends_at_its_limit() {
        for (length, most, kept) in [(0, 0, true), (9, 10, true), (10, 10, true), (11, 10, false)] {
            let read = bytes(&vec![b'x'; length][..], most);
            assert_eq!(read.as_ref().map(Vec::len).ok(), kept.then_some(length), "{length} of {most}");
            if let Err(error) = read {
                assert_eq!(error.kind(), ErrorKind::FileTooLarge);
                assert_eq!(error.to_string(), "longer than 10 bytes, the most that is read");
            }
        }
        let mut source = Endless(0);
        assert!(bytes(&mut source, 1000).is_err());
        assert!(source.0 <= 1001, "{}", source.0);
        assert_eq!(beginning(Endless(0), 7).unwrap(), b"xxxxxxx");
        assert_eq!(text(&b"\xff"[..], 9).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_and_one_that_just_fits_is_not() {
        let mut lines = LineReader::new(&b"1234\n\n12345\n"[..], 5);
        let mut line = Vec::new();
        for expect in [&b"1234\n"[..], b"\n"] {
            assert!(lines.next_line(&mut line).unwrap());
            assert_eq!(line, expect);
        }
        assert_eq!(lines.next_line(&mut line).unwrap_err().kind(), ErrorKind::FileTooLarge);
        let mut lines = LineReader::new(&b"1234"[..], 5);
        assert!(lines.next_line(&mut line).unwrap() && line == b"1234");
        assert!(!lines.next_line(&mut line).unwrap());
        let mut source = Endless(0);
        assert!(LineReader::new(&mut source, 100_000).next_line(&mut line).is_err());
        assert!(source.0 < 200_000, "{}", source.0);
    }

    #[test]
    fn a_process_that_says_too_much_is_refused_and_ends() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let said = output(start("echo well; echo ill >&2"), 100).unwrap();
        assert_eq!((&said.stdout[..], &said.stderr[..]), (&b"well\n"[..], &b"ill\n"[..]));
        assert_eq!(output(start("exec yes"), 100).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(output(start("exec yes >&2"), 100).unwrap().stderr.len(), 100);
    }
}
