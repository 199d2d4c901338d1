// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "virtualmax.h"

#include <stdbool.h>
#include <string.h>
#include "hook.h"
#include "vmstructs.h"

typedef bool (*parallel_expand_fn)(void *generation, size_t bytes);
typedef bool (*g1_expand_fn)(void *heap, size_t bytes, void *workers, double *milliseconds);
typedef size_t (*g1_capacity_fn)(const void *heap);

/* A generation of ParallelGC, by what the machine says of its data. */
struct generation {
	void **self;
	size_t space;		/* offset of its PSVirtualSpace* */
	size_t largest;		/* offset of _max_gen_size */
	size_t reserved;	/* the largest size it was born with */
	size_t alignment;
};

static enum collector collector = OTHER;
static struct hook hook;
static struct generation young, old;
static size_t low_offset, high_offset, reserved_high_offset, alignment_offset;
static void **heap;
static size_t gc_active_offset, collections_offset;
static g1_capacity_fn g1_capacity;
static size_t g1_region;

static struct heap_counts counts;
static uint64_t ceiling;	/* what VirtualMax is lifted to first; 0 is no bound at all */
static void *vm_thread;		/* thread pointer of the thread that collects and allocates in pauses */
/* Of the VM thread alone: an allocation was refused in a pause, and how many collections there had been. */
static bool wanted;
static uint32_t wanted_at;

static uint64_t limit_now(void)
{
	return __atomic_load_n(&counts.limit, __ATOMIC_RELAXED);
}

static size_t committed(const struct generation *generation)
{
	void *space = vm_pointer(*generation->self, generation->space);

	return (char *)vm_pointer(space, high_offset) - (char *)vm_pointer(space, low_offset);
}

/* A generation's largest size: `bytes`, but never below what is committed, nor above what was reserved. */
static size_t bound(const struct generation *generation, uint64_t bytes)
{
	size_t least = committed(generation);
	size_t whole = bytes / generation->alignment * generation->alignment;

	if (whole < least)
		whole = least;
	return whole < generation->reserved ? whole : generation->reserved;
}

/* What `committed` leaves of a limit. */
static uint64_t left(uint64_t limit, size_t committed)
{
	return limit > committed ? limit - committed : 0;
}

/*
 * ParallelGC, in a pause: divides the limit between the generations. Their sum is what is bounded: the old one may have all that
 * the young one has not committed. The young one grows no further than its part of what was reserved, and never into what the
 * old one has.
 */
static void divide(uint64_t limit)
{
	size_t young_max = young.reserved, old_max = old.reserved;

	if (limit) {
		/* Exact to a byte is not needed. */
		uint64_t part = (double)limit * young.reserved / (young.reserved + old.reserved);
		uint64_t rest = left(limit, committed(&old));

		young_max = bound(&young, part < rest ? part : rest);
		old_max = bound(&old, left(limit, committed(&young)));
	}
	*vm_size(*young.self, young.largest) = young_max;
	*vm_size(*old.self, old.largest) = old_max;
}

/* In a pause: to the ceiling, and from there away. */
static void lift(void)
{
	uint64_t next = __atomic_load_n(&ceiling, __ATOMIC_RELAXED);

	if (next <= limit_now())
		next = 0;
	/* In this order: a caller that knows of fewer lifts than there are sets nothing, and one that knows of this lift knows where to. */
	__atomic_store_n(&counts.lifted_to, next, __ATOMIC_RELAXED);
	__atomic_fetch_add(&counts.lifted, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&counts.limit, next, __ATOMIC_RELEASE);
	if (collector == PARALLEL)
		divide(next);
}

/*
 * True when an expansion above the limit must be refused. Programs' threads come here before they ask for a collection, and
 * collections with a wish (a size policy) or a promotion, which has its own way out, a full collection. What the VM thread wants
 * between collections is an allocation that found no room after one. It is refused once, and granted when the full collection that
 * follows at once did not help. ParallelGC may begin that full collection with a young one, which counts too (ScavengeBeforeFullGC).
 */
