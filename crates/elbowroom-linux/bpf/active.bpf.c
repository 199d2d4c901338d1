// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Which cgroups ran, and for how long, without a system call per question.
 *
 * On every context switch the CPU time of the run that ends is added to the slot of its cgroup, and the slot's bit is
 * set in a bitmap. Both live in memory that user space maps, next to one record per CPU saying which cgroup is on it
 * since when: a reader that wants the total of now adds the unfinished run.
 *
 * The time is the scheduler's own (sum_exec_runtime, which update_curr() has brought up to date before the tracepoint
 * fires), so totals are those of cpuacct.usage and cpu.stat, with stolen time already taken out where the kernel does.
 *
 * A run is an uninterrupted stay of one cgroup on one CPU: a switch between two of its threads continues it, at the
 * price of a few loads. A task is charged to the cgroup it had when it came onto the CPU.
 */
#include "cgroup.h"
#include <bpf/bpf_tracing.h>

/* Sizes of the maps; user space reads them from the object. */
#define SLOTS 16384
#define GROUPS 65536

/* Cgroup id (the inode of its directory) to slot. Filled by user space; a cgroup that is not in it costs one lookup. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, GROUPS);
	__type(key, u64);
	__type(value, u32);
} groups SEC(".maps");

/* Nanoseconds of CPU time by slot, finished runs only. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS);
	__type(key, u32);
	__type(value, u64);
} totals SEC(".maps");

/* One bit per slot: a run has finished since the reader last cleared it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SLOTS / 64);
	__type(key, u32);
	__type(value, u64);
} ran SEC(".maps");

/* What is on a CPU now; a cache line each, in the order of `Cpu` in src/bpf/shared.rs. */
struct cpu {
	u64 since;    /* CLOCK_MONOTONIC at the start of the run; ROOT: of none; 0: this record or a total is changing */
	u64 cgroup;   /* its cgroup id */
	u64 switches; /* context switches seen */
	u64 runtime;  /* sum_exec_runtime of the running task, less what earlier tasks used in this run */
	u64 missed;   /* switches that must have been there and were not seen */
	u64 seen;     /* the run queue's clock at the last switch that was seen */
	u32 pid;      /* the running task */
	u32 unused[3];
};

/* One record per possible CPU: user space sets max_entries before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

static __always_inline void charge(u64 cgroup, u64 ns)
{
	u32 *slot = bpf_map_lookup_elem(&groups, &cgroup);
	u64 *total, *word, bit;
	u32 index;

	if (!slot)
		return;
	index = *slot;
	total = bpf_map_lookup_elem(&totals, &index);
	if (!total)
		return;
	bit = 1ULL << (index % 64);
	index /= 64;
	word = bpf_map_lookup_elem(&ran, &index);
	if (!word)
		return;
	/*
	 * The reader clears the bit, then reads the total: a bit seen set after the addition covers it. Only an atomic
	 * whose result is used orders the two on every architecture.
	 */
	ns = __sync_fetch_and_add(total, ns);
	asm volatile("" : : "r"(ns));
	if (!(*(volatile u64 *)word & bit))
		__sync_fetch_and_or(word, bit);
}

/* The run queue's clock, rq_clock_task(): both tasks have it from this switch, but for idle ones, whose is an older one. */
static __always_inline u64 clock(struct task_struct *prev, struct task_struct *next)
{
	u64 ended = prev->se.exec_start, began = next->se.exec_start;

	return ended > began ? ended : began;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(elbowroom_active, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u32 number = bpf_get_smp_processor_id();
	struct cpu *cpu = bpf_map_lookup_elem(&cpus, &number);
	u64 cgroup, owner, used, now, seen;

	if (!cpu)
		return 0;
	cpu->switches++;
	cgroup = cgroup_of(next);
	now = clock(prev, next);
	seen = cpu->seen;
	cpu->seen = now;
	owner = cpu->since ? cpu->cgroup : ROOT;
	used = prev->se.sum_exec_runtime - cpu->runtime;
	if (cpu->since && cpu->pid != (u32)prev->pid) {
		/*
		 * Some kernels hide a switch now and then. The fair class knows when the task that leaves came
		 * (prev_sum_exec_runtime, set_next_entity() in kernel/sched/fair.c). Others leave that alone, and what it says of
		 * them is longer than since the last switch that was seen. What the task before it ran is lost here, and of one that
		 * exits what it ran before it began to (sched_autogroup_exit_task()).
		 */
		cpu->missed++;
		owner = cgroup_of(prev);
		used = prev->se.sum_exec_runtime - prev->se.prev_sum_exec_runtime;
		if (used > now - seen)
			owner = ROOT;
	} else if (cpu->since && owner == cgroup) {
		cpu->pid = next->pid;
		cpu->runtime = next->se.sum_exec_runtime - used;
		return 0;
	}
	cpu->pid = next->pid;
	/* Exchanges are full barriers: a reader that finds the same time twice saw nothing change in between. */
	__sync_lock_test_and_set(&cpu->since, 0);
	if (owner != ROOT)
		charge(owner, used);
	cpu->cgroup = cgroup;
	cpu->runtime = next->se.sum_exec_runtime;
	__sync_lock_test_and_set(&cpu->since, cgroup == ROOT ? ROOT : bpf_ktime_get_ns());
	return 0;
}

/*
 * Programs that look into kernel structures, as tp_btf ones do, and some helpers are open only to licences the kernel
 * counts as GPL compatible (license_is_gpl_compatible() in include/linux/license.h). "Dual MIT/GPL" is one of its
 * spellings and is what this file is: MIT like the rest of the project, or GPL-2.0.
 */
char LICENSE[] SEC("license") = "Dual MIT/GPL";
