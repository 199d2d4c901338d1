/* Asks for files of views without pause, in every way that reaches the view server, or reads one of them now and then.
 *
 *   hostile_reads attack THREADS [FILE]   from when there is that file until its input ends; then prints the requests that it made and
 *                                         its CPU time in us
 *   hostile_reads pages THREADS [FILE]    the same by the page cache, which it empties each time
 *   hostile_reads watch                   answers each line of input with the time that 400 reads took, in ns, in ascending order
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

#define ZONES "/proc/zoneinfo"
#define CPUS "/sys/devices/system/cpu"
#define WATCHED "/proc/meminfo"
#define READS 400

static atomic_bool ending;
static atomic_long requests;

static void *attack(void *unused)
{
	void *buffer;
	struct statfs fs;

	if (posix_memalign(&buffer, 4096, 4096))
		abort();
	int zones = open(ZONES, O_RDONLY | O_DIRECT);
	for (long n = 0; !ending; n++) {
		requests++;
		switch (n % 8) {
		case 0: {
			DIR *dir = opendir(CPUS);
			while (dir && readdir(dir))
				;
			if (dir)
				closedir(dir);
			break;
		}
		case 1:
			access(CPUS "/none", F_OK);
			break;
		case 2:
			statfs(ZONES, &fs);
			break;
		case 3: {
			int again = open(WATCHED, O_RDONLY | O_DIRECT);
			pread(again, buffer, 512, 0);
			close(again);
			break;
		}
		default:
			pread(zones, buffer, 512, 512 * (n % 8));
		}
	}
	return unused;
}

static void *pages(void *unused)
{
	char buffer[512];
	int zones = open(ZONES, O_RDONLY);

	while (!ending) {
		requests++;
		posix_fadvise(zones, 0, 0, POSIX_FADV_DONTNEED);
		pread(zones, buffer, sizeof(buffer), 0);
	}
	return unused;
}

static int by_size(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;
	return (x > y) - (x < y);
}

static void watch(void)
{
	static long took[READS];
	struct timespec pause = { .tv_nsec = 2000000 }, from, to;
	void *buffer;
	int file = open(WATCHED, O_RDONLY | O_DIRECT);

	if (file < 0 || posix_memalign(&buffer, 4096, 8192))
		abort();
	while (getchar() == '\n') {
		for (int i = 0; i < READS; i++) {
			nanosleep(&pause, NULL);
			clock_gettime(CLOCK_MONOTONIC, &from);
			if (pread(file, buffer, 8192, 0) <= 0)
				abort();
			clock_gettime(CLOCK_MONOTONIC, &to);
			took[i] = (to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec;
		}
		qsort(took, READS, sizeof(long), by_size);
		for (int i = 0; i < READS; i++)
			printf("%ld%c", took[i], i + 1 < READS ? ' ' : '\n');
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	struct rusage used;
	pthread_t threads[64];
	int count = argc > 2 ? atoi(argv[2]) : 0;

	if (argc > 1 && !strcmp(argv[1], "watch")) {
		watch();
		return 0;
	}
	if (count < 1 || count > 64)
		return 2;
	while (argc > 3 && access(argv[3], F_OK))
		usleep(10000);
	void *(*body)(void *) = strcmp(argv[1], "pages") ? attack : pages;
	for (int i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, body, NULL);
	while (getchar() != EOF)
		;
	ending = true;
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	getrusage(RUSAGE_SELF, &used);
	printf("%ld %ld\n", (long)requests,
	       (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 + used.ru_utime.tv_usec + used.ru_stime.tv_usec);
	return 0;
}
