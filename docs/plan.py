#!/usr/bin/env python3
"""What documents show of `tern plan`: the one place where bytes and seconds are computed is its C.

plan.py rest             the bytes between two steps of GPT-2s, sharded and not, as a table
plan.py published        plans of published runs beside what was measured, as a table
plan.py torchtitan       the same of Llama 8B on H100s
plan.py show ARGUMENTS   a command and what it prints
plan.py best N ARGUMENTS the same of --search, the N fastest
plan.py compare MESH MESH ... with ARGUMENTS   plans of some meshes, as a table; MESH+recompute

tests/check_docs.py compares documents with this, and so keeps its bounds. It runs the `tern` of TERN_TEST_BIN's build, or of the newest
one in build/; with none it exits with 77.
"""
import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[1]
MODELS = {"gpt2": "124M", "gpt2-medium": "355M", "gpt2-large": "774M", "gpt2-xl": "1.5B"}
RANKS = (1, 2, 4, 8, 16, 32, 64)
# Narayanan et al. 2021, arXiv:2104.04473, table 1: billions, heads, width, layers, tp, pp, GPUs, sequences of a step, TFLOP/s of a GPU.
PUBLISHED = ((1.7, 24, 2304, 24, 1, 1, 32, 512, 137), (3.6, 32, 3072, 30, 2, 1, 64, 512, 138), (7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
             (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135), (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138), (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140),
             (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148), (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155),
             (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163), (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163))


# torchtitan, December 2024: GPUs, tokens per second and GPU, without and with torch.compile.
TORCHTITAN = ((8, 5762, 6667), (128, 5605, 6514))


def command():
    if "TERN_TEST_BIN" in os.environ:
        return pathlib.Path(os.environ["TERN_TEST_BIN"]).parent / "tools/tern"
    built = sorted(glob.glob(str(root / "build/*/tools/tern")), key=os.path.getmtime)
    if not built:
        sys.exit(77)
    return built[-1]


def run(*arguments):
    return subprocess.run([command(), "plan", *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def plan(*arguments):
    return json.loads(run(*arguments, "--json"))


def gpt(layers, heads, width, folder):
    """A plan's options for a GPT of any size: a folder with its config.json."""
    sizes = {"model_type": "gpt2", "vocab_size": 51200, "n_positions": 2048, "n_embd": width, "n_layer": layers, "n_head": heads}
    pathlib.Path(folder, "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    return "--model", folder


def gigabytes(value):
    gb = value / 1e9
    return f"{gb:.3g}" if gb < 10 else f"{gb:.1f}"


def rest():
    yield "| GB of a rank | " + " | ".join(f"{n} rank{'s' * (n > 1)}" for n in RANKS) + " |"
    yield "|---|" + "---|" * len(RANKS)
    for model, name in MODELS.items():
        for stage in range(4):
            row = []
            for ranks in RANKS:
                # one rank shards nothing unless something is offloaded; its parts are on the CPU then, and count as any
                mesh = ["--mesh", f"shard={ranks},stage={stage}"] + ["--offload"] * (ranks == 1) if stage else []
                row.append(plan("--model", model, "--ranks", ranks, "--precision", "f32", *mesh)["rest"])
            yield f"| {name}, {f'stage {stage}' if stage else 'DDP'} | " + " | ".join(map(gigabytes, row)) + " |"


def published():
    yield "| parameters | tp | pp | GPUs | published | modelled | | GB of a GPU |"
    yield "|---|---|---|---|---|---|---|---|"
    for billions, heads, width, layers, tp, pp, ranks, sequences, tflops in PUBLISHED:
        with tempfile.TemporaryDirectory() as folder:
            p = plan(*gpt(layers, heads, width, folder), "--ranks", ranks, "--mesh", f"tp={tp},pp={pp}", "--tokens", sequences * 2048,
                     "--recompute")
        # their formula (3), which counts what is recomputed
        operations = 96 * sequences * 2048 * layers * width**2 * (1 + 2048 / (6 * width) + 51200 / (16 * layers * width))
        modelled = operations / p["seconds"] / ranks / 1e12
        assert abs(p["parameters"] / 1e9 - billions) < 0.05 and p["fits"] and abs(modelled / tflops - 1) <= 0.25, billions
        yield (f"| {billions} billion | {tp} | {pp} | {ranks} | {tflops} TFLOP/s | {modelled:.0f} TFLOP/s | {100 * (modelled / tflops - 1):+.0f} % | "
               f"{p['peak'] / 1e9:.0f} |")


def torchtitan():
    yield "| GPUs | published | compiled | modelled | with recompute |"
    yield "|---|---|---|---|---|"
    for ranks, eager, compiled in TORCHTITAN:
        p = [plan("--gpu", "h100", "--memory", 96, "--memory-speed", 1880, "--model", "llama-8b", "--ranks", ranks, "--mesh",
                  f"shard={ranks}", "--batch", 2, *more) for more in ([], ["--recompute"])]
        fast, slow = (x["tokens"] / x["seconds"] / ranks for x in p)
        assert slow < eager < compiled < fast * 1.02
        yield f"| {ranks} | {eager} | {compiled} | {fast:.0f} | {slow:.0f} |"


def compare(arguments):
    at = arguments.index("with")
    yield "| mesh | GB of a rank | computing | waiting for others | the optimiser | a step |"
    yield "|---|---|---|---|---|---|"
    for text in arguments[:at]:
        mesh, _, recompute = text.partition("+")
        p = plan(*arguments[at + 1:], "--mesh", mesh, *["--recompute"] * bool(recompute))
        waits = p["exchange"] + p["data"] + p["bubble"]
        seconds = " | ".join(f"{x:.3f} s" for x in (p["compute"], waits, p["optimiser"], p["seconds"]))
        yield f"| {text} | {p['peak'] / 1e9:.1f} | {seconds} |"


def show(most, arguments):
    lines = run(*arguments).splitlines()
    return ["```", "$ tern plan " + " ".join(arguments), *lines[:most], "```"]


if __name__ == "__main__":
    verb, arguments = (sys.argv[1:] + [""])[0], sys.argv[2:]
    tables = {"rest": rest, "published": published, "torchtitan": torchtitan,
              "show": lambda: show(None, arguments), "compare": lambda: compare(arguments),
              "best": lambda: show(int(arguments[0]) + 3, arguments[1:])}
    if verb not in tables:
        sys.exit(__doc__)
    print("\n".join(tables[verb]()))
