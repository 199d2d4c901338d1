/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* busy THREADS MS: says "ready", reads a moment of CLOCK_MONOTONIC in nanoseconds, and from then on its threads look for primes, as the CPU test
 * of sysbench does, for MS milliseconds. Says "done" and how many they found. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static struct timespec start;
static int64_t end_ns;

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void *look(void *found)
{
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, NULL);
	for (long n = 3; now_ns() < end_ns; n = n < 10000 ? n + 2 : 3) {
		long d = 3;

		while (d * d <= n && n % d)
			d += 2;
		*(long *)found += d * d > n;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc == 3 ? atoi(argv[1]) : 0;
	int64_t at;
	pthread_t threads[64];
	long found[64] = { 0 }, all = 0;

	if (count < 1 || count > 64)
		return 2;
	puts("ready");
	fflush(stdout);
	if (scanf("%" SCNd64, &at) != 1)
		return 2;
	start = (struct timespec){ .tv_sec = at / 1000000000, .tv_nsec = at % 1000000000 };
	end_ns = at + atol(argv[2]) * INT64_C(1000000);
	for (int i = 0; i < count; i++)
		if (pthread_create(&threads[i], NULL, look, &found[i]))
			return 1;
	for (int i = 0; i < count; i++) {
		pthread_join(threads[i], NULL);
		all += found[i];
	}
	printf("done %ld\n", all);
	return 0;
}
