#!/usr/bin/env python3
"""What `./run gpu` runs on a machine with a GPU, and its report.

gpu.py [--seconds N] BUILD [PART ...]     parts: machine suite sanitizer products bench (default: all, in this order)

    machine     the GPU, its driver, the compiler, what `tern info` finds
    suite       every test of the suite "cuda", on the device: each kernel against ref, every operation and its gradient, training
                beside the CPU's, resuming, one NCCL rank, staged groups of 2 to 4 ranks
    sanitizer   the kernels' tests, and every operation, again under compute-sanitizer: memcheck, racecheck, initcheck, synccheck;
                each block of device memory is an allocation of its own, so that every overrun is seen; attention without cuDNN,
                whose kernels are not ours to watch
    products    which epilogues cuBLASLt runs in a step of GPT-2 124M: what it refuses our own slower kernel does
    bench       bench/gpu.py: GPT-2 124M, 350M and 1.5B beside compiled PyTorch; bench:SIZE is one of them

What is known is kept in BUILD/gpu-report.json at once, so that parts can be run one at a time and one that is stopped leaves what
it had; the report bench/results/GPU-DATE.md is made from all of them. --seconds: after so long what is under way is stopped, and
what is left is not begun. Exit status 1 when something failed or was stopped.
"""
import argparse
import collections
import concurrent.futures
import datetime
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = ["machine", "suite", "sanitizer", "products", "bench"]
SIZES = ["124M", "350M", "1.5B"]
TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
AT_ONCE = 6  # programs under compute-sanitizer: each has the GPU in turns, and a core of its own
STOPPED = 124

deadline = float("inf")


def left(most=3600):
    """Seconds that a command may take."""
    return max(1.0, min(most, deadline - time.monotonic()))


def end(process):
    """Ends a command and what it has started: politely, so that meson stops its tests and says which ran, then for certain."""
    for how, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, how)
            return process.communicate(timeout=seconds)[0]
        except (subprocess.TimeoutExpired, ProcessLookupError):
            pass
    return ""


def run(command, most=3600, **more):
    """(exit status, output); a missing program and a time-out are results too."""
    seconds = left(most)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                   start_new_session=True, **more)
    except OSError as why:
        return 127, str(why)
    try:
        text, _ = process.communicate(timeout=seconds)
        return process.returncode, text
    except subprocess.TimeoutExpired:
        return STOPPED, f"{end(process)}\nstopped after {seconds:.0f} s"


def machine(build, keep):
    facts = {}
    for name, command in (
        ("GPU", ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]),
        ("nvcc", ["nvcc", "--version"]),
        ("tern", [os.path.join(build, "tools/tern"), "info"]),
        ("commit", ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]),
    ):
        status, text = run(command, most=120)
        facts[name] = text.strip() if status == 0 else f"unknown ({name}: status {status}: {text.strip()[-300:]})"
    keep({"facts": facts, "failed": 0})


def last_words(build, names):
    """What the tests of these names printed at their end."""
    words = {}
    try:
        with open(os.path.join(build, "meson-logs/testlog.json"), errors="replace") as f:
            for line in f:
                test = json.loads(line)
                name = test["name"].split(" / ")[-1]
                if name in names:
                    words[name] = (test.get("stdout", "") + test.get("stderr", ""))[-1500:]
    except (OSError, ValueError):
        pass
    return words


def suite(build, keep):
    status, text = run(["meson", "test", "-C", build, "--no-rebuild", "--suite", "cuda", "-t", "2"])
    tests = re.findall(r"^ *\d+/\d+ (?:\S+ / )?(\S+) +(OK|FAIL|TIMEOUT|ERROR|SKIP|INTERRUPT|UNEXPECTEDPASS)\b +([0-9.]+)s", text, re.M)
    broken = [[name, how] for name, how, _ in tests if how not in ("OK", "SKIP")]
    slow = sorted(((float(s), name) for name, _, s in tests), reverse=True)[:5]
    keep({"counts": collections.Counter(how for _, how, _ in tests), "broken": broken, "status": status, "slow": slow,
          "words": last_words(build, {name for name, _ in broken}), "tail": text[-4000:] if status else "",
          "failed": len(broken) or int(status != 0)})


