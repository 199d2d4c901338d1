/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Load on a schedule: "busy" keeps threads spinning, "grow" touches memory at an even pace, holds it and gives it back.
 * All times are milliseconds after START_NS.
 */
#include "reader.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_TASKS 512
#define GROW_STEP_MS 20

struct task {
	pthread_t thread;
	uint64_t from, to, until;
	size_t bytes;
};

static void *spin(void *arg)
{
	struct task *t = arg;
	static _Atomic uint64_t sink;
	uint64_t x = 88172645463325252ull;

	sleep_until(t->from);
	while (now_ns() < t->to) {
		for (int i = 0; i < 100000; i++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
		}
	}
	atomic_store_explicit(&sink, x, memory_order_relaxed);
	return NULL;
}

static void *grow(void *arg)
{
	struct task *t = arg;
	size_t done = 0;
	char *memory = mmap(NULL, t->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	be_prompt();
	madvise(memory, t->bytes, MADV_NOHUGEPAGE); /* usage then follows the schedule in pages, not in jumps */
	for (uint64_t at = t->from; at <= t->to && done < t->bytes; at += GROW_STEP_MS * NS_PER_MS) {
		size_t due = (size_t)((double)t->bytes * (double)(at - t->from) / (double)(t->to - t->from));

		sleep_until(at);
		for (; done < due; done += 4096)
			memory[done] = 1;
	}
	sleep_until(t->until);
	munmap(memory, t->bytes);
	return NULL;
}

int load(int argc, char **argv)
{
	static struct task tasks[MAX_TASKS];
	uint64_t start;
	int n = 0, i = 1;

	if (argc < 1)
		die("load needs START_NS");
	start = number(argv[0]);
	while (i < argc) {
		int busy = !strcmp(argv[i], "busy");
		int rest = busy ? 3 : 4;
		uint64_t from, to, copies;

		if ((!busy && strcmp(argv[i], "grow")) || i + rest >= argc)
			die("load: malformed plan");
		from = start + number(argv[i + 1]) * NS_PER_MS;
		to = start + number(argv[i + 2]) * NS_PER_MS;
		if (to <= from)
			die("load: a phase ends before it starts");
		copies = busy ? number(argv[i + 3]) : 1;
		for (uint64_t c = 0; c < copies; c++) {
			if (n == MAX_TASKS)
				die("load: too many threads");
			tasks[n] = (struct task){ .from = from, .to = to };
			if (!busy) {
				tasks[n].bytes = number(argv[i + 3]) << 20;
				tasks[n].until = start + number(argv[i + 4]) * NS_PER_MS;
			}
			errno = pthread_create(&tasks[n].thread, NULL, busy ? spin : grow, &tasks[n]);
			if (errno)
				die("pthread_create");
			n++;
		}
		i += rest + 1;
	}
	while (n > 0)
		pthread_join(tasks[--n].thread, NULL);
	return 0;
}
