/* The options of `tern run`, with torchrun's names where it has them; checked before anything
 * starts. */
#include "core/build_info.h"
#include "core/error.h"
#include "core/plain_text.h"
#include "distributed/init/environment.h"
#include "distributed/store/ports.h"
#include "text/number.h"
#include "text/quote.h"
#include "tools/run.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tern/train.h>
#include <unistd.h>

enum { DEFAULT_PORT = 29400 /* torchrun's */, LONGEST = 1000000, DRIVER_SECONDS = 20 };

/* Which hosts there are, and where they meet. */
typedef struct place {
    int min_nodes, max_nodes; /* 0: not given */
    bool standalone;
    const char *endpoint, *address; /* NULL: not given */
    int64_t port;                   /* 0: not given */
    int64_t node_rank;              /* -1: not given */
} place;

/* What the table fills in; run_options_parse completes it. */
static run_options asked = {.node = {.ranks = 1},
                            .monitor = 0.1,
                            .heartbeat = 10,
                            .timeout = 600,
                            .last_call = 3,
                            .grace = 5};
static const place no_place = {.node_rank = -1};
static place given;
static const char *token, *token_file; /* NULL: not given */
static int64_t max_restarts;
static bool no_python; /* without effect, as these choices are */
static int ignored = -1;

/* ---- Values ---------------------------------------------------------------------------------- */

static int read_whole(const char *name, const char *text, int least, int most) {
    int64_t value;
    if (!tn__whole_from(text, &value) || value < least || value > most) {
        tn_options_refuse("--%s: \"%s\" should be a whole number from %d to %d", name, text, least,
                          most);
    }
    return (int)value;
}

static void read_nodes(const char *text, void *unused) {
    const char *colon = strchr(text, ':');
    char *first = text_new("%.*s", (int)strcspn(text, ":"), text);
    given.min_nodes = read_whole("nnodes", first, 1, MOST_NODES);
    given.max_nodes = colon ? read_whole("nnodes", colon + 1, 1, MOST_NODES) : given.min_nodes;
    free(first);
    if (given.min_nodes > given.max_nodes) {
        tn_options_refuse("--nnodes is \"%s\": the first number must be the smaller one", text);
    }
}

/* A child looks: a driver may start threads, take memory, or hang. */
static int count_gpus(void) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        alarm(DRIVER_SECONDS);
        int count = tn_device_count(TN_CUDA);
        _exit(count < 255 ? count : 255);
    }
    bool ended = child > 0 && waitpid(child, &status, 0) == child;
    return ended && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static void read_ranks(const char *text, void *unused) {
    int *ranks = &asked.node.ranks;
    bool gpu = strcmp(text, "gpu") == 0, any = strcmp(text, "auto") == 0;
    int gpus = gpu || any ? count_gpus() : 0;
    if (gpu && gpus == 0) {
        tn_options_refuse("--nproc-per-node is \"gpu\", but there is no GPU (tern info says why)");
    }
    cpu_set_t cores;
    if (gpus > 0) {
        *ranks = gpus;
    } else if (gpu || any || strcmp(text, "cpu") == 0) {
        *ranks = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
    } else {
        *ranks = read_whole("nproc-per-node", text, 1, MOST_RANKS);
    }
}

/* torchrun's rendezvous: "NAME=SECONDS,...". */
static void read_conf(const char *text, void *unused) {
    char *words = text_new("%s", text), *rest = words;
    for (char *word; (word = strsep(&rest, ","));) {
        word += strspn(word, " ");
        char *value = strchr(word, '=');
        size_t length = value ? (size_t)(value - word) : strlen(word);
        char *name = text_new("%.*s", (int)length, word);
        double *field = strcmp(name, "join_timeout") == 0 || strcmp(name, "timeout") == 0
                            ? &asked.timeout
                        : strcmp(name, "last_call_timeout") == 0 ? &asked.last_call
                                                                 : NULL;
        if (!field || !value) {
            tn_options_refuse(
                "--rdzv-conf has \"%s\": only join_timeout=S and last_call_timeout=S are accepted "
                "(the launcher at the endpoint's address serves the store)",
                word);
        } else if (!tn__real_from(value + 1, field) || !(*field >= 0 && *field <= LONGEST)) {
            tn_options_refuse("--rdzv-conf: \"%s\" should be a number of seconds", value + 1);
        }
        free(name);
    }
    free(words);
}

