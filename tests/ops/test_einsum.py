"""Einsums with random subscripts, which dump_einsum draws, against PyTorch's, with gradients: up to four operands, diagonals,
ellipses, sizes that broadcast, with and without "->". In f64, because cancellation in sums is not the question here."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from twin import close, dump, run, torch

CASES = {}
for name, tensor in dump("dump_einsum").items():
    case, part = name.rsplit("/", 1)
    CASES.setdefault(case, {})[part] = tensor


def check(name):
    case, equation = CASES[name], name.split(":", 1)[1]
    n = sum(part.startswith("x") for part in case)
    operands = [case["x%d" % i].requires_grad_(True) for i in range(n)]
    y = torch.einsum(equation, *operands)
    close(case["y"], y.detach(), "the result", 1e-12)
    y.backward(case["dy"])
    for i, x in enumerate(operands):
        close(case["g%d" % i], x.grad, "the gradient of operand %d" % i, 1e-12)


def check_all(operands):
    for name in names_of(operands):
        try:
            check(name)
        except Exception as error:
            raise AssertionError("%s of %s: %s" % (name, [list(t.shape) for p, t in CASES[name].items() if p.startswith("x")], error))


def names_of(operands):
    return [name for name in CASES if name.count(",") + 1 == operands]


run([("einsum of %d operands, %d equations" % (n, len(names_of(n))), lambda n=n: check_all(n)) for n in range(1, 5)])
