"""The operations of ../elements.c in PyTorch: "name ms" lines."""
import torch
import torch.nn.functional as F

from serve import now

CALLS, COUNT = 15, 1000000

torch.set_num_threads(1)
x = torch.randn(COUNT)
square = x.view(1000, 1000)


def best(f):
    times = []
    for _ in range(CALLS):
        start = now()
        f()
        times.append(now() - start)
    return 1e3 * min(times)


OPERATIONS = {
    "exp": lambda: torch.exp(x), "sin": lambda: torch.sin(x), "cos": lambda: torch.cos(x), "tan": lambda: torch.tan(x),
    "tanh": lambda: torch.tanh(x), "sum": lambda: x.sum(), "argmax": lambda: x.argmax(0), "argmax_rows": lambda: square.argmax(1),
    "argmax_columns": lambda: square.argmax(0), "cumsum": lambda: x.cumsum(0), "argsort": lambda: x.argsort(),
    "topk_50": lambda: x.topk(50), "topk_1000": lambda: x.topk(1000), "rand": lambda: torch.rand(COUNT),
    "randn": lambda: torch.randn(COUNT), "randperm": lambda: torch.randperm(COUNT), "dropout": lambda: F.dropout(x, 0.1),
}
for name, f in OPERATIONS.items():
    print(f"{name} {best(f):.4f}")
