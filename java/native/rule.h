/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Adaptive Resource Views, section 4.1: N_gc = min(N, N_active, E_CPU).
 *
 * HotSpot's own answer is min(N, N_active); E_CPU joins here. Differs from the paper: there is a floor. ParallelGC with more
 * than one thread relies on never running one alone: PSPromotionManager::drain_stacks_depth leaves tasks for steal_work(),
 * which one active worker skips, and the objects behind them are lost. HotSpot's WorkerPolicy has the same floor.
 */
#ifndef ELBOWROOM_RULE_H
#define ELBOWROOM_RULE_H

#include <stdint.h>

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* An effective CPU of zero is not known, and changes nothing. */
static inline uint32_t gc_threads(uint32_t total, uint32_t active, uint32_t effective_cpu, uint32_t floor)
{
	uint32_t lowest = min_u32(floor, total);

	if (effective_cpu == 0)
		return active;
	return min_u32(active, effective_cpu < lowest ? lowest : effective_cpu);
}

#endif
