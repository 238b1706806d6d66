#!/usr/bin/env python3
"""Writes the seeds of tests/fuzz/corpus: small safetensors files and checkpoints, what clients say to a store, what ranks say to each other, environments of
launchers and what these say to each other, ELF files with line tables, settings in DeepSpeed's format, files of tokenizers, questions with endings, what is in
folders of language models, checkpoints of llm.c, arrays and archives of NumPy's, files of MNIST and CIFAR, tables, pictures; right ones and
wrong ones.

    python3 tests/fuzz/make_corpus.py

A second writer of these formats, in a few lines. The digests of the checkpoints are zeros: the target puts them right. What a fuzz
run finds is added to the same folders by hand.
"""
import base64, gzip, json, pathlib, struct, sys, zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from png_writer import DEPTHS, chunk, png

here = pathlib.Path(__file__).parent / "corpus"
dtypes = {"F32": 4, "F64": 8, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1, "I8": 1}


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
    "foreign_dtypes": pack(*file_of([("i", "U16", [1], b"\0\0"), ("f", "F32", [], bytes(4)), ("p", "F4", [2, 3], bytes(3)),
                                     ("n", "NEW", [7], b"\0")])),
    "half_a_byte": pack(one("F4", (3,)), b"\0"),
    "foreign_overflow": pack(one("C64", (2**60,), (0, 0)), b""),
    "foreign_size": pack(one("U64", (1,), (0, 4)), bytes(4)),
    "unknown_hole": pack(one("NEW", offsets=(1, 2)), b"\0\0"),
    "dtype_number": pack(b'{"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}}', b"\0"),
    "minus_zero": pack(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[-0,1]}}', b"\0"),
    "minus_zero_size": pack(b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', b""),
    "minus_zero_name": pack(b'{"\\"-0":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', b""),
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


described = {
    "model": ".: linear\n",
    "optim.options": "beta1 0.9, beta2 0.999, eps 1e-08",
    "optim.group.0.parameters": "2",
    "loader.data": "x f32[2], digest of x 10e45c7ce2292320743df94ee4c78a2a",
}

in_json = {
    "model": '{".":{"kind":"linear"}}',
    "optim": "adamw 9 0.5 1",
    "optim.group.0": "1 0.01",
    "optim.options": '{"beta1":0.9,"beta2":0.999,"eps":1e-08}',
    "optim.group.0.parameters": "2",
    "schedule": '{"kind":0,"peak":0.5,"end":0.5,"warm-up":0,"steps":0}',
    "loader": '{"dataset":"tensors","examples":3,"order":1,"seed":1,"shared by rule":0,"short batches":"kept"}',
    "loader.data": '{"x":"f32[2]","digest of x":"10e45c7ce2292320743df94ee4c78a2a"}',
}

checkpoints = {
    "whole": checkpoint(),  # as it was before checkpoints told their options
    "described": checkpoint(described),
    "json": checkpoint(in_json),
    "json_cut": checkpoint({**in_json, "schedule": '{"kind":0,"peak":0.5,'}),
    "json_lists": checkpoint({**in_json, "model": '{".":{"kind":["linear"],"options":[1,2],"training":{"a":{"b":[null]}}},"a":1}'}),
    "json_options": checkpoint({**in_json, "optim.options": '{"beta1":[0.9],"beta2":null,"eps":"1e-08","\\u001b[2J":{},"eps":2}'}),
    "json_many": checkpoint({**in_json, "model": "{" + ",".join(f'"{i}":{{"kind":"linear","options":{{"a":{i}}}}}' for i in range(300)) + "}"}),
    "other_model": checkpoint({**described, "model": ".: mlp, activation relu; p 1\n0: linear\n\n:\n;,\n"}),
    "other_options": checkpoint({**described, "optim.options": "beta1 0.9, , beta2,eps 1e-08 , =, x " + "y" * 200}),
    "other_data": checkpoint({**described, "loader.data": "x f32[3], digest of x \u001b[2J"}),
    "other_groups": checkpoint({**described, "optim.group.0.parameters": ""}),
    "many_modules": checkpoint({**described, "model": "".join(f"{i}: linear, a {i}\n" for i in range(300))}),
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

# ---- What clients say to the server of the TCP store (distributed/store/wire.h) ----------------------------------------------

SET, GET, ADD, COMPARE_SET, CHECK, REMOVE = range(1, 7)
TIME, LEAVE, PROVE = 4, 8, 12


def request(kind, key=b"key", first=b"", second=b"", amount=0, seconds=0.0, lengths=None):
    sizes = lengths or (len(key), len(first), len(second))
    return struct.pack("<BBHIIqQ", kind, sizes[0], 0, sizes[1], sizes[2], amount, int(seconds * 1e6)) + key + first + second


def say(who, said, what=0):
    """Pieces of at most 255 bytes."""
    pieces = [said[at : at + 255] for at in range(0, len(said), 255)] or [b""]
    return b"".join(struct.pack("BB", who | (0 if i else what), len(piece)) + piece for i, piece in enumerate(pieces))


def hello(version=2, magic=b"TERN"):
    return magic + struct.pack("<HH", version, 0) + bytes(range(16))


store = {
    "empty": b"",
    "joins": say(0, hello()) + say(0, request(SET, first=b"value"), PROVE) + say(1, request(GET)),
    "wrong_proof": say(0, hello()) + say(0, bytes(32)) + say(0, request(SET)),
    "other_version": say(0, hello(1)) + say(0, bytes(32)),
    "other_language": say(0, b"GET / HTTP/1.1\r\nHost: tern\r\n\r\n"),
    "half_a_hello": say(0, hello()[:7]) + say(0, b"", TIME) + say(0, hello()[7:]),
    "request_without_proof": say(0, hello()) + say(0, request(SET, first=b"x" * 40)),
    "waits": say(1, request(GET, seconds=10)) + say(2, request(SET, first=b"v")) + say(1, request(CHECK)),
    "waits_in_vain": say(1, request(GET, seconds=1)) + say(2, b"", TIME) + say(2, b"", TIME),
    "speaks_while_it_waits": say(1, request(GET, seconds=10)) + say(1, request(CHECK)),
    "leaves_while_it_waits": say(1, request(GET, seconds=10)) + say(1, b"", LEAVE) + say(2, request(SET)),
    "adds": say(1, request(ADD, amount=5)) + say(2, request(ADD, amount=-7)) + say(3, request(GET)),
    "adds_to_text": say(1, request(SET, first=b"1x")) + say(1, request(ADD, amount=1)),
    "adds_too_much": say(1, request(ADD, amount=2**63 - 1)) + say(1, request(ADD, amount=1)),
    "compares": say(1, request(COMPARE_SET, second=b"a")) + say(2, request(COMPARE_SET, first=b"a", second=b"b")),
    "removes": say(1, request(SET)) + say(2, request(REMOVE)) + say(2, request(REMOVE)) + say(1, request(CHECK)),
    "two_at_a_time": say(1, request(CHECK) * 2),
    "bytes_one_by_one": b"".join(say(1, bytes([b])) for b in request(SET, first=b"v")),
    "full": b"".join(say(1, request(SET, key=b"k%d" % i, first=b"v" * 200)) for i in range(12)),
    "too_long": say(1, request(SET, first=b"v" * 1100)) + say(1, request(CHECK)),
    "length_huge": say(1, request(SET, lengths=(3, 2**32 - 1, 0))),
    "length_at_the_limit": say(1, request(SET, lengths=(3, 64 << 20, 0)) + bytes(100)),
    "second_length": say(1, request(SET, lengths=(3, 0, 1)) + b"x"),
    "no_key": say(1, request(CHECK, key=b"")),
    "long_key": say(1, request(SET, key=b"k" * 255)) + say(1, request(CHECK, key=b"k" * 255)),
    "nul_in_key": say(1, request(SET, key=b"a\0b")),
    "space_in_key": say(1, request(SET, key=b"a b")),
    "unknown_kind": say(1, request(7)),
    "waits_for_ever": say(1, struct.pack("<BBHIIqQ", GET, 1, 0, 0, 0, 0, 2**64 - 1) + b"k") + say(1, b"", TIME),
}

# ---- What one rank sends to another (distributed/rpc/frame.h) ----------------------------------------------------------------

RANK, CALL, REPLY, SHARE, LET_GO, GOT, AWAIT, LOST, FORGET, ENDING = range(1, 11)
TENSOR, BYTES, TEXT, INT, REMOTE = range(1, 6)


def value(kind, number=0, data=b"", dtype=0, sizes=(), flags=0, owner=0):
    return struct.pack("<BBBBIQ", kind, dtype, len(sizes), flags, owner, number % 2**64) + struct.pack(f"<{len(sizes)}q", *sizes) + data


def call(*values, kind=CALL, name=b"f", status=0, flags=0, number=1, references=0, count=None, length=None):
    body = name + b"".join(values)
    head = (kind, status, flags, 0, len(values) if count is None else count, len(name), 0, references, number)
    return struct.pack("<BBBBHHIIQQQQ", *head, len(body) if length is None else length, 0, 10**6) + body


def at_once(*frames, step=255):
    return bytes([step]) + b"".join(frames)


whole = value(TENSOR, 24, bytes(24), 0, (2, 3)), value(BYTES, 3, b"a\0b"), value(TEXT, 2, b"hi"), value(INT, -1), value(REMOTE, 7, owner=1)
calls = {
    "empty": b"",
    "call": at_once(call()),
    "values": at_once(call(*whole, references=1)),
    "bytes_one_by_one": at_once(call(*whole, references=1), step=0),
    "several": at_once(call(kind=RANK, name=b"", number=3), call(value(INT, 5)), call(value(INT, 6), kind=REPLY, name=b""),
                       *[call(kind=kind, name=b"") for kind in (SHARE, LET_GO, GOT, AWAIT, LOST, FORGET, ENDING)]),
    "reason": at_once(call(kind=REPLY, name=b"", status=3, length=4) + b"none"),
    "dtypes": at_once(call(*[value(TENSOR, 2 * n, bytes(2 * n), d, (2,)) for d, n in enumerate((4, 8, 2, 2, 8, 4, 1, 1, 1))])),
    "learns": at_once(call(value(TENSOR, 4, bytes(4), 0, (1,), flags=1), value(TENSOR, 8, bytes(8), 4, (1,), flags=1), flags=1)),
    "scalar_and_none": at_once(call(value(TENSOR, 4, bytes(4)), value(TENSOR, 0, b"", 0, (0, 3)))),
    "too_long": at_once(call(value(BYTES, 5000, bytes(5000))), call()),
    "too_long_with_references": at_once(call(whole[4], value(BYTES, 5000, bytes(5000)), *whole, references=2), call()),
    "too_long_one_by_one": at_once(call(value(TENSOR, 5000, bytes(5000), 6, (5000,)), whole[4], references=1), step=6),
    "too_long_and_malformed": at_once(call(whole[4], value(9), value(BYTES, 5000, bytes(5000)), whole[4], references=2), call()),
    "length_huge": at_once(call(length=2**63)),
    "no_body": at_once(call(value(INT, 1), length=1)),
    "more_values": at_once(call(value(INT, 1), count=1, length=40) + bytes(23)),
    "bytes_left": at_once(call(value(INT, 1), b"more", count=1)),
    "bytes_missing": at_once(call(value(BYTES, 9, b"short"))),
    "bytes_beyond": at_once(call(value(BYTES, 2**64 - 1, b"short"))),
    "nine_sizes": at_once(call(value(TENSOR, 4, bytes(4), 0, (1,) * 9))),
    "none_of_huge": at_once(call(value(TENSOR, 0, b"", 0, (0, 2**62)))),
    "negative_size": at_once(call(value(TENSOR, 4, bytes(4), 0, (-1,)))),
    "sizes_overflow": at_once(call(value(TENSOR, 0, b"", 0, (2**32, 2**32)))),
    "sizes_disagree": at_once(call(value(TENSOR, 8, bytes(8), 0, (1,)))),
    "unknown_dtype": at_once(call(value(TENSOR, 4, bytes(4), 9, (1,)))),
    "unknown_kind": at_once(call(value(6, 0))),
    "unknown_frame": at_once(call(kind=99)),
    "bad_bool": at_once(call(value(TENSOR, 2, b"\2\xff", 7, (2,)))),
    "references_hidden": at_once(call(value(REMOTE, 7, owner=1))),
    "int_with_sizes": at_once(call(value(INT, 7, sizes=(1,)))),
}

# ---- Environments ---------------------------------------------------------------------------------------------------------


def lines(*variables):
    return "\n".join(variables).encode()


environments = {
    "nothing": b"PATH=/bin",
    "tern_run": lines("RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29400",
                      "TERN_TOKEN=t", "TERN_STORE=agent", "TERN_RESTART_COUNT=3", "TERN_TIMEOUT=2.5"),
    "torchrun": lines("RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=localhost", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none",
                      "TORCHELASTIC_USE_AGENT_STORE=True"),
    "openmpi": lines("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=1",
                     "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=345702401",
                     "OMPI_MCA_orte_precondition_transports=89880e5046a53fc3-0d0fb78d0e6b204a"),
    "token_file": lines("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=a", "TERN_TOKEN_FILE=/home/user/secret"),
    "mpich": lines("PMI_RANK=1", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"),
    "slurm": lines("SLURM_PROCID=3", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4", "SLURM_LOCALID=0", "SLURM_JOB_ID=12",
                   "SLURM_STEP_NODELIST=n[1-2]", "SLURM_LAUNCH_NODE_IPADDR=192.0.2.9"),
    "slurm_batch": lines("SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_NODELIST=n[1-2]"),
    "slurm_bad_list": lines("SLURM_PROCID=0", "SLURM_STEPID=1", "SLURM_NTASKS=4", "SLURM_JOB_NODELIST=n[1-"),
    "rank_alone": b"RANK=0",
    "rank_too_large": lines("RANK=2", "WORLD_SIZE=2"),
    "rank_text": lines("RANK=two", "WORLD_SIZE=2"),
    "long_host": lines("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=" + "h" * 300),
    "lists": lines("=n1", "=n[1-3,07-09],gpu5", "=r[0-1]n[1,3]", "=n[098-101]x", "=[1-2]"),
    "bad_lists": lines("=n[", "=n[]", "=n[3-1]", "=n[1-[2-3]]", "=a,,b", "=n[1-99999999]", "=n[9999999999999999999]"),
    "large_lists": lines("=n[1-1000]m[1-1000]", "=n[1-1000]m[1-1000]k[1-1000]", "=n[1][1][1][1][1][1][1][1][1]"),
}

# ---- What someone with the token writes for launchers (tools/run_words.h) -----------------------------------------------


def words(*texts, own=1, ranks=2, nodes=2, spare=0, told=0):
    """What a launcher was started with, how its ranks fare, and the words."""
    return bytes([own - 1 + 4 * (ranks - 1) + 16 * (nodes - 1) + 64 * spare, told]) + "\0".join(texts).encode()


start = "start 1 0 4 2\n1 0 0 2\n2 1 2 2\nwhy\n"
again = "start 2 1 4 2\n2 0 0 2\n1 1 2 2\n"
orders = {
    "nothing": words(""),
    "a_job": words(start, "stop 1\nrank 3 failed", again, "end 0\n", told=1),
    "done": words(start, "end 0\n", told=3),
    "failed": words(start, "end 139\nrank 1 (host a, pid 42) was killed by SIGSEGV\n  its last words"),
    "spare": words(start, "drop 2\n", "end 0\n", own=3),
    "dropped": words("drop 1\nhost a: this node has no place in the job any more"),
    "grows": words("start 1 0 2 1\n1 0 0 2\n", "stop 1\nanother host has come", again, nodes=1, spare=1, told=2),
    "standby": words("standby 2 10.0.0.2 4242\n", start, "stop 1\n", "lead 2\nnode 0 (host a, rank 0) is lost", "standby 0 - 1\n", told=2),
    "bad_standbys": words("lead 2\n", "standby 2 a\033 80\n", "standby 2 a 65536\n", "standby 2 a 80 80\n", "standby 2\n", "standby -1 - 1\n"),
    "lead_by_another": words("standby 2 ::1 1\n", "lead 3\n"),
    "places": words("10.0.0.2 29400", "fd00::2 0", "a b 1", "a 1 1"),
    "end_before_start": words("end 0\n"),
    "end_too_large": words("end 256\n"),
    "end_overflow": words("end 99999999999999999999\n"),
    "many_ranks": words("start 1 0 301 2\n2 0 0 1\n1 1 1 300\n"),
    "negative_ranks": words("start 1 0 1 2\n2 0 0 2\n1 1 2 -1\n"),
    "many_nodes": words("start 1 0 4 2000000000\n1 0 0 2\n"),
    "world_too_small": words("start 1 0 3 2\n1 0 0 2\n2 1 2 2\n"),
    "twice": words("start 1 0 4 2\n1 0 0 2\n1 1 2 2\n"),
    "other_round": words("start 7 0 4 2\n1 0 0 2\n2 1 2 2\n", "stop 3\n"),
    "restarts": words("start 1 5 4 2\n1 0 0 2\n2 1 2 2\n"),
    "start_over_ranks": words(start, "stop 1\n", again, told=6),
    "no_stop": words(start, again),
    "half_a_start": words("start 1 0 4 2\n1 0 0 2\n2 1 2"),
    "garbage_behind": words("stop 1 2\n", "end 1x\n"),
    "spaces": words("start  1 0 4 2\n", "end +1\n", "end 01\n", "end -0\n", " end 1\n"),
    "escapes": words("\033]0;title\a\033[2J", "end 1\n\u009b2J\033[31m"),
    "long_text": words("end 1\n" + "x" * 65537),
    "card": words("1 2 8 -1 4242 job host-a"),
    "cards": words("2 1 8 -1 42 job a", "1 1 0 0 1 job a", "1 1 1 70000 1 job a", "1 1 1 0 1 job", "1 1 1 0 1 job a b", "1 1 1 0 1 j\033 a"),
    "signs": words(start, "7 1 r 0 0", "8 1 f 139 1", "9 1 s 139 1", "10 1 d 0 0", "11 1 l 0 1"),
    "bad_signs": words(start, "7 2 r 0 0", "8 1 f 0 1", "9 1 s 0 4", "10 1 x 0 0", "11 1 l 256 0", "-1 1 r 0 0", "12 1 r 0 -3"),
}

# ---- Files in DeepSpeed's format (train/deepspeed/file.h), after the number of ranks less 1 ------------------------------


def settings(ranks, more, optimizer={"type": "Adam"}, **batch):
    return bytes([ranks - 1]) + json.dumps({**(batch or {"train_batch_size": ranks}), "optimizer": optimizer, **more}).encode()


def scheduled(kind, **params):
    return {"scheduler": {"type": kind, "params": params}}


adamw = {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-7, "weight_decay": 0.1}}
sgd = {"params": {"lr": 0.01, "momentum": 0.9, "nesterov": True}, "type": "SGD"}
offload = {"stage": 3, "overlap_comm": True, "offload_param": {"device": "cpu"}}
fp16 = {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 50, "hysteresis": 3, "min_loss_scale": 4}
deepspeed = {
    "zero3": settings(4, {"zero_optimization": offload, "bf16": {"enabled": True}, "gradient_clipping": 0.5, "steps_per_print": 10,
                          **scheduled("WarmupCosineLR", warmup_num_steps=7, total_num_steps=70)}, adamw, train_batch_size=24,
                      train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=3),
    "fp16": settings(1, {"fp16": fp16, **scheduled("WarmupDecayLR", warmup_type="linear", total_num_steps=9, warmup_max_lr=1.5)}, sgd),
    "auto": settings(2, {"gradient_clipping": "auto"}),
    "unknown": settings(2, {"zero_optimization": {"stge": 2}}),
    "escapes": settings(2, {"\x1b[31mred\x07\n": "\U0001f600"}),
    "nested": settings(1, {"aio": [[[[{"a": [1, -2, 3.5e-7, None, True]}]]]], "amp": {"enabled": [False]}}),
    "huge": settings(8, {}, {"type": "Adam", "params": {"lr": 1e308}}, train_micro_batch_size_per_gpu=10**9,
                     gradient_accumulation_steps=10**6),
    "number": b"\x0012",
}

# ---- Indices of checkpoints in parts (io/checkpoint/parts.h) --------------------------------------------------------

# What tests/fuzz/fuzz_index.c has in its one file, by name: elements, and their digest.
held = {"a": (12, "bdb3f41b7b694e4bb6d47b1326c96fde"), "m": (3, "b1a57916ac63a6bcaed946681f85b77a"),
        "s": (1, "deb6d224c549cbd3e8c0d782b2f61276")}


def piece(name="a", **changes):
    length, digest = held[name]
    return {"file": 0, "digest": digest, "dim": -1, "pieces": 1, "slice": 0, "slices": 1, "start": 0, "length": length, **changes}


def tensor(whole, *pieces, dtype="F32"):
    return {"dtype": dtype, "whole": whole, "pieces": list(pieces)}


def index(*a, more=None, **changes):
    """With the pieces of `a`, and the members `changes`; more: of the tensors."""
    tensors = {"a": tensor([4, 3], piece()), "m": tensor([3], piece("m"), dtype="BOOL"), "s": tensor([], piece("s"), dtype="I64")}
    tensors.update({"a": tensor(*a)} if a else {}, **(more or {}))
    whole = {"digest": "0" * 32, "format": "tern-parts-1", "metadata": {"format": "tern-checkpoint-1", "step": "3"},
             "files": [{"name": "rank-00000.safetensors", "bytes": 235}], "tensors": tensors}
    whole.update(changes)
    return json.dumps({k: v for k, v in whole.items() if v is not None}, separators=(",", ":")).encode()


cut = {"dim": 0, "slices": 2}
indices = {
    "whole": index(),
    "twice_in_ranges": index([24], piece(), piece(start=12)),
    "cut": index([8, 3], piece(**cut), piece(slice=1, **cut)),
    "cut_inside": index([3, 8], piece(dim=1, slices=2), piece(dim=1, slices=2, slice=1)),
    "in_pieces": index([24], piece(pieces=3, **cut), piece(pieces=3, slice=1, **cut)),
    "gap": index([24], piece()),
    "overlap": index([4, 3], piece(), piece()),
    "overlap_with_gap": index([36], piece(), piece(start=6), piece(start=24)),
    "wrong_digest": index([4, 3], piece(digest="0" * 32)),
    "short_digest": index([4, 3], piece(digest="0")),
    "other_length": index([13], piece(length=13)),
    "beyond": index([4, 3], piece(start=1)),
    "negative": index([4, 3], piece(start=-1)),
    "huge": index([2**40, 2**20], piece(length=2**60)),
    "overflow": index([2**40, 2**40], piece()),
    "many_runs": index([2**40, 2], piece(dim=1, slices=2, length=2**40)),
    "no_pieces": index([4, 3]),
    "nothing": index([0, 3], more={"m": tensor([0], dtype="BOOL")}),
    "slices_do_not_divide": index([4, 3], piece(dim=0, slices=3)),
    "no_such_file": index([4, 3], piece(file=1)),
    "no_such_dtype": index(more={"a": tensor([4, 3], piece(), dtype="F8_E4M3")}),
    "other_dtype": index(more={"a": tensor([4, 3], piece(), dtype="I32")}),
    "not_in_the_file": index(more={"b": tensor([4, 3], piece())}),
    "other_bytes": index(files=[{"name": "rank-00000.safetensors", "bytes": 236}]),
    "other_name": index(files=[{"name": "../../etc/passwd", "bytes": 235}]),
    "no_files": index(files=[]),
    "no_metadata": index(metadata=None),
    "number_as_text": index(metadata={"step": 3}),
    "no_tensors": index(tensors=None),
    "other_format": index(format="tern-parts-2"),
    "duplicate": index().replace(b'"m":', b'"a":'),
    "not_an_index": b'{"tensors":{}}',
    "cut_short": index()[:200],
}

# ---- Questions with endings, JSON lines (include/tern/evaluate.h) ---------------------------------------------------------------


def question(**changes):
    whole = {"ind": 1, "activity_label": "x", "ctx": "A man is sitting on a roof. He", "label": 1, "source_id": "a~b",
             "endings": ["is using wrap to wrap a pair of skis.", "is ripping level tiles off."], **changes}
    return json.dumps({k: v for k, v in whole.items() if v is not None}).encode()


choices = {
    "whole": question() + b"\n" + question(endings=["a", " b", "c\u00e9", "\U0001f600"], label=3) + b"\n",
    "labels_as_text": question(label="0") + b"\n" + question(label="1"),
    "blank_lines": b"\n" + question() + b"\r\n \t\n" + question() + b"\n\n\n",
    "long_prompt": question(ctx="ab " * 5000),
    "longest_ending": question(endings=["a" * 63, "b"]),
    "too_long_ending": question(endings=["a" * 64, "b"]),
    "many_endings": question(endings=["e"] * 500, label=499),
    "empty": b"",
    "blank": b" \n\t\n",
    "no_ctx": question(ctx=None),
    "empty_ctx": question(ctx=""),
    "other_ctx": question(ctx=["a"]),
    "no_endings": question(endings=None),
    "one_ending": question(endings=["a"]),
    "empty_ending": question(endings=["a", ""]),
    "nested_endings": question(endings=[["a", "b"], ["c"]]),
    "endings_object": question(endings={"0": "a", "1": "b"}),
    "no_label": question(label=None),
    "label_beyond": question(label=2),
    "label_huge": question(label=2**63 - 1),
    "label_text_huge": question(label="9" * 40),
    "label_negative": question(label=-1),
    "label_real": question(label=0.5),
    "label_empty": question(label=""),
    "twice": question()[:-1] + b', "ctx": 7, "label": 0}',
    "second_line": question() + b"\n{\"ctx\":",
    "cut_short": question()[:60],
    "list": b"[" + question() + b"]",
    "not_utf8": question(ctx="\u00e9").replace(b"\\u00e9", b"\xe9"),
    "zero_byte": question() + b"\n\0" + question(),
    "lone_surrogate": question(ctx="a").replace(b'"a"', b'"\\ud800"'),
}

# ---- Texts (data/corpus/corpus.c): the first byte says how they are read; and shards of tokens (data/shards.h) -------------------------

PLAIN, SPLIT, PAIRS, PATH = b"\0", b"\1", b"\2", b"\3"


def pair(**changes):
    whole = {"prompt": "2+2=", "completion": " 4", **changes}
    return json.dumps({k: v for k, v in whole.items() if v is not None}).encode()


def zstd(data):
    """A frame with one raw block and no check sum (RFC 8878): there is no zstd in Python's library."""
    return b"\x28\xb5\x2f\xfd" + b"\x20" + bytes([len(data)]) + struct.pack("<I", len(data) << 3 | 1)[:3] + data


nested = json.dumps({"completion": "c", "data": [{"parts": [{"text": "x"}, {"text": "y"}]}, {"parts": []}]}, indent=1).encode()
packed = gzip.compress(pair() + b"\n", mtime=0)
texts = {
    "plain": PLAIN + b"It was the best\nof times",
    "mark": PLAIN + b"\xef\xbb\xbfa mark",
    "half_a_mark": PLAIN + b"\xef\xbb",
    "only_a_mark": PLAIN + b"\xef\xbb\xbf",
    "empty": PLAIN,
    "not_utf8": PLAIN + b"Latin \xe9 \xff",
    "long": PLAIN + b"some words, and\na line. " * 300,
    "long_without_spaces": PLAIN + b"x" * 3000,
    "binary": PLAIN + b"a\0b",
    "utf16": PLAIN + b"\xff\xfea\0",
    "separated": SPLIT + b"-- one --two----three\n-",
    "only_separators": SPLIT + b" -- --",
    "pairs": PAIRS + pair() + b"\r\n\n" + pair(prompt="") + b"\n" + pair(completion="\U0001f600"),
    "escapes": PAIRS + pair(prompt="\0 \x1f\u2028\"\\/", extra=[-0.0, -0.5, 1e400, {"a": [None, True]}]),
    "deep": PAIRS + pair(prompt="x")[:-1] + b', "deep": ' + b"[" * 500 + b"]" * 500 + b"}",
    "too_deep": PAIRS + b"[" * 5000,
    "no_completion": PAIRS + pair(completion=None),
    "no_text": PAIRS + pair(completion=4),
    "messages": PAIRS + b'{"messages": [{"role": "user", "content": "x"}]}',
    "twice": PAIRS + pair()[:-1] + b', "prompt": "x"}',
    "commands_for_a_terminal": PAIRS + b'{"\\u001b[2J": 0}',
    "second_line": PAIRS + pair() + b"\n{\"prompt\":",
    "not_utf8_line": PAIRS + pair(prompt="x").replace(b'"x"', b'"\xff"'),
    "lone_surrogate": PAIRS + pair(prompt="x").replace(b'"x"', b'"\\ud800"'),
    "path": PATH + b".data[].parts[].text\n" + nested,
    "path_of_all": PATH + b"{data[0].parts[0].text}{{\\n{.data[].parts[].text}\n" + nested * 2,
    "path_of_elements": PATH + b".[][]\n[[\"a\"],\n[]]\"x\"",
    "path_in_quotes": PATH + b".\"a\\\"\"[\"]\"]\n{\"a\\\"\": {\"]\": \"x\"}, \"completion\": \"\"}",
    "path_to_nothing": PATH + b".data[9].x\n" + nested,
    "path_through_texts": PATH + b".data[].parts[].text[]\n" + nested,
    "no_path": PATH + b".data[.x]\n" + nested,
    "no_path_in_braces": PATH + b"{.data[]\n" + nested,
    "path_of_many_lists": PATH + b"[]" * 17 + b"\n" + nested,
    "path_into_deep": PATH + b"[]" * 16 + b"\n" + b"[" * 16 + b"\"x\"" + b"]" * 16,
    "list": PAIRS + b"[" + pair() + b"]",
    "list_of_lines": PAIRS + b"[\n" + pair() + b"\n]",
    "blank": PAIRS + b" \n\t\r\n",
    "gzip": PAIRS + packed,
    "gzip_twice": PAIRS + packed + packed,
    "gzip_cut": PAIRS + packed[:-9],
    "gzip_and_more": PAIRS + packed + b"more",
    "gzip_in_gzip": PAIRS + gzip.compress(packed, mtime=0),
    "gzip_wrong_sum": PAIRS + packed[:-8] + b"\0" * 8,
    "zstd": PAIRS + zstd(pair()),
    "zstd_frames": PAIRS + zstd(pair()) + zstd(b"\n" + pair()),
    "zstd_cut": PAIRS + zstd(pair())[:-3],
    "zstd_large_window": PAIRS + b"\x28\xb5\x2f\xfd\x00\xf8" + b"\x01\0\0",
}


def shard(magic, version, count, tokens, wide=False, pairs=0, ends=()):
    head = struct.pack("<4i", magic, version, count, pairs) + bytes(1008)
    return head + struct.pack("<%d%s" % (len(tokens), "I" if wide else "H"), *tokens) + struct.pack("<%dQ" % len(ends), *ends)


LLMC, WIDE, OURS, UNLEARNED = 20240520, 20240801, 20261122, 1 << 31
two_pairs = [5 | UNLEARNED, 6, 7, 8 | UNLEARNED, 9]
shards = {
    "llmc": shard(LLMC, 1, 20, range(20)),
    "wide": shard(WIDE, 7, 20, range(50000, 50020), wide=True),
    "pairs": shard(OURS, 1, 5, two_pairs, True, 2, [3, 5]),
    "one_token_pairs": shard(OURS, 1, 5, two_pairs, True, 5, [1, 2, 3, 4, 5]),
    "long_pair": shard(OURS, 1, 30, [i | (UNLEARNED if i < 20 else 0) for i in range(30)], True, 1, [30]),
    "headless": struct.pack("<20H", *range(20)),
    "large_token": shard(LLMC, 1, 20, [65535] * 20),
    "large_wide_token": shard(WIDE, 7, 20, [2**32 - 1] * 20, wide=True),
    "large_pair_token": shard(OURS, 1, 5, [2**32 - 1] * 5, True, 1, [5]),
    "other_version": shard(LLMC, 2, 20, range(20)),
    "other_count": shard(LLMC, 1, 21, range(20)),
    "negative_count": shard(LLMC, 1, -1, range(20)),
    "no_tokens": shard(LLMC, 1, 0, []),
    "no_pairs": shard(OURS, 1, 5, two_pairs, True, 0, []),
    "negative_pairs": shard(OURS, 1, 5, two_pairs, True, -1, [5]),
    "many_pairs": shard(OURS, 1, 5, two_pairs, True, 2**31 - 1, [5]),
    "pairs_backwards": shard(OURS, 1, 5, two_pairs, True, 2, [5, 3]),
    "pairs_beyond": shard(OURS, 1, 5, two_pairs, True, 2, [3, 6]),
    "pairs_far_beyond": shard(OURS, 1, 5, two_pairs, True, 2, [3, 2**64 - 1]),
    "empty_pair": shard(OURS, 1, 5, two_pairs, True, 2, [0, 5]),
    "odd_bytes": shard(LLMC, 1, 20, range(20)) + b"x",
    "only_a_head": shard(LLMC, 1, 0, [])[:600],
    "text": b"It was the best of times, " * 20,
    "gzip": packed,
    "idx": b"\0\0\x08\x01\0\0\0\x02\1\2",
    "safetensors": struct.pack("<Q", 2) + b"{}",
    "empty": b"",
}

JSON, RANKS, MERGES, VOCAB = b"\0", b"\1", b"\2", b"\3"
level = {"type": "ByteLevel", "add_prefix_space": False}


def tokenizer(vocab={"a": 0, "b": 1, "ab": 2, "\u0120": 3}, merges=["a b"], cut=level, added=(), **model):
    whole = {"added_tokens": list(added), "normalizer": None, "pre_tokenizer": cut,
             "model": {"type": "BPE", "vocab": vocab, "merges": merges, **model}}
    return JSON + json.dumps(whole, ensure_ascii=False).encode()


def split(pattern, **more):
    byte_level = {**level, "use_regex": False}
    kind = more.pop("kind", "Regex")
    return {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {kind: pattern}, "behavior": "Isolated", **more}, byte_level]}


