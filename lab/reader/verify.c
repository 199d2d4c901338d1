/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Reads one meminfo in every way that programs read files, until stdin ends, and judges each text it gets:
 *
 *   failed   the call returned an error or nothing
 *   torn     not the shape of a meminfo: a line that is not "Key:  number[ kB]", a missing MemTotal or MemFree, a text
 *            that does not end in a newline, or more memory free than there is
 *   foreign  well formed, but MemTotal is not this container's
 */
#include "reader.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT_SIZE 65536

enum method { M_READ, M_PREAD, M_MMAP, M_SENDFILE, M_SPLICE, METHODS };

static const char *const names[METHODS] = { "read", "pread", "mmap", "sendfile", "splice" };

struct tally {
	unsigned long reads, failed, torn, foreign;
	uint64_t sum_ns, max_ns;
	int last_errno;
};

static char text[TEXT_SIZE];
static int pipe_fds[2], held, sink;

static long by_mmap(int fd)
{
	struct stat st;
	void *map;

	if (fstat(fd, &st) < 0 || st.st_size <= 0 || st.st_size >= TEXT_SIZE)
		return -1;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return -1;
	memcpy(text, map, (size_t)st.st_size);
	munmap(map, (size_t)st.st_size);
	return st.st_size;
}

/* sendfile goes to a memfd rather than a pipe: busybox cat into a file is this call. */
static long by_sendfile(int fd)
{
	long n;

	if (ftruncate(sink, 0) < 0 || lseek(sink, 0, SEEK_SET) < 0)
		return -1;
	n = sendfile(sink, fd, NULL, TEXT_SIZE - 1);
	return n <= 0 ? n : pread(sink, text, (size_t)n, 0);
}

static long by_splice(int fd)
{
	long n = splice(fd, NULL, pipe_fds[1], NULL, TEXT_SIZE - 1, 0);

	return n <= 0 ? n : read(pipe_fds[0], text, (size_t)n);
}

static long read_by(enum method method, const char *path, int drop)
{
	long n = -1;
	int fd, saved;

	if (method == M_PREAD) {
		if (drop)
			posix_fadvise(held, 0, 0, POSIX_FADV_DONTNEED);
		return pread(held, text, TEXT_SIZE - 1, 0);
	}
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (drop)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	switch (method) {
	case M_READ:
		n = read(fd, text, TEXT_SIZE - 1);
		break;
	case M_MMAP:
		n = by_mmap(fd);
		break;
	case M_SENDFILE:
		n = by_sendfile(fd);
		break;
	case M_SPLICE:
		n = by_splice(fd);
		break;
	case M_PREAD:
	case METHODS:
		break;
	}
	saved = errno;
	close(fd);
	errno = saved;
	return n;
}

/* "Key:", spaces, digits, optionally " kB", and spaces up to the newline. */
static int line_is_well_formed(const char *line, const char *end)
{
	const char *p = line;

	while (p < end && (isalnum((unsigned char)*p) || strchr("_()", *p)))
		p++;
	if (p == line || p == end || *p++ != ':')
		return 0;
	while (p < end && *p == ' ')
		p++;
	if (p == end || !isdigit((unsigned char)*p))
		return 0;
	while (p < end && isdigit((unsigned char)*p))
		p++;
	if (end - p >= 3 && !strncmp(p, " kB", 3))
		p += 3;
	while (p < end && *p == ' ')
		p++;
	return p == end;
}

static int is_torn(long n)
{
	const char *line = text;
	long total = meminfo_kib(text, "MemTotal:"), free_kib = meminfo_kib(text, "MemFree:");

	if (memchr(text, 0, (size_t)n) || text[n - 1] != '\n' || total < 0 || free_kib < 0 || free_kib > total)
		return 1;
	while (*line) {
		const char *end = strchr(line, '\n');

		if (!line_is_well_formed(line, end))
			return 1;
		line = end + 1;
	}
	return 0;
}

static void judge(struct tally *t, long n, uint64_t took, long expected)
{
	t->reads++;
	t->sum_ns += took;
	if (took > t->max_ns)
		t->max_ns = took;
	if (n <= 0) {
		t->failed++;
		t->last_errno = n < 0 ? errno : 0;
		return;
	}
	text[n] = 0;
	if (is_torn(n))
		t->torn++;
	else if (meminfo_kib(text, "MemTotal:") != expected)
		t->foreign++;
}

static int stdin_ended(void)
{
	struct pollfd p = { .fd = 0, .events = POLLIN };
	char c;

	return poll(&p, 1, 0) > 0 && read(0, &c, 1) <= 0;
}

int verify(int argc, char **argv)
{
	struct tally tallies[METHODS] = { 0 };
	uint64_t interval, drop_every, next;
	long expected;

	if (argc != 4)
		die("verify needs 4 arguments");
	expected = (long)number(argv[0]);
	interval = number(argv[1]) * 1000;
	drop_every = number(argv[2]);
	held = open(argv[3], O_RDONLY | O_CLOEXEC);
	sink = memfd_create("reader", MFD_CLOEXEC);
	if (held < 0 || sink < 0 || pipe2(pipe_fds, O_CLOEXEC) < 0)
		die(argv[3]);
	fcntl(pipe_fds[1], F_SETPIPE_SZ, TEXT_SIZE);

	next = now_ns();
	for (uint64_t pass = 1; !stdin_ended(); pass++) {
		int drop = drop_every && pass % drop_every == 0;

		for (int m = 0; m < METHODS; m++) {
			uint64_t before = now_ns();
			long n = read_by(m, argv[3], drop);

			judge(&tallies[m], n, now_ns() - before, expected);
		}
		next += interval;
		if (next < now_ns())
			next = now_ns();
		sleep_until(next);
	}
	for (int m = 0; m < METHODS; m++) {
		struct tally *t = &tallies[m];

		printf("%s{\"method\":\"%s\",\"reads\":%lu,\"failed\":%lu,\"torn\":%lu,\"foreign\":%lu,"
		       "\"mean_ns\":%.0f,\"max_ns\":%lu,\"last_errno\":%d}",
		       m ? "," : "[", names[m], t->reads, t->failed, t->torn, t->foreign,
		       t->reads ? (double)t->sum_ns / (double)t->reads : 0.0, t->max_ns, t->last_errno);
	}
	printf("]\n");
	return 0;
}
