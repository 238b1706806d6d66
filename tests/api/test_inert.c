/* Every public function, called as no one should: with NULL and inert tensors, with structs of
 * zeros, with numbers outside any range. Nothing may crash, print, hang or leak, and the first
 * error stays.
 *
 * Here: the calls that make_inert.py derives from the headers. Those that need a state or would
 * really do something are in test_inert_by_hand.c. check_complete.py compares both with the
 * headers.
 */
#include "inert.h"

#include <stdlib.h>

/* Valid arguments. */
typedef struct valid {
    tn_tensor *x, *o;      /* (2, 3), F32, and the same in any dtype */
    void *m, *modules[2];  /* a linear layer, 3 to 2; zeros, a finished one */
    void *trained, *lm;    /* as m, with an optimiser; a language model */
    tn_tensor *fields[32]; /* of m; next: the first that is free */
    int next;
    void *bytes; /* 4096 of them */
    tn_ids ids;
    tn_optim *optim;
    tn_loader *loader;
    tn_store *store;
    tn_metrics *metrics;
    tn_scaler *scaler;
    tn_average *average;
    tn_progress *progress;
    tn_safetensors_writer *safetensors_writer;
    tn_rpc *rpc;
    /* Made once, since they take their time. */
    tn_dataset *dataset; /* 2 examples */
    FILE *file;          /* nowhere */
    tn_charset *charset;
    tn_search *search;
    tn_history *history;
    tn_tokenizer *tokenizer;
    tn_safetensors *safetensors; /* with a tensor "a" */
    tn_npz *npz;                 /* the same */
} valid;

static tn_status get_zeros(tn_dataset *self, tn_example e, void *x, void *y) {
    memset(x, 0, 3 * sizeof(float));
    memset(y, 0, 3 * sizeof(float));
    return TN_OK;
}

static tn_tensor *same_tensor(tn_tensor *x) {
    return x;
}

/* Whoever takes it owns it, also where it is refused. */
static void *new_child(void) {
    return tn_function_new("child", same_tensor);
}

static void make_valid(valid *v, tn_dtype other) {
    v->next = 0;
    memset(v->fields, 0, sizeof v->fields);
    v->x = tn_ones(TN_DIMS(2, 3), TN_F32);
    v->o = tn_ones(TN_DIMS(2, 3), other);
    v->m = tn_linear_new(3, 2);
    tn_module_train(v->m, false);
    v->trained = tn_linear_new(3, 2);
    v->optim = tn_sgd(v->trained, TN_WITH(tn_sgd, .lr = 0.1));
    v->loader = tn_loader_new(v->dataset, tn_sequential_sampler(), TN_WITH(tn_loader, .batch = 1));
    v->store = tn_memory_store();
    v->metrics = tn_metrics_new(3, 1);
    v->scaler = tn_scaler_new(tn_scaler_defaults());
    v->average = tn_ema(v->trained, 0.5);
    v->progress = tn_progress_new(v->file, 0, 3, "tok");
    v->safetensors_writer = tn_safetensors_writer_new();
    v->rpc = tn_rpc_new(NULL, tn_rpc_defaults());
}

static void free_valid(valid *v) {
    tn_ids_free(&v->ids);
    tn_rpc_free(v->rpc);
    tn_safetensors_writer_free(v->safetensors_writer);
    tn_progress_free(v->progress);
    tn_average_free(v->average);
    tn_scaler_free(v->scaler);
    tn_metrics_free(v->metrics);
    tn_store_free(v->store);
    tn_loader_free(v->loader);
    tn_optim_free(v->optim);
    tn_module_zero_grad(v->lm);
    tn_module_free(v->trained);
    tn_module_free(v->m);
}

#include "inert_calls.h"

static void open_files(valid *v) {
    const char *text = "a text to train with";
    const size_t bytes = strlen(text);
    tn_tensor *x = tn_ones(TN_DIMS(2, 3), TN_F32);
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_safetensors_writer_add(w, "a", x);
    tn_safetensors_writer_save(w, temp_path("a.safetensors"));
    tn_npz_save((const char *[]){"a"}, &x, 1, temp_path("a.npz"), false);
    v->safetensors = tn_safetensors_open(temp_path("a.safetensors"));
    v->npz = tn_npz_open(temp_path("a.npz"));
    v->tokenizer = tn_tokenizer_train(&text, &bytes, 1, tn_tokenizer_train_defaults());
    v->search = tn_search_new(tn_search_defaults());
    v->history = tn_history_open(temp_path("history.csv"), 0);
    v->charset = tn_charset_from_text("ab", 2);
    v->file = fopen("/dev/null", "w");
    assert_true(v->safetensors && v->npz && v->tokenizer && v->file && v->search && v->history);
}

static void call_derived(valid *v, int i, tn_dtype other) {
    tn_error_clear();
    int64_t alive = tn_live_tensors();
    {
        TN_SCOPE;
        make_valid(v, other);
        if (tn_error() != TN_OK) { add_complaint(__LINE__, derived[i].name, tn_error_message()); }
        if (pending) { tn_raise(TN_EPEER, "the first"); }
        derived[i].call(v);
        tn_error_clear();
        free_valid(v);
    }
    if (tn_live_tensors() != alive) {
        add_complaint(__LINE__, derived[i].name, "tensors are left");
    }
}

PART(derived_calls) {
    static const tn_dtype others[] = {TN_F32, TN_I64, TN_BOOL};
    static const tn_gpt none; /* the largest: zeros for every kind */
    static char bytes[4096];
    tn_gpt zeros = none, lm;
    tn_linear finished;
    tn_dataset zero = {.kind = "zeros", .size = 2, .get = get_zeros};
    zero.x_dims = zero.y_dims = TN_DIMS(3);
    zero.x_dtype = zero.y_dtype = TN_F32;
    valid v = {.bytes = bytes, .dataset = &zero};
    tn_error_clear();
    tn_linear_init(&finished, 2, 2, tn_linear_defaults());
    tn_module_finish(&finished);
    memset(endless, 'n', sizeof endless - 1);
    tn_gpt_init(&lm,
                TN_WITH(tn_gpt, .vocab = 8, .context = 8, .layers = 1, .heads = 2, .width = 4));
    v.lm = &lm;
    v.modules[0] = &zeros;
    v.modules[1] = &finished;
    open_files(&v);
    for (size_t i = 0; i < sizeof derived / sizeof *derived; i++) {
        for (size_t k = 0; k < (derived[i].others ? 3 : 1); k++) {
            call_derived(&v, (int)i, others[k]);
        }
    }
    tn_history_free(v.history);
    tn_search_end(v.search);
    tn_charset_free(v.charset);
    tn_module_finish(&lm);
    fclose(v.file);
    tn_tokenizer_free(v.tokenizer);
    tn_npz_close(v.npz);
    tn_safetensors_close(v.safetensors);
    tn_error_clear();
}

int main(int argc, char **argv) {
    setenv("TERN_FLIGHT_DIR", "/nowhere", 1); /* no flight recorder files */
    return RUN_PARTS(argc, argv);
}
