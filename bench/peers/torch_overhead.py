"""The operations of ../overhead.c in PyTorch: "name ns" lines."""
import time

import torch
import torch.nn as nn

ROUNDS, CALLS = 10, 5000

torch.set_num_threads(1)
a, b = torch.ones(1, requires_grad=True), torch.ones(1)


def timed(n, f):
    start = time.perf_counter()
    for _ in range(n):
        f()
    return (time.perf_counter() - start) / n * 1e9


def best(f, calls=CALLS):
    timed(calls // 10, f)
    return min(timed(calls, f) for _ in range(ROUNDS))


LINKS = 100


def forward_chain():
    x = a
    for _ in range(LINKS):
        x = x + b
    return x


def train_chain():
    forward_chain().backward()


identity = nn.Identity()
print(f"recorded_add {best(lambda: a + b):.1f}")
print(f"recorded_mul {best(lambda: a * b):.1f}")
there, both = best(forward_chain, CALLS // LINKS), best(train_chain, CALLS // LINKS)
print(f"backward_add {(both - there) / LINKS:.1f}")
with torch.no_grad():
    print(f"add {best(lambda: a + b):.1f}")
    print(f"empty {best(lambda: torch.empty(1)):.1f}")
    print(f"view {best(lambda: a.view(1, 1)):.1f}")
    print(f"module {best(lambda: identity(a)):.1f}")
