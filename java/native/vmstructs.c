// SPDX-License-Identifier: Apache-2.0 OR MIT
#define _GNU_SOURCE
#include "vmstructs.h"

#include <dlfcn.h>
#include <string.h>

void *vm_library;

/* VMStructEntry and VMTypeEntry of src/hotspot/share/runtime/vmStructs.hpp, the same from JDK 8 on. */
struct struct_entry {
	const char *type, *field, *field_type;
	int32_t is_static;
	uint64_t offset;
	void *address;
};

struct type_entry {
	const char *type, *superclass;
	int32_t is_oop, is_integer, is_unsigned;
	uint64_t size;
};

/* The layout is checked by what the machine says of it, in variables of their own. */
static int layout_is(const char *table, const char *field, uint64_t expected)
{
	char name[64];
	uint64_t *value;

	snprintf(name, sizeof(name), "gHotSpotVM%s%s", table, field);
	value = dlsym(vm_library, name);
	return value && *value == expected;
}

static const struct struct_entry *find(const char *type, const char *field, const char *field_type, struct text *why)
{
	const struct struct_entry **table = dlsym(vm_library, "gHotSpotVMStructs"), *at;

	if (!table || !*table ||
	    !layout_is("StructEntry", "TypeNameOffset", offsetof(struct struct_entry, type)) ||
	    !layout_is("StructEntry", "FieldNameOffset", offsetof(struct struct_entry, field)) ||
	    !layout_is("StructEntry", "TypeStringOffset", offsetof(struct struct_entry, field_type)) ||
	    !layout_is("StructEntry", "IsStaticOffset", offsetof(struct struct_entry, is_static)) ||
	    !layout_is("StructEntry", "OffsetOffset", offsetof(struct struct_entry, offset)) ||
	    !layout_is("StructEntry", "AddressOffset", offsetof(struct struct_entry, address)) ||
	    !layout_is("StructEntry", "ArrayStride", sizeof(struct struct_entry))) {
		say(why, "this virtual machine does not describe its data");
		return NULL;
	}
	for (at = *table; at->type; at++)
		if (!strcmp(at->type, type) && !strcmp(at->field, field) &&
		    (!field_type || (at->field_type && !strcmp(at->field_type, field_type))))
			return at;
	say(why, "this virtual machine has no %s::%s", type, field);
	return NULL;
}

int vm_offset(const char *type, const char *field, const char *field_type, size_t *offset, struct text *why)
{
	const struct struct_entry *entry = find(type, field, field_type, why);

	if (!entry)
		return -1;
	if (entry->is_static)
		return say(why, "%s::%s is static here", type, field);
	*offset = entry->offset;
	return 0;
}

int vm_static(const char *type, const char *field, const char *field_type, void **address, struct text *why)
{
	const struct struct_entry *entry = find(type, field, field_type, why);

	if (!entry)
		return -1;
	if (!entry->is_static || !entry->address)
		return say(why, "%s::%s is not static here", type, field);
	*address = entry->address;
	return 0;
}

static uint64_t type_size(const char *type)
{
	const struct type_entry **table = dlsym(vm_library, "gHotSpotVMTypes"), *at;

	if (!table || !*table || !layout_is("TypeEntry", "TypeNameOffset", offsetof(struct type_entry, type)) ||
	    !layout_is("TypeEntry", "SizeOffset", offsetof(struct type_entry, size)) ||
	    !layout_is("TypeEntry", "ArrayStride", sizeof(struct type_entry)))
		return 0;
	for (at = *table; at->type; at++)
		if (!strcmp(at->type, type))
			return at->size;
	return 0;
}

int vm_flag(const char *name, void **address, struct text *why)
{
	size_t name_offset = 0, address_offset = 0;
	uint64_t stride = type_size("JVMFlag");
	void *flags = NULL, *count = NULL;
	const char *flag;
	size_t i;

	if (vm_static("JVMFlag", "flags", "JVMFlag*", &flags, why) ||
	    vm_static("JVMFlag", "numFlags", "size_t", &count, why) ||
	    vm_offset("JVMFlag", "_name", "const char*", &name_offset, why) ||
	    vm_offset("JVMFlag", "_addr", NULL, &address_offset, why))
		return -1;
	if (stride < 24 || stride > 128)
		return say(why, "this virtual machine does not describe its flags");
	flag = *(const char **)flags;
	for (i = 0; i < *(size_t *)count; i++, flag += stride) {
		const char *its = vm_pointer(flag, name_offset);

		if (its && !strcmp(its, name)) {
			*address = vm_pointer(flag, address_offset);
			return *address ? 0 : say(why, "the flag %s has no value", name);
		}
	}
	return say(why, "this virtual machine has no flag %s", name);
}
