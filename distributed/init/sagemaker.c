/* Which of its hosts SageMaker has started this program on: SM_… of its toolkit, else the file that
 * it gives to every container. */
#include "core/reader.h"
#include "distributed/init/environment.h"
#include "text/json.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char config_file[] = "/opt/ml/input/config/resourceconfig.json";

/* The hosts in the order of their names, which is the same on all of them. */
static bool read_hosts(const tn__json *hosts, const char *current, tn__sagemaker *s) {
    bool texts = hosts && hosts->kind == TN__JSON_LIST && hosts->count > 0, found = false;
    const tn__json *host = texts ? tn__json_first(hosts) : NULL, *first = host;
    for (uint32_t i = 0; texts && i < hosts->count; i++, host = tn__json_next(host)) {
        texts = host->kind == TN__JSON_TEXT && host->bytes > 0 && host->bytes < TN__HOST;
        if (texts) {
            first = strcmp(host->text, first->text) < 0 ? host : first;
            found |= strcmp(host->text, current) == 0;
            s->index += strcmp(host->text, current) < 0;
        }
    }
    if (texts && found) {
        s->hosts = hosts->count;
        strcpy(s->first, first->text);
    }
    return texts && found;
}

static bool read_variables(const char *const *variables, tn__sagemaker *s) {
    const char *hosts = tn__variable(variables, "SM_HOSTS"),
               *current = tn__variable(variables, "SM_CURRENT_HOST"),
               *gpus = tn__variable(variables, "SM_NUM_GPUS"),
               *interface = tn__variable(variables, "SM_NETWORK_INTERFACE_NAME");
    tn__json_file json;
    if (!hosts || !current || !tn__json_read_any(&json, hosts, strlen(hosts))) { return false; }
    bool read = read_hosts(json.values, current, s);
    tn__json_free(&json);
    s->gpus = gpus ? strtol(gpus, NULL, 10) : 0;
    if (interface && strlen(interface) < sizeof(s->interface)) { strcpy(s->interface, interface); }
    return read;
}

static bool read_config(tn__sagemaker *s) {
    size_t bytes;
    tn__json_file json;
    char *text =
        access(config_file, R_OK) == 0 ? tn__read_whole(config_file, &bytes, "dist_init") : NULL;
    tn_error_clear(); /* a file that cannot be read says nothing */
    bool read = text && tn__json_read_any(&json, text, bytes);
    free(text);
    if (!read) { return false; }
    const char *current = tn__json_text(json.values, "current_host"),
               *interface = tn__json_text(json.values, "network_interface_name");
    read = current && read_hosts(tn__json_get(json.values, "hosts"), current, s);
    if (interface && strlen(interface) < sizeof(s->interface)) { strcpy(s->interface, interface); }
    tn__json_free(&json);
    return read;
}

bool tn__environment_sagemaker(const char *const *variables, tn__sagemaker *s) {
    *s = (tn__sagemaker){0};
    return tn__variable(variables, "SM_HOSTS") ? read_variables(variables, s) : read_config(s);
}