def sanitize(job):
    """One program under one tool: a row of the table."""
    tool, program, build = job
    name = os.path.basename(program)
    kernels = "kernels" in name
    settings = dict(os.environ, TERN_CUDA_CACHE="0", TERN_CUDNN="off", TERN_ROOT=ROOT, TERN_OP_CHECK="brief")
    settings.update({"TERN_TEST_CUDA": "device"} if kernels else {"TERN_TEST_DEVICE": "cuda", "TERN_SYNC": "1"})  # as tests/meson.build
    if deadline - time.monotonic() < 5:
        return [tool, name, STOPPED, "not begun"]
    status, text = run(["compute-sanitizer", "--tool", tool, "--error-exitcode", "99", program], most=300, env=settings)
    with open(os.path.join(build, f"sanitizer-{tool}-{name}.log"), "w") as f:
        f.write(text)
    summary = re.findall(r"ERROR SUMMARY: (.*)|RACECHECK SUMMARY: (.*)", text)
    words = next((a or b for a, b in summary[::-1]), text.strip().splitlines()[-1] if text.strip() else "")
    first = re.search(r"^=+ (?!COMPUTE-SANITIZER)(.*\S)", text, re.M)
    return [tool, name, status, words if status == 0 or not first else f"{words}; first: {first.group(1)[:150]}"]


def sanitizer(build, keep):
    folder = os.path.join(build, "tests")
    programs = sorted(p for p in os.listdir(folder) if p.startswith("test_kernels_") and "." not in p) + ["test_ops_registry"]
    jobs = [(tool, os.path.join(folder, p), build) for tool in TOOLS for p in programs]
    rows = []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done in concurrent.futures.as_completed([pool.submit(sanitize, job) for job in jobs]):
            rows.append(done.result())
            print("{:10} {:40} {:3} {}".format(*rows[-1]), flush=True)
            keep({"rows": sorted(rows, key=lambda r: (TOOLS.index(r[0]), r[1])), "failed": sum(r[2] != 0 for r in rows)})


def products(build, keep):
    """cuBLASLt's own log says what it was given (CUBLASLT_LOG_LEVEL=2: what launches kernels)."""
    log = os.path.join(build, "cublaslt-%i.log")
    for old in glob.glob(log.replace("%i", "*")):
        os.remove(old)
    command = [os.path.join(build, "bench/gpt2"), "--size", "124M", "--vocab", "50304", "--device", "cuda", "--precision", "bf16",
               "--batch", "8", "1024"]
    with open(os.path.join(build, "one-step"), "w+") as line:
        line.write("run 1\n")
        line.seek(0)
        status, text = run(command, most=120, stdin=line, env=dict(os.environ, CUBLASLT_LOG_LEVEL="2", CUBLASLT_LOG_FILE=log))
    calls = collections.Counter()
    for name in glob.glob(log.replace("%i", "*")):
        with open(name, errors="replace") as f:
            for call in re.findall(r"\[cublasLtMatmul\] (.*)", f.read()):
                epilogue = re.search(r"epilogue=(\w+)", call)
                calls[epilogue.group(1) if epilogue else "EPILOGUE_DEFAULT"] += 1
    keep({"calls": calls.most_common(), "text": text[-2000:], "failed": int(status != 0)})


def bench(build, keep, sizes=SIZES):
    """One size after the other: each is known as soon as it was measured."""
    texts, numbers = [], []
    failed = 0
    for size in sizes:
        target = os.path.join(build, f"gpu-bench-{size}.json")
        environment = dict(os.environ, TERN_BENCH_BIN=os.path.join(build, "bench"))
        if deadline - time.monotonic() < 20:
            texts.append(f"{size}: not begun")
            failed += 1
        else:
            status, text = run([sys.executable, os.path.join(ROOT, "bench/gpu.py"), "--json", target, size], env=environment)
            print(text, flush=True)
            texts.append(text)
            failed += status != 0
            if status == 0 and os.path.exists(target):
                with open(target) as f:
                    numbers.append(json.load(f))
        keep({"text": "\n".join(texts), "numbers": numbers, "failed": failed})


