/* Page faults whose number is known: faults CASE COUNT FILE
 *
 * Waits for a line, takes COUNT faults of one class, says "done", and waits for the end of standard input. What a case needs is
 * made ready before the line. Pages of a file are 17 apart, one more than the kernel maps around a fault (fault_around_bytes).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define STRIDE (17 * PAGE)

static long count;

static char *map(unsigned long bytes, int flags, int fd)
{
	char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (start == MAP_FAILED)
		exit(2);
	/* Files too: what lies in huge pages in the page cache is mapped so. */
	madvise(start, bytes, MADV_NOHUGEPAGE);
	return start;
}

static void touch(char *start, unsigned long stride, int write)
{
	volatile char *byte = start;

	for (long i = 0; i < count; i++, byte += stride) {
		if (write)
			*byte = 1;
		else
			(void)*byte;
	}
}

static void line(void)
{
	char byte;

	while (read(0, &byte, 1) == 1 && byte != '\n')
		;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	const char *name = argv[1];
	int fd = open(argv[3], O_RDWR), write = strcmp(name, "read") && strcmp(name, "zero"), file = 0;
	unsigned long stride = PAGE;
	char *start;

	count = atol(argv[2]);
	if (fd < 0)
		return 2;
	if (!strcmp(name, "read") || !strcmp(name, "shared")) {
		start = map(count * STRIDE, MAP_SHARED, fd);
		file = 1;
	} else if (!strcmp(name, "cow")) {
		start = map(count * STRIDE, MAP_PRIVATE, fd);
		file = 1;
	} else {
		start = map(count * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	}
	if (file)
		stride = STRIDE;
	if (!strcmp(name, "unzero"))
		touch(start, PAGE, 0);
	if (!strcmp(name, "fork") || !strcmp(name, "swap"))
		touch(start, PAGE, 1);
	/* The cases below wait in a process that has all that it will touch of its own already. */
	if (!strcmp(name, "fork")) {
		int pid = fork();

		if (pid == 0) {
			puts("ready");
			fflush(stdout);
			line();
			touch(start, PAGE, 1);
			puts("done");
			fflush(stdout);
			line();
			_exit(0);
		}
		return waitpid(pid, NULL, 0) != pid;
	}
	if (!strcmp(name, "swap") && madvise(start, count * PAGE, MADV_PAGEOUT))
		return 2;
	puts("ready");
	fflush(stdout);
	line();
	if (!strcmp(name, "stack")) {
		/* Downwards, one page after another, below what has been used already. */
		volatile char *byte = (char *)__builtin_frame_address(0);

		for (long i = 1; i <= count; i++)
			byte[-(i + 8) * (long)PAGE] = 1;
	} else {
		touch(start, stride, write);
	}
	puts("done");
	fflush(stdout);
	line();
	return 0;
}
