"""Greedy text against transformers' generate, for random models of each family: prompts of different lengths in one batch, with a
repetition penalty, with a stop token and a least number of tokens before it."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import pypi

pypi.need("torch", "transformers", "safetensors")
import torch
import transformers

transformers.utils.logging.disable_progress_bar()

PROGRAM = os.path.join(os.environ["TERN_TEST_BIN"], "generate_ids")
NEW, VOCAB = 24, 211
LENGTHS = (1, 7, 3, 12, 7)
NEAR = 1e-3  # logits that differ by less may swap their order when computed another way


def gpt2(**options):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.3, bos_token_id=None,
        eos_token_id=None, **options))


def llama(**options):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=64, initializer_range=0.3, bos_token_id=None, eos_token_id=None, **options))


MODELS = [
    ("gpt2, 2 layers", lambda: gpt2(n_embd=32, n_layer=2, n_head=4)),
    ("gpt2, 3 layers, 1 head", lambda: gpt2(n_embd=24, n_layer=3, n_head=1)),
    ("llama, grouped heads", lambda: llama(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                           num_key_value_heads=2)),
    ("llama, one group, tied", lambda: llama(hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
                                             num_key_value_heads=1, tie_word_embeddings=True)),
]
# repetition penalty, least tokens, whether a token ends the text
HOWS = [(1.0, 0, False), (1.3, 0, False), (0.8, 0, False), (1.0, 0, True), (1.2, 9, True)]


def theirs(model, prompts, penalty, least, stop):
    """Their tokens for each prompt, and how far their best logit was ahead of the second, step by step."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    more = {} if stop is None else {"eos_token_id": stop, "min_new_tokens": least}
    out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW, repetition_penalty=penalty, pad_token_id=0,
                         return_dict_in_generate=True, output_scores=True, **more)
    tokens = out.sequences[:, longest:].tolist()
    if stop is not None:
        tokens = [t[:t.index(stop) + 1] if stop in t else t for t in tokens]
    best = torch.stack([s.topk(2).values for s in out.scores], 1)
    return tokens, (best[..., 0] - best[..., 1]).tolist()


def ours(folder, prompts, penalty, least, stop):
    arguments = [PROGRAM, folder, str(NEW), str(least), str(penalty), str(-1 if stop is None else stop)]
    done = subprocess.run(arguments + [",".join(map(str, p)) for p in prompts], stdout=subprocess.PIPE, check=True, timeout=120)
    return [[int(t) for t in line.split()] for line in done.stdout.decode().splitlines()]


def compare(model, folder):
    """(texts that are the same, texts that diverge where two logits are nearly equal, descriptions of the others)"""
    same, near, wrong = 0, 0, []
    prompts = [torch.randint(VOCAB, (n,)).tolist() for n in LENGTHS]
    plain, _ = theirs(model, prompts, 1.0, 0, None)
    for penalty, least, ends in HOWS:
        stop = plain[0][5] if ends else None
        want, ahead = theirs(model, prompts, penalty, least, stop)
        for i, got in enumerate(ours(folder, prompts, penalty, least, stop)):
            parts = next((k for k, (a, b) in enumerate(zip(want[i], got)) if a != b), None)
            if want[i] == got:
                same += 1
            elif parts is not None and ahead[i][parts] < NEAR:
                near += 1
            else:
                wrong.append("penalty %g, stop %s, prompt %d: %s, theirs %s" % (penalty, stop, i, got, want[i]))
    return same, near, wrong


print("1..%d" % len(MODELS))
for number, (name, make) in enumerate(MODELS, 1):
    torch.manual_seed(number)
    model = make().eval()
    with tempfile.TemporaryDirectory(prefix="tern_generate_") as folder:
        model.save_pretrained(folder)
        same, near, wrong = compare(model, folder)
    for line in wrong:
        print("# " + line)
    print("# %d texts the same, %d part at nearly equal logits" % (same, near))
    print("%s %d - %s" % ("not ok" if wrong or near > 2 else "ok", number, name), flush=True)
