/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Parallel programs of three shapes, as in the NAS parallel benchmarks, with OpenMP:
 *
 *   kernels START_NS ep ROUNDS   independent work: few long regions
 *   kernels START_NS cg ROUNDS   conjugate gradients on a sparse matrix: many short regions with sums
 *   kernels START_NS mg ROUNDS   a stencil on grids that become coarse and fine again: many regions of all lengths
 *
 * START_NS is of CLOCK_MONOTONIC. Prints seconds, the narrowest and the widest region, and a number that depends on all that was
 * computed.
 */
#define _GNU_SOURCE
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAIRS = 1 << 16, ROWS = 12000, ENTRIES = 9, GRID = 64, LEVELS = 5 };

static int narrowest = 1 << 30, widest;

static void look(void)
{
	int width = omp_get_num_threads();

	narrowest = width < narrowest ? width : narrowest;
	widest = width > widest ? width : widest;
}

static uint64_t next(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

static double ep(int rounds)
{
	double sum = 0;

	for (int r = 0; r < rounds; r++) {
#pragma omp parallel reduction(+ : sum)
		{
#pragma omp master
			look();
#pragma omp for
			for (int i = 0; i < 64; i++) {
				uint64_t state = (uint64_t)(r * 64 + i + 1);

				for (int k = 0; k < PAIRS / 64; k++) {
					double x = (double)next(&state) / 2147483648.0, y = (double)next(&state) / 2147483648.0;
					double t = (2 * x - 1) * (2 * x - 1) + (2 * y - 1) * (2 * y - 1);

					if (t <= 1 && t > 0)
						sum += (2 * x - 1) * sqrt(-2 * log(t) / t);
				}
			}
		}
	}
	return sum;
}

static double dot(const double *a, const double *b)
{
	double sum = 0;

#pragma omp parallel for reduction(+ : sum)
	for (int i = 0; i < ROWS; i++)
		sum += a[i] * b[i];
	return sum;
}

static double cg(int rounds)
{
	static int column[ROWS][ENTRIES];
	static double value[ROWS][ENTRIES], x[ROWS], r[ROWS], p[ROWS], q[ROWS];
	uint64_t state = 1;
	double rho;

	for (int i = 0; i < ROWS; i++) {
		r[i] = p[i] = 1;
		for (int k = 0; k < ENTRIES; k++) {
			column[i][k] = k ? (int)(next(&state) % ROWS) : i;
			value[i][k] = k ? 0.1 : 4;
		}
	}
	rho = dot(r, r);
	for (int n = 0; n < rounds; n++) {
		double alpha, beta, before = rho;

#pragma omp parallel
		{
#pragma omp master
			look();
#pragma omp for
			for (int i = 0; i < ROWS; i++) {
				double sum = 0;

				for (int k = 0; k < ENTRIES; k++)
					sum += value[i][k] * p[column[i][k]];
				q[i] = sum;
			}
		}
		alpha = rho / dot(p, q);
#pragma omp parallel for
		for (int i = 0; i < ROWS; i++) {
			x[i] += alpha * p[i];
			r[i] -= alpha * q[i];
		}
		rho = dot(r, r);
		beta = rho / before;
		if (rho < 1e-20) { /* solved: once more from the beginning */
			for (int i = 0; i < ROWS; i++)
				r[i] = 1;
			rho = dot(r, r);
			beta = 0;
		}
#pragma omp parallel for
		for (int i = 0; i < ROWS; i++)
			p[i] = r[i] + beta * p[i];
	}
	return x[0];
}

static void smooth(int n, const double *from, double *to)
{
#pragma omp parallel
	{
#pragma omp master
		look();
#pragma omp for
		for (int i = 1; i < n - 1; i++) {
			for (int j = 1; j < n - 1; j++) {
				for (int k = 1; k < n - 1; k++) {
					size_t at = ((size_t)i * n + j) * n + k;

					to[at] = 0.4 * from[at] + 0.1 * (from[at - 1] + from[at + 1] + from[at - n] + from[at + n] +
									 from[at - n * n] + from[at + n * n]);
				}
			}
		}
	}
}

/* Every second point of `fine`, or each point of `coarse` added to eight. */
static void change(int n, double *fine, double *coarse, int up)
{
	int half = n / 2;

#pragma omp parallel for
	for (int i = 0; i < half; i++) {
		for (int j = 0; j < half; j++) {
			for (int k = 0; k < half; k++) {
				double *c = &coarse[((size_t)i * half + j) * half + k];

				if (!up) {
					*c = fine[((size_t)2 * i * n + 2 * j) * n + 2 * k];
					continue;
				}
				for (int m = 0; m < 8; m++)
					fine[((size_t)(2 * i + m / 4) * n + 2 * j + m / 2 % 2) * n + 2 * k + m % 2] += 0.1 * *c;
			}
		}
	}
}

static double mg(int rounds)
{
	double *grid[LEVELS], *other[LEVELS];

	for (int l = 0; l < LEVELS; l++) {
		size_t n = GRID >> l;

		grid[l] = calloc(n * n * n, sizeof(double));
		other[l] = calloc(n * n * n, sizeof(double));
		if (!grid[l] || !other[l])
			exit(1);
	}
	for (size_t i = 0; i < (size_t)GRID * GRID * GRID; i++)
		grid[0][i] = (double)(i % 17);
	for (int r = 0; r < rounds; r++) {
		for (int l = 0; l < LEVELS; l++) {
			smooth(GRID >> l, grid[l], other[l]);
			smooth(GRID >> l, other[l], grid[l]);
			if (l + 1 < LEVELS)
				change(GRID >> l, grid[l], grid[l + 1], 0);
		}
		for (int l = LEVELS - 2; l >= 0; l--) {
			change(GRID >> l, grid[l], grid[l + 1], 1);
			smooth(GRID >> l, grid[l], other[l]);
			memcpy(grid[l], other[l], sizeof(double) * (GRID >> l) * (GRID >> l) * (GRID >> l));
		}
	}
	return grid[0][(GRID * GRID + GRID + 1) * (GRID / 2)];
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		double (*run)(int rounds);
	} kernels[] = { { "ep", ep }, { "cg", cg }, { "mg", mg } };
	uint64_t start;
	struct timespec at;

	if (argc != 4)
		return 2;
	start = strtoull(argv[1], NULL, 10);
	at = (struct timespec){ .tv_sec = (time_t)(start / 1000000000), .tv_nsec = (long)(start % 1000000000) };
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
	for (int i = 0; i < 3; i++) {
		if (!strcmp(argv[2], kernels[i].name)) {
			double result = kernels[i].run(atoi(argv[3])), seconds;

			clock_gettime(CLOCK_MONOTONIC, &at);
			seconds = (double)at.tv_sec + (double)at.tv_nsec / 1e9 - (double)start / 1e9;
			printf("%.4f %d %d %.6g\n", seconds, narrowest, widest, result);
			return 0;
		}
	}
	return 2;
}
