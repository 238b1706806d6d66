#!/usr/bin/env python3
"""What `./run gpu` runs on a machine with a GPU, and its report.

gpu.py BUILD [PART ...]     parts: machine suite sanitizer bench (default: all, in this order)

    machine     the GPU, its driver, the compiler, what `tern info` finds
    suite       every test of the suite "cuda", on the device: each kernel against ref, every operation and its gradient, training
                beside the CPU's, resuming, one NCCL rank, staged groups of 2 to 4 ranks
    sanitizer   the kernels' tests, and every operation, again under compute-sanitizer: memcheck, racecheck, initcheck, synccheck;
                each block of device memory is an allocation of its own, so that every overrun is seen
    bench       bench/gpu.py: GPT-2 124M, 350M and 1.5B beside compiled PyTorch

Each part's result is kept in BUILD/gpu-report.json as soon as it is there, so that parts can be run one at a time; the report
bench/results/GPU-DATE.md is made from all of them. Exit status 1 when a test failed.
"""
import datetime
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PARTS = ["machine", "suite", "sanitizer", "bench"]
TOOLS = ["memcheck", "racecheck", "initcheck", "synccheck"]


def run(command, timeout=3600, **more):
    """(exit status, output); a missing program and a time-out are results too."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout,
                              errors="replace", **more)
        return done.returncode, done.stdout
    except OSError as why:
        return 127, str(why)
    except subprocess.TimeoutExpired as late:
        return 124, (late.stdout or b"").decode(errors="replace") + f"\nstopped after {timeout} s"


def machine(build):
    facts = {}
    for name, command in (
        ("GPU", ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]),
        ("nvcc", ["nvcc", "--version"]),
        ("tern", [os.path.join(build, "tools/tern"), "info"]),
    ):
        status, text = run(command, timeout=120)
        facts[name] = text.strip() if status == 0 else f"failed ({status}): {text.strip()}"
    facts["commit"] = run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"])[1].strip()
    return {"facts": facts, "failed": 0}


def suite(build):
    status, text = run(["meson", "test", "-C", build, "--no-rebuild", "--suite", "cuda", "--print-errorlogs", "-t", "3"])
    counts = {k.strip(): int(n) for k, n in re.findall(r"^(Ok|Fail|Skipped|Timeout|Unexpected Pass): +(\d+)", text, re.M)}
    broken = re.findall(r"^ *\d+/\d+ (?:tern:\S+ / )?(\S+) +(FAIL|TIMEOUT|ERROR)", text, re.M)
    return {"counts": counts, "broken": broken, "status": status, "tail": text[-4000:] if status else "",
            "failed": len(broken) or int(status != 0)}


def sanitizer(build):
    programs = sorted(p for p in os.listdir(os.path.join(build, "tests")) if p.startswith("test_kernels_") and "." not in p)
    programs.append("test_ops_registry")
    shared = dict(os.environ, TERN_CUDA_CACHE="0", TERN_ROOT=ROOT)
    rows, failed = [], 0
    for tool in TOOLS:
        for program in programs:
            command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "99", os.path.join(build, "tests", program)]
            kind = "TERN_TEST_CUDA" if "kernels" in program else "TERN_TEST_DEVICE"
            status, text = run(command, timeout=600, env=dict(shared, **{kind: "device" if "kernels" in program else "cuda"}))
            summary = re.findall(r"ERROR SUMMARY: (.*)|RACECHECK SUMMARY: (.*)", text)
            words = next((a or b for a, b in summary[::-1]), text.strip().splitlines()[-1] if text.strip() else "")
            rows.append([tool, program, status, words])
            failed += status != 0
            print(f"{tool:10} {program:40} {status:3} {words}", flush=True)
    return {"rows": rows, "failed": failed}


def bench(build):
    target = os.path.join(build, "gpu-bench.json")
    environment = dict(os.environ, TERN_BENCH_BIN=os.path.join(build, "bench"))
    status, text = run([sys.executable, os.path.join(ROOT, "bench/gpu.py"), "--json", target], env=environment)
    print(text)
    numbers = {}
    if status == 0 and os.path.exists(target):
        with open(target) as f:
            numbers = json.load(f)
    return {"text": text, "numbers": numbers, "failed": int(status != 0)}


def report(results):
    """The report as Markdown."""
    facts = results.get("machine", {}).get("facts", {})
    lines = [f"# {facts.get('GPU', 'an unknown GPU')}", "", f"Commit {facts.get('commit', '?')}, {results['date']}. Made by `./run gpu`.", ""]
    lines += ["```", facts.get("tern", ""), "```", ""]
    if "suite" in results:
        r = results["suite"]
        counts = ", ".join(f"{n} {k.lower()}" for k, n in r["counts"].items() if n)
        lines += ["## Tests on the device", "", counts or "no count", ""] + [f"- {name}: {how}" for name, how in r["broken"]]
        lines += ["", "```", r["tail"], "```", ""] if r["tail"] else [""]
    if "sanitizer" in results:
        lines += ["## compute-sanitizer", "", "| tool | program | status | summary |", "|---|---|---|---|"]
        lines += ["| " + " | ".join(str(x) for x in row) + " |" for row in results["sanitizer"]["rows"]] + [""]
    if "bench" in results:
        lines += ["## GPT-2", "", "```", results["bench"]["text"].strip(), "```", ""]
    missing = [part for part in PARTS if part not in results]
    if missing:
        lines += [f"Not run: {', '.join(missing)}.", ""]
    return "\n".join(lines)


def main():
    build, parts = os.path.abspath(sys.argv[1]), sys.argv[2:] or PARTS
    unknown = [p for p in parts if p not in PARTS]
    if unknown:
        sys.exit(f"no such part: {' '.join(unknown)}; there are: {' '.join(PARTS)}")
    path = os.path.join(build, "gpu-report.json")
    results = {}
    if os.path.exists(path):
        with open(path) as f:
            results = json.load(f)
    results["date"] = datetime.date.today().isoformat()
    for part in ["machine"] * ("machine" not in results and "machine" not in parts) + parts:
        print(f"\n== {part}", flush=True)
        results[part] = globals()[part](build)
        with open(path, "w") as f:
            json.dump(results, f, indent=1)
    name = re.sub(r"[^a-z0-9]+", "-", results["machine"]["facts"]["GPU"].split(",")[0].lower().replace("nvidia ", "")).strip("-")
    target = os.path.join(ROOT, "bench/results", f"{name}-{results['date']}.md")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w") as f:
        f.write(report(results))
    failed = sum(results[p]["failed"] for p in PARTS if p in results)
    print(f"\nreport: {os.path.relpath(target, ROOT)}; {failed} failed")
    sys.exit(1 if failed else 0)


main()
