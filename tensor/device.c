/* Devices: which are available, where new tensors go, and copying bytes between them.
 *
 * The CPU is built in. Every other kind is a plugin's table (tern/sys/device.h), loaded on first
 * use, so a program that stays on the CPU never touches a driver.
 */
#include "core/descriptor.h"
#include "core/plugin.h"
#include "tensor/tensor.h"
#include "tern/sys/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t cuda_once = PTHREAD_ONCE_INIT;
static const tn_device_table *cuda_table; /* NULL: the plugin could not be loaded */
static char cuda_why[TN_DEVICE_WHY];      /* the reason */

static _Thread_local tn_device default_device;

/* ---- The plugin ------------------------------------------------------------------------------ */

static void log_news(const char *text) {
    tn_log_write(TN_LOG_WARN, "%s", text);
}

static void load_cuda(void) {
    const char *name = getenv("TERN_CUDA");
    name = name && *name ? name : "cuda";
    tn_device_table_function function;
    void *symbol = tn__plugin_symbol(name, "tern_device_table", cuda_why, sizeof(cuda_why));
    if (!symbol) { return; }
    memcpy(&function, &symbol, sizeof(function));
    tn__libraries_hold(); /* it opens NVIDIA's */
    tn__streams_hold();
    const tn_device_table *table = function(TN_DEVICE_VERSION, cuda_why);
    tn__streams_let_go();
    tn__libraries_let_go();
    if (table && (table->version != TN_DEVICE_VERSION || table->size != sizeof(*table))) {
        snprintf(cuda_why, sizeof(cuda_why), "libtern_%s.so was built for another libtern", name);
        table = NULL;
    }
    if (table) { table->log_to(log_news); }
    cuda_table = table;
}

const tn_device_table *tn__device_plugin(tn_device_kind kind) {
    if (kind != TN_CUDA) { return NULL; }
    pthread_once(&cuda_once, load_cuda);
    return cuda_table;
}

const tn_device_table *tn__device_table(tn_device device) {
    const tn_device_table *table = tn__device_plugin(device.kind);
    return table && device.index >= 0 && device.index < table->count ? table : NULL;
}

/* ---- Names and numbers ----------------------------------------------------------------------- */

tn_device tn_cpu(void) {
    return (tn_device){TN_CPU, 0};
}

tn_device tn_cuda(int index) {
    return (tn_device){TN_CUDA, index};
}

int tn_device_count(tn_device_kind kind) {
    const tn_device_table *table = tn__device_plugin(kind);
    return kind == TN_CPU ? 1 : table ? table->count : 0;
}

const char *tn_device_why(tn_device_kind kind) {
    if (kind == TN_CPU) { return ""; }
    const tn_device_table *table = tn__device_plugin(kind);
    return kind != TN_CUDA ? "there is no such kind of device" : table ? table->why : cuda_why;
}

const char *tn_device_text(tn_device device) {
    static _Thread_local char text[8][24];
    static _Thread_local unsigned next;
    char *here = text[next++ % 8];
    static const char *const names[] = {[TN_CPU] = "cpu", [TN_CUDA] = "cuda"};
    const char *name = (unsigned)device.kind <= TN_CUDA ? names[device.kind] : "unknown";
    if (device.kind == TN_CPU && device.index == 0) {
        snprintf(here, sizeof(text[0]), "%s", name);
    } else {
        snprintf(here, sizeof(text[0]), "%s:%d", name, device.index);
    }
    return here;
}

bool tn__device_exists(tn_device device, const char *operation) {
    if (device.kind == TN_CPU && device.index == 0) { return true; }
    if (tn__device_table(device)) { return true; }
    int count = tn_device_count(device.kind);
    if (device.kind == TN_CUDA && count == 0) {
        tn__raise(TN_EDEVICE, operation, "there is no device %s: %s%s", tn_device_text(device),
                  tn_device_why(TN_CUDA),
                  cuda_table ? "" : " (Tern was built without CUDA, or the plugin is elsewhere)");
    } else {
        tn__raise(TN_EDEVICE, operation, "there is no device %s: %d %s here, counted from 0",
                  tn_device_text(device), count, count == 1 ? "device is" : "devices are");
    }
    return false;
}

