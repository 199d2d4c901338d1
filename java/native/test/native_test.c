// SPDX-License-Identifier: Apache-2.0 OR MIT
/* Tests of what is pure in the native half. Run by `make check`, under the address and undefined behaviour sanitizers. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "symbols.h"
#include "relocate.h"
#include "rule.h"

static int passed, failed;

static void check(int condition, const char *claim)
{
	if (condition) {
		passed++;
		return;
	}
	failed++;
	printf("FAILED: %s\n", claim);
}

static void the_rule_is_the_papers_with_a_floor(void)
{
	static const struct {
		uint32_t total, active, effective_cpu, floor, given;
		const char *claim;
	} rows[] = {
		{ 16, 16, 4, 1, 4, "effective CPU caps" },
		{ 16, 3, 4, 1, 3, "HotSpot's own answer is never raised" },
		{ 16, 16, 1, 1, 1, "one is enough where the collector can" },
		{ 16, 16, 1, 2, 2, "ParallelGC never runs one thread of several" },
		{ 1, 1, 1, 2, 1, "of one thread there is one" },
		{ 16, 1, 8, 2, 1, "what HotSpot decides below the floor is its own affair" },
		{ 8, 8, 100, 1, 8, "more CPUs than threads change nothing" },
		{ 8, 8, 0, 1, 8, "no CPUs at all is not known, and changes nothing" },
	};
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		check(gc_threads(rows[i].total, rows[i].active, rows[i].effective_cpu, rows[i].floor) == rows[i].given,
		      rows[i].claim);
}

struct prologue {
	const char *bytes;
	size_t size, taken, first;
	const char *of;
};

static void prologues_of_real_functions_are_moved(void)
{
	static const struct prologue rows[] = {
		{ "\x55\x48\x8d\x05\x70\xc8\x38\x00\x48\x89\xe5", 11, 8, 1, "WorkerPolicy::calc_active_workers (17, 21, 25)" },
		{ "\x55\x48\x89\xe5\x41\x57\x41\x56", 8, 6, 1, "AdaptiveSizePolicy::calc_active_workers (11)" },
		{ "\x48\x8d\x05\x91\x7e\x3a\x00\x80", 8, 7, 7, "WorkerPolicy::calc_active_conc_workers" },
		{ "\x55\x48\x89\xe5\x53\x48\x89\xfb", 8, 5, 1, "G1ConcurrentMark::calc_active_marking_workers" },
		{ "\x48\x8d\x05\x9d\x75\x6d\x00\x8b\x00\xc3", 10, 7, 7, "ShenandoahWorkerPolicy (25)" },
		{ "\xe9\x7b\x93\x03\x00", 5, 5, 5, "ZHeap::set_active_workers" },
		{ "\xf3\x0f\x1e\xfa\x55\x48\x89\xe5", 8, 5, 4, "a function for indirect branch tracking" },
		{ "\x48\x83\xec\x08\x8b\x05\x01\x02\x03\x00", 10, 10, 4, "one that begins with its stack" },
		{ "\x48\x81\xec\x00\x10\x00\x00\xc3", 8, 7, 7, "one with a large stack" },
	};
	uint8_t out[MOVED_MAX];
	struct moved moved;
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int failed = relocate((const uint8_t *)rows[i].bytes, rows[i].size, 0x7f0010000000, out, 0x7f0000000000,
				      &moved);

		check(!failed && moved.taken == rows[i].taken && moved.first == rows[i].first, rows[i].of);
	}
}

static void what_is_not_known_is_refused(void)
{
	static const struct prologue rows[] = {
		{ "\x48\x85\xf6\x75\x0b\xf3\xc3", 7, 0, 0, "test and a conditional jump" },
		{ "\x55\xe8\x00\x00\x00\x00\x5d", 7, 0, 0, "a call" },
		{ "\x55\x80\x38\x00\x75\x10", 6, 0, 0, "a comparison" },
		{ "\xeb\x03\x90\x90\x90", 5, 0, 0, "a short jump" },
		{ "\x55\x48\x8d\x05\x70\xc8", 6, 0, 0, "an instruction that is not all there" },
		{ "\x55\x48\x8b\x47\x08\xc3", 6, 0, 0, "a load through a register" },
		{ "\x67\x8b\x05\x00\x00\x00\x00", 7, 0, 0, "an address of 32 bits" },
		{ "\x66\x8b\x05\x00\x00\x00\x00", 7, 0, 0, "a load of 16 bits" },
		{ "\x55\xc3\x90\x90\x90", 5, 0, 0, "a function that returns at once" },
	};
	uint8_t out[MOVED_MAX];
	struct moved moved;
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		check(relocate((const uint8_t *)rows[i].bytes, rows[i].size, 0x1000, out, 0x2000, &moved) == -1, rows[i].of);
	check(relocate((const uint8_t *)"\x48\x8d\x05\x70\xc8\x38\x00", 7, 0x7f0000000000, out, 0x7e0000000000, &moved) == -1,
	      "an operand out of reach");
	check(write_jump(out, 0x7f0000000000, 0x7e0000000000) == -1, "a jump out of reach");
}

static void no_bytes_make_it_read_or_write_too_far(void)
{
	uint8_t code[12], out[MOVED_MAX];
	struct moved moved;
	int i, k, fine = 1;

	srand(1);
	for (i = 0; i < 2000000; i++) {
		size_t size = rand() % (sizeof(code) + 1);
		uint8_t *exact = malloc(size ? size : 1);

		for (k = 0; k < (int)size; k++)
			exact[k] = k % 3 ? rand() : (uint8_t) "\x55\x48\x8d\x89\x41\xf3\xe9\x8b"[rand() % 8];
		if (!relocate(exact, size, 0x10000, out, 0x20000, &moved))
			fine &= moved.taken >= JUMP_LENGTH && moved.taken <= size && moved.length <= MOVED_MAX;
		free(exact);
	}
	check(fine, "what is moved is whole and fits");
}

/* push rbp; lea rax, [rip+25]; mov rbp, rsp; mov eax, [rax]; pop rbp; ret; and the number at 33 */
static const uint8_t function[37] = { 0x55, 0x48, 0x8d, 0x05, 25,   0,	  0,	0,    0x48, 0x89, 0xe5, 0x8b, 0x00,
				      0x5d, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
				      0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 42,   0,    0,	  0 };

