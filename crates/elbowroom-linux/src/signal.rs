//! Signals as something to read, through signalfd(2): no handler, nothing that must be async-signal-safe.

use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::process::Signal;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{io, mem, ptr};

/// A set of signals that no longer interrupt this thread and wait here to be read instead, also where the process that
/// started this one ignores them (kernel/signal.c, `sig_ignored`: what is blocked is kept). Threads and programs started
/// later inherit that: a program that is not to, calls [`unblock`].
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// Which one.
    pub signal: Signal,
    /// Whether the kernel sent it (a key on the terminal: to the whole foreground process group; a hang-up: to the session's
    /// leader), rather than a process.
    pub from_kernel: bool,
}

impl SignalFd {
    /// Blocks `signals` on this thread and opens a descriptor that becomes readable when one arrives.
    pub fn block(signals: &[Signal]) -> io::Result<Self> {
        let set = set_mask(libc::SIG_BLOCK, signals)?;
        // SAFETY: `set` is an initialized signal set; with -1 the call returns a new descriptor or -1.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd just returned this descriptor; no other code knows or closes it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal, or `None` when none is waiting.
    pub fn next(&self) -> io::Result<Option<ReceivedSignal>> {
        let mut info = [0u8; mem::size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.0, &mut info) {
            Ok(length) if length == info.len() => {}
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        // signalfd(2): ssi_signo is the first 32-bit word, ssi_code the third; codes above zero are the kernel's own.
        let word = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        let signal = Signal::from_named_raw(word(0));
        Ok(signal.map(|signal| ReceivedSignal { signal, from_kernel: word(8) > 0 }))
    }
}

/// Lets this process wait for its children: an inherited `SIG_IGN` for SIGCHLD makes the kernel reap them instead.
pub fn restore_sigchld() {
    // SAFETY: SIG_DFL installs no handler, so no code of ours runs at a signal; SIGCHLD has a disposition that can be set.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Lets `signals` interrupt this thread again.
pub fn unblock(signals: &[Signal]) -> io::Result<()> {
    set_mask(libc::SIG_UNBLOCK, signals).map(|_| ())
}

/// Lets every signal interrupt what `command` starts, whatever this process has blocked: a program that a user gave must end when
/// it is told to, and what it starts.
pub fn unblock_in_child(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec the closure makes a system call on a signal set of its own, and touches nothing else.
    unsafe { command.pre_exec(|| set_mask(libc::SIG_SETMASK, &[]).map(drop)) }
}

fn set_mask(how: libc::c_int, signals: &[Signal]) -> io::Result<libc::sigset_t> {
    let mut set = mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initializes the set, every later call is given that set; the numbers are those of signals, since
    // `Signal` holds no others; a null pointer for the old mask is allowed (pthread_sigmask(3)).
    let (errno, set) = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
        }
        (libc::pthread_sigmask(how, set.as_ptr(), ptr::null_mut()), set.assume_init())
    };
    if errno == 0 { Ok(set) } else { Err(io::Error::from_raw_os_error(errno)) }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_program_ends_at_a_signal_that_we_have_blocked() {
        use std::os::unix::process::ExitStatusExt;
        let ends = std::thread::spawn(|| {
            let _signals = SignalFd::block(&[Signal::TERM]).unwrap();
            let program = || {
                let mut program = Command::new("sh");
                program.args(["-c", "kill -TERM $$; exit 7"]);
                program
            };
            let blocked = program().status().unwrap();
            (blocked.code(), unblock_in_child(&mut program()).status().unwrap().signal())
        });
        assert_eq!(ends.join().unwrap(), (Some(7), Some(libc::SIGTERM)));
    }

    #[test]
    fn a_signal_that_the_starter_ignores_is_read_all_the_same() {
        let received = std::thread::spawn(|| {
            let signals = SignalFd::block(&[Signal::URG]).unwrap();
            // SAFETY: SIG_IGN installs no handler, and no other test uses this signal; it is blocked on this thread.
            unsafe {
                libc::signal(libc::SIGURG, libc::SIG_IGN);
                libc::raise(libc::SIGURG);
            }
            signals.next().unwrap().map(|received| received.signal)
        });
        assert_eq!(received.join().unwrap(), Some(Signal::URG));
    }

    #[test]
    fn a_signal_sent_by_a_process_is_read_as_such() {
        // On a thread of its own: a signal to the thread, and the mask, stay there.
        let received = std::thread::spawn(|| {
            let signals = SignalFd::block(&[Signal::USR2]).unwrap();
            assert_eq!(signals.next().unwrap(), None);
            // SAFETY: raises a signal that is blocked on this thread; no memory is involved.
            unsafe { libc::raise(libc::SIGUSR2) };
            (signals.next().unwrap(), signals.next().unwrap())
        });
        let expect = ReceivedSignal { signal: Signal::USR2, from_kernel: false };
        assert_eq!(received.join().unwrap(), (Some(expect), None));
    }
}
