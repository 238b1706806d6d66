#!/usr/bin/env python3
"""`tern convert SOURCE TARGET`: models in every format and back, with the tokenizer's files, and errors."""
import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile

from launch import TERN, environment

VOCAB, CONTEXT, WIDTH, HEADS, LAYERS = 11, 8, 8, 2, 2


def need(condition, text):
    if not condition:
        sys.exit(text)


def expect(status, part, *arguments, before=None):
    done = subprocess.run([TERN, "convert", *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
                          preexec_fn=before, check=False)  # pylint: disable=subprocess-popen-preexec-fn
    text = done.stdout.decode(errors="replace")
    need(done.returncode == status and part in text, "%s: ended with %d: %s" % (arguments, done.returncode, text))


def full_disk():
    """For a child: no file gets longer than a little."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))


def names(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def same(a, b):
    with open(a, "rb") as x, open(b, "rb") as y:
        need(x.read() == y.read(), "%s and %s differ" % (a, b))


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
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "gpt2", "vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": WIDTH, "n_head": HEADS, "n_layer": LAYERS}, f)
    with open(os.path.join(folder, "merges.txt"), "w") as f:
        f.write("#version: 0.2\na b\n")


with tempfile.TemporaryDirectory(prefix="tern_convert_") as top:
    def at(*path):
        return os.path.join(top, *path)

    write_folder(at("others"))
    expect(0, "", at("others"), at("ours"))
    told = names(at("ours", "model.safetensors"))
    need(told["transformer.h.1.mlp.c_fc.weight"] == dict(told["transformer.h.1.mlp.c_fc.weight"], dtype="F32", shape=[WIDTH, 4 * WIDTH]),
         "other weights: %s" % told)
    same(at("others", "merges.txt"), at("ours", "merges.txt"))

    # there and back again
    expect(0, "", "--plain", at("ours"), at("plain"))
    need(sorted(os.listdir(at("plain"))) == ["config.json", "merges.txt", "tern.safetensors"], "plain has %s" % os.listdir(at("plain")))
    expect(0, "", at("plain"), at("from_plain"))
    same(at("ours", "model.safetensors"), at("from_plain", "model.safetensors"))
    expect(0, "", at("plain", "tern.safetensors"), at("from_file"))
    same(at("ours", "model.safetensors"), at("from_file", "model.safetensors"))

    # int8, which only our own format has
    expect(0, "", "--int8", at("ours"), at("bytes"))
    told = names(at("bytes", "tern.safetensors"))
    need(told["h.1.mlp.c_fc.weight"]["dtype"] == "I8" and told["h.1.mlp.c_fc.weight_scale"]["dtype"] == "F32", "not int8: %s" % told)
    expect(0, "", "--plain", at("bytes"), at("bytes_again"))
    same(at("bytes", "tern.safetensors"), at("bytes_again", "tern.safetensors"))
    same(at("bytes", "config.json"), at("bytes_again", "config.json"))
    expect(1, "which Hugging Face's files of such a model do not have", at("bytes"), at("x"))

    # inputs are not replaced, whatever their path
    os.symlink(at("ours"), at("link"))
    for source, target in (("ours", "ours"), ("ours", "ours/../ours/."), ("ours", "link"), ("link", "ours"), ("plain/tern.safetensors", "plain")):
        expect(1, "which is also an input; choose another output", at(source), at(target), "--dtype", "bf16")
    same(at("ours", "model.safetensors"), at("from_plain", "model.safetensors"))

    # another dtype
    expect(0, "", at("ours"), at("half"), "--dtype", "bf16")
    told = names(at("half", "model.safetensors"))
    need(all(t["dtype"] == "BF16" for name, t in told.items() if name != "__metadata__"), "not bf16: %s" % told)
    with open(at("half", "config.json")) as f:
        need(json.load(f)["dtype"] == "bfloat16", "config.json has another dtype")

    path = at("half", "model.safetensors")
    with open(path, "rb") as f:
        data = bytearray(f.read())
    begin = 8 + int.from_bytes(data[:8], "little") + told["transformer.ln_f.bias"]["data_offsets"][0]
    data[begin:begin + 2] = (0x47c3).to_bytes(2, "little")  # 99840 in bf16
    os.rename(path, at("kept.safetensors"))
    with open(path, "wb") as f:
        f.write(data)
    expect(1, '"transformer.ln_f.bias" has a number of size 99840, which is infinite in f16', at("half"), at("x"), "--dtype", "f16")
    need(not os.path.exists(at("x")), "a refused conversion left a folder")
    os.rename(at("kept.safetensors"), path)

    expect(0, "SOURCE TARGET", "--help")
    expect(64, "no source")
    expect(64, "no target", at("ours"))
    expect(64, 'unexpected "c" after a source and a target', "a", "b", "c")
    expect(64, '--dtype: "f8" should be f32, bf16 or f16', at("ours"), at("x"), "--dtype", "f8")
    expect(64, "--weights needs", at("ours"), at("x"), "--weights")
    expect(64, "no --dtype", at("ours"), "--to", at("x"), "--plain")
    expect(1, "No such file", at("nowhere"), at("x"))
    expect(1, "File too large", at("ours"), at("x"), before=full_disk)
    need(not os.path.exists(at("x")), "a full disk left a folder")
    expect(1, "has neither config.json, as a model's folder has, nor a committed step of a checkpoint in parts", top, at("x"))
    # what is there instead of weights
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n"
    for name, data, what in (("page.bin", b"<!DOCTYPE html>\n<html>404</html>", "page.bin is not a safetensors file; it is an HTML page"),
                             ("pointer.bin", pointer, "pointer.bin is not a safetensors file; it is a git-lfs pointer"),
                             ("torch.bin", b"PK\3\4" + bytes(2000), "torch.bin is not a safetensors file; it is a zip archive (PyTorch"),
                             ("half/model.safetensors", pointer, "half/model.safetensors is not a safetensors file; it is a git-lfs pointer")):
        with open(at(name), "wb") as f:
            f.write(data)
        expect(1, what, at(name.replace("/model.safetensors", "")), at("x"))
    os.rename(at("half", "model.safetensors"), at("half", "pytorch_model.bin"))
    expect(1, "pytorch_model.bin is not read (save_pretrained of transformers writes it as safetensors)", at("half"), at("x"))
    need(not os.path.exists(at("x")), "what failed left a folder")
