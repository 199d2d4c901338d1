/* A library that offers a function which only the dynamic linker can find: which one it is, it is asked (STT_GNU_IFUNC). */
static int chosen(double *load, int count)
{
	for (int i = 0; i < count; i++)
		load[i] = 4.5;
	return count;
}

static int (*choose(void))(double *, int)
{
	return chosen;
}

int getloadavg(double *load, int count) __attribute__((ifunc("choose")));
