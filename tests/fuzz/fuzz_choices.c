/* The input is a file of questions with endings. It is refused with an error that names the file,
 * or every question in it has an answer. The model is a table of which token follows which. */
#include "tests/fuzz/bytes.h"

#include "tern/tern.h"
#include "tests/support/byte_vocab.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

enum { CONTEXT = 64 };

static tn_tokenizer *bytes_as_tokens;
static tn_embedding table;

static void free_all(void) {
    tn_tokenizer_free(bytes_as_tokens);
    tn_module_finish(&table);
}

static void make_all(void) {
    char folder[] = "/tmp/tern_fuzz_choices_XXXXXX";
    must_hold(mkdtemp(folder) != NULL, "no folder");
    bytes_as_tokens = byte_vocab_load(folder);
    byte_vocab_remove(folder);
    tn_embedding_init(&table, BYTE_VOCAB, BYTE_VOCAB, tn_embedding_defaults());
    must_hold(bytes_as_tokens && tn_error() == TN_OK, "no model");
    atexit(free_all);
}

static void check_scores(const tn_choice_scores *c) {
    must_hold(c->questions >= 1 && c->endings >= 2 * c->questions, "questions without endings");
    must_hold(c->acc >= 0 && c->acc <= 1 && c->acc_norm >= 0 && c->acc_norm <= 1 &&
                  c->acc_norm_per_token >= 0 && c->acc_norm_per_token <= 1,
              "no share");
}

FUZZ(choices, make_all) {
    bytes_file file = bytes_file_open(data, bytes);
    tn_choice_scores c;
    tn_status status = tn_evaluate_choices(&table, file.path, bytes_as_tokens, CONTEXT,
                                           tn_evaluate_defaults(), &c);
    if (WAS_TAKEN(status == TN_OK, file.path, TN_EFORMAT)) {
        check_scores(&c);
    } else {
        must_hold(c.questions == 0, "a result after an error");
    }
    bytes_file_close(&file);
}
