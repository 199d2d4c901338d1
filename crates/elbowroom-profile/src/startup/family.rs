//! Families of functions: what a stack was busy with.
//!
//! # Approach
//! One table of names, in four ranks. A sample belongs to the lowest rank that any of its frames is in, and within it to the
//! innermost frame. An interrupt is no program's work. A page fault is a page fault wherever it happens, in the garbage
//! collector or in a copy to user space. Copying page tables belongs to itself and not to the fork around it. Files, locks
//! and system calls are what is left when nothing more telling is on the stack. A sample in the kernel is judged by the
//! kernel's frames.
//!
//! Names are those of Linux 5.10 to 6.18 and Go 1.16 to 1.25. A `*` stands for anything, and so for the one that Go writes before
//! a receiver, too; `[x*]` is a file that has no symbols, or any function in it. The longest name that fits a frame decides.

use crate::stack::{CallStack, ExecutionMode, StackFrame};
use serde::Serialize;
use std::collections::HashMap;

/// What a stack was busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FunctionFamily {
    /// Interrupts and what runs at their end: timers, RCU, network.
    Interrupts,
    /// Filling a page at its first use, or copying it at its first write.
    PageFaults,
    /// Copying the parent's page tables at fork.
    PageTableCopy,
    /// Taking mappings and their pages down, at exit, exec or munmap.
    Unmapping,
    /// Making and changing mappings.
    Mapping,
    /// Loading a program.
    Exec,
    /// Making processes and threads.
    ProcessCreation,
    /// Ending them and waiting for it.
    ProcessExit,
    /// Making, setting and removing cgroups.
    Cgroups,
    /// Mounts, roots, mount namespaces.
    Mounts,
    /// Network namespaces and devices.
    NetworkNamespace,
    /// The other namespaces.
    Namespaces,
    /// Filters of system calls: building them, checking them, installing them.
    Seccomp,
    /// Go's garbage collector.
    GoGc,
    /// Go's allocator.
    GoAllocation,
    /// Go's runtime coming up, and the initialisers of packages.
    GoStart,
    /// Go's scheduler and its timers.
    GoScheduling,
    /// JSON, protocol buffers, gRPC and ttrpc.
    Serialisation,
    /// HTTP and TLS.
    Http,
    /// Regular expressions, mostly compiled at start.
    RegularExpressions,
    /// Linking shared libraries.
    DynamicLinking,
    /// Python's interpreter.
    Python,
    /// Reading `/proc` and `/sys`.
    ProcFiles,
    /// Files and directories: lookups, overlayfs, reads and writes.
    Files,
    /// Pipes and sockets.
    Sockets,
    /// Waiting, waking, switching, locks.
    Scheduling,
    /// Entering and leaving the kernel.
    SystemCalls,
    /// The kernel, nothing of the above.
    OtherKernel,
    /// Go, nothing of the above.
    OtherGo,
    /// C and other languages, nothing of the above.
    OtherCode,
    /// Code whose name and file are not known.
    Unknown,
}

/// Whether a family says what was done, or only what is left.
const RESIDUAL: [FunctionFamily; 4] = [
    FunctionFamily::OtherKernel,
    FunctionFamily::OtherGo,
    FunctionFamily::OtherCode,
    FunctionFamily::Unknown,
];

struct FamilyRow {
    rank: u8,
    mode: ExecutionMode,
    family: FunctionFamily,
    names: &'static [&'static str],
}

const fn kernel(rank: u8, family: FunctionFamily, names: &'static [&'static str]) -> FamilyRow {
    FamilyRow { rank, mode: ExecutionMode::Kernel, family, names }
}

const fn user(rank: u8, family: FunctionFamily, names: &'static [&'static str]) -> FamilyRow {
    FamilyRow { rank, mode: ExecutionMode::User, family, names }
}

