/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Dynamic GC threads: N_gc = min(N, N_active, E_CPU) at each collection (Adaptive Resource Views, section 4.1). */
#ifndef ELBOWROOM_GCTHREADS_H
#define ELBOWROOM_GCTHREADS_H

#include "symbols.h"
#include "machine.h"

struct gc_counts {
	uint32_t total, active, given, effective_cpu;	/* of the last decision */
	uint64_t decisions, capped;
};

/*
 * Prepares all functions of this collector that decide a number of threads, and tries them: moved and unmoved they must
 * agree. Nothing is changed yet. Gives 0, or -1 and why this collector keeps its threads.
 */
int gc_threads_prepare(const struct elf *elf, const struct machine *machine, struct text *why);
/* Changes what may be changed while threads run. */
void gc_threads_place_atomic(void);
/* Changes the rest; called on the VM thread, in a pause. `first_pause`: no collection has been since the machine started. */
void gc_threads_place_in_pause(int first_pause);
/* How many functions were prepared, how many of those are in place, and for how many the kernel forbade it. */
void gc_threads_state(uint32_t *prepared, uint32_t *placed, uint32_t *forbidden, struct gc_counts *counts);

#endif
