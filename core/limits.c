/* Which of several numbers is outside its limits, as messages say it (error.h). */
#include "core/error.h"
#include "core/thread.h"

#include <stdio.h>

const char *tn__outside(const tn__limit *limits, int n) {
    for (int i = 0; i < n; i++) {
        const tn__limit *l = &limits[i];
        if (l->value < l->least || (l->most > 0 && l->value > l->most)) {
            tn__texts *texts = tn__thread_texts();
            enum {
                BUFFERS = sizeof(texts->shape) / sizeof(texts->shape[0]),
                SIZE = sizeof(texts->shape[0])
            };
            char *text = texts->shape[texts->next_shape++ % BUFFERS];
            char most[32] = "";
            if (l->most > 0) { snprintf(most, sizeof(most), " to %lld", (long long)l->most); }
            snprintf(text, SIZE, "%s is %lld (it must be %s%lld%s)", l->name, (long long)l->value,
                     *most ? "" : "at least ", (long long)l->least, most);
            return text;
        }
    }
    return NULL;
}
