// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Page faults as the kernel's own functions handle them: exact classes and latencies, on every architecture with BPF
 * trampolines. Linux 5.12. Some kernels refuse every program on a function; fault_tracepoints.bpf.c is for them.
 *
 * A fault is counted where handle_mm_fault() ends; which of its branches was taken is told by the function that only this branch
 * calls. Where latencies are wanted, there is a program at its begin too, which every fault pays for, and times one in some. What
 * the kernel handles on another process's behalf (get_user_pages()) has no registers and is no fault of the program.
 */
#include "faults.h"

#define FAULT_FLAG_WRITE 0x01
#define FAULT_FLAG_TRIED 0x20
/* vm_fault_t, include/linux/mm_types.h. */
#define VM_FAULT_MAJOR 0x0004
#define VM_FAULT_RETRY 0x0400
#define VM_FAULT_COMPLETED 0x4000

/* One in so many faults is timed; a power of 2. `TIMED_ONE_IN` of elbowroom-profile. */
#define TIMED_ONE_IN 16

struct pt_regs;

/* The fault that a thread is in: of those that are timed, that wait, or that a branch told of. */
struct fault {
	u64 thread;	/* its thread; 0: free */
	u64 since;	/* CLOCK_MONOTONIC ns; 0: it is not timed */
	u64 address;	/* of the one that is timed, or waits */
	u64 told_at;	/* the page that a branch told of */
	u32 told;	/* the class that it told, which is never READ; 0: none */
	u32 again;	/* it has let go of the lock, and comes again */
	u32 crowded;	/* some thread found the place taken */
} __attribute__((aligned(64))); /* threads of a program are neighbours here, and each has a line of a cache of its own */

/* A place for each of so many threads at a time, by their number: to look there costs a fraction of a look at a task's storage. */
#define THREADS (1 << 14)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THREADS);
	__type(key, u32);
	__type(value, struct fault);
} faults SEC(".maps");

