// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "gcthreads.h"

#include <string.h>
#include "hook.h"
#include "rule.h"

typedef uint32_t (*calculate_fn)(uint64_t total, uint64_t active, uint64_t application_threads);
typedef uint32_t (*ask_fn)(void *self);
typedef void (*set_fn)(void *self, uint32_t workers);

/* How a function is called, tried, and when it may be changed. */
enum shape {
	CALCULATE,	/* a static function of three numbers */
	ASK,		/* answers a number */
	SET,		/* is told a number */
};

struct decision {
	struct hook hook;
	enum shape shape;
	int first_pause_only;	/* called by a concurrent thread too, which sleeps until the first collection */
};

enum { DECISIONS_MAX = 16 };

static struct decision decisions[DECISIONS_MAX];
static uint32_t prepared, forbidden;
static struct gc_counts counts;
static uint32_t floor_threads = 2;
static int32_t (*effective_cpus)(void);

static uint32_t capped(uint64_t total, uint32_t active)
{
	int32_t effective_cpu = effective_cpus();
	uint32_t given = gc_threads((uint32_t)total, active, effective_cpu < 0 ? 0 : (uint32_t)effective_cpu, floor_threads);

	__atomic_store_n(&counts.total, (uint32_t)total, __ATOMIC_RELAXED);
	__atomic_store_n(&counts.active, active, __ATOMIC_RELAXED);
	__atomic_store_n(&counts.given, given, __ATOMIC_RELAXED);
	__atomic_store_n(&counts.effective_cpu, (uint32_t)effective_cpu, __ATOMIC_RELAXED);
	__atomic_fetch_add(&counts.decisions, 1, __ATOMIC_RELAXED);
	if (given < active)
		__atomic_fetch_add(&counts.capped, 1, __ATOMIC_RELAXED);
	return given;
}

/* One replacement for each place in `decisions`: a replacement must know which original to call. */
#define REPLACEMENTS(n)                                                                              \
	static uint32_t calculate_##n(uint64_t total, uint64_t active, uint64_t application_threads) \
	{                                                                                            \
		calculate_fn original = (calculate_fn)decisions[n].hook.original;                    \
		return capped(total, original(total, active, application_threads));                  \
	}                                                                                            \
	static uint32_t ask_##n(void *self)                                                          \
	{                                                                                            \
		uint32_t active = ((ask_fn)decisions[n].hook.original)(self);                        \
		return capped(active, active);                                                       \
	}                                                                                            \
	static void set_##n(void *self, uint32_t workers)                                            \
	{                                                                                            \
		((set_fn)decisions[n].hook.original)(self, capped(workers, workers));                \
	}

REPLACEMENTS(0) REPLACEMENTS(1) REPLACEMENTS(2) REPLACEMENTS(3) REPLACEMENTS(4) REPLACEMENTS(5)
REPLACEMENTS(6) REPLACEMENTS(7) REPLACEMENTS(8) REPLACEMENTS(9) REPLACEMENTS(10) REPLACEMENTS(11)
REPLACEMENTS(12) REPLACEMENTS(13) REPLACEMENTS(14) REPLACEMENTS(15)

#define ROW(n) { (void *)calculate_##n, (void *)ask_##n, (void *)set_##n }
static void *const replacements[DECISIONS_MAX][3] = {
	ROW(0), ROW(1), ROW(2), ROW(3), ROW(4), ROW(5), ROW(6), ROW(7),
	ROW(8), ROW(9), ROW(10), ROW(11), ROW(12), ROW(13), ROW(14), ROW(15),
};

struct known {
	int from, to;	/* versions */
	enum collector collector;
	enum shape shape;
	int first_pause_only;
	const char *symbol;
};

/*
 * Which function each collector asks: PSScavenge and PSParallelCompact, G1 young (VM thread) and G1FullCollector ask
 * calc_active_workers. Shenandoah's policy asks it and calc_active_conc_workers up to 21, and gives the flags themselves in 25.
 * G1 marking asks calc_active_marking_workers, from its concurrent thread. ZGC with one generation is told by its director.
 */
#define SHENANDOAH_25(name) { 25, 25, SHENANDOAH, ASK, 0, "_ZN22ShenandoahWorkerPolicy" name "Ev" }
static const struct known table[] = {
	{ 11, 11, PARALLEL, CALCULATE, 0, "_ZN18AdaptiveSizePolicy19calc_active_workersEmmm" },
	{ 11, 11, G1, CALCULATE, 0, "_ZN18AdaptiveSizePolicy19calc_active_workersEmmm" },
	{ 11, 11, SHENANDOAH, CALCULATE, 0, "_ZN18AdaptiveSizePolicy19calc_active_workersEmmm" },
	{ 11, 11, SHENANDOAH, CALCULATE, 0, "_ZN18AdaptiveSizePolicy24calc_active_conc_workersEmmm" },
	{ 17, 25, PARALLEL, CALCULATE, 0, "_ZN12WorkerPolicy19calc_active_workersEmmm" },
	{ 17, 25, G1, CALCULATE, 0, "_ZN12WorkerPolicy19calc_active_workersEmmm" },
	{ 11, 25, G1, ASK, 1, "_ZN16G1ConcurrentMark27calc_active_marking_workersEv" },
	{ 17, 21, SHENANDOAH, CALCULATE, 0, "_ZN12WorkerPolicy19calc_active_workersEmmm" },
	{ 17, 21, SHENANDOAH, CALCULATE, 0, "_ZN12WorkerPolicy24calc_active_conc_workersEmmm" },
	SHENANDOAH_25("29calc_workers_for_init_marking"),
	SHENANDOAH_25("29calc_workers_for_conc_marking"),
	SHENANDOAH_25("28calc_workers_for_rs_scanning"),
	SHENANDOAH_25("30calc_workers_for_final_marking"),
	SHENANDOAH_25("37calc_workers_for_conc_refs_processing"),
	SHENANDOAH_25("37calc_workers_for_conc_root_processing"),
	SHENANDOAH_25("26calc_workers_for_conc_evac"),
	SHENANDOAH_25("23calc_workers_for_fullgc"),
	SHENANDOAH_25("32calc_workers_for_stw_degenerated"),
	SHENANDOAH_25("32calc_workers_for_conc_update_ref"),
	SHENANDOAH_25("33calc_workers_for_final_update_ref"),
	SHENANDOAH_25("27calc_workers_for_conc_reset"),
	SHENANDOAH_25("29calc_workers_for_conc_cleanup"),
	{ 17, 17, Z, SET, 0, "_ZN5ZHeap18set_active_workersEj" },
	{ 21, 21, Z, SET, 0, "_ZN5XHeap18set_active_workersEj" },
};

