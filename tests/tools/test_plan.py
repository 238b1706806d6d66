#!/usr/bin/env python3
"""`tern plan`: what it prints, what it refuses, and what documents show of it. That its numbers are right is for
tests/parallel/test_plan.c; no number here is of time."""
import json
import os
import re
import sys

from launch import TERN, complete, has, holds, main, same, test

ROOT = os.environ.get("TERN_ROOT", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
GPT = {"model_type": "gpt2", "vocab_size": 101, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4}
LLAMA = {"model_type": "llama", "vocab_size": 101, "max_position_embeddings": 64, "hidden_size": 32, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
         "hidden_act": "silu", "tie_word_embeddings": False}


def planned(*args):
    done = complete(TERN, "plan", *map(str, args))
    same(done.stderr, b"")
    return done.stdout.decode()


def numbers(*args):
    lines = [json.loads(line) for line in planned(*args, "--json").splitlines()]
    return lines if "--search" in args else lines[0]


def model(config):
    folder = "a-" + config["model_type"]
    os.makedirs(folder, exist_ok=True)
    with open(folder + "/config.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    return folder


def refused(status, words, *args):
    done = complete(TERN, "plan", *map(str, args), code=status)
    has(done.stderr, words)
    same(done.stdout, b"")


@test
def a_plan_as_text():
    out = planned("--model", "gpt2", "--ranks", 4, "--batch", 2, "--tokens", 32768, "--mesh", "tp=2,pp=2")
    has(out, "gpt2, 124.4 M parameters, bf16, on 4 ranks, 32768 tokens a step, micro-batches of 2\n", "GB of rank ",
        ", with 16 micro-batches a step\n", "weights ", "activations, modelled ", "at most, modelled ", "it fits in ",
        "seconds of a step, modelled\n", "waiting for other stages ", "\nmodelled:\n", "   2    1     1    1    2     0        no ")
    has(planned("--ranks", 2, "--memory", 1), "IT DOES NOT FIT IN  ")


@test
def parameters_of_models():
    same(numbers("--model", "gpt2")["parameters"], 124439808)
    same(numbers("--model", "gpt2-medium")["parameters"], 354823168)
    same(numbers("--model", "gpt2-large")["parameters"], 774030080)
    same(numbers("--model", "gpt2-xl")["parameters"], 1557611200)
    for config, count in ((GPT, 3 * (12 * 1024 + 13 * 32) + (101 + 64 + 2) * 32),
                          (LLAMA, 3 * (3 * 1024 + 3 * 32 * 48 + 2 * 32) + 2 * 101 * 32 + 32)):
        p = numbers("--model", model(config), "--precision", "f32", "--tokens", 64)
        same(p["parameters"], count)
        same(p["weights"], 4 * count)
        same(p["micros"], 1)


@test
def llamas_by_name():
    """The sizes that their makers say."""
    for name, count in (("1b", 1235814400), ("3b", 3212749824), ("8b", 8030261248), ("70b", 70553706496), ("405b", 405853388800)):
        p = numbers("--model", "llama-" + name, "--ranks", 8, "--mesh", "tp=8")
        same((p["parameters"], p["micros"]), (count, 512 * 1024 // 8192))
    same(numbers("--model", "llama-8b", "--context", 16384, "--ranks", 8, "--mesh", "shard=8")["micros"], 4)
    refused(64, "--model llama: neither", "--model", "llama")


@test
def devices_by_name():
    """Their memory, and how fast they are beside each other; what is given counts more."""
    fits = ["--model", "llama-8b", "--ranks", 8, "--mesh", "shard=8", "--batch", 2]
    same([numbers(*fits, "--gpu", gpu)["fits"] for gpu in ("a100", "h100", "h200", "b200")], [False, False, True, True])
    seconds = [numbers(*fits, "--gpu", gpu)["seconds"] for gpu in ("a100", "h100", "h200", "b200")]
    same(seconds, sorted(seconds, reverse=True))
    same(len(set(seconds)), 4)
    same(numbers(*fits, "--gpu", "a100"), numbers(*fits))
    given = ("--memory", 80, "--flops", 312, "--reached", 0.6, "--memory-speed", 1600, "--host-link", 235, "--network-link", 20)
    same(numbers(*fits, "--gpu", "b200", *given), numbers(*fits))
    same(numbers("--precision", "f32", "--gpu", "h100", "--reached", 1)["seconds"] < numbers("--precision", "f32")["seconds"], True)
    refused(64, "a100, h100, h200 or b200", "--gpu", "v100")


@test
def a_search_without_tokens():
    """Is for a step as people make it: of a step with one sequence of each group of 8 ranks the fastest mesh would be tp=8."""
    found = numbers("--model", "llama-8b", "--ranks", 64, "--search")
    same({p["tokens"] for p in found}, {512 * 1024})
    same((found[0]["shard"], found[0]["tp"]), (64, 1))
    same(numbers("--model", "llama-8b", "--ranks", 96, "--search")[0]["tokens"], 96 * 8192)
    same(numbers("--model", "llama-8b", "--ranks", 64, "--search", "--tokens", 65536)[0]["tokens"], 65536)


@test
def small_models():
    for line in planned("--model", model(GPT)).splitlines():
        same(" 0.000 " in line, False, line)


@test
def bytes_of_sharding():
    whole, parts = numbers("--model", "gpt2", "--precision", "f32"), numbers("--ranks", 4, "--mesh", "shard=4", "--precision", "f32")
    same(whole["weights"], 4 * 124439808)
    same(parts["weights"], 124439808)
    same(parts["states"] // 8, 124439808 // 4 + 148)  # a step count for each tensor
    same(numbers("--ranks", 4, "--mesh", "shard=4", "--offload")["host"] > 0, True)


@test
def searching():
    best = numbers("--model", "gpt2", "--ranks", 8, "--batch", 1, "--tokens", 65536, "--search")
    same(len(best), 10)
    same([p["seconds"] for p in best], sorted(p["seconds"] for p in best))
    holds(all(p["fits"] and p["pp"] * p["dp"] * p["shard"] * p["cp"] * p["tp"] == 8 for p in best), best)
    out = planned("--model", "gpt2", "--ranks", 8, "--batch", 1, "--tokens", 65536, "--search")
    same(len(out.splitlines()), 13)
    refused(1, "no mesh of 8 ranks fits in 0.1 GB", "--ranks", 8, "--memory", 0.1, "--search")


@test
def cost():
    cheap, dear = planned("--ranks", 2, "--price", 2), numbers("--ranks", 2)
    paid, hours = (float(word) for word in re.findall(r"modelled: (\S+) for a billion tokens of the first, in (\S+) hours", cheap)[0])
    holds(abs(hours / (1e9 * dear["seconds"] / dear["tokens"] / 3600) - 1) < 1e-3 and abs(paid / (2 * 2 * hours) - 1) < 1e-3, cheap)


@test
def what_is_refused():
    refused(64, "neither gpt2", "--model", "nothing")
    refused(64, "tp=x", "--mesh", "tp=x")
    refused(64, "pp=0", "--mesh", "pp=0")
    refused(64, "should be a number above 0", "--memory", "80G")
    refused(64, "a whole number", "--tokens", "1.5")
    refused(64, "unexpected", "gpt2")
    refused(1, "tp=5 does not divide 12 heads", "--ranks", 5, "--mesh", "tp=5")
    refused(1, "and there are 8", "--ranks", 8, "--mesh", "tp=3")
    for search in ([], ["--search"]):
        refused(1, "2048 positions: the model sees 1024", "--context", 2048, *search)
    for option in ("--memory", "--flops", "--reached", "--batch", "--ranks"):
        for wrong in ("0", "nan", "-1"):
            refused(64, option + ": ", option, wrong)


@test
def documents_show_what_it_prints():
    sys.path.insert(0, os.path.join(ROOT, "tests"))
    import check_docs  # pylint: disable=import-outside-toplevel
    tree = check_docs.Tree(ROOT)
    for page in ("docs/planning.md", "docs/sharding.md"):
        same(list(check_docs.printed(tree, tree.read(page))), [])


main()
