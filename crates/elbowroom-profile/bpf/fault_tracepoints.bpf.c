// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Page faults as the processor reports them: for kernels that refuse programs on their functions. x86-64, Linux 6.1.
 *
 * The tracepoints page_fault_user and page_fault_kernel fire as a fault begins and know what the processor knows: the address
 * and the error code. A write to a page that is there is a write-protection fault; what any other fault is depends on the
 * area of the address. Swapping in is known only afterwards, when the software event PAGE_FAULTS_MAJ fires on anonymous
 * memory: what is found in the swap cache counts as anonymous, and a swapped copy of a private file's page as a fault on the
 * file. There is no end of a fault, hence no latency.
 *
 * Differs from bpf_find_vma(): that takes the lock of the address space, and with interrupts off, as they are here, lets go
 * of it through an interrupt that the processor sends itself: an exit, in a virtual machine. So the tree of
 * areas is read here without a lock, for which the code that replaces its nodes allows (RCU), and the area that is found must hold
 * the address and belong to the address space. The last areas are kept until the address space changes.
 */
#include "faults.h"

/* Error code of a page fault, arch/x86/include/asm/trap_pf.h. */
#define PROTECTION (1UL << 0)
#define WRITE (1UL << 1)

/*
 * lib/maple_tree.c: the root is a node if it ends in 10b and is no error, what a node that is no leaf holds always is; a node's
 * type is in bits 3 to 6 of the pointer to it.
 */
#define NODE_MASK 255ULL
#define TYPE(entry) ((entry) >> 3 & 15)
#define LARGEST_RESERVED 4096
#define LEAF_64 1
#define RANGE_64 2
#define ARANGE_64 3
#define NODE_WORDS 32
/* A tree of 16^8 areas is deeper than any. */
#define DEPTH 8

#define RLIMIT_STACK 3

struct pt_regs;

/* What of an area decides about a fault on it. */
struct area {
	u64 mm;
	u64 changes;	/* of the address space, when this was read */
	u64 start;
	u64 end;
	u64 inode;
	u64 device;
	u64 offset;	/* in pages: of the file at `start` */
	u32 anonymous;
	u32 shared;
};

#define AREAS 64

/* The last areas of each CPU: an area is in one of a few places. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, AREAS);
	__type(key, u32);
	__type(value, struct area);
} areas SEC(".maps");

/* A node of the tree while it is being looked through, then the area: each is read at once, not field by field. */
struct copy {
	u64 words[NODE_WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct copy);
} copies SEC(".maps");

/* Changes whenever the areas may have. Before Linux 6.4 there is no such count, and their number and size stand for it. */
static __always_inline u64 changes_of(struct mm_struct *mm)
{
	struct mm_struct___6_13 *mm_6_13 = (void *)mm;
	struct mm_struct___6_4 *mm_6_4 = (void *)mm;

	if (bpf_core_field_exists(mm_6_13->mm_lock_seq))
		return mm_6_13->mm_lock_seq.sequence;
	if (bpf_core_field_exists(mm_6_4->mm_lock_seq))
		return mm_6_4->mm_lock_seq;
	return ((u64)mm->map_count << 40) + mm->total_vm;
}

/* The slot of a node that an address belongs to. */
static __always_inline u64 slot_of(const struct copy *node, u64 type, u64 address)
{
	u32 pivots, pivot, slots, i;

	if (type == ARANGE_64) {
		pivots = 9;
		pivot = bpf_core_field_offset(struct maple_arange_64, pivot) / 8;
		slots = bpf_core_field_offset(struct maple_arange_64, slot) / 8;
	} else {
		pivots = 15;
		pivot = bpf_core_field_offset(struct maple_range_64, pivot) / 8;
		slots = bpf_core_field_offset(struct maple_range_64, slot) / 8;
	}
	for (i = 0; i < 15; i++) {
		u64 last;

		if (i >= pivots)
			break;
		last = node->words[(pivot + i) & (NODE_WORDS - 1)];
		/* Unused pivots are 0; the slot before them goes to the node's end. */
		if (address <= last || (i && !last))
			break;
	}
	return node->words[(slots + i) & (NODE_WORDS - 1)];
}

/* A field of the area that was copied. */
#define FIELD(copy, field) (copy)->words[bpf_core_field_offset(struct vm_area_struct, field) / 8 & (NODE_WORDS - 1)]

/*
 * A copy of the area that holds an address; NULL where there is none, or its tree is just being changed. Its page of tree or area
 * may be gone meanwhile: what is copied is looked at, not trusted.
 */