def added(content, id, **more):
    return {"id": id, "content": content, "special": True, **more}


tokenizers = {
    "json": tokenizer(),
    "json_pairs": tokenizer(merges=[["a", "b"]]),
    "json_whole": tokenizer(merges=[], ignore_merges=True),
    "json_added": tokenizer(added=[added("<|end|>", 4), added("<|", 5, special=False), added("<|e", 9)]),
    "json_added_there": tokenizer(added=[added("ab", 2)]),
    "json_added_twice": tokenizer(added=[added("x", 4), added("x", 4)]),
    "json_added_empty": tokenizer(added=[added("", 4)]),
    "json_split": tokenizer(cut=split(r"\s+|\p{L}{1,2}|[^\s\p{L}]")),
    "json_literal": tokenizer(cut=split("b", kind="String")),
    "json_many_cuts": tokenizer(cut={"type": "Sequence", "pretokenizers": [{"type": "Digits"}] * 9 + [level]}),
    "json_prefix": tokenizer(cut={"type": "ByteLevel"}),
    "json_no_end": tokenizer(cut=split("(a+a+)+b|.")),
    "json_empty_matches": tokenizer(cut=split("(?=a)|x*")),
    "json_deep": tokenizer(cut=split("(" * 300 + ")" * 300)),
    "json_large_repeat": tokenizer(cut=split("((a{1,65535}){1,65535}){1,65535}")),
    "json_recursion": tokenizer(cut=split("(a|(?1)b)*")),
    "json_lookbehind": tokenizer(cut=split("(?<=a)b|a")),
    "json_verbs": tokenizer(cut=split("(*LIMIT_MATCH=1)(*UTF)a")),
    "json_callout": tokenizer(cut=split("a(?C1)b|.")),
    "json_unknown_pair": tokenizer(merges=["a b", "ab c"]),
    "json_empty_pair": tokenizer(vocab={"": 0, "a": 1}, merges=[["", "a"], ["a", ""], ["", ""]]),
    "json_no_growth": tokenizer(vocab={"a": 0}, merges=["a a"]),
    "json_holes": tokenizer(vocab={"a": 60000, "b": 1, "ab": 65000}),
    "json_huge_id": tokenizer(vocab={"a": 2147483646}, merges=[]),
    "json_beyond_id": tokenizer(vocab={"a": 2**63}, merges=[]),
    "json_same_id": tokenizer(vocab={"a": 0, "b": 0}, merges=[]),
    "json_odd_token": tokenizer(vocab={"a": 0, " ": 1, "\u0120": 2, "\u4eca": 3}, merges=[]),
    "json_unigram": tokenizer(type="Unigram"),
    "json_dropout": tokenizer(dropout=0.1),
    "json_lists": tokenizer(vocab=[["a", 0]], merges={}),
    "json_wrong_types": JSON + b'{"model":{"vocab":{"a":[]},"merges":[1,[],[2,3]]},"pre_tokenizer":{"type":{}},"added_tokens":[1]}',
    "json_mark": JSON + b"\xef\xbb\xbf" + tokenizer()[1:],
    "json_cut": tokenizer()[:70],
    "json_nul": tokenizer(vocab={"a\0": 0}),
    "ranks": RANKS + b"YQ== 0\nYg== 1\nIA== 2\nYWI= 3\nYWFh 4\n",
    "ranks_lines": RANKS + b"YQ== 0\r\n\r\nYg== 1\r\n",
    "ranks_holes": RANKS + b"YQ== 7\nYg== 60000\n",
    "ranks_huge": RANKS + b"YQ== 2147483646\n",
    "ranks_same": RANKS + b"YQ== 0\nYQ== 1\n",
    "ranks_same_rank": RANKS + b"YQ== 0\nYg== 0\n",
    "ranks_padding": RANKS + b"Y=== 0\n==== 1\n",
    "ranks_no_number": RANKS + b"YQ==\n",
    "ranks_long": RANKS + b"YQ== 0\n" + b"YWFh" * 400 + b" 1\n",
    "ranks_letters": RANKS + b"YQ== 0\n" + b"".join(base64.b64encode(b"a" * n) + b" %d\n" % n for n in range(2, 40)),
    "merges": MERGES + b"#version: 0.2\na b\nab c\n",
    "merges_lines": MERGES + b"\xef\xbb\xbf#version: 0.2\r\na b\r\n\r\nab c",
    "merges_unknown": MERGES + b"b a\n",
    "merges_one": MERGES + b"a\n",
    "merges_three": MERGES + b"a b c\n",
    "merges_spaces": MERGES + b" a\na \n",
    "merges_twice": MERGES + b"a b\na b\n",
    "merges_nul": MERGES + b"a b\0c d\n",
    "merges_empty": MERGES,
    "vocab": VOCAB + '{"a":0,"b":1,"c":2,"ab":3,"abc":4,"\u0120":5,"\u0120a":6,"<|end|>":7}'.encode(),
    "vocab_without_bytes": VOCAB + '{"ab":3,"abc":4,"a":0,"b":1,"c":2,"\u0120":5,"\u0120a":6}'.encode(),
    "vocab_list": VOCAB + b'["a"]',
    "vocab_real": VOCAB + b'{"a":0.5}',
    "vocab_twice": VOCAB + b'{"a":0,"a":0}',
    "vocab_model": VOCAB + b'{"model":{},"a":0}',
}

