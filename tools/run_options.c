/* What the user asked `tern run` for: torchrun's options by torchrun's names,
 * checked before anything starts. */
#include "core/number.h"
#include "core/quote.h"
#include "distributed/init/environment.h"
#include "tools/numbers.h"
#include "tools/run.h"
#include "tools/run_refused.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tern/tensor.h>
#include <unistd.h>

enum { DEFAULT_PORT = 29400 }; /* torchrun's */

enum {
    NNODES = 256,
    MAX_RESTARTS,
    ENDPOINT,
    RUN_ID,
    STANDALONE,
    MONITOR,
    LOG_DIR,
    NODE_RANK,
    MASTER_ADDR,
    MASTER_PORT,
    TOKEN,
    TOKEN_FILE,
    TIMEOUT,
    LAST_CALL,
    HEARTBEAT,
    GRACE,
    SHUTDOWN,
    BACKEND,
    CONF,
    NO_PYTHON
};

static const struct argp_option taken[] = {
    {"nproc-per-node", 'n', "N", 0,
     "ranks on this host (1); \"gpu\": one for each GPU; \"cpu\": one for each core; \"auto\": "
     "\"gpu\" where there are GPUs, else \"cpu\"",
     1},
    {"max-restarts", MAX_RESTARTS, "N", 0, "how often all start again after a failure (0)", 1},
    {"log-dir", LOG_DIR, "DIR", 0,
     "also write DIR/ID/attempt_K/RANK/stdout.log and stderr.log; flight records go there", 1},
    {"tee", 't', "3", 0,
     "changes nothing, but needs --log-dir: both streams are always shown, and in its files", 1},
    {"no-python", NO_PYTHON, NULL, 0, "changes nothing: PROGRAM is always started as it is", 1},
    {"grace", GRACE, "S", 0, "seconds between SIGTERM and SIGKILL for the ranks (5)", 1},
    {"shutdown-timeout", SHUTDOWN, "S", 0, "the same as --grace", 1},
    {"nnodes", NNODES, "N or MIN:MAX", 0, "hosts, each with its own `tern run` (1)", 2},
    {"rdzv-endpoint", ENDPOINT, "HOST:PORT", 0,
     "where the launchers meet: the one whose address this is serves the store (port 29400)", 2},
    {"rdzv-backend", BACKEND, "NAME", 0,
     "\"c10d\" or \"static\", and changes nothing: the launchers always meet in a store that one "
     "of them serves",
     2},
    {"rdzv-conf", CONF, "NAME=S,...", 0, "join_timeout: --timeout; last_call_timeout: --last-call",
     2},
    {"rdzv-id", RUN_ID, "ID", 0, "name of the job", 2},
    {"standalone", STANDALONE, NULL, 0, "one host, any free port", 2},
    {"node-rank", NODE_RANK, "R", 0, "this host's place; 0 serves the store (by arrival)", 2},
    {"master-addr", MASTER_ADDR, "HOST", 0, "the same as --rdzv-endpoint, in two parts", 2},
    {"master-port", MASTER_PORT, "PORT", 0, "", 2},
    {"token", TOKEN, "TEXT", 0,
     "who has it may join; better in TERN_TOKEN, since others on the host can see arguments", 2},
    {"token-file", TOKEN_FILE, "FILE", 0,
     "a secret that nobody else may read makes the token (else TERN_TOKEN, TERN_TOKEN_FILE, the "
     "user's own)",
     2},
    {"timeout", TIMEOUT, "S", 0, "seconds to wait for enough hosts (600)", 3},
    {"last-call", LAST_CALL, "S", 0, "seconds to wait for more than MIN hosts (3)", 3},
    {"heartbeat", HEARTBEAT, "S", 0, "a host that is silent for so long is lost (10)", 3},
    {"monitor-interval", MONITOR, "S", 0, "seconds between two looks at the other hosts (0.1)", 3},
};

/* All of them, torchrun's that are refused too, with hyphens and with underscores. */
enum { TAKEN = sizeof(taken) / sizeof(*taken), ROWS = 2 * (TAKEN + MOST_REFUSED) + 1 };
static struct argp_option option_list[ROWS];

static struct argp_option *add_option(struct argp_option *row, const struct argp_option *option) {
    static char spellings[ROWS][32];
    *row++ = *option;
    if (strchr(option->name, '-')) {
        char *name = spellings[row - option_list];
        snprintf(name, sizeof(spellings[0]), "%s", option->name);
        for (char *c = name; *c; c++) {
            *c = (char)(*c == '-' ? '_' : *c);
        }
        *row++ = (struct argp_option){name, 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 0};
    }
    return row;
}

