/*
 * 3,000 parallel regions. Answers each line with how often all of them ran, and how often the list of loaded objects was gone
 * through since the line before: the library for OpenMP does so once for a region that it does not know.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

static int ran, looked;

#define REGION(n)                                                                                                  \
	static void region##n(void)                                                                                \
	{                                                                                                          \
		_Pragma("omp parallel")                                                                            \
		_Pragma("omp single")                                                                              \
		ran++;                                                                                             \
	}
#define CALL(n) region##n,
#define TEN(what, n) what(n##0) what(n##1) what(n##2) what(n##3) what(n##4) what(n##5) what(n##6) what(n##7) what(n##8) what(n##9)
#define HUNDRED(what, n) \
	TEN(what, n##0) TEN(what, n##1) TEN(what, n##2) TEN(what, n##3) TEN(what, n##4) TEN(what, n##5) TEN(what, n##6) \
	TEN(what, n##7) TEN(what, n##8) TEN(what, n##9)
#define THOUSAND(what, n) \
	HUNDRED(what, n##0) HUNDRED(what, n##1) HUNDRED(what, n##2) HUNDRED(what, n##3) HUNDRED(what, n##4) HUNDRED(what, n##5) \
	HUNDRED(what, n##6) HUNDRED(what, n##7) HUNDRED(what, n##8) HUNDRED(what, n##9)

THOUSAND(REGION, 1)
THOUSAND(REGION, 2)
THOUSAND(REGION, 3)

static void (*const regions[])(void) = {THOUSAND(CALL, 1) THOUSAND(CALL, 2) THOUSAND(CALL, 3)};

/* Stands before the C library's. */
int dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data)
{
	int (*real)(int (*)(struct dl_phdr_info *, size_t, void *), void *);

	*(void **)&real = dlsym(RTLD_NEXT, "dl_iterate_phdr");
	__atomic_fetch_add(&looked, 1, __ATOMIC_RELAXED);
	return real(visit, data);
}

int main(void)
{
	while (getchar() != EOF) {
		ran = looked = 0;
		for (unsigned i = 0; i < sizeof(regions) / sizeof(regions[0]); i++)
			regions[i]();
		printf("%d %d\n", ran, looked);
		fflush(stdout);
	}
	return 0;
}
