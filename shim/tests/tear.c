/* Reads whole views while a thread publishes without a pause, in each of which all numbers are the same. Says how many
 * versions it saw, and fails at the first that is none. Ends after VERSIONS of them, or at the end of standard input. */
#include "../view.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

static int is_whole(const struct elbowroom_view *v)
{
	uint64_t n = v->cpus;

	return v->cpus_most == n && v->millicpu == n && v->memory == n && v->memory_most == n && v->memory_used == n &&
	       v->memory_inactive_file == n && v->started_usec == n && v->taken_usec == n && v->load[0] == n &&
	       v->load[1] == n && v->load[2] == n && v->threads == n;
}

int main(int argc, char **argv)
{
	long wanted = argc > 1 ? atol(argv[1]) : 1000, versions = 0;
	struct pollfd end = {0, POLLIN, 0};
	struct elbowroom_view view;
	uint32_t last = 0;

	while (versions < wanted && poll(&end, 1, 0) == 0) {
		for (int i = 0; i < 1000; i++) {
			if (elbowroom_view(&view) != 0) {
				puts("no view");
				return 2;
			}
			if (!is_whole(&view)) {
				printf("torn: %u CPUs, %llu thousandths\n", view.cpus, (unsigned long long)view.millicpu);
				return 1;
			}
			versions += view.cpus != last;
			last = view.cpus;
		}
	}
	printf("%ld versions\n", versions);
	return 0;
}