tn_device tn_device_named(const char *text) {
    tn_device device = tn_cpu();
    if (text && strcmp(text, "cpu") == 0) { return device; }
    bool bare = text && strcmp(text, "cuda") == 0;
    const char *digits = text && strncmp(text, "cuda:", 5) == 0 ? text + 5 : "";
    char *end = "";
    long index = *digits >= '0' && *digits <= '9' ? strtol(digits, &end, 10) : -1;
    if ((index < 0 && !bare) || *end || index > 1 << 16) {
        tn__raise(TN_EDEVICE, "device_named", "\"%.64s\" is not a device (use cpu, cuda or cuda:N)",
                  text ? text : "(NULL)");
        return device;
    }
    tn_device wanted = tn_cuda(bare ? 0 : (int)index);
    return tn__device_exists(wanted, "device_named") ? wanted : device;
}

tn_status tn_device_describe(tn_device device, tn_device_info *info) {
    if (!info) { return tn__raise(TN_EVALUE, "device_describe", "info is NULL"); }
    *info = (tn_device_info){.name = ""};
    if (!tn__device_exists(device, "device_describe")) { return TN_EDEVICE; }
    if (device.kind != TN_CPU) {
        const tn_device_table *table = tn__device_table(device);
        tn_status status = table->describe(device.index, info);
        return status == TN_OK ? TN_OK : tn__device_failed(device, status, "device_describe");
    }
    snprintf(info->name, sizeof(info->name), "CPU");
    info->processors = (int)sysconf(_SC_NPROCESSORS_ONLN);
    info->memory = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    return TN_OK;
}

tn_device tn_default_device(void) {
    return default_device;
}

tn_status tn_set_default_device(tn_device device) {
    if (!tn__device_exists(device, "set_default_device")) { return TN_EDEVICE; }
    default_device = device;
    return TN_OK;
}

/* ---- Waiting and failing --------------------------------------------------------------------- */

tn_status tn__device_failed(tn_device device, tn_status status, const char *operation) {
    const tn_device_table *table = tn__device_table(device);
    return tn__raise(status, operation, "%s: %s", tn_device_text(device),
                     table ? table->reason() : "there is no such device");
}

tn_status tn_device_synchronize(tn_device device) {
    if (!tn__device_exists(device, "device_synchronize")) { return TN_EDEVICE; }
    const tn_device_table *table = tn__device_table(device);
    tn_status status = table ? table->synchronize(device.index) : TN_OK;
    return status == TN_OK ? TN_OK : tn__device_failed(device, status, "device_synchronize");
}

tn_status tn__copy_bytes(tn_device to_device, void *to, tn_device from_device, const void *from,
                         size_t bytes, const char *operation) {
    if (bytes == 0) { return TN_OK; }
    tn_device foreign = to_device.kind != TN_CPU ? to_device : from_device;
    const tn_device_table *table = tn__device_table(foreign);
    if (!table) {
        memcpy(to, from, bytes);
        return TN_OK;
    }
    tn_status status = table->copy(to_device, to, from_device, from, bytes);
    return status == TN_OK ? TN_OK : tn__device_failed(foreign, status, operation);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

tn_memory_stats tn_device_memory(tn_device device) {
    const tn_device_table *table = tn__device_table(device);
    if (table) { return table->memory(device.index); }
    return tn__device_exists(device, "device_memory") ? tn_memory()
                                                      : (tn_memory_stats){.allocated = 0};
}

void tn_device_memory_reset_peak(tn_device device) {
    const tn_device_table *table = tn__device_table(device);
    if (table) {
        table->memory_reset_peak(device.index);
    } else if (tn__device_exists(device, "device_memory_reset_peak")) {
        tn_memory_reset_peak();
    }
}

void tn_device_memory_trim(tn_device device) {
    const tn_device_table *table = tn__device_table(device);
    if (table) {
        table->memory_trim(device.index);
    } else if (tn__device_exists(device, "device_memory_trim")) {
        tn_memory_trim();
    }
}
