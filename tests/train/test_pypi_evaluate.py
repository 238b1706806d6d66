#!/usr/bin/env python3
"""`tern eval` against transformers: perplexity as Hugging Face's page measures it, multiple choice as a slow implementation does it."""
import os
import sys

sys.path.insert(0, os.path.join(os.environ.get("TERN_ROOT", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")), "tests/support"))
import pypi

pypi.need("torch", "transformers")

import array
import json
import pathlib
import subprocess
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TERN = pathlib.Path(os.environ.get("TERN_TEST_BIN", "build/test/tests")).parent / "tools" / "tern"
CONTEXT, STRIDES, VOCAB = 24, (1, 7, 24), 257
QUESTIONS = [
    {"ctx": "A man is sitting on a roof. He", "endings": ["is using wrap.", "rips tiles off", "holds a cube", "eats"], "label": 3},
    {"ctx": "She", "endings": [" sings", "été à la mer", "\U0001f600\U0001f600"], "label": "1"},
    {"ctx": "A prompt that is longer than the context of this model", "endings": ["ends here", "goes on and on"], "label": 0},
    {"ctx": "Two and two", "endings": ["are four", "are five", "are three or so"], "label": 2},
    {"ctx": "It was the best", "endings": ["of times", "of all", "x", "and it was the worst"], "label": 0},
]
done = 0
torch.set_num_threads(1)


def check(truth, what):
    global done
    done += 1
    print(f"{'ok' if truth else 'not ok'} {done} - {what}", flush=True)
    return truth


def close(a, b, tolerance=1e-5):
    return abs(a - b) <= tolerance * abs(b)


def models():
    """Two families with expectations that differ from token to token; one position more than the windows here, since the page
    feeds the last token of a window, too."""
    torch.manual_seed(3)
    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT + 1, n_layer=2, n_head=2, n_embd=32))
    llama = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, max_position_embeddings=CONTEXT + 1, num_hidden_layers=2, hidden_size=32,
                                         num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, tie_word_embeddings=False))
    for name, model in (("gpt", gpt), ("llama", llama)):
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(8)
        yield name, model.eval()


def byte_files(folder):
    """GPT-2's two files with a token for each byte."""
    seen = [b for b in range(256) if 33 <= b <= 126 or (b >= 161 and b != 173)]
    unseen = [b for b in range(256) if b not in seen]
    vocab = {chr(b if b in seen else 256 + unseen.index(b)): b for b in range(256)}
    (folder / "vocab.json").write_text(json.dumps({**vocab, "<|endoftext|>": 256}), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n")


def nats(model, ids, first):
    """-log p of ids[first:], one by one, after all before them."""
    with torch.no_grad():
        p = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    return [-p[i - 1, ids[i]].item() for i in range(first, len(ids))]


def page(model, ids, max_length, stride):
    """The loop of https://huggingface.co/docs/transformers/perplexity, where a window's mean is weighted by its number of targets. (The
    page takes one less from the second window on, though none is lost there.)"""
    total, count, before = 0.0, 0, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + max_length, len(ids))
        fresh = end - before
        window = nats(model, ids[begin:end], max(1, end - begin - fresh))
        total, count, before = total + sum(window), count + len(window), end
        if end == len(ids):
            break
    return total / count, count


def twin(model):
    """acc, acc_norm (per character), acc_norm_per_token."""
    right = [0, 0, 0]
    for q in QUESTIONS:
        costs = []
        for ending in q["endings"]:
            tail = list((ending if ending.startswith(" ") else " " + ending).encode())
            ids = (list(q["ctx"].encode()) + tail)[-(CONTEXT + 1):]
            cost = sum(nats(model, ids, len(ids) - len(tail)))
            costs.append((cost, cost / len(ending), cost / len(tail)))
        for s in range(3):
            right[s] += min(range(len(costs)), key=lambda i: costs[i][s]) == int(q["label"])
    return [n / len(QUESTIONS) for n in right]


def tern(*arguments):
    ran = subprocess.run([TERN, "eval", *arguments, "--json"], capture_output=True, text=True, timeout=120)
    if ran.returncode != 0:
        sys.exit(f"{arguments}: {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return json.loads(ran.stdout)


with tempfile.TemporaryDirectory(prefix="tern_evaluate_") as top:
    top = pathlib.Path(top)
    ids = [(7 * i + i * i % 31 + (i % 9 == 0)) % 256 for i in range(150)]
    (top / "val_0.bin").write_bytes(array.array("H", ids).tobytes())
    (top / "choices.jsonl").write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    for name, model in models():
        folder = top / name
        model.save_pretrained(folder)
        byte_files(folder)
        for stride in STRIDES:
            got = tern("--model", folder, "--data", top / "val_*.bin", "--context", str(CONTEXT), "--stride", str(stride), "--batch", "3")
            loss, count = page(model, ids, CONTEXT + 1, stride)
            check(got["tokens"] == count and close(got["loss"], loss), f"{name}, stride {stride}: the page has {loss}, here is {got}")
            check(close(got["bits_per_byte"], loss / 0.6931471805599453), f"{name}: bits per byte")
        got = tern("--model", folder, "--choices", top / "choices.jsonl", "--context", str(CONTEXT), "--batch", "3")
        wanted = twin(model)
        check([got["acc"], got["acc_norm"], got["acc_norm_per_token"]] == wanted, f"{name}: the slow implementation chooses {wanted}, here is {got}")
print(f"1..{done}")