/// Every family that has names.
#[rustfmt::skip]
const TABLE: &[FamilyRow] = &[
    kernel(0, FunctionFamily::Interrupts, &[
        "asm_sysvec_*", "sysvec_*", "__sysvec_*", "asm_common_interrupt", "common_interrupt", "irq_exit*", "__irq_exit_rcu", "__do_softirq",
        "handle_softirqs", "do_softirq*", "run_ksoftirqd", "rcu_core*", "hrtimer_interrupt", "__hrtimer_run_queues",
    ]),
    kernel(1, FunctionFamily::PageTableCopy, &[
        "copy_page_range", "copy_p4d_range", "copy_pte_range", "copy_present_pte*", "copy_present_page", "dup_mmap", "dup_mm*", "anon_vma_fork",
        "anon_vma_clone",
    ]),
    kernel(1, FunctionFamily::Unmapping, &[
        "exit_mmap", "unmap_vmas", "unmap_page_range", "unmap_region", "unmap_single_vma", "unmap_mapping_*", "zap_*", "free_pgtables",
        "free_pgd_range", "tlb_finish_mmu", "tlb_flush_mmu*", "tlb_batch_pages_flush", "free_pages_and_swap_cache", "do_munmap", "__do_munmap",
        "do_vmi_munmap", "do_vmi_align_munmap", "__vm_munmap", "mmput", "__mmput", "remove_vma", "free_swap_cache", "folios_put*",
        "vms_complete_munmap_vmas", "vms_clear_ptes*", "__x64_sys_munmap",
    ]),
    kernel(1, FunctionFamily::PageFaults, &[
        "asm_exc_page_fault", "exc_page_fault", "do_user_addr_fault", "handle_mm_fault", "__handle_mm_fault", "handle_pte_fault", "do_fault*",
        "do_anonymous_page", "do_wp_page", "wp_page_copy", "do_read_fault", "do_cow_fault", "do_shared_fault", "filemap_map_pages",
        "next_uptodate_*", "do_huge_pmd_*", "do_swap_page", "faultin_page", "__get_user_pages", "lock_vma_under_rcu", "do_page_fault",
        "do_mem_abort", "el0_da", "el0_ia",
    ]),
    kernel(2, FunctionFamily::Exec, &[
        "bprm_execve*", "do_execveat_common*", "__x64_sys_execve*", "do_execve*", "load_elf_binary", "load_elf_phdrs", "begin_new_exec", "exec_binprm",
        "search_binary_handler", "setup_arg_pages", "exec_mmap", "elf_map", "elf_load", "copy_string*", "__arm64_sys_execve*",
    ]),
    kernel(2, FunctionFamily::Cgroups, &[
        "cgroup_*", "__cgroup_*", "cgroup1_*", "css_*", "cpuset_*", "mem_cgroup_css_*", "cpu_cgroup_*", "freezer_*", "pids_css_*", "blkcg_css_*",
        "rebuild_sched_domains*", "sched_online_group", "sched_create_group", "alloc_fair_sched_group", "cgwb_*", "devcgroup_*",
    ]),
    kernel(2, FunctionFamily::NetworkNamespace, &[
        "copy_net_ns", "setup_net", "cleanup_net", "ops_init", "register_netdev*", "unregister_netdev*", "loopback_net_*", "rtnl_*", "rtnetlink_*",
        "netlink_*", "inetdev_*", "addrconf_*", "dev_change_flags", "dev_open", "__dev_*", "veth_*", "br_*", "synchronize_net", "nf_*", "nft_*",
        "ipt_*", "xt_*", "tcp_sk_init", "fib_*", "ip_rt_*", "ip6_*", "fib6_*",
    ]),
    kernel(2, FunctionFamily::Mounts, &[
        "path_mount", "do_mount", "__x64_sys_mount*", "__se_sys_mount*", "do_new_mount*", "do_move_mount*", "do_loopback*", "do_remount*",
        "do_change_type", "do_reconfigure_mnt", "move_mount", "__x64_sys_move_mount", "__x64_sys_open_tree*", "attach_recursive_mnt", "graft_tree",
        "path_pivot_root", "__x64_sys_pivot_root", "path_umount", "umount_tree", "do_umount", "__x64_sys_umount", "copy_mnt_ns", "copy_tree",
        "clone_mnt", "namespace_unlock", "mntput*", "cleanup_mnt", "__cleanup_mnt", "deactivate_*super", "vfs_get_tree", "vfs_kern_mount",
        "ovl_get_tree*", "ovl_fill_super", "propagate_*", "put_mnt_ns", "drop_collected_mounts", "legacy_get_tree", "vfs_create_mount",
        "__x64_sys_fsconfig", "__x64_sys_fsmount", "__x64_sys_chroot", "lookup_mnt", "alloc_vfsmnt", "invent_group_ids", "proc_get_tree",
    ]),
    kernel(2, FunctionFamily::Namespaces, &[
        "create_new_namespaces", "copy_namespaces", "unshare_nsproxy_namespaces", "ksys_unshare", "__x64_sys_setns", "switch_task_namespaces",
        "copy_utsname", "copy_ipcs", "copy_pid_ns", "copy_cgroup_ns", "copy_time_ns", "create_user_ns", "create_pid_namespace", "free_nsproxy",
        "mq_init_ns", "mqueue_*", "put_ipc_ns", "free_ipc*", "zap_pid_ns_processes", "ns_get_path*", "commit_nsset",
    ]),
    kernel(2, FunctionFamily::Seccomp, &[
        "do_seccomp", "seccomp_*", "__x64_sys_seccomp", "__seccomp_filter", "bpf_prog_create*", "bpf_prog_alloc*", "bpf_prog_select_runtime",
        "bpf_int_jit_compile", "do_jit", "bpf_migrate_filter", "bpf_convert_filter", "bpf_check_classic", "bpf_jit_*", "bpf_prog_pack_*",
    ]),
    kernel(2, FunctionFamily::ProcessCreation, &[
        "kernel_clone", "copy_process", "__do_sys_clone*", "__x64_sys_clone*", "__x64_sys_vfork", "__do_sys_vfork", "wake_up_new_task", "ret_from_fork*",
        "alloc_thread_stack_node", "dup_task_struct", "schedule_tail", "sched_post_fork", "_do_fork",
    ]),
    kernel(2, FunctionFamily::ProcessExit, &[
        "do_exit", "do_group_exit", "__x64_sys_exit*", "release_task", "wait_task_zombie", "do_wait*", "kernel_wait4", "__do_sys_wait*",
        "kernel_waitid*", "exit_files", "exit_notify", "delayed_put_task_struct", "__put_task_struct", "get_signal", "do_sigtimedwait", "__x64_sys_wait4",
    ]),
    kernel(2, FunctionFamily::Mapping, &[
        "do_mmap", "mmap_region", "__mmap_region", "vm_mmap_pgoff", "ksys_mmap_pgoff", "__x64_sys_mmap", "do_mprotect*", "mprotect_fixup",
        "change_protection*", "vm_brk_flags", "do_brk_flags", "__x64_sys_brk", "__x64_sys_madvise", "do_madvise*", "__split_vma", "vma_merge*",
        "get_unmapped_area", "populate_vma_page_range", "__mm_populate", "vma_link", "mas_*", "perf_event_mmap*",
    ]),
    kernel(3, FunctionFamily::ProcFiles, &[
        "proc_*", "do_task_stat", "show_map*", "show_smap*", "seq_read*", "kernfs_*", "sysfs_*", "show_mountinfo", "show_vfsmnt", "m_start", "m_next",
        "mountinfo_open", "pid_revalidate", "next_tgid", "sysctl_*",
    ]),
    kernel(3, FunctionFamily::Sockets, &[
        "unix_*", "pipe_*", "anon_pipe_*", "sock_*", "__sys_send*", "__sys_recv*", "__sys_connect", "__sys_accept*", "____sys_*", "___sys_*", "__sys_socket",
        "tcp_*", "skb_*", "consume_skb", "do_pipe2", "splice_*", "create_pipe_files",
    ]),
    kernel(3, FunctionFamily::Files, &[
        "path_openat", "do_filp_open", "do_sys_openat2", "vfs_*", "ksys_read", "ksys_write", "new_sync_*", "path_lookupat", "filename_*", "link_path_walk*",
        "walk_component", "lookup_*", "__lookup_*", "ovl_*", "ext4_*", "xfs_*", "btrfs_*", "shmem_*", "generic_*", "filemap_*", "fuse_*", "jbd2_*",
        "do_mkdirat", "do_unlinkat", "do_rmdir", "do_renameat2", "do_symlinkat", "do_readlinkat", "iterate_dir", "dput", "__fput*", "fput*", "filp_close",
        "task_work_run", "inotify_*", "fsnotify*", "user_path_at*", "getname_flags*", "do_dentry_open", "close_fd*", "__x64_sys_close*", "evict",
        "d_*", "__d_*", "do_fcntl", "do_faccessat", "__do_sys_newfstat*", "mnt_want_write*", "strncpy_from_user", "do_fsync", "sync_*", "__x64_sys_getdents*",
        "dup_fd", "page_cache_*", "iomap_*", "step_into", "complete_walk", "do_open", "terminate_walk", "memfd_*", "blk_*", "submit_bio*", "bdi_*", "expand_files",
    ]),
    kernel(3, FunctionFamily::Scheduling, &[
        "futex_*", "do_futex", "__x64_sys_futex", "schedule*", "__schedule", "try_to_wake_up", "wake_up_*", "__wake_up*", "ep_*", "do_epoll_*",
        "__x64_sys_epoll*", "finish_task_switch*", "hrtimer_*", "common_nsleep*", "do_nanosleep", "poll_*", "do_sys_poll", "do_poll*", "__mutex_lock*",
        "mutex_*", "rwsem_*", "down_*", "osq_lock", "__rcu_*", "synchronize_rcu*", "wait_for_completion*", "__x64_sys_sched_*", "do_sched_*", "smp_call_*",
        "__x64_sys_nanosleep", "core_sys_select", "do_select", "pick_next_task*", "rcu_*", "__x64_sys_tgkill", "do_send_sig*", "send_signal*", "do_tkill",
        "exit_to_user_mode*", "membarrier_*", "__x64_sys_membarrier", "signal_*", "arch_do_signal*", "io_schedule*", "eventfd_*",
    ]),
    kernel(3, FunctionFamily::SystemCalls, &[
        "syscall_*", "entry_SYSCALL_64*", "do_syscall_64", "__x64_sys_*", "__do_sys_*", "__se_sys_*", "x64_sys_call", "syscall_exit_*", "el0_svc*",
        "invoke_syscall", "restore_fpregs*", "fpregs_*", "srso_*", "__fdget*", "audit_*",
    ]),
    user(1, FunctionFamily::GoGc, &[
        "runtime.gcBgMarkWorker*", "runtime.gcDrain*", "runtime.gcAssist*", "runtime.gcStart*", "runtime.gcMark*", "runtime.gcSweep*",
        "runtime.gcFlush*", "runtime.gcWriteBarrier*", "runtime.gcController*", "runtime.(*gcControllerState)*", "runtime.(*gcWork)*", "runtime.scanobject*",
        "runtime.scanblock*", "runtime.scanstack*", "runtime.scanSpan*", "runtime.markroot*", "runtime.markBits*", "runtime.greyobject*", "runtime.findObject*",
        "runtime.bgsweep*", "runtime.bgscavenge*", "runtime.sweepone*", "runtime.(*sweepLocked)*", "runtime.(*sweepLocker)*", "runtime.wbBufFlush*",
        "runtime.(*wbBuf)*", "runtime.shade*", "runtime.(*lfstack)*", "runtime.stopTheWorld*", "runtime.startTheWorld*", "runtime.heapBits*", "runtime.finishsweep*",
        "runtime.(*scavengerState)*", "runtime.(*pageAlloc).scavenge*", "runtime.typePointers*", "runtime.trygetfull", "runtime.getempty*", "runtime.clearpools",
        // What the allocator's structures do for the collector: sweeping, marking, releasing.
        "runtime.(*mheap).nextSpanForSweep*", "runtime.(*mheap).reclaim*", "runtime.(*mheap).freeSpan*", "runtime.(*mheap).scavenge*",
        "runtime.(*pageAlloc).free*", "runtime.(*mcache).prepareForSweep*", "runtime.(*mcache).releaseAll*", "runtime.(*mspan).ensureSwept*",
        "runtime.(*mspan).countAlloc*", "runtime.(*mspan).markBits*", "runtime.(*mspan).typePointers*", "runtime.(*mspan).heapBitsSmall*",
        "runtime.(*mspan).moveInlineMarks*",
    ]),
    user(1, FunctionFamily::GoAllocation, &[
        "runtime.malloc*", "runtime.newobject*", "runtime.makeslice*", "runtime.growslice*", "runtime.newarray*", "runtime.(*mcache)*", "runtime.(*mcentral)*",
        "runtime.(*mheap)*", "runtime.(*pageAlloc)*", "runtime.(*mspan)*", "runtime.sysAlloc*", "runtime.sysMap*", "runtime.sysUsed*", "runtime.sysHugePage*",
        "runtime.persistentalloc*", "runtime.makemap*", "runtime.makechan*", "runtime.rawstring*", "runtime.rawbyteslice*", "runtime.concatstring*",
        "runtime.slicebytetostring*", "runtime.stringtoslicebyte*", "runtime.memclrNoHeapPointers*", "runtime.bulkBarrier*", "runtime.(*fixalloc)*",
        "runtime.stackalloc*", "runtime.stackcache*", "runtime.newstack", "runtime.copystack", "runtime.morestack*", "runtime.deductAssistCredit", "runtime.nextFreeFast*",
    ]),
    user(1, FunctionFamily::Seccomp, &[
        "seccomp_*", "_seccomp_*", "gen_bpf_*", "db_*", "arch_syscall_*", "*_syscall_resolve_*", "github.com/seccomp/libseccomp-golang*", "github.com/seccomp/libseccomp-golang.*", "_cgo_*_seccomp*",
        "github.com/opencontainers/runc/libcontainer/seccomp*", "github.com/docker/docker/profiles/seccomp*", "github.com/containers/common/pkg/seccomp*",
        "libcrun_*seccomp*", "[libseccomp*]", "github.com/containerd/containerd/contrib/seccomp*",
    ]),
    user(1, FunctionFamily::RegularExpressions, &["regexp.*", "regexp/syntax.*"]),
    user(1, FunctionFamily::Serialisation, &[
        "encoding/json.*", "encoding/binary.*", "encoding/base64.*", "github.com/gogo/protobuf*", "github.com/golang/protobuf*", "google.golang.org/protobuf*",
        "google.golang.org/grpc*", "github.com/containerd/ttrpc*", "github.com/json-iterator*", "github.com/modern-go/reflect2*",
        "github.com/containerd/typeurl*", "gopkg.in/yaml*", "github.com/BurntSushi/toml*", "github.com/pelletier/go-toml*", "reflect.*", "yajl_*",
        "[libyajl*]", "parse_json*", "make_runtime_spec_schema*", "json_*", "libcrun_container_load*",
    ]),
    user(1, FunctionFamily::Http, &["net/http.*", "golang.org/x/net/http2*", "crypto/*", "net/textproto.*", "github.com/gorilla/mux*", "mime*", "compress/*"]),
    user(2, FunctionFamily::GoStart, &[
        "runtime.schedinit*", "runtime.doInit*", "runtime.rt0_go*", "runtime.args", "runtime.osinit", "runtime.check", "runtime.moduledataverify*", "runtime.modulesinit",
        "runtime.itabsinit*", "runtime.itabAdd", "runtime.getitab", "runtime.goenvs*", "runtime.mcommoninit", "runtime.procresize", "runtime.typelinksinit",
        "runtime.initsig*", "runtime.mstartm0", "runtime.alginit", "runtime.cpuinit", "runtime.gcenable", "runtime.addmoduledata", "runtime.main", "x_cgo_init", "_rt0_*",
        "runtime.tracebackinit", "runtime.parsedebugvars", "runtime.randinit", "internal/cpu.*",
    ]),
    user(3, FunctionFamily::GoScheduling, &[
        "runtime.mcall", "runtime.schedule", "runtime.findRunnable", "runtime.findrunnable", "runtime.park_m", "runtime.stealWork", "runtime.runqgrab", "runtime.runqsteal",
        "runtime.futex*", "runtime.note*", "runtime.startm", "runtime.stopm", "runtime.wakep", "runtime.newm*", "runtime.newproc*", "runtime.goready*", "runtime.ready*",
        "runtime.usleep*", "runtime.osyield*", "runtime.sysmon*", "runtime.retake", "runtime.netpoll*", "runtime.lock*", "runtime.unlock*", "runtime.chansend*",
        "runtime.chanrecv*", "runtime.selectgo*", "runtime.mstart*", "runtime.epollwait*", "runtime.procyield*", "runtime.gopreempt*", "runtime.asyncPreempt*", "runtime.sig*",
        "runtime.goschedImpl", "runtime.goexit0", "runtime.gdestroy", "runtime.casgstatus", "runtime.execute", "runtime.gopark*", "runtime.checkTimers", "runtime.*imer*",
        "runtime.entersyscall*", "runtime.exitsyscall*", "runtime.reentersyscall*", "runtime.mPark", "runtime.handoffp", "runtime.minit", "runtime.clone*", "runtime.tgkill",
        "runtime.preempt*", "runtime.suspendG", "runtime.resumeG", "runtime.systemstack*", "sync.*",
    ]),
    user(2, FunctionFamily::DynamicLinking, &["_dl_*", "dl_*", "do_lookup_x", "_dl_relocate_object", "[ld-linux*]", "[ld-musl*]"]),
    user(2, FunctionFamily::Python, &["Py*", "_Py*", "[libpython*]", "[python3*]", "[python2*]"]),
];

