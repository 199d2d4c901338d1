/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the virtual machine says of its own data: gHotSpotVMStructs and gHotSpotVMTypes, made for debuggers. */
#ifndef ELBOWROOM_VMSTRUCTS_H
#define ELBOWROOM_VMSTRUCTS_H

#include <stddef.h>
#include <stdint.h>
#include "text.h"

/* The library of the virtual machine, as dlsym wants it; set once, before anything else here. */
extern void *vm_library;

/* The offset of a field with exactly this type. Gives 0, or -1 and why. */
int vm_offset(const char *type, const char *field, const char *field_type, size_t *offset, struct text *why);
/* The address of a static field. */
int vm_static(const char *type, const char *field, const char *field_type, void **address, struct text *why);
/* The address of a flag's value. */
int vm_flag(const char *name, void **address, struct text *why);

static inline void *vm_pointer(const void *object, size_t offset)
{
	return *(void **)((const char *)object + offset);
}

static inline size_t *vm_size(void *object, size_t offset)
{
	return (size_t *)((char *)object + offset);
}

#endif
