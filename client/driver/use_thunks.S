// The code in front of the calls of used_calls.h. It knows no parameters of any call: it compares two words
// and jumps to the driver's function, with every register and the stack as the caller left them.
//
// Each thunk has a word in lgpu_use_targets: where it jumps to. The first 256 thunks are for look-ups
// (use_notes.cc fills them). Each exported call has one more, whose word is the driver's function from the
// first call on. An exported symbol is a GNU indirect function: glibc asks lgpu_use_choose for its address, so
// dlsym finds nothing where the driver has no such call.

#include "client/driver/used_calls.h"

#define LOOK_UP_THUNKS 256

#if defined(__x86_64__)

// Saves what a call may hold parameters in, calls \function with the address of the thunk's word, and jumps
// to where that word says. %r10: the word.
.macro step_aside name, function
  .type \name, @function
\name:
  .cfi_startproc
  endbr64
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  mov %rsp, %rbp
  .cfi_def_cfa_register %rbp
  sub $192, %rsp
  mov %rax, 128(%rsp)
  mov %rdi, 136(%rsp)
  mov %rsi, 144(%rsp)
  mov %rdx, 152(%rsp)
  mov %rcx, 160(%rsp)
  mov %r8, 168(%rsp)
  mov %r9, 176(%rsp)
  mov %r10, 184(%rsp)
  movups %xmm0, (%rsp)
  movups %xmm1, 16(%rsp)
  movups %xmm2, 32(%rsp)
  movups %xmm3, 48(%rsp)
  movups %xmm4, 64(%rsp)
  movups %xmm5, 80(%rsp)
  movups %xmm6, 96(%rsp)
  movups %xmm7, 112(%rsp)
  mov %r10, %rdi
  call \function
  movups (%rsp), %xmm0
  movups 16(%rsp), %xmm1
  movups 32(%rsp), %xmm2
  movups 48(%rsp), %xmm3
  movups 64(%rsp), %xmm4
  movups 80(%rsp), %xmm5
  movups 96(%rsp), %xmm6
  movups 112(%rsp), %xmm7
  mov 128(%rsp), %rax
  mov 136(%rsp), %rdi
  mov 144(%rsp), %rsi
  mov 152(%rsp), %rdx
  mov 160(%rsp), %rcx
  mov 168(%rsp), %r8
  mov 176(%rsp), %r9
  mov 184(%rsp), %r10
  leave
  .cfi_def_cfa %rsp, 8
  jmp *(%r10)
  .cfi_endproc
  .size \name, . - \name
.endm

.macro thunk number
  .balign 64
  .cfi_startproc
  endbr64
  mov lgpu_use_tick(%rip), %r11
  lea lgpu_use_targets + 8 * (\number)(%rip), %r10
  mov (%r11), %r11
  cmp lgpu_use_seen(%rip), %r11
  jne note_use
  jmp *(%r10)
  .cfi_endproc
.endm

// The address of the thunk, or that of lgpu_use_choose(number). Before the library has started, and with it
// the program's own libraries, nothing is called.
.macro choose symbol, number
  .globl \symbol
  .type \symbol, %gnu_indirect_function
\symbol:
  .cfi_startproc
  endbr64
  cmpb $0, lgpu_use_is_started(%rip)
  je 1f
  mov $(\number), %edi
  jmp lgpu_use_choose
1:
  lea lgpu_use_thunks + 64 * (\number)(%rip), %rax
  ret
  .cfi_endproc
  .size \symbol, . - \symbol
.endm

// GNU_PROPERTY_X86_FEATURE_1_AND: indirect branch tracking and shadow stacks.
#define PROPERTY 0xc0000002, 4, 3, 0

#elif defined(__aarch64__)

// x16: the word.
.macro step_aside name, function
  .type \name, @function
\name:
  .cfi_startproc
  bti jc
  stp x29, x30, [sp, #-224]!
  .cfi_def_cfa_offset 224
  .cfi_offset 29, -224
  .cfi_offset 30, -216
  mov x29, sp
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  stp x8, x16, [sp, #80]
  stp q0, q1, [sp, #96]
  stp q2, q3, [sp, #128]
  stp q4, q5, [sp, #160]
  stp q6, q7, [sp, #192]
  mov x0, x16
  bl \function
  ldp q0, q1, [sp, #96]
  ldp q2, q3, [sp, #128]
  ldp q4, q5, [sp, #160]
  ldp q6, q7, [sp, #192]
  ldp x0, x1, [sp, #16]
  ldp x2, x3, [sp, #32]
  ldp x4, x5, [sp, #48]
  ldp x6, x7, [sp, #64]
  ldp x8, x16, [sp, #80]
  ldp x29, x30, [sp], #224
  .cfi_restore 29
  .cfi_restore 30
  .cfi_def_cfa_offset 0
  ldr x17, [x16]
  br x17
  .cfi_endproc
  .size \name, . - \name
.endm

.macro thunk number
  .balign 64
  .cfi_startproc
  bti c
  adrp x16, lgpu_use_tick
  ldr x16, [x16, :lo12:lgpu_use_tick]
  ldr x16, [x16]
  adrp x17, lgpu_use_seen
  ldr x17, [x17, :lo12:lgpu_use_seen]
  cmp x16, x17
  adrp x16, lgpu_use_targets + 8 * (\number)
  add x16, x16, :lo12:lgpu_use_targets + 8 * (\number)
  b.ne note_use
  ldr x17, [x16]
  br x17
  .cfi_endproc
.endm

.macro choose symbol, number
  .globl \symbol
  .type \symbol, %gnu_indirect_function
\symbol:
  .cfi_startproc
  bti c
  adrp x16, lgpu_use_is_started
  ldrb w16, [x16, :lo12:lgpu_use_is_started]
  cbz w16, 1f
  mov w0, #(\number)
  b lgpu_use_choose
1:
  adrp x0, lgpu_use_thunks + 64 * (\number)
  add x0, x0, :lo12:lgpu_use_thunks + 64 * (\number)
  ret
  .cfi_endproc
  .size \symbol, . - \symbol
.endm

// GNU_PROPERTY_AARCH64_FEATURE_1_AND: branch target identification.
#define PROPERTY 0xc0000000, 4, 1, 0

#endif

#if defined(__x86_64__) || defined(__aarch64__)

  .text
  step_aside note_use, lgpu_use_note
  step_aside find_target, lgpu_use_find_target

  .hidden lgpu_use_thunks
  .globl lgpu_use_thunks
  .balign 64
lgpu_use_thunks:
  .set number, 0
  .rept LOOK_UP_THUNKS
  thunk number
  .set number, number + 1
  .endr
#define USED(symbol) thunk number; .set number, number + 1;
  LGPU_SHIM_USED(USED)
#undef USED

  .set number, LOOK_UP_THUNKS
#define USED(symbol) choose symbol, number; .set number, number + 1;
  LGPU_SHIM_USED(USED)
#undef USED

  .data
  .balign 8
  .hidden lgpu_use_targets
  .globl lgpu_use_targets
lgpu_use_targets:
  .fill LOOK_UP_THUNKS, 8, 0
#define USED(symbol) .quad find_target;
  LGPU_SHIM_USED(USED)
#undef USED

// A library with code that tells nothing here would lose the properties of all its other code.
  .section .note.gnu.property, "a"
  .balign 8
  .long 4, 16, 5
  .asciz "GNU"
  .long PROPERTY
#endif

  .section .note.GNU-stack, "", %progbits