/* It becomes part of folders and keys. */
static void read_id(const char *text, void *unused) {
    char *id = asked.node.run_id;
    size_t length = strlen(text), size = sizeof(asked.node.run_id);
    bool plain = length > 0 && length < size && text[0] != '.';
    for (size_t i = 0; i < length; i++) {
        plain = plain && (isalnum((unsigned char)text[i]) || strchr("-_.", text[i]));
    }
    if (!plain) {
        tn_options_refuse("--rdzv-id is \"%s\": must be at most %zu letters, digits and - _ .",
                          text, size - 1);
    }
    snprintf(id, size, "%s", text);
}

static void take_token(const char *text) {
    size_t size = sizeof(asked.token);
    if (!*text || strlen(text) >= size) {
        tn_options_refuse("the token has %zu characters (must be 1 to %zu)", strlen(text),
                          size - 1);
    }
    snprintf(asked.token, size, "%s", text);
}

/* The ranks find them in the environment, and so does whatever listens in this process. */
static void read_ports(const char *text, void *unused) {
    tn__ports ports;
    if (tn__ports_read("--ports", text, &ports, NULL) != TN_OK) {
        tn_options_refuse("%s", tn__error_why());
    }
    setenv("TERN_PORTS", text, 1);
}

/* "host", "host:port", "[::1]:port"; without a port it is -1. */
static void take_endpoint(const char *text) {
    run_options *o = &asked;
    bool bracket = *text == '[';
    const char *host = text + bracket, *end = host + strcspn(host, bracket ? "]" : ":");
    const char *after = end + (bracket && *end), *port = *after == ':' ? after + 1 : NULL;
    if (end == host || (size_t)(end - host) >= sizeof(o->host) || (*after && !port) ||
        (bracket && !*end)) {
        tn_options_refuse("the endpoint is \"%s\": should be HOST:PORT or [ADDRESS]:PORT", text);
    }
    snprintf(o->host, sizeof(o->host), "%.*s", (int)(end - host), host);
    o->port = port ? read_whole("rdzv-endpoint's port", port, 0, 65535) : -1;
}

/* ---- All together ---------------------------------------------------------------------------- */

/* Anyone with the token may join. If none is given, a job on one host makes a random one; on
 * several it takes the user's own, which is the same wherever the home is shared. Of a secret in a
 * file the ranks see only what is derived from it for this job. */
static void choose_token(void) {
    run_options *o = &asked;
    const char *const *variables = (const char *const *)environ;
    char secret[TN__TOKEN];
    const char *text = token ? token : tn__variable(variables, "TERN_TOKEN"), *file = token_file;
    if (!file && !text) { file = tn__variable(variables, "TERN_TOKEN_FILE"); }
    if (token && token_file) {
        tn_options_refuse("--token and --token-file are alternatives: give one");
    }
    if (o->alone || (o->node.max == 1 && !file && !text)) {
        random_text(o->token, 16);
        return;
    }
    if (!file && text) {
        take_token(text);
        return;
    }
    o->own_token = !file;
    if ((file ? tn__token_read(file, secret) : tn__token_user(secret)) != TN_OK) {
        tn_options_refuse("no token: %s (--token-file or TERN_TOKEN gives the job its own)",
                          tn__error_why());
    }
    tn__token_derive(secret, o->node.run_id, o->token);
}

/* The launchers' port is among those that a firewall lets through. */
static void choose_port(void) {
    run_options *o = &asked;
    tn__ports open;
    if (tn__ports_find(&open, NULL) != TN_OK) { tn_options_refuse("%s", tn__error_why()); }
    if (o->port < 0) {
        o->port = open.first ? open.first : DEFAULT_PORT;
    } else if (o->port > 0 && !tn__ports_have(&open, o->port)) {
        tn_options_refuse("the launchers' port is %d, which is not one of the ports %d-%d "
                          "(--ports, TERN_PORTS)",
                          o->port, open.first, open.last);
    }
}

