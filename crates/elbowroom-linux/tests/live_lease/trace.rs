//! A thread of another process, stopped at each of its system calls (ptrace(2)): every point at which a process can die or
//! be stopped between two effects on the machine, without a line of test code in the program.

use std::ptr;

/// A traced thread. All of it must be done by the thread that made it.
pub struct Tracee {
    tid: i32,
}

impl Tracee {
    /// Stops a thread at the next of its system calls.
    pub fn seize(tid: i32) -> Self {
        let tracee = Self { tid };
        tracee.request(libc::PTRACE_SEIZE, libc::PTRACE_O_TRACESYSGOOD as usize);
        tracee.request(libc::PTRACE_INTERRUPT, 0);
        assert!(tracee.stopped().is_some(), "it is there");
        tracee
    }

    /// Goes on to the next entry into a system call or return from one; false when the thread ended instead.
    pub fn step(&self) -> bool {
        loop {
            self.request(libc::PTRACE_SYSCALL, 0);
            match self.stopped() {
                None => return false,
                Some(signal) if signal == libc::SIGTRAP | 0x80 => return true,
                // PTRACE_EVENT_STOP of the interruption, or a signal that is not passed on.
                Some(_) => {}
            }
        }
    }

    /// Waits until it stops, and says for which signal; `None` when it has ended.
    fn stopped(&self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: waitpid writes the status to a place that outlives the call.
        let waited = unsafe { libc::waitpid(self.tid, &raw mut status, libc::__WALL) };
        (waited == self.tid && libc::WIFSTOPPED(status)).then(|| libc::WSTOPSIG(status))
    }

    fn request(&self, request: libc::c_uint, data: usize) {
        // SAFETY: these requests read and write no memory of this process; `data` is a number to the kernel.
        let done = unsafe { libc::ptrace(request, self.tid, ptr::null_mut::<libc::c_void>(), data) };
        assert_eq!(done, 0, "ptrace: {}", std::io::Error::last_os_error());
    }

    /// Lets it run.
    pub fn let_go(self) {
        self.request(libc::PTRACE_DETACH, 0);
    }

    /// Waits for the end of a thread that was killed: until then its process has not ended either.
    pub fn reap(self) {
        while self.stopped().is_some() {}
    }
}