static bool refuses(void)
{
	uint32_t collections = *(uint32_t *)((char *)*heap + collections_offset);
	bool collects = *((uint8_t *)*heap + gc_active_offset);

	if (!collects && __builtin_thread_pointer() == __atomic_load_n(&vm_thread, __ATOMIC_RELAXED)) {
		uint32_t passed = collections - wanted_at;

		if (wanted && (passed == 1 || (collector == PARALLEL && passed == 2))) {
			wanted = false;
			lift();
			return false;
		}
		wanted_at = collections;
		wanted = true;
	}
	__atomic_fetch_add(&counts.refused, 1, __ATOMIC_RELAXED);
	return true;
}

/* What of `bytes` an expansion may have: all, a part in whole `units`, or nothing. */
static size_t allowed(size_t bytes, size_t committed, uint64_t limit, size_t unit)
{
	size_t room = left(limit, committed) / unit * unit;
	bool in_collection = *((uint8_t *)*heap + gc_active_offset);

	if (bytes <= room)
		return bytes;
	if (!refuses())
		return bytes;
	return in_collection ? room : 0;
}

static bool parallel_expand(void *generation, size_t bytes)
{
	uint64_t limit = limit_now();

	if (limit && generation == *old.self)
		bytes = allowed(bytes, committed(&young) + committed(&old), limit, old.alignment);
	return bytes && ((parallel_expand_fn)hook.original)(generation, bytes);
}

static bool g1_expand(void *self, size_t bytes, void *workers, double *milliseconds)
{
	uint64_t limit = limit_now();

	if (limit && self == *heap)
		bytes = allowed(bytes, g1_capacity(self), limit, g1_region);
	return bytes && ((g1_expand_fn)hook.original)(self, bytes, workers, milliseconds);
}

static int find_generation(struct generation *generation, const char *type, const char *field, struct text *why)
{
	char pointer[32];
	void *address, *space;

	snprintf(pointer, sizeof(pointer), "%s*", type);
	if (vm_static("ParallelScavengeHeap", field, pointer, &address, why) ||
	    vm_offset(type, "_virtual_space", "PSVirtualSpace*", &generation->space, why) ||
	    vm_offset(type, "_max_gen_size", "const size_t", &generation->largest, why))
		return -1;
	generation->self = address;
	if (!*generation->self || !(space = vm_pointer(*generation->self, generation->space)))
		return say(why, "ParallelGC has not made its generations");
	generation->alignment = *vm_size(space, alignment_offset);
	generation->reserved = *vm_size(*generation->self, generation->largest);
	/* What it means must be what it says: the largest size is the space that was reserved, and holds what is committed. */
	if (!generation->alignment || generation->alignment & (generation->alignment - 1) ||
	    generation->reserved % generation->alignment || committed(generation) % generation->alignment ||
	    generation->reserved != (size_t)((char *)vm_pointer(space, reserved_high_offset) -
					     (char *)vm_pointer(space, low_offset)) ||
	    committed(generation) > generation->reserved)
		return say(why, "%s is not laid out as expected", type);
	return 0;
}

static int prepare_parallel(struct text *why)
{
	hook.replacement = (void *)parallel_expand;
	if (vm_offset("PSVirtualSpace", "_committed_low_addr", "char*", &low_offset, why) ||
	    vm_offset("PSVirtualSpace", "_committed_high_addr", "char*", &high_offset, why) ||
	    vm_offset("PSVirtualSpace", "_reserved_high_addr", "char*", &reserved_high_offset, why) ||
	    vm_offset("PSVirtualSpace", "_alignment", "const size_t", &alignment_offset, why) ||
	    find_generation(&young, "PSYoungGen", "_young_gen", why) ||
	    find_generation(&old, "PSOldGen", "_old_gen", why))
		return -1;
	return 0;
}

static int prepare_g1(const struct machine *machine, const struct symbol *capacity, size_t reserved, struct text *why)
{
	const char *region = machine->version >= 25 ? "G1HeapRegion" : "HeapRegion";
	void *address;
	size_t now;

	hook.replacement = (void *)g1_expand;
	if (vm_static(region, "GrainBytes", "size_t", &address, why))
		return -1;
	if (capacity->found != 1)
		return say(why, "libjvm.so has no %s", capacity->name);
	g1_region = *(size_t *)address;
	g1_capacity = (g1_capacity_fn)capacity->address;
	now = g1_capacity(*heap);
	if (!g1_region || g1_region & (g1_region - 1) || !now || now % g1_region || now > reserved)
		return say(why, "G1's heap is not laid out as expected");
	return 0;
}

