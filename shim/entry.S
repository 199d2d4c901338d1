/*
 * The names that compilers call at the beginning of a parallel region. Each asks openmp.c where to go on, and with how many
 * threads, and goes there with everything else as it came: the callers' further arguments are of no concern here, and of
 * __kmpc_fork_call nobody knows how many there are.
 */
#if !defined(__x86_64__)
#error "no entry points for this architecture yet"
#endif
#include <cet.h>

	.text

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

	.set	number, 0
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

	.section .note.GNU-stack, "", @progbits
