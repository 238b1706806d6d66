#!/usr/bin/env python3
"""What `./run gpu` runs on a machine with a GPU, and its report.

gpu.py [--seconds N] BUILD [PART ...]     default: all parts, the most useful first, so that a short lease gets most of the value

    machine     the GPU, its driver, the compiler, what `tern info` finds
    quick       the kernels' tests, each against ref, the device's own, attention's
    choices     bench/gpu_choices.py: what a GPU's time decides, and what backends/cuda/choices.h should hold
    products    which epilogues cuBLASLt runs in a step of GPT-2 124M: what it refuses, our own slower kernel does
    step        bench/gpu_step.py: one step of GPT-2 124M, the time of each kernel
    bench       bench/gpu.py: GPT-2 124M, 350M and 1.5B next to compiled PyTorch; bench:SIZE is one of them
    suite       the other tests of the suite "cuda", on the device: every operation and its gradient, training compared with the
                CPU's, resuming, one NCCL rank, staged groups of 2 to 4 ranks; what they need is compiled first
    sanitizer   the kernels' tests, and every operation, again under compute-sanitizer: memcheck, racecheck, initcheck, synccheck;
                each block of device memory is its own allocation, so that every overrun is seen; attention without cuDNN, whose
                kernels are not ours to watch. Alone it can take half an hour

Results are saved in BUILD/gpu-report.json at once, so that parts can be run one at a time and a part that is stopped keeps its
results; the report bench/results/GPU-DATE.md is made from all of them. Both are also written to the folder $OUT, if it is set.
--seconds: after this time the running part is stopped, and the rest is not begun. Exit status 1 if something failed or was stopped.
"""
import argparse
import collections
import concurrent.futures
import datetime
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback

import tap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = ["machine", "quick", "choices", "products", "step", "bench", "suite", "sanitizer"]
SIZES = ["124M", "350M", "1.5B"]
TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]
AT_ONCE = 6  # programs under compute-sanitizer: each has the GPU in turns, and its own core
STOPPED = 124

deadline = float("inf")


def left(most=3600):
    """Seconds that a command may take."""
    return max(1.0, min(most, deadline - time.monotonic()))


def end(process):
    """Ends a command and what it has started: first with SIGTERM, so that meson stops its tests and says which ran, then with
    SIGKILL."""
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


def machine(build, keep, _):
    facts = {}
    for name, command in (
        ("GPU", ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]),
        ("GPU now", ["nvidia-smi"]),
        ("nvcc", ["nvcc", "--version"]),
        ("tern", [os.path.join(build, "tools/tern"), "info"]),
        ("commit", ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]),
    ):
        status, text = run(command, most=120)
        facts[name] = text.strip() if status == 0 else f"unknown ({name}: status {status}: {text.strip()[-300:]})"
        print(facts[name], flush=True)
    keep({"facts": facts, "failed": 0})


def tests_of_suite(build):
    """The suite's tests, the last word of each one's command by its name; if there are none, something is wrong with the build."""
    with open(os.path.join(build, "meson-info/intro-tests.json"), encoding="utf-8") as f:
        tests = {test["name"]: test["cmd"][-1] for test in json.load(f) if any(s.split(":")[-1] == "cuda" for s in test["suite"])}
    if not tests:
        raise LookupError(f"{build} has no test of the suite cuda: was it configured with -Dcuda=enabled -Ddevice_tests=real?")
    return tests


def is_quick(name):
    return name.startswith("cuda/kernels_") or name in ("cuda/device", "cuda/sdpa", "cuda/conv_graph")