/* The size of the reserved heap, by CollectedHeap itself; 0 when it is not known. */
static size_t reserved_heap(struct text *why)
{
	size_t region, words;

	if (vm_offset("CollectedHeap", "_reserved", "MemRegion", &region, why) ||
	    vm_offset("MemRegion", "_word_size", "size_t", &words, why))
		return 0;
	return *vm_size(*heap, region + words) * sizeof(void *);
}

int virtual_max_prepare(const struct elf *elf, const struct machine *machine, struct text *why)
{
	struct symbol symbols[2] = {
		{ .name = machine->collector == G1 && machine->version >= 21 ?
				  "_ZN15G1CollectedHeap6expandEmP13WorkerThreadsPd" :
			  machine->collector == G1 ? "_ZN15G1CollectedHeap6expandEmP8WorkGangPd" :
						     "_ZN8PSOldGen6expandEm" },
		{ .name = "_ZNK15G1CollectedHeap8capacityEv" },
	};
	void *address;
	size_t reserved;

	if (machine->collector != G1 && (machine->collector != PARALLEL || machine->version < 17))
		return say(why, "the heap of this collector has no VirtualMax in JDK %d", machine->version);
	if (vm_static("Universe", "_collectedHeap", "CollectedHeap*", &address, why))
		return -1;
	heap = address;
	if (!*heap)
		return say(why, "there is no heap yet");
	/* It was renamed in JDK 21. */
	if ((vm_offset("CollectedHeap", "_is_stw_gc_active", "bool", &gc_active_offset, why) &&
	     vm_offset("CollectedHeap", "_is_gc_active", "bool", &gc_active_offset, why)) ||
	    vm_offset("CollectedHeap", "_total_collections", "unsigned int", &collections_offset, why) ||
	    elf_find(elf, symbols, 2, why))
		return -1;
	reserved = reserved_heap(why);
	if (!reserved)
		return -1;
	if (machine->collector == G1 ? prepare_g1(machine, &symbols[1], reserved, why) : prepare_parallel(why))
		return -1;
	if (machine->collector == PARALLEL && young.reserved + old.reserved > reserved)
		return say(why, "ParallelGC's heap is not laid out as expected");
	hook.symbol = symbols[0];
	if (hook_prepare(elf, &hook, why))
		return -1;
	collector = machine->collector;
	return 0;
}

void virtual_max_in_pause(void)
{
	uint64_t limit = limit_now();

	__atomic_store_n(&vm_thread, __builtin_thread_pointer(), __ATOMIC_RELAXED);
	if (collector == OTHER || (!hook_is_in_place(&hook) && (!limit || hook_place(&hook))))
		return;
	if (collector == PARALLEL)
		divide(limit);
}

void virtual_max_set(uint64_t bytes, uint64_t lifted, uint64_t lifts)
{
	/* A GC pause does not stop the calling thread: a lift meanwhile changes the limit, and the exchange below fails. */
	uint64_t limit = __atomic_load_n(&counts.limit, __ATOMIC_ACQUIRE);

	__atomic_store_n(&ceiling, lifted, __ATOMIC_RELAXED);
	if (lifts == ANY_LIFTS)
		__atomic_store_n(&counts.limit, bytes, __ATOMIC_RELAXED);
	else if (lifts == __atomic_load_n(&counts.lifted, __ATOMIC_ACQUIRE))
		__atomic_compare_exchange_n(&counts.limit, &limit, bytes, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

int virtual_max_state(struct heap_counts *copy)
{
	copy->lifted = __atomic_load_n(&counts.lifted, __ATOMIC_ACQUIRE);
	copy->lifted_to = __atomic_load_n(&counts.lifted_to, __ATOMIC_RELAXED);
	copy->refused = __atomic_load_n(&counts.refused, __ATOMIC_RELAXED);
	copy->limit = limit_now();
	return collector != OTHER;
}
