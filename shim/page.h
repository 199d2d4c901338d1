/*
 * Finding and reading the view page, for code that may not depend on any C library: system calls are made here, and what
 * a C library offers is used where it is there (weak symbols). Internal to this directory; included once per library.
 */
#ifndef ELBOWROOM_PAGE_H
#define ELBOWROOM_PAGE_H

#include "view.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define WEAK __attribute__((weak))

#if defined(__x86_64__)
enum { NR_mmap = 9, NR_munmap = 11, NR_close = 3, NR_lseek = 8, NR_sysinfo = 99, NR_clock_gettime = 228, NR_openat = 257, NR_futex = 202,
       NR_sched_getaffinity = 204, NR_gettid = 186, NR_getpid = 39, NR_write = 1, NR_exit_group = 231 };

static inline long sys(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}
#elif defined(__aarch64__)
enum { NR_mmap = 222, NR_munmap = 215, NR_close = 57, NR_lseek = 62, NR_sysinfo = 179, NR_clock_gettime = 113, NR_openat = 56,
       NR_futex = 98, NR_sched_getaffinity = 123, NR_gettid = 178, NR_getpid = 172, NR_write = 64,
       NR_exit_group = 94 };

static inline long sys(long nr, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}
#else
#error "no system calls for this architecture yet"
#endif

struct clock_value {
	long sec;
	long nsec;
};

enum { COARSE = 6 /* CLOCK_MONOTONIC_COARSE: some nanoseconds to read, right to a few milliseconds */ };

WEAK extern int clock_gettime(int clock, struct clock_value *value);
WEAK extern char *secure_getenv(const char *name);
WEAK extern char **environ;

/* Milliseconds of the coarse monotonic clock; never 0. */
static inline long now_ms(void)
{
	struct clock_value t = {0, 0};

	if (likely(clock_gettime != NULL))
		clock_gettime(COARSE, &t);
	else
		sys(NR_clock_gettime, COARSE, (long)&t, 0, 0, 0, 0);
	return t.sec * 1000 + t.nsec / 1000000 + 1;
}

/* Only one that no other thread has seen. */
static void page_unmap(const struct elbowroom_page *page)
{
	sys(NR_munmap, (long)page, ELBOWROOM_PAGE_SIZE, 0, 0, 0, 0);
}

static const struct elbowroom_page *page_map(const char *path)
{
	enum { AT_FDCWD_ = -100, RDONLY_CLOEXEC = 02000000, SEEK_END_ = 2, PROT_READ_ = 1, MAP_SHARED_ = 1 };
	const struct elbowroom_page *page;
	long fd, at = -1;

	fd = sys(NR_openat, AT_FDCWD_, (long)path, RDONLY_CLOEXEC, 0, 0, 0);
	if (fd < 0)
		return NULL;
	/* An empty file is a view without a page; to touch memory behind the end of a file would be a SIGBUS. */
	if (sys(NR_lseek, fd, 0, SEEK_END_, 0, 0, 0) >= (long)ELBOWROOM_PAGE_SIZE)
		at = sys(NR_mmap, 0, ELBOWROOM_PAGE_SIZE, PROT_READ_, MAP_SHARED_, fd, 0);
	sys(NR_close, fd, 0, 0, 0, 0, 0);
	if (at < 0 && at > -4096)
		return NULL;
	page = (const struct elbowroom_page *)at;
	if (__builtin_memcmp(page->magic, ELBOWROOM_VIEW_MAGIC, sizeof(page->magic)) != 0 ||
	    page->version != ELBOWROOM_VIEW_VERSION) {
		page_unmap(page);
		return NULL;
	}
	return page;
}

/* What ELBOWROOM_VIEW said when the program began, if anything, and whether that is known. */
static char page_name[4096];
static int page_named;

/*
 * Once, and before there are threads: a setenv() elsewhere frees what getenv() reads (glibc before 2.41). A copy, because programs
 * write over what they were given. A caller before constructors run comes here itself, before a C library has an environment
 * perhaps: then it is too early to say.
 */
