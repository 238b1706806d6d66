/* What the shards of `tern tokens` depend on, as a digest. */
#include "core/buffer.h"
#include "data/corpus/tokens.h"
#include "data/corpus/tokens_json.h"
#include "data/tokenizer/tokenizer.h"

#include <inttypes.h>

static void put_option(tn__buffer *b, const char *name, const char *text) {
    tn__buffer_format(b, "%s %d ", name, text != NULL);
    tn__buffer_text(b, text ? text : "");
    tn__buffer_text(b, "\n");
}

bool tn__tokens_fingerprint(const tn_tokenizer *t, int32_t eot, const tn_tokens_options *o,
                            const tn__sources *texts, char *digits) {
    tn__buffer b = {.operation = "tokens"};
    const tn_corpus_options *c = &o->corpus;
    tn__buffer_format(&b, "tern %d.%d.%d\n", TN_VERSION_MAJOR, TN_VERSION_MINOR, TN_VERSION_PATCH);
    tn__buffer_format(&b, "eot %" PRId32 " val %a %" PRId64 " seed %" PRIu64, eot, o->val,
                      o->val_documents, o->seed);
    tn__buffer_format(&b, " shard %" PRId64 " pairs %d\n", o->shard_bytes, c->pairs);
    put_option(&b, "key", c->key);
    put_option(&b, "prompt", c->prompt);
    put_option(&b, "completion", c->completion);
    put_option(&b, "split", c->split);
    for (int64_t i = 0; i < texts->count; i++) {
        const tn__source_file *text = &texts->list[i];
        tn__buffer_format(&b, "file %" PRId64 " %" PRId64 " ", text->bytes, text->time);
        tn__buffer_text(&b, text->path);
        tn__buffer_text(&b, "\n");
    }
    bool done = tn__tokenizer_put(&b, t) && !b.failed;
    if (done) { tn__digest_of(b.at, b.bytes, digits); }
    tn__buffer_free(&b);
    return done;
}