/* Where the hosts meet. In torchrun, port 0 (any free port) of this host means that there is no
 * other host. */
static void choose_place(void) {
    run_options *o = &asked;
    o->node.min = given.min_nodes ? given.min_nodes : 1;
    o->node.max = given.max_nodes ? given.max_nodes : 1;
    o->node.wanted = (int)given.node_rank;
    if (given.endpoint && (given.address || given.port)) {
        tn_options_refuse(
            "--rdzv-endpoint and --master-addr, --master-port are alternatives: give one");
    }
    char *parts = given.address ? text_new("[%s]", given.address) : NULL;
    const char *endpoint = parts ? parts : given.endpoint;
    take_endpoint(endpoint ? endpoint : "127.0.0.1:0");
    free(parts);
    if (given.port) { o->port = (int)given.port; }
    o->alone = !endpoint || o->port == 0;
    if (endpoint && o->alone && (o->node.max > 1 || !tn__host_is_near(o->host))) {
        tn_options_refuse("--rdzv-endpoint is \"%s\": port 0 (any free port) works only with one "
                          "host, on localhost",
                          given.endpoint);
    }
    choose_port();
    if (o->alone && o->node.max > 1) {
        tn_options_refuse("--nnodes %d:%d needs --rdzv-endpoint HOST:PORT, where the hosts meet",
                          o->node.min, o->node.max);
    }
    if (o->node.wanted >= o->node.max) {
        tn_options_refuse("--node-rank is %d, but there are at most %d hosts", o->node.wanted,
                          o->node.max);
    }
}

/* Refuses to start a separate job on each of several hosts by mistake; says that the other hosts of
 * a batch job stay idle. */
static void check_hosts(void) {
    char text[TN__SEVERAL];
    const char *const *variables = (const char *const *)environ;
    if (given.min_nodes || given.standalone) { return; }
    if (tn__environment_unstarted(variables, text)) {
        fprintf(stderr,
                "tern run: %s, but this launcher was started without srun, and uses this host "
                "alone (--standalone: on purpose)\n",
                text);
    }
    if (tn__environment_hosts(variables, text)) {
        tn_options_refuse(
            "%s: give --nnodes and --rdzv-endpoint HOST:PORT, the same on each of them (or "
            "--standalone: only this host)",
            text);
    }
}

static void complete_options(void) {
    run_options *o = &asked;
    if (!o->program) {
        tn_options_refuse("no program to start");
        return;
    }
    if (given.standalone && (given.max_nodes > 1 || given.endpoint || given.address)) {
        tn_options_refuse("--standalone means one host, without --nnodes or an endpoint");
    }
    check_hosts();
    choose_place();
    if (o->monitor < 0.01 || o->heartbeat < 3 * o->monitor) {
        tn_options_refuse(
            "--monitor-interval is %g, --heartbeat %g: at least 0.01, and three times that",
            o->monitor, o->heartbeat);
    }
    if (token) { take_token(token); /* a bad one is refused even if it is not needed */ }
    char here[4096];
    if (o->log_dir && o->log_dir[0] != '/' && getcwd(here, sizeof(here))) {
        o->log_dir = text_new("%s/%s", here, o->log_dir); /* a rank may change its directory */
    }
    o->path = find_program(o->program[0]);
    if (!*o->node.run_id && o->alone) { random_text(o->node.run_id, 4); }
    if (!*o->node.run_id) { strcpy(o->node.run_id, "job"); }
    choose_token();
}

/* `tern run` and its options. */
static char *command_line(char **options, ptrdiff_t count) {
    char *command = tn__shell_line(&program_invocation_name, 1);
    char *rest = tn__shell_line(options, (int)count);
    char *line = text_new("%s run%s%s", command, count > 0 ? " " : "", rest);
    free(command);
    free(rest);
    return line;
}

