/* libelbowroom-gpu: what an unmodified CUDA program does with its GPU, written to a file.
 *
 * The driver loads the library that CUDA_INJECTION64_PATH names when the program calls cuInit(), and calls InitializeInjection(). From
 * then on CUPTI hands over activities, which are put into $ELBOWROOM_GPU_TRACE.PID. CUPTI itself is opened when it is needed, by the name in
 * $ELBOWROOM_CUPTI or the usual one, so this library loads wherever the program runs: without CUPTI, or when anything else fails, one
 * sentence goes to standard error and the program runs on untraced. The program's own calls are never delayed for the file: CUPTI
 * hands over full buffers on a thread of its own.
 */
#define _GNU_SOURCE
#include "trace.h"

#include <cupti.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
/* CUPTI wants 8 bytes of alignment, and room for many records. */
#define BUFFER (1 << 20)
#define NAME_MAX_BYTES 4096
/* CUPTI_API_VERSION of CUDA 12.0. What is used of its records is at the same place in those of 12.9, which this is compiled with, and of
 * 13: both were compared. */
#define OLDEST 18

/* Functions of CUPTI that are used, by name. */
#define FUNCTIONS(F)                                                                                                               \
	F(cuptiGetVersion)                                                                                                         \
	F(cuptiGetTimestamp)                                                                                                       \
	F(cuptiActivityRegisterCallbacks)                                                                                          \
	F(cuptiActivityEnable)                                                                                                     \
	F(cuptiActivityFlushAll)                                                                                                   \
	F(cuptiActivityGetNextRecord)                                                                                              \
	F(cuptiActivityGetNumDroppedRecords)                                                                                       \
	F(cuptiGetCallbackName)                                                                                                    \
	F(cuptiGetResultString)

#define POINTER(name) static __typeof__(&name) p_##name;
FUNCTIONS(POINTER)
#undef POINTER

static int file = -1;
static char *path;	/* of the file */
static pid_t traced;	/* whose trace it is */
static uint64_t kept;	/* bytes of the file, which ends with a whole record */
static uint64_t lost;	/* records that found no room, with CUPTI or in the file */
static bool full;	/* nothing more comes into the file */
static char outgoing[1 << 16];	/* records on their way into it */
static size_t filled;
static uint64_t waiting; /* how many they are */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void say(const char *what, const char *why)
{
	fprintf(stderr, "libelbowroom-gpu: %s: %s: this program is not traced\n", what, why);
}

/* Brings into the file what was put: what a killed program leaves is whole up to here. */
static void flush(void)
{
	const off_t place = sizeof(struct elbowroom_gpu_header) + offsetof(struct elbowroom_gpu_record, value);
	size_t done = 0;

	while (done < filled) {
		ssize_t more = write(file, outgoing + done, filled - done);

		if (more > 0)
			done += (size_t)more;
		else if (more == 0 || errno != EINTR)
			break;
	}
	if (done == filled) {
		kept += filled;
	} else {
		fprintf(stderr, "libelbowroom-gpu: while writing the trace: %s: it is not whole\n", strerror(errno));
		full = true;
		lost += waiting;
		/* They are counted as lost, so none of them stays. */
		(void)!ftruncate(file, (off_t)kept);
	}
	filled = 0;
	waiting = 0;
	/* On a full disk, too: the first record has had its place from the beginning on. */
	(void)!pwrite(file, &lost, sizeof lost, place);
}

static void put(enum elbowroom_gpu_kind kind, uint64_t begin, uint64_t end, uint64_t value, uint32_t detail, uint32_t thread,
		const char *name)
{
	size_t length = name ? strnlen(name, NAME_MAX_BYTES) : 0, padded = (length + 7) & ~(size_t)7;
	bool counts = kind < ELBOWROOM_GPU_LOST; /* the others tell of the trace itself */
	struct elbowroom_gpu_record record = {
		.kind = kind,
		.size = (uint32_t)(sizeof record + padded),
		.begin = begin,
		.end = end,
		.value = value,
		.detail = detail,
		.thread = thread,
	};

	if (filled + record.size > sizeof outgoing)
		flush();
	/* The end finds room behind what a program did. */
	if (full || kept + filled + record.size + (counts ? sizeof record : 0) > ELBOWROOM_GPU_LARGEST) {
		lost += counts;
		return;
	}
	memcpy(outgoing + filled, &record, sizeof record);
	memset(outgoing + filled + sizeof record, 0, padded);
	if (length)
		memcpy(outgoing + filled + sizeof record, name, length);
	filled += record.size;
	waiting += counts;
}

static void put_call(enum elbowroom_gpu_kind kind, CUpti_CallbackDomain domain, const CUpti_ActivityAPI *call)
{
	const char *name = NULL;

	if (p_cuptiGetCallbackName(domain, call->cbid, &name) != CUPTI_SUCCESS)
		name = NULL;
	put(kind, call->start, call->end, 0, call->cbid, call->threadId, name);
}

