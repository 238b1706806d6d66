#!/usr/bin/env python3
"""docs/from_pytorch.md: each PyTorch name that a first course uses has an answer there, and the names in it exist.

check_from_pytorch.py [ROOT]        prints each fault; exit status 1 when there is one check_from_pytorch.py --self-test   plants
one fault of each kind in a small tree and sees each found check_from_pytorch.py --programs BUILD_FOLDER [SANITIZER]   compiles the
programs in C with that library: each prints what the one in Python above it prints. Exit status 77 under a sanitizer

  - each row of a table headed PyTorch says on the right a name of the public headers, or "not there"
  - each tn_ and TN_ name there, and in the tables headed Elsewhere, is in a public header
  - every name in tests/pytorch_names.txt, the names of a course, has an answer
  - if PyTorch is installed, each name on the left exists in it (except those that came with a later version), and the programs
    in Python run. If it is not, this says so.
"""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

import planted

DOCUMENT, NAMES = "docs/from_pytorch.md", "tests/pytorch_names.txt"
STANDS_FOR = {  # the first part of a name in the left column
    "F": "torch.nn.functional", "nn": "torch.nn", "optim": "torch.optim", "lr_scheduler": "torch.optim.lr_scheduler",
    "dist": "torch.distributed", "x": "torch.Tensor", "net": "torch.nn.Module", "opt": "torch.optim.Optimizer",
    "ctx": "torch.autograd.function.FunctionCtx", "scaler": "torch.cuda.amp.GradScaler", "prof": "torch.profiler.profile",
    "writer": "torch.utils.tensorboard.SummaryWriter", "ddp": "torch.nn.parallel.DistributedDataParallel",
}
ONE = ("torch", "torch.Tensor", "torch.nn.functional")  # a function under several of these names is listed under one
PYTHON = ("print", "len", "sum", "str")
OPTIONAL = ("torchvision", "torch.utils.tensorboard", "torch.distributed.fsdp")  # may be missing, or not fit this Python


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return f.read()


def rows(text):
    """(line, header, left, right) of each row of the tables."""
    header = None
    for number, line in enumerate(text.split("\n"), 1):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 2:
            if header is not None and line.startswith("|"):
                yield number, header, "", line
            header = None
        elif header is None:
            header = cells[0]
        elif not cells[0].startswith("---"):
            yield number, header, *cells


def names_of(cell):
    """The full names of what a left cell has in backticks. One without a dot has the prefix of the one before it; `2d` after
    `F.conv1d` is F.conv2d."""
    where = last = None
    for text in re.findall(r"`([^`]+)`", cell):
        found = re.match(r"(?:with )?((?:[A-Za-z_]\w*)(?:\.\w+)*|\dd)(?=[\s(.,=;:{]|$)", text)
        name = found.group(1) if found else ""
        first, dot, rest = name.partition(".")
        if re.fullmatch(r"\dd", name) and last:
            name = last[:-2] + name
        elif dot and first in STANDS_FOR:
            name = f"{STANDS_FOR[first]}.{rest}"
        elif name in PYTHON:
            name = ""
        elif first not in ("torch", "torchvision"):
            name = f"{where}.{name}" if where and not dot and re.fullmatch(r"\w+(\(.*\))?", text) else ""
        if name.count("."):
            where, last = name.rpartition(".")[0], name
            yield name
            if where.rpartition(".")[2][:1].isupper():  # nn.SyncBatchNorm.convert_sync_batchnorm covers the class too
                yield where


def forms(name):
    where, _, last = name.rpartition(".")
    return {f"{place}.{last}" for place in ONE} if where in ONE else {name}


def course(root):
    """{full name: the version it came with, or ""}"""
    wanted = {}
    for line in read(root, NAMES).split("\n"):
        where, _, names = line.partition(": ")
        if line and not line.startswith("#"):
            wanted.update({f"{where}.{name.partition('@')[0]}": name.partition("@")[2] for name in names.split()})
    return wanted


def public_names(root):
    folder = os.path.join(root, "include/tern")
    paths = [os.path.join(at, f) for at, _, files in os.walk(folder) for f in files]
    return {name for path in paths for name in re.findall(r"\b(?:tn|TN)_\w+", read("", path))}


def pair_faults(root):
    """--programs compares them in this order."""
    text = read(root, DOCUMENT)
    kinds = re.findall(r"^```(python|c)$", text, re.M)
    if kinds != ["python", "c"] * (len(kinds) // 2):
        yield 1, f"not a program in C below each one in Python: {', '.join(kinds)}"


def row_faults(root, answered):
    public = public_names(root)
    for number, header, left, right in rows(read(root, DOCUMENT)):
        if header not in ("PyTorch", "Elsewhere"):
            continue
        if not left:
            yield number, f"a row needs two cells, and in them no |: {right}"
            continue
        named = re.findall(r"\b(?:tn|TN)_\w+", " ".join(re.findall(r"`([^`]+)`", right)))
        for name in named:
            if name not in public and not re.search(r"tests/|examples/", name):
                yield number, f"{name} is in no public header"
        if header == "PyTorch":
            if not named and not right.startswith("not there"):
                yield number, f"neither a name of ours nor \"not there\": {right}"
            answered.update({name: number for name in names_of(left)})


# ---- PyTorch, where it is installed -----------------------------------------------------------------------------------


def version_of(text):
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def objects(torch):
    """Instances with attributes that their class does not list."""
    some = torch.nn.Linear(1, 1)
    return {"torch.nn.Module": some, "torch.optim.Optimizer": torch.optim.SGD(some.parameters(), lr=1.0)}


def importable(module):
    try:
        return importlib.import_module(module)
    except Exception:
        return None


def exists(name, made):
    """Whether the name can be reached; None if the package that has it is missing."""
    if any(name.startswith(package) and importable(package) is None for package in OPTIONAL):
        return None
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        where = ".".join(parts[:length])
        thing = made.get(where) or importable(where)
        if thing is not None:
            for part in parts[length:]:
                thing = getattr(thing, part, exists)
            return thing is not exists
    return False


def programs(root, language):
    """(line, text) of the programs in a language."""
    text = read(root, DOCUMENT)
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S):
        yield text.count("\n", 0, match.start()) + 1, match.group(1)


