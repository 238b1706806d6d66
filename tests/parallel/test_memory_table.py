#!/usr/bin/env python3
"""The formula behind the tables of docs/sharding.md (docs/memory.py) predicts to the byte what ranks have between two steps, how
large the buffers are, and how much was gathered: the model's sizes need no padding."""
import os
import pathlib
import subprocess
import sys

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "docs"))
sys.dont_write_bytecode = True
import memory

program = pathlib.Path(os.environ.get("TERN_TEST_BIN", root / "build/test/tests")) / "memory_program"
failed = False
for compute, dtype in ((4, "f32"), (2, "bf16")):
    for stage in range(4):
        for ranks in (1, 2, 4):
            out = subprocess.run([program, str(stage), str(ranks), dtype], capture_output=True, text=True, timeout=300, check=True).stdout
            between, buffers, whole, parameters, tensors, block = (int(x) for x in out.split())
            rest = parameters - 4 * block
            steps = 8 * tensors  # a step count for each
            rank = memory.at_rest(stage, ranks, parameters, compute) + memory.buffers(stage, block, rest) + steps
            # At the lower stages, what the formula counts at rest is gathered as well.
            most = {0: 0, 1: compute * parameters, 2: compute * parameters, 3: memory.whole(stage, block, rest, compute)}[stage]
            good = between == ranks * rank and whole == most
            good &= buffers == (4 * parameters if stage == 1 else memory.buffers(stage, block, rest))
            failed |= not good
            print(f"{'' if good else 'WRONG '}stage {stage}, {ranks} ranks, {dtype}: {between / ranks:.0f} bytes, formula {rank:.0f}; "
                  f"buffers {buffers}, whole {whole}, formula {most}")
sys.exit(failed)
