/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static const struct {
	const char *name;
	int (*main)(int argc, char **argv);
	const char *arguments;
} verbs[] = {
	{ "bench", bench, "open|pread ITERATIONS THREADS PATH" },
	{ "poll", poll_files, "START_NS INTERVAL_MS COUNT MEMTOTAL_KIB|0 PATH..." },
	{ "watch", watch, "START_NS INTERVAL_MS COUNT" },
	{ "load", load, "START_NS [busy FROM_MS TO_MS THREADS | grow|use|shm|lock FROM_MS TO_MS MIB UNTIL_MS |\n"
	  "                                      scan FROM_MS TO_MS MIB_PER_S PATH]..." },
	{ "verify", verify, "MEMTOTAL_KIB INTERVAL_US DROP_EVERY|0 PATH   (until stdin ends)" },
	{ "contain", contain, "[cgroup DIR | cgroupfs NAME DIR | cgroupns | bind SOURCE TARGET]..." },
	{ "enter", enter, "PID [cgroup DIR]... -- COMMAND [ARGUMENT]..." },
};

/* The first process of a Docker container: its children are reaped by ignoring them. */
static _Noreturn void stay(void)
{
	signal(SIGCHLD, SIG_IGN);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "pause"))
		stay();
	for (size_t i = 0; argc > 1 && i < sizeof(verbs) / sizeof(*verbs); i++) {
		if (!strcmp(argv[1], verbs[i].name))
			return verbs[i].main(argc - 2, argv + 2);
	}
	fprintf(stderr, "usage: reader pause\n");
	for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++)
		fprintf(stderr, "       reader %s %s\n", verbs[i].name, verbs[i].arguments);
	return 2;
}

void die(const char *what)
{
	if (errno)
		fprintf(stderr, "reader: %s: %s\n", what, strerror(errno));
	else
		fprintf(stderr, "reader: %s\n", what);
	exit(1);
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NS_PER_SEC + (uint64_t)t.tv_nsec;
}

void sleep_until(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / NS_PER_SEC), (long)(ns % NS_PER_SEC) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

void be_prompt(void)
{
	setpriority(PRIO_PROCESS, (id_t)gettid(), -10);
}

uint64_t number(const char *text)
{
	char *end;
	uint64_t n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (end == text || *end || errno) {
		fprintf(stderr, "reader: \"%s\" is not a number\n", text);
		exit(2);
	}
	return n;
}

long meminfo_kib(const char *text, const char *key)
{
	const char *line = text;
	size_t len = strlen(key);

	while (line) {
		if (!strncmp(line, key, len)) {
			char *end;
			long kib = strtol(line + len, &end, 10);

			return end == line + len ? -1 : kib;
		}
		line = strchr(line, '\n');
		line = line ? line + 1 : NULL;
	}
	return -1;
}

int cpulist_count(const char *text)
{
	int count = 0;

	for (;;) {
		char *end;
		long first = strtol(text, &end, 10), last = first;

		if (end == text)
			return 0;
		if (*end == '-') {
			text = end + 1;
			last = strtol(text, &end, 10);
			if (end == text || last < first)
				return 0;
		}
		count += (int)(last - first + 1);
		if (*end != ',')
			return count;
		text = end + 1;
	}
}

long slurp(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	long n;
	int saved;

	if (fd < 0)
		return -1;
	n = read(fd, buf, size - 1);
	saved = errno;
	close(fd);
	errno = saved;
	if (n >= 0)
		buf[n] = 0;
	return n;
}