def run_python(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def program_faults(root):
    for number, program in programs(root, "python"):
        done = run_python(program)
        if done.returncode:
            yield number, "the program fails: " + done.stderr.strip().split("\n")[-1]


def run_c(root, build, program):
    """What a program in C prints, with the library in `build`; or why it failed."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["cc", "-g", "-Wall", "-Wextra", "-Werror", "-x", "c", "-", "-I" + os.path.join(root, "include"), "-L" + build,
                               "-ltern", "-Wl,-rpath," + build, "-o", folder + "/program"], input=program, capture_output=True, text=True,
                              check=False)
        done = done if done.returncode else subprocess.run([folder + "/program"], capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr + f"(exit status {done.returncode})"


def compare_programs(root, build, sanitizer="none"):
    """0, 1, or 77 after saying why."""
    if sanitizer != "none":
        print(f"SKIPPED: a program cannot be linked with a library for {sanitizer} alone")
        return 77
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch:
        print(f"SKIPPED: {sys.executable} has no torch: the programs in C ran alone")
    wrong = 0
    for (number, theirs), (_, ours) in zip(programs(root, "python"), programs(root, "c")):
        expected, printed = run_python(theirs).stdout if has_torch else None, run_c(root, os.path.abspath(build), ours)
        if expected not in (None, printed) or "(exit status" in printed:
            print(f"{DOCUMENT}:{number}: PyTorch prints {expected!r}, Tern {printed!r}")
            wrong = 1
    return wrong


def torch_faults(root, answered, wanted):
    try:
        import torch
    except ImportError:
        print(f"SKIPPED: {sys.executable} has no torch: whether PyTorch's names exist was not checked")
        return
    made, here, unseen = objects(torch), version_of(torch.__version__), []
    later = {name for name, since in wanted.items() if since and version_of(since) > here}
    for name, number in sorted({**dict.fromkeys(wanted, 0), **answered}.items()):
        if forms(name) & later or any(newer.startswith(name + ".") for newer in later):
            continue
        there = exists(name, made)
        unseen += [name] if there is None else []
        if there is False:
            yield number, f"torch {torch.__version__} has no {name}"
    if unseen:
        packages = [p for p in OPTIONAL if any(name.startswith(p) for name in unseen)]
        print(f"SKIPPED: {len(unseen)} names of what is not installed: {', '.join(packages)}")
    yield from program_faults(root)


def faults(root):
    answered, wanted = {}, course(root)
    for number, fault in [*row_faults(root, answered), *pair_faults(root)]:
        yield f"{DOCUMENT}:{number}: {fault}"
    there = {form for name in answered for form in forms(name)}
    for name in sorted(set(wanted) - there):
        yield f"{DOCUMENT}: no answer to {name}"
    for number, fault in torch_faults(root, answered, wanted):
        yield f"{DOCUMENT if number else NAMES}:{number}: {fault}"


# ---- Self-test --------------------------------------------------------------------------------------------------------

CLEAN = {
    DOCUMENT: "| PyTorch | Tern |\n|---|---|\n| `torch.exp`, `log` | `tn_exp`, `TN_LOG` |\n| `F.conv1d`, `2d` | not there: `tn_exp` |\n"
              "| `with torch.no_grad():` | `TN_LOG` |\n\n| Elsewhere | Tern |\n|---|---|\n| `other.thing` | `tn_exp` |\n",
    NAMES: "# A comment.\ntorch: exp log@1.0\ntorch.nn.functional: conv2d\ntorch.Tensor: exp\n",
    "include/tern/ops.h": "int tn_exp(void);\n#define TN_LOG 1\n",
}
PLANTED = {  # what, where, and what is replaced by what
    "a name of ours that does not exist": (DOCUMENT, "`TN_LOG` |\n| `F", "`TN_LOGS` |\n| `F"),
    "a cell without an answer": (DOCUMENT, "not there: `tn_exp`", "perhaps"),
    "a name of ours in the other tables": (DOCUMENT, "thing` | `tn_exp`", "thing` | `tn_expo`"),
    "a name of the course without an answer": (NAMES, "torch: exp", "torch: exp sin"),
    "a variant (3d) without an answer": (NAMES, "conv2d", "conv3d"),
    "an answer that was lost": (DOCUMENT, "`torch.exp`, ", "`torch.abs`, "),
    "a row that a | cuts": (DOCUMENT, "| `with torch.no_grad():` | `TN_LOG` |", "| `with torch.no_grad():` | `TN_LOG | 2` |"),
    "a program in Python alone": (DOCUMENT, "| Elsewhere", "```python\nimport os\n```\n\n| Elsewhere"),
}


def self_test():
    trees = {}
    for what, (path, old, new) in PLANTED.items():
        assert old in CLEAN[path], what
        trees[what] = {**CLEAN, path: CLEAN[path].replace(old, new, 1)}
    return planted.self_test(CLEAN, trees, faults, most=2)


def summary(root, n):
    return f"PyTorch's names: {len(course(root))} of a course, {n} faults"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--programs"]:
        sys.exit(compare_programs(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."), *sys.argv[2:]))
    sys.exit(planted.check(self_test, faults, summary))