# config.json of a folder with the weights of a gpt or a llama that has these sizes
gpt_config = {"model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_embd": 4, "n_head": 2, "n_layer": 1}
llama_config = {"model_type": "llama", "vocab_size": 5, "max_position_embeddings": 4, "hidden_size": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
                "head_dim": 2, "intermediate_size": 3, "num_hidden_layers": 1, "tie_word_embeddings": True}


def config(of, drop=(), **changes):
    return json.dumps({key: value for key, value in dict(of, **changes).items() if key not in drop}).encode()


scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 4}
configs = {
    "gpt": config(gpt_config),
    "gpt_relu": config(gpt_config, activation_function="relu", layer_norm_epsilon=1e-3, n_inner=16),
    "gpt_tanh": config(gpt_config, activation_function="tanh"),
    "gpt_inner": config(gpt_config, n_inner=15),
    "gpt_scaled": config(gpt_config, scale_attn_by_inverse_layer_idx=True),
    "gpt_layers": config(gpt_config, n_layer=2 ** 31 - 1),
    "gpt_two_layers": config(gpt_config, n_layer=2),
    "gpt_wide": config(gpt_config, n_embd=2 ** 31 - 2),
    "gpt_vocab": config(gpt_config, vocab_size=2 ** 63 - 1),
    "gpt_heads": config(gpt_config, n_head=3),
    "gpt_no_heads": config(gpt_config, n_head=0),
    "gpt_real": config(gpt_config, n_head=2.0),
    "gpt_infinite": config(gpt_config).replace(b"}", b',"layer_norm_epsilon":1e999}'),
    "gpt_nan": config(gpt_config, layer_norm_epsilon=float("nan")),
    "gpt_twice": config(gpt_config).replace(b"}", b',"n_layer":1}'),
    "gpt_defaults": config(gpt_config, drop=("vocab_size", "n_embd", "n_head", "n_layer")),
    "gpt_null": config(gpt_config, n_inner=None, activation_function=None),
    "gpt_quantized": config(gpt_config, quantization_config={"bits": 4}),
    "llama": config(llama_config),
    "llama_scaled": config(llama_config, rope_parameters=dict(scaled, rope_theta=500000.0)),
    "llama_older": config(llama_config, rope_theta=500000.0, rope_scaling=scaled),
    "llama_linear": config(llama_config, rope_scaling={"type": "linear", "factor": 2.0}),
    "llama_no_factor": config(llama_config, rope_scaling={"rope_type": "llama3"}),
    "llama_zero_theta": config(llama_config, rope_theta=0),
    "llama_list": config(llama_config, rope_scaling=[1]),
    "llama_untied": config(llama_config, tie_word_embeddings=False),
    "llama_odd": config(llama_config, head_dim=3),
    "llama_shared": config(llama_config, num_key_value_heads=3),
    "llama_wide": config(llama_config, hidden_size=2 ** 31 - 1, head_dim=2 ** 31 - 1, intermediate_size=2 ** 31 - 1),
    "bert": b'{"model_type":"bert\\u001b[2J"}',
    "type_number": b'{"model_type":2}',
    "empty": b"",
    "list": b"[]",
    "cut": config(gpt_config)[:-1],
    "deep": b'{"model_type":"gpt2","a":' + b"[" * 600,
}

