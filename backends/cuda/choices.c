/* The table of choices, and what the environment says instead. */
#include "backends/cuda/choices.h"

#include "backends/cuda/cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;

#define VALUE(name, value) .name = (value),
static tn__cuda_choices chosen = {TN__CUDA_CHOICES(VALUE)};
#undef VALUE

/* The place of the choice that `text` names, up to '='; NULL: there is none. */
static int *choice_named(const char *text, size_t length) {
#define MATCH(name, value) \
    if (length == strlen(#name) && strncmp(text, #name, length) == 0) { return &chosen.name; }
    TN__CUDA_CHOICES(MATCH)
#undef MATCH
    return NULL;
}

/* The largest value: 1, except for numbers. */
static long most_of(const int *place) {
    return place == &chosen.few_queries ? INT16_MAX : 1;
}

/* NAME=NUMBER, with commas between. */
static void read_choices(void) {
    const char *text = getenv("TERN_CUDA_CHOICES");
    while (text && *text) {
        size_t name = strcspn(text, "=,"), all = strcspn(text, ",");
        int *place = choice_named(text, name);
        char *end = NULL;
        long value = text[name] == '=' ? strtol(text + name + 1, &end, 10) : -1;
        bool whole = end == text + all && end > text + name + 1;
        if (place && whole && value >= 0 && value <= most_of(place)) {
            *place = (int)value;
        } else {
            static bool said;
            tn__cuda_say_once(&said, "TERN_CUDA_CHOICES: %.*s is no choice (choices.h)", (int)all,
                              text);
        }
        text += all + (text[all] == ',');
    }
}

const tn__cuda_choices *tn__cuda_chosen(void) {
    pthread_once(&once, read_choices);
    return &chosen;
}
