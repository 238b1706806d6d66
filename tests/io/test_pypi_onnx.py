#!/usr/bin/env python3
"""ONNX files against the ONNX checker and onnxruntime: every operation of the registry on its samples, models, and random
networks compute there what they compute in Tern.

    test_pypi_onnx.py [COUNT [SEED]]    COUNT random networks (400), from SEED on (1)

dump_onnx and dump_onnx_random write the files and what Tern computes. The bars: f32 within 1e-5 of the largest number of a result
(f64: 1e-11), integers and bools equal. What has no counterpart in ONNX is listed in UNSUPPORTED with the reason, and is an error of
the export.
"""
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import pypi  # pylint: disable=wrong-import-position

pypi.need("onnx", "onnxruntime", "numpy")

import numpy  # pylint: disable=wrong-import-position
import onnx  # pylint: disable=wrong-import-position
import onnxruntime  # pylint: disable=wrong-import-position

PROGRAMS = os.environ.get("TERN_TEST_BIN", "build/test/tests")
BARS = {"float32": 1e-5, "float64": 1e-11}
onnxruntime.set_default_logger_severity(4)

# For an operation with a counterpart, the samples without one.
UNSUPPORTED = {
    "atan2": "no such operation",
    "cumprod": "no such operation before opset 26",
    **dict.fromkeys(("linear_scan", "expm1", "log1p", "remainder", "isfinite", "put_rows"), "no such operation"),
    "fmod": "not used", "fold": "not used", "unfold": "not used", "mse": "a loss", "bce": "a loss, of log1p", "ctc": "a loss",
    "dropout": "draws random numbers: modules in evaluation mode call none",
    "avg_unpool": "a gradient", "conv_weight_grad": "a gradient", "place": "a gradient",
    "resample_grad": "a gradient", "scatter_rows": "a gradient", "scatter_add": "a gradient", "sum_to": "a gradient",
    "avg_pool": "windows of several sizes", "max_pool": "windows of several sizes", "conv_transpose": "as a gradient",
    "all": "of nothing", "any": "of nothing",
    "argmax": "0-dimensional", "argmin": "0-dimensional", "argsort": "0-dimensional", "cumsum": "0-dimensional", "topk": "0-dimensional",
}


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def close(got, want, what):
    assert got.dtype == want.dtype and got.shape == want.shape, f"{what} is {got.dtype} {got.shape}, Tern's {want.dtype} {want.shape}"
    if want.dtype.name not in BARS:
        assert numpy.array_equal(got, want), f"{what} differs"
        return
    finite = numpy.isfinite(want)
    assert numpy.array_equal(got[~finite], want[~finite], equal_nan=True), f"{what} differs in what is not finite"
    if finite.any():
        error, top = abs(got[finite] - want[finite]).max(), max(abs(want[finite]).max(), 1e-30)
        assert error <= BARS[want.dtype.name] * top, f"{what} differs by up to {error:g} (largest value {top:g})"


def compare(path):
    onnx.checker.check_model(str(path), full_check=True)
    arrays = numpy.load(path.with_suffix(".npz"))
    session = session_of(path)
    names = [x.name for x in session.get_inputs()]
    got = session.run(None, {name: arrays[name] for name in names})
    assert len(got) + len(names) <= len(arrays.files), (names, arrays.files)
    for output, value in zip(session.get_outputs(), got):
        close(value, arrays[output.name], output.name)


def unsupported(folder):
    """Only the known cases are unsupported, and the message names the operation."""
    lines = [line for line in (folder / "unsupported").read_text().splitlines() if not line.startswith("random.")]
    names = {line.split()[0].split(".")[1] for line in lines}
    assert names <= set(UNSUPPORTED), names - set(UNSUPPORTED)
    for line in lines:
        name = line.split()[0].split(".")[1]
        assert f" {'log1p' if name == 'bce' else name} " in line and "has no counterpart in ONNX" in line, line
    for name in ("atan2", "cumprod", "dropout", "place"):
        assert name in names


def steps_of(path):
    """The steps of a random network."""
    text = path.with_suffix(".txt")
    return f" {text.read_text().strip()}:" if text.exists() else ""


def random_networks(folder, count):
    """Everything in them has a counterpart, except numbers that depend on the batch, in few; they have many steps: returns how many."""
    lines = [line for line in (folder / "unsupported").read_text().splitlines() if line.startswith("random.")]
    networks = [path.read_text().split("]")[1].split() for path in folder.glob("random.*.txt")]
    steps = sum(map(len, networks))
    assert all(re.search("depends? on the (size of the )?batch", line) for line in lines) and len(lines) <= count / 20, lines
    assert len(networks) == count and steps > 3 * count, steps
    return f"{steps} steps of {len(set(sum(networks, [])))} kinds"


def main():
    count, seed = (sys.argv[1:] + ["400", "1"][len(sys.argv) - 1:])[:2]
    with tempfile.TemporaryDirectory(prefix="tern_test_") as top:
        folder = pathlib.Path(top)
        subprocess.run([os.path.join(PROGRAMS, "dump_onnx"), folder], check=True, timeout=600)
        subprocess.run([os.path.join(PROGRAMS, "dump_onnx_random"), folder, count, seed], check=True, timeout=600)
        groups = collections.defaultdict(list)
        for path in sorted(folder.glob("*.onnx")):
            groups[".".join(path.name.split(".")[:2])].append(path)
        print(f"1..{len(groups) + 2}")
        failed = False
        for number, (name, paths) in enumerate(groups.items(), 1):
            errors = []
            for path in paths:
                try:
                    compare(path)
                except Exception as error:  # pylint: disable=broad-except
                    errors.append(f"# {path.stem}:{steps_of(path)} {type(error).__name__}: {str(error)[:400]}".replace("\n", " "))
            failed = failed or bool(errors)
            print(f"{'not ok' if errors else 'ok'} {number} - {name} ({len(paths)} cases)", *errors, sep="\n", flush=True)
        unsupported(folder)
        print(f"ok {len(groups) + 1} - what ONNX cannot express", flush=True)
        print(f"ok {len(groups) + 2} - {count} networks from seed {seed}: {random_networks(folder, int(count))}", flush=True)
        sys.exit(failed)


main()
