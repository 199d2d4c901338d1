/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Whose a task is: its cgroup in the hierarchy that user space chose. */
#ifndef ELBOWROOM_CGROUP_H
#define ELBOWROOM_CGROUP_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* The id of every hierarchy's root (fs/kernfs/dir.c allocates ids from 1): idle and kernel threads, never tracked. */
#define ROOT 1

/* Which hierarchy's cgroup a task is charged to; `Hierarchy` in src/bpf/mod.rs has the same numbers. */
enum hierarchy {
	UNIFIED,
	CPU,
	CPUACCT,
	MEMORY,
};

const volatile u32 hierarchy = UNIFIED;

/* The id of the task's cgroup in the chosen hierarchy; ROOT where this kernel lacks the controller. */
static __always_inline u64 cgroup_of(struct task_struct *task)
{
	struct css_set *css_set = task->cgroups;

	if (hierarchy == CPU && bpf_core_enum_value_exists(enum cgroup_subsys_id, cpu_cgrp_id))
		return css_set->subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id)]->cgroup->kn->id;
	if (hierarchy == CPUACCT && bpf_core_enum_value_exists(enum cgroup_subsys_id, cpuacct_cgrp_id))
		return css_set->subsys[bpf_core_enum_value(enum cgroup_subsys_id, cpuacct_cgrp_id)]->cgroup->kn->id;
	if (hierarchy == MEMORY && bpf_core_enum_value_exists(enum cgroup_subsys_id, memory_cgrp_id))
		return css_set->subsys[bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id)]->cgroup->kn->id;
	if (hierarchy == UNIFIED && bpf_core_field_exists(css_set->dfl_cgrp))
		return css_set->dfl_cgrp->kn->id;
	return ROOT;
}

#endif
