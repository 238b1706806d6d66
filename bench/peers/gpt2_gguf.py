"""Writes GPT-2 124M as a GGUF file for llama.cpp, with random weights: gpt2_gguf.py GGUF_PY f32|bf16|int8 FILE

GGUF_PY is llama.cpp's folder gguf-py; int8 is Q8_0. The model's output is not used.
"""
import sys

import numpy as np

sys.path.insert(0, sys.argv[1])
import gguf

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 12, 12, 768, 1024, 50257
KINDS = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16, "int8": gguf.GGMLQuantizationType.Q8_0}
FILES = {"f32": gguf.LlamaFileType.ALL_F32, "bf16": gguf.LlamaFileType.MOSTLY_BF16, "int8": gguf.LlamaFileType.MOSTLY_Q8_0}


def main():
    kind, path = sys.argv[2:4]
    rng = np.random.default_rng(1337)
    w = gguf.GGUFWriter(path, "gpt2")
    w.add_block_count(LAYERS)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(WIDTH)
    w.add_feed_forward_length(4 * WIDTH)
    w.add_head_count(HEADS)
    w.add_layer_norm_eps(1e-5)
    w.add_vocab_size(VOCAB)
    w.add_file_type(FILES[kind])
    w.add_tokenizer_model("no_vocab")

    def matrix(name, out, into):
        values = rng.standard_normal((out, into), np.float32) * np.float32(0.02)
        w.add_tensor(name, gguf.quants.quantize(values, KINDS[kind]), raw_dtype=KINDS[kind])

    def vectors(name, n, weight=True):
        if weight:
            w.add_tensor(name + ".weight", np.ones(n, np.float32))
        w.add_tensor(name + ".bias", np.zeros(n, np.float32))

    matrix("token_embd.weight", VOCAB, WIDTH)
    w.add_tensor("position_embd.weight", rng.standard_normal((CONTEXT, WIDTH), np.float32) * np.float32(0.02))
    for i in range(LAYERS):
        for name, out, into in (("attn_qkv", 3, 1), ("attn_output", 1, 1), ("ffn_up", 4, 1), ("ffn_down", 1, 4)):
            matrix(f"blk.{i}.{name}.weight", out * WIDTH, into * WIDTH)
            vectors(f"blk.{i}.{name}", out * WIDTH, False)
        vectors(f"blk.{i}.attn_norm", WIDTH)
        vectors(f"blk.{i}.ffn_norm", WIDTH)
    vectors("output_norm", WIDTH)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
