/*
 * The view changes as fast as it can while the program runs one region after another; prints how often the team changed its
 * size, and in how many milliseconds.
 */
#include "../view.h"
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

static volatile int stop;

static void *flip(void *path)
{
	int fd = open(path, O_RDWR);
	struct elbowroom_page *page = mmap(NULL, ELBOWROOM_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	uint32_t cpus = 1;

	while (page != MAP_FAILED && !stop) {
		cpus = 3 - cpus;
		__atomic_store_n(&page->views[0].cpus, cpus, __ATOMIC_RELAXED);
		__atomic_store_n(&page->views[1].cpus, cpus, __ATOMIC_RELAXED);
	}
	return NULL;
}

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	long begin = now_ms(), changes = 0;
	int last = 0, size = 0;
	pthread_t thread;

	if (argc < 2 || pthread_create(&thread, NULL, flip, argv[1]) != 0)
		return 1;
	while (changes < 8 && now_ms() - begin < 20000) {
#pragma omp parallel
		if (omp_get_thread_num() == 0)
			size = omp_get_num_threads();
		changes += last != 0 && size != last;
		last = size;
	}
	stop = 1;
	pthread_join(thread, NULL);
	printf("%ld %ld\n", changes, now_ms() - begin);
	return 0;
}
