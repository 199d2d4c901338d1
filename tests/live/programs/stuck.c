/* `stuck FILE`: asks the kernel again and again, with its answer to go where FILE is mapped, which may be slow. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;
	void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);

	if (at == MAP_FAILED)
		return 1;
	for (;;)
		syscall(SYS_sysinfo, at);
}
