/* Where an error was raised: the stack is captured then, and symbolised when the text is shown. */
#ifndef TERN_CORE_PLACE_H
#define TERN_CORE_PLACE_H

#include "tern/core.h"

enum { TN__STACK_FRAMES = 64 };

/* The return addresses of the calls that were running, innermost first. */
typedef struct tn__stack {
    bool pending; /* the error's text has no place yet */
    int count;
    uintptr_t frames[TN__STACK_FRAMES];
} tn__stack;

/* Keeps the calls that are running now. Allocates nothing. */
void tn__stack_keep(tn__stack *stack);

/* This thread's, for its pending error; like tn__thread_texts, never NULL. */
tn__stack *tn__thread_stack(void);

/* As tn__place (error.h), for the calls that were kept. */
void tn__place_of(const tn__stack *stack, char *text, size_t size);

/* While false, places are functions and offsets: libdw, which may crash when malloc fails, is not
 * used. For tests that make malloc fail. */
TN_API void tn__place_lines(bool on);

#endif
