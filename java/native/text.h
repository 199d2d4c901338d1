/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Sentences for people, in buffers of fixed size. */
#ifndef ELBOWROOM_TEXT_H
#define ELBOWROOM_TEXT_H

#include <stdarg.h>
#include <stdio.h>

struct text {
	char words[512];
};

/* Gives -1, so that a function can fail and say why in one line. */
__attribute__((format(printf, 2, 3))) static inline int say(struct text *text, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text->words, sizeof(text->words), format, arguments);
	va_end(arguments);
	return -1;
}

#endif
