/* The header of every object owned by scopes and reference counts.
 *
 * core/ counts references and calls destroy at 0, and knows nothing else; a tensor begins with one
 * (sys/tensor.h).
 */
#ifndef TERN_SYS_OBJECT_H
#define TERN_SYS_OBJECT_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tn_object {
    int32_t refs;   /* atomic; TN__IMMORTAL: static, never counted */
    uint32_t state; /* TN__ALIVE, or TN__DEAD until the memory is used again */
    void (*destroy)(struct tn_object *self);
} tn_object;
/* For refs; for state, numbers unlikely to occur in other memory. */
#define TN__IMMORTAL INT32_MIN
#define TN__ALIVE 0x54524e41u
#define TN__DEAD 0x64656164u

#ifdef __cplusplus
}
#endif
#endif
