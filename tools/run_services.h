/* Where a service that starts `tern run` on several hosts says so. */
#ifndef TERN_TOOLS_RUN_SERVICES_H
#define TERN_TOOLS_RUN_SERVICES_H

#include <tern/train.h>

/* argv with such options before the others, which therefore count more; `rows`: what the launcher
 * takes. If argv says --nnodes or --standalone, the service's hosts do not count. */
char **service_words(int *argc, char **argv, const tn_option *rows, int count);

#endif
