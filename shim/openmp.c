/*
 * libelbowroom-openmp: parallel regions as wide as the container's effective CPU, for programs that are preloaded with it.
 *
 * libgomp and LLVM's libomp learn the number of CPUs when they are loaded, and then keep it. This library stands before
 * the functions that compilers put at the beginning of a region, and passes min(what the program would get, effective CPU)
 * on as the region's number of threads. It leaves alone
 *  - regions with a num_threads() or a false if() clause, and nested ones;
 *  - omp_get_max_threads() and omp_get_num_procs(): programs size arrays by them, and a view may grow later;
 *  - everything, where the user said OMP_DYNAMIC=false, and where there is no view.
 * A team that changes its size costs some 14 us per thread, so the size follows the view at most every SETTLE_MS.
 *
 * It depends on nothing (no DT_NEEDED, no symbol versions), so that it can be preloaded into programs of any C library.
 * Entry points are in entry.S.
 */
#include "page.h"
#include "resolve.h"

enum { SETTLE_MS = 50, SITES_BITS = 14, SITES = 1 << SITES_BITS, RUNTIMES = 16 };

/* In the order of entry.S. */
static const char *const entries[] = {
	"GOMP_parallel",
	"GOMP_parallel_loop_static",
	"GOMP_parallel_loop_dynamic",
	"GOMP_parallel_loop_guided",
	"GOMP_parallel_loop_runtime",
	"GOMP_parallel_loop_nonmonotonic_dynamic",
	"GOMP_parallel_loop_nonmonotonic_guided",
	"GOMP_parallel_loop_nonmonotonic_runtime",
	"GOMP_parallel_loop_maybe_nonmonotonic_runtime",
	"GOMP_parallel_sections",
	"GOMP_parallel_reductions",
	"__kmpc_fork_call",
	"__kmpc_push_num_threads",
	"__kmpc_serialized_parallel",
};

enum { FORK_CALL = 11, PUSH = 12, SERIALIZED = 13, ENTRIES = 14 };

/* One OpenMP runtime of the process; Python programs often have several. */
struct runtime {
	uintptr_t base;
	void *entry[ENTRIES];
	int (*get_level)(void);
	int (*get_max_threads)(void);
	int (*global_thread_num)(void *loc);
};

/*
 * Which runtime a region belongs to. A `site` is something of the region's that lies in the object it was compiled into: the
 * function that is its body, or its source location. (The return address would not do: compilers jump here, too.) Filled
 * from empty, never changed: a site that is not found before an empty slot is not there. Pages of it that are not needed are
 * no memory.
 */
struct site {
	uintptr_t site;
	struct runtime *runtime;
};

static struct runtime runtimes[RUNTIMES];
static struct site sites[SITES];
static uint32_t team_size;
static long team_changed;
/* Where all are taken: the last one of this thread, so that a loop over one region asks the loader once. */
static __thread struct site beyond __attribute__((tls_model("initial-exec")));
/* The program has just said num_threads() for the region that follows. */
static __thread int is_pushed __attribute__((tls_model("initial-exec")));

extern char *getenv(const char *name) WEAK;

static __attribute__((noreturn, cold)) void give_up(void)
{
	static const char why[] = "libelbowroom-openmp: the OpenMP runtime behind this call cannot be found; "
				  "run the program without --openmp\n";

	sys(NR_write, 2, (long)why, sizeof(why) - 1, 0, 0, 0);
	for (;;)
		sys(NR_exit_group, 127, 0, 0, 0, 0, 0);
}

/* Two threads that come here for the same runtime write the same. */
static struct runtime *runtime_of(const struct object *o)
{
	for (int i = 0; i < RUNTIMES; i++) {
		struct runtime *r = &runtimes[i];
		uintptr_t base = 0;

		/* Base 0: a program without position independence that has its runtime inside. It has no other. */
		if (!__atomic_compare_exchange_n(&r->base, &base, o->base | 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) &&
		    base != (o->base | 1))
			continue;
		for (int e = 0; e < ENTRIES; e++)
			r->entry[e] = object_symbol(o, entries[e]);
		r->get_level = (int (*)(void))object_symbol(o, "omp_get_level");
		r->get_max_threads = (int (*)(void))object_symbol(o, "omp_get_max_threads");
		r->global_thread_num = (int (*)(void *))object_symbol(o, "__kmpc_global_thread_num");
		return r;
	}
	return NULL;
}

/* The slot that a site would have: regions lie at any distance from each other, so all of its bits count. */
static inline unsigned home(uintptr_t site)
{
	return (uint64_t)site * 0x9e3779b97f4a7c15u >> (64 - SITES_BITS);
}

