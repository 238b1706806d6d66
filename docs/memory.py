#!/usr/bin/env python3
"""The memory that a rank needs for a sharded model: the formula of docs/sharding.md, as its tables.

memory.py rest|step         prints a table that the page shows; tests/check_docs.py compares them, and
                            tests/parallel/test_memory_table.py compares the formula with what a rank has

Parameters, gradients and sums are f32, the optimiser is Adam, whose state is two numbers a parameter. GB are 10^9 bytes.
"""
import sys

MODELS = {"124M": (12, 768), "355M": (24, 1024), "774M": (36, 1280), "1.5B": (48, 1600)}  # GPT-2: layers, width
RANKS = (1, 2, 4, 8, 16, 32, 64)


def count(layers, width, vocab=50257, context=1024):
    """The number of parameters in a block, in no block (the rest), and in the largest parameter."""
    return 12 * width * width + 13 * width, (vocab + context + 2) * width, vocab * width


def at_rest(stage, ranks, parameters, compute=4):
    """Bytes between two steps; stage 0 is DDP. `compute`: bytes of a number that travels and computes: 4, or 2 in bf16."""
    whole = {0: 0, 1: compute + 4, 2: compute, 3: 0}[stage]
    low = compute if compute < 4 else 0  # a copy in the compute dtype: of the part, or with DDP of everything
    if stage == 0:
        return parameters * (16 + low)
    return parameters * (whole + (16 + low) / ranks)


def buffers(stage, block, rest):
    """Bytes of the buffers that hold gradients until they are scattered; they stay allocated."""
    return 4 * (rest + 2 * block) if stage >= 2 else 0


def whole(stage, block, rest, compute=4, prefetch=1):
    """Bytes of the parameters that are whole at once, at most; 0 if all of them always are."""
    return compute * (rest + (1 + prefetch) * block) if stage == 3 else 0


def added(stage, block, rest, largest):
    """Bytes that a step adds at most, without the activations: buffers, whole parameters, and the gradient of the largest
    parameter as backward makes it."""
    return buffers(stage, block, rest) + whole(stage, block, rest) + 4 * largest


def row(name, values):
    return f"| {name} | " + " | ".join(f"{gb:.3g}" if gb < 10 else f"{gb:.1f}" for gb in (x / 1e9 for x in values)) + " |"


def rest_table():
    yield "| GB of a rank | " + " | ".join(f"{n} rank{'s' * (n > 1)}" for n in RANKS) + " |"
    yield "|---|" + "---|" * len(RANKS)
    for name, (layers, width) in MODELS.items():
        block, rest, _ = count(layers, width)
        for stage in range(4):
            yield row(f"{name}, {f'stage {stage}' if stage else 'DDP'}", [at_rest(stage, n, layers * block + rest) for n in RANKS])


def step_table():
    yield "| GB of a rank | stages 1 and DDP | stage 2 | stage 3 |"
    yield "|---|---|---|---|"
    for name, size in MODELS.items():
        yield row(name, [added(stage, *count(*size)) for stage in (1, 2, 3)])


TABLES = {"rest": rest_table, "step": step_table}
if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in TABLES:
        sys.exit(__doc__)
    print("\n".join(TABLES[sys.argv[1]]()))