static __attribute__((constructor)) void page_read_name(void)
{
	const char *name = NULL;

	if (__atomic_load_n(&page_named, __ATOMIC_ACQUIRE) || (&environ != NULL && environ == NULL))
		return;
	if (secure_getenv != NULL)
		name = secure_getenv("ELBOWROOM_VIEW");
	for (size_t i = 0; name != NULL && name[i] != '\0' && i < sizeof(page_name) - 1; i++)
		__atomic_store_n(&page_name[i], name[i], __ATOMIC_RELAXED);
	__atomic_store_n(&page_named, 1, __ATOMIC_RELEASE);
}

static const struct elbowroom_page *page_mapped;
/* When a thread last began to look, and whether a first look has ended. */
static long page_looked_at;
static int page_looked;

static inline const struct elbowroom_view *page_current(const struct elbowroom_page *page)
{
	return &page->views[__atomic_load_n(&page->generation, __ATOMIC_ACQUIRE) & 1];
}

/*
 * There is no page, or no agent keeps the one there was: looks again, once a second. Before a first look has ended all threads look
 * for himself, or threads that ask together would be told that there is none. Pages that were found are never unmapped, because
 * other threads may be reading: that is 4 KiB for each agent that came and went.
 */
static __attribute__((noinline, cold)) const struct elbowroom_page *page_find(void)
{
	long now = now_ms(), before = __atomic_load_n(&page_looked_at, __ATOMIC_RELAXED);
	const struct elbowroom_page *page, *old = __atomic_load_n(&page_mapped, __ATOMIC_ACQUIRE);

	if (__atomic_load_n(&page_looked, __ATOMIC_ACQUIRE)) {
		if (now - before < 1000 ||
		    !__atomic_compare_exchange_n(&page_looked_at, &before, now, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			/* Or another thread has just found one. */
			page = __atomic_load_n(&page_mapped, __ATOMIC_ACQUIRE);
			return page != old ? page : NULL;
		}
	} else {
		__atomic_store_n(&page_looked_at, now, __ATOMIC_RELAXED);
	}
	page_read_name();
	page = page_map(page_name[0] != '\0' ? page_name : ELBOWROOM_VIEW_PATH);
	if (page != NULL && __atomic_load_n(&page_current(page)->cpus, __ATOMIC_RELAXED) == 0) {
		page_unmap(page);
		page = NULL;
	}
	if (page != NULL &&
	    !__atomic_compare_exchange_n(&page_mapped, &old, page, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		page_unmap(page);
		page = old;
	}
	__atomic_store_n(&page_looked, 1, __ATOMIC_RELEASE);
	return page;
}

/* The page, if there is one that an agent keeps. */
static inline const struct elbowroom_page *page_get(void)
{
	const struct elbowroom_page *page = __atomic_load_n(&page_mapped, __ATOMIC_ACQUIRE);

	if (likely(page != NULL && __atomic_load_n(&page_current(page)->cpus, __ATOMIC_RELAXED) != 0))
		return page;
	return page_find();
}

/* Effective CPU, or 0. */
static inline uint32_t page_cpus(void)
{
	const struct elbowroom_page *page = __atomic_load_n(&page_mapped, __ATOMIC_ACQUIRE);
	uint32_t cpus;

	if (likely(page != NULL)) {
		cpus = __atomic_load_n(&page_current(page)->cpus, __ATOMIC_RELAXED);
		if (likely(cpus != 0))
			return cpus;
	}
	page = page_find();
	return page != NULL ? __atomic_load_n(&page_current(page)->cpus, __ATOMIC_RELAXED) : 0;
}

typedef uint64_t __attribute__((may_alias)) view_word;

/* One version of the whole view. 0, or -1. */
static inline int page_view(struct elbowroom_view *view)
{
	const struct elbowroom_page *page = page_get();
	const view_word *from;
	view_word *to = (view_word *)view;
	uint32_t generation;
	size_t i;

	if (page == NULL)
		return -1;
	do {
		generation = __atomic_load_n(&page->generation, __ATOMIC_ACQUIRE);
		from = (const view_word *)&page->views[generation & 1];
		for (i = 0; i < sizeof(*view) / sizeof(*to); i++)
			to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
		/* The copies may not sink below the second look. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
	} while (unlikely(__atomic_load_n(&page->generation, __ATOMIC_RELAXED) != generation));
	return view->cpus != 0 ? 0 : -1;
}

#endif