gpt_names = ["wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias", "h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias",
             "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias", "h.0.ln_2.weight", "h.0.ln_2.bias", "h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.bias",
             "h.0.mlp.c_proj.weight", "h.0.mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"]
PART = "model-%05d-of-00002.safetensors"
weight_map = {"transformer." + name: PART % (1 if i < 12 else 2) for i, name in enumerate(gpt_names)}


def parts(changes=(), drop=()):
    return json.dumps({"metadata": {"total_size": 1}, "weight_map": {k: v for k, v in {**weight_map, **dict(changes)}.items() if k not in drop}}).encode()


first = "transformer.wte.weight"
indexes = {
    "right": parts(),
    "upwards": parts({first: "../" + PART % 1}),
    "absolute": parts({first: "/etc/passwd"}),
    "folder": parts({first: "."}),
    "hidden": parts({first: ".a"}),
    "no_name": parts({first: ""}),
    "missing_part": parts({first: PART % 3}),
    "other_part": parts({first: PART % 2}),
    "itself": parts({first: "model.safetensors.index.json"}),
    "config": parts({first: "config.json"}),
    "dropped": parts(drop=(first,)),
    "surplus": parts({"transformer.score": PART % 1}),
    "number": parts({first: 1}),
    "twice": parts().replace(b'"weight_map": {', b'"weight_map": {"' + first.encode() + b'": "' + (PART % 1).encode() + b'", '),
    "one_part": parts({name: PART % 1 for name in weight_map}),
    "control": parts({"\x1b[2J": PART % 1}),
    "long": parts({"a" * 3000: "b" * 3000}),
    "no_map": b'{"metadata":{}}',
    "map_list": b'{"weight_map":[]}',
    "map_empty": b'{"weight_map":{}}',
    "list": b"[]",
    "empty": b"",
    "deep": b'{"weight_map":' + b"[" * 600,
}


