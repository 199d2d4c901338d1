/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * reader - what runs inside the containers of the lab's experiments.
 *
 * One static program without dependencies, so that the same bytes run in a container of the lab's own maker, in an
 * otherwise empty Docker image and in a virtual machine. The lab is its only caller: arguments are positional, times
 * that two processes must agree on are absolute CLOCK_MONOTONIC nanoseconds, the answer is on stdout, errors are on
 * stderr with exit status 1.
 */
#ifndef READER_H
#define READER_H

#include <stddef.h>
#include <stdint.h>

#define NS_PER_SEC 1000000000ull
#define NS_PER_MS 1000000ull

/* Prints `what` (and errno, when it is set) on stderr and exits with 1. */
_Noreturn void die(const char *what);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t now_ns(void);

/* Sleeps until CLOCK_MONOTONIC reaches `ns`; returns at once when it has passed. */
void sleep_until(uint64_t ns);

/*
 * Puts this thread before the others of its container, where that is allowed: what keeps to a schedule must not wait
 * behind the load it is measured next to.
 */
void be_prompt(void);

/* A decimal number and nothing else, or exit: the caller is a program. */
uint64_t number(const char *text);

/* Value in KiB of `key` (with its colon) in meminfo text, or -1 where the line is missing. */
long meminfo_kib(const char *text, const char *key);

/* How many CPUs a kernel list such as "0-3,8\n" names; 0 where it is malformed. */
int cpulist_count(const char *text);

/* The whole file in one read, NUL terminated. Length, or -1 with errno. */
long slurp(const char *path, char *buf, size_t size);

int bench(int argc, char **argv);
int poll_files(int argc, char **argv);
int watch(int argc, char **argv);
int load(int argc, char **argv);
int verify(int argc, char **argv);
int contain(int argc, char **argv);
int enter(int argc, char **argv);

#endif
