#!/usr/bin/env python3
"""What ptxas made of the kernels: no spills, and no more registers than registers.txt grants.

test_registers.py [--show]      --show: the most that each kernel uses, over all architectures, instead

Reads what backends/cuda/nvcc.sh kept of the last compilation, and compiles nothing: skipped where nvcc has not run.
"""
import collections
import glob
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.dirname(os.environ.get("TERN_TEST_BIN", os.path.join(HERE, "../../build/release/tests")))
SLOW = "double"  # kernels of f64, which no GPU computes fast, may spill


def read_usage(text):
    """[mangled name, architecture, registers, bytes spilled] of each kernel in what ptxas says."""
    rows, row = [], None
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)' for 'sm_(\w+)'", line):
            row = [*found.groups(), 0, 0]
        elif row and (found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)):
            row[3] = sum(map(int, found.groups()))
        elif row and (found := re.search(r"Used (\d+) registers", line)):
            rows.append([*row[:2], int(found.group(1)), row[3]])
            row = None
    return rows


def plain_names(names):
    """loss_kernel<bf16,512> for "void loss_kernel<__nv_bfloat16, 512>(losses<__nv_bfloat16>)"."""
    lines = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    for line in lines:
        line = line.replace("(anonymous namespace)::", "").split("(")[0].removeprefix("void ")
        yield line.replace("__nv_bfloat16", "bf16").replace("__half", "f16").replace(" ", "")


def read_caps(path):
    """[pattern, registers] of each line, the first of which that fits a kernel holds for it."""
    with open(path, encoding="utf-8") as f:
        lines = [line.split("#")[0].split() for line in f]
    return [[name, int(most)] for name, most in filter(None, lines)]


def faults(rows, caps):
    """What is wrong with [name, architecture, registers, bytes spilled]; a line for no kernel is wrong, too."""
    wrong, met = [], set()
    for name, arch, registers, spilled in rows:
        cap = next((line for line in caps if name.startswith(line[0])), None)
        if cap:
            met.add(cap[0])
        if spilled and SLOW not in name:
            wrong.append(f"{name} spills {spilled} bytes on sm_{arch}")
        if cap and registers > cap[1]:
            wrong.append(f"{name} uses {registers} registers on sm_{arch}, not {cap[1]}")
    return wrong + [f"registers.txt: there is no kernel {name}" for name, _ in caps if name not in met]


SAMPLE = """ptxas info    : Compiling entry function '_Z4hotsIfEvv' for 'sm_80'
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 42 registers, used 1 barriers"""


def check_itself():
    (row,) = read_usage(SAMPLE)
    (name,) = plain_names([row[0]])
    rows = [[name, *row[1:]]]
    assert rows == [["hots<float>", "80", 42, 8]], rows
    assert len(faults(rows, [["hots", 42]])) == 1, "a spill"
    assert len(faults(rows, [["hots", 41]])) == 2, "too many registers"
    assert len(faults(rows, [["hots", 42], ["colds", 42]])) == 2, "a line for no kernel"


def main():
    check_itself()
    rows = []
    for path in glob.glob(os.path.join(BUILD, "**/*.cu.usage"), recursive=True):
        with open(path, encoding="utf-8", errors="replace") as f:
            rows += read_usage(f.read())
    if not rows:
        print(f"skipped: nvcc has compiled no kernel in {BUILD}: nobody has looked for spills", file=sys.stderr)
        sys.exit(77)
    rows = sorted([name, *row[1:]] for name, row in zip(plain_names([row[0] for row in rows]), rows))
    if sys.argv[1:] == ["--show"]:
        most = collections.defaultdict(int)
        for name, _, registers, _ in rows:
            most[name] = max(most[name], registers)
        print("\n".join(f"{registers:4d} {name}" for name, registers in most.items()))
        return
    wrong = faults(rows, read_caps(os.path.join(HERE, "registers.txt")))
    print("\n".join(wrong) or f"{len(rows)} kernels, none spills")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