def llmc(version=3, context=2, vocab=3, layers=1, heads=1, width=2, padded=4, magic=20240326, more=0):
    count = (padded + context) * width + layers * (12 * width + 13) * width + 2 * width
    data = bytes(range(256)) * (count * 4 // 256 + 1) if 0 < count < 10000 else b""
    bytes_each = 4 if version == 3 else 2
    return struct.pack("<8i", magic, version, context, vocab, layers, heads, width, padded) + bytes(1024 - 32) + data[:max(0, count * bytes_each + more)]


llmcs = {
    "f32": llmc(),
    "bf16": llmc(version=5),
    "two_layers": llmc(layers=2, width=4, heads=2),
    "short": llmc(more=-1),
    "long": llmc(more=1),
    "version": llmc(version=2),
    "magic": llmc(magic=20240327),
    "zero_layers": llmc(layers=0),
    "negative": llmc(width=-2),
    "heads": llmc(heads=3),
    "padded": llmc(vocab=5),
    "wide": llmc(width=2 ** 31 - 1, heads=1),
    "all_large": llmc(3, *[2 ** 31 - 1] * 3, 1, *[2 ** 31 - 1] * 2),
    "header_alone": llmc()[:1024],
    "cut_header": llmc()[:1000],
    "empty": b"",
}

# ---- NumPy's arrays and archives ---------------------------------------------------------------
def npy(text="{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", data=bytes(range(24)), version=1, length=None):
    header = text.encode() + b"\n"
    size = len(header) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + header + data


def npz(members, method=0, flags=0, wide=False, check=None, ratio=None, count=None, comment=b"", at=None):
    out, listed = b"", b""
    for name, data in members.items():
        packed = zlib.compress(data)[2:-4] if method == 8 else data
        sum_ = zlib.crc32(data) if check is None else check
        size = len(data) if ratio is None else len(packed) * ratio
        extra = struct.pack("<HHQQQ", 1, 24, size, len(packed), len(out)) if wide else b""
        sizes = (0xffffffff, 0xffffffff) if wide else (len(packed), size)
        common = struct.pack("<HHHHHIIIHH", 20, flags, method, 0, 33, sum_, *sizes, len(name), len(extra))
        listed += struct.pack("<IH", 0x02014b50, 20) + common + struct.pack("<HHHII", 0, 0, 0, 0, 0xffffffff if wide else len(out))
        listed += name.encode() + extra
        out += struct.pack("<I", 0x04034b50) + common[:-2] + b"\0\0" + name.encode() + packed
    number, begin = len(members) if count is None else count, len(out) if at is None else at
    if wide:
        end64 = struct.pack("<IQHHIIQQQQ", 0x06064b50, 44, 45, 45, 0, 0, number, number, len(listed), begin)
        locator = struct.pack("<IIQI", 0x07064b50, 0, len(out) + len(listed), 1)
        return out + listed + end64 + locator + struct.pack("<IHHHHIIH", 0x06054b50, 0, 0, 0xffff, 0xffff, 0xffffffff, 0xffffffff, 0)
    return out + listed + struct.pack("<IHHHHIIH", 0x06054b50, 0, 0, number, number, len(listed), begin, len(comment)) + comment


pair_of_arrays = {"x.npy": npy(), "y.npy": npy("{'descr': '|b1', 'fortran_order': True, 'shape': (2, 2)}", b"\0\1\2\3")}
numpys = {
    "whole": npy(),
    "version_2": npy(version=2),
    "big_fortran": npy("{'descr': '>i2', 'fortran_order': True, 'shape': (3, 4)}"),
    "scalar": npy("{'descr': '<f8', 'fortran_order': False, 'shape': ()}", bytes(8)),
    "empty": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 999999999999999999)}", b""),
    "large": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 99999999999)}"),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (3,)}"),
    "fields": npy("{'descr': [('a', '<f4'), ('b', '<f4')], 'fortran_order': False, 'shape': (3,)}"),
    "open_text": npy("{'descr': '<f4"),
    "open_shape": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3"),
    "long_header": npy(length=60000),
    "longer_header": npy(version=3, length=0xfffffff0),
    "archive": npz(pair_of_arrays),
    "archive_deflated": npz(pair_of_arrays, method=8),
    "archive_wide": npz(pair_of_arrays, wide=True),
    "archive_comment": npz(pair_of_arrays, comment=b"PK\5\6" * 8),
    "archive_check": npz(pair_of_arrays, check=7),
    "archive_bomb": npz(pair_of_arrays, method=8, ratio=1000),
    "archive_bzip2": npz(pair_of_arrays, method=12),
    "archive_encrypted": npz(pair_of_arrays, flags=1),
    "archive_count": npz(pair_of_arrays, count=60000),
    "archive_place": npz(pair_of_arrays, at=0xfffffff0),
    "archive_text": npz({"x.txt": b"no array"}),
    "archive_empty": npz({}),
}

