/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Two samplers. "poll" is a monitoring agent: every interval it opens, reads and closes each of its files, and tells how
 * long that took. "watch" is an adaptive runtime: every interval it asks how many CPUs and how much memory there are.
 */
#include "reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_SIZE 65536

/*
 * One line "NS" per read that succeeded, then "wrong N" (MemTotal of a file that has one was not MEMTOTAL_KIB) and
 * "failed N". A read that is late because the previous one took longer than the interval is skipped, not queued.
 */
int poll_files(int argc, char **argv)
{
	static char text[TEXT_SIZE];
	unsigned long failed = 0, wrong = 0;
	uint64_t start, interval, count, expected, *ns;
	size_t taken = 0;

	if (argc < 5)
		die("poll needs 5 arguments or more");
	start = number(argv[0]);
	interval = number(argv[1]) * NS_PER_MS;
	count = number(argv[2]);
	expected = number(argv[3]);
	ns = calloc(count * (size_t)(argc - 4), sizeof(*ns));
	if (!ns)
		die("calloc");
	for (uint64_t i = 0; i < count; i++) {
		uint64_t due = start + i * interval;

		if (now_ns() > due + interval)
			continue;
		sleep_until(due);
		for (int f = 4; f < argc; f++) {
			uint64_t before = now_ns();
			long n = slurp(argv[f], text, sizeof(text));
			uint64_t took = now_ns() - before;
			long kib;

			if (n <= 0) {
				failed++;
				continue;
			}
			ns[taken++] = took;
			kib = expected ? meminfo_kib(text, "MemTotal:") : -1;
			if (kib >= 0 && (uint64_t)kib != expected)
				wrong++;
		}
	}
	for (size_t i = 0; i < taken; i++)
		printf("%lu\n", ns[i]);
	printf("wrong %lu\nfailed %lu\n", wrong, failed);
	return 0;
}

/* One line "NS CPUS KIB" per sample; -1 stands for a file that could not be read. */
int watch(int argc, char **argv)
{
	static char text[TEXT_SIZE];
	uint64_t start, interval, count;

	if (argc != 3)
		die("watch needs 3 arguments");
	start = number(argv[0]);
	interval = number(argv[1]) * NS_PER_MS;
	count = number(argv[2]);
	be_prompt();
	for (uint64_t i = 0; i < count; i++) {
		uint64_t due = start + i * interval, at;
		int cpus = -1;
		long kib = -1;

		if (now_ns() > due + interval)
			continue;
		sleep_until(due);
		at = now_ns();
		if (slurp("/sys/devices/system/cpu/online", text, sizeof(text)) > 0)
			cpus = cpulist_count(text);
		if (slurp("/proc/meminfo", text, sizeof(text)) > 0)
			kib = meminfo_kib(text, "MemTotal:");
		printf("%lu %d %ld\n", at, cpus, kib);
	}
	return 0;
}
