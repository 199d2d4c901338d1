//! A filter for a process of ours: a list of system calls, and every other one fails with `EPERM`.
//!
//! Refused calls fail and do not kill: a defect here, or a C library that begins to use another call, costs what that call was
//! for, and not the views of all containers. The kernel logs each (`SECCOMP_FILTER_FLAG_LOG`, in audit's records).
//! The program is a chain of comparisons, so it needs no compiler of rules.

use super::ARCH;
use rustix::io::Errno;

/// What a program needs to live, whatever it does: memory, threads that are there, time, signals, its own end, and files that
/// are open.
pub const COMMON_CALLS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_prctl,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_write,
    libc::SYS_writev,
    // What musl calls where the architecture has it.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// Lets all threads of this process make these calls, of the machine's own kind, and no other, for good. The process must have
/// set `no_new_privs`.
///
/// # Errors
/// `ENOSYS` where the numbers of this architecture are not known; what the kernel says.
pub fn allow_only(lists: &[&[i64]]) -> Result<(), Errno> {
    let program = program(ARCH.ok_or(Errno::NOSYS)?, lists.iter().copied().flatten().copied());
    let len = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_LOG;
    // SAFETY: `filter` and the program that it points to outlive the call; the kernel only reads them.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) };
    match result {
        0 => Ok(()),
        // The id of a thread that has a filter of its own.
        1.. => Err(Errno::SRCH),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    let errno = std::io::Error::last_os_error();
    Errno::from_io_error(&errno).unwrap_or(Errno::INVAL)
}

/// `EPERM` unless the architecture is `arch` and the number is one of `calls`. A number of the x32 ABI is none of them.
fn program(arch: u32, calls: impl Iterator<Item = i64>) -> Vec<libc::sock_filter> {
    const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // Offsets in `struct seccomp_data`.
    const NR: u32 = 0;
    const ARCHITECTURE: u32 = 4;
    let instruction = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0);
    let skip =
        |k, if_equal, else_| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k, if_equal, else_);
    let end = |action| instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0);
    let mut program = vec![load(ARCHITECTURE), skip(arch, 1, 0), end(REFUSE), load(NR)];
    for call in calls {
        let number = u32::try_from(call).expect("numbers of system calls are not negative");
        program.extend([skip(number, 0, 1), end(libc::SECCOMP_RET_ALLOW)]);
    }
    program.push(end(REFUSE));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program says of a call, as the kernel's interpreter would.
    fn run(program: &[libc::sock_filter], arch: u32, nr: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match u32::from(code) & 7 {
                libc::BPF_LD => accumulator = [nr, arch][k as usize / 4],
                libc::BPF_JMP => at += usize::from(if accumulator == k { jt } else { jf }),
                _ => return k,
            }
        }
    }

    #[test]
    fn a_call_is_allowed_by_its_number_and_its_architecture() {
        let program = program(7, [0, 5, 400].into_iter());
        for nr in [0, 5, 400] {
            assert_eq!(run(&program, 7, nr), libc::SECCOMP_RET_ALLOW);
            assert_eq!(run(&program, 8, nr), libc::SECCOMP_RET_ERRNO | 1, "another architecture");
        }
        for nr in [1, 4, 6, 401, 0x4000_0000, 0x4000_0005] {
            assert_eq!(run(&program, 7, nr), libc::SECCOMP_RET_ERRNO | 1, "{nr}");
        }
    }

    #[test]
    fn a_process_under_the_filter_can_read_and_can_make_no_socket() {
        // SAFETY: the child makes no call that needs a lock another thread may hold: system calls, and its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let _ = rustix::thread::set_no_new_privs(true);
            let socket = || {
                rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None)
            };
            let before = socket().is_ok();
            let filtered = allow_only(&[COMMON_CALLS]).is_ok();
            let refused = socket().is_err_and(|errno| errno == Errno::PERM);
            let reads = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec >= 0;
            let passed = before && filtered && refused && reads;
            // SAFETY: ends the child at once, without what the test's process does at its end.
            unsafe { libc::_exit(i32::from(!passed)) }
        }
        let mut status = -1;
        // SAFETY: `status` outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