static void list_options(void) {
    struct argp_option *row = option_list, refused;
    for (int i = 0; i < TAKEN; i++) {
        row = add_option(row, &taken[i]);
    }
    for (int i = 0; i < MOST_REFUSED && refused_option(i, &refused); i++) {
        row = add_option(row, &refused);
    }
}

typedef struct parsing {
    run_options *o;
    const char *endpoint, *address, *token, *token_file; /* NULL: not given */
    int port;                                            /* 0: not given */
    bool standalone, has_id, has_nodes, tee;
} parsing;

/* ---- Values ---------------------------------------------------------------------------------- */

static double read_seconds(struct argp_state *state, const char *name, const char *text) {
    double value;
    if (!tn__real_from(text, &value) || !(value >= 0 && value <= 1e6)) {
        argp_error(state, "--%s is \"%s\": a number of seconds is wanted", name, text);
    }
    return value;
}

static void read_nodes(struct argp_state *state, run_options *o, const char *text) {
    char first[16] = "";
    const char *colon = strchr(text, ':');
    if (!colon) {
        o->min_nodes = o->max_nodes = (int)argument_whole(state, "nnodes", text, 1, MOST_NODES);
        return;
    }
    snprintf(first, sizeof(first), "%.*s", (int)(colon - text), text);
    o->min_nodes = (int)argument_whole(state, "nnodes", first, 1, MOST_NODES);
    o->max_nodes = (int)argument_whole(state, "nnodes", colon + 1, 1, MOST_NODES);
    if (o->min_nodes > o->max_nodes) {
        argp_error(state, "--nnodes is \"%s\": the first number is the smaller one", text);
    }
}

/* In a child: a driver of GPUs may start threads and take memory. */
static int count_gpus(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        int count = tn_device_count(TN_CUDA);
        _exit(count < 255 ? count : 255);
    }
    bool ended = child > 0 && waitpid(child, &status, 0) == child;
    return ended && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static int count_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

static int read_ranks(struct argp_state *state, const char *text) {
    bool gpu = strcmp(text, "gpu") == 0, any = strcmp(text, "auto") == 0;
    int gpus = gpu || any ? count_gpus() : 0;
    if (gpu && gpus == 0) {
        argp_error(state, "--nproc-per-node is \"gpu\", but there is no GPU (tern info says why)");
    }
    if (gpu || any || strcmp(text, "cpu") == 0) {
        return gpus > 0 ? gpus : count_cores();
    }
    return (int)argument_whole(state, "nproc-per-node", text, 1, MOST_RANKS);
}

/* torchrun's rendezvous: "NAME=SECONDS,...". */
static void read_conf(struct argp_state *state, run_options *o, const char *text) {
    char *words = text_new("%s", text), *rest = words;
    for (char *word; (word = strsep(&rest, ","));) {
        word += strspn(word, " ");
        char *value = strchr(word, '=');
        size_t length = value ? (size_t)(value - word) : strlen(word);
        char *name = text_new("%.*s", (int)length, word);
        double *field = strcmp(name, "join_timeout") == 0 || strcmp(name, "timeout") == 0
                            ? &o->timeout
                        : strcmp(name, "last_call_timeout") == 0 ? &o->last_call
                                                                 : NULL;
        if (!field || !value) {
            argp_error(state,
                       "--rdzv-conf has \"%s\": join_timeout=S and last_call_timeout=S are taken "
                       "(the launcher whose address the endpoint is serves the store)",
                       word);
        } else {
            *field = read_seconds(state, "rdzv-conf", value + 1);
        }
        free(name);
    }
    free(words);
}

static void check_backend(struct argp_state *state, const char *text) {
    if (strcmp(text, "c10d") != 0 && strcmp(text, "static") != 0) {
        argp_error(state,
                   "--rdzv-backend is \"%s\": the launchers meet in a store that one of them "
                   "serves (c10d, static); give --rdzv-endpoint the address of its host",
                   text);
    }
}

/* It names folders and keys. */
static void run_id(struct argp_state *state, run_options *o, const char *text) {
    size_t length = strlen(text);
    bool plain = length > 0 && length < sizeof(o->run_id) && text[0] != '.';
    for (size_t i = 0; i < length; i++) {
        plain = plain && (isalnum((unsigned char)text[i]) || strchr("-_.", text[i]));
    }
    if (!plain) {
        argp_error(state, "--rdzv-id is \"%s\": letters, digits and - _ . are wanted, at most %zu",
                   text, sizeof(o->run_id) - 1);
    }
    snprintf(o->run_id, sizeof(o->run_id), "%s", text);
}

