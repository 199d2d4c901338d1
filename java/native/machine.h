/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The virtual machine as the Java side knows it. */
#ifndef ELBOWROOM_MACHINE_H
#define ELBOWROOM_MACHINE_H

#include <stdint.h>

/* As Collector.java numbers them. */
enum collector { SERIAL, PARALLEL, G1, SHENANDOAH, Z, OTHER };

struct machine {
	int version;			/* 11, 17, 21, 25 */
	enum collector collector;
	uint32_t floor;			/* GC threads that this collector needs */
	int32_t (*processors)(void);	/* JVM_ActiveProcessorCount: for Java threads outside the machine only */
};

#endif
