/* A library that brings its own OpenMP runtime into a process, as Python modules do. */
#include <omp.h>

int team(void)
{
	int size = 0;
	long sum = 0;

#pragma omp parallel reduction(+ : sum)
	{
		sum = omp_get_thread_num() + 1;
		if (omp_get_thread_num() == 0)
			size = omp_get_num_threads();
	}
	/* Had one runtime started the team and another counted it, every thread would be the first. */
	return sum == (long)size * (size + 1) / 2 ? size : -1;
}