static void read_token(struct argp_state *state, run_options *o, const char *text) {
    if (!*text || strlen(text) >= sizeof(o->token)) {
        argp_error(state, "the token has %zu characters: 1 to %zu are wanted", strlen(text),
                   sizeof(o->token) - 1);
    }
    snprintf(o->token, sizeof(o->token), "%s", text);
}

/* "host", "host:port", "[::1]:port" */
static void read_endpoint(struct argp_state *state, run_options *o, const char *text) {
    const char *host = text, *end, *port = NULL;
    if (*text == '[') {
        host = text + 1;
        end = strchr(text, ']');
        port = end && end[1] == ':' ? end + 2 : NULL;
        if (!end || (end[1] && !port)) {
            argp_error(state, "--rdzv-endpoint is \"%s\": [ADDRESS]:PORT is wanted", text);
        }
    } else {
        end = text + strcspn(text, ":");
        port = *end ? end + 1 : NULL;
    }
    if (end == host || (size_t)(end - host) >= sizeof(o->host)) {
        argp_error(state, "--rdzv-endpoint is \"%s\": HOST:PORT is wanted", text);
    }
    snprintf(o->host, sizeof(o->host), "%.*s", (int)(end - host), host);
    o->port =
        port ? (int)argument_whole(state, "rdzv-endpoint's port", port, 0, 65535) : DEFAULT_PORT;
}

/* ---- All together ---------------------------------------------------------------------------- */

/* Whether a program may be started; false with errno. */
static bool is_program(const char *file) {
    struct stat about;
    if (stat(file, &about) == 0 && S_ISDIR(about.st_mode)) {
        errno = EISDIR;
        return false;
    }
    return access(file, X_OK) == 0;
}

/* Where the program is, as a shell would find it. Whether there is one is known before anything
 * starts: a wrong name needs no restarts. */
static char *find_program(struct argp_state *state, const char *name) {
    if (strchr(name, '/')) {
        if (!is_program(name)) {
            argp_failure(state, errno == ENOENT ? 127 : 126, errno, "%s", name);
        }
        return text_new("%s", name);
    }
    const char *path = getenv("PATH");
    char *folders = text_new("%s", path ? path : "/bin:/usr/bin"), *rest = folders, *file = NULL;
    for (char *folder; !file && (folder = strsep(&rest, ":"));) {
        file = text_new("%s/%s", *folder ? folder : ".", name);
        if (!is_program(file)) {
            free(file);
            file = NULL;
        }
    }
    free(folders);
    if (!file) {
        argp_failure(state, 127, 0, "%s: not found in PATH (a program here: ./%s)", name, name);
    }
    return file;
}