def test(build, names):
    """Runs the tests of these names: a result as suite_lines shows it."""
    log = os.path.join(build, "meson-logs/testlog.json")
    if os.path.exists(log):
        os.remove(log)
    status, text = run(["meson", "test", "-C", build, "--no-rebuild", "-t", "2", *names], env=dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP"))
    tests = []
    if os.path.exists(log):
        with open(log, encoding="utf-8", errors="replace") as f:
            tests = [json.loads(line) for line in f]
    broken = [[tap.short_name(t["name"]), t["result"]] for t in tests if t["result"] not in ("OK", "SKIP")]
    words = {tap.short_name(t["name"]): (t.get("stdout", "") + t.get("stderr", ""))[-1500:] for t in tests
             if t["result"] not in ("OK", "SKIP")}
    passed = [tap.short_name(t["name"]) for t in tests if t["result"] == "OK"]
    slow = sorted(((t["duration"], tap.short_name(t["name"])) for t in tests), reverse=True)[:5]
    counts = collections.Counter(t["result"] for t in tests)
    missing = len(names) - len(tests)
    if missing:
        counts["not run"] = missing
    print(", ".join(f"{n} {how.lower()}" for how, n in counts.items()), flush=True)
    for name, how in broken:
        print(f"{how}: {name}\n{words[name]}", flush=True)
    return {"counts": counts, "broken": broken, "passed": passed, "status": status, "slow": slow, "words": words,
            "tail": text[-4000:] if status else "", "failed": len(broken) + missing or int(status != 0)}


def compile_(build, targets):
    """What does not compile on that machine costs only its own tests."""
    status, text = run(["ninja", "-C", build, "-k", "0", *targets])
    if status:
        print(f"not everything was built; the rest is tested\n{text[-3000:]}", flush=True)


def quick(build, keep, _):
    programs = {name: program for name, program in tests_of_suite(build).items() if is_quick(name)}
    compile_(build, sorted({os.path.relpath(os.path.join(build, program), build) for program in programs.values()}))
    keep(dict(test(build, list(programs)), time=time.time()))


def suite(build, keep, results):
    """What `quick` has not seen pass with these libraries."""
    compile_(build, [])
    libraries = [os.path.getmtime(os.path.join(build, name)) for name in os.listdir(build) if name.startswith("libtern") and ".so" in name]
    seen = results.get("quick", {})
    done = seen.get("passed", []) if seen.get("time", 0) > max(libraries) else []
    names = [name for name in tests_of_suite(build) if name not in done]
    if names:
        keep(test(build, names))


def sanitize(job):
    """One program under one tool: a row of the table."""
    tool, program, build = job
    name = os.path.basename(program)
    kernels = "kernels" in name
    settings = dict(os.environ, TERN_CUDNN="off", TERN_ROOT=ROOT, TERN_OP_CHECK="brief", TERN_TF32="0")
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


def sanitizer(build, keep, _):
    compile_(build, [])
    folder = os.path.join(build, "tests")
    programs = sorted(p for p in os.listdir(folder) if p.startswith("test_kernels_") and "." not in p) + ["test_ops_registry"]
    jobs = [(tool, os.path.join(folder, p), build) for tool in TOOLS for p in programs]
    rows = []
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for done in concurrent.futures.as_completed([pool.submit(sanitize, job) for job in jobs]):
            rows.append(done.result())
            print("{:10} {:40} {:3} {}".format(*rows[-1]), flush=True)
            keep({"rows": sorted(rows, key=lambda r: (TOOLS.index(r[0]), r[1])), "failed": sum(r[2] != 0 for r in rows)})


def products(build, keep, _):
    """cuBLASLt's own log says what it was called with (CUBLASLT_LOG_LEVEL=2: what launches kernels)."""
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
    for name, n in calls.most_common():
        print(f"{name}: {n}", flush=True)
    keep({"calls": calls.most_common(), "text": text[-2000:], "failed": int(status != 0)})


def run_bench(build, keep, script):
    status, text = run([sys.executable, os.path.join(ROOT, "bench", script)], most=600,
                       env=dict(os.environ, TERN_BENCH_BIN=os.path.join(build, "bench")))
    print(text, flush=True)
    keep({"text": text, "failed": int(status != 0)})


def choices(build, keep, _):
    compile_(build, ["bench/gpu_choices"])
    run_bench(build, keep, "gpu_choices.py")


def step(build, keep, _):
    run_bench(build, keep, "gpu_step.py")


def bench(build, keep, _, sizes=SIZES):
    """One size after the other: each is known as soon as it has been measured."""
    texts, numbers = [], []
    failed = 0
    for size in sizes:
        numbers_file = os.path.join(build, f"gpu-bench-{size}.json")
        environment = dict(os.environ, TERN_BENCH_BIN=os.path.join(build, "bench"))
        if deadline - time.monotonic() < 20:
            texts.append(f"{size}: not begun")
            failed += 1
        else:
            status, text = run([sys.executable, os.path.join(ROOT, "bench/gpu.py"), "--json", numbers_file, size], env=environment)
            print(text, flush=True)
            texts.append(text)
            failed += status != 0
            if status == 0 and os.path.exists(numbers_file):
                with open(numbers_file) as f:
                    numbers.append(json.load(f))
        keep({"text": "\n".join(texts), "numbers": numbers, "failed": failed})


def bench_lines(results):
    """Of the part bench and of single sizes."""
    text = [results[part]["text"].strip() for part in results if part.split(":")[0] == "bench"]
    return ["## GPT-2", "", "```", *text, "```", ""] if text else []


def suite_lines(r, title):
    counts = ", ".join(f"{n} {how.lower()}" for how, n in r["counts"].items())
    lines = [title, "", (counts or "no count") + (", then stopped" if r["status"] == STOPPED else "")]
    lines += ["", "The longest: " + ", ".join(f"{name} {seconds:.0f} s" for seconds, name in r["slow"]), ""]
    for name, how in r["broken"]:
        lines += [f"- {name}: {how}", "", "```", r["words"].get(name, "").strip(), "```", ""]
    return lines + (["```", r["tail"], "```", ""] if r["tail"] and not r["broken"] else [])


def report(results):
    """The report as Markdown."""
    facts = results.get("machine", {}).get("facts", {})
    lines = [f"# {facts.get('GPU', 'an unknown GPU')}", "", f"Commit {facts.get('commit', '?')}, {results['date']}. Made by `./run gpu`.", ""]
    lines += ["```", facts.get("tern", ""), "```", ""]
    if "quick" in results:
        lines += suite_lines(results["quick"], "## Tests of the kernels on the device")
    if "choices" in results:
        lines += ["## What time decides", "", "```", results["choices"]["text"].strip(), "```", ""]
    if "products" in results:
        calls = [f"- {name}: {n}" for name, n in results["products"]["calls"]]
        lines += ["## Products of a step of GPT-2 124M through cuBLASLt", "", *(calls or ["```", results["products"]["text"], "```"]), ""]
    if "step" in results:
        lines += ["## The kernels of a step", "", "```", results["step"]["text"].strip(), "```", ""]
    lines += bench_lines(results)
    if "suite" in results:
        lines += suite_lines(results["suite"], "## The other tests on the device")
    if "sanitizer" in results:
        lines += ["## compute-sanitizer", "", "| tool | program | status | summary |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(str(x).replace("|", "/") for x in row) + " |" for row in results["sanitizer"]["rows"]] + [""]
    missing = [part for part in PARTS if not any(done.split(":")[0] == part for done in results)]
    if missing:
        lines += [f"Not run: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def write_report(results):
    name = re.sub(r"[^a-z0-9]+", "-", results["machine"]["facts"]["GPU"].split(",")[0].lower().replace("nvidia ", "")).strip("-")
    path = os.path.join(ROOT, "bench/results", f"{name}-{results['date']}.md")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(report(results))
    return path


def hand_out(path):
    """Copies it to the folder $OUT, which outlives a borrowed machine."""
    out = os.environ.get("OUT")
    if out and os.path.isdir(out):
        shutil.copy(path, out)


def do(part, build, results, path):
    def keep(result):
        results[part] = result
        with open(path + ".new", "w") as f:
            json.dump(results, f, indent=1)
        os.replace(path + ".new", path)
        hand_out(path)
        if "machine" in results:
            hand_out(write_report(results))

    name, _, size = part.partition(":")
    begin = time.monotonic()
    print(f"\n== {part}", flush=True)
    globals()[name](build, keep, results, *([[size]] if size else []))
    print(f"({time.monotonic() - begin:.0f} s)", flush=True)


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
            try:
                do(part, build, results, path)
            except Exception:  # the machine is borrowed for a short time: still run the other parts
                traceback.print_exc()
                skipped.append(part)
    failed = sum(r["failed"] for part, r in results.items() if part != "date")
    print(f"\nreport: {os.path.relpath(write_report(results), ROOT)}; {failed} failed" + (f"; not done: {' '.join(skipped)}" if skipped else ""))
    sys.exit(1 if failed or skipped else 0)


if __name__ == "__main__":
    main()
