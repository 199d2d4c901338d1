/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * VirtualMax: a bound on the committed heap that moves while the program runs (Adaptive Resource Views, section 4.2).
 *
 * Problem: HotSpot reserves its largest heap when it starts and grows into it; ParallelGC and G1 have no knob for less.
 *
 * Approach: what grows the heap is asked of us, and refused above VirtualMax: an answer HotSpot knows from systems without
 * memory. ParallelGC's generations also believe in smaller largest sizes (the paper's OldMax and YoungMax): the young one in its
 * part of VirtualMax, as it was reserved. Differs from the paper: the old one may have all that the young one has not committed.
 * Two thirds are too few for a program of which more lives: it would never reach VirtualMax.
 *
 * Properties:
 *  - No OutOfMemoryError because of a view: an allocation that fails after a full collection gets its memory, and VirtualMax
 *    is lifted until it is set again: first to the ceiling, which is what the hard limit leaves, and if that is not enough away.
 *  - A generation's largest size is never below what it has committed: PSYoungGen::resize_generation guarantees that.
 */
#ifndef ELBOWROOM_VIRTUALMAX_H
#define ELBOWROOM_VIRTUALMAX_H

#include "symbols.h"
#include "machine.h"

struct heap_counts {
	uint64_t limit;		/* VirtualMax in force; 0 is none */
	uint64_t refused, lifted;
	uint64_t lifted_to;	/* what the last lift lifted it to; 0 is none */
};

/* However often VirtualMax was lifted. */
#define ANY_LIFTS UINT64_MAX

/* Prepares what this collector needs. Gives 0, or -1 and why its heap cannot be bounded from here. */
int virtual_max_prepare(const struct elf *elf, const struct machine *machine, struct text *why);
/* Called on the VM thread in a pause, at its start and at its end. */
void virtual_max_in_pause(void);
/*
 * Sets VirtualMax, and what it is lifted to first, both in bytes; 0 is none. In force from the next collection on. Where it was
 * lifted more than `lifts` times by now, it stays what it is: its setter has to know.
 */
void virtual_max_set(uint64_t bytes, uint64_t lifted, uint64_t lifts);
/* True when it was prepared and is in place. */
int virtual_max_state(struct heap_counts *counts);

#endif
