/* tiny/tiny.c inside a test of Tern's.
 *
 * Its names are short and not static. They are hidden, so that none replaces a library's, and those
 * that tests/support has too are others. GCC optimises it: it has to train. */
#ifndef TERN_TESTS_TINY_TINY_H
#define TERN_TESTS_TINY_TINY_H

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/test.h"

#include <tern/tern.h>

#undef _DEFAULT_SOURCE
#define ranks_start tiny_ranks_start
#define ranks_wait tiny_ranks_wait
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC visibility push(hidden)
#ifndef __clang__
#pragma GCC push_options
#pragma GCC optimize("O2")
#endif
#include "../../tiny/tiny.c"
#ifndef __clang__
#pragma GCC pop_options
#endif
#pragma GCC visibility pop
#pragma GCC diagnostic pop

#endif