/* The faults of threads that found their slot taken. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct fault);
} others SEC(".maps");

/* The fault that this thread is in; where there is none yet, a new one if `begin`. */
static __always_inline struct fault *fault_of(struct task_struct *task, bool begin)
{
	/* A number is used again, but not with the same time. */
	u64 thread = (u64)task->pid << 32 | (u32)task->start_time;
	u32 place = task->pid & (THREADS - 1);
	struct fault *fault = bpf_map_lookup_elem(&faults, &place), *other;

	if (!fault || fault->thread == thread)
		return fault;
	if (fault->crowded) {
		other = bpf_task_storage_get(&others, task, 0, 0);
		if (other && other->thread)
			return other;
	}
	if (!begin)
		return NULL;
	if (!__sync_val_compare_and_swap(&fault->thread, 0, thread))
		return fault;
	fault->crowded = 1;
	other = bpf_task_storage_get(&others, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (other)
		other->thread = thread;
	return other;
}

SEC("fentry/handle_mm_fault")
int BPF_PROG(elbowroom_begin, struct vm_area_struct *vma, unsigned long address, unsigned int flags, struct pt_regs *regs)
{
	struct fault *fault;

	/* One that comes again began before; by which flag depends on the lock that it had. */
	if (!regs || (flags & FAULT_FLAG_TRIED) || (bpf_get_prandom_u32() & (TIMED_ONE_IN - 1)))
		return 0;
	fault = fault_of(bpf_get_current_task_btf(), true);
	if (!fault || (fault->again && fault->address == address))
		return 0;
	fault->again = 0;
	fault->since = bpf_ktime_get_ns();
	fault->address = address;
	return 0;
}

#define PAGE_MASK (~4095UL)

/* A page that is told of and not faulted on (MADV_COLLAPSE) is another than that of the next fault. */
static __always_inline void tell(enum class class, u64 address)
{
	struct fault *fault = fault_of(bpf_get_current_task_btf(), true);

	address &= PAGE_MASK;
	/* do_swap_page() may call do_wp_page() for what it has brought in. */
	if (!fault || (fault->told == SWAP && fault->told_at == address))
		return;
	fault->told = class;
	fault->told_at = address;
}

SEC("fentry/do_swap_page")
int BPF_PROG(elbowroom_swap, struct vm_fault *vmf)
{
	tell(SWAP, vmf->address);
	return 0;
}

SEC("fentry/do_wp_page")
int BPF_PROG(elbowroom_write_protect, struct vm_fault *vmf)
{
	tell(WRITE_PROTECT, vmf->address);
	return 0;
}

SEC("fentry/do_huge_pmd_wp_page")
int BPF_PROG(elbowroom_huge_write_protect, struct vm_fault *vmf)
{
	tell(WRITE_PROTECT, vmf->address);
	return 0;
}

/* The place of the highest bit, at most that of the last bucket. */
static __always_inline u32 bucket_of(u64 ns)
{
	u32 bits = ns >> 32 ? 0xffffffff : ns, bucket = 0;

	if (bits >> 16) {
		bits >>= 16;
		bucket += 16;
	}
	if (bits >> 8) {
		bits >>= 8;
		bucket += 8;
	}
	if (bits >> 4) {
		bits >>= 4;
		bucket += 4;
	}
	if (bits >> 2) {
		bits >>= 2;
		bucket += 2;
	}
	return bucket + (bits >> 1);
}

SEC("fexit/handle_mm_fault")
int BPF_PROG(elbowroom_end, struct vm_area_struct *vma, unsigned long address, unsigned int flags, struct pt_regs *regs,
	     unsigned int result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct fault *fault = fault_of(task, result & VM_FAULT_RETRY);
	u64 since = 0, ns;
	struct counts *counts;
	struct inode *inode;
	struct page page;
	u32 class = 0;

	if (result & VM_FAULT_RETRY) {
		if (!fault)
			return 0;
		if (fault->address != address)
			fault->since = 0;
		fault->address = address;
		fault->again = 1;
		return 0;
	}
	if (fault) {
		class = fault->told_at == (address & PAGE_MASK) ? fault->told : 0;
		since = fault->address == address ? fault->since : 0;
		fault->since = 0;
		fault->told = 0;
		fault->again = 0;
		/* After all that: a free one may be taken. */
		__sync_lock_test_and_set(&fault->thread, 0);
	}
	if (!regs)
		return 0;
	/* The lock is gone, and the area may be: what lets go of it is the first write to a shared page (fault_dirty_shared_page()). */
	if (!class && (result & VM_FAULT_COMPLETED))
		class = SHARED;
	else if (!class)
		class = class_of(!vma->vm_ops, vma->vm_flags & VM_SHARED, flags & FAULT_FLAG_WRITE);
	counts = counts_of(cgroup_of(task));
	if (!counts || class >= CLASSES)
		return 0;
	counts->faults[class]++;
	/* As mm_account_fault (mm/memory.c): one that waited for a disk comes again, and finds the page. */
	if ((result & VM_FAULT_MAJOR) || (flags & FAULT_FLAG_TRIED))
		counts->major++;
	if (class <= SHARED && !(result & VM_FAULT_COMPLETED) && vma->vm_file) {
		/* The verifier knows these pointers from the function's arguments on, so no helper has to follow them. */
		inode = vma->vm_file->f_inode;
		page.inode = inode->i_ino;
		page.device = inode->i_sb->s_dev;
		page.index = vma->vm_pgoff + ((address - vma->vm_start) >> 12);
		if (is_duplicate(counts, &page))
			counts->duplicates++;
	}
	if (since) {
		ns = bpf_ktime_get_ns() - since;
		counts->timed[class]++;
		counts->ns[class] += ns;
		counts->latency[bucket_of(ns) & (BUCKETS - 1)]++;
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
