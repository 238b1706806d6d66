#!/usr/bin/env python3
"""What a step asks of a GPU, counted without one, beside the bars in counts.txt.

test_counts.py [--pin] [MODEL ...]     gpt2 gpt2-xl gpt2-micro llama llama-q8 resnet; all by default. --pin writes what it counts
                                       into counts.txt

tests/cuda/count_step.c runs the step over the emulator, which records and does not compute (tests/emulator/record.cc). A call of a
library is one launch here, whatever it starts. Bytes are those of the operands of each launch, each once: a kernel that reads a
part of an operand counts the whole, except TABLES, which count as nothing; one that adds to its
output counts it once. A wait is one for something that was asked since the last. ms is a prediction: of each call the longer of
its bytes and its operations at the rates below, round numbers for an H200, and GAP between two.
"""
import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BARS = os.path.join(HERE, "counts.txt")
TESTS = os.environ.get("TERN_TEST_BIN", os.path.join(HERE, "../../build/test/tests"))
BYTES = 4.0e12  # a second
FLOPS = {"product": 600e12, "attention": 350e12, "conv": 300e12}
GAP = 1.3e-6
OWN = ("matmul_kernel", "conv_kernel")  # what the libraries refused
# Read a few rows of a table, or, where the loss got the gradient that was expected, nothing.
TABLES = ("gather_rows_kernel", "rotary_kernel", "rescale_kernel")
# A model's layers, the bytes of its activations (B T C x 2), and of its logits.
SHAPES = {"gpt2": (12, 64 * 1024 * 768 * 2, 64 * 1024 * 50304 * 2), "gpt2-xl": (48, 16 * 1024 * 1600 * 2, 16 * 1024 * 50304 * 2)}
MODELS = ["gpt2", "gpt2-xl", "gpt2-micro", "llama", "llama-q8", "resnet"]
COLUMNS = ["launches", "products", "GB", "TFLOP", "allocations", "waits", "copies", "out", "plans", "ms"]


def record(model):
    """The lines of the model's step: [phase, [words of each line]]; those of an earlier step are dropped."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "record")
        settings = dict(os.environ, TERN_CUDA="cuda_emulator", TERN_EMULATOR_RECORD=path, TERN_EMULATOR_MEMORY="140G",
                        TERN_CUDNN=os.path.join(TESTS, "emulator/libfake_cudnn.so"))
        settings.pop("TERN_SYNC", None)
        subprocess.run([os.path.join(TESTS, "count_step"), model], env=settings, check=True)
        phases = [["-", []]]
        with open(path, encoding="utf-8") as f:
            for line in f:
                words = line.split()
                if words[0] == "phase":
                    phases = [] if words[1] == "forward" else phases
                    phases.append([words[1], []])
                else:
                    phases[-1][1].append(words)
    return [[name, lines] for name, lines in phases if name != "-"]


def kernel_of(words):
    return words[1].strip("(,)").split("<")[0]


def bytes_of(words):
    """Of a launch or a library's call."""
    return float(words[-2 if words[0] in FLOPS else -1]) * (words[0] != "launch" or kernel_of(words) not in TABLES)


def seconds_of(words):
    """The predicted time of a launch, or of a library's call."""
    flops = float(words[-1]) / FLOPS[words[0]] if words[0] in FLOPS else 0
    return max(bytes_of(words) / BYTES, flops) + GAP


def count(lines):
    """The columns of a phase."""
    row, busy = dict.fromkeys(COLUMNS, 0), False
    for words in lines:
        what = words[0]
        busy = busy or what in ("launch", "set", "copy", *FLOPS)
        if what in ("launch", "set", *FLOPS):
            row["launches"] += 1
            row["products"] += what == "product"
            row["GB"] += bytes_of(words) * 1e-9
            row["TFLOP"] += float(words[-1]) * 1e-12 if what in FLOPS else 0
            row["ms"] += seconds_of(words) * 1e3
        elif what == "copy":
            row["copies"] += 1
            row["out"] += int(words[2]) if words[1] == "out" else 0
        elif what == "wait":
            row["waits"] += busy
            busy = False
        else:
            row["allocations"] += what == "alloc"
            row["plans"] += what == "plan"
    return row


def traffic(phases, kernels):
    """The bytes of these kernels."""
    return sum(bytes_of(w) for _, lines in phases for w in lines if w[0] == "launch" and kernel_of(w) in kernels)


def bars_of(model, phases, total):
    """What counts.txt has of this model."""
    bars = {name: total[name] for name in ("launches", "products", "allocations", "waits", "copies", "out", "plans")}
    bars["products and convolutions by our own kernels"] = sum(w[0] == "launch" and kernel_of(w) in OWN for _, lines in phases for w in lines)
    if model in SHAPES:
        layers, unit, logits = SHAPES[model]
        steps = [p for p in phases if p[0] in ("forward", "backward")]
        bars["elementwise and norms, u a layer"] = round(traffic(steps, ("tn__loop_kernel", "norm_kernel", "norm_backward_kernel")) / unit / layers, 1)
        bars["passes over the logits"] = round(traffic(phases, ("loss_kernel", "gradient_kernel")) / logits, 1)
    return bars


def show(model, phases):
    rows = [(name, count(lines)) for name, lines in phases]
    total = {c: sum(row[c] for _, row in rows) for c in COLUMNS}
    print(f"\n{model:12}" + "".join(f"{c:>12}" for c in COLUMNS))
    for name, row in rows + [("in all", total)]:
        print(f"{name:12}" + "".join(f"{row[c]:12.3f}" if c in ("GB", "TFLOP", "ms") else f"{row[c]:12d}" for c in COLUMNS))
    kernels = {}
    for _, lines in phases:
        for words in lines:
            if words[0] in ("launch", *FLOPS):
                name = kernel_of(words) if words[0] == "launch" else " ".join(words[:-2])
                n, s = kernels.get(name, (0, 0))
                kernels[name] = n + 1, s + seconds_of(words)
    for name, (n, s) in sorted(kernels.items(), key=lambda k: -k[1][1]):
        print(f"    {name:32}{n:6d}{s * 1e3:10.3f} ms")
    return total


def read_bars():
    """{model: {what: number}}"""
    bars = {}
    with open(BARS, encoding="utf-8") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                model, number, what = line.split(None, 2)
                bars.setdefault(model, {})[what.strip()] = float(number)
    return bars


def write_bars(bars):
    with open(BARS, encoding="utf-8") as f:
        head = [line for line in f if line.startswith("#")]
    with open(BARS, "w", encoding="utf-8") as f:
        f.writelines(head)
        for model in MODELS:
            f.writelines(f"{model} {number:g} {what}\n" for what, number in bars.get(model, {}).items())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pin", action="store_true")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    o = parser.parse_args()
    if not os.path.exists(os.path.join(TESTS, "emulator/libfake_cudnn.so")):
        print("skipped: cuDNN's headers were not there when the tests were built")
        return 77
    bars, wrong = read_bars(), 0
    for model in o.models or MODELS:
        phases = record(model)
        now = bars_of(model, phases, show(model, phases))
        print("".join(f"    {what}: {number:g}\n" for what, number in now.items() if " " in what), end="")
        for what, number in now.items() if not o.pin else ():
            pinned = bars.get(model, {}).get(what)
            if number != pinned:
                wrong += 1
                how = "more than" if pinned is None or number > pinned else "less than (./run gpu-count --pin keeps it):"
                print(f"WRONG: {model}: {what}: {number:g}, {how} counts.txt's {pinned}")
        bars[model] = now
    if o.pin:
        write_bars(bars)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
