"""A plan beside what it plans: seconds of a step of a small GPT-2 as `tern plan --measure` says, and as ranks then take them.

Options: rounds [RANKS [MESH]]. Each mesh takes turns: `tern plan` measures the machine, with as many ranks of 1 thread each, then these
take two steps. The ratio of a round is the steps' seconds to the planned ones. Steps are of the same 16 sequences of 128 tokens.
"""
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel
from ranks import Ranks

MODEL = ["--layers", "8", "--heads", "8", "--width", "512", "--vocab", "8192"]
SEQUENCES, T = 16, 128
MESHES = {2: ["dp=2", "shard=2,stage=2", "shard=2,stage=3", "tp=2", "pp=2"],
          4: ["dp=4", "shard=4,stage=2", "shard=4,stage=3", "tp=2,dp=2", "pp=2,dp=2", "pp=2,tp=2"],
          8: ["dp=8", "shard=8,stage=2", "shard=8,stage=3", "tp=2,dp=4", "pp=2,dp=4", "pp=2,tp=2,dp=2"]}
TERMS = {"compute": "computing", "tensor": "tp", "data": "data", "bubble": "bubble", "optimiser": "optimiser"}  # of a plan


def shape_of(ranks, mesh):
    """Sequences of a rank's micro-batch, and how many micro-batches."""
    sizes = dict(word.split("=") for word in mesh.split(","))
    rows = SEQUENCES * int(sizes.get("tp", 1)) * int(sizes.get("pp", 1)) // ranks
    return (1, rows) if "pp" in sizes else (rows, 1)


def planned(ranks, mesh):
    tern = os.path.join(os.path.dirname(os.path.dirname(duel.program("plan"))), "tools", "tern")
    rows, _ = shape_of(ranks, mesh)
    job = Ranks([tern, "plan", "--measure", "--json", *MODEL, "--context", str(T), "--precision", "f32", "--ranks", str(ranks), "--mesh", mesh,
                 "--batch", str(rows), "--tokens", str(SEQUENCES * T)], ranks)
    answer = job.workers[0].process.stdout.readline()
    job.close()
    return json.loads(answer)


def compare(rounds, ranks, mesh):
    rows, micros = shape_of(ranks, mesh)
    more = ["--micros", str(micros)] if micros > 1 else []
    job = Ranks([duel.program("fsdp"), *MODEL, "--batch", str(rows * micros), "--mesh", mesh, *more, str(T)], ranks)
    job.run(2)
    plans, seconds = [], []
    for _ in range(rounds):
        plans.append(planned(ranks, mesh))
        seconds.append(statistics.mean(job.run(2)[1]) / 1e3)
    job.close()
    parts = [f"{statistics.median(p[term] for p in plans):.2f}" for term in TERMS]
    ratios = sorted(s / p["seconds"] for s, p in zip(seconds, plans))
    return [mesh, statistics.median(p["seconds"] for p in plans), statistics.median(seconds), duel.ratio_text(ratios), *parts]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    chosen = {int(sys.argv[2]): sys.argv[3:] or MESHES[int(sys.argv[2])]} if len(sys.argv) > 2 else MESHES
    for ranks, meshes in chosen.items():
        rows = [compare(rounds, ranks, mesh) for mesh in meshes]
        duel.table([f"{ranks} ranks, s a step", "planned", "taken", "taken / planned (of the rounds)", *TERMS.values()], rows)
        print(flush=True)


main()