static void a_moved_function_does_what_it_did(void)
{
	uint8_t *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *moved_to = memory + 4096;
	struct moved moved;

	memcpy(memory, function, sizeof(function));
	check(((int (*)(void))memory)() == 42, "the function itself");
	check(!relocate(memory, sizeof(function), (uintptr_t)memory, moved_to, (uintptr_t)moved_to, &moved), "it is moved");
	check(((int (*)(void))moved_to)() == 42, "the moved function gives the same");
	munmap(memory, 8192);
}

__attribute__((noinline)) static int known_here(int number)
{
	__asm__("");
	return number + 1;
}

static void functions_are_found_in_a_file(void)
{
	struct symbol symbols[] = { { .name = "known_here" }, { .name = "not_known_here" } };
	struct text why;
	struct elf elf;

	check(known_here(1) == 2, "there is such a function");
	check(!elf_open(&elf, (void *)known_here, &why), "this program can be read");
	check(!elf_find(&elf, symbols, 2, &why), "it has a symbol table");
	check(symbols[0].found == 1 && symbols[0].address == (uint8_t *)known_here, "a local function is found");
	check(symbols[1].found == 0, "one that is not there is not");
	check(elf_is_original(&elf, &symbols[0], 4), "it is what its file has");
	elf.base++;
	check(!elf_is_original(&elf, &symbols[0], 4), "other bytes are not");
	elf_close(&elf);
}

static void no_file_makes_it_read_too_far(void)
{
	struct symbol symbol = { .name = "known_here" };
	uint8_t *copy;
	struct text why;
	struct elf elf, bad;
	int i, k;

	if (elf_open(&elf, (void *)known_here, &why))
		return check(0, why.words);
	copy = malloc(elf.length);
	bad = elf;
	bad.file = copy;
	for (i = 0; i < 300; i++) {
		size_t sections = *(const uint64_t *)(elf.file + 0x28);

		memcpy(copy, elf.file, elf.length);
		for (k = 0; k < 20; k++)
			copy[sections + rand() % (elf.length - sections)] = rand();
		if (i % 10 == 0)
			copy[0x28 + rand() % 24] = rand();
		elf_find(&bad, &symbol, 1, &why);
		if (symbol.found == 1)
			elf_is_original(&bad, &(struct symbol){ .address = (uint8_t *)known_here }, 16);
	}
	memset(copy, 0, elf.length);
	check(elf_find(&bad, &symbol, 1, &why) == -1 && strstr(why.words, "stripped"), "a library without symbols is refused");
	free(copy);
	elf_close(&elf);
}

int main(void)
{
	the_rule_is_the_papers_with_a_floor();
	prologues_of_real_functions_are_moved();
	what_is_not_known_is_refused();
	no_bytes_make_it_read_or_write_too_far();
	a_moved_function_does_what_it_did();
	functions_are_found_in_a_file();
	no_file_makes_it_read_too_far();
	printf("native: %d passed, %d failed\n", passed, failed);
	return failed != 0;
}