/* The moved function must say what the function says, and that must make sense: it is a pure function of its arguments. */
static int agrees(const struct decision *decision)
{
	calculate_fn function, original;
	uint64_t total;

	if (decision->shape != CALCULATE)
		return 1;
	function = (calculate_fn)decision->hook.symbol.address;
	original = (calculate_fn)decision->hook.original;
	for (total = 1; total <= 8; total *= 2) {
		uint32_t said = function(total, total, 1);

		if (said != original(total, total, 1) || said < 1 || said > 4096)
			return 0;
	}
	return 1;
}

static int prepare(const struct elf *elf, struct decision *decision, struct text *why)
{
	if (hook_prepare(elf, &decision->hook, why))
		return -1;
	if (!agrees(decision))
		return say(why, "%s does not answer as expected", decision->hook.symbol.name);
	return 0;
}

/*
 * What JVM_ActiveProcessorCount answers from: the cgroup's files, read again when 20 ms old. JVM_ActiveProcessorCount itself
 * changes the state of the Java thread that calls it, and collections are run by threads that are none.
 */
static int find_effective_cpus(const struct elf *elf, const struct machine *machine, struct text *why)
{
	struct symbol symbol = { .name = "_ZN2os22active_processor_countEv" };
	int tries;

	if (elf_find(elf, &symbol, 1, why))
		return -1;
	if (symbol.found != 1)
		return say(why, "libjvm.so has no %s", symbol.name);
	effective_cpus = (int32_t (*)(void))symbol.address;
	/* They may differ while the view changes. */
	for (tries = 0; tries < 5; tries++) {
		int32_t cpus = effective_cpus();

		if (cpus >= 1 && cpus == machine->processors())
			return 0;
	}
	return say(why, "%s does not answer as expected", symbol.name);
}

int gc_threads_prepare(const struct elf *elf, const struct machine *machine, struct text *why)
{
	struct symbol symbols[DECISIONS_MAX];
	uint32_t i, count = 0;
	size_t k;

	floor_threads = machine->floor;
	if (find_effective_cpus(elf, machine, why))
		return -1;
	for (k = 0; k < sizeof(table) / sizeof(table[0]); k++) {
		const struct known *known = &table[k];

		if (known->collector != machine->collector || machine->version < known->from ||
		    machine->version > known->to)
			continue;
		memset(&decisions[count], 0, sizeof(decisions[count]));
		decisions[count].shape = known->shape;
		decisions[count].first_pause_only = known->first_pause_only;
		decisions[count].hook.replacement = replacements[count][known->shape];
		symbols[count++].name = known->symbol;
	}
	if (!count)
		return say(why, "the GC threads of this collector are not governed in JDK %d", machine->version);
	if (elf_find(elf, symbols, count, why))
		return -1;
	for (i = 0; i < count; i++) {
		decisions[i].hook.symbol = symbols[i];
		if (prepare(elf, &decisions[i], why))
			return -1;
	}
	prepared = count;
	return 0;
}

static void place(struct decision *decision)
{
	if (hook_place(&decision->hook))
		__atomic_fetch_add(&forbidden, 1, __ATOMIC_RELAXED);
}

void gc_threads_place_atomic(void)
{
	uint32_t i;

	for (i = 0; i < prepared; i++)
		if (hook_is_atomic(&decisions[i].hook))
			place(&decisions[i]);
}

void gc_threads_place_in_pause(int first_pause)
{
	uint32_t i;

	/* What was forbidden once is forbidden. */
	for (i = 0; i < prepared && !forbidden; i++)
		if (first_pause || !decisions[i].first_pause_only)
			place(&decisions[i]);
}

void gc_threads_state(uint32_t *ready, uint32_t *placed, uint32_t *denied, struct gc_counts *copy)
{
	uint32_t i;

	*ready = prepared;
	*denied = __atomic_load_n(&forbidden, __ATOMIC_RELAXED);
	*placed = 0;
	for (i = 0; i < prepared; i++)
		*placed += hook_is_in_place(&decisions[i].hook);
	/* Collections go on meanwhile: each number is whole, and they need not be of one decision. */
	copy->total = __atomic_load_n(&counts.total, __ATOMIC_RELAXED);
	copy->active = __atomic_load_n(&counts.active, __ATOMIC_RELAXED);
	copy->given = __atomic_load_n(&counts.given, __ATOMIC_RELAXED);
	copy->effective_cpu = __atomic_load_n(&counts.effective_cpu, __ATOMIC_RELAXED);
	copy->decisions = __atomic_load_n(&counts.decisions, __ATOMIC_RELAXED);
	copy->capped = __atomic_load_n(&counts.capped, __ATOMIC_RELAXED);
}