impl FunctionFamily {
    /// What people read.
    pub fn label(self) -> &'static str {
        match self {
            Self::Interrupts => "interrupts",
            Self::PageFaults => "page faults",
            Self::PageTableCopy => "page-table copy (fork)",
            Self::Unmapping => "unmapping",
            Self::Mapping => "mapping",
            Self::Exec => "exec",
            Self::ProcessCreation => "process creation",
            Self::ProcessExit => "process exit and wait",
            Self::Cgroups => "cgroups",
            Self::Mounts => "mounts and roots",
            Self::NetworkNamespace => "network namespace",
            Self::Namespaces => "other namespaces",
            Self::Seccomp => "seccomp filter",
            Self::GoGc => "Go garbage collection",
            Self::GoAllocation => "Go allocation",
            Self::GoStart => "Go start-up",
            Self::GoScheduling => "Go scheduling",
            Self::Serialisation => "JSON, proto, gRPC",
            Self::Http => "HTTP and TLS",
            Self::RegularExpressions => "regular expressions",
            Self::DynamicLinking => "dynamic linking",
            Self::Python => "Python",
            Self::ProcFiles => "/proc and /sys",
            Self::Files => "files",
            Self::Sockets => "pipes and sockets",
            Self::Scheduling => "scheduling and locks",
            Self::SystemCalls => "system call entry",
            Self::OtherKernel => "other kernel code",
            Self::OtherGo => "other Go code",
            Self::OtherCode => "other code",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it says what was done; otherwise it only says what is left.
    pub(crate) fn is_specific(self) -> bool {
        !RESIDUAL.contains(&self)
    }
}

/// Says what stacks were busy with, and remembers what it said of each function.
#[derive(Clone, Debug, Default)]
pub(crate) struct StackClassifier {
    cache: HashMap<StackFrame, Option<(u8, FunctionFamily)>>,
}

impl StackClassifier {
    /// What `stack` was busy with.
    pub fn family(&mut self, stack: &CallStack) -> FunctionFamily {
        let space = stack.mode();
        let mut lowest: Option<(u8, FunctionFamily)> = None;
        for frame in stack.frames.iter().take_while(|frame| frame.mode == space) {
            let ranked = match self.cache.get(frame) {
                Some(ranked) => *ranked,
                None => {
                    let ranked = find_row(frame).map(|row| (row.rank, row.family));
                    self.cache.insert(frame.clone(), ranked);
                    ranked
                }
            };
            // The first of equals stays: the innermost.
            if let Some((rank, _)) = ranked
                && lowest.is_none_or(|(low, _)| rank < low)
            {
                lowest = ranked;
            }
        }
        match (lowest, space) {
            (Some((_, family)), _) => family,
            (None, ExecutionMode::Kernel) => FunctionFamily::OtherKernel,
            (None, ExecutionMode::User) if stack.frames.iter().any(is_go) => FunctionFamily::OtherGo,
            (None, ExecutionMode::User) if stack.frames.iter().any(|frame| !frame.module.is_empty()) => {
                FunctionFamily::OtherCode
            }
            (None, ExecutionMode::User) => FunctionFamily::Unknown,
        }
    }
}

/// Go's functions are `package.Function`; no C function has a dot before its suffix.
fn is_go(frame: &StackFrame) -> bool {
    frame.is_resolved()
        && (frame.name.starts_with("runtime.") || frame.name.contains('/') || frame.name.starts_with("main."))
}

/// The row with the name that fits best: the whole one, else the longest.
fn find_row(frame: &StackFrame) -> Option<&'static FamilyRow> {
    let fits = |row: &&'static FamilyRow| {
        let names = row.names.iter().filter(|name| matches_pattern(frame, name));
        names.map(|name| if name.contains('*') { name.len() } else { usize::MAX }).max()
    };
    let rows = TABLE.iter().filter(|row| row.mode == frame.mode);
    rows.filter_map(|row| Some((fits(&row)?, row))).max_by_key(|(length, _)| *length).map(|(_, row)| row)
}

