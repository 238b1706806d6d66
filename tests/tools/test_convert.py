#!/usr/bin/env python3
"""`tern convert`: a sharded checkpoint of three ranks, as one file and as weights; models in every format and back, with the tokenizer's
files; and errors."""
import json
import os
import random
import resource
import signal
import struct

from launch import TESTS, has, holds, main, run, tern, test, write

VOCAB, CONTEXT, WIDTH, HEADS, LAYERS = 11, 8, 8, 2, 2


def expect(status, part, *arguments, before=None):
    has(tern("convert", *arguments, code=status, preexec_fn=before), part)


def full_disk():
    """For a child: no file gets longer than a little."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def names(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def same_bytes(a, b):
    with open(a, "rb") as x, open(b, "rb") as y:
        holds(x.read() == y.read(), "%s and %s differ" % (a, b))


@test
def checkpoint():
    """a sharded checkpoint of three ranks, as one file and as weights; wrong command lines"""
    parts, one, weights, folder = "parts", "one", "weights", "."
    run("--standalone", "-n", "3", os.path.join(TESTS, "fault_program"), "--stage", "3", "--steps", "6", "--out", folder)
    expect(0, "", parts, "--to", one)
    expect(0, "", os.path.join(parts, "step-000003"), "--weights", "--to", weights)
    told = names(one)
    holds(told["__metadata__"]["step"] == "6", "one is not the newest step: %s" % told["__metadata__"])
    holds(told["model.in.weight"]["shape"] == [512, 256], "the tensor is not whole: %s" % told["model.in.weight"])
    holds("optim.in.weight.exp_avg" in told, "there is no state")
    told = names(weights)
    holds(told["in.weight"]["shape"] == [512, 256] and not any(name.startswith("optim.") for name in told), "other weights: %s" % told)
    holds(list(told["__metadata__"]) == ["model"], "other metadata: %s" % told["__metadata__"])

    expect(0, "FOLDER --to FILE", "--help")
    expect(64, "no source", "--to", one)
    expect(64, "no target to write", parts)
    expect(64, "one folder", parts, folder, "--to", one)
    expect(1, "nowhere: No such file", "nowhere", "--to", one)
    expect(1, "has no committed step", folder, "--to", one)
    expect(1, "/nowhere/at/all", parts, "--to", "/nowhere/at/all")
    # inputs are not replaced, whatever their path
    step = os.path.join(parts, "step-000006")
    rank, before = os.path.join(step, "rank-00000.safetensors"), {name: os.stat(os.path.join(step, name)) for name in os.listdir(step)}
    os.symlink(rank, "link")
    os.link(rank, "other")
    for source in (parts, step):
        for target in (rank, "link", "other", os.path.join(parts, "..", "parts", "step-000006", "index.json")):
            expect(1, "tern convert: the output %s would replace %s" % (target, source), source, "--to", target)
            expect(1, "tern convert: the output %s would replace %s" % (target, source), source, "--weights", "--to", target)
    lock = os.path.join(parts, "lock")  # a job that continues there would lose its lock
    before_lock = os.stat(lock)
    for target in (lock, os.path.join(parts, "step-000006", "..", "lock"), "lock"):
        expect(1, "tern convert: %s has the name of a run's lock" % target, parts, "--to", target)
    expect(1, "has the name of a run's lock", one, lock)
    holds(os.stat(lock) == before_lock and not os.path.exists("lock"), "a lock was replaced")
    os.link(rank, "link.bin")
    expect(1, "link.bin would replace", parts, "link.bin")
    for name in ("link", "other", "link.bin"):
        os.remove(os.path.join(folder, name))
    after = {name: os.stat(os.path.join(step, name)) for name in os.listdir(step)}
    expect(0, "", parts, "--to", os.path.join(parts, "whole"))
    expect(0, "", parts, "--to", os.path.join(parts, "whole"))  # in the run's folder, but no part of the step
    os.remove(os.path.join(parts, "whole"))
    holds({k: (v.st_ino, v.st_mtime_ns) for k, v in before.items()} == {k: (v.st_ino, v.st_mtime_ns) for k, v in after.items()}, "a step was changed")

    with open(os.path.join(parts, "step-000006", "rank-00001.safetensors"), "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last[0] ^ 1]))
    before = os.stat(one)
    expect(1, "is damaged: its digest is", parts, "--to", one)
    holds(os.stat(one) == before, "a file was replaced by nothing")
    holds(sorted(os.listdir(folder)) == ["loss.csv", "one", "parts", "weights"], "left behind: %s" % os.listdir(folder))
    os.remove(os.path.join(parts, "step-000006", "rank-00001.safetensors"))
    expect(1, "tern convert: %s/step-000006/rank-00001.safetensors: No such file" % parts, parts, "--to", one)


def write_folder(folder):
    """A GPT-2 as others write it: without the prefix, and with the output head."""
    shapes = {"wte.weight": (VOCAB, WIDTH), "wpe.weight": (CONTEXT, WIDTH), "ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
    for i in range(LAYERS):
        for name, rows, columns in (("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH), ("mlp.c_fc", WIDTH, 4 * WIDTH),
                                    ("mlp.c_proj", 4 * WIDTH, WIDTH)):
            shapes["h.%d.%s.weight" % (i, name)] = (rows, columns)
            shapes["h.%d.%s.bias" % (i, name)] = (columns,)
        for name in ("ln_1", "ln_2"):
            shapes["h.%d.%s.weight" % (i, name)] = shapes["h.%d.%s.bias" % (i, name)] = (WIDTH,)
    draw, header, data = random.Random(1), {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += struct.pack("<%df" % count, *(draw.gauss(0, 1) for _ in range(count)))
    text = json.dumps(header).encode()
    os.mkdir(folder)
    write(os.path.join(folder, "model.safetensors"), struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "gpt2", "vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS}, f)
    write(os.path.join(folder, "merges.txt"), "#version: 0.2\na b\n")


@test
def models():
    """models in every format and back, with the tokenizer's files, and errors"""
    write_folder("others")
    expect(0, "", "others", "ours")
    told = names("ours/model.safetensors")
    holds(told["transformer.h.1.mlp.c_fc.weight"] == dict(told["transformer.h.1.mlp.c_fc.weight"], dtype="F32", shape=[WIDTH, 4 * WIDTH]),
         "other weights: %s" % told)
    same_bytes("others/merges.txt", "ours/merges.txt")

    # there and back again
    expect(0, "", "--plain", "ours", "plain")
    holds(sorted(os.listdir("plain")) == ["config.json", "merges.txt", "tern.safetensors"], "plain has %s" % os.listdir("plain"))
    expect(0, "", "plain", "from_plain")
    same_bytes("ours/model.safetensors", "from_plain/model.safetensors")
    expect(0, "", "plain/tern.safetensors", "from_file")
    same_bytes("ours/model.safetensors", "from_file/model.safetensors")

    # int8, which only our own format has
    expect(0, "", "--int8", "ours", "bytes")
    told = names("bytes/tern.safetensors")
    holds(told["h.1.mlp.c_fc.weight"]["dtype"] == "I8" and told["h.1.mlp.c_fc.weight_scale"]["dtype"] == "F32", "not int8: %s" % told)
    expect(0, "", "--plain", "bytes", "bytes_again")
    same_bytes("bytes/tern.safetensors", "bytes_again/tern.safetensors")
    same_bytes("bytes/config.json", "bytes_again/config.json")
    expect(1, "which Hugging Face's files of such a model do not have", "bytes", "x")

    # inputs are not replaced, whatever their path
    os.symlink("ours", "link")
    for source, target in (("ours", "ours"), ("ours", "ours/../ours/."), ("ours", "link"), ("link", "ours"), ("plain/tern.safetensors", "plain")):
        expect(1, "which is also an input; choose another output", source, target, "--dtype", "bf16")
    same_bytes("ours/model.safetensors", "from_plain/model.safetensors")

    # another dtype
    expect(0, "", "ours", "half", "--dtype", "bf16")
    told = names("half/model.safetensors")
    holds(all(t["dtype"] == "BF16" for name, t in told.items() if name != "__metadata__"), "not bf16: %s" % told)
    with open("half/config.json") as f:
        holds(json.load(f)["dtype"] == "bfloat16", "config.json has another dtype")

    path = "half/model.safetensors"
    with open(path, "rb") as f:
        data = bytearray(f.read())
    begin = 8 + int.from_bytes(data[:8], "little") + told["transformer.ln_f.bias"]["data_offsets"][0]
    data[begin:begin + 2] = (0x47c3).to_bytes(2, "little")  # 99840 in bf16
    os.rename(path, "kept.safetensors")
    write(path, data)
    expect(1, '"transformer.ln_f.bias" has a number of size 99840, which is infinite in f16', "half", "x", "--dtype", "f16")
    holds(not os.path.exists("x"), "a refused conversion left a folder")
    os.rename("kept.safetensors", path)

    expect(0, "SOURCE TARGET", "--help")
    expect(64, "no source")
    expect(64, "no target", "ours")
    expect(64, 'unexpected "c" after a source and a target', "a", "b", "c")
    expect(64, '--dtype: "f8" should be f32, bf16 or f16', "ours", "x", "--dtype", "f8")
    expect(64, "--weights needs", "ours", "x", "--weights")
    expect(64, "no --dtype", "ours", "--to", "x", "--plain")
    expect(1, "No such file", "nowhere", "x")
    expect(1, "File too large", "ours", "x", before=full_disk)
    holds(not os.path.exists("x"), "a full disk left a folder")
    expect(1, "has neither config.json, as a model's folder has, nor a committed step of a checkpoint in parts", ".", "x")
    # what is there instead of weights
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n"
    for name, data, what in (("page.bin", b"<!DOCTYPE html>\n<html>404</html>", "page.bin is not a safetensors file; it is an HTML page"),
                             ("pointer.bin", pointer, "pointer.bin is not a safetensors file; it is a git-lfs pointer"),
                             ("torch.bin", b"PK\3\4" + bytes(2000), "torch.bin is not a safetensors file; it is a zip archive (PyTorch"),
                             ("half/model.safetensors", pointer, "half/model.safetensors is not a safetensors file; it is a git-lfs pointer")):
        write(name, data)
        expect(1, what, name.replace("/model.safetensors", ""), "x")
    os.rename("half/model.safetensors", "half/pytorch_model.bin")
    expect(1, "pytorch_model.bin is not read (save_pretrained of transformers writes it as safetensors)", "half", "x")
    holds(not os.path.exists("x"), "what failed left a folder")


main()