static const char about[] =
    "Starts PROGRAM as several ranks and ends with all of them. When one fails, all are ended, the "
    "first failure is reported, and all start again while there are restarts left.\v"
    "On two hosts, on each of them:\n"
    "  tern run --nnodes 2 -n 4 --rdzv-endpoint host1:29400 ./train\n"
    "\n"
    "Each rank finds its number and address in RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
    "GROUP_RANK, MASTER_ADDR, MASTER_PORT and TERN_RESTART_COUNT; tn_dist_init reads them.\n"
    "\n"
    "The exit status is 0 when all ranks have exited with 0; else the first failure's exit code, "
    "or 128 + its signal; 128 + the signal that ended the launcher; 126 and 127 when PROGRAM "
    "cannot be started or does not exist; 64 for wrong options; 75 when the job has succeeded but "
    "nothing ran on this host; 1 when hosts were lost or did not arrive, when the job had no place "
    "for this one, or when not all output could be written.";

static const char *const both_streams[] = {"3", NULL}, *const backends[] = {"c10d", "static", NULL};

static const tn_option taken[] = {
    {.value = "PROGRAM [ARGUMENTS...]", .rest = &asked.program},
    {"nproc-per-node", 'n', "N",
     "ranks on this host (1); \"gpu\": one per GPU; \"cpu\": one per core; \"auto\": \"gpu\" if "
     "there are GPUs, else \"cpu\"",
     .read = read_ranks},
    {"max-restarts", 0, "N", "how often all start again after a failure", .whole = &max_restarts,
     .zero = true, .most = 1000000},
    {"log-dir", 0, "DIR",
     "also write DIR/ID/attempt_K/RANK/stdout.log and stderr.log; flight records go there",
     .text = &asked.log_dir},
    {"tee", 't', "3", "no effect: both streams are always shown, and --log-dir has files for them",
     .choice = &ignored, .choices = both_streams},
    {"no-python", 0, NULL, "no effect: PROGRAM is always started as it is", .flag = &no_python},
    {"grace", 0, "S", "seconds between SIGTERM and SIGKILL for the ranks", .real = &asked.grace,
     .zero = true, .most = LONGEST},
    {"shutdown-timeout", 0, "S", "the same as --grace", .real = &asked.grace, .zero = true,
     .most = LONGEST},
    {.help = ""},
    {"nnodes", 0, "N or MIN:MAX", "hosts, each with its own `tern run` (1)", .read = read_nodes},
    {"rdzv-endpoint", 0, "HOST:PORT",
     "where the launchers meet: the one at this address serves the store (port 29400)",
     .text = &given.endpoint},
    {"rdzv-backend", 0, "c10d|static",
     "no effect: the launchers always meet in a store that one of them serves", .choice = &ignored,
     .choices = backends},
    {"rdzv-conf", 0, "NAME=S,...", "join_timeout: --timeout; last_call_timeout: --last-call",
     .read = read_conf},
    {"rdzv-id", 0, "ID", "name of the job", .read = read_id},
    {"standalone", 0, NULL, "one host, any free port", .flag = &given.standalone},
    {"node-rank", 0, "R", "this host's number; 0 serves the store (by arrival)",
     .whole = &given.node_rank, .zero = true, .most = MOST_NODES - 1},
    {"master-addr", 0, "HOST", "the same as --rdzv-endpoint, in two parts", .text = &given.address},
    {"master-port", 0, "PORT", .whole = &given.port, .most = 65535},
    {"ports", 0, "FIRST-LAST",
     "all that listens, here and in the ranks, takes one of these ports (TERN_PORTS): what a "
     "firewall lets through",
     .read = read_ports},
    {"token", 0, "TEXT",
     "anyone who has it may join; better in TERN_TOKEN, since others on the host can see arguments",
     .text = &token},
    {"token-file", 0, "FILE",
     "the token is derived from this file, which only you may read (else TERN_TOKEN, "
     "TERN_TOKEN_FILE, the user's own)",
     .text = &token_file},
    {.help = ""},
    {"timeout", 0, "S", "seconds to wait for enough hosts", .real = &asked.timeout, .zero = true,
     .most = LONGEST},
    {"last-call", 0, "S", "seconds to wait for more than MIN hosts", .real = &asked.last_call,
     .zero = true, .most = LONGEST},
    {"heartbeat", 0, "S", "a host that is silent for this long is lost", .real = &asked.heartbeat,
     .zero = true, .most = LONGEST},
    {"monitor-interval", 0, "S", "seconds between two checks of the other hosts",
     .real = &asked.monitor, .zero = true, .most = LONGEST},
    {0},
};

