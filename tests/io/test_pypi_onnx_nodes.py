#!/usr/bin/env python3
"""The ONNX standard's node tests (package onnx), run with Tern's operations: what passes, what fails, what Tern lacks, and why.

run_onnx_nodes runs each node whose operator has a counterpart; its results are compared with the standard's, to the tolerance of the
case. Cases called ..._expanded are left out: they repeat others as graphs of smaller operators. The table in docs/onnx.md
must match the results, for the release of onnx that it names:

    test_pypi_onnx_nodes.py --write         rewrites the table
    test_pypi_onnx_nodes.py --list          shows each case
"""
import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../support"))
import pypi  # pylint: disable=wrong-import-position

pypi.need("onnx", "numpy", "ml_dtypes")

import ml_dtypes  # pylint: disable=wrong-import-position
import numpy  # pylint: disable=wrong-import-position
import onnx  # pylint: disable=wrong-import-position
from onnx.backend.test.loader import load_model_tests  # pylint: disable=wrong-import-position

PROGRAM = os.path.join(os.environ.get("TERN_TEST_BIN", "build/test/tests"), "run_onnx_nodes")
DOCUMENT = pathlib.Path(HERE, "../../docs/onnx.md")
BEGIN, END = "<!-- node tests: begin -->\n", "<!-- node tests: end -->\n"
DTYPES = {"float32": "F32", "float64": "F64", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL", "int8": "I8"}

# What fails, and why that is not Tern's fault.
ROUNDS = "the case's result is rounded to bf16 at each step: the exact one, rounded once, is as far from it as ours"
FAILS = {"test_attention_3d_causal_bf16": ROUNDS, "test_attention_4d_causal_bf16": ROUNDS}


def save(path, arrays):
    """A safetensors file."""
    header, at = {}, 0
    for name, x in arrays.items():
        header[name] = {"dtype": DTYPES[x.dtype.name], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for x in arrays.values():
            file.write(numpy.ascontiguousarray(x).tobytes())


def load(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    names = {short: getattr(ml_dtypes, name) if name == "bfloat16" else name for name, short in DTYPES.items()}
    arrays = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            arrays[name] = numpy.frombuffer(data[8 + size + begin:8 + size + end], names[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def said(attribute):
    """An attribute's value as text; None for kinds that no operation with a counterpart has (a tensor, a graph)."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode().replace(" ", "")
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list) and all(isinstance(x, (int, float)) for x in value):
        return ",".join(repr(x) for x in value)
    if isinstance(value, list) and all(isinstance(x, bytes) for x in value):
        return ",".join(x.decode() for x in value)
    return None


def to_array(x):
    """Some cases store a tensor as in a file."""
    return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x


class Case:
    """One case: its node, its inputs and results, and what became of it."""

    def __init__(self, test):
        self.name, self.rtol, self.atol = test.name, test.rtol, test.atol
        model = test.model or onnx.load(os.path.join(test.model_dir, "model.onnx"))
        self.node, = model.graph.node
        self.opset = model.opset_import[0].version
        given, self.wanted = ([to_array(x) for x in part] for part in test.data_sets[0])
        by_name = dict(zip((x.name for x in model.graph.input), given))
        self.inputs = [by_name.get(name) for name in self.node.input]
        self.results = {name: x for name, x in zip((x.name for x in model.graph.output), self.wanted)}
        self.state, self.why = "", ""

    def unknown_dtype(self):
        for x in [x for x in self.inputs if x is not None] + list(self.wanted):
            if not isinstance(x, (numpy.ndarray, numpy.generic)):
                return "sequence or optional"
            if x.dtype.name not in DTYPES:
                return "text" if x.dtype.kind in "OUS" else x.dtype.name
        return None

    def line(self):
        parts = [self.name, self.node.op_type, str(self.opset), str(len(self.inputs)), str(len(self.node.output))]
        parts += [f"{a.name}={said(a)}" for a in self.node.attribute if said(a) is not None]
        parts += [f"output_{i}=1" for i, name in enumerate(self.node.output) if name]
        return "\t".join(parts)

    def set(self, state, why=""):
        self.state, self.why = state, why

    def judge(self, arrays):
        for i, name in enumerate(self.node.output):
            if name not in self.results:
                continue
            want, got = numpy.asarray(self.results[name]), arrays.get(f"{self.name}/{i}")
            if got is None:
                return self.set("missing", f"result {i}")
            if got.dtype != want.dtype or got.shape != want.shape:
                return self.set("failed", f"result {i} is {got.dtype} {got.shape}, not {want.dtype} {want.shape}")
            exact = want.dtype.kind in "biu"
            a, b = (got, want) if exact else (got.astype("float64"), want.astype("float64"))
            close = numpy.array_equal(a, b) if exact else numpy.allclose(a, b, self.rtol, self.atol, equal_nan=True)
            if not close:
                return self.set("failed", f"result {i} differs by {numpy.nanmax(abs(a.astype('float64') - b)):g}")
        return self.set("passed")


def find_cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # casts that overflow on purpose
        tests = load_model_tests(kind="node")
    return [Case(test) for test in tests if "_expanded" not in test.name]


def run_cases(cases):
    with tempfile.TemporaryDirectory(prefix="tern_test_") as top:
        folder, arrays, lines = pathlib.Path(top), {}, []
        for case in cases:
            dtype = case.unknown_dtype()
            if case.node.domain not in ("", "ai.onnx"):
                case.set("missing", "no such operation")
            elif dtype:
                case.set("missing", "dtype: " + dtype)
            else:
                lines.append(case.line() + "\n")
                arrays.update({f"{case.name}/{i}": numpy.asarray(x) for i, x in enumerate(case.inputs) if x is not None})
        (folder / "nodes").write_text("".join(lines))
        save(folder / "inputs.safetensors", arrays)
        subprocess.run([PROGRAM, folder], check=True, timeout=600)
        states = dict(line.split("\t", 1) for line in (folder / "states").read_text().splitlines())
        results = load(folder / "outputs.safetensors")
    for case in cases:
        state = states.get(case.name)
        if state == "ran":
            case.judge(results)
        elif state:
            case.set(*state.split(" ", 1))
        if case.state == "failed" and case.name in FAILS:
            case.why = FAILS[case.name]


def reason(case):
    """As in the table."""
    return "dtype" if case.why.startswith("dtype") else case.why


def table(cases):
    """Operators that have a counterpart, in alphabetical order; the others by name."""
    groups = collections.defaultdict(list)
    for case in cases:
        groups[case.node.op_type].append(case)
    there = {op for op, group in groups.items() if any(case.why != "no such operation" and not case.why.startswith("dtype") for case in group)}
    count = collections.Counter(case.state for case in cases)
    of_there = collections.Counter(case.state for op in there for case in groups[op])
    lines = [f"onnx {onnx.__version__} has {len(cases)} node tests, of {len(groups)} operators. {len(there)} operators have a counterpart; of their ",
             f"{sum(of_there.values())} tests {of_there['passed']} pass, {of_there['failed']} fail, and {of_there['missing']} want what is not there.\n\n",
             "| operator | passed | failed | not there | why |\n|---|---|---|---|---|\n"]
    for op in sorted(there):
        states = collections.Counter(case.state for case in groups[op])
        why = collections.Counter(reason(case) for case in groups[op] if case.state != "passed")
        text = "; ".join(f"{what} ({n})" for what, n in sorted(why.items()))
        lines.append(f"| {op} | {states['passed']} | {states['failed'] or ''} | {states['missing'] or ''} | {text} |\n")
    others = sorted(set(groups) - there)
    lines.append(f"\nWithout a counterpart ({count['missing'] - of_there['missing']} tests): {', '.join(others)}.\n")
    return "".join(lines)


def main():
    cases = find_cases()
    run_cases(cases)
    if "--list" in sys.argv:
        for case in cases:
            print(case.state, case.name, case.node.op_type, case.why, sep="\t")
        return
    head, rest = DOCUMENT.read_text().split(BEGIN)
    old, tail = rest.split(END)
    new = "\n" + table(cases) + "\n"
    if "--write" in sys.argv:
        DOCUMENT.write_text(head + BEGIN + new + END + tail)
        return
    failed = [case for case in cases if case.state == "failed" and case.name not in FAILS]
    print("1..2")
    print(f"{'not ok' if failed else 'ok'} 1 - {sum(case.state == 'passed' for case in cases)} node tests pass")
    for case in failed:
        print(f"# {case.name}: {case.why}")
    release = f"onnx {onnx.__version__} "
    if release not in old:
        print(f"ok 2 - the table # SKIP docs/onnx.md has the table of another release than {release}")
    else:
        print(f"{'ok' if old == new else 'not ok'} 2 - docs/onnx.md has this table (otherwise: --write)")
    sys.exit(bool(failed) or (release in old and old != new))


main()
