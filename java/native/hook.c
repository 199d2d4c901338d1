// SPDX-License-Identifier: Apache-2.0 OR MIT
#define _GNU_SOURCE
#include "hook.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "relocate.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

enum { REACH = 3 << 29, STEP = 1 << 20, PAGES = 32 };

static uint8_t *take(uintptr_t wanted, size_t size)
{
	void *memory = mmap((void *)wanted, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (memory == (void *)wanted)
		return memory;
	/* Kernels before 4.17 take the address for a hint. */
	if (memory != MAP_FAILED)
		munmap(memory, size);
	return NULL;
}

/* A page of its own for every hook, within a jump's reach of the library, so that moved displacements still fit. */
static uint8_t *page_near(uintptr_t near, size_t page_size)
{
	static uint8_t *next;
	static int left;
	uintptr_t middle = near & ~(uintptr_t)(STEP - 1), distance;

	for (distance = STEP; !left && distance < REACH; distance += STEP) {
		next = take(middle - distance, PAGES * page_size);
		if (!next)
			next = take(middle + distance, PAGES * page_size);
		left = next ? PAGES : 0;
	}
	if (!left)
		return NULL;
	left--;
	next += page_size;
	return next - page_size;
}

int hook_prepare(const struct elf *elf, struct hook *hook, struct text *why)
{
	struct symbol *symbol = &hook->symbol;
	size_t size = sysconf(_SC_PAGESIZE);
	struct moved moved;
	uint8_t *page;

	if (symbol->found != 1)
		return say(why, "libjvm.so has %d functions %s", symbol->found, symbol->name);
	if ((uintptr_t)symbol->address % 8 || symbol->size < JUMP_LENGTH)
		return say(why, "%s is too small or not aligned", symbol->name);
	if (!elf_is_original(elf, symbol, symbol->size < 16 ? symbol->size : 16))
		return say(why, "%s in memory is not what its file has", symbol->name);
	page = page_near((uintptr_t)symbol->address, size);
	if (!page)
		return say(why, "no memory near libjvm.so");
	if (relocate(symbol->address, symbol->size, (uintptr_t)symbol->address, page, (uintptr_t)page, &moved))
		return say(why, "%s begins with an instruction that is not known here", symbol->name);
	hook->original = page;
	hook->stub = page + 64;
	hook->first = moved.first;
	write_far_jump(hook->stub, (uintptr_t)hook->replacement);
	if (mprotect(page, size, PROT_READ | PROT_EXEC))
		return say(why, "this system allows no new code in a process");
	return 0;
}

int hook_is_atomic(const struct hook *hook)
{
	return hook->first >= JUMP_LENGTH;
}

int hook_place(struct hook *hook)
{
	uint8_t *entry = hook->symbol.address;
	uintptr_t page_size = sysconf(_SC_PAGESIZE);
	void *page = (void *)((uintptr_t)entry & ~(page_size - 1));
	uint64_t word;

	if (hook_is_in_place(hook))
		return 0;
	memcpy(&word, entry, sizeof(word));
	if (write_jump((uint8_t *)&word, (uintptr_t)entry, (uintptr_t)hook->stub))
		return -1;
	/* Other threads go on running code of this page, so it must stay executable. */
	if (mprotect(page, page_size, PROT_READ | PROT_WRITE | PROT_EXEC))
		return -1;
	__atomic_store_n((uint64_t *)entry, word, __ATOMIC_SEQ_CST);
	mprotect(page, page_size, PROT_READ | PROT_EXEC);
	__atomic_store_n(&hook->in_place, 1, __ATOMIC_RELAXED);
	return 0;
}