/* ---- The environment ------------------------------------------------------------------------- */

/* "PET_NODE_RANK" */
static const char *variable_for(const tn_option *row) {
    char *name = text_new("PET_%s", row->name);
    for (char *c = name; *c; c++) {
        *c = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
    }
    const char *value = tn__variable((const char *const *)environ, name);
    free(name);
    return value;
}

static int add_sagemaker(char **words) {
    tn__sagemaker s;
    if (!tn__environment_sagemaker((const char *const *)environ, &s) || s.hosts < 2) { return 0; }
    int count = 0;
    words[count++] = text_new("--nnodes=%d", (int)s.hosts);
    words[count++] = text_new("--node-rank=%d", (int)s.index);
    words[count++] = text_new("--rdzv-endpoint=%s", s.first);
    if (s.gpus > 0) { words[count++] = text_new("--nproc-per-node=%d", (int)s.gpus); }
    if (*s.interface) { setenv("TERN_INTERFACE", s.interface, 0); }
    return count;
}

/* The command and the options that its environment gives: torchrun's PET_NAME in the place of
 * --name, which Kubeflow sets, and SageMaker's list of hosts. */
static char **environment_words(char *command, int *count) {
    enum { MOST = 64 };
    static char *words[MOST]; /* options keep pointing into them */
    words[0] = command;
    *count = 1;
    for (const tn_option *row = taken; row->name || row->help || row->value; row++) {
        const char *value = row->name ? variable_for(row) : NULL;
        if (value && !row->flag) {
            words[(*count)++] = text_new("--%s=%s", row->name, value);
        } else if (value && strcmp(value, "1") == 0) { /* torchrun's way to give a flag */
            words[(*count)++] = text_new("--%s", row->name);
        }
    }
    if (!getenv("PET_NNODES")) { *count += add_sagemaker(words + *count); }
    return words;
}

/* What the environment says of the hosts counts if the command line does not say which there are,
 * and of the endpoint, if it does not say where they meet. */
static void add_environment(const place *e) {
    bool meets = given.endpoint || given.address;
    if (given.min_nodes || given.standalone) { return; }
    given.min_nodes = e->min_nodes;
    given.max_nodes = e->max_nodes;
    given.standalone = e->standalone;
    given.node_rank = given.node_rank >= 0 ? given.node_rank : e->node_rank;
    if (!meets) {
        given.endpoint = e->endpoint;
        given.address = e->endpoint ? NULL : e->address;
    }
    if (!given.endpoint && given.port == 0) { given.port = e->port; }
}

static void describe_node(node_info *n) {
    n->pid = (int)getpid();
    snprintf(n->version, sizeof(n->version), "%s", tn__version_text());
    if (gethostname(n->name, sizeof(n->name) - 1) != 0 || !*n->name) { strcpy(n->name, "host"); }
    for (char *c = n->name; *c; c++) { /* a word of run_words.h */
        *c = (char)(*c > ' ' && *c < 127 ? *c : '?');
    }
}

static void parse_words(int count, char **words) {
    given = no_place;
    memory_needed(tn_options_parse(count, words, about, taken) == TN_OK);
}

void run_options_parse(run_options *o, int argc, char **argv) {
    int count;
    char **words = environment_words(argv[0], &count);
    parse_words(count, words);
    const place environment = given;
    parse_words(argc, argv);
    add_environment(&environment);
    describe_node(&asked.node);
    asked.max_restarts = (int)max_restarts;
    complete_options();
    asked.command = token ? NULL : command_line(argv + 1, asked.program - argv - 1);
    *o = asked;
}
