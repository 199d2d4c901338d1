/* A CUPTI without a GPU: replays activities through the callbacks of whoever registers them, as the real one does at the end of a
 * program. For tests of the tracing library; nothing in what it replays was recorded on a GPU. FAKE_CUPTI_VERSION is the version it
 * says, FAKE_CUPTI_REFUSES the activity it does not know.
 */
#include <cupti.h>
#include <stdlib.h>
#include <string.h>

static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static unsigned long long enabled;
static uint64_t now = 1000;

static long setting(const char *name, long otherwise)
{
	const char *value = getenv(name);

	return value ? atol(value) : otherwise;
}

CUptiResult CUPTIAPI cuptiGetVersion(uint32_t *version)
{
	*version = (uint32_t)setting("FAKE_CUPTI_VERSION", CUPTI_API_VERSION);
	return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetTimestamp(uint64_t *timestamp)
{
	*timestamp = now;
	return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested, CUpti_BuffersCallbackCompleteFunc completed)
{
	request = requested;
	complete = completed;
	return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind kind)
{
	if (kind == (CUpti_ActivityKind)setting("FAKE_CUPTI_REFUSES", -1))
		return CUPTI_ERROR_NOT_COMPATIBLE;
	/* As the real one: what is known of modules comes from callbacks. */
	if (kind == CUPTI_ACTIVITY_KIND_MODULE)
		return CUPTI_ERROR_INVALID_KIND;
	enabled |= 1ULL << kind;
	return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult result, const char **text)
{
	*text = result == CUPTI_SUCCESS ? "CUPTI_SUCCESS" : "CUPTI_ERROR_NOT_COMPATIBLE";
	return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t cbid, const char **name)
{
	if (domain == CUPTI_CB_DOMAIN_RUNTIME_API && cbid == CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020)
		*name = "cudaMalloc_v3020";
	else if (domain == CUPTI_CB_DOMAIN_DRIVER_API && cbid == CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData)
		*name = "cuModuleLoadData";
	else
		return CUPTI_ERROR_INVALID_PARAMETER;
	return CUPTI_SUCCESS;
}

static size_t size_of(CUpti_ActivityKind kind)
{
	switch (kind) {
	case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel9);
	case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy6);
	case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
	case CUPTI_ACTIVITY_KIND_OVERHEAD: return sizeof(CUpti_ActivityOverhead3);
	default: return sizeof(CUpti_ActivityAPI);
	}
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record)
{
	uint8_t *next = *record ? (uint8_t *)*record + ((size_of((*record)->kind) + 7) & ~(size_t)7) : buffer;

	if (next >= buffer + valid)
		return CUPTI_ERROR_MAX_LIMIT_REACHED;
	*record = (CUpti_Activity *)next;
	return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped)
{
	(void)context;
	(void)stream;
	*dropped = 3;
	return CUPTI_SUCCESS;
}

static uint8_t *append(uint8_t *at, const void *record)
{
	const CUpti_Activity *activity = record;
	size_t size = size_of(activity->kind);

	if (!(enabled & 1ULL << activity->kind))
		return at;
	memcpy(at, record, size);
	return at + ((size + 7) & ~(size_t)7);
}

CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t flag)
{
	CUpti_ActivityAPI malloc = { .kind = CUPTI_ACTIVITY_KIND_RUNTIME, .cbid = CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020,
				     .start = 1000, .end = 2000, .threadId = 9 };
	CUpti_ActivityAPI load = { .kind = CUPTI_ACTIVITY_KIND_DRIVER, .cbid = CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData,
				   .start = 1200, .end = 1700, .threadId = 9 };
	CUpti_ActivityAPI unknown = { .kind = CUPTI_ACTIVITY_KIND_DRIVER, .cbid = 1, .start = 2000, .end = 2100, .threadId = 9 };
	CUpti_ActivityKernel9 kernel = { .kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, .start = 2100, .end = 2400, .name = "stencil" };
	CUpti_ActivityMemcpy6 copy = { .kind = CUPTI_ACTIVITY_KIND_MEMCPY, .start = 2400, .end = 2450, .bytes = 4096 };
	CUpti_ActivityMemset4 set = { .kind = CUPTI_ACTIVITY_KIND_MEMSET, .start = 2450, .end = 2460, .bytes = 64 };
	CUpti_ActivityOverhead3 overhead = { .kind = CUPTI_ACTIVITY_KIND_OVERHEAD, .start = 2460, .end = 2480,
					     .overheadKind = CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH };
	const void *records[] = { &malloc, &load, &unknown, &kernel, &copy, &set, &overhead };
	uint8_t *buffer = NULL, *end;
	size_t size = 0, most = 0;

	(void)flag;
	request(&buffer, &size, &most);
	if (!buffer || size < 8 * sizeof(CUpti_ActivityKernel9))
		return CUPTI_ERROR_OUT_OF_MEMORY;
	end = buffer;
	for (size_t i = 0; i < sizeof records / sizeof *records; i++)
		end = append(end, records[i]);
	complete(NULL, 0, buffer, size, (size_t)(end - buffer));
	now = 3000;
	return CUPTI_SUCCESS;
}
