// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Page faults as the kernel's own functions handle them: exact classes and latencies, on every architecture with BPF
 * trampolines. Linux 5.12. Some kernels refuse every program on a function; fault_tracepoints.bpf.c is for them.
 *
 * handle_mm_fault() begins and ends a fault; which of its branches is taken is told by the function that only this branch
 * calls. What the kernel handles on somebody else's behalf (get_user_pages()) has no registers and is no fault of the program.
 */
#include "faults.h"

#define FAULT_FLAG_WRITE 0x01
#define FAULT_FLAG_TRIED 0x20
/* vm_fault_t, include/linux/mm_types.h. */
#define VM_FAULT_MAJOR 0x0004
#define VM_FAULT_RETRY 0x0400

struct pt_regs;

/* The fault that a thread is in. */
struct fault {
	u64 since;	/* CLOCK_MONOTONIC ns; 0: none */
	u64 address;
	struct page page;
	u32 class;
	u32 again;	/* it has let go of the lock, and comes again */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct fault);
} faults SEC(".maps");

SEC("fentry/handle_mm_fault")
int BPF_PROG(elbowroom_begin, struct vm_area_struct *vma, unsigned long address, unsigned int flags, struct pt_regs *regs)
{
	struct inode *inode;
	struct fault *fault;

	if (!regs)
		return 0;
	fault = bpf_task_storage_get(&faults, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!fault)
		return 0;
	if (!fault->again || fault->address != address) {
		fault->since = bpf_ktime_get_ns();
		fault->address = address;
	}
	fault->again = 0;
	fault->class = class_of(!vma->vm_ops, vma->vm_flags & VM_SHARED, flags & FAULT_FLAG_WRITE);
	fault->page.inode = 0;
	if (fault->class != ANONYMOUS && vma->vm_file) {
		/* The verifier knows these pointers from the function's arguments on, so no helper has to follow them. */
		inode = vma->vm_file->f_inode;
		fault->page.inode = inode->i_ino;
		fault->page.device = inode->i_sb->s_dev;
		fault->page.index = vma->vm_pgoff + ((address - vma->vm_start) >> 12);
	}
	return 0;
}

static __always_inline void mark(enum class class)
{
	struct fault *fault = bpf_task_storage_get(&faults, bpf_get_current_task_btf(), 0, 0);

	/* do_swap_page() may call do_wp_page() for what it has brought in. */
	if (fault && fault->since && fault->class != SWAP)
		fault->class = class;
}

SEC("fentry/do_swap_page")
int elbowroom_swap(void *ctx)
{
	mark(SWAP);
	return 0;
}

SEC("fentry/do_wp_page")
int elbowroom_write_protect(void *ctx)
{
	mark(WRITE_PROTECT);
	return 0;
}

SEC("fentry/do_huge_pmd_wp_page")
int elbowroom_huge_write_protect(void *ctx)
{
	mark(WRITE_PROTECT);
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
	struct counts *counts;
	struct fault *fault;
	u32 class;
	u64 cgroup, ns;

	if (!regs)
		return 0;
	fault = bpf_task_storage_get(&faults, task, 0, 0);
	if (!fault || !fault->since)
		return 0;
	if (result & VM_FAULT_RETRY) {
		fault->again = 1;
		return 0;
	}
	ns = bpf_ktime_get_ns() - fault->since;
	fault->since = 0;
	class = fault->class;
	cgroup = cgroup_of(task);
	counts = counts_of(cgroup);
	if (!counts || class >= CLASSES)
		return 0;
	counts->faults[class]++;
	counts->ns[class] += ns;
	/* As mm_account_fault (mm/memory.c): one that waited for a disk comes again, and finds the page. */
	if ((result & VM_FAULT_MAJOR) || (flags & FAULT_FLAG_TRIED))
		counts->major++;
	if (class <= SHARED && is_duplicate(cgroup, &fault->page))
		counts->duplicates++;
	counts->latency[bucket_of(ns) & (BUCKETS - 1)]++;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
