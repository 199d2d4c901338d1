/* Prints where every field of the view page is; the Rust test next door knows where it writes them. Also valid C++. */
#include "../view.h"
#include <stdio.h>

#define PAGE(f) printf("page." #f " %zu\n", offsetof(struct elbowroom_page, f))
#define VIEW(f) printf("view." #f " %zu\n", offsetof(struct elbowroom_view, f))

int main(void)
{
	PAGE(magic); PAGE(version); PAGE(view_size); PAGE(generation); PAGE(changes); PAGE(views);
	VIEW(cpus); VIEW(cpus_most); VIEW(millicpu); VIEW(memory); VIEW(memory_most); VIEW(memory_used);
	VIEW(memory_inactive_file); VIEW(started_usec); VIEW(taken_usec); VIEW(load); VIEW(threads); VIEW(online);
	printf("sizeof.view %zu\n", sizeof(struct elbowroom_view));
	printf("sizeof.page %s\n", sizeof(struct elbowroom_page) <= ELBOWROOM_PAGE_SIZE ? "fits" : "too long");
	return 0;
}
