/*
 * The names that compilers call at the beginning of a parallel region. Each asks openmp.c where to go on, and with how many
 * threads, and goes there with everything else as it came: the callers' further arguments are of no concern here, and of
 * __kmpc_fork_call it is not known how many there are.
 */
	.set	number, 0
	.text

#if defined(__x86_64__)
#include <cet.h>

/* GOMP_*(fn, data, unsigned num_threads, ...): the third argument, in edx, is what may change. */
	.type	gomp, @function
gomp:
	.cfi_startproc
	push	%rdi
	.cfi_adjust_cfa_offset 8
	push	%rsi
	.cfi_adjust_cfa_offset 8
	push	%rcx
	.cfi_adjust_cfa_offset 8
	push	%r8
	.cfi_adjust_cfa_offset 8
	push	%r9
	.cfi_adjust_cfa_offset 8
	mov	%rdi, %rsi
	mov	%eax, %edi
	call	openmp_gomp
	pop	%r9
	.cfi_adjust_cfa_offset -8
	pop	%r8
	.cfi_adjust_cfa_offset -8
	pop	%rcx
	.cfi_adjust_cfa_offset -8
	pop	%rsi
	.cfi_adjust_cfa_offset -8
	pop	%rdi
	.cfi_adjust_cfa_offset -8
	jmp	*%rax
	.cfi_endproc
	.size	gomp, . - gomp

	.macro entry name
	.globl	\name
	.type	\name, @function
\name:
	.cfi_startproc
	_CET_ENDBR
	mov	$number, %eax
	jmp	gomp
	.cfi_endproc
	.size	\name, . - \name
	.set	number, number + 1
	.endm

/* __kmpc_fork_call(loc, argc, microtask, ...): all of it goes on as it came, the number in al too. */
	.globl	__kmpc_fork_call
	.type	__kmpc_fork_call, @function
__kmpc_fork_call:
	.cfi_startproc
	_CET_ENDBR
	push	%rdi
	.cfi_adjust_cfa_offset 8
	push	%rsi
	.cfi_adjust_cfa_offset 8
	push	%rdx
	.cfi_adjust_cfa_offset 8
	push	%rcx
	.cfi_adjust_cfa_offset 8
	push	%r8
	.cfi_adjust_cfa_offset 8
	push	%r9
	.cfi_adjust_cfa_offset 8
	push	%rax
	.cfi_adjust_cfa_offset 8
	mov	%rdx, %rsi
	call	openmp_kmpc_fork
	mov	%rax, %r11
	pop	%rax
	.cfi_adjust_cfa_offset -8
	pop	%r9
	.cfi_adjust_cfa_offset -8
	pop	%r8
	.cfi_adjust_cfa_offset -8
	pop	%rcx
	.cfi_adjust_cfa_offset -8
	pop	%rdx
	.cfi_adjust_cfa_offset -8
	pop	%rsi
	.cfi_adjust_cfa_offset -8
	pop	%rdi
	.cfi_adjust_cfa_offset -8
	jmp	*%r11
	.cfi_endproc
	.size	__kmpc_fork_call, . - __kmpc_fork_call

#elif defined(__aarch64__)

/* GOMP_*(fn, data, unsigned num_threads, ...): the third argument, in w2, is what may change. Arguments are whole numbers, so x0 to x7. */
	.type	gomp, %function
gomp:
	.cfi_startproc
	stp	x29, x30, [sp, #-80]!
	.cfi_def_cfa_offset 80
	.cfi_offset 29, -80
	.cfi_offset 30, -72
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	stp	x3, x4, [sp, #32]
	stp	x5, x6, [sp, #48]
	str	x7, [sp, #64]
	mov	x1, x0
	mov	w0, w16
	bl	openmp_gomp
	mov	x16, x0
	mov	w2, w1
	ldp	x0, x1, [sp, #16]
	ldp	x3, x4, [sp, #32]
	ldp	x5, x6, [sp, #48]
	ldr	x7, [sp, #64]
	ldp	x29, x30, [sp], #80
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	/* By x16 or x17 a jump may arrive where a call may (BTI). */
	br	x16
	.cfi_endproc
	.size	gomp, . - gomp

	.macro entry name
	.globl	\name
	.type	\name, %function
\name:
	.cfi_startproc
	hint	#34 /* bti c */
	mov	w16, #number
	b	gomp
	.cfi_endproc
	.size	\name, . - \name
	.set	number, number + 1
	.endm

/* __kmpc_fork_call(loc, argc, microtask, ...): all of it goes on as it came, numbers in x0 to x7 and what is on the stack. */
	.globl	__kmpc_fork_call
	.type	__kmpc_fork_call, %function
__kmpc_fork_call:
	.cfi_startproc
	hint	#34 /* bti c */
	stp	x29, x30, [sp, #-80]!
	.cfi_def_cfa_offset 80
	.cfi_offset 29, -80
	.cfi_offset 30, -72
	mov	x29, sp
	stp	x0, x1, [sp, #16]
	stp	x2, x3, [sp, #32]
	stp	x4, x5, [sp, #48]
	stp	x6, x7, [sp, #64]
	mov	x1, x2
	bl	openmp_kmpc_fork
	mov	x16, x0
	ldp	x0, x1, [sp, #16]
	ldp	x2, x3, [sp, #32]
	ldp	x4, x5, [sp, #48]
	ldp	x6, x7, [sp, #64]
	ldp	x29, x30, [sp], #80
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	br	x16
	.cfi_endproc
	.size	__kmpc_fork_call, . - __kmpc_fork_call

#else
#error "no entry points for this architecture yet"
#endif

/* In the order of openmp.c. */
	entry	GOMP_parallel
	entry	GOMP_parallel_loop_static
	entry	GOMP_parallel_loop_dynamic
	entry	GOMP_parallel_loop_guided
	entry	GOMP_parallel_loop_runtime
	entry	GOMP_parallel_loop_nonmonotonic_dynamic
	entry	GOMP_parallel_loop_nonmonotonic_guided
	entry	GOMP_parallel_loop_nonmonotonic_runtime
	entry	GOMP_parallel_loop_maybe_nonmonotonic_runtime
	entry	GOMP_parallel_sections
	entry	GOMP_parallel_reductions

	.section .note.GNU-stack, "", %progbits