/// Whether `pattern` stands for the frame: a `*` stands for anything, brackets are around a file.
fn matches_pattern(frame: &StackFrame, pattern: &str) -> bool {
    let (pattern, name) = match pattern.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(file) => (file, &*frame.module),
        None => (pattern, &*frame.name),
    };
    let Some((begin, rest)) = pattern.split_once('*') else { return name == pattern };
    let Some(mut left) = name.strip_prefix(begin) else { return false };
    let (middles, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for middle in middles.split('*') {
        // The first place leaves most for what follows.
        let Some(at) = left.find(middle) else { return false };
        left = &left[at + middle.len()..];
    }
    left.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &[&str]) -> CallStack {
        let frame = |name: &&str| match name.strip_prefix("k:") {
            Some(name) => StackFrame { name: name.into(), module: "".into(), mode: ExecutionMode::Kernel },
            None => {
                let (module, name) = name.split_once('!').unwrap_or(("", name));
                StackFrame { name: name.into(), module: module.into(), mode: ExecutionMode::User }
            }
        };
        CallStack { program: "p".into(), frames: names.iter().map(frame).collect() }
    }

    fn check(innermost_first: &[&str], family: FunctionFamily) {
        assert_eq!(StackClassifier::default().family(&stack(innermost_first)), family, "{innermost_first:?}");
    }

    #[test]
    fn a_fault_is_a_fault_wherever_it_happens() {
        let fault = ["k:clear_page_erms", "k:do_anonymous_page", "k:handle_mm_fault", "k:asm_exc_page_fault"];
        check(&[&fault[..], &["runtime.mallocgc"]].concat(), FunctionFamily::PageFaults);
        check(
            &[&fault[..], &["k:copy_strings", "k:do_execveat_common"]].concat(),
            FunctionFamily::PageFaults,
        );
    }

    #[test]
    fn what_a_fault_calls_is_the_fault() {
        check(
            &["k:cgroup_rstat_updated", "k:handle_mm_fault", "k:asm_exc_page_fault"],
            FunctionFamily::PageFaults,
        );
    }

    #[test]
    fn what_is_inside_fork_exec_and_exit_belongs_to_itself() {
        check(
            &["k:copy_pte_range", "k:dup_mm", "k:copy_process", "k:kernel_clone"],
            FunctionFamily::PageTableCopy,
        );
        check(
            &["k:zap_pte_range", "k:exit_mmap", "k:begin_new_exec", "k:load_elf_binary"],
            FunctionFamily::Unmapping,
        );
        check(&["k:kmem_cache_alloc", "k:copy_process", "k:kernel_clone"], FunctionFamily::ProcessCreation);
        check(
            &["k:mutex_lock", "k:cgroup_mkdir", "k:kernfs_iop_mkdir", "k:vfs_mkdir"],
            FunctionFamily::Cgroups,
        );
        check(
            &["k:loopback_net_init", "k:setup_net", "k:copy_net_ns", "k:create_new_namespaces"],
            FunctionFamily::NetworkNamespace,
        );
    }

    #[test]
    fn an_interrupt_is_no_threads_work() {
        check(
            &["k:try_to_wake_up", "k:sysvec_apic_timer_interrupt", "k:handle_mm_fault"],
            FunctionFamily::Interrupts,
        );
    }

    #[test]
    fn go_is_told_by_its_runtime_and_packages() {
        check(
            &["runtime.memmove", "runtime.growslice", "encoding/json.(*decodeState).object"],
            FunctionFamily::GoAllocation,
        );
        check(
            &["runtime.scanobject", "runtime.gcDrain", "runtime.gcBgMarkWorker.func2"],
            FunctionFamily::GoGc,
        );
        check(
            &["regexp/syntax.(*compiler).inst", "regexp.compile", "runtime.doInit"],
            FunctionFamily::RegularExpressions,
        );
        check(&["github.com/x/y.init.0", "runtime.doInit1", "runtime.main"], FunctionFamily::GoStart);
        check(&["main.work", "runtime.goexit"], FunctionFamily::OtherGo);
    }

    #[test]
    fn methods_of_gos_runtime_are_told_by_what_they_are_for() {
        let refill = "runtime.(*mcache).refill";
        check(&["runtime.(*sweepLocked).sweep", refill, "runtime.mallocgc"], FunctionFamily::GoGc);
        check(&["runtime.(*mheap).reclaim", "runtime.(*mheap).alloc", refill], FunctionFamily::GoGc);
        check(
            &["runtime.(*mheap).nextSpanForSweep", "runtime.sweepone", "runtime.bgsweep"],
            FunctionFamily::GoGc,
        );
        check(&["runtime.(*pageAlloc).find", "runtime.(*mheap).alloc", refill], FunctionFamily::GoAllocation);
        check(&["runtime.siftupTimer", "main.work", "runtime.goexit"], FunctionFamily::GoScheduling);
    }

    #[test]
    fn stars_stand_for_anything_in_their_order() {
        let fits = |name: &str, pattern: &str| {
            matches_pattern(
                &StackFrame { name: name.into(), module: "".into(), mode: ExecutionMode::User },
                pattern,
            )
        };
        assert!(fits("abcd", "a*c*") && fits("abcd", "*b*d") && fits("a", "a*") && fits("aXbXc", "a*X*X*c"));
        assert!(
            !fits("acb", "a*b*c") && !fits("ab", "a*b*b") && !fits("aba", "ab*ba") && !fits("ab", "a*c*b")
        );
    }

    #[test]
    fn a_file_without_symbols_is_told_by_its_name() {
        check(&["libseccomp.so.2.5.4![libseccomp.so.2.5.4]"], FunctionFamily::Seccomp);
        check(&["ld-linux-x86-64.so.2!do_something", "x!main"], FunctionFamily::DynamicLinking);
        check(&["libc.so.6!memcpy"], FunctionFamily::OtherCode);
        check(&["[unknown]"], FunctionFamily::Unknown);
        check(&[], FunctionFamily::Unknown);
    }

    #[test]
    fn no_name_stands_in_two_rows() {
        let mut seen = std::collections::BTreeMap::new();
        for row in TABLE {
            for name in row.names {
                let kind = if row.mode == ExecutionMode::Kernel { "k:" } else { "" };
                let other = seen.insert(format!("{kind}{name}"), row.family);
                assert!(
                    other.is_none_or(|other| other == row.family),
                    "{name}: {other:?} and {:?}",
                    row.family
                );
            }
        }
    }

    /// A function that exists or did, for every starred name of the kernel: most are of Linux 6.18.
    const KERNEL: &str = "
        asm_sysvec_reboot sysvec_reboot __sysvec_reboot irq_exit do_softirq rcu_core copy_present_pte dup_mm
        unmap_mapping_pages zap_huge_pmd tlb_flush_mmu folios_put_refs vms_clear_ptes.part.0 do_fault
        next_uptodate_folio do_huge_pmd_wp_page bprm_execve do_execveat_common __x64_sys_execve copy_strings
        __arm64_sys_execve cgroup_mkdir __cgroup_kill cgroup1_rename css_next_child cpuset_bind
        mem_cgroup_css_free cpu_cgroup_attach freezer_fork pids_css_free blkcg_css_free
        rebuild_sched_domains cgwb_kill devcgroup_online register_netdev unregister_netdev loopback_net_init
        rtnl_lock rtnetlink_rcv netlink_ack inetdev_event addrconf_notify __dev_open veth_xmit br_flood
        nf_hook_slow nft_do_chain ipt_error xt_net_init fib_newrule ip_rt_ioctl ip6_mtu fib6_del
        __x64_sys_mount __se_sys_mount do_new_mount do_move_mount do_loopback do_remount __x64_sys_open_tree
        mntput deactivate_super ovl_get_tree propagate_mnt mqueue_unlink free_ipc ns_get_path
        seccomp_get_filter bpf_prog_create bpf_prog_alloc bpf_jit_free bpf_prog_pack_free __do_sys_clone
        __x64_sys_clone ret_from_fork __x64_sys_exit do_wait __do_sys_wait4 kernel_waitid do_mprotect_pkey
        change_protection do_madvise vma_merge_extend mas_walk perf_event_mmap proc_lookup show_map
        show_smap seq_read kernfs_get sysfs_emit sysctl_perm unix_gc pipe_lock anon_pipe_read sock_poll
        __sys_sendto __sys_recvmsg __sys_accept4 ____sys_recvmsg ___sys_sendmsg tcp_sendmsg skb_put
        splice_to_pipe vfs_read new_sync_read filename_create link_path_walk lookup_one __lookup_mnt
        ovl_mmap ext4_lookup xfs_imap btrfs_iget shmem_mmap generic_file_read_iter filemap_read fuse_open
        jbd2_free __fput fput inotify_read fsnotify user_path_at getname_flags close_fd __x64_sys_close
        d_add __d_free __do_sys_newfstat mnt_want_write sync_filesystem __x64_sys_getdents
        page_cache_sync_ra iomap_iter memfd_fcntl blk_mq_submit_bio submit_bio bdi_put futex_wait schedule
        wake_up_q __wake_up ep_remove do_epoll_ctl __x64_sys_epoll_ctl finish_task_switch.isra.0
        hrtimer_setup common_nsleep poll_freewait do_poll.constprop.0 __mutex_lock_slowpath mutex_lock
        rwsem_owner down_read __rcu_read_lock synchronize_rcu wait_for_completion __x64_sys_sched_yield
        do_sched_yield smp_call_on_cpu pick_next_task_fair rcu_barrier do_send_sig_info send_signal_locked
        exit_to_user_mode_loop membarrier_private_expedited signal_wake_up_state arch_do_signal_or_restart
        io_schedule eventfd_poll syscall_regfunc entry_SYSCALL_64 __x64_sys_bpf __do_sys_brk __se_sys_openat
        syscall_exit_work el0_svc_common restore_fpregs_from_fpstate fpregs_get srso_safe_ret __fdget_pos
        audit_log_start
    ";

    /// The same of programs: of Go 1.16 to 1.25, Docker, containerd, libseccomp, crun, glibc, CPython.
    const PROGRAMS: &str = "
        runtime.gcBgMarkWorker runtime.gcDrain runtime.gcAssistAlloc runtime.gcStart runtime.gcMark
        runtime.gcSweep runtime.gcFlushBgCredit runtime.gcWriteBarrier runtime.gcControllerCommit
        runtime.(*gcControllerState).commit runtime.(*gcWork).balance runtime.scanobject runtime.scanblock
        runtime.scanstack runtime.scanSpan runtime.markroot runtime.markBits.isMarked runtime.greyobject
        runtime.findObject runtime.bgsweep runtime.bgscavenge runtime.sweepone runtime.(*sweepLocked).sweep
        runtime.(*sweepLocker).tryAcquire runtime.wbBufFlush runtime.(*wbBuf).get2 runtime.shade
        runtime.(*lfstack).pop runtime.stopTheWorld runtime.startTheWorld runtime.heapBits.next
        runtime.finishsweep_m runtime.(*scavengerState).run runtime.(*pageAlloc).scavenge
        runtime.typePointers.next runtime.getempty runtime.(*mheap).nextSpanForSweep
        runtime.(*mheap).reclaim runtime.(*mheap).freeSpan runtime.(*mheap).scavengeAll
        runtime.(*pageAlloc).free runtime.(*mcache).prepareForSweep runtime.(*mcache).releaseAll
        runtime.(*mspan).ensureSwept runtime.(*mspan).countAlloc runtime.(*mspan).markBitsForIndex
        runtime.(*mspan).typePointersOfUnchecked runtime.(*mspan).heapBitsSmallForAddr
        runtime.(*mspan).moveInlineMarks runtime.mallocgc runtime.newobject runtime.makeslice
        runtime.growslice runtime.newarray runtime.(*mcache).refill runtime.(*mcentral).cacheSpan
        runtime.(*mheap).alloc runtime.(*pageAlloc).find runtime.(*mspan).nextFreeIndex runtime.sysAlloc
        runtime.sysMap runtime.sysUsed runtime.sysHugePageOS runtime.persistentalloc runtime.makemap
        runtime.makechan runtime.rawstring runtime.rawbyteslice runtime.concatstring4
        runtime.slicebytetostring runtime.stringtoslicebyte runtime.memclrNoHeapPointers
        runtime.bulkBarrierBitmap runtime.(*fixalloc).alloc runtime.stackalloc runtime.stackcache_clear
        runtime.morestack runtime.nextFreeFast seccomp_rule_add _seccomp_api_update gen_bpf_generate
        db_col_init arch_syscall_translate x86_64_syscall_resolve_name
        github.com/seccomp/libseccomp-golang.errRc _cgo_3bcb48b6ca8f_Cfunc_seccomp_load
        github.com/opencontainers/runc/libcontainer/seccomp.Version
        github.com/docker/docker/profiles/seccomp.GetDefaultProfile
        github.com/containers/common/pkg/seccomp.DefaultProfile libcrun_generate_seccomp
        github.com/containerd/containerd/contrib/seccomp.arches regexp.compile regexp/syntax.Parse
        encoding/json.Marshal encoding/binary.Size encoding/base64.NewDecoder
        github.com/gogo/protobuf/proto.Size github.com/golang/protobuf/proto.Clone
        google.golang.org/protobuf/proto.Size google.golang.org/grpc.Dial github.com/containerd/ttrpc.isNil
        github.com/json-iterator/go.Wrap github.com/modern-go/reflect2.TypeOf
        github.com/containerd/typeurl.TypeURL gopkg.in/yaml%2ev2.Unmarshal github.com/BurntSushi/toml.isNil
        github.com/pelletier/go-toml.Load reflect.New yajl_tree_parse parse_json_file
        make_runtime_spec_schema_config_schema json_loads libcrun_container_load_from_file net/http.Get
        golang.org/x/net/http2.encKV crypto/md5.New net/textproto.TrimString github.com/gorilla/mux.Vars
        mime.ParseMediaType compress/flate.hash runtime.schedinit runtime.doInit1 runtime.rt0_go
        runtime.moduledataverify runtime.itabsinit runtime.goenvs runtime.initsig _rt0_amd64_linux
        internal/cpu.doinit runtime.futex runtime.notesleep runtime.newm runtime.newproc runtime.goready
        runtime.ready runtime.usleep runtime.osyield runtime.sysmon runtime.netpoll runtime.lock
        runtime.unlock runtime.chansend runtime.chanrecv runtime.selectgo runtime.mstart runtime.epollwait
        runtime.procyield runtime.gopreempt_m runtime.asyncPreempt runtime.sigsend runtime.gopark
        runtime.addtimer runtime.entersyscall runtime.exitsyscall runtime.reentersyscall runtime.clone
        runtime.preemptM runtime.systemstack sync.(*Mutex).lockSlow _dl_map_object dl_main PyObject_Call
        _PyEval_EvalFrameDefault
    ";

    /// The same of files.
    const FILES: &str = "
        libseccomp.so.2.5.4 libyajl.so.2.1.0 ld-linux-x86-64.so.2 ld-musl-x86_64.so.1 libpython3.11.so.1.0
        python3.11 python2.7
    ";

    #[test]
    fn every_name_with_a_star_stands_for_a_function_or_file_of_its_family() {
        let all = |names: &'static str, space| {
            names.split_whitespace().map(move |name| StackFrame {
                name: name.into(),
                module: "".into(),
                mode: space,
            })
        };
        let mut known: Vec<StackFrame> =
            all(KERNEL, ExecutionMode::Kernel).chain(all(PROGRAMS, ExecutionMode::User)).collect();
        known.extend(all(FILES, ExecutionMode::User).map(|file| StackFrame {
            name: "f".into(),
            module: file.name,
            ..file
        }));
        for wanted in TABLE {
            for name in wanted.names.iter().filter(|name| name.contains('*')) {
                let is_meant = |frame: &StackFrame| {
                    frame.mode == wanted.mode
                        && matches_pattern(frame, name)
                        && find_row(frame).is_some_and(|found| found.family == wanted.family)
                };
                assert!(known.iter().any(is_meant), "{name} of {:?}", wanted.family);
            }
        }
    }

    #[test]
    fn every_exact_name_leads_to_its_own_family() {
        for row in TABLE {
            for name in row.names.iter().filter(|name| !name.contains(['*', '['])) {
                let kind = if row.mode == ExecutionMode::Kernel { "k:" } else { "" };
                check(&[&format!("{kind}{name}")], row.family);
            }
        }
    }
}
