/* What a container can do to the view server and to the one that tells the kernel which pages are old.
 *
 *   hostile_more ioctls THREADS         each thread sends requests with an argument of 16 kB, without pause
 *   hostile_more maps COUNT PROCESSES   each process maps /proc/meminfo so often, and reads it without pause
 *
 * Both print a line when all is there, and run until their input ends.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define FILE_OF_VIEW "/proc/meminfo"

static int file;
static char argument[16000];

static void *ask(void *unused)
{
	for (;;)
		ioctl(file, _IOC(_IOC_READ | _IOC_WRITE, 'x', 1, sizeof(argument)), argument);
	return unused;
}

static int ioctls(int threads)
{
	pthread_attr_t small;
	pthread_t thread;
	int started = 0;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	while (started < threads && pthread_create(&thread, &small, ask, NULL) == 0)
		started++;
	return started;
}

static int maps(int count, int processes)
{
	int ready[2], sum = 0;

	if (pipe(ready))
		abort();
	for (int n = 0; n < processes; n++) {
		if (fork())
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		volatile char *first = NULL;
		int made = 0;
		for (; made < count; made++) {
			void *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
			if (at == MAP_FAILED)
				break;
			first = first ? first : at;
		}
		if (write(ready[1], &made, sizeof(made)) < 0 || !first)
			_exit(1);
		for (;; usleep(1000))
			(void)*first;
	}
	for (int n = 0, made; n < processes && read(ready[0], &made, sizeof(made)) > 0; n++)
		sum += made;
	return sum;
}

int main(int argc, char **argv)
{
	char end;
	int made;

	file = open(FILE_OF_VIEW, O_RDONLY);
	if (argc < 3 || file < 0)
		return 2;
	if (!strcmp(argv[1], "ioctls"))
		made = ioctls(atoi(argv[2]));
	else
		made = maps(atoi(argv[2]), atoi(argv[3]));
	printf("%d\n", made);
	fflush(stdout);
	while (read(0, &end, 1) > 0)
		;
	_exit(0);
}