/* Asks the loader, under its lock, and notes the answer; `taken` slots from the site's own on are others'. */
static __attribute__((noinline, cold)) struct runtime *runtime_find(uintptr_t site, int entry, unsigned taken)
{
	struct runtime *r = NULL;
	struct object o;

	if (dl_iterate_phdr != NULL && object_behind(entries[entry], site, &o))
		r = runtime_of(&o);
	if (r == NULL || r->entry[entry] == NULL)
		give_up();
	for (; taken < SITES; taken++) {
		struct site *s = &sites[(home(site) + taken) % SITES];
		uintptr_t empty = 0;

		if (__atomic_compare_exchange_n(&s->site, &empty, site, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
		    empty == site) {
			__atomic_store_n(&s->runtime, r, __ATOMIC_RELEASE);
			return r;
		}
	}
	beyond = (struct site){site, r};
	return r;
}

/* Behind the slot that it would have. */
static __attribute__((noinline)) struct runtime *runtime_search(uintptr_t site, int entry)
{
	struct runtime *r;
	unsigned i;

	if (beyond.site == site)
		return beyond.runtime;
	for (i = 0; i < SITES; i++) {
		struct site *s = &sites[(home(site) + i) % SITES];
		uintptr_t there = __atomic_load_n(&s->site, __ATOMIC_RELAXED);

		if (there == site && (r = __atomic_load_n(&s->runtime, __ATOMIC_ACQUIRE)) != NULL)
			return r;
		if (there == 0 || there == site)
			break;
	}
	return runtime_find(site, entry, i);
}

static inline struct runtime *runtime_at(uintptr_t site, int entry)
{
	struct site *s = &sites[home(site)];
	struct runtime *r;

	/* A runtime has the entries that programs were linked against. */
	if (likely(__atomic_load_n(&s->site, __ATOMIC_RELAXED) == site) &&
	    likely((r = __atomic_load_n(&s->runtime, __ATOMIC_ACQUIRE)) != NULL))
		return r;
	return runtime_search(site, entry);
}

static __attribute__((noinline, cold)) int is_refused(void)
{
	static int answer; /* 1: go on, 2: refused */
	int known = __atomic_load_n(&answer, __ATOMIC_RELAXED);

	if (known == 0) {
		const char *dynamic = getenv != NULL ? getenv("OMP_DYNAMIC") : NULL, *off = "false";

		while (dynamic != NULL && (*dynamic == ' ' || *dynamic == '\t'))
			dynamic++;
		while (dynamic != NULL && *off != '\0' && (*dynamic | 32) == *off)
			dynamic++, off++;
		known = *off == '\0' ? 2 : 1;
		__atomic_store_n(&answer, known, __ATOMIC_RELAXED);
	}
	return known == 2;
}

/* The view has another size than the last team. */
static __attribute__((noinline, cold)) uint32_t team_settle(uint32_t cpus, uint32_t size)
{
	long now;

	if (cpus == 0 || is_refused())
		return 0;
	now = now_ms();
	if (size != 0 && now - __atomic_load_n(&team_changed, __ATOMIC_RELAXED) < SETTLE_MS)
		return size;
	__atomic_store_n(&team_changed, now, __ATOMIC_RELAXED);
	__atomic_store_n(&team_size, cpus, __ATOMIC_RELAXED);
	return cpus;
}

/* How many threads a region is to have that left it open; 0: as many as it would have. */
static inline uint32_t team(const struct runtime *r)
{
	uint32_t cpus = page_cpus(), size = __atomic_load_n(&team_size, __ATOMIC_RELAXED);

	if (unlikely(cpus != size))
		cpus = team_settle(cpus, size);
	if (cpus == 0 || unlikely(r->get_level == NULL || r->get_max_threads == NULL) || r->get_level() != 0)
		return 0;
	return (int)cpus < r->get_max_threads() ? cpus : 0;
}

/* What an entry goes on with: two registers. */
struct go {
	void *to;
	unsigned long threads;
};

/* At each GOMP_parallel*; called by entry.S. */
__attribute__((visibility("hidden"), used)) struct go openmp_gomp(int entry, uintptr_t body, unsigned threads)
{
	struct runtime *r = runtime_at(body, entry);

	return (struct go){r->entry[entry], threads != 0 ? threads : team(r)};
}

/* At each __kmpc_fork_call; called by entry.S. */
__attribute__((visibility("hidden"), used)) void *openmp_kmpc_fork(void *loc, uintptr_t body)
{
	struct runtime *r = runtime_at(body, FORK_CALL);
	uint32_t threads;

	if (is_pushed) {
		is_pushed = 0;
	} else if (r->entry[PUSH] != NULL && r->global_thread_num != NULL && (threads = team(r)) != 0) {
		void (*push)(void *, int, int) = (void (*)(void *, int, int))r->entry[PUSH];

		push(loc, r->global_thread_num(loc), (int)threads);
	}
	return r->entry[FORK_CALL];
}

__attribute__((visibility("default"))) void __kmpc_push_num_threads(void *loc, int thread, int threads)
{
	struct runtime *r = runtime_at((uintptr_t)loc, PUSH);

	is_pushed = 1;
	((void (*)(void *, int, int))r->entry[PUSH])(loc, thread, threads);
}

/* A region with a false if() clause, in the place of __kmpc_fork_call: clang has said its num_threads() all the same. */
__attribute__((visibility("default"))) void __kmpc_serialized_parallel(void *loc, int thread)
{
	struct runtime *r = runtime_at((uintptr_t)loc, SERIALIZED);

	is_pushed = 0;
	((void (*)(void *, int))r->entry[SERIALIZED])(loc, thread);
}
