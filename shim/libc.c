/*
 * libelbowroom-libc: effective CPU and memory behind the calls that programs ask, for programs that are preloaded with it.
 *
 * For what asks the kernel and not a file: musl's sysconf(), sched_getaffinity() in Node, Ruby, jemalloc and TBB, sysinfo()
 * in Bun, Deno and PHP. Static programs are out of reach, and so is who makes system calls himself (Go, Rust's std).
 * Opt-in, because of what it cannot know: a program that reads its affinity and later sets the same again has given up the
 * CPUs that were not shown.
 *
 * Without a view every call is the real one. It depends on nothing, so that any C library can load it.
 */
#include "page.h"
#include "resolve.h"

#define EXPORT __attribute__((visibility("default")))

typedef unsigned long word;

/* The kernel refuses a mask that is shorter than its own, which has 8192 at the most (CONFIG_MAXSMP). */
enum { BITS = 8 * sizeof(word), MOST_CPUS = 8192 };
/* The same numbers in glibc and musl. */
enum { SC_PAGESIZE = 30, SC_NPROCESSORS_CONF = 83, SC_NPROCESSORS_ONLN = 84, SC_PHYS_PAGES = 85, SC_AVPHYS_PAGES = 86 };

/* struct sysinfo of <linux/sysinfo.h>. */
struct system_info {
	long uptime;
	unsigned long loads[3], totalram, freeram, sharedram, bufferram, totalswap, freeswap;
	unsigned short procs, pad;
	unsigned long totalhigh, freehigh;
	unsigned int mem_unit;
};

WEAK extern int *__errno_location(void);
WEAK extern word getauxval(word type);

static long fail(long negative)
{
	if (__errno_location != NULL)
		*__errno_location() = (int)-negative;
	return -1;
}

/* The function of that name behind ours, found once. */
static void *behind(const char *name, void **cache)
{
	void *found = __atomic_load_n(cache, __ATOMIC_ACQUIRE);
	struct object o;

	if (found != NULL)
		return found;
	/* It knows versions: glibc has a pthread_getaffinity_np() of two arguments, too. */
	if (dlsym != NULL)
		found = dlsym(RTLD_NEXT, name);
	if (found == NULL && dl_iterate_phdr != NULL && object_behind(name, (uintptr_t)behind, &o))
		found = object_symbol(&o, name);
	__atomic_store_n(cache, found, __ATOMIC_RELEASE);
	return found;
}

/* The kernel's own, or what most have where it is not said. */
static word page_bytes(void)
{
	enum { AT_PAGESZ_ = 6 };
	word bytes = getauxval != NULL ? getauxval(AT_PAGESZ_) : 0;

	return bytes != 0 ? bytes : 4096;
}

/* What the view leaves, and the machine has: `info` is the kernel's word. */
static uint64_t memory_left(const struct elbowroom_view *v, const struct system_info *info)
{
	uint64_t unit = info->mem_unit != 0 ? info->mem_unit : 1, free = info->freeram * unit;
	uint64_t left = v->memory > v->memory_used ? v->memory - v->memory_used : 0;

	return left < free ? left : free;
}

/*
 * The highest CPU that the calling thread or the first one may really run on, and one: a program that makes an array of as many entries as
 * there are CPUs configured indexes it by sched_getcpu() (jemalloc's percpu_arena).
 */
static long cpus_reached(void)
{
	word mask[MOST_CPUS / BITS];
	long pids[] = {0, sys(NR_getpid, 0, 0, 0, 0, 0, 0)}, most = 0;

	for (int which = 0; which < 2; which++) {
		long bytes = sys(NR_sched_getaffinity, pids[which], sizeof(mask), (long)mask, 0, 0, 0);
		long words = bytes < 0 ? 0 : bytes / (long)sizeof(word);

		while (words > 0 && mask[words - 1] == 0)
			words--;
		if (words > 0 && words * BITS - __builtin_clzl(mask[words - 1]) > most)
			most = words * BITS - __builtin_clzl(mask[words - 1]);
	}
	return most;
}

