// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Page tables as the processor reads them, whole tables at a time.
 *
 * User space names processes; every table below their mm->pgd is copied into memory that it maps. No process waits: no lock is
 * taken, so what changes meanwhile is seen before or after its change, table by table, and what is freed meanwhile may be
 * read as something else. A process whose mm is another one at the end is marked, and forgotten by user space.
 *
 * Tables are reached through the kernel's direct map of physical memory. Where that begins is a secret of every boot
 * (arch/x86/mm/kaslr.c) in steps of 1 GiB; but mm->pgd is an address in it, so the beginning is one of few, and the one is
 * right from which a page of user space's own is found at the frame that /proc/self/pagemap names.
 */
#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* Bits of an entry: Intel SDM volume 3, 4.5; arch/x86/include/asm/pgtable_types.h. */
#define PRESENT (1ULL << 0)
#define PAGE_SIZE_BIT (1ULL << 7)
#define FRAME 0x000ffffffffff000ULL

#define ENTRIES 512
#define GIB (1ULL << 30)
/* Candidates for the beginning of the direct map: as many as GiB of memory may lie below a table. */
#define CANDIDATES (1 << 16)
/* Entries looked at in one call, a fraction of a second; the next call goes on. */
#define STEPS (1 << 21)
#define NONE 0xffffffffU

/* A table that was copied; `TableCopy` in src/pages/measure/page_tables.rs. */
struct table {
	u64 address;	/* the first it translates */
	u32 pid;
	u32 level;	/* 1: of 4 KiB pages, 2: of 2 MiB, 3: of 1 GiB, and then only the first entry counts */
	u32 first;	/* entries before this one were in an earlier copy */
	u32 end;	/* entries from here on will be in a later copy */
	u64 entries[ENTRIES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2048);
	__type(key, u32);
	__type(value, struct table);
} tables SEC(".maps");

/* How far a process has been read; `ProcessWalk` in src/pages/measure/page_tables.rs. */
struct walk {
	u64 next;	/* the first address that has not been read */
	u64 mm;
	u32 done;
	u32 changed;	/* it has executed another program meanwhile */
};

/* By process id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct walk);
} walks SEC(".maps");

/* One element, which user space maps; `WalkProgramState` in src/pages/measure/page_tables.rs. */
struct state {
	u64 base;	/* where the direct map begins; 0: not known */
	u64 levels;	/* of page tables: 4 or 5 */
	u64 count;	/* of tables copied in this call */
	u64 probe_pid;	/* user space itself */
	u64 probe_address;
	u64 probe_frame;
	u64 none;	/* NONE, unknown to the verifier */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct state);
} states SEC(".maps");

static __always_inline struct state *state_of(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&states, &zero);
}

static __always_inline u64 entry_at(u64 table, u64 index)
{
	u64 entry = 0;

	bpf_probe_read_kernel(&entry, sizeof(entry), (void *)(table + index * 8));
	return entry;
}

/* Bits of an address that the tables of a level translate. */
static __always_inline u32 shift_of(u32 level)
{
	return 12 + 9 * (level - 1);
}

struct probe {
	u64 pgd;
	u64 address;
	u64 frame;
	u64 base;
	u64 levels;
};

static __always_inline bool leads_to(const struct probe *probe, u64 base, u32 levels)
{
	u64 table = probe->pgd, entry = 0;
	u32 level;

	for (level = 5; level >= 1; level--) {
		if (level > levels)
			continue;
		entry = entry_at(table, (probe->address >> shift_of(level)) & (ENTRIES - 1));
		if (!(entry & PRESENT) || (level > 1 && (entry & PAGE_SIZE_BIT)))
			return false;
		table = base + (entry & FRAME);
	}
	return (entry & FRAME) >> 12 == probe->frame;
}

static long try_base(u32 index, struct probe *probe)
{
	u64 base = (probe->pgd & ~(GIB - 1)) - index * GIB;

	if (leads_to(probe, base, 4)) {
		probe->base = base;
		probe->levels = 4;
		return 1;
	}
	if (leads_to(probe, base, 5)) {
		probe->base = base;
		probe->levels = 5;
		return 1;
	}
	return 0;
}

struct cursor {
	u64 pgd;
	u64 base;
	u64 address;
	u32 levels;
	u32 pid;
	u32 middle;	/* the copied table of 2 MiB entries whose entries are being followed, or NONE */
	u32 slot;	/* the next of them */
	u32 done;
};

