// SPDX-License-Identifier: Apache-2.0 OR MIT
#include "relocate.h"

#include <string.h>

enum kind { UNKNOWN, PLAIN, RIP_RELATIVE, JUMP };

struct instruction {
	enum kind kind;
	size_t length;
	size_t displacement;	/* where the 32-bit displacement is */
};

/* ModRM: mod 11 is a register, mod 00 with rm 101 an address relative to the next instruction. */
static int is_register(uint8_t modrm)
{
	return (modrm & 0xc0) == 0xc0;
}

static int is_rip_relative(uint8_t modrm)
{
	return (modrm & 0xc7) == 0x05;
}

/* The instruction at `code`, of which `left` bytes are there. */
static struct instruction decode(const uint8_t *code, size_t left)
{
	static const struct instruction unknown = { UNKNOWN, 0, 0 };
	size_t prefix = 0, length = 0;
	enum kind kind = PLAIN;
	uint8_t rex = 0, op, modrm;

	if (left >= 4 && !memcmp(code, "\xf3\x0f\x1e\xfa", 4))	/* endbr64 */
		return (struct instruction){ PLAIN, 4, 0 };
	if (left && (code[0] & 0xf0) == 0x40) {
		rex = code[0];
		prefix = 1;
	}
	if (left < prefix + 2)
		return unknown;
	op = code[prefix];
	modrm = code[prefix + 1];
	if ((op & 0xf8) == 0x50 && !(rex & ~0x41)) {	/* push r64 */
		length = prefix + 1;
	} else if (op == 0xe9 && !rex) {		/* jmp rel32 */
		kind = JUMP;
		length = 5;
	} else if ((op == 0x89 || op == 0x8b) && is_register(modrm)) {	/* mov r, r */
		length = prefix + 2;
	} else if ((op == 0x8b || (op == 0x8d && (rex & 0x08))) && is_rip_relative(modrm)) {	/* mov, lea r, [rip] */
		kind = RIP_RELATIVE;
		length = prefix + 6;
	} else if (rex == 0x48 && op == 0x83 && modrm == 0xec) {	/* sub rsp, imm8 */
		length = prefix + 3;
	} else if (rex == 0x48 && op == 0x81 && modrm == 0xec) {	/* sub rsp, imm32 */
		length = prefix + 6;
	}
	if (!length || length > left)
		return unknown;
	return (struct instruction){ kind, length, length - 4 };
}

/* Copies `length` bytes, the last four of which reach from `from` what they must now reach from `to`. */
static int move_displacement(uint8_t *out, const uint8_t *code, size_t length, uint64_t from, uint64_t to)
{
	int32_t old;
	int64_t displacement;
	int32_t narrow;

	memcpy(&old, code + length - 4, 4);
	displacement = (int64_t)(from - to) + old;
	narrow = (int32_t)displacement;
	if (narrow != displacement)
		return -1;
	memcpy(out, code, length - 4);
	memcpy(out + length - 4, &narrow, 4);
	return 0;
}

int relocate(const uint8_t *code, size_t size, uint64_t from, uint8_t *out, uint64_t to, struct moved *moved)
{
	struct instruction at;

	memset(moved, 0, sizeof(*moved));
	while (moved->taken < JUMP_LENGTH) {
		at = decode(code + moved->taken, size - moved->taken);
		if (at.kind == UNKNOWN)
			return -1;
		if (at.kind == PLAIN)
			memcpy(out + moved->length, code + moved->taken, at.length);
		else if (move_displacement(out + moved->length, code + moved->taken, at.length, from + moved->taken,
					   to + moved->length))
			return -1;
		if (!moved->first)
			moved->first = at.length;
		moved->taken += at.length;
		moved->length += at.length;
		/* Nothing comes back from a jump; bytes after it may belong to something else. */
		if (at.kind == JUMP)
			return moved->taken < JUMP_LENGTH ? -1 : 0;
	}
	write_far_jump(out + moved->length, from + moved->taken);
	moved->length += FAR_JUMP_LENGTH;
	return 0;
}

int write_jump(uint8_t *out, uint64_t at, uint64_t to)
{
	int64_t distance = (int64_t)(to - (at + JUMP_LENGTH));
	int32_t narrow = (int32_t)distance;

	if (narrow != distance)
		return -1;
	out[0] = 0xe9;
	memcpy(out + 1, &narrow, 4);
	return 0;
}

void write_far_jump(uint8_t *out, uint64_t to)
{
	static const uint8_t jump[6] = { 0xff, 0x25, 0, 0, 0, 0 };

	memcpy(out, jump, sizeof(jump));
	memcpy(out + sizeof(jump), &to, sizeof(to));
}
