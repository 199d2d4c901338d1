/*
 * Nanoseconds of one call, of each kind that the first argument names, as "what least median" over BATCHES batches. Compiled by
 * gcc and by clang, run with and without what is preloaded: bench.py.
 */
#define _GNU_SOURCE
#include "../view.h"
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

enum { BATCHES = 300 };

static volatile uint64_t sink;

static void cpus(void) { sink = elbowroom_cpus(); }
static void memory(void) { sink = elbowroom_memory(); }

static void view(void)
{
	struct elbowroom_view v;

	sink = elbowroom_view(&v) == 0 ? v.memory : 0;
}

static __attribute__((noinline)) void region(void)
{
#pragma omp parallel
	sink = 1;
}

static void online(void) { sink = sysconf(_SC_NPROCESSORS_ONLN); }

static void affinity(void)
{
	cpu_set_t set;

	sink = sched_getaffinity(0, sizeof(set), &set);
}

static void info(void)
{
	struct sysinfo i;

	sink = sysinfo(&i);
}

static const struct kind {
	const char *group, *what;
	void (*call)(void);
	int batch;
} kinds[] = {
	{"query", "elbowroom_cpus", cpus, 20000},
	{"query", "elbowroom_memory", memory, 20000},
	{"query", "elbowroom_view", view, 5000},
	{"region", "region", region, 2000},
	{"libc", "sysconf(_SC_NPROCESSORS_ONLN)", online, 500},
	{"libc", "sched_getaffinity", affinity, 2000},
	{"libc", "sysinfo", info, 2000},
};

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;

	return (d > 0) - (d < 0);
}

int main(int argc, char **argv)
{
	double ns[BATCHES];

	for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
		const struct kind *kind = &kinds[k];

		if (argc < 2 || strcmp(kind->group, argv[1]) != 0)
			continue;
		for (int b = -1; b < BATCHES; b++) {
			double begin = now_ns();

			for (int i = 0; i < kind->batch; i++)
				kind->call();
			if (b >= 0)
				ns[b] = (now_ns() - begin) / kind->batch;
		}
		qsort(ns, BATCHES, sizeof(*ns), ascending);
		printf("%s %.2f %.2f\n", kind->what, ns[0], ns[BATCHES / 2]);
	}
	return 0;
}
