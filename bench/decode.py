"""GPT-2 124M generating text: tokens a second against what reading the weights allows, PyTorch and llama.cpp, in turns.

decode.py [f32|bf16|int8 ...] [ROUNDS]     default: all three, 7 rounds

The limit is a sum over as many bytes as the weights have, on the same threads, in the same turns (if a cache holds them, both
read from it). Rows differ in the positions in the caches or in the number of sequences; `prompt` is a prompt of 512 tokens
against training's forward. PyTorch's is a plain loop with preallocated caches. TERN_BENCH_PYTHON adds a PyTorch;
TERN_BENCH_LLAMA=PATH_OF_llama-bench adds llama.cpp (built in its source tree: gguf-py is above it; it needs numpy in that Python
or in TERN_BENCH_PYTHON's).
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

STEPS = 16  # of a turn
AGREE = {"f32": 1e-4, "bf16": 3e-2}


class Llama:
    """llama-bench as a worker: a turn is a separate process, whose loading is not counted. Repacked weights are the fastest, but on
    some CPUs they crash it on prompts: so text begins at position 0, or after a long prompt without repacking."""

    def __init__(self, bench, file, filled):
        depth = ["-d", "0"] if filled < 64 else ["-d", str(filled), "--repack", "0"]
        self.command = [bench, "-m", file, "-p", "0", "-r", "1", "-t", str(duel.THREADS), *depth, "-o", "jsonl"]

    def run(self, n):
        done = subprocess.run([*self.command, "-n", str(n)], capture_output=True, text=True, env=duel.fair_environment(bind=False))
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(self.command)} failed: {done.stderr[-500:]}")
        return float("nan"), [1e3 / json.loads(done.stdout.splitlines()[-1])["avg_ts"]]

    def ask(self, _):
        return [float("nan")]

    def close(self):
        pass


def make_llama(kind, folder):
    """(llama-bench, the model's file), or None."""
    bench = os.environ.get("TERN_BENCH_LLAMA")
    if not bench:
        return None
    gguf = os.path.join(os.path.dirname(os.path.abspath(bench)), "..", "..", "gguf-py")
    file = os.path.join(folder, kind + ".gguf")
    for python in (os.environ.get("TERN_BENCH_PYTHON"), duel.PYTHON):
        command = [python, os.path.join(duel.HERE, "gpt2_gguf.py"), gguf, kind, file]
        if python and subprocess.run(command, capture_output=True).returncode == 0:
            return bench, file
    print(f"no llama.cpp: {' '.join(command)} failed")
    return None


def tern(kind, what, n, *more):
    return duel.Worker([duel.program("decode"), "--precision", kind, *map(str, more), what, str(n)])


def writing(kind, rounds, peers, llama, folder, filled, batch):
    limit = tern(kind, "read", 1)
    ours = tern(kind, "token", filled, "--batch", batch, "--share", folder)
    ours.ask("memory")  # now the folder is written
    names, others = [], []
    for p in peers if kind != "int8" else []:
        names.append(p.name)
        others.append(duel.Worker(p.command("torch_decode.py", "--share", folder, "--batch", batch, "--precision", kind, "token", filled, duel.THREADS)))
    if llama and batch == 1:
        names.append("llama.cpp")
        others.append(Llama(*llama, filled))
    r = duel.duel([ours, limit, *others], rounds, STEPS, warm_up=STEPS)
    for i, name in enumerate(names, 2):
        if name.startswith("PyTorch") and abs(r["losses"][i][0] - r["losses"][0][0]) > AGREE[kind] * abs(r["losses"][0][0]):
            print(f"{name} computes something else: its largest logit is {r['losses'][i][0]:.6f}, not {r['losses'][0][0]:.6f}")
    duel.note(f"a token of GPT-2 124M, {kind}, {filled} positions, B = {batch}, {duel.THREADS} threads", r["ms"][0], names, r["ratios"][2:])
    rate = [1e3 * batch / ms for ms in r["ms"]]
    share = sorted(100 * x for x in r["ratios"][1])  # of the limit's speed, in each round
    head = [f"{kind}, {filled} positions, B = {batch}", "Tern", "limit", "Tern / limit"]
    row = ["tokens a second", rate[0], rate[1], f"{statistics.median(share):.0f} %  ({share[0]:.0f} to {share[-1]:.0f})"]
    for i, name in enumerate(names, 2):
        head += [name, "ratio (of the rounds)"]
        row += [rate[i], duel.ratio_text(r["ratios"][i])]
    duel.table(head, [row])
    sys.stdout.flush()


def prompt(kind, rounds, peers, folder):
    """512 tokens into caches against training's forward, which records and computes all logits; int8 cannot be trained: f32's."""
    ours = tern(kind, "prompt", 512, "--share", folder)
    ours.ask("memory")
    training = tern("f32" if kind == "int8" else kind, "forward", 512)
    others = [duel.Worker(p.command("torch_decode.py", "--share", folder, "--precision", kind, "prompt", 512, duel.THREADS)) for p in peers if kind != "int8"]
    r = duel.duel([ours, training, *others], rounds, 2, warm_up=1)
    head, row = [f"{kind}, a prompt of 512", "Tern", "training's forward", "ratio"], ["ms", *r["ms"][:2], duel.ratio_text(r["ratios"][1])]
    for p, ms, ratios in zip(peers if others else [], r["ms"][2:], r["ratios"][2:]):
        head += [p.name, "ratio (of the rounds)"]
        row += [ms, duel.ratio_text(ratios)]
    duel.table(head, [row])
    print(flush=True)


def main():
    kinds = [a for a in sys.argv[1:] if a in ("f32", "bf16", "int8")] or ["f32", "bf16", "int8"]
    rounds = int(([a for a in sys.argv[1:] if a.isdigit()] or [7])[0])
    peers = duel.find_peers()
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            llama = make_llama(kind, folder)
            for filled, batch in ((16, 1), (900, 1), (16, 8)):
                writing(kind, rounds, peers, llama, folder, filled, batch)
            prompt(kind, rounds, peers, folder)


main()
