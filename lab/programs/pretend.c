/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Pretends a machine of $LAB_CPUS CPUs (16), preloaded: what runtimes ask for when they start. Nothing runs on more CPUs
 * than there are.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int cpus(void)
{
	const char *word = getenv("LAB_CPUS");

	return word ? atoi(word) : 16;
}

static void fill(size_t size, cpu_set_t *set)
{
	memset(set, 0, size);
	for (int i = 0; i < cpus(); i++)
		CPU_SET_S(i, size, set);
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
	(void)pid;
	fill(size, set);
	return 0;
}

int pthread_getaffinity_np(pthread_t thread, size_t size, cpu_set_t *set)
{
	(void)thread;
	fill(size, set);
	return 0;
}

long sysconf(int name)
{
	static long (*real)(int);

	if (name == _SC_NPROCESSORS_CONF || name == _SC_NPROCESSORS_ONLN)
		return cpus();
	if (!real)
		real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
	return real(name);
}
