/*
 * The view page: what a container can really use now, in one page of memory that it maps read-only.
 *
 * The page is a file of 4096 bytes at ELBOWROOM_VIEW_PATH, or where the environment variable ELBOWROOM_VIEW said when the
 * program began. It is there as long as an agent shows the container its view; without one the file is missing, or empty.
 * One process writes it, any process may read it, and no reader ever waits or is waited for.
 *
 * Reading one number: load `generation`, then the field in views[generation & 1]. Both loads may be relaxed, and the
 * result is a number that was, or in this instant becomes, the container's. Reading several that belong together: do the
 * same with an acquire load, copy, and begin again if `generation` is not what it was (elbowroom_view() does).
 *
 * Waiting: `changes` counts the changes of everything up to `memory_most`, and of `online`, and agents that took over: the
 * numbers may be the same then. It is a futex of the shared kind; FUTEX_WAIT works on a mapping that is read-only.
 *
 * Versions: `version` changes when something moves or changes its meaning, and then older readers must not read on. New
 * fields take the place of reserved ones, which are zero, and zero always means "not known".
 *
 * All numbers have the byte order of the machine. A 32-bit or 64-bit field is aligned, so that one load reads it whole.
 */
#ifndef ELBOWROOM_VIEW_H
#define ELBOWROOM_VIEW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ELBOWROOM_VIEW_PATH "/sys/devices/system/cpu/elbowroom"
#define ELBOWROOM_VIEW_MAGIC "elbowrm"	/* with its zero: eight bytes */
#define ELBOWROOM_VIEW_VERSION 1u
#define ELBOWROOM_PAGE_SIZE 4096u
#define ELBOWROOM_MAX_CPUS 1024u

/* What one container can use. */
struct elbowroom_view {
	/* Effective CPU, in whole CPUs. 0: no agent keeps this page up to date any more; look at the path again. */
	uint32_t cpus;
	/* The most that can become under the limits as they are. */
	uint32_t cpus_most;
	/* Effective CPU in thousandths, where a quota is a fraction of a CPU. */
	uint64_t millicpu;
	/* Effective memory, and the most it can become: the hard limit, or the machine's memory. Bytes. */
	uint64_t memory;
	uint64_t memory_most;
	/* Memory charged to the container when last looked at, of which `memory_inactive_file` goes first. Bytes. */
	uint64_t memory_used;
	uint64_t memory_inactive_file;
	/* When the container started, and when use was last looked at: microseconds of CLOCK_BOOTTIME. */
	uint64_t started_usec;
	uint64_t taken_usec;
	/* Load averages of the container over 1, 5 and 15 minutes, in hundredths; its threads. */
	uint32_t load[3];
	uint32_t threads;
	uint64_t reserved[6];
	/* The CPUs shown online: bit c % 64 of word c / 64 is CPU c. */
	uint64_t online[ELBOWROOM_MAX_CPUS / 64];
};

/* The file. */
struct elbowroom_page {
	char magic[8];
	uint32_t version;
	/* sizeof(struct elbowroom_view) of who writes. */
	uint32_t view_size;
	uint32_t generation;
	uint32_t changes;
	uint64_t reserved[5];
	struct elbowroom_view views[2];
};

/*
 * The library, libelbowroom. Every function is thread-safe, async-signal-safe and quick: the page is mapped by the first
 * call and looked for again at most once a second where there is none. In programs that fork, the child's calls work too.
 */

/* Effective CPU in whole CPUs; 0 where no agent shows a view. */
uint32_t elbowroom_cpus(void);

/* Effective memory in bytes; 0 where no agent shows a view. */
uint64_t elbowroom_memory(void);

/* Copies the whole view, one version of it. 0, or -1 where no agent shows one. */
int elbowroom_view(struct elbowroom_view *view);

/*
 * Waits until the view is another one than *seen says, at most timeout_ms milliseconds (-1: for ever), and stores in
 * *seen which it is now. Start with *seen = 0. 1: it changed, or the agent went away (elbowroom_cpus() is 0 then) or another
 * took over; 0: it did not in that time, or a signal came; -1: no agent shows a view, and nothing was waited for.
 */
int elbowroom_wait(uint32_t *seen, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
