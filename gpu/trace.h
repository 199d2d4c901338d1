/* The file that trace.c writes: a header, then records, all little-endian. Read by elbowroom_profile::gpu::trace. */
#ifndef ELBOWROOM_GPU_TRACE_H
#define ELBOWROOM_GPU_TRACE_H

#include <stdint.h>

#define ELBOWROOM_GPU_VERSION 1

/* No file is larger: LARGEST_TRACE of the reader. What finds no room in it is counted. */
#ifndef ELBOWROOM_GPU_LARGEST
#define ELBOWROOM_GPU_LARGEST (4ULL << 30)
#endif

struct elbowroom_gpu_header {
	char magic[8]; /* ELBOWGPU */
	uint32_t version;
	uint32_t pid;
	uint64_t begin; /* ns of CUPTI's clock */
};

enum elbowroom_gpu_kind {
	ELBOWROOM_GPU_KERNEL = 1,
	ELBOWROOM_GPU_COPY,     /* value: bytes */
	ELBOWROOM_GPU_SET,      /* value: bytes */
	ELBOWROOM_GPU_RUNTIME,  /* detail: number of the function */
	ELBOWROOM_GPU_DRIVER,   /* the same */
	ELBOWROOM_GPU_OVERHEAD, /* detail: CUPTI's kind of overhead; thread: whom it holds up, where it is known */
	ELBOWROOM_GPU_LOST,     /* value: records that found no room; the first record of all, and counted up there */
	ELBOWROOM_GPU_END,      /* end: when tracing ended */
};

struct elbowroom_gpu_record {
	uint32_t kind;
	uint32_t size; /* of this and the name after it, a multiple of 8 */
	uint64_t begin, end, value;
	uint32_t detail, thread;
	/* a name, filled up with zeros */
};

_Static_assert(sizeof(struct elbowroom_gpu_header) == 24, "what the decoder reads");
_Static_assert(sizeof(struct elbowroom_gpu_record) == 40, "what the decoder reads");

#endif
