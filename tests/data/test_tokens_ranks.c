/* Texts to shards on several ranks, which are threads here: the bytes are those of one, for any
 * number of them, and a message that is not a batch's is an error. */
#include "data/corpus/exchange.h"

#include <pthread.h>

#include "tests/data/small_tokenizer.h"
#include "tests/support/test.h"

/* ---- Ranks that are threads ------------------------------------------------------------------ */

enum { MOST_RANKS = 5, QUEUED = 2 /* messages, then the sender waits */ };

typedef struct queue {
    void *data[QUEUED];
    size_t bytes[QUEUED];
    int put, taken;
} queue;

typedef struct job job;
typedef struct rank {
    job *job;
    int number;
    queue up, down; /* to rank 0, and from it */
    tn_status status;
    char why[300];
} rank;

struct job {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over; /* a rank has failed */
    int ranks;
    rank list[MOST_RANKS];
    tn_tokenizer *tokenizer;
    const char *in, *out;
    tn_tokens_options options;
    /* Changes a message on its way. */
    void (*spoil)(void *data, size_t *bytes);
};

static bool wait_while(job *j, const int *full, int at) {
    while (!j->over && *full == at) {
        pthread_cond_wait(&j->changed, &j->lock);
    }
    if (j->over) { tn_raise(TN_EPEER, "another rank has failed"); }
    return !j->over;
}

static bool put_message(job *j, queue *q, const void *data, size_t bytes) {
    pthread_mutex_lock(&j->lock);
    int i = q->put % QUEUED;
    bool free_slot = wait_while(j, &q->taken, q->put - QUEUED);
    if (free_slot) {
        q->data[i] = malloc(bytes + 1);
        assert_non_null(q->data[i]);
        memcpy(q->data[i], data, bytes);
        q->bytes[i] = bytes;
        q->put++;
        pthread_cond_broadcast(&j->changed);
    }
    pthread_mutex_unlock(&j->lock);
    return free_slot;
}

/* The caller frees. */
static void *take_message(job *j, queue *q, size_t *bytes) {
    pthread_mutex_lock(&j->lock);
    void *data = NULL;
    if (wait_while(j, &q->put, q->taken)) {
        int i = q->taken++ % QUEUED;
        data = q->data[i];
        *bytes = q->bytes[i];
        q->data[i] = NULL;
        pthread_cond_broadcast(&j->changed);
    }
    pthread_mutex_unlock(&j->lock);
    return data;
}

static bool tell_ranks(void *user, void *data, size_t bytes) {
    rank *r = user;
    bool told = true;
    for (int i = 1; i < r->job->ranks && r->number == 0 && told; i++) {
        told = put_message(r->job, &r->job->list[i].down, data, bytes);
    }
    if (r->number > 0) {
        size_t got = 0;
        void *message = take_message(r->job, &r->down, &got);
        told = message != NULL;
        if (told) { memcpy(data, message, got); }
        free(message);
    }
    return told;
}

static bool send_message(void *user, const void *data, size_t bytes) {
    rank *r = user;
    return put_message(r->job, &r->up, data, bytes);
}

static bool receive_message(void *user, int from, tn__buffer *to) {
    rank *r = user;
    size_t bytes = 0;
    void *data = take_message(r->job, &r->job->list[from].up, &bytes);
    to->bytes = 0;
    if (data && r->job->spoil) { r->job->spoil(data, &bytes); }
    bool received = data && tn__buffer_add(to, data, bytes);
    free(data);
    return received;
}

static void say_nothing(tn_status status, const char *message) {}

static void *run_rank(void *user) {
    rank *r = user;
    job *j = r->job;
    tn__token_ranks ranks = {.rank = r->number,
                             .ranks = j->ranks,
                             .tell = tell_ranks,
                             .send = send_message,
                             .receive = receive_message,
                             .user = r};
    tn_on_error_thread(say_nothing);
    r->status = tn__tokens_make(j->tokenizer, &j->in, 1, j->out, j->options, &ranks, NULL);
    if (r->status != TN_OK) {
        snprintf(r->why, sizeof(r->why), "%s", tn_error_message());
        tn_error_clear();
        pthread_mutex_lock(&j->lock);
        j->over = true;
        pthread_cond_broadcast(&j->changed);
        pthread_mutex_unlock(&j->lock);
    }
    return NULL;
}

