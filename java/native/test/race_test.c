// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A function is changed while threads call it and others ask for the state, as in a virtual machine: under the thread sanitizer. The
 * function itself is code, which the sanitizer does not watch: that its callers see the old one or the new one is looked at here.
 */
#define _GNU_SOURCE
#include "gcthreads.c"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include "relocate.h"

enum { CALLERS = 3, CALLS = 200000 };

/* sub rsp, 8; mov eax, 8; add rsp, 8; ret. The first instruction is longer than a jump, so it may be changed at any time. */
static const uint8_t eight[24] = { 0x48, 0x81, 0xec, 8, 0, 0, 0, 0xb8, 8, 0, 0, 0, 0x48, 0x81, 0xc4, 8, 0, 0, 0, 0xc3 };
static calculate_fn function;
static int placed, wrong;

static int32_t four(void)
{
	return 4;
}

static void *call(void *unused)
{
	uint32_t last = 8;

	(void)unused;
	for (int i = 0; i < CALLS || !__atomic_load_n(&placed, __ATOMIC_ACQUIRE); i++) {
		uint32_t given = function(8, 8, 1);

		/* As it was or capped, and never as it was again. */
		if ((given != 8 && given != 4) || given > last)
			__atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
		last = given;
	}
	if (last != 4)
		__atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void *ask(void *unused)
{
	uint32_t ready, in_place, denied;
	struct gc_counts copy;

	(void)unused;
	do {
		gc_threads_state(&ready, &in_place, &denied, &copy);
		if (copy.given > 8 || denied)
			__atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
	} while (!in_place || copy.decisions < CALLS / 2);
	return NULL;
}

/* Does what hook_prepare does with a symbol, for a function that no file has. */
static int prepare_function(struct hook *hook)
{
	struct moved moved;
	uint8_t *code = mmap((void *)0x10000000, 8192, PROT_READ | PROT_WRITE | PROT_EXEC,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (code == MAP_FAILED)
		return -1;
	memcpy(code, eight, sizeof(eight));
	function = (calculate_fn)(void *)code;
	hook->symbol = (struct symbol){ "function", code, sizeof(eight), 1 };
	hook->original = code + 4096;
	hook->stub = code + 4096 + 64;
	if (relocate(code, sizeof(eight), (uintptr_t)code, hook->original, (uintptr_t)hook->original, &moved))
		return -1;
	hook->first = moved.first;
	write_far_jump(hook->stub, (uintptr_t)hook->replacement);
	return 0;
}

int main(void)
{
	pthread_t callers[CALLERS], asker;
	int i;

	effective_cpus = four;
	decisions[0].hook.replacement = replacements[0][CALCULATE];
	if (prepare_function(&decisions[0].hook) || !hook_is_atomic(&decisions[0].hook)) {
		puts("the function cannot be changed");
		return 1;
	}
	prepared = 1;
	for (i = 0; i < CALLERS; i++)
		pthread_create(&callers[i], NULL, call, NULL);
	pthread_create(&asker, NULL, ask, NULL);
	gc_threads_place_atomic();
	__atomic_store_n(&placed, 1, __ATOMIC_RELEASE);
	for (i = 0; i < CALLERS; i++)
		pthread_join(callers[i], NULL);
	pthread_join(asker, NULL);
	printf("race: %d calls, %d wrong\n", CALLERS * CALLS, wrong);
	return wrong != 0;
}
