"""For tests that compare Tern with PyTorch: the import, files with tensors, TAP.

Without PyTorch a test is skipped and says so; in CI that is a failure.
"""
import json
import os
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError:
    print("1..1")
    if os.environ.get("CI"):
        print("not ok 1 - PyTorch (python3-torch) is missing: nothing was compared")
        sys.exit(1)
    print("ok 1 - comparison with PyTorch # SKIP python3-torch is not installed")
    sys.exit(0)

DTYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16,
          "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "I8": torch.int8, "BOOL": torch.bool}


def read(path):
    """The tensors of a safetensors file by name."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            dtype = DTYPES[entry["dtype"]]
            part = data[8 + size + begin:8 + size + end]
            flat = torch.frombuffer(part, dtype=dtype) if part else torch.empty(0, dtype=dtype)
            tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


def dump(program):
    """What a test program writes to the safetensors file named by its argument."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "dump.safetensors")
        subprocess.run([os.path.join(os.environ["TERN_TEST_BIN"], program), path], check=True)
        return read(path)


def cases(program):
    """The same by case, which is what is before the last "/" of a name: {case: {part: tensor}}."""
    found = {}
    for name, tensor in dump(program).items():
        case, part = name.rsplit("/", 1)
        found.setdefault(case, {})[part] = tensor
    return found


def below(tensors, prefix):
    """The tensors whose names begin with prefix, without it."""
    return {name[len(prefix):]: t for name, t in tensors.items() if name.startswith(prefix)}


def close(got, want, what, tolerance):
    """Within tolerance, relative to the largest expected number."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise AssertionError("%s is %s %s, PyTorch's %s %s" % (what, got.dtype, list(got.shape), want.dtype, list(want.shape)))
    if not torch.isfinite(got).all():
        raise AssertionError("%s has numbers that are not finite" % what)
    error, top = (got - want).abs().max().item(), want.abs().max().item()
    if not error <= tolerance * max(top, 1e-30):
        raise AssertionError("%s differs by up to %g (largest value %g)" % (what, error, top))


def parameters(case):
    """The parameters of a case, which require gradients."""
    return {name: t.requires_grad_(True) for name, t in below(case, "p.").items()}


def check_gradients(case, p, tolerance):
    grads = below(case, "g.")
    if set(grads) != set(p):
        raise AssertionError("gradients of %s" % sorted(grads))
    for name, t in p.items():
        close(grads[name], t.grad, "gradient of " + name, tolerance)


def run_cases(all_cases, group_of, check):
    """check(name, case) for all cases: a test for each group of them, which fails with its first wrong one."""
    def check_all(names):
        for name in names:
            case = all_cases[name]
            try:
                check(name, case)
            except Exception as error:
                raise AssertionError("%s of %s: %s" % (name, [list(t.shape) for part, t in case.items() if part[0] in "xw"], error))

    groups = {}
    for name in all_cases:
        groups.setdefault(group_of(name), []).append(name)
    run([("%s, %d cases" % (group, len(names)), lambda names=names: check_all(names)) for group, names in sorted(groups.items())])


def run(tests):
    """Runs (name, function) pairs and prints TAP."""
    print("1..%d" % len(tests))
    failed = 0
    for number, (name, function) in enumerate(tests, 1):
        try:
            function()
            print("ok %d - %s" % (number, name))
        except Exception as error:
            failed += 1
            print("not ok %d - %s" % (number, name))
            print("# %s: %s" % (type(error).__name__, error))
    sys.exit(failed > 0)
