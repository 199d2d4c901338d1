/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Where the local functions of a loaded library are, from the symbol table in its file. */
#ifndef ELBOWROOM_SYMBOLS_H
#define ELBOWROOM_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>
#include "text.h"

struct symbol {
	const char *name;
	uint8_t *address;	/* in this process; NULL when it was not found */
	size_t size;
	int found;		/* how many functions have this name */
};

struct elf {
	const uint8_t *file;
	size_t length;
	uintptr_t base;
};

/* Opens the file of the library whose code has `inside`. Gives 0, or -1 and why. */
int elf_open(struct elf *elf, const void *inside, struct text *why);
/* Fills addresses and sizes of `symbols`. Gives 0, or -1 and why the table cannot be read. */
int elf_find(const struct elf *elf, struct symbol *symbols, size_t count, struct text *why);
/* True when the first `length` bytes of the function in memory are those in the file. */
int elf_is_original(const struct elf *elf, const struct symbol *symbol, size_t length);
void elf_close(struct elf *elf);

#endif
