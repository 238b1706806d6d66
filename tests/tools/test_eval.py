#!/usr/bin/env python3
"""`tern eval`: what it prints, with the same digits for any number of ranks, and its errors about files and options."""
import json
import math
import os
import shutil
import subprocess

from launch import TERN, TESTS, complete, environment, has, holds, main, same, tern, test, write

QUESTION = {"ctx": "She", "endings": ["sings", "sang a song"], "label": 1}


def files():
    """A model with its tokenizer, shards and questions, in the folder of the test."""
    complete(os.path.join(TESTS, "eval_files"), "m")
    with open("choices.jsonl", "w") as f:
        for label in (0, 1, 1, "0", 1):
            f.write(json.dumps({**QUESTION, "label": label}) + "\n")


def evaluate(*arguments, ranks=0, status=0, stdout=subprocess.PIPE):
    start = [TERN, "run", "--standalone", "-n", str(ranks)] if ranks else []
    done = subprocess.run([*start, TERN, "eval", *arguments], env=environment(), stdout=stdout, stderr=subprocess.PIPE, timeout=120)
    errors = done.stderr.decode()
    same(done.returncode, status, errors)
    return errors if status else done.stdout.decode()


def result(*arguments, **more):
    shown = evaluate(*arguments, "--json", **more)
    numbers = json.loads(shown[shown.index("{"):])
    holds(numbers.pop("seconds") >= 0)
    return numbers


@test
def perplexity_on_any_number_of_ranks():
    files()
    arguments = ("--model", "m", "--data", "m/val_*.bin", "--stride", "5", "--batch", "3")
    one = result(*arguments)
    same([one["tokens"], one["windows"], one["context"], one["stride"]], [149, 26, 24, 5])
    holds(one["perplexity"] == math.exp(one["loss"]), one)
    holds(abs(one["bits_per_byte"] * math.log(2) - one["loss"]) < 1e-12, one)
    for ranks in (1, 2, 3):
        same(result(*arguments, ranks=ranks), one)


@test
def choices_on_any_number_of_ranks():
    files()
    one = result("--model", "m", "--choices", "choices.jsonl", "--batch", "3")
    same(one["questions"], 5)
    holds(one["acc"] in (0.4, 0.6) and one["acc_norm"] in (0.4, 0.6), one)
    for ranks in (2, 3):
        same(result("--model", "m", "--choices", "choices.jsonl", "--batch", "3", ranks=ranks), one)


@test
def on_a_mesh():
    """a model that lies on several ranks: the digits of one, up to rounding where matrices are split; only one rank prints"""
    files()
    for arguments in (("--data", "m/val_0.bin", "--stride", "5", "--batch", "3"), ("--choices", "choices.jsonl", "--batch", "3")):
        one = result("--model", "m", *arguments)
        for ranks, mesh in ((2, "pp=2"), (3, "pp=3"), (4, "pp=2,dp=2"), (4, "pp=2,shard=2"), (2, "shard=2"), (4, "pp=2,tp=2"),
                            (4, "pp=2,cp=2"), (4, "tp=2")):
            shown = evaluate("--model", "m", *arguments, "--mesh", mesh, "--json", ranks=ranks)
            same(shown.count("{"), 1, shown)
            numbers = json.loads(shown[shown.index("{"):])
            holds(numbers.pop("seconds") >= 0)
            if "tp" in mesh or "cp" in mesh:
                for name, value in one.items():
                    if isinstance(value, float):
                        holds(abs(numbers[name] - value) < 1e-6 * value, (mesh, name, numbers[name], value))
                        numbers[name] = value
            same(numbers, one, mesh)
    wanted = result("--model", "m", "--data", "m/val_0.bin", "--dtype", "int8")
    same(result("--model", "m", "--data", "m/val_0.bin", "--dtype", "int8", "--mesh", "pp=2", ranks=2), wanted)
    errors = evaluate("--model", "m", "--data", "m/val_0.bin", "--mesh", "pp=2,tp=3", ranks=2, status=1)
    has(errors, "tern eval: ", "(tern run -n 6 would do)")
    errors = evaluate("--model", "m", "--data", "m/val_0.bin", "--mesh", "tp=3", ranks=3, status=1)
    has(errors, "3 ranks do not divide 2 heads")


@test
def what_a_person_sees():
    files()
    shown = evaluate("--model", "m", "--data", "m/val_0.bin")
    has(shown, "149 tokens, 7 windows of 24, stride 24\n", "loss ", "perplexity ", "bits per byte ")
    shown = evaluate("--model", "m", "--choices", "choices.jsonl")
    has(shown, "5 questions, 10 endings\n", "acc 0.", "acc_norm 0.", "acc_norm_per_token 0.")


@test
def dtypes():
    files()
    losses = {dtype: result("--model", "m", "--data", "m/val_0.bin", "--dtype", dtype)["loss"] for dtype in ("f32", "bf16", "int8")}
    same(losses["f32"], result("--model", "m", "--data", "m/val_0.bin")["loss"])
    for less in ("bf16", "int8"):
        holds(0 < abs(losses["f32"] - losses[less]) < 0.01 * losses["f32"], losses)


