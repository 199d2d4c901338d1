/* Says how many threads OpenMP would start, or how many CPUs the C library counts. */
#include <stdio.h>
#include <unistd.h>

#ifdef OPENMP
int omp_get_max_threads(void);
#define CPUS omp_get_max_threads()
#else
#define CPUS (int)sysconf(_SC_NPROCESSORS_ONLN)
#endif

int main(void)
{
	printf("CPUs: %d\n", CPUS);
	return 0;
}
