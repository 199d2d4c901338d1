/* Applications of the kinds that the thesis characterises: workloads uri|hash dense|sparse FILE | graph FILE
 *
 * uri, hash: a function that is started, works through its input once and ends. It maps FILE, lines of URIs, and splits them into
 * tokens (uri) or makes an index of each with the sdbm hash (hash), in memory of its own. Dense touches all of FILE, sparse a fifth of each
 * page. graph: PageRank that maps its vertices, the first quarter of FILE, shared, and has its edges, three quarters as large, in buffers
 * of its own. Says "ready" when it has worked once; a function then stays as it is until standard input ends, so that it can be looked at.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096UL
#define FIFTH (PAGE / 5)

static void *map(int fd, size_t bytes, int protection, int flags)
{
	void *at = mmap(NULL, bytes, protection, flags, fd, 0);

	if (at == MAP_FAILED)
		exit(2);
	return at;
}

static void *memory(size_t bytes)
{
	return map(-1, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
}

/* One result of four bytes for each of some bytes of input, as its programs' outputs are: tokens' places, or indices of keys. */
static void function(int fd, size_t bytes, int hashes, size_t part)
{
	const char *data = map(fd, bytes, PROT_READ, MAP_SHARED);
	uint32_t *out = memory(bytes), hash = 0;
	size_t made = 0;

	for (size_t page = 0; page + PAGE <= bytes; page += PAGE) {
		for (size_t i = page; i < page + part; i++) {
			char c = data[i];
			int ends = c == '\n' || (!hashes && (c == '/' || c == '?' || c == ':'));

			hash = (unsigned char)c + (hash << 6) + (hash << 16) - hash;
			if (ends) {
				out[made++] = hashes ? hash : (uint32_t)i;
				hash = 0;
			}
		}
	}
}

static void graph(int fd, size_t bytes)
{
	static float *rank;
	static uint32_t *to, state = 1;
	static size_t nodes, edges;

	if (!rank) {
		nodes = bytes / 4 / sizeof(*rank);
		edges = bytes / 4 * 3 / sizeof(*to);
		rank = map(fd, nodes * sizeof(*rank), PROT_READ | PROT_WRITE, MAP_SHARED);
		to = memory(edges * sizeof(*to));
		state = (uint32_t)getpid() * 2654435761u | 1;
		for (size_t e = 0; e < edges; e++) {
			state ^= state << 13;
			state ^= state >> 17;
			state ^= state << 5;
			to[e] = state % nodes;
		}
	}
	/* The edges of a vertex follow those of the one before. */
	for (size_t i = 0; i < nodes; i++) {
		float sum = 0;

		for (size_t e = i * (edges / nodes); e < (i + 1) * (edges / nodes); e++)
			sum += rank[to[e]];
		rank[i] = 0.15f + 0.85f * sum / (float)(edges / nodes);
	}
}

int main(int argc, char **argv)
{
	int is_graph = argc == 3 && !strcmp(argv[1], "graph"), fd = argc >= 3 ? open(argv[argc - 1], O_RDWR) : -1, said = 0;
	struct stat stat;
	char byte;

	if (fd < 0 || fstat(fd, &stat) || (!is_graph && argc != 4))
		return 2;
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (read(0, &byte, 1) != 0) {
		if (is_graph)
			graph(fd, stat.st_size);
		else if (!said)
			function(fd, stat.st_size, !strcmp(argv[1], "hash"), strcmp(argv[2], "dense") ? FIFTH : PAGE);
		else
			usleep(20000);
		if (!said++) {
			puts("ready");
			fflush(stdout);
		}
	}
	return 0;
}
