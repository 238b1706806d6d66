"""Every result and gradient of every operation against PyTorch's, on the registry's samples in f32 and f64.

Then again by the reference kernels, which define what all others compute, in bf16 and f16 too and with odd values (NaN, infinities,
-0). There PyTorch gets the same numbers as doubles, so that its own rounding is no part of the difference. Where PyTorch is missing,
what remains for ref: fast kernels are compared with it (backends/kernels_*), and backends/ref checks what PyTorch cannot judge.

dump_samples writes what Tern computes; twins/FOLDER.py say what PyTorch calls the operations of ops/FOLDER/ where the name or the
arguments differ. An operation without a twin fails. Prints TAP, one test per operation. Without PyTorch the whole test is skipped,
except in CI, where that is a failure.
"""
import functools
import json
import math
import os
import runpy
import subprocess
import tempfile

from twin import DTYPES, run, torch
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


# Rounded to 16 bits between two steps.
TWICE = {"linear_gelu", "mlp", "mse", "weighted_cross_entropy"}
# PyTorch makes something else of odd values: it refuses them, drops or counts NaN, or puts equal ones in any order; or a zero (a padded or
# masked place, a row without deviation) meets infinity in one formula and not in the other.
NO_ODD = {"attention", "attention_qkv", "batch_norm", "batch_norm_given", "bce", "bce_with_logits", "conv", "conv_weight_grad", "einsum",
          "kl_div", "layer_norm", "linear_cat", "pow_scalar", "resample", "resample_grad", "topk"}


def tolerance_of(case, dtype, gradient):
    """Relative to each number and, for sums that cancel, to the largest of them."""
    if dtype in (torch.float32, torch.float64):
        one = {torch.float32: 2e-6 if case["ref"] else 1e-5, torch.float64: 1e-12}[dtype]
        return 10 * one, one
    if not case["ref"]:
        return 0.0, 0.0  # a cast rounds exactly as PyTorch's
    rounding = torch.finfo(dtype).eps / 2
    return (rounding, 8 * rounding) if gradient else (2 * rounding, 2 * rounding) if case["op"] in TWICE else (1.01 * rounding, rounding / 4)


def check_dropout(case, x, got, weights, grad):
    """Random, so without a twin: each element is kept and scaled, or zero; about p of them are zero; backward has the same mask."""
    p = eval("dict(%s)" % case["keywords"])["p"]
    kept = got != 0
    scale = 1.0 / (1.0 - p) if p < 1 else 0.0
    close(case, got, torch.where(kept, x * scale, torch.zeros_like(x)), "result")
    close(case, grad, torch.where(kept, weights * scale, torch.zeros_like(x)), "gradient")
    n = x.numel()
    if n >= 100 and abs((~kept).double().mean().item() - p) > 5 * math.sqrt(p * (1 - p) / n) + 1e-12:
        raise AssertionError("%g of the elements are zero, not %g" % ((~kept).double().mean().item(), p))


def close(case, got, want, what, terms=0.0):
    relative, absolute = tolerance_of(case, got.dtype, what != "result") if got.dtype.is_floating_point else (0.0, 0.0)
    least = 1e-30
    if case["ref"] and want.dtype == torch.float64 and got.dtype in (DTYPES[case["dtype"].upper()], torch.float32):
        least = 1e-7 if got.element_size() == 2 else least  # f16 has few numbers below it
        rounded = want.to(got.dtype).double()
        got, want = got.double(), torch.where(torch.isfinite(rounded), want, rounded)
    if got.dtype != want.dtype:
        raise AssertionError("%s is %s, PyTorch's %s" % (what, got.dtype, want.dtype))
    if got.shape != want.shape:
        raise AssertionError("%s is %s, PyTorch's %s" % (what, list(got.shape), list(want.shape)))
    if not got.dtype.is_floating_point:
        if not torch.equal(got, want):
            raise AssertionError("%s differs" % what)
        return
    finite = want[torch.isfinite(want)].abs()
    top = max(finite.max().item() if finite.numel() else 0.0, terms)
    if not torch.allclose(got, want, rtol=relative, atol=absolute * top + least, equal_nan=True):
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
    if case["ref"]:
        inputs, weights = ([t.double() if t is not None and t.dtype.is_floating_point else t for t in ts] for ts in (inputs, weights))
    if case["op"] == "dropout":
        if not case["odd"]:
            check_dropout(case, inputs[0], results[0], weights[0], grads[0])
        return
    twin = twin_of(case["op"])
    for t in inputs:
        if t is not None and t.dtype.is_floating_point and not case["odd"]:
            t.requires_grad_(True)
    keywords = eval("dict(%s)" % case["keywords"], {"inf": math.inf})
    want = twin(*inputs, **keywords)
    want = want if isinstance(want, (tuple, list)) else (want,)
    for got, expected in zip(results, want):
        close(case, got, expected.detach(), "result")
    if weights[0] is None:
        return
    if any(w.requires_grad for w in want):
        torch.autograd.backward(want, weights)
    terms = TERMS[case["op"]](*(x.detach() for x in inputs if x is not None), **keywords) if case["op"] in TERMS else 0.0
    for i, (t, got) in enumerate(zip(inputs, grads)):
        if got is not None:
            close(case, got, t.grad if t.grad is not None else torch.zeros_like(t), "gradient of input %d" % i, terms)


def dumped(*table):
    """What dump_samples writes: a list of cases, and the numbers."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([os.path.join(os.environ["TERN_TEST_BIN"], "dump_samples"), folder, *table], check=True)
        with open(os.path.join(folder, "data.bin"), "rb") as file:
            data = bytearray(file.read())
        with open(os.path.join(folder, "index.jsonl")) as file:
            cases = [dict(json.loads(line), ref=bool(table)) for line in file]
    return [case for case in cases if not (case["odd"] and case["op"] in NO_ODD)], data


def check_all(name, cases, data):
    """Fails with the first case that differs."""
    for case in cases:
        try:
            compare(case, data)
        except Exception as error:  # the twin itself may refuse the inputs
            raise AssertionError("sample %d (%s)%s, %s: %s: %s" % (
                case["sample"], case["keywords"], ", odd values" if case["odd"] else "",
                [a and (a["dtype"], a["dims"]) for a in case["inputs"]], type(error).__name__, error)) from error


def main():
    tests = []
    for table in ((), ("ref",)) if not os.environ.get("TERN_TEST_DEVICE") else ((),):
        cases, data = dumped(*table)
        for name in dict.fromkeys(case["op"] for case in cases):
            of = [case for case in cases if case["op"] == name]
            tests.append((" ".join((name, *table)) + " (%d cases)" % len(of), functools.partial(check_all, name, of, data)))
    run(tests)


main()
