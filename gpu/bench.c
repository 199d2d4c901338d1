/* GPU programs of known work, for `elbowroom profile gpu`: bench stencil|lu|particle|filter|lenet [SIZE [STEPS]], or
 * bench --compile [NVRTC [ARCHITECTURE FILE]].
 *
 * Each checks its answer against one of the CPU's and says `ok` or what is wrong. Only the driver's interface is used, opened when the
 * program runs, and NVRTC (of CUDA 13 or 12, or what NVRTC names): neither is needed to build. --compile only compiles the kernels, which
 * needs no GPU, into a file where one is named: machine code for sm_90, PTX for compute_90. CODE=FILE loads such a file and needs no NVRTC;
 * CHECK=no leaves out what the CPU does to check the answer, which takes longer than the GPU. `filter` is `particle` with all of it on the GPU.
 * Exit status 2: no GPU, no driver, no NVRTC, in one sentence; 1: a wrong answer.
 */
#define _GNU_SOURCE
#include "kernels.cu.h"

#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t Memory; /* CUdeviceptr */

static struct {
	int (*Init)(unsigned);
	int (*DeviceGet)(int *, int);
	int (*DevicePrimaryCtxRetain)(void **, int);
	int (*CtxSetCurrent)(void *);
	int (*DeviceGetAttribute)(int *, int, int);
	int (*ModuleLoadData)(void **, const void *);
	int (*ModuleGetFunction)(void **, void *, const char *);
	int (*MemAlloc)(Memory *, size_t);
	int (*MemFree)(Memory);
	int (*MemcpyHtoD)(Memory, const void *, size_t);
	int (*MemcpyDtoH)(void *, Memory, size_t);
	int (*LaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
	int (*CtxSynchronize)(void);
	int (*GetErrorString)(int, const char **);
} cu;

static struct {
	int (*CreateProgram)(void **, const char *, const char *, int, const char *const *, const char *const *);
	int (*CompileProgram)(void *, int, const char *const *);
	int (*GetPTXSize)(void *, size_t *);
	int (*GetPTX)(void *, char *);
	int (*GetCUBINSize)(void *, size_t *);
	int (*GetCUBIN)(void *, char *);
	int (*GetProgramLogSize)(void *, size_t *);
	int (*GetProgramLog)(void *, char *);
} rtc;

static void *module;
static int checked = 1;

static void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("bench: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(2);
}

static void check(int result, const char *what)
{
	const char *why = "unknown error";

	if (result == 0)
		return;
	if (cu.GetErrorString)
		cu.GetErrorString(result, &why);
	die("%s: %s (%d)", what, why, result);
}

static void *open_library(const char *name)
{
	void *library = dlopen(name, RTLD_NOW);

	if (!library)
		die("%s", dlerror());
	return library;
}

static void *function(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		die("%s", dlerror());
	return found;
}

/* PTX, or machine code for an architecture that begins with sm_; `size` is with the zero at the end. */
static char *compile(const char *name, const char *architecture, size_t *size)
{
	void *library = name ? open_library(name) : dlopen("libnvrtc.so.13", RTLD_NOW), *program = NULL;
	char option[64];
	const char *options[] = { option };
	int is_machine_code = !strncmp(architecture, "sm_", 3);
	char *text;

#define RTC(f) rtc.f = (__typeof__(rtc.f))function(library, "nvrtc" #f)
	if (!library)
		library = open_library("libnvrtc.so.12");
	snprintf(option, sizeof option, "--gpu-architecture=%s", architecture);
	RTC(CreateProgram), RTC(CompileProgram), RTC(GetPTXSize), RTC(GetPTX), RTC(GetProgramLogSize), RTC(GetProgramLog);
	RTC(GetCUBINSize), RTC(GetCUBIN);
	check(rtc.CreateProgram(&program, KERNELS, "kernels.cu", 0, NULL, NULL), "nvrtcCreateProgram");
	if (rtc.CompileProgram(program, 1, options)) {
		rtc.GetProgramLogSize(program, size);
		text = calloc(1, *size + 1);
		rtc.GetProgramLog(program, text);
		die("the kernels do not compile: %s", text);
	}
	check(is_machine_code ? rtc.GetCUBINSize(program, size) : rtc.GetPTXSize(program, size), "the size of what NVRTC made");
	text = calloc(1, *size + 1);
	check(is_machine_code ? rtc.GetCUBIN(program, text) : rtc.GetPTX(program, text), "what NVRTC made");
	return text;
}

/* A whole file, with a zero behind it. */
static char *whole(const char *path)
{
	FILE *file = fopen(path, "rb");
	size_t room = 1 << 20, size;
	char *text = calloc(1, room + 1);

	if (!file || !text)
		die("%s cannot be read", path);
	size = fread(text, 1, room, file);
	if (size == 0 || size == room)
		die("%s has no code for a GPU, or too much", path);
	fclose(file);
	return text;
}

static int store(const char *path, const char *code, size_t size)
{
	FILE *file = fopen(path, "wb");

	if (!file || fwrite(code, 1, size, file) != size || fclose(file))
		die("%s cannot be written", path);
	return 0;
}

static void open_gpu(void)
{
	void *library = open_library("libcuda.so.1"), *context = NULL;
	int device = 0, major = 0, minor = 0;
	char architecture[64], *code = getenv("CODE");
	size_t size = 0;

#define CU(f, name) cu.f = (__typeof__(cu.f))function(library, name)
	CU(Init, "cuInit"), CU(DeviceGet, "cuDeviceGet"), CU(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
	CU(CtxSetCurrent, "cuCtxSetCurrent"), CU(DeviceGetAttribute, "cuDeviceGetAttribute"), CU(ModuleLoadData, "cuModuleLoadData");
	CU(ModuleGetFunction, "cuModuleGetFunction"), CU(MemAlloc, "cuMemAlloc_v2"), CU(MemFree, "cuMemFree_v2");
	CU(MemcpyHtoD, "cuMemcpyHtoD_v2"), CU(MemcpyDtoH, "cuMemcpyDtoH_v2"), CU(LaunchKernel, "cuLaunchKernel");
	CU(CtxSynchronize, "cuCtxSynchronize"), CU(GetErrorString, "cuGetErrorString");
	check(cu.Init(0), "cuInit");
	check(cu.DeviceGet(&device, 0), "cuDeviceGet");
	/* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR */
	check(cu.DeviceGetAttribute(&major, 75, device), "cuDeviceGetAttribute");
	check(cu.DeviceGetAttribute(&minor, 76, device), "cuDeviceGetAttribute");
	check(cu.DevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	check(cu.CtxSetCurrent(context), "cuCtxSetCurrent");
	snprintf(architecture, sizeof architecture, "compute_%d%d", major, minor);
	code = code ? whole(code) : compile(getenv("NVRTC"), architecture, &size);
	check(cu.ModuleLoadData(&module, code), "cuModuleLoadData");
	free(code);
}

static Memory upload(const void *data, size_t bytes)
{
	Memory memory = 0;

	check(cu.MemAlloc(&memory, bytes), "cuMemAlloc");
	if (data)
		check(cu.MemcpyHtoD(memory, data, bytes), "cuMemcpyHtoD");
	return memory;
}

static void launch(const char *name, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, void **arguments)
{
	void *kernel = NULL;

	check(cu.ModuleGetFunction(&kernel, module, name), name);
	check(cu.LaunchKernel(kernel, x, y, z, bx, by, 1, 0, NULL, arguments, NULL), name);
}

static int verdict(const float *found, const float *expected, size_t count, float tolerance)
{
	if (!checked) {
		puts("not checked");
		return 0;
	}
	for (size_t i = 0; i < count; i++)
		if (!(fabsf(found[i] - expected[i]) <= tolerance * (1 + fabsf(expected[i])))) {
			printf("wrong: %g instead of %g at %zu\n", found[i], expected[i], i);
			return 1;
		}
	puts("ok");
	return 0;
}

static float *numbers(size_t count, unsigned seed)
{
	float *all = calloc(count, sizeof *all);

	if (!all)
		die("no memory for %zu numbers", count);
	for (size_t i = 0; i < count; i++) {
		seed = seed * 1664525u + 1013904223u;
		all[i] = (float)(seed >> 8) / 16777216.0f - 0.5f;
	}
	return all;
}

static int stencil(int n, int steps)
{
	size_t count = (size_t)n * n, bytes = count * sizeof(float);
	float *a = numbers(count, 1), *b = calloc(count, sizeof *b), *found = calloc(count, sizeof *found);
	Memory in = upload(a, bytes), out = upload(NULL, bytes);

	for (int s = 0; s < steps; s++) {
		void *arguments[] = { &in, &out, &n };
		Memory swap = in;

		launch("stencil", (n + 15) / 16, (n + 15) / 16, 1, 16, 16, arguments);
		in = out;
		out = swap;
		for (int y = 0; y < n && checked; y++)
			for (int x = 0; x < n; x++) {
				size_t i = (size_t)y * n + x;
				int edge = x == 0 || y == 0 || x == n - 1 || y == n - 1;

				b[i] = edge ? a[i] : 0.5f * a[i] + 0.125f * (a[i - 1] + a[i + 1] + a[i - n] + a[i + n]);
			}
		float *turn = a;
		a = b;
		b = turn;
	}
	check(cu.CtxSynchronize(), "cuCtxSynchronize");
	check(cu.MemcpyDtoH(found, in, bytes), "cuMemcpyDtoH");
	check(cu.MemFree(in), "cuMemFree");
	check(cu.MemFree(out), "cuMemFree");
	return verdict(found, a, count, 1e-4f);
}

static int lu(int n, int once)
{
	(void)once;
	size_t count = (size_t)n * n, bytes = count * sizeof(float);
	float *a = numbers(count, 2), *found = calloc(count, sizeof *found);

	/* A heavy diagonal: no pivots are needed. */
	for (int i = 0; i < n; i++)
		a[(size_t)i * n + i] += n;
	Memory memory = upload(a, bytes);
	for (int k = 0; k < n - 1; k++) {
		unsigned left = n - k - 1;
		void *arguments[] = { &memory, &n, &k };

		launch("lu_column", (left + 255) / 256, 1, 1, 256, 1, arguments);
		launch("lu_rest", (left + 15) / 16, (left + 15) / 16, 1, 16, 16, arguments);
		for (int i = k + 1; i < n && checked; i++) {
			float factor = a[(size_t)i * n + k] /= a[(size_t)k * n + k];

			for (int j = k + 1; j < n; j++)
				a[(size_t)i * n + j] -= factor * a[(size_t)k * n + j];
		}
	}
	check(cu.CtxSynchronize(), "cuCtxSynchronize");
	check(cu.MemcpyDtoH(found, memory, bytes), "cuMemcpyDtoH");
	check(cu.MemFree(memory), "cuMemFree");
	return verdict(found, a, count, 1e-3f);
}

static int particle(int n, int steps)
{
	size_t bytes = (size_t)n * sizeof(float);
	float *start = calloc(n, sizeof *start), *w = calloc(n, sizeof *w), mean = 0, expected;
	unsigned *seeds = calloc(n, sizeof *seeds);

	for (int i = 0; i < n; i++)
		seeds[i] = 2654435761u * (unsigned)(i + 1);
	Memory x = upload(start, bytes), y = upload(NULL, bytes), weights = upload(NULL, bytes), seed = upload(seeds, bytes);
	for (int s = 1; s <= steps; s++) {
		float z = (float)s;
		void *move[] = { &x, &seed, &weights, &z, &n }, *pick[] = { &x, &weights, &y, &n };
		Memory swap = x;

		launch("particle_move", (n + 255) / 256, 1, 1, 256, 1, move);
		check(cu.MemcpyDtoH(w, weights, bytes), "cuMemcpyDtoH");
		for (int i = 1; i < n; i++)
			w[i] += w[i - 1];
		check(cu.MemcpyHtoD(weights, w, bytes), "cuMemcpyHtoD");
		launch("particle_pick", (n + 255) / 256, 1, 1, 256, 1, pick);
		x = y;
		y = swap;
	}
	check(cu.MemcpyDtoH(w, x, bytes), "cuMemcpyDtoH");
	for (int i = 0; i < n; i++)
		mean += w[i] / n;
	expected = (float)steps;
	/* The filter follows what moves by one a step. */
	return verdict(&mean, &expected, 1, 0.05f);
}

/* The same with sums by the GPU: what goes over the bus is what it starts with, and what it ends with. */
static int filter(int n, int steps)
{
	size_t bytes = (size_t)n * sizeof(float);
	float *start = calloc(n, sizeof *start), mean = 0, expected = (float)steps;
	unsigned *seeds = calloc(n, sizeof *seeds);

	for (int i = 0; i < n; i++)
		seeds[i] = 2654435761u * (unsigned)(i + 1);
	Memory x = upload(start, bytes), y = upload(NULL, bytes), weights = upload(NULL, bytes), seed = upload(seeds, bytes);
	for (int s = 1; s <= steps; s++) {
		float z = (float)s;
		void *move[] = { &x, &seed, &weights, &z, &n }, *add[] = { &weights, &n }, *pick[] = { &x, &weights, &y, &n };
		Memory swap = x;

		launch("particle_move", (n + 255) / 256, 1, 1, 256, 1, move);
		launch("particle_sums", 1, 1, 1, 1024, 1, add);
		launch("particle_pick", (n + 255) / 256, 1, 1, 256, 1, pick);
		x = y;
		y = swap;
	}
	check(cu.CtxSynchronize(), "cuCtxSynchronize");
	check(cu.MemcpyDtoH(start, x, bytes), "cuMemcpyDtoH");
	for (int i = 0; i < n; i++)
		mean += start[i] / n;
	return verdict(&mean, &expected, 1, 0.05f);
}

static int lenet(int batch, int steps)
{
	enum { A = 28, B = 24, C = 12, D = 8, E = 4 };
	float *image = numbers((size_t)batch * A * A, 3), *w1 = numbers(6 * 25, 4), *w2 = numbers(16 * 6 * 25, 5);
	float *w3 = numbers(120 * 256, 6), *w4 = numbers(10 * 120, 7), found[10], expected[10];
	static float b[6][B][B], c[6][C][C], d[16][D][D], e[16][E][E], f[120];
	Memory in = upload(image, (size_t)batch * A * A * 4), m1 = upload(w1, 6 * 25 * 4), m2 = upload(w2, 16 * 6 * 25 * 4);
	Memory m3 = upload(w3, 120 * 256 * 4), m4 = upload(w4, 10 * 120 * 4), o1 = upload(NULL, (size_t)batch * 6 * B * B * 4);
	Memory o2 = upload(NULL, (size_t)batch * 6 * C * C * 4), o3 = upload(NULL, (size_t)batch * 16 * D * D * 4);
	Memory o4 = upload(NULL, (size_t)batch * 256 * 4), o5 = upload(NULL, (size_t)batch * 120 * 4), o6 = upload(NULL, (size_t)batch * 40);
	int one = 1, six = 6, sizes[] = { A, B, C, D }, from[] = { 256, 120 }, to[] = { 120, 10 };

	for (int s = 0; s < steps; s++) {
		void *c1[] = { &in, &m1, &o1, &one, &sizes[0] }, *p1[] = { &o1, &o2, &sizes[1] };
		void *c2[] = { &o2, &m2, &o3, &six, &sizes[2] }, *p2[] = { &o3, &o4, &sizes[3] };
		void *f1[] = { &o4, &m3, &o5, &from[0], &to[0] }, *f2[] = { &o5, &m4, &o6, &from[1], &to[1] };

		launch("convolve", 6, 1, batch, B, B, c1);
		launch("pool", 6, 1, batch, C, C, p1);
		launch("convolve", 16, 1, batch, D, D, c2);
		launch("pool", 16, 1, batch, E, E, p2);
		launch("connect", 1, 1, batch, 128, 1, f1);
		launch("connect", 1, 1, batch, 32, 1, f2);
	}
	check(cu.CtxSynchronize(), "cuCtxSynchronize");
	check(cu.MemcpyDtoH(found, o6, sizeof found), "cuMemcpyDtoH");
	if (!checked)
		return verdict(found, expected, 0, 0);
	/* The first image once more. */
	for (int o = 0; o < 6; o++)
		for (int y = 0; y < B; y++)
			for (int x = 0; x < B; x++) {
				float sum = 0;

				for (int k = 0; k < 25; k++)
					sum += image[(y + k / 5) * A + x + k % 5] * w1[o * 25 + k];
				b[o][y][x] = tanhf(sum);
			}
	for (int i = 0; i < 6 * C * C; i++) {
		int o = i / (C * C), y = i / C % C, x = i % C;

		c[o][y][x] = 0.25f * (b[o][2 * y][2 * x] + b[o][2 * y][2 * x + 1] + b[o][2 * y + 1][2 * x] + b[o][2 * y + 1][2 * x + 1]);
	}
	for (int o = 0; o < 16; o++)
		for (int y = 0; y < D; y++)
			for (int x = 0; x < D; x++) {
				float sum = 0;

				for (int k = 0; k < 150; k++)
					sum += c[k / 25][y + k % 25 / 5][x + k % 5] * w2[o * 150 + k];
				d[o][y][x] = tanhf(sum);
			}
	for (int i = 0; i < 256; i++) {
		int o = i / 16, y = i / E % E, x = i % E;

		e[o][y][x] = 0.25f * (d[o][2 * y][2 * x] + d[o][2 * y][2 * x + 1] + d[o][2 * y + 1][2 * x] + d[o][2 * y + 1][2 * x + 1]);
	}
	for (int o = 0; o < 120; o++) {
		float sum = 0;

		for (int i = 0; i < 256; i++)
			sum += (&e[0][0][0])[i] * w3[o * 256 + i];
		f[o] = tanhf(sum);
	}
	for (int o = 0; o < 10; o++) {
		float sum = 0;

		for (int i = 0; i < 120; i++)
			sum += f[i] * w4[o * 120 + i];
		expected[o] = tanhf(sum);
	}
	return verdict(found, expected, 10, 1e-3f);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int size, steps;
		int (*run)(int size, int steps);
	} all[] = { { "stencil", 2048, 50, stencil }, { "lu", 512, 1, lu }, { "particle", 100000, 20, particle },
		    { "filter", 100000, 20, filter }, { "lenet", 256, 20, lenet } };
	size_t made = 0;

	if (argc >= 2 && !strcmp(argv[1], "--compile")) {
		const char *code = compile(argc > 2 ? argv[2] : NULL, argc > 4 ? argv[3] : "compute_70", &made);

		printf("kernels compile to %zu bytes\n", made);
		return argc > 4 ? store(argv[4], code, made) : 0;
	}
	checked = !getenv("CHECK") || strcmp(getenv("CHECK"), "no");
	for (size_t i = 0; argc >= 2 && i < sizeof all / sizeof *all; i++) {
		int size = argc > 2 ? atoi(argv[2]) : all[i].size, steps = argc > 3 ? atoi(argv[3]) : all[i].steps;

		if (strcmp(argv[1], all[i].name))
			continue;
		if (size < 1 || steps < 1 || size > 1 << 24)
			die("SIZE and STEPS are numbers from 1");
		open_gpu();
		return all[i].run(size, steps);
	}
	die("say what: stencil, lu, particle, filter or lenet");
}
