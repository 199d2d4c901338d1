/*
 * Asks the kernel again and again. `storm SECONDS`: calls, failures, the longest call in microseconds, and the least and most CPUs
 * that were shown, on one line. `storm N`, N above 1000: median and 95th percentile of N calls in batches of 100, in nanoseconds, of
 * sched_getaffinity, sysinfo and getppid, which only the kernel answers.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 100 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void call(int which)
{
	struct sysinfo info;
	cpu_set_t set;

	if (which == 0)
		syscall(SYS_sched_getaffinity, 0, sizeof(set), &set);
	else if (which == 1)
		syscall(SYS_sysinfo, &info);
	else
		syscall(SYS_getppid);
}

static int measure(int calls)
{
	int batches = calls / BATCH;
	double *took = malloc(batches * sizeof(*took));

	for (int which = 0; which < 3; which++) {
		for (int i = 0; i < batches; i++) {
			double began = now();

			for (int n = 0; n < BATCH; n++)
				call(which);
			took[i] = (now() - began) * 1e9 / BATCH;
		}
		qsort(took, batches, sizeof(*took), ascending);
		printf("%.0f %.0f ", took[batches / 2], took[batches * 95 / 100]);
	}
	printf("\n");
	return 0;
}

int main(int argc, char **argv)
{
	int seconds = argc > 1 ? atoi(argv[1]) : 1, least = CPU_SETSIZE, most = 0;
	long calls = 0, failed = 0;
	double end = now() + seconds, longest = 0;

	if (seconds > 1000)
		return measure(seconds);
	while (now() < end) {
		struct sysinfo info;
		double began = now(), took;
		cpu_set_t set;
		int shown;

		if (sched_getaffinity(0, sizeof(set), &set) != 0 || sysinfo(&info) != 0) {
			failed++;
		} else {
			shown = CPU_COUNT(&set);
			least = shown < least ? shown : least;
			most = shown > most ? shown : most;
		}
		took = now() - began;
		longest = took > longest ? took : longest;
		calls++;
	}
	printf("%ld %ld %.0f %d %d\n", calls, failed, longest * 1e6, least, most);
	return 0;
}
