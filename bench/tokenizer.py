"""Tokenizers on one thread, in MB/s of text: Tern, and `tokenizers` and tiktoken of TERN_BENCH_PYTHON, in turns.

GPT-2's vocabulary and tiny Shakespeare come from TERN_DATA; a vocabulary cut by Llama 3's pattern is trained on the sources. A peer
that makes a different number of ids gets no ratio.
"""
import glob
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

ROUNDS, STEPS = 5, 1
PEERS = ["tokenizers", "tiktoken"]


def write_sources(path):
    """This repository's sources and documents, concatenated."""
    with open(path, "wb") as out:
        for top in ["*", "*/**/*"]:
            for name in sorted(glob.glob(os.path.join(duel.ROOT, top), recursive=True)):
                if name.endswith((".c", ".h", ".py", ".md")) and f"{duel.ROOT}/build/" not in name:
                    with open(name, "rb") as f:
                        out.write(f.read())


def find_peers(python):
    there = []
    for name in PEERS:
        done = subprocess.run([python, "-c", f"import {name}; print({name}.__version__)"], capture_output=True, text=True) if python else None
        if done and done.returncode == 0:
            there.append((name, done.stdout.strip()))
        else:
            print(f"no {name}: TERN_BENCH_PYTHON ({python or 'not set'}) should name a Python that has it")
    return there


def speeds(folder, text, pattern, python, peers, what):
    """MB/s of Tern, then of each peer with its ratios."""
    ours = duel.Worker([duel.program("tokenizer"), folder, text] + what, 1)
    script = os.path.join(duel.HERE, "tokenizer_peer.py")
    theirs = [duel.Worker([python, script, name, folder, text, pattern] + what, 1) for name, _ in peers]
    found = duel.duel([ours] + theirs, ROUNDS, STEPS, 1, agree=0)
    size = os.path.getsize(text) / 1e3
    row = [size / found["ms"][0]]
    for ms, ratios in zip(found["ms"][1:], found["ratios"][1:]):
        row += [size / ms, duel.ratio_text(ratios)]
    return row


def main():
    data, python = os.environ.get("TERN_DATA"), os.environ.get("TERN_BENCH_PYTHON")
    peers, rows = find_peers(python), []
    with tempfile.TemporaryDirectory() as where:
        sources, llama = f"{where}/sources", f"{where}/llama3"
        write_sources(sources)
        trained = subprocess.run([duel.program("tokenizer"), "--train", sources, llama, "32000", "llama3"], check=True,
                                 capture_output=True, text=True, env=duel.fair_environment(1))
        print(f"a vocabulary of 32000 from {os.path.getsize(sources) / 1e6:.1f} MB of sources: {float(trained.stdout):.2f} s")
        texts = [("the sources", sources)]
        vocabularies = [("its own, Llama 3's pattern", llama, "llama3")]
        if data:
            texts.insert(0, ("tiny Shakespeare", f"{data}/tinyshakespeare.txt"))
            vocabularies.insert(0, ("GPT-2's", f"{data}/gpt2", "gpt2"))
        else:
            print("TERN_DATA names no folder with tinyshakespeare.txt and gpt2/: without them")
        for what in ["encode", "decode"]:
            for text_name, text in texts:
                for name, folder, pattern in vocabularies:
                    row = speeds(folder, text, pattern, python, peers, ["decode"] if what == "decode" else [])
                    rows.append([f"{what} {text_name}, {name}"] + row)
    head = ["MB/s", "Tern"]
    for name, version in peers:
        head += [f"{name} {version}", "ratio"]
    duel.table(head, rows)


main()
