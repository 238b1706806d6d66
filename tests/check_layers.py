#!/usr/bin/env python3
"""The layers: each folder may include only itself and the folders to its left.

    core -> text -> tensor -> backends -> profile -> autograd -> ops -> nn -> optim -> data, io -> models -> distributed -> train -> tools ...

check_layers.py [ROOT]        prints each include that breaks a rule; exit status 1 when there is one
check_layers.py --self-test   plants one fault of each kind in a small tree and sees each one found

Rules
  - a source of a layer includes no header, private or public, of a layer to its right
  - a public header (include/tern/) includes public headers only, of its own layer or to its left; tern.h is all of them
  - an example includes <tern/NAME.h> and system headers; <tern/sys/...> only if its name contains custom_op
  - tiny/ includes its own files and system headers; an exercise those, and public headers
  - every .c file is listed in its folder's meson.build, or in ops/list.h, so that none is forgotten
    (the list is not code: tables of kernels are also made from it)
  - a test that every build compiles (tern_tests and its like) reaches no header of NVIDIA's, which few machines have
  - every file descriptor that a layer opens passes through tn__above_streams, or it may become a stderr that the program has closed
"""
import os
import re
import sys

import planted

ORDER = ["core", "text", "tensor", "backends", "profile", "autograd", "ops", "nn", "optim", "data", "io", "models", "distributed", "train"]
ALONE = ["tiny", "exercises"]  # each file is a program by itself, in no meson.build
OUTSIDE = ["tools", "examples", "bench", "tests"] + ALONE  # no layer uses them; tools, bench and tests may use every layer
# The headers for implementers, by the layer that owns them. The others belong to the layer with their name.
SYS = {"object": "core", "op": "autograd", "backend": "backends", "steps": "backends", "tensor": "tensor", "device": "tensor", "group": "distributed"}
# Public headers other than the one named after their layer. store.h and distributed.h need only core and tensor.
HEADERS = {"field": "tensor", "profiler": "profile", "module": "nn", "init": "nn", "layers": "nn", "transformer": "nn", "tensorboard": "io", "npy": "io", "onnx": "io", "tokenizer": "data", "transforms": "data", "store": "distributed", "parallel": "distributed", "pipeline": "distributed", "split": "distributed", "rpc": "distributed", "deepspeed": "train", "evaluate": "train"}
# Engines of groups that are in a plugin, with what they need; they link nothing from libtern.
ENGINES = {"backends/cuda/nccl.c"}
OPENING = re.compile(r"(?<![\w.>])(?:open|openat|socket|accept4|eventfd|epoll_create1|memfd_create|mkostemp|fopen)\(")
NVIDIA = re.compile(r"(cuda|cublas|cudnn|nccl)\w*\.h$")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def rank(layer):
    """Its place in the order; data and io come in this order too: a checkpoint stores a loader's position."""
    return ORDER.index(layer) if layer in ORDER else len(ORDER)


def public_layer(path):
    """The layer of include/tern/`path`; None for tern.h and names that belong to no layer."""
    name = os.path.splitext(os.path.basename(path))[0]
    if path.startswith("sys/"):
        name = SYS.get(name, name)
    name = HEADERS.get(name, name)
    return name if name in ORDER else None


def resolve(root, source, name):
    """An include as (kind, layer): kind is public, sys, private or system."""
    here = os.path.normpath(os.path.join(os.path.dirname(source), name))
    if here.startswith("include/tern/") and os.path.exists(os.path.join(root, here)):
        name = here[len("include/"):]
    if name.startswith("tern/"):
        inner = name[len("tern/"):]
        return ("sys" if inner.startswith("sys/") else "public"), public_layer(inner)
    for path in (name, here):
        folder = path.split("/")[0]
        if (folder in ORDER or folder in OUTSIDE) and ("/" in path) and os.path.exists(os.path.join(root, path)):
            return "private", folder
    return "system", None