/* As for ranks: a variable that is empty is not set. */
static const char *variable_of(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

/* Whoever has the token may join. A job of one host needs none that others know; one of several
 * takes the user's own when none is given: it is the same wherever the home is shared. Of a secret
 * that lies in a file the ranks see only what is made of it for this job. */
static void choose_token(struct argp_state *state, const parsing *p) {
    run_options *o = p->o;
    char why[TN_STORE_WHY], secret[TN__TOKEN];
    const char *given = p->token ? p->token : variable_of("TERN_TOKEN");
    const char *file = p->token_file ? p->token_file
                       : given       ? NULL
                                     : variable_of("TERN_TOKEN_FILE");
    if (p->token && p->token_file) {
        argp_error(state, "--token and --token-file say the same: give one");
    }
    if (o->alone || (o->max_nodes == 1 && !file && !given)) {
        random_text(o->token, 16);
        return;
    }
    if (!file && given) {
        read_token(state, o, given);
        return;
    }
    o->own_token = !file;
    if ((file ? tn__token_read(file, secret, why) : tn__token_user(secret, why)) != TN_OK) {
        argp_error(state, "no token: %s (--token-file, TERN_TOKEN: one of the job's own)", why);
    }
    tn__token_derive(secret, o->run_id, o->token);
}

/* Where the hosts meet. Port 0 of a host that is this one, any free port, is torchrun's way to say
 * that there is no other. */
static void choose_place(struct argp_state *state, parsing *p) {
    run_options *o = p->o;
    if (p->endpoint && (p->address || p->port)) {
        argp_error(state,
                   "--rdzv-endpoint and --master-addr, --master-port say the same: give one");
    }
    if (p->endpoint) {
        read_endpoint(state, o, p->endpoint);
        bool any_port = o->port == 0;
        if (any_port && (o->max_nodes > 1 || !tn__host_is_near(o->host))) {
            argp_error(
                state,
                "--rdzv-endpoint is \"%s\": port 0 (any free port) works only with one host, "
                "on localhost",
                p->endpoint);
        }
        o->alone = any_port;
    } else {
        o->alone = !p->address;
        snprintf(o->host, sizeof(o->host), "%s", p->address ? p->address : "127.0.0.1");
        o->port = p->port || o->alone ? p->port : DEFAULT_PORT;
    }
    if (o->alone && o->max_nodes > 1) {
        argp_error(state, "--nnodes %d:%d needs --rdzv-endpoint HOST:PORT, where the hosts meet",
                   o->min_nodes, o->max_nodes);
    }
}

/* One job on each of several hosts, which know nothing of each other, is nobody's wish. */
static void check_hosts(struct argp_state *state, const parsing *p) {
    extern char **environ;
    char text[TN__SEVERAL];
    if (!p->has_nodes && !p->standalone &&
        tn__environment_hosts((const char *const *)environ, text)) {
        argp_error(state,
                   "%s: give --nnodes and --rdzv-endpoint HOST:PORT, the same on each of them "
                   "(or --standalone: this host alone)",
                   text);
    }
}

static void complete_options(struct argp_state *state, parsing *p) {
    run_options *o = p->o;
    if (!o->program) {
        argp_error(state, "no program to start");
    }
    if (p->standalone && (o->max_nodes > 1 || p->endpoint || p->address)) {
        argp_error(state, "--standalone is one host, and takes no --nnodes and no endpoint");
    }
    check_hosts(state, p);
    choose_place(state, p);
    if (o->node_rank >= o->max_nodes) {
        argp_error(state, "--node-rank is %d, but there are at most %d hosts", o->node_rank,
                   o->max_nodes);
    }
    if (o->monitor < 0.01 || o->heartbeat < 3 * o->monitor) {
        argp_error(state,
                   "--monitor-interval is %g, --heartbeat %g: at least 0.01, and three times that",
                   o->monitor, o->heartbeat);
    }
    if (p->tee && !o->log_dir) {
        argp_error(state, "--tee 3 needs --log-dir DIR, where the files go");
    }
    o->path = find_program(state, o->program[0]);
    if (!p->has_id && o->alone) {
        random_text(o->run_id, 4);
    }
    choose_token(state, p);
}

/* `tern run` and its options. */
static char *command_line(char *const *options, int count) {
    static char run[] = "run";
    char **words = memory_new((size_t)count + 2, sizeof(*words));
    words[0] = program_invocation_name;
    words[1] = run;
    memcpy(words + 2, options, (size_t)count * sizeof(*words));
    char *line = tn__shell_line(words, count + 2);
    free(words);
    return line;
}

/* Options that are a number: where it goes in run_options. */
static const struct whole_option {
    int key;
    const char *name;
    size_t field;
    int least, most;
} whole_options[] = {
    {MAX_RESTARTS, "max-restarts", offsetof(run_options, max_restarts), 0, 1000000},
    {NODE_RANK, "node-rank", offsetof(run_options, node_rank), 0, MOST_NODES - 1},
};

static const struct seconds_option {
    int key;
    const char *name;
    size_t field;
} seconds_options[] = {
    {MONITOR, "monitor-interval", offsetof(run_options, monitor)},
    {TIMEOUT, "timeout", offsetof(run_options, timeout)},
    {LAST_CALL, "last-call", offsetof(run_options, last_call)},
    {HEARTBEAT, "heartbeat", offsetof(run_options, heartbeat)},
    {GRACE, "grace", offsetof(run_options, grace)},
    {SHUTDOWN, "shutdown-timeout", offsetof(run_options, grace)},
};

static bool parse_number(int key, const char *text, struct argp_state *state, run_options *o) {
    for (size_t i = 0; i < sizeof(whole_options) / sizeof(*whole_options); i++) {
        const struct whole_option *w = &whole_options[i];
        if (w->key == key) {
            int64_t value = argument_whole(state, w->name, text, w->least, w->most);
            *(int *)((char *)o + w->field) = (int)value;
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(seconds_options) / sizeof(*seconds_options); i++) {
        const struct seconds_option *s = &seconds_options[i];
        if (s->key == key) {
            *(double *)((char *)o + s->field) = read_seconds(state, s->name, text);
            return true;
        }
    }
    return false;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
    parsing *p = state->input;
    run_options *o = p->o;
    switch (key) {
    case 'n':
        o->ranks = read_ranks(state, text);
        break;
    case NNODES:
        read_nodes(state, o, text);
        p->has_nodes = true;
        break;
    case MASTER_PORT:
        p->port = (int)argument_whole(state, "master-port", text, 1, 65535);
        break;
    case MASTER_ADDR:
        p->address = text;
        if (!*text || strlen(text) >= sizeof(o->host)) {
            argp_error(state, "--master-addr is \"%s\": a host is wanted", text);
        }
        break;
    case ENDPOINT:
        p->endpoint = text;
        break;
    case BACKEND:
        check_backend(state, text);
        break;
    case CONF:
        read_conf(state, o, text);
        break;
    case STANDALONE:
        p->standalone = true;
        break;
    case RUN_ID:
        run_id(state, o, text);
        p->has_id = true;
        break;
    case TOKEN:
        read_token(state, o, text); /* refused also where it is not needed */
        p->token = text;
        break;
    case TOKEN_FILE:
        p->token_file = text;
        break;
    case LOG_DIR:
        o->log_dir = text;
        break;
    case 't':
        p->tee = true;
        if (strcmp(text, "3") != 0) {
            argp_error(state, "--tee is \"%s\": 3, both streams, is all there is", text);
        }
        break;
    case NO_PYTHON:
        break;
    case ARGP_KEY_ARG: /* the program; what follows belongs to it */
        o->program = &state->argv[state->next - 1];
        o->command = p->token ? NULL : command_line(state->argv + 1, state->next - 2);
        state->next = state->argc;
        break;
    case ARGP_KEY_END:
        complete_options(state, p);
        break;
    default:
        return parse_number(key, text, state, o) || refuse_option(key, state) ? 0
                                                                              : ARGP_ERR_UNKNOWN;
    }
    return 0;
}

void run_options_parse(run_options *o, int argc, char **argv) {
    static const struct argp description = {
        option_list,
        parse_option,
        "PROGRAM [ARGUMENTS...]",
        "Starts PROGRAM as several ranks and ends with all of them. When one fails, all are ended, "
        "the "
        "first failure is reported, and all start again while there are restarts left.\v"
        "On two hosts, on each of them:\n"
        "  tern run --nnodes 2 -n 4 --rdzv-endpoint host1:29400 ./train\n"
        "\n"
        "Each rank finds its place in RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, "
        "MASTER_ADDR, MASTER_PORT and TERN_RESTART_COUNT; tn_dist_init reads them.\n"
        "\n"
        "The exit status is 0 when all ranks have ended with 0; else the first failure's: its exit "
        "code, or 128 + its signal. 128 + the signal that ended the launcher; 126 and 127 when "
        "PROGRAM is none or is not there; 64 for wrong options; 75 when the job has ended well, "
        "but nothing ran on this host; 1 when hosts were lost or did not come, when the job had no "
        "place for this one, or when not all output could be written.",
        NULL,
        NULL,
        NULL,
    };
    *o = (run_options){
        .min_nodes = 1,
        .max_nodes = 1,
        .ranks = 1,
        .node_rank = -1,
        .run_id = "job",
        .monitor = 0.1,
        .heartbeat = 10,
        .timeout = 600,
        .last_call = 3,
        .grace = 5,
    };
    if (gethostname(o->node_name, sizeof(o->node_name) - 1) != 0 || !*o->node_name) {
        strcpy(o->node_name, "host");
    }
    for (char *c = o->node_name; *c; c++) { /* a word of run_words.h */
        *c = (char)(*c > ' ' && *c < 127 ? *c : '?');
    }
    parsing p = {.o = o};
    list_options();
    argp_parse(&description, argc, argv, ARGP_IN_ORDER, NULL, &p);
}

/* ---- Small things ---------------------------------------------------------------------------- */

static _Noreturn void no_memory(void) {
    static const char text[] = "tern: no memory\n";
    ssize_t put = write(STDERR_FILENO, text, sizeof(text) - 1);
    (void)put;
    _exit(1);
}

char *text_new(const char *format, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) {
        no_memory();
    }
    va_end(arguments);
    return text;
}

void *memory_new(size_t count, size_t bytes) {
    void *memory = calloc(count ? count : 1, bytes);
    if (!memory) {
        no_memory();
    }
    return memory;
}

void random_text(char *text, int bytes) {
    unsigned char random[32] = {0};
    for (int got = 0; got < bytes;) {
        ssize_t n = getrandom(random + got, (size_t)(bytes - got), 0);
        got += n > 0 ? (int)n : 0;
    }
    for (int i = 0; i < bytes; i++) {
        sprintf(text + 2 * i, "%02x", random[i]);
    }
}