static void take(const CUpti_Activity *activity)
{
	switch (activity->kind) {
	case CUPTI_ACTIVITY_KIND_KERNEL:
	case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
		const CUpti_ActivityKernel9 *kernel = (const void *)activity;

		put(ELBOWROOM_GPU_KERNEL, kernel->start, kernel->end, 0, 0, 0, kernel->name);
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMCPY: {
		const CUpti_ActivityMemcpy6 *copy = (const void *)activity;

		put(ELBOWROOM_GPU_COPY, copy->start, copy->end, copy->bytes, copy->copyKind, 0, NULL);
		break;
	}
	case CUPTI_ACTIVITY_KIND_MEMSET: {
		const CUpti_ActivityMemset4 *set = (const void *)activity;

		put(ELBOWROOM_GPU_SET, set->start, set->end, set->bytes, 0, 0, NULL);
		break;
	}
	case CUPTI_ACTIVITY_KIND_RUNTIME:
		put_call(ELBOWROOM_GPU_RUNTIME, CUPTI_CB_DOMAIN_RUNTIME_API, (const void *)activity);
		break;
	case CUPTI_ACTIVITY_KIND_DRIVER:
		put_call(ELBOWROOM_GPU_DRIVER, CUPTI_CB_DOMAIN_DRIVER_API, (const void *)activity);
		break;
	case CUPTI_ACTIVITY_KIND_OVERHEAD: {
		const CUpti_ActivityOverhead3 *overhead = (const void *)activity;
		uint32_t thread = overhead->objectKind == CUPTI_ACTIVITY_OBJECT_THREAD ? overhead->objectId.pt.threadId : 0;

		put(ELBOWROOM_GPU_OVERHEAD, overhead->start, overhead->end, 0, overhead->overheadKind, thread, NULL);
		break;
	}
	default:
		break;
	}
}

static void CUPTIAPI requested(uint8_t **buffer, size_t *size, size_t *most)
{
	*buffer = aligned_alloc(8, BUFFER);
	*size = *buffer ? BUFFER : 0;
	*most = 0;
}

static void CUPTIAPI completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid)
{
	CUpti_Activity *activity = NULL;
	size_t dropped = 0;

	(void)size;
	pthread_mutex_lock(&lock);
	if (file >= 0 && getpid() == traced) {
		while (p_cuptiActivityGetNextRecord(buffer, valid, &activity) == CUPTI_SUCCESS)
			take(activity);
		if (p_cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS)
			lost += dropped;
		flush();
	}
	pthread_mutex_unlock(&lock);
	free(buffer);
}

static void finish(void)
{
	uint64_t now = 0;

	/* A child that was forked and not made another program: the trace and CUPTI's threads are its parent's. */
	if (getpid() != traced)
		return;
	p_cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
	p_cuptiGetTimestamp(&now);
	pthread_mutex_lock(&lock);
	if (file >= 0) {
		put(ELBOWROOM_GPU_END, 0, now, 0, 0, 0, NULL);
		flush();
		if (close(file))
			fprintf(stderr, "libelbowroom-gpu: while writing the trace: %s: it is not whole\n", strerror(errno));
		file = -1;
	}
	pthread_mutex_unlock(&lock);
}

static int open_cupti(void)
{
	const char *named = getenv("ELBOWROOM_CUPTI");
	const char *usual[] = { "libcupti.so.13", "libcupti.so.12", "libcupti.so", NULL };
	const char *only[] = { named, NULL }, **names = named ? only : usual;
	void *library = NULL;

	for (int i = 0; names[i] && !library; i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		say("CUPTI cannot be opened (ELBOWROOM_CUPTI says where it is)", dlerror());
		return -1;
	}
#define FIND(name)                                                                                                                 \
	p_##name = (__typeof__(p_##name))dlsym(library, #name);                                                                    \
	if (!p_##name) {                                                                                                           \
		say("CUPTI", "it has no " #name);                                                                                  \
		return -1;                                                                                                         \
	}
	FUNCTIONS(FIND)
#undef FIND
	return 0;
}

/* A trace that lacks a kind of record, or its first one, would be taken for a whole one. */
static void give_up(void)
{
	pthread_mutex_lock(&lock);
	close(file);
	file = -1;
	unlink(path);
	pthread_mutex_unlock(&lock);
}

static int open_file(void)
{
	struct elbowroom_gpu_header header = { .magic = { 'E', 'L', 'B', 'O', 'W', 'G', 'P', 'U' },
					       .version = ELBOWROOM_GPU_VERSION,
					       .pid = (uint32_t)getpid() };
	const char *begin = getenv("ELBOWROOM_GPU_TRACE");

	if (!begin) {
		say("ELBOWROOM_GPU_TRACE", "it does not say where the trace goes");
		return -1;
	}
	if (asprintf(&path, "%s.%d", begin, getpid()) >= 0)
		file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (file < 0) {
		say(begin, strerror(errno));
		return -1;
	}
	traced = getpid();
	p_cuptiGetTimestamp(&header.begin);
	memcpy(outgoing, &header, sizeof header);
	filled = sizeof header;
	put(ELBOWROOM_GPU_LOST, 0, 0, 0, 0, 0, NULL);
	flush();
	if (full) {
		give_up();
		return -1;
	}
	return 0;
}

/* Called by the driver; what it returns is ignored by it. */
EXPORT int InitializeInjection(void)
{
	static const CUpti_ActivityKind kinds[] = { CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
						    CUPTI_ACTIVITY_KIND_MEMSET,		   CUPTI_ACTIVITY_KIND_RUNTIME,
						    CUPTI_ACTIVITY_KIND_DRIVER,		   CUPTI_ACTIVITY_KIND_OVERHEAD };
	uint32_t version = 0;
	CUptiResult result;

	if (file >= 0 || open_cupti())
		return 1;
	if (p_cuptiGetVersion(&version) != CUPTI_SUCCESS || version < OLDEST) {
		say("CUPTI", "it is older than that of CUDA 12");
		return 1;
	}
	if (open_file())
		return 1;
	result = p_cuptiActivityRegisterCallbacks(requested, completed);
	for (size_t i = 0; result == CUPTI_SUCCESS && i < sizeof kinds / sizeof *kinds; i++)
		result = p_cuptiActivityEnable(kinds[i]);
	if (result != CUPTI_SUCCESS) {
		const char *why = "unknown error";

		p_cuptiGetResultString(result, &why);
		say("CUPTI", why);
		give_up();
		return 1;
	}
	atexit(finish);
	return 1;
}