def broken_rule(source, kind, layer, name):
    """Why `source` may not include `name`; None if it may."""
    folder = source.split("/")[0]
    if folder == "include":
        own = public_layer(source[len("include/tern/"):])
        if kind == "private":
            return "a public header includes a private one"
        if kind in ("public", "sys") and own and layer is None:
            return "a public header includes one that belongs to no layer"
        if kind == "sys" and not source.startswith("include/tern/sys/"):
            return "a header for users includes one for implementers"
        if own and layer and rank(layer) > rank(own):
            return f"{own} is to the left of {layer}"
    elif folder == "examples":
        if kind == "private":
            return "an example sees only the public headers"
        if kind == "sys" and "custom_op" not in source:
            return "only the custom operation's example needs a header for implementers"
    elif folder in ALONE and kind != "system" and layer not in ALONE:
        if folder == "tiny":
            return "tiny uses nothing of Tern's"
        if kind == "private":
            return "an exercise sees tiny and the public headers"
    elif folder in ORDER and kind != "system":
        if layer is None:
            return "a layer includes the header of everything" if name.endswith("tern.h") else None
        if source in ENGINES and kind == "sys":
            return None
        if (layer in OUTSIDE or rank(layer) > rank(folder)) and not (folder == "backends" and name == "ops/list.h"):
            return f"{folder} is to the left of {layer}"
    return None


def sources(root):
    for top in ["include"] + ORDER + OUTSIDE:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(files):
                if name.endswith((".c", ".h", ".cu", ".cuh", ".cc")):
                    yield os.path.relpath(os.path.join(folder, name), root)


def listed(root, source):
    """Whether a meson.build in its folder or above it names the file, or the list of operations."""
    folder = os.path.dirname(source)
    operations = os.path.join(root, "ops", "list.h")
    if os.path.exists(operations):
        with open(operations, encoding="utf-8") as f:
            name = os.path.basename(source)[:-2]
            row = r"%s, %s[,)]" % (os.path.basename(folder), name) if folder.startswith("ops/") else r"\w+, %s, CPU\b" % name
            if re.search(r"^TN_OP\(" + row, f.read(), re.M):
                return True
    while folder:
        build = os.path.join(root, folder, "meson.build")
        if os.path.exists(build):
            with open(build, encoding="utf-8") as f:
                if f"'{os.path.relpath(source, folder)}'" in f.read():
                    return True
        folder = os.path.dirname(folder)
    return False


def unguarded(source, text):
    """Where the library opens a descriptor that may take the number of a standard stream."""
    if source.split("/")[0] not in ORDER or source == "core/descriptor.c" or not source.endswith((".c", ".cc")):
        return
    text = COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment.group()), text)
    for match in OPENING.finditer(text):
        if not re.search(r"tn__above_streams\(\s*$", text[:match.start()]):
            yield f"{source}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}…): through tn__above_streams"


def nvidia_header(root, source, seen):
    """The first header of NVIDIA's that a source reaches through ours; None without one."""
    seen.add(source)
    with open(os.path.join(root, source), encoding="utf-8") as f:
        names = [match.group(2) for match in INCLUDE.finditer(f.read())]
    for name in names:
        if NVIDIA.match(name):
            return name
        for path in (name, "include/" + name, os.path.normpath(os.path.join(os.path.dirname(source), name))):
            if path not in seen and os.path.isfile(os.path.join(root, path)):
                found = nvidia_header(root, path, seen)
                if found:
                    return found
    return None


def compiled_everywhere(root, source):
    """Whether its folder's meson.build has this test in a list that no option or toolkit guards."""
    build = os.path.join(root, os.path.dirname(source), "meson.build")
    if not source.startswith("tests/") or not os.path.exists(build):
        return False
    with open(build, encoding="utf-8") as f:
        lists = re.findall(r"^tern_\w+ \+= files\(([^)]*)\)", f.read(), re.M)
    return any(f"'{os.path.basename(source)}'" in names for names in lists)


