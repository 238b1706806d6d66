/* Texts to shards on several ranks, which are threads here: the bytes are those of one, for any
 * number of them, and those of a run that was interrupted are kept whoever makes the rest. */
#include "data/corpus/tokens.h"
#include "tern/distributed.h"

#include "tests/data/small_tokenizer.h"
#include "tests/support/test.h"

typedef struct job {
    tn_tokenizer *tokenizer;
    const char *in;
    const char *outs[5]; /* of each rank */
    tn_tokens_options options;
    uint64_t seeds[5]; /* added to the options' */
    tn_tokens_made made[5];
} job;

static bool tell_ranks(void *user, void *data, size_t bytes) {
    TN_SCOPE;
    tn_tensor *t = tn_from_memory(data, TN_DIMS((int64_t)bytes), TN_U8, NULL, NULL);
    return tn_work_wait(tn_broadcast(user, t, 0), 0) == TN_OK;
}

static bool meet_ranks(void *user) {
    return tn_barrier(user) == TN_OK;
}

static void make_share(tn_group *world, void *user) {
    job *j = user;
    int rank = tn_group_rank(world);
    tn__token_ranks ranks = {.rank = rank,
                             .ranks = tn_group_size(world),
                             .tell = tell_ranks,
                             .meet = meet_ranks,
                             .user = world};
    tn_tokens_options o = j->options;
    o.seed += j->seeds[rank];
    tn__tokens_make(j->tokenizer, &j->in, 1, j->outs[rank], o, &ranks, &j->made[rank]);
}

/* Enough for a few dozen batches. Many documents, in 11 shards and one for validation. */
static job begin_job(void) {
    static char in[512];
    FILE *f = fopen(temp_path("in.txt"), "wb");
    assert_non_null(f);
    for (int i = 0; i < 100000; i++) {
        fprintf(f, "%d hello oo%s", i, i % 2 ? "--" : "\n");
    }
    assert_int_equal(fclose(f), 0);
    snprintf(in, sizeof(in), "%s", temp_path("in.txt"));
    job j = {.tokenizer = small_tokenizer(),
             .in = in,
             .options = TN_WITH(tn_tokens, .val = 0.05, .shard_bytes = 150000, .threads = 2)};
    j.options.corpus.split = "--";
    return j;
}

static tn_status run_job(job *j, int ranks, const char *out) {
    for (int i = 0; i < ranks; i++) {
        j->outs[i] = j->outs[i] ? j->outs[i] : out;
    }
    tn_status status = tn_local_run(ranks, make_share, j);
    memset(j->outs, 0, sizeof(j->outs));
    return status;
}

enum { SHARDS = 12 };

TEST_WITH(test_any_number, NULL, temp_clean) {
    char one[512], out[512];
    job j = begin_job();
    snprintf(one, sizeof(one), "%s", temp_path("one"));
    assert_int_equal(tn_tokens_make(j.tokenizer, &j.in, 1, one, j.options, NULL), TN_OK);
    for (int ranks = 1; ranks <= 5; ranks++) {
        snprintf(out, sizeof(out), "%s%d", temp_path("out"), ranks);
        j.options.threads = 1 + ranks % 3;
        assert_int_equal(run_job(&j, ranks, out), TN_OK);
        assert_int_equal(temp_same_folders(one, out), SHARDS + 1);
        for (int i = 0; i < ranks; i++) {
            assert_int_equal(j.made[i].train_shards + j.made[i].val_shards, SHARDS);
            assert_int_equal(j.made[i].documents, 50000);
        }
    }
    tn_tokenizer_free(j.tokenizer);
}

static void change_byte(const char *folder, const char *name, long at) {
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc('x', f);
    assert_int_equal(fclose(f), 0);
}

/* Three ranks, of which one was killed with its first shard and another's is of other texts; then
 * two. */
TEST_WITH(test_goes_on, NULL, temp_clean) {
    static const char unfinished[] = "{\"format\": \"tern-tokens-1\", \"finished\": false}\n";
    char one[512], out[512], path[600];
    job j = begin_job();
    snprintf(one, sizeof(one), "%s", temp_path("one"));
    snprintf(out, sizeof(out), "%s", temp_path("out"));
    assert_int_equal(run_job(&j, 1, one), TN_OK);
    assert_int_equal(run_job(&j, 3, out), TN_OK);
    snprintf(path, sizeof(path), "%s/tokens.json", out);
    temp_write(path, unfinished, strlen(unfinished));
    for (int i = 1; i < 11; i += 3) {
        snprintf(path, sizeof(path), "%s/train_%06d.bin", out, i);
        assert_int_equal(unlink(path), 0);
    }
    change_byte(out, "train_000002.bin", 50);
    assert_int_equal(run_job(&j, 2, out), TN_OK);
    assert_int_equal(temp_same_folders(one, out), SHARDS + 1);
    assert_int_equal(j.made[1].kept, SHARDS - 5);
    tn_tokenizer_free(j.tokenizer);
}

TEST_WITH(test_what_differs, NULL, temp_clean) {
    char out[512], other[512];
    job j = begin_job();
    snprintf(out, sizeof(out), "%s", temp_path("out"));
    snprintf(other, sizeof(other), "%s", temp_path(""));
    j.seeds[1] = 1;
    assert_fails(run_job(&j, 2, out), TN_EMISMATCH, "rank 1 has texts of other names, sizes");
    j.seeds[1] = 0;
    j.outs[1] = other;
    assert_fails(run_job(&j, 2, out), TN_EIO,
                 "train_000001.bin is missing: rank 1 wrote it into another folder");
    assert_none(tn_token_shards(temp_path("out/train_*.bin"), 4, 263), TN_EFORMAT,
                "is one of an unfinished set");
    tn_tokenizer_free(j.tokenizer);
}
