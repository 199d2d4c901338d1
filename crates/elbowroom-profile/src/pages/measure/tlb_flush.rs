//! Making processors forget translations, so that they look into the page tables again.
//!
//! A processor notes in a page-table entry that it was used when it takes the entry into its TLB, not when it hits there. The
//! kernel clears those notes without emptying any TLB (`clear_refs_write()`, `fs/proc/task_mmu.c`; its own reclaim does the same):
//! what a program uses all the time stays in the TLB of a processor that runs nothing else, and would look unused.
//!
//! A processor empties what it holds of an address space when it gives the number of that address space to another one. Linux has six
//! such numbers per processor (`TLB_NR_DYN_ASIDS`, `arch/x86/include/asm/tlbflush.h`), so six processes that never ran anywhere visit
//! every processor once. Processors without such numbers empty the TLB at every switch. On processors that keep one number
//! everywhere for a program with many threads (AMD `INVLPGB`, Linux 6.15), and those that are not x86, this does less.

use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{CpuSet, sched_setaffinity};

/// `TLB_NR_DYN_ASIDS`.
const DYNAMIC_ASIDS: usize = 6;

/// Seconds after which a visitor ends wherever it is: a processor may be held by a real-time program for good.
const VISITOR_TIMEOUT_SECS: u32 = 1;

/// Visits every processor this process may run on. Takes tens of microseconds for each of them where they are idle, and at most a
/// second. Where a visitor cannot be made, nothing happens: pages may then look unused that are not.
pub(super) fn flush_all_cpus() {
    let visitors: Vec<Pid> = (0..DYNAMIC_ASIDS).filter_map(|_| spawn_visitor()).collect();
    for visitor in visitors {
        // An error would be that it is not ours: nothing is left to wait for then.
        while matches!(waitpid(Some(visitor), WaitOptions::empty()), Err(rustix::io::Errno::INTR)) {}
    }
}

/// A process with an address space of its own that visits every processor, and ends.
fn spawn_visitor() -> Option<Pid> {
    // SAFETY: between fork and _exit the child makes system calls only, and allocates nothing: other threads, whose locks it has
    // inherited, do not matter to it.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: takes no pointers; the child has no other use for the alarm, whose default action ends it.
            unsafe { libc::signal(libc::SIGALRM, libc::SIG_DFL) };
            // SAFETY: as above.
            unsafe { libc::alarm(VISITOR_TIMEOUT_SECS) };
            for cpu in 0..CpuSet::MAX_CPU {
                let mut one = CpuSet::new();
                one.set(cpu);
                // One that is not there, or not for us, is refused.
                let _ = sched_setaffinity(None, &one);
            }
            // SAFETY: ends the child without running what this program has registered for its own end.
            unsafe { libc::_exit(0) }
        }
        pid => Pid::from_raw(pid).filter(|_| pid > 0),
    }
}
