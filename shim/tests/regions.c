/*
 * Every kind of parallel region, on demand: for each line on standard input one line of team sizes, in the order of SHAPE in
 * tests/live/test_shim.py.
 */
#include <omp.h>
#include <stdio.h>

static int seen;
static long sum;

static void count(void)
{
	if (omp_get_thread_num() == 0)
		seen = omp_get_num_threads();
	__atomic_fetch_add(&sum, 1, __ATOMIC_RELAXED);
}

/* With optimisation, gcc ends this function in a jump to GOMP_parallel. */
static __attribute__((noinline)) void plain(void)
{
#pragma omp parallel
	count();
}

static int of(int wrong)
{
	int n = sum == seen ? seen : -wrong;

	sum = 0;
	return n;
}

static int loops(int kind, long *total)
{
	int size = 0;
	long t = 0;

	switch (kind) {
	case 0:
#pragma omp parallel for schedule(static) reduction(+ : t)
		for (int i = 0; i < 1000; i++)
			t += i, size = omp_get_num_threads();
		break;
	case 1:
#pragma omp parallel for schedule(dynamic, 7) reduction(+ : t)
		for (int i = 0; i < 1000; i++)
			t += i, size = omp_get_num_threads();
		break;
	case 2:
#pragma omp parallel for schedule(guided) reduction(+ : t)
		for (int i = 0; i < 1000; i++)
			t += i, size = omp_get_num_threads();
		break;
	default:
#pragma omp parallel for schedule(runtime) reduction(+ : t)
		for (int i = 0; i < 1000; i++)
			t += i, size = omp_get_num_threads();
	}
	*total += t;
	return size;
}

int main(void)
{
	char line[64];

	while (fgets(line, sizeof(line), stdin) != NULL) {
		int parallel, sections = 0, clause, serial, both, after, inner = 0, outer = 0;
		int loop[4];
		long total = 0;

		plain();
		parallel = of(1);
		for (int kind = 0; kind < 4; kind++)
			loop[kind] = loops(kind, &total);
#pragma omp parallel sections
		{
#pragma omp section
			sections = omp_get_num_threads();
#pragma omp section
			(void)0;
		}
#pragma omp parallel num_threads(3)
		count();
		clause = of(3);
#pragma omp parallel if (line[0] == '!')
		count();
		serial = of(5);
		/* clang says num_threads() and then has no region to say it for. */
#pragma omp parallel num_threads(3) if (line[0] == '!')
		count();
		both = of(7);
		plain();
		after = of(9);
		omp_set_max_active_levels(2);
#pragma omp parallel num_threads(2)
		{
			if (omp_get_thread_num() == 0)
				outer = omp_get_num_threads();
#pragma omp parallel
			if (omp_get_thread_num() == 0 && omp_get_ancestor_thread_num(1) == 0)
				inner = omp_get_num_threads();
		}
		printf("%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d\n", parallel, loop[0], loop[1], loop[2], loop[3], sections,
		       clause, serial, outer, inner, omp_get_max_threads(), omp_get_num_procs(), total == 4 * 499500, both, after);
		fflush(stdout);
	}
	return 0;
}
