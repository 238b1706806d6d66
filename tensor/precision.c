/* How exactly devices compute: the settings of the process, which each kernel's context gets from
 * tn_context_of. */
#include "tern/tensor.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_bool deterministic = true, matmul_tf32 = false, conv_tf32 = true;

static void read_environment(void) {
    const char *setting = getenv("TERN_TF32");
    if (setting && (strcmp(setting, "0") == 0 || strcmp(setting, "1") == 0)) {
        matmul_tf32 = conv_tf32 = setting[0] == '1';
    }
}

static bool read_setting(const atomic_bool *setting) {
    pthread_once(&once, read_environment);
    return atomic_load_explicit(setting, memory_order_relaxed);
}

static void write_setting(atomic_bool *setting, bool to) {
    pthread_once(&once, read_environment);
    atomic_store_explicit(setting, to, memory_order_relaxed);
}

bool tn_deterministic(void) {
    return read_setting(&deterministic);
}

void tn_set_deterministic(bool to) {
    write_setting(&deterministic, to);
}

bool tn_matmul_tf32(void) {
    return read_setting(&matmul_tf32);
}

void tn_set_matmul_tf32(bool to) {
    write_setting(&matmul_tf32, to);
}

bool tn_conv_tf32(void) {
    return read_setting(&conv_tf32);
}

void tn_set_conv_tf32(bool to) {
    write_setting(&conv_tf32, to);
}
