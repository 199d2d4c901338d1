/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The lab's own container maker: what a container engine does, as far as resource views can tell. A process in its own
 * PID and mount namespace (and cgroup namespace where asked), in the given cgroups, with its own /proc, with only its
 * own cgroups under /sys/fs/cgroup, and with files mounted over files. The root file system is the host's.
 *
 * "contain" prints the PID of the container's first process, as the host sees it, when everything is in place. That
 * process lives until its stdin ends; when it exits, the kernel ends whatever else runs in the container. A lab that
 * dies for any reason therefore leaves no container behind.
 */
#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_ENTRIES 64
#define CGROUP_ROOT "/sys/fs/cgroup"

struct spec {
	const char *cgroups[MAX_ENTRIES];
	const char *binds[MAX_ENTRIES][2];
	const char *cgroupfs[MAX_ENTRIES][2]; /* name below CGROUP_ROOT, "." for CGROUP_ROOT itself; directory */
	int nr_cgroups, nr_binds, nr_cgroupfs, cgroupns;
};

static void parse(struct spec *spec, int argc, char **argv)
{
	for (int i = 0; i < argc;) {
		int left = argc - i - 1;

		if (spec->nr_cgroups == MAX_ENTRIES || spec->nr_binds == MAX_ENTRIES ||
		    spec->nr_cgroupfs == MAX_ENTRIES)
			die("contain: too many entries");
		if (!strcmp(argv[i], "cgroup") && left >= 1) {
			spec->cgroups[spec->nr_cgroups++] = argv[i + 1];
			i += 2;
		} else if (!strcmp(argv[i], "cgroupns")) {
			spec->cgroupns = 1;
			i += 1;
		} else if (!strcmp(argv[i], "bind") && left >= 2) {
			spec->binds[spec->nr_binds][0] = argv[i + 1];
			spec->binds[spec->nr_binds++][1] = argv[i + 2];
			i += 3;
		} else if (!strcmp(argv[i], "cgroupfs") && left >= 2) {
			spec->cgroupfs[spec->nr_cgroupfs][0] = argv[i + 1];
			spec->cgroupfs[spec->nr_cgroupfs++][1] = argv[i + 2];
			i += 3;
		} else {
			die("contain: malformed arguments");
		}
	}
}

static void join(const char *cgroup, pid_t pid)
{
	char path[4096], text[32];
	int len = snprintf(text, sizeof(text), "%d\n", pid), fd;

	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, (size_t)len) != len)
		die(path);
	close(fd);
}

static int clone_tree(const char *path)
{
	int fd = (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);

	if (fd < 0)
		die(path);
	return fd;
}

static void move_tree(int tree, const char *target)
{
	if (syscall(SYS_move_mount, tree, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) < 0)
		die(target);
	close(tree);
}

/* The cgroup directories are taken hold of before the host's mounts go; those go so that no tool finds two of a kind. */
static void mount_cgroups(const struct spec *spec)
{
	int trees[MAX_ENTRIES];
	int whole = spec->nr_cgroupfs == 1 && !strcmp(spec->cgroupfs[0][0], ".");

	for (int i = 0; i < spec->nr_cgroupfs; i++)
		trees[i] = clone_tree(spec->cgroupfs[i][1]);
	if (spec->nr_cgroupfs && umount2(CGROUP_ROOT, MNT_DETACH))
		die(CGROUP_ROOT);
	if (!whole && spec->nr_cgroupfs && mount("tmpfs", CGROUP_ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"))
		die(CGROUP_ROOT);
	for (int i = 0; i < spec->nr_cgroupfs; i++) {
		char target[4096];

		snprintf(target, sizeof(target), "%s/%s", CGROUP_ROOT, whole ? "" : spec->cgroupfs[i][0]);
		if (!whole && mkdir(target, 0755))
			die(target);
		move_tree(trees[i], target);
		if (mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL))
			die(target);
	}
}

static _Noreturn void first_process(const struct spec *spec, int go, int ready)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	char c;

	if (read(go, &c, 1) != 1)
		exit(1); /* the parent has said why */
	close(go);
	if (spec->cgroupns && unshare(CLONE_NEWCGROUP))
		die("unshare");
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		die("making / private");
	if (umount2("/proc", MNT_DETACH) || mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL))
		die("/proc");
	mount_cgroups(spec);
	for (int i = 0; i < spec->nr_binds; i++)
		move_tree(clone_tree(spec->binds[i][0]), spec->binds[i][1]);
	signal(SIGCHLD, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	if (write(ready, "", 1) != 1)
		exit(1);
	close(ready);
	/* The lab reads both to their end. */
	if (dup2(null, 1) < 0 || dup2(null, 2) < 0)
		exit(1);
	while (read(0, &c, 1) > 0)
		;
	exit(0);
}

int contain(int argc, char **argv)
{
	struct spec spec = { 0 };
	int go[2], ready[2];
	pid_t pid;
	char c;

	parse(&spec, argc, argv);
	if (pipe2(go, O_CLOEXEC) || pipe2(ready, O_CLOEXEC))
		die("pipe2");
	pid = (pid_t)syscall(SYS_clone, CLONE_NEWNS | CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
	if (pid < 0)
		die("clone");
	if (pid == 0) {
		close(go[1]);
		close(ready[0]);
		first_process(&spec, go[0], ready[1]);
	}
	close(go[0]);
	close(ready[1]);
	for (int i = 0; i < spec.nr_cgroups; i++)
		join(spec.cgroups[i], pid);
	if (write(go[1], "", 1) != 1)
		die("starting the container");
	errno = 0;
	if (read(ready[0], &c, 1) != 1) {
		waitpid(pid, NULL, 0);
		die("the container did not come up");
	}
	printf("%d\n", pid);
	return 0;
}

/*
 * Runs a command inside a container of either maker: its cgroups, then its namespaces. Ctrl-C reaches this process and
 * the command; only the command obeys, for this one must stay to reap it: a container cannot end before all its
 * processes are reaped.
 */
int enter(int argc, char **argv)
{
	static const char *const kinds[] = { "cgroup", "mnt", "pid" };
	static const int obeyed[] = { SIGINT, SIGTERM, SIGHUP };
	int fds[3], i = 1, status;
	pid_t child;

	if (argc < 3)
		die("enter needs 3 arguments or more");
	for (; i + 1 < argc && !strcmp(argv[i], "cgroup"); i += 2)
		join(argv[i + 1], getpid());
	if (i + 1 >= argc || strcmp(argv[i], "--"))
		die("enter: no command");
	for (int k = 0; k < 3; k++) {
		char path[64];

		snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)number(argv[0]), kinds[k]);
		fds[k] = open(path, O_RDONLY | O_CLOEXEC);
		if (fds[k] < 0)
			die(path);
	}
	for (int k = 0; k < 3; k++) {
		if (setns(fds[k], 0))
			die(kinds[k]);
	}
	for (int k = 0; k < 3; k++)
		signal(obeyed[k], SIG_IGN);
	child = fork();
	if (child < 0)
		die("fork");
	if (child == 0) {
		for (int k = 0; k < 3; k++)
			signal(obeyed[k], SIG_DFL);
		execv(argv[i + 1], argv + i + 1);
		die(argv[i + 1]);
	}
	if (waitpid(child, &status, 0) != child)
		die("waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
