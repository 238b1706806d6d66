/* The switch: some 20 instructions on x86-64 and aarch64, ucontext elsewhere. */
#include "tests/emulator/fibre.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef TN_FIBRE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef TN_FIBRE_UCONTEXT
/* Saves on the stack what a call must preserve, and returns on the other stack. */
extern "C" void tn__fibre_jump(void **from_top, void *to_top);
#endif

/* clang-format off */
#if defined(__x86_64__)
enum { SAVED_WORDS = 7, RETURN_WORD = 6, ENTRY_PADDING = 1 };
asm(".pushsection .text\n"
    ".globl tn__fibre_jump\n"
    ".hidden tn__fibre_jump\n"
    ".type tn__fibre_jump, @function\n"
    "tn__fibre_jump:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size tn__fibre_jump, .-tn__fibre_jump\n"
    ".popsection\n");
#elif defined(__aarch64__)
enum { SAVED_WORDS = 20, RETURN_WORD = 11, ENTRY_PADDING = 0 };
asm(".pushsection .text\n"
    ".globl tn__fibre_jump\n"
    ".hidden tn__fibre_jump\n"
    ".type tn__fibre_jump, %function\n"
    "tn__fibre_jump:\n"
    "    sub sp, sp, #160\n"
    "    stp x19, x20, [sp, #0]\n"
    "    stp x21, x22, [sp, #16]\n"
    "    stp x23, x24, [sp, #32]\n"
    "    stp x25, x26, [sp, #48]\n"
    "    stp x27, x28, [sp, #64]\n"
    "    stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n"
    "    stp d10, d11, [sp, #112]\n"
    "    stp d12, d13, [sp, #128]\n"
    "    stp d14, d15, [sp, #144]\n"
    "    mov x9, sp\n"
    "    str x9, [x0]\n"
    "    mov sp, x1\n"
    "    ldp x19, x20, [sp, #0]\n"
    "    ldp x21, x22, [sp, #16]\n"
    "    ldp x23, x24, [sp, #32]\n"
    "    ldp x25, x26, [sp, #48]\n"
    "    ldp x27, x28, [sp, #64]\n"
    "    ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n"
    "    ldp d10, d11, [sp, #112]\n"
    "    ldp d12, d13, [sp, #128]\n"
    "    ldp d14, d15, [sp, #144]\n"
    "    add sp, sp, #160\n"
    "    ret\n"
    ".size tn__fibre_jump, .-tn__fibre_jump\n"
    ".popsection\n");
#endif
/* clang-format on */

namespace tn_emulator {

#ifdef TN_FIBRE_ASAN
static const size_t stack_size = 512 << 10; /* red zones make large frames */
#else
static const size_t stack_size = 128 << 10;
#endif

static fibre *left;    /* by the last switch */
static fibre *running; /* since the last switch */

/* The first thing on the other side of a switch. */
static void finish_switch() {
#ifdef TN_FIBRE_ASAN
    const void *bottom;
    size_t size;
    __sanitizer_finish_switch_fiber(running->shelter, &bottom, &size);
    left->stack = bottom; /* how we learn the bounds of the host thread's own stack */
    left->size = size;
#endif
}

static void start_fibre() {
    finish_switch();
    running->entry();
    __builtin_trap();
}

#ifdef TN_FIBRE_ASAN
/* Unmarks the frames in which the fibre was left; those that returned did it themselves. Doing it
 * for the whole stack takes longer than most threads run. */
static void unmark_frames(const fibre *f) {
    const char *low = (const char *)f->stack, *end = low + f->size;
#ifndef TN_FIBRE_UCONTEXT
    const char *top = (const char *)f->top;
    /* elsewhere: it has not run, or was left by a signal */
    low = top > low && top < end ? top : low;
#endif
    ASAN_UNPOISON_MEMORY_REGION(low, (size_t)(end - low));
}
#endif

bool fibre_prepare(fibre *f, void (*entry)()) {
    if (!f->stack) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        void *memory = mmap(nullptr, page + stack_size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (memory == MAP_FAILED) { return false; }
        mprotect(memory, page, PROT_NONE); /* catches an overflow */
        /* Tops that differ in their low bits: otherwise all stacks share the same lines of a
         * cache. */
        static size_t made;
        f->stack = (char *)memory + page;
        f->size = stack_size - made++ * 17 % 64 * 64;
    }
#ifdef TN_FIBRE_ASAN
    unmark_frames(f);
#endif
    f->shelter = nullptr;
    f->entry = entry;
#ifdef TN_FIBRE_UCONTEXT
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = const_cast<void *>(f->stack);
    f->context.uc_stack.ss_size = f->size;
    f->context.uc_link = nullptr;
    makecontext(&f->context, start_fibre, 0);
#else
    /* As if tn__fibre_jump had been called at the start of `start_fibre`. */
    uintptr_t *top = (uintptr_t *)((uintptr_t)f->stack + f->size) - ENTRY_PADDING - SAVED_WORDS;
    memset(top, 0, (SAVED_WORDS + ENTRY_PADDING) * sizeof(*top));
    top[RETURN_WORD] = (uintptr_t)start_fibre;
    f->top = top;
#endif
    return true;
}

void fibre_switch(fibre *from, fibre *to, bool last) {
    left = from;
    running = to;
#ifdef TN_FIBRE_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &from->shelter, to->stack, to->size);
#else
    (void)last;
#endif
#ifdef TN_FIBRE_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    tn__fibre_jump(&from->top, to->top);
#endif
    finish_switch();
}

} // namespace tn_emulator
