/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The few kernel types the programs look into, with only the fields they read. preserve_access_index makes every
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

enum {
	false = 0,
	true = 1,
};

/* include/uapi/linux/bpf.h: part of the system call's stable interface. */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
};
enum {
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
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
	memory_cgrp_id,
	CGROUP_SUBSYS_COUNT,
};

struct css_set {
	struct cgroup_subsys_state *subsys[CGROUP_SUBSYS_COUNT];
	struct cgroup *dfl_cgrp;
};

struct sched_entity {
	u64 exec_start;
	u64 sum_exec_runtime;
	u64 prev_sum_exec_runtime;
};

/* include/linux/maple_tree.h, Linux 6.1 */
struct maple_tree {
	void *ma_root;
};

struct maple_range_64 {
	unsigned long pivot[15];
	void *slot[16];
};

struct maple_arange_64 {
	unsigned long pivot[9];
	void *slot[10];
};

struct seqcount {
	unsigned int sequence;
};

struct mm_struct {
	struct maple_tree mm_mt;
	unsigned long *pgd;
	unsigned long start_stack;
	unsigned long total_vm;
	int map_count;
};

/* The count of changes to the areas, Linux 6.4 to 6.12. */
struct mm_struct___6_4 {
	int mm_lock_seq;
};

/* The same since Linux 6.13. */
struct mm_struct___6_13 {
	struct seqcount mm_lock_seq;
};

struct super_block {
	u32 s_dev;
};

struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
};

struct vm_fault {
	unsigned long address;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	struct mm_struct *vm_mm;
	unsigned long vm_flags;
	const void *vm_ops;
	unsigned long vm_pgoff;
	struct file *vm_file;
};

struct rlimit {
	unsigned long rlim_cur;
};

struct signal_struct {
	struct rlimit rlim[16];
};

struct task_struct {
	int pid;
	int tgid;
	u64 start_time; /* ns, on the monotonic clock */
	struct sched_entity se;
	struct mm_struct *mm;
	struct signal_struct *signal;
	struct css_set *cgroups;
};

struct bpf_iter_meta;

/* The context of a program that is called for every task. */
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

/* The context of a program on a perf event. */
struct bpf_perf_event_data {
	u64 sample_period;
	u64 addr;
};

#pragma clang attribute pop

#endif