@test
def a_model_without_a_tokenizer():
    files()
    os.remove("m/vocab.json")
    shown = evaluate("--model", "m", "--data", "m/val_0.bin")
    holds("bits per byte" not in shown, shown)
    has(evaluate("--model", "m", "--choices", "choices.jsonl", status=1), "tern eval: m has no tokenizer: --tokenizer PATH")
    has(evaluate("--model", "m", "--choices", "choices.jsonl", "--tokenizer", "nowhere", status=1), "tern eval: nowhere: No such file")


@test
def what_does_not_fit():
    files()
    write("more.bin", bytes([1, 0, 2, 0, 1, 1, 3, 0]))
    has(evaluate("--model", "m", "--data", "more.bin", status=1), "tern eval: more.bin: token 2 is 257 but the vocabulary has 257")
    write("text.bin", "It was the best of times.\n" * 20)
    has(evaluate("--model", "m", "--data", "text.bin", status=1), "tern eval: text.bin is text, not tokens")
    has(evaluate("--model", "m", "--data", "m/val_0.bin", "--context", "25", status=1), "--context 25: the model m sees 24 tokens at once")
    has(evaluate("--model", "m", "--data", "m/val_0.bin", "--stride", "25", status=1), "the stride is 25, not in [1, 24]")
    has(evaluate("--model", "m", "--data", "nowhere_*.bin", status=1), "tern eval: nowhere_*.bin: there is no such file")
    has(evaluate("--model", "nowhere", "--data", "m/val_0.bin", status=1), "tern eval: nowhere/config.json: No such file")
    with open("choices.jsonl", "a") as f:
        f.write('{"ctx": "a"}\n')
    has(evaluate("--model", "m", "--choices", "choices.jsonl", status=1), "tern eval: choices.jsonl:6: there is no list \"endings\"")
    tern("convert", "m", "plain", "--plain")
    os.truncate("plain/tern.safetensors", 100)
    has(evaluate("--model", "plain", "--data", "m/val_0.bin", status=1), "tern eval: plain/tern.safetensors")
    shutil.copytree("m", "large")
    vocab = json.load(open("large/vocab.json", encoding="utf-8"))
    json.dump({**vocab, "<|more|>": 257}, open("large/vocab.json", "w", encoding="utf-8"))
    has(evaluate("--model", "m", "--data", "m/val_0.bin", "--tokenizer", "large", status=1),
        "tern eval: the tokenizer large has 258 tokens, the model m has 257")


@test
def tokens_of_another_tokenizer():
    """ids with other meanings would give a plausible wrong number; tokens.json shows it"""
    files()
    shutil.copytree("m", "other")
    vocab = json.load(open("other/vocab.json", encoding="utf-8"))
    json.dump({**vocab, "a": vocab["b"], "b": vocab["a"]}, open("other/vocab.json", "w", encoding="utf-8"))
    write("text.txt", "It was the best of times.\n" * 20)
    for words in ("m", "other"):
        tern("tokens", "text.txt", "--tokenizer", words, "--val", "0", "--out", "by_" + words)
    evaluate("--model", "m", "--data", "by_m/train_*.bin")
    has(evaluate("--model", "m", "--data", "by_other/train_*.bin", status=1),
        "by_other/train_000000.bin was made with another tokenizer (tokens.json beside it)")


@test
def an_error_ends_all_ranks():
    files()
    errors = evaluate("--model", "m", "--data", "nowhere_*.bin", ranks=2, status=1)
    has(errors, "nowhere_*.bin: there is no such file")
    with open("m/val_0.bin", "r+b") as f:
        f.seek(2 * 140)
        f.write(bytes([1, 1]))
    errors = evaluate("--model", "m", "--data", "m/val_0.bin", "--stride", "5", "--batch", "3", ranks=3, status=1)
    has(errors, "token 140 is 257 but the vocabulary has 257")


@test
def wrong_options():
    for arguments, what in ((["--data", "x"], "no model: --model DIR"), (["--model", "m"], "either --data PATTERN or --choices FILE"),
                            (["--model", "m", "--data", "x", "--choices", "y"], "either --data PATTERN or --choices FILE"),
                            (["--model", "m", "--choices", "x", "--stride", "4"], "--stride is for --data"),
                            (["--model", "m", "--data", "x", "--batch", "0"], '--batch: "0" should be a whole number from 1 to 2147483647'),
                            (["--model", "m", "--data", "x", "--dtype", "f8"], '--dtype: "f8" should be f32, bf16 or int8'),
                            (["--model", "m", "--data", "val_0.bin", "val_1.bin"], 'unexpected "val_1.bin": a pattern must be in quotes')):
        has(evaluate(*arguments, status=64), what)


@test
def a_full_disk():
    files()
    with open("/dev/full", "w") as full:
        has(evaluate("--model", "m", "--data", "m/val_0.bin", status=1, stdout=full), "tern: stdout: No space left on device")


main()
