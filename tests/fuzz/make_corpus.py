#!/usr/bin/env python3
"""Writes the seeds of tests/fuzz/corpus: small safetensors files and checkpoints, right ones and wrong ones.

    python3 tests/fuzz/make_corpus.py

A second writer of both formats, in a few lines. The digests of the checkpoints are zeros: the target puts them right. What a fuzz
run finds is added to the same folders by hand.
"""
import json, pathlib, struct

here = pathlib.Path(__file__).parent / "corpus"
dtypes = {"F32": 4, "F64": 8, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}


def pack(header, data, pad=True):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8 if pad else 0)
    return struct.pack("<Q", len(text)) + text + data


def file_of(tensors, metadata=None):
    """tensors: (name, dtype, shape, data) in the order of the data."""
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    return header, b"".join(t[3] for t in tensors)


def one(dtype="U8", shape=(1,), offsets=(0, 1)):
    return {"a": {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


safetensors = {
    "empty": pack({}, b""),
    "metadata": pack({"__metadata__": {"format": "pt", "é": "ü"}}, b""),
    "all_dtypes": pack(*file_of([(d, d, [2], bytes(2 * n)) for d, n in dtypes.items()])),
    "scalar_and_empty": pack(*file_of([("s", "F32", [], b"\0\0\x80\x3f"), ("e", "I64", [3, 0], b"")])),
    "eight_dims": pack(*file_of([("x", "U8", [1, 2, 1, 1, 1, 1, 1, 1], b"\1\2")])),
    "nine_dims": pack(one(shape=[1] * 9), b"\0"),
    "unaligned": pack(*file_of([("u", "U8", [1], b"\1"), ("f", "F64", [1], bytes(8))]), pad=False),
    "bad_bool": pack(one("BOOL"), b"\2"),
    "hole": pack(one(offsets=(1, 2)), b"\0\0"),
    "overlap": pack({**one(shape=(2,), offsets=(0, 2)), "b": one(offsets=(1, 2))["a"]}, b"\0\0"),
    "surplus": pack(one(), b"\0\0"),
    "short": pack(one(shape=(4,), offsets=(0, 4)), b"\0"),
    "product_overflow": pack(one(shape=(2**32, 2**32), offsets=(0, 0)), b""),
    "stride_overflow": pack(one(shape=(2**32, 0, 2**32), offsets=(0, 0)), b""),
    "largest_size": pack(one("F64", (2**63 - 1,), (0, 8)), bytes(8)),
    "beyond_i64": pack(one(shape=(2**63,)), b"\0"),
    "negative": pack(one(shape=(-1,)), b"\0"),
    "real_size": pack(b'{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}', b"\0"),
    "duplicate": pack(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b""),
    "control_name": pack(b'{"\\u001b[2J":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\0"),
    "nul_name": pack(b'{"a\\u0000b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\0"),
    "unknown_dtype": pack(one("F8_E4M3"), b"\0"),
    "deep": pack(b'{"a":' + b"[" * 600, b""),
    "length_too_large": struct.pack("<Q", 2**63) + b"{}",
    "length_zero": struct.pack("<Q", 0) + b"{}",
    "seven_bytes": b"\2\0\0\0\0\0\0",
}


def checkpoint(changes=(), drop=(), tensors=None):
    metadata = {
        "digest": "0" * 32,
        "format": "tern-checkpoint-1",
        "step": "9",
        "note": "a note",
        "optim": "adamw 9 0x1p-1 1",
        "optim.group.0": "0x1p+0 0x1.47ae147ae147bp-7",
        "schedule": "kind 0, peak 0x1p-1, end 0x1p-1, warm-up 0, steps 0",
        "loader": "tensors of 3, order 1, seed 1, shared by rule 0, short batches kept",
        "loader.place": "2 1",
        "loader.share": "1 1",
        "generator": "18446744073709551615 0 7",
    }
    metadata.update(changes)
    for key in drop:
        del metadata[key]
    f32 = lambda n: struct.pack(f"<{n}f", *range(n))
    tensors = tensors or [
        ("optim.bias.step", "I64", [], struct.pack("<q", 9)),
        ("optim.weight.step", "I64", [], struct.pack("<q", 9)),
        ("model.bias", "F32", [1], f32(1)),
        ("model.weight", "F32", [1, 2], f32(2)),
        ("optim.bias.exp_avg", "F32", [1], f32(1)),
        ("optim.bias.exp_avg_sq", "F32", [1], f32(1)),
        ("optim.weight.exp_avg", "F32", [1, 2], f32(2)),
        ("optim.weight.exp_avg_sq", "F32", [1, 2], f32(2)),
    ]
    return pack(*file_of(tensors, metadata))


checkpoints = {
    "whole": checkpoint(),
    "no_schedule": checkpoint(drop=["schedule"]),
    "no_optim": checkpoint(drop=["optim", "optim.group.0"]),
    "no_group": checkpoint(drop=["optim.group.0"]),
    "no_tensors": checkpoint(tensors=[("model.bias", "F32", [1], bytes(4))]),
    "no_digest": checkpoint(drop=["digest"]),
    "other_format": checkpoint({"format": "tern-checkpoint-2"}),
    "step_negative": checkpoint({"step": "-1"}),
    "step_too_large": checkpoint({"step": "9223372036854775808"}),
    "step_text": checkpoint({"step": "9 "}),
    "long_note": checkpoint({"note": "x" * 256}),
    "lr_nan": checkpoint({"optim": "adamw 9 nan 1"}),
    "lr_infinite": checkpoint({"optim": "adamw 9 0x1p+5000 1"}),
    "groups": checkpoint({"optim": "adamw 9 0x1p-1 2000000000"}),
    "sgd": checkpoint({"optim": "sgd 9 0x1p-1 1"}),
    "place_outside": checkpoint({"loader.place": "0 3"}),
    "place_huge": checkpoint({"loader.place": "9223372036854775807 0"}),
    "share_zero": checkpoint({"loader.share": "0 0"}),
    "share_huge": checkpoint({"loader.share": "9223372036854775807 9223372036854775806"}),
    "share_of_two": checkpoint({"loader.share": "1 2"}),
    "generator_short": checkpoint({"generator": "1 2"}),
    "generator_too_large": checkpoint({"generator": "18446744073709551616 0 7"}),
    "wrong_shape": checkpoint(tensors=[("model.bias", "F32", [2], bytes(8)), ("model.weight", "F32", [1, 2], bytes(8))]),
    "wrong_dtype": checkpoint(tensors=[("model.bias", "F64", [1], bytes(8)), ("model.weight", "F32", [1, 2], bytes(8))]),
}

for target, seeds in (("fuzz_safetensors", safetensors), ("fuzz_checkpoint", checkpoints)):
    folder = here / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (folder / name).write_bytes(data)
