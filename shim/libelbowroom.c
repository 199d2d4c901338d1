/* libelbowroom: what this container can really use now, in a few nanoseconds. The interface is view.h. */
#include "page.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT uint32_t elbowroom_cpus(void)
{
	return page_cpus();
}

EXPORT uint64_t elbowroom_memory(void)
{
	const struct elbowroom_page *page = page_get();

	return page != NULL ? __atomic_load_n(&page_current(page)->memory, __ATOMIC_RELAXED) : 0;
}

EXPORT int elbowroom_view(struct elbowroom_view *view)
{
	return page_view(view);
}

EXPORT int elbowroom_wait(uint32_t *seen, int timeout_ms)
{
	enum { FUTEX_WAIT_ = 0 };
	struct clock_value timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
	const struct elbowroom_page *page = page_get();
	uint32_t now;

	if (page == NULL)
		return -1;
	now = __atomic_load_n(&page->changes, __ATOMIC_ACQUIRE);
	if (now == *seen) {
		/* Whether it waited, or the word had changed already, or a signal came: what counts is what it is now. */
		sys(NR_futex, (long)&page->changes, FUTEX_WAIT_, now, timeout_ms < 0 ? 0 : (long)&timeout, 0, 0);
		now = __atomic_load_n(&page->changes, __ATOMIC_ACQUIRE);
	}
	if (now == *seen)
		return 0;
	*seen = now;
	return 1;
}
