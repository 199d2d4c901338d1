/* What the driver does at cuInit() with CUDA_INJECTION64_PATH, without a driver. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	const char *path = getenv("CUDA_INJECTION64_PATH");
	void *library = path ? dlopen(path, RTLD_NOW) : NULL;
	int (*begin)(void) = library ? (int (*)(void))dlsym(library, "InitializeInjection") : NULL;

	if (path && !begin) {
		fprintf(stderr, "program: %s\n", dlerror());
		return 2;
	}
	if (begin)
		begin();
	return 0;
}
