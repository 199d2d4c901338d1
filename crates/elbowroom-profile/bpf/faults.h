/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Page faults by container and class: what fault_functions.bpf.c and fault_tracepoints.bpf.c have in common.
 */
#ifndef ELBOWROOM_FAULTS_H
#define ELBOWROOM_FAULTS_H

#include "cgroup.h"
#include <bpf/bpf_tracing.h>

/* What the kernel does about a fault: do_read_fault() and so on in mm/memory.c. `FaultClass` of elbowroom-profile has this order. */
enum class {
	READ,
	COW,
	SHARED,
	ANONYMOUS,
	SWAP,
	WRITE_PROTECT,
	UNKNOWN,
	CLASSES,
};

/* Of the latencies' histogram: the bucket of a fault is the number of bits of its nanoseconds. */
#define BUCKETS 32

#define VM_SHARED 0x00000008 /* include/linux/mm.h */

/* `COUNTS_WORDS` in src/faults/fault_counter.rs. */
struct counts {
	u64 cgroup;		/* 0 where this CPU has counted nothing */
	u64 owner;		/* what stands for its container in `pages`, as of `named`; 0: it is of none */
	u64 named;		/* what `names` was then, and 1 */
	u64 faults[CLASSES];
	u64 timed[CLASSES];	/* of them, where the program sees the end of a fault */
	u64 ns[CLASSES];	/* of those that were timed */
	u64 major;
	u64 duplicates;		/* of a page of a file that another container has faulted on */
	u64 latency[BUCKETS];
};

/* Where in `counts` a cgroup id has its own. User space sets max_entries of both before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* The slots that were given out. */
static u32 taken;

/* The slot of each CPU's last fault: most are of the same cgroup, which saves looking for it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} last SEC(".maps");

/* Faults of cgroups that found no room in `counts`, one element. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} lost SEC(".maps");

/*
 * Cgroup id to the id of the container that it is a part of; 0: of none. A cgroup that is not here is younger than the last
 * look of user space, and stands for itself.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, u64);
	__type(value, u64);
} owners SEC(".maps");

/* How often `owners` has changed, one element: a reader that has it looks once for each time, not for each fault. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} names SEC(".maps");

/* A page of a file. */
struct page {
	u64 inode;
	u64 index;	/* in pages from its beginning */
	u64 device;
};

/*
 * Pages and the containers that faulted on them first, some of each hash and the container's in one word: a place for four, which
 * is one line of a cache, where a hash table would be three. 0 is no page. A fifth page of a place takes the place of one.
 */
#define PLACES (1 << 16)
#define OF_PLACE 4
#define OWNER 0xffffffULL

struct place {
	u64 pages[OF_PLACE];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLACES);
	__type(key, u32);
	__type(value, struct place);
} pages SEC(".maps");

/* The counts of a cgroup whose slot is to be looked up, or taken. */
static __always_inline struct counts *counts_by_slot(u64 cgroup, u32 *last_slot)
{
	u32 *slot = bpf_map_lookup_elem(&slots, &cgroup), zero = 0, free;
	struct counts *found;
	u64 *sum;

	if (!slot) {
		/* A CPU that comes second to the same cgroup wastes one, and takes the first's. */
		free = __sync_fetch_and_add(&taken, 1);
		if (!bpf_map_lookup_elem(&counts, &free))
			__sync_fetch_and_sub(&taken, 1);
		else
			bpf_map_update_elem(&slots, &cgroup, &free, BPF_NOEXIST);
		slot = bpf_map_lookup_elem(&slots, &cgroup);
	}
	found = slot ? bpf_map_lookup_elem(&counts, slot) : NULL;
	if (found) {
		found->cgroup = cgroup;
		*last_slot = *slot;
	} else if ((sum = bpf_map_lookup_elem(&lost, &zero))) {
		__sync_fetch_and_add(sum, 1);
	}
	return found;
}

static __always_inline struct counts *counts_of(u64 cgroup)
{
	u32 zero = 0, *slot = bpf_map_lookup_elem(&last, &zero), at;
	struct counts *found;

	if (!slot)
		return NULL;
	at = *slot;
	found = bpf_map_lookup_elem(&counts, &at);
	/* A slot is one cgroup's for good, so one that says so is right, whatever came in between. */
	return found && found->cgroup == cgroup ? found : counts_by_slot(cgroup, slot);
}

/* Every bit of the result depends on every bit of the word (the finalizer of MurmurHash3). */
static __always_inline u64 mixed(u64 word)
{
	word = (word ^ word >> 33) * 0xff51afd7ed558ccdULL;
	word = (word ^ word >> 33) * 0xc4ceb9fe1a85ec53ULL;
	return word ^ word >> 33;
}

/* What stands for a cgroup's container in `pages`; 0: it is of none. */
static __always_inline u64 owner_of(struct counts *counts)
{
	u64 cgroup = counts->cgroup, container, *times, *owner, named;
	u32 zero = 0;

	times = bpf_map_lookup_elem(&names, &zero);
	named = times ? *times + 1 : 0;
	if (counts->named != named) {
		owner = bpf_map_lookup_elem(&owners, &cgroup);
		container = owner ? *owner : cgroup;
		counts->owner = container ? (mixed(container) & OWNER) | 1 : 0;
		counts->named = named;
	}
	return counts->owner;
}

/* Whether another container than that of the counts has faulted on the page. */
static __always_inline bool is_duplicate(struct counts *counts, const struct page *page)
{
	u64 owner = owner_of(counts), hash, entry, there;
	struct place *place;
	u32 at, i;

	if (!owner || !page->inode)
		return false;
	/* No two pages of two files are the same word, but by chance: the factor (the golden ratio's) spreads files over all of them. */
	hash = mixed((page->inode ^ page->device << 32) * 0x9e3779b97f4a7c15ULL + page->index);
	at = hash & (PLACES - 1);
	place = bpf_map_lookup_elem(&pages, &at);
	if (!place)
		return false;
	entry = (hash & ~OWNER) | owner;
	for (i = 0; i < OF_PLACE; i++) {
		there = place->pages[i];
		if (there && ((there ^ entry) & ~OWNER) == 0)
			return there != entry;
		if (!there)
			break;
	}
	if (i == OF_PLACE)
		i = hash >> 16;
	place->pages[i & (OF_PLACE - 1)] = entry;
	return false;
}

/* What a fault on a page that is not there is, but for swap: handle_pte_fault() and do_fault() in mm/memory.c. */
static __always_inline enum class class_of(bool anonymous, bool shared, bool write)
{
	if (anonymous)
		return ANONYMOUS;
	if (!write)
		return READ;
	return shared ? SHARED : COW;
}

#endif
