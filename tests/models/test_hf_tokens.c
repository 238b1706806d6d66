/* bos_token_id and eos_token_id of the config.json that a save writes: what the tokenizer's files
 * say, and never a token that the model lacks. */
#include "tern/tern.h"

#include <stdlib.h>
#include <sys/stat.h>

#include "tests/support/temp.h"
#include "tests/support/test.h"

enum { VOCAB = 300, END = 256 }; /* the tokenizer: 256 bytes, then <|endoftext|> */

static void save_model(bool llama, int64_t vocab, const char *folder, const char *tokenizer) {
    tn_lm_save_options o = TN_WITH(tn_lm_save, .tokenizer = tokenizer);
    if (llama) {
        tn_llama m;
        tn_llama_init(&m, TN_WITH(tn_llama, .vocab = vocab, .context = 4, .layers = 1, .heads = 1,
                                  .kv_heads = 1, .width = 4, .hidden = 4,
                                  .rotary = tn_rotary_defaults(), .eps = 1e-5));
        assert_int_equal(tn_lm_save_with(&m, folder, o), TN_OK);
        tn_module_finish(&m);
    } else {
        tn_gpt m;
        tn_gpt_init(&m, TN_WITH(tn_gpt, .vocab = vocab, .context = 4, .layers = 1, .heads = 1,
                                .width = 4, .bias = true, .activation = TN_ACT_GELU_TANH));
        assert_int_equal(tn_lm_save_with(&m, folder, o), TN_OK);
        tn_module_finish(&m);
    }
}

static void write_in(const char *folder, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", temp_path(folder), name);
    temp_write(path, text, strlen(text));
}

static void new_tokenizer(const char *folder) {
    tn_tokenizer_train_options o = TN_WITH(tn_tokenizer_train, .vocab = END + 1);
    tn_tokenizer *t = tn_tokenizer_train(NULL, NULL, 0, o);
    assert_non_null(t);
    assert_int_equal(tn_tokenizer_special(t, "<|endoftext|>"), END);
    assert_int_equal(tn_tokenizer_save(t, temp_path(folder)), TN_OK);
    tn_tokenizer_free(t);
}

/* The folder's config has these ids, and a model loads from it. */
static void expect_tokens(const char *folder, const char *begin, const char *end) {
    char path[256], wanted[256];
    size_t bytes;
    snprintf(path, sizeof(path), "%s/config.json", temp_path(folder));
    char *text = (char *)temp_read(path, &bytes);
    snprintf(wanted, sizeof(wanted), "\"bos_token_id\": %s,\n  \"eos_token_id\": %s,\n", begin,
             end);
    text = realloc(text, bytes + 1);
    text[bytes] = 0;
    if (!strstr(text, wanted)) { fail_msg("%s is not in %s", wanted, text); }
    free(text);
    tn_module *m = tn_lm_load(temp_path(folder), tn_lm_load_defaults());
    assert_non_null(m);
    tn_module_free(m);
}

TEST_WITH(what_the_tokenizer_says, NULL, temp_clean) {
    for (int llama = 0; llama < 2; llama++) {
        save_model(llama, VOCAB, temp_path("none"), NULL);
        expect_tokens("none", "null", "null");
        new_tokenizer("own");
        save_model(llama, VOCAB, temp_path("own"), NULL);
        expect_tokens("own", "256", "256");
        save_model(llama, VOCAB, temp_path("other"), temp_path("own"));
        expect_tokens("other", "256", "256");
        assert_int_equal(access(temp_path("other/tokenizer.json"), F_OK), 0);
        save_model(llama, END, temp_path("own"), NULL); /* which the model lacks */
        expect_tokens("own", "null", "null");
        write_in("own", "tokenizer_config.json",
                 "{\"bos_token\":null,\"eos_token\":{\"content\":\"<|endoftext|>\"}}");
        save_model(llama, VOCAB, temp_path("own"), NULL);
        expect_tokens("own", "null", "256");
        assert_int_equal(unlink(temp_path("own/tokenizer_config.json")), 0);
        save_model(llama, VOCAB, temp_path("own"), NULL);
        expect_tokens("own", "null", "256");
        temp_clean(NULL);
    }
}