# ---- Files of MNIST and of CIFAR ---------------------------------------------------------------
def idx(*dims, data, kind=8):
    return struct.pack(">BBBB%dI" % len(dims), 0, 0, kind, len(dims), *dims) + data


def digits(images, labels):
    return struct.pack("<H", len(images)) + images + labels


two_images, two_labels = idx(2, 28, 28, data=bytes(range(256)) * 6 + bytes(32)), idx(2, data=b"\7\0")
packed_images, packed_labels = gzip.compress(two_images, mtime=0), gzip.compress(two_labels, mtime=0)
idxs = {
    "plain": digits(two_images, two_labels),
    "packed": digits(packed_images, packed_labels),
    "mixed": digits(packed_images, two_labels),
    "two_members": digits(gzip.compress(two_images[:99], mtime=0) + gzip.compress(two_images[99:], mtime=0), packed_labels),
    "none": digits(idx(0, 28, 28, data=b""), idx(0, data=b"")),
    "large_count": digits(idx(999999, 28, 28, data=b"\1"), two_labels),
    "largest_count": digits(idx(0xffffffff, 28, 28, data=b""), two_labels),
    "large_sides": digits(idx(2, 0xffffffff, 0xffffffff, data=b""), two_labels),
    "short_images": digits(two_images[:-1], two_labels),
    "long_images": digits(two_images + b"\0", two_labels),
    "short_stream": digits(packed_images[:-9], packed_labels),
    "wrong_sum": digits(packed_images[:-8] + bytes(8), packed_labels),
    "no_digit": digits(two_images, idx(2, data=b"\7\12")),
    "floats": digits(idx(2, 28, 28, data=bytes(1568), kind=13), two_labels),
    "other_counts": digits(two_images, idx(1, data=b"\7")),
    "head_alone": digits(two_images[:7], two_labels),
    "bomb": digits(gzip.compress(idx(999999, 28, 28, data=bytes(1 << 20)), mtime=0), packed_labels),
}
cifars = {
    "two_of_ten": b"\3" + bytes(3072) + b"\11" + b"\xff" * 3072,
    "one_of_hundred": b"\2\143" + bytes(range(256)) * 12,
    "no_class": b"\12" + bytes(3072),
    "short": b"\3" + bytes(3071),
    "long": b"\3" + bytes(3074),
    "empty": b"",
    "text": b"@relation cifar\n" * 40,
}

