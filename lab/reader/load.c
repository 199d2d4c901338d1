/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Load on a schedule: "busy" keeps threads spinning, "grow" touches memory at an even pace, holds it and gives it back, "churn"
 * does that over and over, "use" does it and goes over all of it again and again meanwhile, "shm" that with memory as of a
 * tmpfs, "lock" with memory that stays where it is; "scan" reads a file from its beginning to its end over and over. All times
 * are milliseconds, those of a phase after START_NS. At the end it says how much all of them went over again or read.
 */
#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_TASKS 512
#define GROW_STEP_MS 20
#define USE_STEP_MS 250

struct task {
	pthread_t thread;
	uint64_t from, to, until, period;
	size_t bytes;
	uint64_t gone_over;
	int in_use, shared, locked;
	const char *path;
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
	int kind = t->shared ? MAP_SHARED : MAP_PRIVATE;
	char *memory = mmap(NULL, t->bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);

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
	if (t->locked && mlock(memory, done))
		die("mlock");
	for (uint64_t at = t->to; t->in_use && at < t->until; at = now_ns() + USE_STEP_MS * NS_PER_MS) {
		sleep_until(at);
		for (size_t i = 0; i < done; i += 4096)
			memory[i]++;
		t->gone_over += done;
	}
	sleep_until(t->until);
	munmap(memory, t->bytes);
	return NULL;
}

/* Half of a period it grows, the other half it holds. A period that came too late is not made up for. */
static void *churn(void *arg)
{
	struct task *t = arg, once = *t;

	while (once.from + t->period <= t->to) {
		once.to = once.from + t->period / 2;
		once.until = once.from + t->period;
		grow(&once);
		once.from = once.until > now_ns() ? once.until : now_ns();
	}
	return NULL;
}

/* At most `bytes` a second. What it is late with is not made up for. */
static void *scan(void *arg)
{
	static _Thread_local char buffer[1 << 16];
	struct task *t = arg;
	uint64_t pause = NS_PER_SEC / (t->bytes / sizeof(buffer)), next = t->from;
	int fd = open(t->path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die(t->path);
	while (next < t->to) {
		ssize_t n;

		sleep_until(next);
		n = read(fd, buffer, sizeof(buffer));
		if (n < 0 || (n == 0 && lseek(fd, 0, SEEK_SET) < 0))
			die(t->path);
		t->gone_over += (uint64_t)n;
		next = next + pause > now_ns() ? next + pause : now_ns();
	}
	close(fd);
	return NULL;
}

/* What a plan may say, and how many words follow the name. */
static const struct {
	const char *name;
	void *(*run)(void *task);
	int words;
} kinds[] = { { "busy", spin, 3 }, { "grow", grow, 4 }, { "churn", churn, 4 }, { "use", grow, 4 },
	      { "shm", grow, 4 },  { "lock", grow, 4 }, { "scan", scan, 4 } };

int load(int argc, char **argv)
{
	static struct task tasks[MAX_TASKS];
	uint64_t start, gone_over = 0;
	int n = 0, i = 1;

	if (argc < 1)
		die("load needs START_NS");
	start = number(argv[0]);
	while (i < argc) {
		const size_t nr_kinds = sizeof(kinds) / sizeof(*kinds);
		struct task task = { 0 };
		uint64_t copies = 1;
		size_t k = 0;

		while (k < nr_kinds && strcmp(argv[i], kinds[k].name))
			k++;
		if (k == nr_kinds || i + kinds[k].words >= argc)
			die("load: malformed plan");
		task.from = start + number(argv[i + 1]) * NS_PER_MS;
		task.to = start + number(argv[i + 2]) * NS_PER_MS;
		if (task.to <= task.from)
			die("load: a phase ends before it starts");
		if (kinds[k].run == spin) {
			copies = number(argv[i + 3]);
		} else {
			task.bytes = number(argv[i + 3]) << 20;
			if (!task.bytes)
				die("load: nothing to do");
		}
		if (kinds[k].run == grow) {
			task.until = start + number(argv[i + 4]) * NS_PER_MS;
			task.shared = !strcmp(argv[i], "shm");
			task.locked = !strcmp(argv[i], "lock");
			task.in_use = task.shared || !strcmp(argv[i], "use");
		}
		if (kinds[k].run == churn) {
			task.period = number(argv[i + 4]) * NS_PER_MS;
			if (task.period < 2 * GROW_STEP_MS * NS_PER_MS)
				die("load: churn is too fast");
		}
		if (kinds[k].run == scan)
			task.path = argv[i + 4];
		for (uint64_t c = 0; c < copies; c++) {
			if (n == MAX_TASKS)
				die("load: too many threads");
			tasks[n] = task;
			errno = pthread_create(&tasks[n].thread, NULL, kinds[k].run, &tasks[n]);
			if (errno)
				die("pthread_create");
			n++;
		}
		i += kinds[k].words + 1;
	}
	while (n > 0) {
		pthread_join(tasks[--n].thread, NULL);
		gone_over += tasks[n].gone_over;
	}
	printf("%llu MiB\n", (unsigned long long)(gone_over >> 20));
	return 0;
}
