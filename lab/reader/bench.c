/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Latency of reading one file: "open" is open + one read of up to 64 KiB + close, "pread" is one pread at offset 0 of a
 * descriptor that is held open. Every operation is timed by itself; the median cost of the two clock reads around it is
 * measured first, subtracted from every sample and stated in the answer.
 */
#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_SIZE 65536
#define CLOCK_SAMPLES 10001
/* Operations before the first one that counts: dentries, page cache and the daemon's own caches are warm afterwards. */
#define WARM_UP 50

struct worker {
	pthread_t thread;
	const char *path;
	bool hold;
	size_t iterations;
	uint64_t *ns;
	long bytes;
	pthread_barrier_t *start;
};

static int ascending(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t clock_overhead(void)
{
	static uint64_t ns[CLOCK_SAMPLES];

	for (int i = 0; i < CLOCK_SAMPLES; i++) {
		uint64_t before = now_ns();

		ns[i] = now_ns() - before;
	}
	qsort(ns, CLOCK_SAMPLES, sizeof(*ns), ascending);
	return ns[CLOCK_SAMPLES / 2];
}

static long read_once(const char *path, int held, char *buf)
{
	long n;
	int fd;

	if (held >= 0)
		return pread(held, buf, READ_SIZE, 0);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	n = read(fd, buf, READ_SIZE);
	close(fd);
	return n;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	char *buf = malloc(READ_SIZE);
	int held = w->hold ? open(w->path, O_RDONLY | O_CLOEXEC) : -1;

	if (!buf || (w->hold && held < 0))
		die(w->path);
	for (int i = 0; i < WARM_UP; i++) {
		w->bytes = read_once(w->path, held, buf);
		if (w->bytes <= 0)
			die(w->path);
	}
	pthread_barrier_wait(w->start);
	for (size_t i = 0; i < w->iterations; i++) {
		uint64_t before = now_ns();
		long n = read_once(w->path, held, buf);

		w->ns[i] = now_ns() - before;
		if (n <= 0)
			die(w->path);
	}
	if (held >= 0)
		close(held);
	free(buf);
	return NULL;
}

static uint64_t quantile(const uint64_t *sorted, size_t n, unsigned per_mille)
{
	return sorted[(n - 1) * per_mille / 1000];
}

int bench(int argc, char **argv)
{
	pthread_barrier_t start;
	struct worker *workers;
	size_t iterations, threads, n;
	uint64_t overhead, sum = 0, *ns;
	bool hold;

	if (argc != 4)
		die("bench needs 4 arguments");
	hold = !strcmp(argv[0], "pread");
	iterations = number(argv[1]);
	threads = number(argv[2]);
	n = iterations * threads;
	workers = calloc(threads, sizeof(*workers));
	ns = calloc(n, sizeof(*ns));
	if (!iterations || !threads || !workers || !ns)
		die("bench needs at least one iteration and one thread");
	memset(ns, 1, n * sizeof(*ns)); /* fault the sample memory in before anything is timed */
	overhead = clock_overhead();

	pthread_barrier_init(&start, NULL, (unsigned)threads);
	for (size_t i = 0; i < threads; i++) {
		workers[i] = (struct worker){ .path = argv[3], .hold = hold, .iterations = iterations,
					      .ns = ns + i * iterations, .start = &start };
		errno = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
		if (errno)
			die("pthread_create");
	}
	for (size_t i = 0; i < threads; i++)
		pthread_join(workers[i].thread, NULL);

	for (size_t i = 0; i < n; i++) {
		ns[i] = ns[i] > overhead ? ns[i] - overhead : 0;
		sum += ns[i];
	}
	qsort(ns, n, sizeof(*ns), ascending);
	printf("{\"clock_ns\":%lu,\"samples\":%zu,\"bytes\":%ld,\"min\":%lu,\"p50\":%lu,\"p90\":%lu,\"p99\":%lu,"
	       "\"max\":%lu,\"mean\":%.1f}\n",
	       overhead, n, workers[0].bytes, ns[0], quantile(ns, n, 500), quantile(ns, n, 900),
	       quantile(ns, n, 990), ns[n - 1], (double)sum / (double)n);
	return 0;
}
