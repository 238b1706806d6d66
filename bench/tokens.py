"""`tern tokens`: MB of text a second, on one core and on all of them, against a Python loop over the package tokenizers.

Options: megabytes of text (60), rounds (5). The text is excerpts of tiny Shakespeare as JSON lines of a few KB, the tokenizer is
GPT-2's, both from TERN_DATA. The peer runs in TERN_PYPI_PYTHON, on all cores and as usually written: batches of documents to
encode_batch, the ids as uint16 to a file. Reading, encoding and writing count; starting Python and its packages does not.
"""
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

TERN = os.path.join(os.environ["TERN_BENCH_BIN"], "..", "tools", "tern")
CORES = sorted(os.sched_getaffinity(0))

PEER = r"""
import json, os, sys, time
import numpy as np
from tokenizers import ByteLevelBPETokenizer
folder, path, out = sys.argv[1:]
t = ByteLevelBPETokenizer(os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt"))
begin, count = time.monotonic(), 0
with open(path, encoding="utf-8") as lines, open(out, "wb") as f:
    batch = []
    def flush():
        ids = [i for e in t.encode_batch(batch) for i in [50256] + e.ids]
        f.write(np.array(ids, dtype=np.uint16).tobytes())
        batch.clear()
        return len(ids)
    for line in lines:
        batch.append(json.loads(line)["text"])
        if len(batch) == 1000:
            count += flush()
    count += flush()
print(time.monotonic() - begin, count)
"""


def write_texts(path, size):
    """JSON lines of 2 to 6 KB; returns how many bytes of text they have."""
    with open(os.path.join(os.environ["TERN_DATA"], "tinyshakespeare.txt"), encoding="utf-8") as f:
        text = f.read()
    rng, total = random.Random(1), 0
    with open(path, "w", encoding="utf-8") as f:
        while total < size:
            at, length = rng.randrange(len(text) - 6000), rng.randrange(2000, 6000)
            f.write(json.dumps({"text": text[at:at + length]}) + "\n")
            total += length
    return total


def run_tern(folder, path, threads, cores):
    """Seconds, and the number of tokens."""
    out = os.path.join(folder, "out")
    command = [TERN, "tokens", path, "--tokenizer", os.path.join(os.environ["TERN_DATA"], "gpt2"), "--out", out, "--overwrite",
               "--threads", str(threads)]
    begin = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cores))
    seconds = time.monotonic() - begin
    with open(os.path.join(out, "tokens.json"), encoding="utf-8") as f:
        return seconds, json.load(f)["tokens"]


def run_peer(folder, path, python):
    done = subprocess.run([python, "-c", PEER, os.path.join(os.environ["TERN_DATA"], "gpt2"), path, os.path.join(folder, "peer.bin")],
                          check=True, stdout=subprocess.PIPE, env={**os.environ, "TOKENIZERS_PARALLELISM": "true"})
    seconds, count = done.stdout.split()
    return float(seconds), int(count)


def main():
    megabytes, rounds = ([int(a) for a in sys.argv[1:]] + [60, 5][len(sys.argv) - 1:])[:2]
    python = os.environ.get("TERN_PYPI_PYTHON")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "texts.jsonl")
        size = write_texts(path, megabytes * 1000000)
        runs = {"1 core": lambda: run_tern(folder, path, 1, CORES[:1]),
                f"{len(CORES)} cores": lambda: run_tern(folder, path, len(CORES), CORES)}
        if python:
            runs["tokenizers"] = lambda: run_peer(folder, path, python)
        times, counts = {name: [] for name in runs}, set()
        for _ in range(rounds):  # taking turns
            for name, once in runs.items():
                seconds, count = once()
                times[name].append(seconds)
                counts.add(count)
    if len(counts) != 1:
        sys.exit(f"the numbers of tokens differ: {counts}")
    all_cores = f"{len(CORES)} cores"
    print(f"tern tokens, {size / 1e6:.0f} MB of text, {counts.pop()} tokens")
    for name, seconds in times.items():
        ratios = [theirs / ours for theirs, ours in zip(seconds, times[all_cores])]
        rest = "" if name == all_cores else f"   {all_cores}: {statistics.median(ratios):.2f} times as fast " \
                                            f"({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {name:12s} {size / 1e6 / statistics.median(seconds):8.1f} MB/s{rest}")
    if not python:
        print("  tokenizers: TERN_PYPI_PYTHON names no Python that has it")


main()