# ---- Tables ------------------------------------------------------------------------------------
def table(text, header=True, delimiter=",", missing=0, numbers=False, target=0):
    text = text if isinstance(text, bytes) else text.encode()
    return bytes([(not header) | (delimiter == ";") << 1 | missing << 2 | numbers << 4 | target << 5]) + text


plain_table = "a,b,c\n1,2.5,x\n-3e4,inf,y\n+.5,7.,x\n"
tables = {
    "plain": table(plain_table),
    "packed": table(gzip.compress(plain_table.encode(), mtime=0)),
    "packed_zstd": table(zstd(plain_table.encode())),
    "packed_short": table(gzip.compress(plain_table.encode(), mtime=0)[:-9]),
    "packed_twice": table(gzip.compress(gzip.compress(plain_table.encode(), mtime=0), mtime=0)),
    "packed_bomb": table(gzip.compress(b"1," * (1 << 18), mtime=0)),
    "no_header": table("1,2,x\n3,4,y\n", header=False),
    "semicolons": table("a;b\r\n1;x\r\n2;y\r\n", delimiter=";"),
    "quotes": table('"a,","b"\n"1","x ""y"" z"\n"2","two\nlines"\n"3",""""\n'),
    "quotes_open": table('a,b\n1,"x\n2,y\n'),
    "quotes_behind": table('a,b\n1,"x"y\n'),
    "quotes_within": table('a,b\n1,x"y"\n'),
    "missing": table("a,b,c\n1,,x\nNA,2,y\n3,4,z\n"),
    "missing_nan": table("a,b,c\n1,,x\nNA,2,y\n3,?,\n", missing=1),
    "missing_dropped": table("a,b,c\n1,,x\nNA,2,y\n3,4,z\n", missing=2),
    "numbers": table("a,b\n1,2\n3,4\n", numbers=True),
    "target_first": table("a,b\nx,2\ny,4\n", target=1),
    "target_named": table("b,a\n2,x\n4,y\n", target=2),
    "target_none": table("a,b\n1,2\n3,4\n", target=3),
    "target_missing": table("b,c\n1,2\n", target=2),
    "long_row": table("a,b\n1,2,3\n"),
    "short_row": table("a,b\n1\n"),
    "hexadecimal": table("a,b\n0x10,x\n"),
    "nan": table("a,b\nnan(1),x\n"),
    "blank_lines": table("\n\na,b\n\r\n1,x\n\n\n2,y"),
    "mark": table(b"\xef\xbb\xbfa,b\n1,x\n"),
    "zero": table(b"a,b\n" + b"1,x\n" * 1200 + b"1,\0\n"),
    "binary": table(bytes(range(256))),
    "header_alone": table("a,b\n"),
    "columns": table("," * 5000 + "\n" + "1," * 5000 + "x\n"),
    "empty": table(""),
    "same_names": table("a,a\n1,2\n", target=2),
}
libsvms = {
    "plain": b"+1 1:0.5 3:-2e3\n-1 2:1 300:7\n",
    "comments": b"# first\n1 1:2 # more\n\n2\r\n",
    "packed": gzip.compress(b"1 1:2\n", mtime=0),
    "qid": b"1 qid:7 1:2\n",
    "zero": b"1 0:2\n",
    "beyond": b"1 301:2\n",
    "far_beyond": b"1 99999999999999999999999:2\n",
    "backwards": b"1 2:2 1:3\n",
    "twice": b"1 2:2 2:3\n",
    "no_value": b"1 2:\n",
    "no_index": b"1 :2\n",
    "no_label": b" 1:2\n",
    "infinite": b"inf 1:-inf\n",
    "not_a_number": b"1 1:nan\n",
    "tabs": b"1\t1:2\t 2:3 \n",
    "empty": b"",
}