def bench_lines(results):
    """Of the part bench and of single sizes."""
    text = [results[part]["text"].strip() for part in results if part.split(":")[0] == "bench"]
    return ["## GPT-2", "", "```", *text, "```", ""] if text else []


def suite_lines(r):
    counts = ", ".join(f"{n} {how.lower()}" for how, n in r["counts"].items())
    lines = ["## Tests on the device", "", (counts or "no count") + (", then stopped" if r["status"] == STOPPED else "")]
    lines += ["", "The longest: " + ", ".join(f"{name} {seconds:.0f} s" for seconds, name in r["slow"]), ""]
    for name, how in r["broken"]:
        lines += [f"- {name}: {how}", "", "```", r["words"].get(name, "").strip(), "```", ""]
    return lines + (["```", r["tail"], "```", ""] if r["tail"] and not r["broken"] else [])


def report(results):
    """The report as Markdown."""
    facts = results.get("machine", {}).get("facts", {})
    lines = [f"# {facts.get('GPU', 'an unknown GPU')}", "", f"Commit {facts.get('commit', '?')}, {results['date']}. Made by `./run gpu`.", ""]
    lines += ["```", facts.get("tern", ""), "```", ""]
    if "suite" in results:
        lines += suite_lines(results["suite"])
    if "sanitizer" in results:
        lines += ["## compute-sanitizer", "", "| tool | program | status | summary |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(str(x).replace("|", "/") for x in row) + " |" for row in results["sanitizer"]["rows"]] + [""]
    if "products" in results:
        calls = [f"- {name}: {n}" for name, n in results["products"]["calls"]]
        lines += ["## Products of a step of GPT-2 124M through cuBLASLt", "", *(calls or ["```", results["products"]["text"], "```"]), ""]
    lines += bench_lines(results)
    missing = [part for part in PARTS if not any(done.split(":")[0] == part for done in results)]
    if missing:
        lines += [f"Not run: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def write_report(results):
    name = re.sub(r"[^a-z0-9]+", "-", results["machine"]["facts"]["GPU"].split(",")[0].lower().replace("nvidia ", "")).strip("-")
    target = os.path.join(ROOT, "bench/results", f"{name}-{results['date']}.md")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w") as f:
        f.write(report(results))
    return target


def do(part, build, results, path):
    def keep(result):
        results[part] = result
        with open(path + ".new", "w") as f:
            json.dump(results, f, indent=1)
        os.replace(path + ".new", path)
        if "machine" in results:
            write_report(results)

    name, _, size = part.partition(":")
    print(f"\n== {part}", flush=True)
    globals()[name](build, keep, *([[size]] if size else []))


def main():
    global deadline
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("build")
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    build, parts = os.path.abspath(options.build), options.parts or PARTS
    known = PARTS + [f"bench:{size}" for size in SIZES]
    unknown = [p for p in parts if p not in known]
    if unknown:
        sys.exit(f"no such part: {' '.join(unknown)}; there are: {' '.join(known)}")
    path = os.path.join(build, "gpu-report.json")
    results = {}
    if os.path.exists(path):
        with open(path) as f:
            results = json.load(f)
    results["date"] = datetime.date.today().isoformat()
    skipped = []
    for part in ["machine"] * ("machine" not in results and "machine" not in parts) + parts:
        if part != "machine" and deadline - time.monotonic() < 10:
            skipped.append(part)
        else:
            do(part, build, results, path)
    failed = sum(r["failed"] for part, r in results.items() if part != "date")
    print(f"\nreport: {os.path.relpath(write_report(results), ROOT)}; {failed} failed" + (f"; no time for {' '.join(skipped)}" if skipped else ""))
    sys.exit(1 if failed or skipped else 0)


main()
