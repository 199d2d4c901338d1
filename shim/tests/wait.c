/* Waits for one change after another and prints the effective CPU at each; ends when no agent keeps the page any more. */
#include "../view.h"
#include <stdio.h>

int main(void)
{
	uint32_t seen = 0;

	while (elbowroom_wait(&seen, -1) >= 0) {
		printf("%u\n", elbowroom_cpus());
		fflush(stdout);
	}
	puts("gone");
	return 0;
}
