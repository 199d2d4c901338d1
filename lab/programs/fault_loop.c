/* What a page fault costs: fault_loop KIND FILE
 *
 * For every line of standard input, takes some thousand faults and prints how many, and the nanoseconds of CPU time that took. The
 * kinds: `anonymous` (memory of its own), `file` (pages of FILE, 17 apart, all in memory), `fork` (children that write what their
 * parent has, and end: short-lived processes with several areas each).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define PAGES 16384UL
#define STRIDE 17UL
#define CHILDREN 100
#define CHILD_PAGES 64UL

static unsigned long cpu_ns(int who)
{
	struct rusage usage;
	struct timespec now;

	if (who == RUSAGE_SELF) {
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
		return now.tv_sec * 1000000000UL + now.tv_nsec;
	}
	getrusage(who, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000UL +
	       (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000UL;
}

static unsigned long faults(int who)
{
	struct rusage usage;

	getrusage(who, &usage);
	return usage.ru_minflt + usage.ru_majflt;
}

static void touch(volatile char *start, unsigned long pages, unsigned long stride, int write)
{
	for (unsigned long i = 0; i < pages; i++) {
		if (write)
			start[i * stride * PAGE] = 1;
		else
			(void)start[i * stride * PAGE];
	}
}

int main(int argc, char **argv)
{
	int anonymous, forks, fd, who;
	char line[16], *start;

	if (argc != 3 || (fd = open(argv[2], O_RDONLY)) < 0)
		return 2;
	anonymous = !strcmp(argv[1], "anonymous");
	forks = !strcmp(argv[1], "fork");
	who = forks ? RUSAGE_CHILDREN : RUSAGE_SELF;
	start = anonymous || forks ?
		mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) :
		mmap(NULL, PAGES * STRIDE * PAGE, PROT_READ, MAP_SHARED, fd, 0);
	if (start == MAP_FAILED)
		return 2;
	madvise(start, PAGES * PAGE * (anonymous || forks ? 1 : STRIDE), MADV_NOHUGEPAGE);
	if (forks)
		touch(start, CHILD_PAGES, 1, 1);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		unsigned long before = faults(who), begin = cpu_ns(who);

		if (forks) {
			for (int i = 0; i < CHILDREN; i++) {
				int pid = fork();

				if (pid == 0) {
					touch(start, CHILD_PAGES, 1, 1);
					_exit(0);
				}
				waitpid(pid, NULL, 0);
			}
		} else {
			touch(start, PAGES, anonymous ? 1 : STRIDE, anonymous);
		}
		printf("%lu %lu\n", faults(who) - before, cpu_ns(who) - begin);
		fflush(stdout);
		if (!forks)
			madvise(start, PAGES * PAGE * (anonymous ? 1 : STRIDE), MADV_DONTNEED);
	}
	return 0;
}
