/* What version 40cd7f8 wrote into the checkpoints of older_runs.h: prose, and numbers as %a. */
#ifndef TERN_TESTS_IO_OLDER_TEXTS_H
#define TERN_TESTS_IO_OLDER_TEXTS_H

static const struct {
    int run;
    const char *key, *text;
} older_texts[] = {
    {0, "format", "tern-checkpoint-1"},
    {0, "step", "70"},
    {0, "note", "run 0, \"quoted\""},
    {0, "model",
     ".: gpt, vocab 32, context 6, layers 2, heads 2, width 8, bias 0, activation "
     "relu; dropout 0.1\n"
     "wte: embedding\n"
     "wpe: embedding\n"
     "drop: dropout; p 0.1\n"
     "h.0: block\n"
     "h.0.ln_1: layer_norm, eps 1e-06\n"
     "h.0.attn: self_attention, heads 2, causal 1\n"
     "h.0.attn.c_attn: linear\n"
     "h.0.attn.c_proj: linear\n"
     "h.0.attn.drop: dropout; p 0.1\n"
     "h.0.ln_2: layer_norm, eps 1e-06\n"
     "h.0.mlp: mlp, activation relu\n"
     "h.0.mlp.c_fc: linear\n"
     "h.0.mlp.c_proj: linear\n"
     "h.0.mlp.drop: dropout; p 0.1\n"
     "h.1: block\n"
     "h.1.ln_1: layer_norm, eps 1e-06\n"
     "h.1.attn: self_attention, heads 2, causal 1\n"
     "h.1.attn.c_attn: linear\n"
     "h.1.attn.c_proj: linear\n"
     "h.1.attn.drop: dropout; p 0.1\n"
     "h.1.ln_2: layer_norm, eps 1e-06\n"
     "h.1.mlp: mlp, activation relu\n"
     "h.1.mlp.c_fc: linear\n"
     "h.1.mlp.c_proj: linear\n"
     "h.1.mlp.drop: dropout; p 0.1\n"
     "ln_f: layer_norm, eps 1e-06\n"},
    {0, "optim", "adamw 70 0x1.999999999999ap-4 2"},
    {0, "optim.options", "beta1 0.9, beta2 0.95, eps 1e-08"},
    {0, "optim.group.0", "0x1p+0 0x1.47ae147ae147bp-7"},
    {0, "optim.group.0.parameters", "10"},
    {0, "optim.group.1", "0x1p+0 0x0p+0"},
    {0, "optim.group.1.parameters", "5"},
    {0, "schedule",
     "kind 2, peak 0x1.999999999999ap-4, end 0x1.5555555555555p-2, warm-up 10, "
     "steps 100"},
    {0, "loader",
     "tokens of 6, order 1, seed 18446744073709551615, shared by rule 0, short "
     "batches kept"},
    {0, "loader.data", "x i64[3], y i64[3], digest cba519bbfbae448538db83d3cafbe53b"},
    {0, "loader.place", "0 1"},
    {0, "loader.passes", "3 0"},
    {0, "loader.share", "2 1"},
    {0, "generator", "18446744073709551615 3 9"},
    {0, "scaler", "0x1p+10 0"},
    {0, "scaler.options", "growth 2, backoff 0.5, interval 100, enabled 1"},
    {0, "plateau", "0x1.2492492492492p-3 -0x1.4p+1 0 0 1"},
    {0, "plateau.options",
     "larger 0, factor 0x1.999999999999ap-4, patience 10, threshold 0x1.a36e2eb1c432dp-14, "
     "absolute 0, cooldown 0, min_lr 0x0p+0, eps 0x1.5798ee2308c3ap-27"},
    {0, "average", "1"},
    {0, "average.options", "all alike"},
    {1, "format", "tern-checkpoint-1"},
    {1, "step", "71"},
    {1, "note", "run 1, \"quoted\""},
    {1, "model",
     ".: llama, vocab 32, layers 2, width 8, tied 0; context 64\n"
     "embed_tokens: embedding\n"
     "layers.0: llama_block\n"
     "layers.0.self_attn: grouped_attention, head_width 6, causal 1, theta 50000.5, "
     "factor 8, low_freq_factor 1.25, high_freq_factor 4, original_context 512\n"
     "layers.0.self_attn.q_proj: linear\n"
     "layers.0.self_attn.k_proj: linear\n"
     "layers.0.self_attn.v_proj: linear\n"
     "layers.0.self_attn.o_proj: linear\n"
     "layers.0.mlp: gated_mlp\n"
     "layers.0.mlp.gate_proj: linear\n"
     "layers.0.mlp.up_proj: linear\n"
     "layers.0.mlp.down_proj: linear\n"
     "layers.0.input_layernorm: rms_norm, eps 1e-06\n"
     "layers.0.post_attention_layernorm: rms_norm, eps 1e-06\n"
     "layers.1: llama_block\n"
     "layers.1.self_attn: grouped_attention, head_width 6, causal 1, theta 50000.5, "
     "factor 8, low_freq_factor 1.25, high_freq_factor 4, original_context 512\n"
     "layers.1.self_attn.q_proj: linear\n"
     "layers.1.self_attn.k_proj: linear\n"
     "layers.1.self_attn.v_proj: linear\n"
     "layers.1.self_attn.o_proj: linear\n"
     "layers.1.mlp: gated_mlp\n"
     "layers.1.mlp.gate_proj: linear\n"
     "layers.1.mlp.up_proj: linear\n"
     "layers.1.mlp.down_proj: linear\n"
     "layers.1.input_layernorm: rms_norm, eps 1e-06\n"
     "layers.1.post_attention_layernorm: rms_norm, eps 1e-06\n"
     "norm: rms_norm, eps 1e-06\n"
     "lm_head: linear\n"},
    {1, "optim", "lion 71 0x1.a36e2eb1c432dp-14 1"},
    {1, "optim.options", "beta1 0.3333333333333333, beta2 0.99"},
    {1, "optim.group.0", "0x1p+0 0x0p+0"},
    {1, "optim.group.0.parameters", "21"},
    {1, "schedule",
     "kind 4, peak 0x1.999999999999ap-4, end 0x0p+0, warm-up 0, steps 0, factor "
     "0x1.3333333333333p-2, every 0, growth 0, start 0x0p+0, rise 0x0p+0, at "
     "1000000, at 2000000, at 2500000"},
    {1, "loader", "tensors of 4, order 0, seed 0, shared by rule 0, short batches dropped"},
    {1, "loader.data",
     "x f32[10x1], y i64[], digest of x 50699799c33e97adcfea39e6f5bed1e3, digest "
     "of y e9bf57da474242be3e1520d65af7f34a"},
    {1, "loader.place", "1 0"},
    {1, "loader.passes", "1 0"},
    {1, "loader.share", "3 1"},
    {1, "generator", "18446744073709551614 3 9"},
    {1, "scaler", "0x1p+10 1"},
    {1, "scaler.options", "growth 2, backoff 0.5, interval 101, enabled 1"},
    {1, "plateau", "0x1.2492492492492p-3 -0x1.4p+1 1 0 1"},
    {1, "plateau.options",
     "larger 1, factor 0x1.999999999999ap-4, patience 10, threshold 0x1.a36e2eb1c432dp-14, "
     "absolute 0, cooldown 1, min_lr 0x0p+0, eps 0x1.5798ee2308c3ap-27"},
    {1, "average", "1"},
    {1, "average.options", "decay 0x1.ccccccccccccdp-1"},
    {2, "format", "tern-checkpoint-1"},
    {2, "step", "72"},
    {2, "note", "run 2, \"quoted\""},
    {2, "model",
     ".: holder\n"
     "0: conv2d, stride 2x10, padding 1x0, dilation 1x2, groups 2\n"
     "1: conv1d, stride 1, same 1, dilation 1, groups 1\n"
     "2: conv3d, stride 1, padding 0, dilation 1, groups 1\n"
     "3: conv_transpose2d, stride 3, padding 0, dilation 1, output_padding 0x1, "
     "groups 1\n"
     "4: batch_norm2d, eps 1e-05; momentum 0.1\n"
     "5: batch_norm1d, eps 0.001; momentum cumulative\n"
     "6: batch_norm3d, eps 1e-05; momentum 0.3333333333333333\n"
     "7: group_norm, groups 2, eps 1e-05\n"
     "8: instance_norm2d, eps 0.25\n"
     "9: max_pool2d, kernel 2x3, stride 2x3, padding 0, dilation 1\n"
     "10: avg_pool1d, kernel 4, stride 2, padding 1, dilation 1\n"
     "11: max_pool3d, kernel 2, stride 2, padding 0, dilation 2\n"
     "12: adaptive_max_pool2d, size 3\n"
     "13: upsample, scale_factor 1.5, mode 0, align_corners 0\n"
     "14: upsample, scale_factor 0, mode 2, align_corners 1, size 4x5\n"
     "15: dropout2d; p 0.1\n"
     "16: relu\n"
     "17: pow_scalar, number 0.3333333333333333\n"},
    {2, "optim", "sgd 72 0x1.0624dd2f1a9fcp-10 1"},
    {2, "optim.options", "momentum 0.9, dampening 0, nesterov 1"},
    {2, "optim.group.0", "0x1p+0 0x0p+0"},
    {2, "optim.group.0.parameters", "16"},
    {2, "schedule",
     "kind 7, peak 0x1.999999999999ap-3, end 0x1.ad7f29abcaf48p-21, warm-up 0, "
     "steps 50, factor 0x0p+0, every 0, growth 0, start 0x1.0624dd2f1a9fcp-7, "
     "rise 0x1.3333333333333p-2"},
    {2, "loader",
     "sequences of 3, order 3, seed 1, shared by rule 0, short batches kept, "
     "draws 9, weights bb5a1aeb9aed096982260c5934eb66f1, padded by -0x1p-1:0x0p+0"},
    {2, "loader.data", "x f32[-1], digest 9b80e3b4254ee7a78b524abb0244edef"},
    {2, "loader.place", "0 1"},
    {2, "loader.passes", "1 0"},
    {2, "loader.share", "1 1"},
    {2, "generator", "18446744073709551613 3 9"},
    {2, "scaler", "0x1p+10 2"},
    {2, "scaler.options", "growth 2, backoff 0.5, interval 102, enabled 1"},
    {2, "plateau", "0x1.2492492492492p-3 -0x1.4p+1 2 0 1"},
    {2, "plateau.options",
     "larger 0, factor 0x1.999999999999ap-4, patience 10, threshold 0x1.a36e2eb1c432dp-14, "
     "absolute 0, cooldown 2, min_lr 0x0p+0, eps 0x1.5798ee2308c3ap-27"},
    {2, "average", "1"},
    {2, "average.options", "all alike"},
    {3, "format", "tern-checkpoint-1"},
    {3, "step", "73"},
    {3, "note", "run 3, \"quoted\""},
    {3, "model",
     ".: holder; param f32, compute bf16, reduce f32\n"
     "0: rnn, relu 1; dropout 0.2\n"
     "1: gru, relu 0; dropout 0\n"
     "2: lstm, relu 0; dropout 0\n"
     "3: rnn_cell, relu 0\n"
     "4: lstm_cell, relu 0\n"
     "5: multi_head_attention, heads 2, causal 1; dropout 0.3\n"
     "5.out_proj: linear\n"
     "6: transformer_encoder\n"
     "6.layers: module_list\n"
     "6.layers.0: transformer_encoder_layer, norm_first 1, activation gelu\n"
     "6.layers.0.self_attn: multi_head_attention, heads 2, causal 0; dropout "
     "0.1\n"
     "6.layers.0.self_attn.out_proj: linear\n"
     "6.layers.0.linear1: linear\n"
     "6.layers.0.dropout: dropout; p 0.1\n"
     "6.layers.0.linear2: linear\n"
     "6.layers.0.norm1: layer_norm, eps 1e-05\n"
     "6.layers.0.norm2: layer_norm, eps 1e-05\n"
     "6.layers.0.dropout1: dropout; p 0.1\n"
     "6.layers.0.dropout2: dropout; p 0.1\n"
     "7: transformer_decoder\n"
     "7.layers: module_list\n"
     "7.layers.0: transformer_decoder_layer, norm_first 0, activation relu\n"
     "7.layers.0.self_attn: multi_head_attention, heads 2, causal 0; dropout "
     "0.1\n"
     "7.layers.0.self_attn.out_proj: linear\n"
     "7.layers.0.multihead_attn: multi_head_attention, heads 2, causal 0; dropout "
     "0.1\n"
     "7.layers.0.multihead_attn.out_proj: linear\n"
     "7.layers.0.linear1: linear\n"
     "7.layers.0.dropout: dropout; p 0.1\n"
     "7.layers.0.linear2: linear\n"
     "7.layers.0.norm1: layer_norm, eps 1e-05\n"
     "7.layers.0.norm2: layer_norm, eps 1e-05\n"
     "7.layers.0.norm3: layer_norm, eps 1e-05\n"
     "7.layers.0.dropout1: dropout; p 0.1\n"
     "7.layers.0.dropout2: dropout; p 0.1\n"
     "7.layers.0.dropout3: dropout; p 0.1\n"
     "8: layer_norm, eps 1e-06\n"
     "9: rms_norm, eps 1e-05\n"
     "10: linear\n"},
    {3, "optim", "rmsprop 73 0x1.47ae147ae147bp-7 1"},
    {3, "optim.options", "alpha 0.9, eps 1e-08, momentum 0, centered 1"},
    {3, "optim.group.0", "0x1p+0 0x0p+0"},
    {3, "optim.group.0.parameters", "75"},
    {3, "schedule",
     "kind 6, peak 0x1.999999999999ap-4, end 0x1.47ae147ae147bp-7, warm-up 0, "
     "steps 0, factor 0x0p+0, every 5, growth 2, start 0x0p+0, rise 0x0p+0"},
    {3, "loader",
     "sequences of 3, order 4, seed 1, shared by rule 0, short batches kept, "
     "bucket 1, step 2, lengths 98cd9a2999e308f749230a8e5d6eed0f, padded by 0x0p+0:0x0p+0"},
    {3, "loader.data", "x f32[-1], digest 9b80e3b4254ee7a78b524abb0244edef"},
    {3, "loader.place", "0 1"},
    {3, "loader.passes", "3 0"},
    {3, "loader.share", "2 1"},
    {3, "generator", "18446744073709551612 3 9"},
    {3, "scaler", "0x1p+10 3"},
    {3, "scaler.options", "growth 2, backoff 0.5, interval 103, enabled 1"},
    {3, "plateau", "0x1.2492492492492p-3 -0x1.4p+1 3 0 1"},
    {3, "plateau.options",
     "larger 1, factor 0x1.999999999999ap-4, patience 10, threshold 0x1.a36e2eb1c432dp-14, "
     "absolute 0, cooldown 3, min_lr 0x0p+0, eps 0x1.5798ee2308c3ap-27"},
    {3, "average", "1"},
    {3, "average.options", "decay 0x1.ccccccccccccdp-1"},
    {4, "optim", "adagrad 74 0x1.47ae147ae147bp-7 1"},
    {4, "optim.options", "lr_decay 0.001, initial_accumulator 0.5, eps 1e-10"},
    {4, "optim.group.0", "0x1p+0 0x0p+0"},
    {4, "optim.group.0.parameters", "2"},
    {4, "schedule",
     "kind 3, peak 0x1.999999999999ap-4, end 0x0p+0, warm-up 0, steps 0, factor "
     "0x1p-1, every 7, growth 0, start 0x0p+0, rise 0x0p+0"},
    {4, "loader", "subset of 3, order 2, seed 3, shared by rule 0, short batches kept"},
    {4, "loader.data",
     "x f32[10x1], digest of x d6fa16244b6c21c61337d82e0e09a7ef, digest of indices "
     "4e9d25887a6733cf37f03aacfbd8a9e6"},
    {4, "loader.place", "0 1"},
    {4, "loader.passes", "3 0"},
    {4, "loader.share", "2 1"},
    {5, "optim", "adadelta 75 0x1p+0 1"},
    {5, "optim.options", "rho 0.8, eps 1e-06"},
    {5, "optim.group.0", "0x1p+0 0x0p+0"},
    {5, "optim.group.0.parameters", "2"},
    {5, "schedule",
     "kind 5, peak 0x1.999999999999ap-4, end 0x0p+0, warm-up 0, steps 0, factor "
     "0x1.fae147ae147aep-1, every 0, growth 0, start 0x0p+0, rise 0x0p+0"},
    {5, "loader", "subset of 4, order 1, seed 5, shared by rule 0, short batches kept"},
    {5, "loader.data",
     "x f32[10x1], y i64[], digest of x 71fa2e2fd59c6ec02efc3a68b3d5803f, digest "
     "of y 9eb4158523293953ebb0d4bc230b5c92, split 11:4"},
    {5, "loader.place", "0 1"},
    {5, "loader.passes", "3 0"},
    {5, "loader.share", "2 1"},
    {6, "optim", "adamax 76 0x1.0624dd2f1a9fcp-9 1"},
    {6, "optim.options", "beta1 0.9, beta2 0.999, eps 1e-07"},
    {6, "optim.group.0", "0x1p+0 0x0p+0"},
    {6, "optim.group.0.parameters", "2"},
    {6, "schedule",
     "kind 0, peak 0x1.999999999999ap-4, end 0x1.999999999999ap-4, warm-up 3, "
     "steps 0"},
    {6, "loader", "concatenation of 4, order 1, seed 5, shared by rule 0, short batches kept"},
    {6, "loader.data", "x f32[3x3x3], digest of all ca13f8c3073ac0d5c833d6659e7eb8c1"},
    {6, "loader.place", "0 1"},
    {6, "loader.passes", "3 0"},
    {6, "loader.share", "2 1"},
    {7, "optim", "nadam 77 0x1.0624dd2f1a9fcp-9 1"},
    {7, "optim.options", "beta1 0.9, beta2 0.999, eps 1e-08, momentum_decay 0.003"},
    {7, "optim.group.0", "0x1p+0 0x0p+0"},
    {7, "optim.group.0.parameters", "2"},
    {7, "schedule",
     "kind 2, peak 0x1.999999999999ap-4, end 0x1.5555555555555p-2, warm-up 10, "
     "steps 100"},
    {7, "loader", "transformed of 2, order 1, seed 5, shared by rule 0, short batches kept"},
    {7, "loader.data",
     "x f32[3x3x3], digest of x 363904786c14218158c5541f7be60144, seed of transforms "
     "7, random_crop 3:3:1, random_horizontal_flip 0.333333333, random_horizontal_flip "
     "0.5"},
    {7, "loader.place", "0 1"},
    {7, "loader.passes", "3 0"},
    {7, "loader.share", "1 1"},
    {8, "optim", "radam 78 0x1.0624dd2f1a9fcp-10 1"},
    {8, "optim.options", "beta1 0.8, beta2 0.999, eps 1e-08"},
    {8, "optim.group.0", "0x1p+0 0x0p+0"},
    {8, "optim.group.0.parameters", "2"},
    {8, "schedule",
     "kind 4, peak 0x1.999999999999ap-4, end 0x0p+0, warm-up 0, steps 0, factor "
     "0x1.3333333333333p-2, every 0, growth 0, start 0x0p+0, rise 0x0p+0, at "
     "1000000, at 2000000, at 2500000"},
    {8, "loader",
     "tokens of 6, order 1, seed 18446744073709551615, shared by rule 0, short "
     "batches kept"},
    {8, "loader.data", "x i64[3], y i64[3], digest cba519bbfbae448538db83d3cafbe53b"},
    {8, "loader.place", "0 1"},
    {8, "loader.passes", "3 0"},
    {8, "loader.share", "2 1"},
    {9, "optim", "asgd 79 0x1.47ae147ae147bp-7 1"},
    {9, "optim.options", "lambd 0.0001, alpha 0.7, t0 1e+05"},
    {9, "optim.group.0", "0x1p+0 0x0p+0"},
    {9, "optim.group.0.parameters", "2"},
    {9, "schedule",
     "kind 7, peak 0x1.999999999999ap-3, end 0x1.ad7f29abcaf48p-21, warm-up 0, "
     "steps 50, factor 0x0p+0, every 0, growth 0, start 0x1.0624dd2f1a9fcp-7, "
     "rise 0x1.3333333333333p-2"},
    {9, "loader", "tensors of 4, order 0, seed 0, shared by rule 0, short batches dropped"},
    {9, "loader.data",
     "x f32[10x1], y i64[], digest of x 50699799c33e97adcfea39e6f5bed1e3, digest "
     "of y e9bf57da474242be3e1520d65af7f34a"},
    {9, "loader.place", "1 0"},
    {9, "loader.passes", "1 0"},
    {9, "loader.share", "3 1"},
    {10, "optim", "lamb 80 0x1.0624dd2f1a9fcp-10 1"},
    {10, "optim.options", "beta1 0.9, beta2 0.999, eps 1e-05"},
    {10, "optim.group.0", "0x1p+0 0x1.47ae147ae147bp-7"},
    {10, "optim.group.0.parameters", "2"},
    {10, "schedule",
     "kind 6, peak 0x1.999999999999ap-4, end 0x1.47ae147ae147bp-7, warm-up 0, "
     "steps 0, factor 0x0p+0, every 5, growth 2, start 0x0p+0, rise 0x0p+0"},
    {10, "loader",
     "sequences of 3, order 3, seed 1, shared by rule 0, short batches kept, "
     "draws 9, weights bb5a1aeb9aed096982260c5934eb66f1, padded by -0x1p-1:0x0p+0"},
    {10, "loader.data", "x f32[-1], digest 9b80e3b4254ee7a78b524abb0244edef"},
    {10, "loader.place", "0 1"},
    {10, "loader.passes", "1 0"},
    {10, "loader.share", "1 1"},
    {11, "optim", "adafactor 81 0x1.47ae147ae147bp-7 1"},
    {11, "optim.options", "beta2_decay -0.8, eps1 0, eps2 0.002, d 1"},
    {11, "optim.group.0", "0x1p+0 0x0p+0"},
    {11, "optim.group.0.parameters", "2"},
    {11, "schedule",
     "kind 3, peak 0x1.999999999999ap-4, end 0x0p+0, warm-up 0, steps 0, factor "
     "0x1p-1, every 7, growth 0, start 0x0p+0, rise 0x0p+0"},
    {11, "loader",
     "sequences of 3, order 4, seed 1, shared by rule 0, short batches kept, "
     "bucket 1, step 2, lengths 98cd9a2999e308f749230a8e5d6eed0f, padded by 0x0p+0:0x0p+0"},
    {11, "loader.data", "x f32[-1], digest 9b80e3b4254ee7a78b524abb0244edef"},
    {11, "loader.place", "0 1"},
    {11, "loader.passes", "3 0"},
    {11, "loader.share", "2 1"},
    {12, "optim", "muon 82 0x1.0624dd2f1a9fcp-10 1"},
    {12, "optim.options",
     "momentum 0.95, nesterov 0, ns_steps 4, ns_a 3.4445, ns_b -4.775, ns_c 2.0315, "
     "eps 1e-07, adamw_beta1 0.9, adamw_beta2 0.999, adamw_eps 1e-08"},
    {12, "optim.group.0", "0x1p+0 0x1.999999999999ap-4"},
    {12, "optim.group.0.parameters", "2"},
    {12, "schedule",
     "kind 5, peak 0x1.999999999999ap-4, end 0x0p+0, warm-up 0, steps 0, factor "
     "0x1.fae147ae147aep-1, every 0, growth 0, start 0x0p+0, rise 0x0p+0"},
    {12, "loader", "subset of 3, order 2, seed 3, shared by rule 0, short batches kept"},
    {12, "loader.data",
     "x f32[10x1], digest of x d6fa16244b6c21c61337d82e0e09a7ef, digest of indices "
     "4e9d25887a6733cf37f03aacfbd8a9e6"},
    {12, "loader.place", "0 1"},
    {12, "loader.passes", "3 0"},
    {12, "loader.share", "2 1"},
    {13, "optim", "adam_amsgrad 83 0x1.0624dd2f1a9fcp-10 1"},
    {13, "optim.options", "beta1 0.9, beta2 0.999, eps 1e-08"},
    {13, "optim.group.0", "0x1p+0 0x0p+0"},
    {13, "optim.group.0.parameters", "2"},
    {13, "schedule",
     "kind 0, peak 0x1.999999999999ap-4, end 0x1.999999999999ap-4, warm-up 3, "
     "steps 0"},
    {13, "loader", "subset of 4, order 1, seed 5, shared by rule 0, short batches kept"},
    {13, "loader.data",
     "x f32[10x1], y i64[], digest of x 71fa2e2fd59c6ec02efc3a68b3d5803f, digest "
     "of y 9eb4158523293953ebb0d4bc230b5c92, split 11:4"},
    {13, "loader.place", "0 1"},
    {13, "loader.passes", "3 0"},
    {13, "loader.share", "2 1"},
};

#endif
