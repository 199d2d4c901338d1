/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The few kernel types active.bpf.c looks into, with only the fields it reads. preserve_access_index makes every
 * access a CO-RE relocation: the loader replaces the offsets below by those of the running kernel's BTF, so neither
 * the order nor the absence of the other fields matters, and no vmlinux.h of one particular kernel is committed.
 */
#ifndef ELBOWROOM_KERNEL_H
#define ELBOWROOM_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;
typedef _Bool bool;

/* include/uapi/linux/bpf.h: part of the system call's stable interface. */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
};
enum {
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_MMAPABLE = 1 << 10,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	u64 id; /* what stat(2) shows as st_ino of the cgroup's directory */
};

struct cgroup {
	struct kernfs_node *kn;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

/* The running kernel's values are relocated in; these only have to be distinct. */
enum cgroup_subsys_id {
	cpu_cgrp_id,
	cpuacct_cgrp_id,
	CGROUP_SUBSYS_COUNT,
};

struct css_set {
	struct cgroup_subsys_state *subsys[CGROUP_SUBSYS_COUNT];
	struct cgroup *dfl_cgrp;
};

struct sched_entity {
	u64 sum_exec_runtime;
};

struct task_struct {
	int pid;
	struct sched_entity se;
	struct css_set *cgroups;
};

#pragma clang attribute pop

#endif
