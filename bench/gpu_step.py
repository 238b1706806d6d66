"""One training step of GPT-2 124M on a GPU in bf16: its time, how much of it the GPU works, and the time of each kernel.

gpu_step.py [--json FILE] [--batch N]     default: 8 sequences of 1024 tokens; skipped where there is no GPU

CUPTI, which comes with the toolkit and with PyTorch's wheels, reports when each kernel ran (peers/kernel_times.c); without it
ncu does, which runs the kernels one at a time, so there is no time of the step. The step is the last of several: from the end of
the optimiser in the last step but one to its end in the last.
"""
import argparse
import collections
import csv
import glob
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

STEPS, T = 4, 1024
OPTIMISER = "step_kernel"  # in the names of its kernels (backends/cuda/optim.cu)


def cupti_folders():
    """Folders that may hold CUPTI's headers, and those that may hold its library: the toolkit's, then the wheels'."""
    roots = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    nvcc = shutil.which("nvcc")
    roots += [os.path.dirname(os.path.dirname(os.path.realpath(nvcc)))] if nvcc else []
    roots = [part for root in roots if root for part in (root, os.path.join(root, "extras/CUPTI"), *glob.glob(root + "/targets/*"))]
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or [] if spec else []:
        roots += sorted(glob.glob(place + "/*"))
    return [os.path.join(r, "include") for r in roots], [os.path.join(r, lib) for r in roots for lib in ("lib64", "lib")]


def build_listener(folder):
    """The path of the compiled listener, or why there is none."""
    includes, libraries = cupti_folders()
    header = next((d for d in includes if os.path.exists(os.path.join(d, "cupti_activity.h"))), None)
    library = next((f for d in libraries for f in sorted(glob.glob(d + "/libcupti.so*"))), None)
    if not header or not library:
        return None, "CUPTI's " + ("header" if not header else "library") + " was not found"
    with open(os.path.join(header, "cupti_activity.h"), encoding="utf-8", errors="replace") as f:
        newest = max(int(n) for n in re.findall(r"CUpti_ActivityKernel(\d+)\b", f.read()))
    path = os.path.join(folder, "kernel_times.so")
    done = subprocess.run(
        [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-O2", f"-DKERNEL=CUpti_ActivityKernel{newest}",
         os.path.join(duel.HERE, "kernel_times.c"), *(f"-I{d}" for d in includes if os.path.isdir(d)), library,
         f"-Wl,-rpath,{os.path.dirname(library)}", "-o", path], capture_output=True, text=True)
    return (path, "") if done.returncode == 0 else (None, done.stderr.strip()[-500:])


def run_steps(command, **more):
    """Runs steps of the benchmark's program: (what it printed, why it failed)."""
    done = subprocess.run(command, input=f"run {STEPS}\n", capture_output=True, text=True, timeout=400, **more)
    return done.stdout, "" if done.returncode == 0 else f"status {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}"


def with_cupti(command, folder):
    """[(start, end, name)] in ns, and why there are none."""
    listener, why = build_listener(folder)
    if not listener:
        return [], why
    target = os.path.join(folder, "times")
    _, why = run_steps(command, env=dict(os.environ, CUDA_INJECTION64_PATH=listener, KERNEL_TIMES=target))
    if why or not os.path.exists(target):
        return [], why or "the driver did not load the listener"
    with open(target, encoding="utf-8", errors="replace") as f:
        rows = [line.split(" ", 2) for line in f]
    return sorted((int(a), int(b), name.strip()) for a, b, name in rows), "CUPTI saw no kernel"


def with_ncu(command):
    """The same with consecutive times: ncu runs each kernel alone."""
    if not shutil.which("ncu"):
        return [], "ncu is not installed"
    text, why = run_steps(["ncu", "--csv", "--clock-control", "none", "--metrics", "gpu__time_duration.sum", *command])
    at = text.find('"ID"')
    if why or at < 0:
        return [], why or "ncu saw no kernel"
    scale = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}
    now, rows = 0, []
    for row in csv.DictReader(io.StringIO(text[at:])):
        if row.get("Metric Name") == "gpu__time_duration.sum":
            ns = float(row["Metric Value"].replace(",", "")) * scale.get(row["Metric Unit"], 1)
            rows.append((now, now + ns, row["Kernel Name"]))
            now += ns
    return rows, ""


def last_step(rows):
    """What ran after the optimiser's last kernel of the step before, up to this step's."""
    ends, inside = [], False
    for i, (_, _, name) in enumerate(rows):
        if OPTIMISER in name:
            inside = True
        elif inside:
            ends.append(i)
            inside = False
    if inside:
        ends.append(len(rows))
    return rows[ends[-2]:ends[-1]] if len(ends) > 1 else rows


def short_name(name):
    """A kernel's name without its arguments: mangled ones through c++filt, where there is one."""
    if name.startswith("_Z") and shutil.which("c++filt"):
        name = subprocess.run(["c++filt", "-p", name], capture_output=True, text=True).stdout.strip() or name
    name = re.sub(r"^void ", "", name)
    return name if len(name) <= 90 else name[:87] + "..."


def summary(rows, timed):
    """The time of each kernel, how long the step took, and for how much of that a kernel ran."""
    sums = collections.defaultdict(lambda: [0, 0])
    busy, until = 0, rows[0][0]
    for start, end, name in rows:
        sums[name][0] += end - start
        sums[name][1] += 1
        busy += max(0, end - max(start, until))
        until = max(until, end)
    kernels = sorted(([ns * 1e-6, n, short_name(name)] for name, (ns, n) in sums.items()), reverse=True)
    return {"ms": (until - rows[0][0]) * 1e-6 if timed else None, "busy_ms": busy * 1e-6, "launches": len(rows), "kernels": kernels}


def show(s, how):
    print(f"one step of GPT-2 124M, {how}: {s['launches']} launches, {s['busy_ms']:.2f} ms of work"
          + (f" in {s['ms']:.2f} ms" if s["ms"] else ""))
    for ms, n, name in s["kernels"]:
        print(f"{ms:9.3f} ms {100 * ms / s['busy_ms']:5.1f} % {n:5d}  {name}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json")
    parser.add_argument("--batch", default="8")
    o = parser.parse_args()
    if not shutil.which("nvidia-smi") or subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode:
        print("skipped: nvidia-smi finds no GPU here")
        return
    command = [duel.program("gpt2"), "--size", "124M", "--vocab", "50304", "--device", "cuda", "--precision", "bf16", "--batch", o.batch, str(T)]
    with tempfile.TemporaryDirectory() as folder:
        rows, why = with_cupti(command, folder)
    how = "CUPTI"
    if not rows:
        print(f"without CUPTI: {why}", flush=True)
        rows, why = with_ncu(command)
        how = "ncu, each kernel alone"
    if not rows:
        sys.exit(f"no times of kernels: {why}")
    s = summary(last_step(rows), timed=how == "CUPTI")
    show(s, f"{o.batch} x {T} tokens, bf16 ({how})")
    if o.json:
        with open(o.json, "w", encoding="utf-8") as f:
            json.dump(s, f, indent=1)


if __name__ == "__main__":
    main()
