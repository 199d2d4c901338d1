/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Functions of the virtual machine that are asked of us first.
 *
 * Problem: a running program's code is changed while its threads run.
 *
 * Approach: everything is prepared, checked and tried beside the function. Then one aligned store of eight bytes makes its
 * first instruction a jump. A thread that enters sees the old function or the new one. A thread inside the first five bytes
 * would be lost. So either these bytes are a single instruction, which has no inside, or the VM thread makes the store in a
 * pause, when no thread that calls the function runs.
 */
#ifndef ELBOWROOM_HOOK_H
#define ELBOWROOM_HOOK_H

#include "symbols.h"

struct hook {
	struct symbol symbol;
	void *replacement;
	void *original;		/* calls the function as it was; set by hook_prepare */
	uint8_t *stub;		/* where the entry will jump to */
	size_t first;		/* length of the function's first instruction */
	int in_place;		/* ask hook_is_in_place: the VM thread writes it while others look */
};

/* Builds `original` and `stub`; the function itself is not touched. Gives 0, or -1 and why. */
int hook_prepare(const struct elf *elf, struct hook *hook, struct text *why);
/* True when the function may be changed while any thread may call it. */
int hook_is_atomic(const struct hook *hook);
/* True when the jump is in place. */
static inline int hook_is_in_place(const struct hook *hook)
{
	return __atomic_load_n(&hook->in_place, __ATOMIC_RELAXED);
}
/* Puts the jump in place. Gives 0, or -1 when the kernel forbids it. */
int hook_place(struct hook *hook);

#endif