def faults(root):
    for source in sources(root):
        with open(os.path.join(root, source), encoding="utf-8") as f:
            text = f.read()
        yield from unguarded(source, text)
        for match in INCLUDE.finditer(text):
            kind, layer = resolve(root, source, match.group(2))
            why = broken_rule(source, kind, layer, match.group(2))
            if why:
                line = text.count("\n", 0, match.start()) + 1
                yield f"{source}:{line}: includes {match.group(2)}: {why}"
        if compiled_everywhere(root, source):
            header = nvidia_header(root, source, set())
            if header:
                yield f"{source}: reaches {header}, but every build compiles it"
        if source.endswith(".c") and source.split("/")[0] not in ALONE and not listed(root, source):
            yield f"{source}: in no meson.build"


def self_test():
    clean = {
        "include/tern/tern.h": '#include "core.h"\n#include "ops.h"\n',
        "include/tern/core.h": "#include <stddef.h>\n",
        "include/tern/ops.h": '#include "core.h"\n',
        "include/tern/sys/op.h": '#include "../core.h"\n',
        "core/error.h": "#include <tern/core.h>\n",
        "core/error.c": '#include "core/error.h"\nint fd = tn__above_streams(\n    open(path, 0)); /* open(path) */\n',
        "core/meson.build": "files('error.c')\n",
        "ops/op.h": '#include "core/error.h"\n#include "tern/sys/op.h"\n',
        "ops/list.h": "TN_OP(nn, softmax)\n",
        "ops/nn/softmax.c": '#include "ops/op.h"\n',
        "examples/01_first.c": "#include <tern/tern.h>\n",
        "examples/meson.build": "files('01_first.c')\n",
        "tiny/tiny.c": "#include <math.h>\n",
        "exercises/01_tanh.c": '#include "../tiny/tiny.c"\n#include <tern/sys/op.h>\n',
        "tests/ops/test_op.c": '#include "ops/op.h"\n',
        "tests/ops/meson.build": "tern_tests += files('test_op.c')\nif found\n  executable('x', 'test_x.c')\nendif\n",
        "tests/ops/test_x.c": '#include "backends/cuda/cuda.h"\n',
        "backends/cuda/cuda.h": "#include <cuda_runtime_api.h>\n",
    }
    faulty = {
        "core includes ops": ("core/error.c", '#include "ops/op.h"\n'),
        "core includes a header of its own folder's parent": ("core/error.c", '#include "../ops/op.h"\n'),
        "core includes ops' public header": ("core/error.h", "#include <tern/ops.h>\n"),
        "core includes everything": ("core/error.h", "#include <tern/tern.h>\n"),
        "core includes a test's header": ("core/error.h", '#include "tests/ops/test_op.c"\n'),
        "public upward": ("include/tern/core.h", '#include "ops.h"\n'),
        "public to private": ("include/tern/ops.h", '#include "core/error.h"\n'),
        "user to implementer": ("include/tern/ops.h", '#include "sys/op.h"\n'),
        "example to private": ("examples/01_first.c", '#include "core/error.h"\n'),
        "example to implementer": ("examples/01_first.c", "#  include <tern/sys/op.h>\n"),
        "tiny to public": ("tiny/tiny.c", "#include <tern/tern.h>\n"),
        "tiny to private": ("tiny/tiny.c", '#include "../core/error.h"\n'),
        "tiny to public, by its path": ("tiny/tiny.c", '#include "../include/tern/core.h"\n'),
        "exercise to private": ("exercises/01_tanh.c", '#include "../core/error.h"\n'),
        "core includes tiny": ("core/error.c", '#include "../tiny/tiny.c"\n'),
        "forgotten source": ("core/scope.c", "\n"),
        "forgotten operation": ("ops/loss/softmax.c", "\n"),
        "a test that needs a toolkit": ("tests/ops/test_op.c", '#include "../../backends/cuda/cuda.h"\n'),
        "a file that may become stderr": ("core/error.c", "int fd = open(path, 0);\n"),
    }
    trees = {what: {**clean, path: clean.get(path, "") + text} for what, (path, text) in faulty.items()}
    return planted.self_test(clean, trees, faults)


if __name__ == "__main__":
    sys.exit(planted.check(self_test, faults, lambda root, n: f"layers: {n} faults in {len(list(sources(root)))} files"))