/* None of a list is lost in silence, and one that is repeated is one. */
TEST_WITH(many_ends, NULL, temp_clean) {
    char text[600] = "{\"eos_token_id\":[7,7,7", wanted[600] = "[7";
    tn_lm_specials s;
    for (int i = 1; i < TN_LM_ENDS; i++) {
        sprintf(text + strlen(text), ",%d,%d", 100 + i, 100 + i);
        sprintf(wanted + strlen(wanted), ", %d", 100 + i);
    }
    size_t length = strlen(text);
    strcpy(text + length, "]}");
    strcat(wanted, "]");
    save_model(false, VOCAB, temp_path("own"), NULL);
    write_in("own", "generation_config.json", text);
    save_model(false, VOCAB, temp_path("own"), NULL);
    expect_tokens("own", "null", wanted);
    tn_module *m = tn_lm_load(temp_path("own"), tn_lm_load_defaults());
    assert_int_equal(tn_lm_specials_of(m, NULL, temp_path("own"), &s), TN_OK);
    assert_int_equal(s.end_count, TN_LM_ENDS);
    assert_int_equal(s.ends[0], 7);
    assert_int_equal(s.ends[TN_LM_ENDS - 1], 100 + TN_LM_ENDS - 1);
    strcpy(text + length, ",5000,9]}");
    write_in("own", "generation_config.json", text);
    static const char part[] = "generation_config.json: \"eos_token_id\" names more than 64 tokens";
    assert_fails(tn_lm_specials_of(m, NULL, temp_path("own"), &s), TN_EUNSUPPORTED, part);
    assert_fails(tn_lm_save(m, temp_path("own")), TN_EUNSUPPORTED, part);
    tn_module_free(m);
}

TEST_WITH(what_other_files_say, NULL, temp_clean) {
    new_tokenizer("own");
    write_in("own", "generation_config.json", "{\"bos_token_id\":7,\"eos_token_id\":[8,5000,9]}");
    save_model(false, VOCAB, temp_path("own"), NULL);
    expect_tokens("own", "7", "[8, 9]");
    write_in("own", "generation_config.json", "{\"eos_token_id\":[8]}");
    save_model(true, VOCAB, temp_path("own"), NULL);
    expect_tokens("own", "256", "8");
    write_in("own", "generation_config.json", "{"); /* has no ids, and stays */
    write_in("own", "config.json",
             "{\"bos_token_id\":3,\"eos_token_id\":4}"); /* of another model */
    save_model(false, VOCAB, temp_path("own"), NULL);
    expect_tokens("own", "256", "256");
    save_model(false, VOCAB, temp_path("copy"), temp_path("own"));
    expect_tokens("copy", "256", "256");
    mkdir(temp_path("old"), 0777);
    write_in("old", "config.json", "{\"bos_token_id\":3,\"eos_token_id\":4}");
    save_model(false, VOCAB, temp_path("old"), NULL);
    expect_tokens("old", "3", "4");
    mkdir(temp_path("old/weights.tmp"), 0777); /* a save was interrupted */
    assert_int_equal(rename(temp_path("old/config.json"), temp_path("old/weights.tmp/config.json")),
                     0);
    save_model(false, VOCAB, temp_path("copy"), temp_path("old"));
    expect_tokens("copy", "3", "4");
    save_model(false, VOCAB, temp_path("old"), NULL);
    expect_tokens("old", "3", "4");
    write_in("old", "tokenizer.json", "{"); /* of an unsupported kind */
    save_model(false, VOCAB, temp_path("old"), NULL);
    expect_tokens("old", "3", "4");
}
