"""Every result and gradient of every operation against PyTorch's, on the registry's samples in f32 and f64.

dump_samples writes what Tern computes; twins/FOLDER.py say what PyTorch calls the operations of ops/FOLDER/ where the name or the
arguments differ. An operation without a twin fails. Prints TAP, one test per operation. Without PyTorch the whole test is skipped,
except in CI, where that is a failure.
"""
import json
import math
import os
import runpy
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from twin import DTYPES, torch
import torch.nn.functional as F


def gather_from_twins(name):
    """The dictionaries of that name in twins/*.py, one for each folder of ops."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "twins")
    parts = (runpy.run_path(os.path.join(folder, file)).get(name, {}) for file in sorted(os.listdir(folder)) if file.endswith(".py"))
    return {key: value for part in parts for key, value in part.items()}


TWINS, TERMS = gather_from_twins("TWINS"), gather_from_twins("TERMS")


def twin_of(name):
    """What twins/*.py say, or PyTorch's own function of that name."""
    twin = TWINS.get(name) or getattr(torch, name, None) or getattr(F, name, None)
    if twin is None:
        raise AssertionError("the operation has no PyTorch twin: neither in tests/ops/twins nor by its name")
    return twin


def check_dropout(case, x, got, weights, grad):
    """Random, so without a twin: each element is kept and scaled, or zero; about p of them are zero; backward has the same mask."""
    p = eval("dict(%s)" % case["keywords"])["p"]
    kept = got != 0
    scale = 1.0 / (1.0 - p) if p < 1 else 0.0
    close(got, torch.where(kept, x * scale, torch.zeros_like(x)), "result")
    close(grad, torch.where(kept, weights * scale, torch.zeros_like(x)), "gradient")
    n = x.numel()
    if n >= 100 and abs((~kept).double().mean().item() - p) > 5 * math.sqrt(p * (1 - p) / n) + 1e-12:
        raise AssertionError("%g of the elements are zero, not %g" % ((~kept).double().mean().item(), p))


def close(got, want, what, terms=0.0):
    if got.dtype != want.dtype:
        raise AssertionError("%s is %s, PyTorch's %s" % (what, got.dtype, want.dtype))
    if got.shape != want.shape:
        raise AssertionError("%s is %s, PyTorch's %s" % (what, list(got.shape), list(want.shape)))
    if not got.dtype.is_floating_point:
        if not torch.equal(got, want):
            raise AssertionError("%s differs" % what)
        return
    # Relative to each number and, for sums that cancel, to the largest of them.
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}.get(got.dtype, 0.0)  # a cast rounds exactly as PyTorch's
    finite = want[torch.isfinite(want)].abs()
    top = max(finite.max().item() if finite.numel() else 0.0, terms)
    if not torch.allclose(got, want, rtol=10 * tolerance, atol=tolerance * top + 1e-30, equal_nan=True):
        error = (got - want).abs()
        raise AssertionError("%s differs by up to %g (largest value %g)" % (what, error[torch.isfinite(error)].max().item() if torch.isfinite(error).any() else math.nan, top))


def load(data, array):
    if array is None:
        return None
    dtype = DTYPES[array["dtype"].upper()]
    count = math.prod(array["dims"])
    if count == 0:
        return torch.empty(array["dims"], dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=array["offset"]).reshape(array["dims"]).clone()


def compare(case, data):
    inputs, results, weights, grads = ([load(data, a) for a in case[k]] for k in ("inputs", "results", "weights", "grads"))
    if case["op"] == "dropout":
        check_dropout(case, inputs[0], results[0], weights[0], grads[0])
        return
    twin = twin_of(case["op"])
    for t in inputs:
        if t is not None and t.dtype.is_floating_point:
            t.requires_grad_(True)
    keywords = eval("dict(%s)" % case["keywords"])
    want = twin(*inputs, **keywords)
    want = want if isinstance(want, (tuple, list)) else (want,)
    for got, expected in zip(results, want):
        close(got, expected.detach(), "result")
    if weights[0] is None:
        return
    if any(w.requires_grad for w in want):
        torch.autograd.backward(want, weights)
    terms = TERMS[case["op"]](*(x.detach() for x in inputs if x is not None), **keywords) if case["op"] in TERMS else 0.0
    for i, (t, got) in enumerate(zip(inputs, grads)):
        if got is not None:
            close(got, t.grad if t.grad is not None else torch.zeros_like(t), "gradient of input %d" % i, terms)


def main():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([os.path.join(os.environ["TERN_TEST_BIN"], "dump_samples"), folder], check=True)
        with open(os.path.join(folder, "data.bin"), "rb") as file:
            data = bytearray(file.read())
        with open(os.path.join(folder, "index.jsonl")) as file:
            cases = [json.loads(line) for line in file]
    names = list(dict.fromkeys(case["op"] for case in cases))
    print("1..%d" % len(names))
    for number, name in enumerate(names, 1):
        count = 0
        try:
            for case in cases:
                if case["op"] == name:
                    compare(case, data)
                    count += 1
            print("ok %d - %s (%d cases)" % (number, name, count))
        except Exception as error:  # the twin itself may refuse the inputs
            print("not ok %d - %s" % (number, name))
            print("# sample %d (%s), %s: %s: %s" % (case["sample"], case["keywords"], [a and (a["dtype"], a["dims"]) for a in case["inputs"]], type(error).__name__, error))


main()
