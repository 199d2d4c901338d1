/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The first instructions of a function, moved to another place.
 *
 * A jump at the entry of a function takes the place of its first five bytes. To call the function all the same, the
 * instructions those bytes belong to are copied, and followed by a jump to the rest. Only instructions that compilers begin
 * functions with are known; anything else is refused, and the function stays as it is.
 */
#ifndef ELBOWROOM_RELOCATE_H
#define ELBOWROOM_RELOCATE_H

#include <stddef.h>
#include <stdint.h>

enum {
	JUMP_LENGTH = 5,	/* jmp rel32 */
	FAR_JUMP_LENGTH = 14,	/* jmp *[rip+0] and the address */
	MOVED_MAX = 48,
};

struct moved {
	size_t taken;	/* bytes of whole instructions taken from the function, at least JUMP_LENGTH */
	size_t first;	/* length of its first instruction */
	size_t length;	/* bytes written */
};

/*
 * Writes to `out`, which will run at `to`, what does the same as `code` at `from`, of `size` bytes: at most MOVED_MAX bytes.
 * Gives 0, or -1 when there is an instruction that is not known or that does not reach its operand from there.
 */
int relocate(const uint8_t *code, size_t size, uint64_t from, uint8_t *out, uint64_t to, struct moved *moved);

/* jmp rel32. Gives 0, or -1 when it does not reach. */
int write_jump(uint8_t *out, uint64_t at, uint64_t to);
/* A jump to anywhere. */
void write_far_jump(uint8_t *out, uint64_t to);

#endif