/* Runs them to their end. */
static void run_job(job *j, int ranks) {
    pthread_t threads[MOST_RANKS];
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->changed, NULL);
    j->ranks = ranks;
    j->tokenizer = small_tokenizer();
    for (int i = 0; i < ranks; i++) {
        j->list[i] = (rank){.job = j, .number = i};
    }
    for (int i = 0; i < ranks; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &j->list[i]), 0);
    }
    for (int i = 0; i < ranks; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < ranks; i++) {
        for (int m = 0; m < QUEUED; m++) {
            free(j->list[i].up.data[m]);
            free(j->list[i].down.data[m]);
        }
    }
    tn_tokenizer_free(j->tokenizer);
    pthread_cond_destroy(&j->changed);
    pthread_mutex_destroy(&j->lock);
}

/* ---- Tests ----------------------------------------------------------------------------------- */

/* Enough for a few dozen batches. */
static const char *write_texts(void) {
    FILE *f = fopen(temp_path("in.txt"), "wb");
    assert_non_null(f);
    for (int i = 0; i < 100000; i++) {
        fprintf(f, "%d hello oo%s", i, i % 2 ? "--" : "\n");
    }
    assert_int_equal(fclose(f), 0);
    return temp_path("in.txt");
}

static void same_shards(int ranks) {
    static const char *const names[] = {"train_000000.bin", "train_000001.bin", "train_000002.bin",
                                        "val_000000.bin", "tokens.json"};
    for (int i = 0; i < 5; i++) {
        char one[64], other[64];
        snprintf(one, sizeof(one), "out1/%s", names[i]);
        snprintf(other, sizeof(other), "out%d/%s", ranks, names[i]);
        temp_same(temp_path(one), temp_path(other));
    }
}

static tn_tokens_options many_documents(int threads) {
    tn_tokens_options o =
        TN_WITH(tn_tokens, .val = 0.1, .shard_tokens = 200000, .threads = threads);
    o.corpus.split = "--";
    return o;
}

TEST_WITH(test_any_number, NULL, temp_clean) {
    char in[512], out[512];
    snprintf(in, sizeof(in), "%s", write_texts());
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        job j = {.in = in, .out = out, .options = many_documents(1 + ranks % 3)};
        snprintf(out, sizeof(out), "%s%d", temp_path("out"), ranks);
        run_job(&j, ranks);
        for (int i = 0; i < ranks; i++) {
            assert_string_equal(j.list[i].why, "");
        }
        same_shards(ranks);
    }
}

static void cut_short(void *data, size_t *bytes) {
    *bytes -= 1;
}

static void take_all(void *data, size_t *bytes) {
    *bytes = 0;
}

static void change_text(void *data, size_t *bytes) {
    *(char *)data ^= 1; /* of its digest */
}

static void change_end(void *data, size_t *bytes) {
    memset((char *)data + 64, 0xff, *bytes > 80 ? 8 : 0); /* of the first part */
}

TEST_WITH(test_spoilt, NULL, temp_clean) {
    static const struct {
        void (*spoil)(void *data, size_t *bytes);
        const char *why;
    } cases[] = {
        {cut_short, "that are not a batch's"},
        {take_all, "is not that of rank 0"},
        {change_text, "in.txt: the text that rank 1 has read there is not that of rank 0"},
        {change_end, "rank 1 sent"},
    };
    char in[512], out[512];
    snprintf(in, sizeof(in), "%s", write_texts());
    snprintf(out, sizeof(out), "%s", temp_path("out"));
    for (int i = 0; i < 4; i++) {
        job j = {.in = in, .out = out, .options = many_documents(2), .spoil = cases[i].spoil};
        run_job(&j, 3);
        assert_true(strstr(j.list[0].why, cases[i].why));
        assert_int_equal(j.list[1].status, TN_EPEER);
        assert_int_equal(j.list[2].status, TN_EPEER);
    }
}
