/*
 * Finds the functions behind ours without naming a C library: with dlsym() where there is one, and by reading the symbol
 * tables of what is loaded, which tells apart several copies of one library. Internal to this directory.
 */
#ifndef ELBOWROOM_RESOLVE_H
#define ELBOWROOM_RESOLVE_H

#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <stdint.h>

#pragma weak dlsym
#pragma weak dl_iterate_phdr

/* One loaded object, as its dynamic section describes it. */
struct object {
	uintptr_t base, begin, end;
	const ElfW(Dyn) *dynamic;
	const ElfW(Sym) *symbols;
	const char *strings;
	const uint32_t *gnu_hash, *hash;
	const char *soname;
};

static inline int same(const char *a, const char *b)
{
	while (*a != '\0' && *a == *b)
		a++, b++;
	return *a == *b;
}

/* glibc relocates these pointers in place, musl does not. */
static inline uintptr_t dynamic_pointer(const struct object *o, uintptr_t value)
{
	return value < o->base ? o->base + value : value;
}

static int object_read(const struct dl_phdr_info *info, struct object *o)
{
	const ElfW(Dyn) *d;
	size_t soname = 0;

	*o = (struct object){.base = info->dlpi_addr, .begin = UINTPTR_MAX};
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t at = info->dlpi_addr + p->p_vaddr;

		if (p->p_type == PT_LOAD) {
			o->begin = at < o->begin ? at : o->begin;
			o->end = at + p->p_memsz > o->end ? at + p->p_memsz : o->end;
		} else if (p->p_type == PT_DYNAMIC) {
			o->dynamic = (const ElfW(Dyn) *)at;
		}
	}
	if (o->dynamic == NULL)
		return 0;
	for (d = o->dynamic; d->d_tag != DT_NULL; d++) {
		uintptr_t at = dynamic_pointer(o, d->d_un.d_ptr);

		switch (d->d_tag) {
		case DT_SYMTAB: o->symbols = (const ElfW(Sym) *)at; break;
		case DT_STRTAB: o->strings = (const char *)at; break;
		case DT_GNU_HASH: o->gnu_hash = (const uint32_t *)at; break;
		case DT_HASH: o->hash = (const uint32_t *)at; break;
		case DT_SONAME: soname = d->d_un.d_val; break;
		}
	}
	if (o->strings != NULL && soname != 0)
		o->soname = o->strings + soname;
	return o->symbols != NULL && o->strings != NULL;
}

static void *symbol_at(const struct object *o, uint32_t i, const char *name)
{
	const ElfW(Sym) *s = &o->symbols[i];

	if (s->st_shndx == SHN_UNDEF || (s->st_info & 15) != STT_FUNC || !same(o->strings + s->st_name, name))
		return NULL;
	return (void *)(o->base + s->st_value);
}

/* The function of that name which the object defines. Layouts: the generic ABI, and elf/dl-lookup.c for DT_GNU_HASH. */
static void *object_symbol(const struct object *o, const char *name)
{
	void *found = NULL;

	if (o->gnu_hash != NULL) {
		uint32_t buckets = o->gnu_hash[0], first = o->gnu_hash[1], words = o->gnu_hash[2], h = 5381;
		const uint32_t *bucket = o->gnu_hash + 4 + words * (sizeof(ElfW(Addr)) / 4);
		const uint32_t *chain = bucket + buckets;
		uint32_t i;

		for (const char *c = name; *c != '\0'; c++)
			h = h * 33 + (unsigned char)*c;
		if (buckets == 0 || (i = bucket[h % buckets]) < first)
			return NULL;
		do {
			if (((chain[i - first] ^ h) >> 1) == 0)
				found = symbol_at(o, i, name);
		} while (found == NULL && (chain[i++ - first] & 1) == 0);
	} else if (o->hash != NULL) {
		for (uint32_t i = 0; i < o->hash[1] && found == NULL; i++)
			found = symbol_at(o, i, name);
	}
	return found;
}

/* What is looked for in the list of loaded objects, and what was found. */
struct search {
	uintptr_t address;
	const char *name;
	const struct object *user;
	struct object found;
	int done;
};

static int visit_address(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *s = data;
	struct object o;

	(void)size;
	s->done = object_read(info, &o) && s->address >= o.begin && s->address < o.end;
	if (s->done)
		s->found = o;
	return s->done;
}

/* The first object, other than this one, that defines `name` and, where a user is given, is one that the user asks for. */
static int visit_definition(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *s = data;
	struct object o;
	int wanted = s->user == NULL;

	(void)size;
	if (!object_read(info, &o) || (s->address >= o.begin && s->address < o.end))
		return 0;
	if (s->user != NULL && o.soname != NULL)
		for (const ElfW(Dyn) *d = s->user->dynamic; d->d_tag != DT_NULL && !wanted; d++)
			wanted = d->d_tag == DT_NEEDED && same(s->user->strings + d->d_un.d_val, o.soname);
	if (wanted && object_symbol(&o, s->name) != NULL) {
		s->found = o;
		s->done = 1;
	}
	return s->done;
}

static int object_of(uintptr_t address, struct object *o)
{
	struct search s = {.address = address};

	dl_iterate_phdr(visit_address, &s);
	*o = s.found;
	return s.done;
}

/*
 * The object whose `name` the object around `site` would call if this library were not there. The global scope comes first, as
 * for the dynamic linker; then the caller's own, where a runtime is linked into it; then what the caller asks for, which is how
 * a Python module finds the runtime it brings along; then anything.
 */
static int object_behind(const char *name, uintptr_t site, struct object *o)
{
	struct search s = {.address = (uintptr_t)object_behind, .name = name};
	void *next = dlsym != NULL ? dlsym(RTLD_NEXT, name) : NULL;
	struct object user;

	if (next != NULL)
		return object_of((uintptr_t)next, o);
	if (object_of(site, &user)) {
		int ours = s.address >= user.begin && s.address < user.end;

		if (!ours && object_symbol(&user, name) != NULL) {
			*o = user;
			return 1;
		}
		s.user = &user;
		dl_iterate_phdr(visit_definition, &s);
	}
	if (!s.done) {
		s.user = NULL;
		dl_iterate_phdr(visit_definition, &s);
	}
	*o = s.found;
	return s.done;
}

#endif