static __always_inline const struct copy *find(struct mm_struct *mm, u64 address)
{
	u32 size = bpf_core_type_size(struct vm_area_struct), zero = 0, depth;
	struct copy *copy;
	u64 entry, type;

	copy = bpf_map_lookup_elem(&copies, &zero);
	if (!copy)
		return NULL;
	entry = (u64)mm->mm_mt.ma_root;
	if ((entry & 3) != 2 || entry <= LARGEST_RESERVED)
		return NULL;
	for (depth = 0; depth < DEPTH; depth++) {
		type = TYPE(entry);
		if (type < LEAF_64 || type > ARANGE_64)
			return NULL;
		if (bpf_probe_read_kernel(copy->words, sizeof(copy->words), (void *)(entry & ~NODE_MASK)))
			return NULL;
		entry = slot_of(copy, type, address);
		if (type == LEAF_64)
			break;
	}
	if (!entry || bpf_probe_read_kernel(copy->words, size < sizeof(copy->words) ? size : sizeof(copy->words), (void *)entry))
		return NULL;
	if (FIELD(copy, vm_start) > address || FIELD(copy, vm_end) <= address || FIELD(copy, vm_mm) != (u64)mm)
		return NULL;
	return copy;
}

/* The area of an address, from what is kept of the last ones where it can be; NULL where there is none. */
static __always_inline struct area *area_of(struct mm_struct *mm, u64 address)
{
	u64 changes = changes_of(mm);
	const struct copy *copy;
	struct inode *inode;
	struct area *area;
	struct file *file;
	u32 place;

	/* Areas of one process differ most in these bits, and processes in those of where their mm lies. */
	place = ((u64)mm / 64 + (address >> 40) + (address >> 28) + (address >> 20) / 8) & (AREAS - 1);
	area = bpf_map_lookup_elem(&areas, &place);
	if (!area)
		return NULL;
	if (area->mm == (u64)mm && area->changes == changes && area->start <= address && address < area->end)
		return area;
	copy = find(mm, address);
	if (!copy)
		return NULL;
	area->mm = (u64)mm;
	area->changes = changes;
	area->start = FIELD(copy, vm_start);
	area->end = FIELD(copy, vm_end);
	area->anonymous = !FIELD(copy, vm_ops);
	area->shared = !!(FIELD(copy, vm_flags) & VM_SHARED);
	area->offset = FIELD(copy, vm_pgoff);
	file = (struct file *)FIELD(copy, vm_file);
	inode = file ? BPF_CORE_READ(file, f_inode) : NULL;
	area->inode = inode ? BPF_CORE_READ(inode, i_ino) : 0;
	area->device = inode ? BPF_CORE_READ(inode, i_sb, s_dev) : 0;
	return area;
}

/* Whether an address without an area is one that the stack of the first thread grows to (expand_stack()). */
static __always_inline bool is_stack(struct task_struct *task, struct mm_struct *mm, u64 address)
{
	u64 top = mm->start_stack;

	return address < top && top - address <= BPF_CORE_READ(task, signal, rlim[RLIMIT_STACK].rlim_cur);
}

static __always_inline int begin(u64 address, u64 error)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct mm_struct *mm = task->mm;
	struct counts *counts;
	struct area *area;
	enum class class;

	/* Addresses of the kernel's own. */
	if (!mm || address >> 63)
		return 0;
	counts = counts_of(cgroup_of(task));
	if (!counts)
		return 0;
	if ((error & (PROTECTION | WRITE)) == (PROTECTION | WRITE)) {
		counts->faults[WRITE_PROTECT]++;
		return 0;
	}
	area = area_of(mm, address);
	if (!area) {
		class = is_stack(task, mm, address) ? ANONYMOUS : UNKNOWN;
		counts->faults[class]++;
		return 0;
	}
	class = class_of(area->anonymous, area->shared, error & WRITE);
	counts->faults[class]++;
	if (class != ANONYMOUS && area->inode) {
		struct page page = { area->inode, area->offset + ((address - area->start) >> 12), area->device };

		if (is_duplicate(counts, &page))
			counts->duplicates++;
	}
	return 0;
}

SEC("tp_btf/page_fault_user")
int BPF_PROG(elbowroom_user, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	return begin(address, error);
}

SEC("tp_btf/page_fault_kernel")
int BPF_PROG(elbowroom_kernel, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	return begin(address, error);
}

/* The end of a fault that had to wait for a disk. */
SEC("perf_event")
int elbowroom_major(struct bpf_perf_event_data *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct mm_struct *mm = task->mm;
	const struct copy *area;
	struct counts *counts;

	if (!mm)
		return 0;
	counts = counts_of(cgroup_of(task));
	if (!counts)
		return 0;
	counts->major++;
	area = find(mm, ctx->addr);
	if (area && !FIELD(area, vm_ops)) {
		counts->faults[SWAP]++;
		counts->faults[ANONYMOUS]--;
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
