/*
 * What the C library says about CPUs and memory, as one line of numbers in the order of ASKS in tests/live/test_shim.py, for
 * each line on standard input. A line may hold the number of another process, whose affinity is counted then.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <unistd.h>

int main(void)
{
	char line[64];

	while (fgets(line, sizeof(line), stdin) != NULL) {
		double load[3] = {-1, -1, -1};
		struct sysinfo info;
		cpu_set_t own, thread;
		int first = 0;

		if (sched_getaffinity(atoi(line), sizeof(own), &own) != 0 ||
		    pthread_getaffinity_np(pthread_self(), sizeof(thread), &thread) != 0 || sysinfo(&info) != 0)
			return 1;
		while (first < CPU_SETSIZE && !CPU_ISSET(first, &own))
			first++;
		getloadavg(load, 3);
		printf("%ld %ld %d %d %d %ld %ld %ld %d %ld %ld\n", sysconf(_SC_NPROCESSORS_ONLN), sysconf(_SC_NPROCESSORS_CONF),
		       CPU_COUNT(&own), first, CPU_COUNT(&thread), sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE),
		       (long)(info.totalram * info.mem_unit), (long)(info.freeram * info.mem_unit), info.procs,
		       (long)(load[0] * 100 + 0.5), sysconf(_SC_CLK_TCK));
		fflush(stdout);
	}
	return 0;
}