# ---- Pictures ----------------------------------------------------------------------------------
def seed_png(colour=2, depth=8, size=(5, 4), **more):
    return png(*size, colour, depth, lambda x, y, c: (x * 37 + y * 11 + c * 5) % (1 << depth), **more)


grey, colour, progressive, cmyk = (base64.b64decode(text) for text in (  # by libjpeg: 9 x 8 pixels of each kind
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAKBueIx4ZKCMgoy0qqC+8P//8Nzc8P//////////////////////////////////////////////////////////wAALCAAIAAkB"
    "AREA/8QAFQABAQAAAAAAAAAAAAAAAAAAAAH/xAAWEAEBAQAAAAAAAAAAAAAAAAAAARH/2gAIAQEAAD8AVMf/2Q==",
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAKBueIx4ZKCMgoy0qqC+8P//8Nzc8P//////////////////////////////////////////////////////////2wBDAaq0tPDS"
    "8P//////////////////////////////////////////////////////////////////////////////wAARCAAIAAkDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAA"
    "AAH/xAAWEAEBAQAAAAAAAAAAAAAAAAAAARH/xAAVAQEBAAAAAAAAAAAAAAAAAAAAAf/EABYRAQEBAAAAAAAAAAAAAAAAAAEAEf/aAAwDAQACEQMRAD8AVMACo4X/2Q==",
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAKBueIx4ZKCMgoy0qqC+8P//8Nzc8P//////////////////////////////////////////////////////////2wBDAaq0tPDS"
    "8P//////////////////////////////////////////////////////////////////////////////wgARCAAIAAkDAREAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAA"
    "AAH/xAAVAQEBAAAAAAAAAAAAAAAAAAABAP/aAAwDAQACEAMQAAABFF//xAAUEAEAAAAAAAAAAAAAAAAAAAAQ/9oACAEBAAEFAj//xAAWEQEBAQAAAAAAAAAAAAAAAAAA"
    "ARH/2gAIAQMBAT8BjX//xAAUEQEAAAAAAAAAAAAAAAAAAAAQ/9oACAECAQE/AT//xAAUEAEAAAAAAAAAAAAAAAAAAAAQ/9oACAEBAAY/Aj//xAAUEAEAAAAAAAAAAAAA"
    "AAAAAAAQ/9oACAEBAAE/IT//2gAMAwEAAgADAAAAEBf/xAAVEQEBAAAAAAAAAAAAAAAAAAAQIf/aAAgBAwEBPxCB/8QAFhEBAQEAAAAAAAAAAAAAAAAAAAER/9oACAEC"
    "AQE/EJGP/8QAFhABAQEAAAAAAAAAAAAAAAAAAAER/9oACAEBAAE/EKx//9k=",
    "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwCgbniMeGSgjIKMtKqgvvD///Dc3PD//////////////////////////////////////////////////////////8AAFAgACAAJBEMR"
    "AE0RAFkRAEsRAP/EABYAAQEBAAAAAAAAAAAAAAAAAAACA//EABwQAAIBBQEAAAAAAAAAAAAAAAABAgMREiFhE//aAA4EQwBNAFkASwAAPwBT03wVNpdM4xubF5kYF+YP/9k="))


def claims(data, height, width):
    """A JPEG whose header says another size."""
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    return data[:at + 5] + struct.pack(">HH", height, width) + data[at + 9:]


def scans(data, times):
    """A progressive JPEG with its first scan many times."""
    begin = data.index(b"\xff\xda")
    end = data.index(b"\xff\xc4", begin)
    return data[:begin] + data[begin:end] * times + data[end:]


pictures = {"png_%d_%d%s" % (c, d, "_interlaced" * i): seed_png(c, d, interlaced=bool(i), palette=bytes(k & 255 for k in range(3 << d)) if c == 3 else b"")
            for c, depths in DEPTHS.items() for d in depths for i in (0, 1)}
pictures |= {
    "png_one": seed_png(size=(1, 1)),
    "png_profile": seed_png(before=chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1 << 16))) + chunk(b"gAMA", b"\0\1\0\0")),
    "png_text_bomb": seed_png(before=chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(1 << 20)))),
    "png_clear": seed_png(colour=3, depth=2, palette=bytes(12), before=chunk(b"tRNS", b"\0\x7f")),
    "png_short_palette": seed_png(colour=3, palette=bytes(9)),
    "png_no_palette": seed_png(colour=3),
    "png_large": seed_png(claim=(65535, 65535)),
    "png_largest": seed_png(claim=(0x7fffffff, 0x7fffffff)),
    "png_no_pixels": seed_png(claim=(0, 4)),
    "png_too_few": seed_png(claim=(5, 9)),
    "png_too_many": seed_png(claim=(5, 3)),
    "png_bomb": seed_png(colour=0, depth=1, claim=(4000, 4000), data=zlib.compress(bytes(4000 * 501), 9)),
    "png_damaged": seed_png(data=b"\x78\x9c" + bytes(range(40))),
    "png_wrong_sum": seed_png().replace(b"IEND", b"IENE"),
    "png_cut": seed_png()[:-20],
    "png_signature": seed_png()[:8],
    "jpeg_grey": grey,
    "jpeg_colour": colour,
    "jpeg_progressive": progressive,
    "jpeg_cmyk": cmyk,
    "jpeg_large": claims(grey, 65500, 65500),
    "jpeg_large_progressive": claims(progressive, 65500, 65500),
    "jpeg_dense": claims(progressive, 12000, 12000),
    "jpeg_tall": claims(colour, 64, 9),
    "jpeg_none": claims(colour, 0, 9),
    "jpeg_scans": scans(progressive, 150),
    "jpeg_cut": colour[:-7],
    "jpeg_no_end": colour[:-2],
    "jpeg_tables": colour[:200],
    "jpeg_start": b"\xff\xd8\xff",
    "jpeg_behind": colour + b"more",
    "neither": b"GIF89a" + bytes(40),
    "empty": b"",
}

targets = {"fuzz_picture": pictures, "fuzz_csv": tables, "fuzz_libsvm": libsvms, "fuzz_idx": idxs, "fuzz_cifar": cifars, "fuzz_npy": numpys, "fuzz_config": configs, "fuzz_parts": indexes, "fuzz_llmc": llmcs, "fuzz_tokenizer": tokenizers, "fuzz_corpus": texts, "fuzz_shards": shards, "fuzz_choices": choices, "fuzz_index": indices, "fuzz_orders": orders, "fuzz_safetensors": safetensors, "fuzz_checkpoint": checkpoints,
           "fuzz_store": store, "fuzz_rpc": calls, "fuzz_environment": environments, "fuzz_deepspeed": deepspeed}
for target, seeds in targets.items():
    folder = here / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds.items():
        (folder / name).write_bytes(data)