/* The next free copy, filled in; NULL where there is none. */
static __always_inline struct table *copy(struct cursor *cursor, u32 level, u64 from, u32 *number)
{
	struct state *state = state_of();
	struct table *table;

	if (!state)
		return NULL;
	*number = state->count;
	table = bpf_map_lookup_elem(&tables, number);
	if (!table)
		return NULL;
	table->address = cursor->address;
	table->pid = cursor->pid;
	table->level = level;
	table->first = 0;
	table->end = ENTRIES;
	if (bpf_probe_read_kernel(table->entries, sizeof(table->entries), (void *)from))
		table->end = 0;
	state->count++;
	return table;
}

/* Leads from the top to the next table of 2 MiB entries. */
static __always_inline long descend(struct cursor *cursor)
{
	u64 table = cursor->pgd, entry = 0, address = cursor->address;
	struct table *copied;
	u32 level, number;

	for (level = 5; level >= 3; level--) {
		if (level > cursor->levels)
			continue;
		entry = entry_at(table, (address >> shift_of(level)) & (ENTRIES - 1));
		if (!(entry & PRESENT)) {
			cursor->address = ((address >> shift_of(level)) + 1) << shift_of(level);
			return 0;
		}
		table = cursor->base + (entry & FRAME);
		if (level == 3 && (entry & PAGE_SIZE_BIT)) {
			copied = copy(cursor, 3, cursor->pgd, &number);
			if (!copied)
				return 1;
			copied->address = address & ~(GIB - 1);
			copied->entries[0] = entry;
			cursor->address = copied->address + GIB;
			return 0;
		}
	}
	copied = copy(cursor, 2, table, &number);
	if (!copied)
		return 1;
	copied->address = address & ~(GIB - 1);
	cursor->middle = number;
	cursor->slot = (address >> 21) & (ENTRIES - 1);
	copied->first = cursor->slot;
	return 0;
}

/* Looks at one entry. */
static long step(u32 index, struct cursor *cursor)
{
	struct table *middle;
	u64 entry;
	u32 slot, number;

	if (cursor->middle == NONE) {
		if (cursor->address >> (shift_of(cursor->levels) + 8)) {
			cursor->done = 1;
			return 1;
		}
		return descend(cursor);
	}
	number = cursor->middle;
	middle = bpf_map_lookup_elem(&tables, &number);
	if (!middle)
		return 1;
	slot = cursor->slot;
	if (slot >= middle->end || slot >= ENTRIES) {
		cursor->address = middle->address + GIB;
		cursor->middle = NONE;
		return 0;
	}
	entry = middle->entries[slot & (ENTRIES - 1)];
	cursor->address = middle->address + ((u64)slot << 21);
	if ((entry & PRESENT) && !(entry & PAGE_SIZE_BIT) &&
	    !copy(cursor, 1, cursor->base + (entry & FRAME), &number))
		return 1;
	cursor->slot = slot + 1;
	return 0;
}

SEC("iter/task")
int elbowroom_page_tables(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct state *state = state_of();
	struct cursor cursor = {};
	struct table *middle;
	struct mm_struct *mm;
	struct walk *walk;
	u32 pid, number;

	if (!task || !state)
		return 0;
	mm = task->mm;
	if (!mm)
		return 0;
	pid = task->tgid;
	if (!state->base) {
		struct probe probe = {};

		if (pid != state->probe_pid)
			return 0;
		probe.pgd = (u64)BPF_CORE_READ(mm, pgd);
		probe.address = state->probe_address;
		probe.frame = state->probe_frame;
		bpf_loop(CANDIDATES, try_base, &probe, 0);
		state->levels = probe.levels;
		state->base = probe.base;
		return 0;
	}
	walk = bpf_map_lookup_elem(&walks, &pid);
	if (!walk || walk->done)
		return 0;
	if (walk->mm && walk->mm != (u64)mm) {
		walk->changed = 1;
		walk->done = 1;
		return 0;
	}
	walk->mm = (u64)mm;
	cursor.pgd = (u64)BPF_CORE_READ(mm, pgd);
	cursor.base = state->base;
	cursor.levels = state->levels;
	cursor.address = walk->next;
	cursor.pid = pid;
	/*
	 * Verifiers before Linux 6.7 follow a callback once, from what they know at the call, and drop the branches that this
	 * one call cannot take: so they must not know where the cursor begins.
	 */
	cursor.middle = state->none;
	cursor.slot = state->none;
	bpf_loop(STEPS, step, &cursor, 0);
	/* What was copied of a table that is not finished ends where the next call begins. */
	number = cursor.middle;
	middle = number == NONE ? NULL : bpf_map_lookup_elem(&tables, &number);
	if (middle) {
		if (middle->end > cursor.slot)
			middle->end = cursor.slot;
		cursor.address = middle->address + ((u64)cursor.slot << 21);
	}
	walk->next = cursor.address;
	walk->done = cursor.done;
	if (task->mm != mm) {
		walk->changed = 1;
		walk->done = 1;
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
