/* Applications whose memory is known by shape: applications pagerank|dense|sparse FILE [once]
 *
 * pagerank: a random graph of 2^17 nodes and 2^20 edges in compressed rows, that each process makes in memory of its own, and PageRank over
 * and over. dense, sparse: a function as FaaS platforms start them: it maps the 64 MiB of FILE, its libraries and data so to say,
 * and each request touches all of it (dense) or one page in 64 (sparse), in an order of its own, and writes some pages of its own.
 * Says "ready" when it has worked once, and works on until standard input ends; "once", it works no more and stays.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define NODES (1U << 17)
#define EDGES (1U << 20)
#define BYTES (64UL << 20)

static uint32_t state = 1;

static uint32_t next(void)
{
	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

static void *memory(size_t bytes)
{
	void *made = calloc(1, bytes);

	if (!made)
		exit(2);
	return made;
}

static void pagerank(void)
{
	static uint32_t *first, *to, *degree;
	static float *rank, *sum;

	if (!first) {
		first = memory((NODES + 1) * sizeof *first);
		to = memory(EDGES * sizeof *to);
		degree = memory(NODES * sizeof *degree);
		rank = memory(NODES * sizeof *rank);
		sum = memory(NODES * sizeof *sum);
		for (uint32_t i = 0; i < NODES; i++) {
			first[i + 1] = first[i] + EDGES / NODES;
			rank[i] = 1.0f / NODES;
		}
		/* The source of an edge; few nodes have many. */
		for (uint32_t e = 0; e < EDGES; e++)
			degree[to[e] = next() & next() & (NODES - 1)]++;
	}
	for (uint32_t i = 0; i < NODES; i++) {
		sum[i] = 0;
		for (uint32_t e = first[i]; e < first[i + 1]; e++)
			sum[i] += rank[to[e]] / degree[to[e]];
	}
	for (uint32_t i = 0; i < NODES; i++)
		rank[i] = 0.15f / NODES + 0.85f * sum[i];
}

static volatile char kept;

static void function(int fd, unsigned long stride)
{
	static char *data, *own;

	/* What a request had stays until the next one comes, as in a function that is kept warm. */
	if (data)
		munmap(data, BYTES);
	free(own);
	data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	own = malloc(64 * PAGE);
	if (data == MAP_FAILED || !own)
		exit(2);
	for (unsigned long i = 0; i < BYTES / PAGE / stride; i++)
		kept += data[next() % (BYTES / PAGE / stride) * stride * PAGE];
	/* Relocations and counters: what is written once, in the file's pages and in its own. */
	for (unsigned long i = 0; i < 64; i++)
		data[i * stride * PAGE] = own[i * PAGE] = 1;
}

int main(int argc, char **argv)
{
	int fd = argc == 3 || argc == 4 ? open(argv[2], O_RDONLY) : -1, said = 0;
	char byte;

	if (fd < 0)
		return 2;
	state = (uint32_t)getpid() * 2654435761u | 1;
	fcntl(0, F_SETFL, O_NONBLOCK);
	while (argc == 4 || read(0, &byte, 1) != 0) {
		if (!strcmp(argv[1], "pagerank")) {
			pagerank();
		} else {
			function(fd, strcmp(argv[1], "dense") ? 64 : 1);
			/* A server sleeps between requests. */
			if (argc == 3)
				usleep(20000);
		}
		if (!said++) {
			puts("ready");
			fflush(stdout);
		}
		if (argc == 4)
			pause();
	}
	return 0;
}
