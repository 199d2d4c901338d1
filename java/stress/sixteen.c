// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Pretends 16 CPUs, preloaded: a machine never believes in more CPUs than its affinity has, whatever its quota says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

enum { CPUS = 16 };

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
	int i;

	(void)pid;
	memset(set, 0, size);
	for (i = 0; i < CPUS; i++)
		CPU_SET_S(i, size, set);
	return 0;
}

long sysconf(int name)
{
	static long (*real)(int);

	if (name == _SC_NPROCESSORS_CONF || name == _SC_NPROCESSORS_ONLN)
		return CPUS;
	if (!real)
		real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
	return real(name);
}
