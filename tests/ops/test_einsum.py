"""Einsums with random subscripts, which dump_einsum draws, against PyTorch's, with gradients: up to four operands, diagonals,
ellipses, sizes that broadcast, with and without "->". In f64, because cancellation in sums is not the question here."""
from twin import cases, close, run_cases, torch


def check(name, case):
    operands = [case["x%d" % i].requires_grad_(True) for i in range(name.count(",") + 1)]
    y = torch.einsum(name.split(":", 1)[1], *operands)
    close(case["y"], y.detach(), "the result", 1e-12)
    y.backward(case["dy"])
    for i, x in enumerate(operands):
        close(case["g%d" % i], x.grad, "the gradient of operand %d" % i, 1e-12)


run_cases(cases("dump_einsum"), lambda name: "einsum of %d operands" % (name.count(",") + 1), check)