EXPORT long sysconf(int name)
{
	static void *cache;
	struct system_info info;
	struct elbowroom_view v;
	long (*real)(int);
	long reached;

	/* An allocator asks while it cannot be called itself, and to look for the real function may allocate. */
	if (name == SC_PAGESIZE && getauxval != NULL)
		return (long)page_bytes();
	if (name >= SC_NPROCESSORS_CONF && name <= SC_AVPHYS_PAGES && page_view(&v) == 0) {
		switch (name) {
		case SC_NPROCESSORS_CONF:
			reached = cpus_reached();
			if (reached < v.cpus_most)
				reached = v.cpus_most;
			return reached > v.cpus ? reached : v.cpus;
		case SC_NPROCESSORS_ONLN:
			return v.cpus;
		case SC_PHYS_PAGES:
			return (long)(v.memory / page_bytes());
		case SC_AVPHYS_PAGES:
			if (sys(NR_sysinfo, (long)&info, 0, 0, 0, 0, 0) < 0)
				break;
			return (long)(memory_left(&v, &info) / page_bytes());
		}
	}
	real = (long (*)(int))behind("sysconf", &cache);
	return real != NULL ? real(name) : fail(-38 /* ENOSYS */);
}

EXPORT int get_nprocs(void)
{
	return (int)sysconf(SC_NPROCESSORS_ONLN);
}

EXPORT int get_nprocs_conf(void)
{
	return (int)sysconf(SC_NPROCESSORS_CONF);
}

EXPORT long get_phys_pages(void)
{
	return sysconf(SC_PHYS_PAGES);
}

EXPORT long get_avphys_pages(void)
{
	return sysconf(SC_AVPHYS_PAGES);
}

/* Leaves as many CPUs in the mask as the view has, those that are shown online first. Never adds one. */
static void reduce(word *mask, size_t words)
{
	struct elbowroom_view v;
	uint32_t left;

	if (page_view(&v) != 0)
		return;
	left = v.cpus;
	for (int online = 1; online >= 0; online--)
		for (size_t i = 0; i < words; i++)
			for (word rest = mask[i]; rest != 0; rest &= rest - 1) {
				word bit = rest & -rest;
				size_t cpu = i * BITS + (size_t)__builtin_ctzl(bit);
				int shown = cpu < ELBOWROOM_MAX_CPUS && (v.online[cpu / 64] >> cpu % 64 & 1);

				if (shown != online)
					continue;
				if (left == 0)
					mask[i] &= ~bit;
				else
					left--;
			}
}

EXPORT int sched_getaffinity(int pid, size_t size, word *mask)
{
	long bytes = sys(NR_sched_getaffinity, pid, (long)(size / sizeof(word) * sizeof(word)), (long)mask, 0, 0, 0);

	if (bytes < 0)
		return (int)fail(bytes);
	for (size_t i = (size_t)bytes; i < size; i++)
		((char *)mask)[i] = 0;
	/* Another process's affinity is asked by who means to change it. */
	if (pid == 0 || pid == sys(NR_getpid, 0, 0, 0, 0, 0, 0) || pid == sys(NR_gettid, 0, 0, 0, 0, 0, 0))
		reduce(mask, (size_t)bytes / sizeof(word));
	return 0;
}

EXPORT int pthread_getaffinity_np(unsigned long thread, size_t size, word *mask)
{
	static void *cache;
	int (*real)(unsigned long, size_t, word *);
	int error;

	real = (int (*)(unsigned long, size_t, word *))behind("pthread_getaffinity_np", &cache);
	if (real == NULL)
		return 38; /* ENOSYS */
	error = real(thread, size, mask);
	if (error == 0)
		reduce(mask, size / sizeof(word));
	return error;
}

EXPORT int sysinfo(struct system_info *info)
{
	long error = sys(NR_sysinfo, (long)info, 0, 0, 0, 0, 0);
	struct elbowroom_view v;
	uint64_t unit;

	if (error < 0)
		return (int)fail(error);
	if (page_view(&v) != 0)
		return 0;
	unit = info->mem_unit != 0 ? info->mem_unit : 1;
	info->freeram = memory_left(&v, info) / unit;
	info->totalram = v.memory / unit;
	info->sharedram = 0;
	info->bufferram = 0;
	info->procs = (unsigned short)(v.threads < 65535 ? v.threads : 65535);
	/* Fixed point with 16 bits, as the kernel has it (SI_LOAD_SHIFT). */
	for (int i = 0; i < 3; i++)
		info->loads[i] = v.load[i] * 65536ul / 100;
	return 0;
}

EXPORT int getloadavg(double *load, int count)
{
	static void *cache;
	int (*real)(double *, int);
	struct elbowroom_view v;

	if (page_view(&v) != 0) {
		real = (int (*)(double *, int))behind("getloadavg", &cache);
		return real != NULL ? real(load, count) : -1;
	}
	count = count > 3 ? 3 : count;
	for (int i = 0; i < count; i++)
		load[i] = v.load[i] / 100.0;
	return count;
}
