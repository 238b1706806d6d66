/* Options that no *_defaults() made are refused by everything that takes them, and the message
 * shows what to write instead. check_options.py compares this file with the headers. */
#include <string.h>

#include <tern/tern.h>

#include "tests/support/test.h"

static tn_values same_values(void *user, tn_values in) {
    return in;
}

/* Checks that the call refused zeroed options. */
static void assert_refused(const char *what, const char *call) {
    char form[80];
    snprintf(form, sizeof(form), "TN_WITH(%s, .", what);
    if (tn_error() != TN_EVALUE || !strstr(tn_error_message(), form)) {
        fail_msg("%s\nsays %s \"%s\" instead of %s", call, tn_status_name(tn_error()),
                 tn_error_message(), form);
    }
    tn_error_clear();
}

/* Makes the call, in which `zeros` are options, without and with a pending error. */
#define REFUSES(what, call)                           \
    do {                                              \
        __typeof__(what##_defaults()) zeros = {0};    \
        assert_true(what##_defaults().from_defaults); \
        assert_true(TN_WITH(what).from_defaults);     \
        (void)(call);                                 \
        assert_refused(#what, #call);                 \
        tn_raise(TN_EPEER, "the first");              \
        (void)(call);                                 \
        assert_error(TN_EPEER, "the first");          \
    } while (0)

#define INIT(what, call) REFUSES(what, (call, tn_module_finish(&m)))
#define NEW(what, call) REFUSES(what, (tn_module_free(call), 0))

typedef union layers {
    tn_module module;
    tn_linear linear;
    tn_embedding embedding;
    tn_layer_norm layer_norm;
    tn_rms_norm rms_norm;
    tn_group_norm group_norm;
    tn_instance_norm1d instance_norm;
    tn_batch_norm1d batch_norm;
    tn_conv1d conv;
    tn_max_pool1d pool;
    tn_upsample upsample;
    tn_rnn rnn;
    tn_rnn_cell rnn_cell;
    tn_self_attention self_attention;
    tn_mlp mlp;
    tn_grouped_attention grouped_attention;
    tn_gated_mlp gated_mlp;
    tn_multi_head_attention multi_head;
    tn_transformer_encoder_layer layer;
    tn_transformer_encoder stack;
    tn_transformer transformer;
    tn_block block;
    tn_gpt gpt;
    tn_llama_block llama_block;
    tn_llama llama;
} layers;

TEST(layers_of_one_operation) {
    layers m;
    tn_dims k = TN_DIMS(1);
    INIT(tn_linear, tn_linear_init(&m.linear, 2, 2, zeros));
    NEW(tn_linear, tn_linear_new_with(2, 2, zeros));
    INIT(tn_embedding, tn_embedding_init(&m.embedding, 2, 2, zeros));
    NEW(tn_embedding, tn_embedding_new_with(2, 2, zeros));
    INIT(tn_conv, tn_conv1d_init(&m.conv, 2, 2, k, zeros));
    INIT(tn_conv, tn_conv2d_init(&m.conv, 2, 2, k, zeros));
    INIT(tn_conv, tn_conv3d_init(&m.conv, 2, 2, k, zeros));
    INIT(tn_conv, tn_conv_transpose1d_init(&m.conv, 2, 2, k, zeros));
    INIT(tn_conv, tn_conv_transpose2d_init(&m.conv, 2, 2, k, zeros));
    INIT(tn_conv, tn_conv_transpose3d_init(&m.conv, 2, 2, k, zeros));
    NEW(tn_conv, tn_conv1d_new_with(2, 2, k, zeros));
    NEW(tn_conv, tn_conv2d_new_with(2, 2, k, zeros));
    NEW(tn_conv, tn_conv3d_new_with(2, 2, k, zeros));
    NEW(tn_conv, tn_conv_transpose1d_new_with(2, 2, k, zeros));
    NEW(tn_conv, tn_conv_transpose2d_new_with(2, 2, k, zeros));
    NEW(tn_conv, tn_conv_transpose3d_new_with(2, 2, k, zeros));
    INIT(tn_pool, tn_max_pool1d_init(&m.pool, k, zeros));
    INIT(tn_pool, tn_max_pool2d_init(&m.pool, k, zeros));
    INIT(tn_pool, tn_max_pool3d_init(&m.pool, k, zeros));
    INIT(tn_pool, tn_avg_pool1d_init(&m.pool, k, zeros));
    INIT(tn_pool, tn_avg_pool2d_init(&m.pool, k, zeros));
    INIT(tn_pool, tn_avg_pool3d_init(&m.pool, k, zeros));
    NEW(tn_pool, tn_max_pool1d_new_with(k, zeros));
    NEW(tn_pool, tn_max_pool2d_new_with(k, zeros));
    NEW(tn_pool, tn_max_pool3d_new_with(k, zeros));
    NEW(tn_pool, tn_avg_pool1d_new_with(k, zeros));
    NEW(tn_pool, tn_avg_pool2d_new_with(k, zeros));
    NEW(tn_pool, tn_avg_pool3d_new_with(k, zeros));
    INIT(tn_interpolate, tn_upsample_init(&m.upsample, zeros));
    NEW(tn_interpolate, tn_upsample_new_with(zeros));
}

TEST(norm_layers) {
    layers m;
    INIT(tn_norm, tn_layer_norm_init(&m.layer_norm, 2, zeros));
    INIT(tn_norm, tn_rms_norm_init(&m.rms_norm, 2, zeros));
    INIT(tn_norm, tn_group_norm_init(&m.group_norm, 1, 2, zeros));
    INIT(tn_norm, tn_instance_norm1d_init(&m.instance_norm, 2, zeros));
    INIT(tn_norm, tn_instance_norm2d_init(&m.instance_norm, 2, zeros));
    INIT(tn_norm, tn_instance_norm3d_init(&m.instance_norm, 2, zeros));
    NEW(tn_norm, tn_layer_norm_new_with(2, zeros));
    NEW(tn_norm, tn_rms_norm_new_with(2, zeros));
    NEW(tn_norm, tn_group_norm_new_with(1, 2, zeros));
    NEW(tn_norm, tn_instance_norm1d_new_with(2, zeros));
    NEW(tn_norm, tn_instance_norm2d_new_with(2, zeros));
    NEW(tn_norm, tn_instance_norm3d_new_with(2, zeros));
    INIT(tn_batch_norm, tn_batch_norm1d_init(&m.batch_norm, 2, zeros));
    INIT(tn_batch_norm, tn_batch_norm2d_init(&m.batch_norm, 2, zeros));
    INIT(tn_batch_norm, tn_batch_norm3d_init(&m.batch_norm, 2, zeros));
    NEW(tn_batch_norm, tn_batch_norm1d_new_with(2, zeros));
    NEW(tn_batch_norm, tn_batch_norm2d_new_with(2, zeros));
    NEW(tn_batch_norm, tn_batch_norm3d_new_with(2, zeros));
}

TEST(layers_of_many) {
    layers m;
    INIT(tn_rnn, tn_rnn_init(&m.rnn, 2, 2, zeros));
    INIT(tn_rnn, tn_gru_init(&m.rnn, 2, 2, zeros));
    INIT(tn_rnn, tn_lstm_init(&m.rnn, 2, 2, zeros));
    NEW(tn_rnn, tn_rnn_new_with(2, 2, zeros));
    NEW(tn_rnn, tn_gru_new_with(2, 2, zeros));
    NEW(tn_rnn, tn_lstm_new_with(2, 2, zeros));
    INIT(tn_rnn_cell, tn_rnn_cell_init(&m.rnn_cell, 2, 2, zeros));
    INIT(tn_rnn_cell, tn_gru_cell_init(&m.rnn_cell, 2, 2, zeros));
    INIT(tn_rnn_cell, tn_lstm_cell_init(&m.rnn_cell, 2, 2, zeros));
    INIT(tn_self_attention, tn_self_attention_init(&m.self_attention, 2, zeros));
    INIT(tn_mlp, tn_mlp_init(&m.mlp, 2, zeros));
    INIT(tn_grouped_attention, tn_grouped_attention_init(&m.grouped_attention, 2, zeros));
    INIT(tn_gated_mlp, tn_gated_mlp_init(&m.gated_mlp, 2, 2, zeros));
    INIT(tn_multi_head_attention, tn_multi_head_attention_init(&m.multi_head, 2, 1, zeros));
    NEW(tn_multi_head_attention, tn_multi_head_attention_new_with(2, 1, zeros));
    INIT(tn_transformer, tn_transformer_encoder_layer_init(&m.layer, 2, 1, zeros));
    INIT(tn_transformer, tn_transformer_decoder_layer_init(&m.layer, 2, 1, zeros));
    INIT(tn_transformer, tn_transformer_encoder_init(&m.stack, 2, 1, 0, zeros));
    INIT(tn_transformer, tn_transformer_decoder_init(&m.stack, 2, 1, 0, zeros));
    NEW(tn_transformer, tn_transformer_encoder_new_with(2, 1, 0, zeros));
    NEW(tn_transformer, tn_transformer_decoder_new_with(2, 1, 0, zeros));
    INIT(tn_transformer, tn_transformer_init(&m.transformer, 2, 1, 1, 1, zeros));
    NEW(tn_transformer, tn_transformer_new_with(2, 1, 1, 1, zeros));
    INIT(tn_block, tn_block_init(&m.block, 2, zeros));
    INIT(tn_gpt, tn_gpt_init(&m.gpt, zeros));
    INIT(tn_llama_block, tn_llama_block_init(&m.llama_block, 2, 2, zeros));
    INIT(tn_llama, tn_llama_init(&m.llama, zeros));
}

TEST(operations_with_options) {
    tn_dims k = TN_DIMS(1);
    tn_tensor *x = tn_ones(TN_DIMS(1, 2, 4, 4), TN_F32), *w = tn_ones(TN_DIMS(2, 2), TN_F32);
    tn_tensor *results[1];
    REFUSES(tn_conv, tn_conv1d_op(x, w, NULL, zeros));
    REFUSES(tn_conv, tn_conv2d_op(x, w, NULL, zeros));
    REFUSES(tn_conv, tn_conv3d_op(x, w, NULL, zeros));
    REFUSES(tn_conv, tn_conv_transpose1d_op(x, w, NULL, zeros));
    REFUSES(tn_conv, tn_conv_transpose2d_op(x, w, NULL, zeros));
    REFUSES(tn_conv, tn_conv_transpose3d_op(x, w, NULL, zeros));
    REFUSES(tn_pool, tn_max_pool1d_op(x, k, zeros));
    REFUSES(tn_pool, tn_max_pool2d_op(x, k, zeros));
    REFUSES(tn_pool, tn_max_pool3d_op(x, k, zeros));
    REFUSES(tn_pool, tn_avg_pool1d_op(x, k, zeros));
    REFUSES(tn_pool, tn_avg_pool2d_op(x, k, zeros));
    REFUSES(tn_pool, tn_avg_pool3d_op(x, k, zeros));
    REFUSES(tn_interpolate, tn_interpolate(x, zeros));
    REFUSES(tn_unfold, tn_unfold(x, k, zeros));
    REFUSES(tn_unfold, tn_fold(x, k, k, zeros));
    REFUSES(tn_attention, tn_attention(x, x, x, NULL, zeros));
    REFUSES(tn_attention, tn_attention_qkv(x, 1, NULL, zeros));
    REFUSES(tn_rotary, tn_rotary(x, NULL, zeros));
    REFUSES(tn_bce, tn_bce_with_logits_with(x, x, zeros));
    REFUSES(tn_nll, tn_nll_with(x, x, zeros));
    REFUSES(tn_triplet, tn_triplet_margin(w, w, w, zeros));
    REFUSES(tn_cross_entropy, tn_cross_entropy_with(x, x, zeros));
    REFUSES(tn_ctc, tn_ctc(x, x, x, x, zeros));
    REFUSES(tn_kaiming, (tn_init_kaiming_uniform_with(w, zeros), 0));
    REFUSES(tn_kaiming, (tn_init_kaiming_normal_with(w, zeros), 0));
    REFUSES(tn_grad, tn_grad(&x, NULL, 1, &w, 1, results, zeros));
    REFUSES(tn_gradcheck, tn_gradcheck(NULL, NULL, TN_VALUES(w), zeros));
    assert_float_equal(tn_item(tn_sum_all(w)), 4.0, 0.0); /* nothing was changed */
}

#define OPTIMISER(what) REFUSES(tn_##what, tn_##what(&m, zeros))

TEST(every_optimiser) {
    tn_linear m;
    tn_linear_init(&m, 2, 2, TN_WITH(tn_linear, .bias = false));
    OPTIMISER(sgd);
    OPTIMISER(adam);
    OPTIMISER(adamw);
    OPTIMISER(rmsprop);
    OPTIMISER(adagrad);
    OPTIMISER(adadelta);
    OPTIMISER(adamax);
    OPTIMISER(nadam);
    OPTIMISER(radam);
    OPTIMISER(asgd);
    OPTIMISER(lion);
    OPTIMISER(lamb);
    OPTIMISER(adafactor);
    OPTIMISER(muon);
    REFUSES(tn_scaler, tn_scaler_new(zeros));
    REFUSES(tn_lr_finder, tn_lr_finder_new(&m, NULL, zeros));
    REFUSES(tn_precision, tn_module_set_precision(&m, zeros));
    REFUSES(tn_sgd, tn_sgd(tn_parameters(&m.weight, 1), zeros)); /* tn_sgd frees the list */
    tn_optim *opt = tn_sgd(&m, TN_WITH(tn_sgd, .lr = 0));
    assert_non_null(opt);
    assert_float_equal(tn_optim_lr(opt), 0.0, 0.0);
    tn_optim_free(opt);
    tn_module_finish(&m);
}

TEST(files_and_data) {
    tn_gpt gpt = {0};
    tn_llama llama = {0};
    tn_linear m;
    tn_linear_init(&m, 2, 2, tn_linear_defaults());
    tn_module_train(&m, false);
    tn_tensor *x = tn_ones(TN_DIMS(3, 2), TN_F32);
    REFUSES(tn_csv, tn_csv_dataset("/nowhere", zeros));
    REFUSES(tn_image_folder, tn_image_folder("/nowhere", zeros));
    REFUSES(tn_corpus, tn_corpus_open(NULL, 0, zeros));
    REFUSES(tn_shards, tn_shards_writer_new("/nowhere/shard", zeros));
    REFUSES(tn_loader, tn_loader_new(tn_tensor_dataset(x, x), tn_random_sampler(1), zeros));
    REFUSES(tn_tiktoken, tn_tokenizer_load_tiktoken("/nowhere", zeros));
    REFUSES(tn_rows, tn_tokenizer_encode_rows(NULL, NULL, 1, zeros, NULL));
    REFUSES(tn_tokenizer_train, tn_tokenizer_train(NULL, NULL, 0, zeros));
    REFUSES(tn_tokens, tn_tokens_make(NULL, NULL, 0, "/nowhere", zeros, NULL));
    REFUSES(tn_lm_load, tn_lm_load("/nowhere", zeros));
    REFUSES(tn_lm_load, tn_gpt_load_hf(&gpt, "/nowhere", zeros));
    REFUSES(tn_lm_load, tn_llama_load_hf(&llama, "/nowhere", zeros));
    REFUSES(tn_lm_load, tn_gpt_load_llmc(&gpt, "/nowhere", zeros));
    REFUSES(tn_lm_save, tn_lm_save_with(&gpt, "/nowhere", zeros));
    REFUSES(tn_lm_save, tn_dist_save_lm(NULL, &gpt, "/nowhere", zeros));
    REFUSES(tn_onnx, tn_onnx_export(&m, TN_VALUES(x), "/nowhere/m.onnx", zeros));
    REFUSES(tn_onnx,
            tn_onnx_export_function(same_values, NULL, &m, TN_VALUES(x), "/nowhere/m.onnx", zeros));
    tn_module_finish(&m);
}

TEST(training_and_generation) {
    tn_linear m;
    tn_linear_init(&m, 2, 2, tn_linear_defaults());
    tn_perplexity perplexity;
    tn_choice_scores scores;
    tn_generated text;
    REFUSES(tn_dist, tn_dist_init(zeros));
    REFUSES(tn_ddp, tn_ddp(&m, NULL, zeros));
    REFUSES(tn_powersgd, tn_ddp_powersgd(NULL, zeros));
    REFUSES(tn_local_sgd, tn_local_sgd_new(&m, NULL, zeros));
    REFUSES(tn_rpc, tn_rpc_new(NULL, zeros));
    REFUSES(tn_fsdp, tn_fsdp(&m, NULL, NULL, zeros));
    REFUSES(tn_tp, tn_tensor_parallel(&m, NULL, zeros));
    REFUSES(tn_cross_entropy, tn_dist_cross_entropy(NULL, NULL, NULL, 2, zeros));
    REFUSES(tn_spread, tn_spread_read(&zeros, "tp=2"));
    REFUSES(tn_spread, tn_spread_new(&m, NULL, zeros));
    REFUSES(tn_pipeline, tn_pipeline_new(&m, NULL, zeros));
    REFUSES(tn_pipeline, tn_pipeline_cuts(&m, NULL, (tn_batch){0}, zeros, 1, NULL));
    tn_plan plan;
    tn_plan_machine machine = tn_plan_machine_defaults();
    REFUSES(tn_plan, tn_plan_of(&m, zeros, &plan));
    REFUSES(tn_plan, tn_plan_search(&m, zeros, &plan, 1));
    REFUSES(tn_plan, tn_plan_measure(&m, zeros, NULL, &machine));
    REFUSES(tn_saver, tn_saver_new(NULL, "/nowhere", zeros));
    REFUSES(tn_setup, tn_setup_world(&zeros));
    REFUSES(tn_setup, tn_setup_model(&zeros, NULL, &m));
    REFUSES(tn_setup, tn_setup_data(&zeros));
    REFUSES(tn_run, tn_run_steps(&zeros, NULL, 1));
    REFUSES(tn_run, tn_run_new(NULL, zeros, (tn_checkpoint){.model = &m}));
    REFUSES(tn_early, tn_run_stop_early(NULL, "loss", zeros));
    REFUSES(tn_search, tn_search_new(zeros));
    REFUSES(tn_profiler, tn_profiler_start(zeros));
    REFUSES(tn_evaluate, tn_evaluate_perplexity(&m, NULL, NULL, zeros, &perplexity));
    REFUSES(tn_evaluate, tn_evaluate_choices(&m, "/nowhere", NULL, 1, zeros, &scores));
    REFUSES(tn_generate, tn_generate(&m, NULL, 0, zeros, &text));
    tn_module_finish(&m);
}

/* An intended 0 passes if the rest comes from the defaults. */
TEST(zeros_that_are_meant) {
    tn_tensor *x = tn_ones(TN_DIMS(3, 2), TN_F32);
    tn_loader *l = tn_loader_new(tn_tensor_dataset(x, x), tn_random_sampler(1),
                                 TN_WITH(tn_loader, .batch = 2, .epochs = 0, .prefetch = 0));
    tn_batch b;
    for (int i = 0; i < 5; i++) { /* two batches are an epoch */
        assert_true(tn_loader_next(l, &b));
    }
    tn_loader_free(l);
    tn_layer_norm norm;
    tn_layer_norm_init(&norm, 2, TN_WITH(tn_norm, .eps = 0, .weight = false, .bias = false));
    assert_int_equal(tn_error(), TN_OK);
    tn_module_finish(&norm);
    tn_linear m;
    tn_linear_init(&m, 2, 2, TN_WITH(tn_linear, .bias = false));
    tn_optim *opt = tn_adamw(
        &m, TN_WITH(tn_adamw, .lr = 0, .beta1 = 0, .beta2 = 0, .eps = 0, .weight_decay = 0));
    assert_non_null(opt);
    tn_optim_free(opt);
    tn_module_finish(&m);
    tn_gpt_options copy = TN_WITH(tn_gpt, .vocab = 5, .context = 4, .layers = 1, .heads = 1), again;
    memcpy(&again, &copy, sizeof(copy));
    again.width = 4;
    tn_gpt gpt;
    tn_gpt_init(&gpt, again);
    assert_int_equal(tn_error(), TN_OK);
    tn_module_finish(&gpt);
}
