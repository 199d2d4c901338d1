//! The log: lines on standard error, for a terminal or a service manager.
//!
//! Problem: a process that writes to a pipe that is not emptied waits, and with it everything it was about to do. A service manager that
//! hangs would hold up every decision of the agent.
//!
//! Approach: a line is written where there is room for it now or in a moment. Where there is none it is dropped and counted, and
//! the next line that is written says before it how many are missing.

use elbowroom_types::visible::write_log_field;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{IsTerminal, Result, Write, stderr};
use std::os::fd::AsFd;
use std::sync::Mutex;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::debug_fn;

/// What a pipe that says it has room takes without waiting: a page.
const CHUNK_BYTES: usize = 4096;
/// How long a reader that was in time so far is waited for.
const WRITE_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Begins it: information, with 1 what helps to find bugs, with more everything.
pub fn init(verbose: u8) {
    use tracing::Level;
    let level = match verbose {
        0 => Level::INFO,
        1 => Level::DEBUG,
        _ => Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(Mutex::new(LogWriter::new(stderr())))
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        // They are told by `eprintln!`, which panics where no program reads standard error.
        .log_internal_errors(false)
        // Fields hold text of others: names, labels, what programs said.
        .fmt_fields(
            debug_fn(|writer, field, value| write_log_field(writer, field.name(), value)).delimited(" "),
        )
        .init();
}

/// Writes lines, one a call, and does not wait.
#[derive(Debug)]
struct LogWriter<W> {
    to: W,
    /// How many were dropped since the last that was written.
    dropped: u64,
    /// The last of these began.
    truncated: bool,
}

impl<W: Write + AsFd> LogWriter<W> {
    fn new(to: W) -> Self {
        Self { to, dropped: 0, truncated: false }
    }

    fn has_room(&self) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let patience = if self.dropped == 0 { WRITE_TIMEOUT } else { none };
        // What cannot be asked is written to: a reader that went away is an error, not a wait.
        !matches!(poll(&mut [PollFd::new(&self.to, PollFlags::OUT)], Some(&patience)), Ok(0))
    }

    fn write_chunks(&mut self, line: &[u8]) -> Result<bool> {
        for (n, part) in line.chunks(CHUNK_BYTES).enumerate() {
            if !self.has_room() {
                self.truncated |= n > 0;
                return Ok(false);
            }
            self.to.write_all(part)?;
        }
        Ok(true)
    }
}

impl<W: Write + AsFd> Write for LogWriter<W> {
    fn write(&mut self, line: &[u8]) -> Result<usize> {
        if self.dropped > 0 {
            let begun = if self.truncated { "...\n" } else { "" };
            let told =
                format!("{begun}{} lines of the log are missing: no program read them\n", self.dropped);
            if self.write_chunks(told.as_bytes())? {
                (self.dropped, self.truncated) = (0, false);
            }
        }
        if self.dropped > 0 || !self.write_chunks(line)? {
            self.dropped += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn no_writer_waits_for_a_reader_that_hangs_and_the_reader_hears_how_much_it_missed() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        let (mut from, mut lines) = (File::from(from), LogWriter::new(File::from(to)));
        let line = format!("{}\n", "x".repeat(999));
        for _ in 0..1000 {
            lines.write_all(line.as_bytes()).unwrap();
        }
        let written = 1000 - lines.dropped as usize;
        assert!((1..1000).contains(&written), "{written}: a pipe takes some");

        let mut read = vec![0; written * line.len()];
        from.read_exact(&mut read).unwrap();
        assert_eq!(read, line.repeat(written).into_bytes());
        lines.write_all(b"again\n").unwrap();
        drop(lines);
        let mut rest = String::new();
        from.read_to_string(&mut rest).unwrap();
        assert_eq!(
            rest,
            format!("{} lines of the log are missing: no program read them\nagain\n", 1000 - written)
        );
    }

    #[test]
    fn a_line_that_is_cut_ends_before_the_next() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        let (mut from, mut lines) = (File::from(from), LogWriter::new(File::from(to)));
        lines.write_all(&vec![b'x'; 1 << 20]).unwrap();
        let mut read = vec![0; 1 << 20];
        let n = from.read(&mut read).unwrap();
        assert!(n > 0 && read[..n].iter().all(|byte| *byte == b'x'));
        lines.write_all(b"next\n").unwrap();
        drop(lines);
        let mut rest = String::new();
        from.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "...\n1 lines of the log are missing: no program read them\nnext\n");
    }

    #[test]
    fn a_reader_that_is_gone_is_an_error() {
        let (from, to) = rustix::pipe::pipe().unwrap();
        drop(from);
        let error = LogWriter::new(File::from(to)).write_all(b"line\n").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    }
    /// The test's own process is the program: it begins itself again.
    #[test]
    fn a_program_whose_log_has_no_reader_lives_on() {
        const PROGRAM: &str = "ELBOWROOM_TEST_LOG_PROGRAM";
        if std::env::var_os(PROGRAM).is_some() {
            init(0);
            tracing::info!("no program reads this");
            return;
        }
        let (from, to) = rustix::pipe::pipe().unwrap();
        drop(from);
        let program = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "log::tests::a_program_whose_log_has_no_reader_lives_on", "--nocapture"])
            .env(PROGRAM, "1")
            .stdout(std::process::Stdio::null())
            .stderr(to)
            .status();
        assert!(program.unwrap().success());
    }
}
