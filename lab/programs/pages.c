/* A family of processes whose page tables are known: pages PROCESSES SHARED PRIVATE HUGE FILE FILE_PAGES ACTIVE SPREAD [ZEROS]
 *
 * One process writes SHARED pages and HUGE huge pages and forks the others, so that all have the same frames at the same
 * addresses. Each then writes PRIVATE pages of its own, at the same addresses too, and reads FILE_PAGES of FILE; with SPREAD the
 * file lies at another address in each. ZEROS are huge pages that each only reads. When all are ready a line says so; from then on each touches ACTIVE of the shared pages
 * about every millisecond, until standard input ends.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PAGE 4096UL
#define HUGE (512 * PAGE)

static char *map(unsigned long bytes, int advice)
{
	char *whole = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *start = (char *)(((unsigned long)whole + HUGE - 1) & ~(HUGE - 1));

	if (whole == MAP_FAILED || madvise(whole, bytes + HUGE, advice))
		exit(2);
	return start;
}

static void write_all(char *start, unsigned long pages)
{
	for (unsigned long i = 0; i < pages; i++)
		start[i * PAGE] = 1;
}

int main(int argc, char **argv)
{
	if (argc != 9 && argc != 10)
		return 2;
	int processes = atoi(argv[1]), fd = open(argv[5], O_RDONLY), ready[2], rank = 0;
	unsigned long shared = atol(argv[2]), private = atol(argv[3]), huge = atol(argv[4]), file_pages = atol(argv[6]);
	unsigned long active = atol(argv[7]), spread = atol(argv[8]), zeros = argc > 9 ? atol(argv[9]) : 0;
	char *common = map(shared * PAGE, MADV_NOHUGEPAGE), *big = map(huge * HUGE, MADV_HUGEPAGE), byte = 0;
	volatile char sum = 0;

	if (fd < 0 || pipe(ready))
		return 2;
	write_all(common, shared);
	write_all(big, huge * 512);
	for (int i = 1; i < processes; i++) {
		int pid = fork();

		if (pid < 0)
			return 2;
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			rank = i;
			break;
		}
	}
	write_all(map(private * PAGE, MADV_NOHUGEPAGE), private);
	for (char *page = map(zeros * HUGE, MADV_HUGEPAGE), *end = page + zeros * HUGE; page < end; page += PAGE)
		sum += *page;
	if (file_pages) {
		if (spread)
			map((rank + 1) * 16 * PAGE + rank * HUGE, MADV_NOHUGEPAGE);
		char *file = mmap(NULL, file_pages * PAGE, PROT_READ, MAP_SHARED, fd, 0);

		for (unsigned long i = 0; i < file_pages; i++)
			sum += file[i * PAGE];
	}
	if (write(ready[1], &byte, 1) != 1)
		return 2;
	if (rank == 0) {
		for (int i = 0; i < processes; i++)
			if (read(ready[0], &byte, 1) != 1)
				return 2;
		puts("ready");
		fflush(stdout);
	}
	fcntl(0, F_SETFL, O_NONBLOCK);
	for (;;) {
		if (rank == 0 && read(0, &byte, 1) == 0)
			return 0;
		for (unsigned long i = 0; i < active; i++)
			sum += common[i * PAGE];
		usleep(1000);
	}
}
