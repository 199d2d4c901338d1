// SPDX-License-Identifier: Apache-2.0 OR MIT
#define _GNU_SOURCE
#include "symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The part of the file that a header names, or NULL when it is not inside. */
static const void *part(const struct elf *elf, uint64_t offset, uint64_t size)
{
	if (offset > elf->length || size > elf->length - offset)
		return NULL;
	return elf->file + offset;
}

/* The same for a table, which is aligned. */
static const void *table_at(const struct elf *elf, uint64_t offset, uint64_t size)
{
	return offset % 8 ? NULL : part(elf, offset, size);
}

int elf_open(struct elf *elf, const void *inside, struct text *why)
{
	const Elf64_Ehdr *header;
	Dl_info info;
	off_t length;
	void *file;
	int fd;

	if (!dladdr(inside, &info) || !info.dli_fname || info.dli_fname[0] != '/')
		return say(why, "the file of the virtual machine is not known");
	fd = open(info.dli_fname, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return say(why, "%s cannot be opened", info.dli_fname);
	length = lseek(fd, 0, SEEK_END);
	if (length < (off_t)sizeof(Elf64_Ehdr)) {
		close(fd);
		return say(why, "%s is no library", info.dli_fname);
	}
	file = mmap(NULL, length, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (file == MAP_FAILED)
		return say(why, "%s cannot be read", info.dli_fname);
	elf->file = file;
	elf->length = length;
	elf->base = (uintptr_t)info.dli_fbase;
	header = file;
	if (memcmp(header->e_ident, ELFMAG, SELFMAG) || header->e_ident[EI_CLASS] != ELFCLASS64 ||
	    header->e_machine != EM_X86_64 || header->e_shentsize != sizeof(Elf64_Shdr)) {
		elf_close(elf);
		return say(why, "%s is no library for x86-64", info.dli_fname);
	}
	return 0;
}

static const Elf64_Shdr *section(const struct elf *elf, uint32_t type, uint32_t index)
{
	const Elf64_Ehdr *header = (const void *)elf->file;
	const Elf64_Shdr *sections = table_at(elf, header->e_shoff, (uint64_t)header->e_shnum * sizeof(*sections));
	uint32_t i;

	for (i = 0; sections && i < header->e_shnum; i++)
		if (type ? sections[i].sh_type == type : i == index)
			return &sections[i];
	return NULL;
}

int elf_find(const struct elf *elf, struct symbol *symbols, size_t count, struct text *why)
{
	const Elf64_Shdr *table = section(elf, SHT_SYMTAB, 0);
	const Elf64_Shdr *strings = table ? section(elf, 0, table->sh_link) : NULL;
	const Elf64_Sym *entries = table ? table_at(elf, table->sh_offset, table->sh_size) : NULL;
	const char *names = strings ? part(elf, strings->sh_offset, strings->sh_size) : NULL;
	size_t i, k;

	if (!entries || !names || strings->sh_size == 0 || names[strings->sh_size - 1] != '\0')
		return say(why, "libjvm.so has no symbol table (it was stripped)");
	for (k = 0; k < count; k++) {
		symbols[k].address = NULL;
		symbols[k].found = 0;
	}
	for (i = 0; i < table->sh_size / sizeof(*entries); i++) {
		const Elf64_Sym *entry = &entries[i];

		if (ELF64_ST_TYPE(entry->st_info) != STT_FUNC || entry->st_shndx == SHN_UNDEF ||
		    entry->st_name >= strings->sh_size)
			continue;
		for (k = 0; k < count; k++) {
			if (strcmp(names + entry->st_name, symbols[k].name))
				continue;
			symbols[k].address = (uint8_t *)(elf->base + entry->st_value);
			symbols[k].size = entry->st_size;
			symbols[k].found++;
		}
	}
	return 0;
}

int elf_is_original(const struct elf *elf, const struct symbol *symbol, size_t length)
{
	const Elf64_Ehdr *header = (const void *)elf->file;
	const Elf64_Phdr *segments = table_at(elf, header->e_phoff, (uint64_t)header->e_phnum * sizeof(*segments));
	uint64_t at = (uintptr_t)symbol->address - elf->base;
	const void *bytes;
	uint16_t i;

	for (i = 0; segments && i < header->e_phnum; i++) {
		const Elf64_Phdr *segment = &segments[i];

		if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X) || at < segment->p_vaddr ||
		    at - segment->p_vaddr >= segment->p_filesz)
			continue;
		bytes = part(elf, segment->p_offset + (at - segment->p_vaddr), length);
		return bytes && !memcmp(bytes, symbol->address, length);
	}
	return false;
}

void elf_close(struct elf *elf)
{
	munmap((void *)elf->file, elf->length);
	elf->file = NULL;
}
