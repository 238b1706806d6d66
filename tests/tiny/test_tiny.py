#!/usr/bin/env python3
"""The programs of tiny/: they compile alone and quickly, a line is found, and a small gpt.c prints the same losses however it is spread
over ranks, also after a restart. And tiny.c is as short as it promises."""
import os
import re
import shutil
import subprocess
import tempfile
import time

ROOT = os.environ.get("TERN_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
TINY = os.path.join(ROOT, "tiny")
LINES, FUNCTION_LINES, SECONDS = 900, 45, 20  # to compile: two seconds on a quiet machine
WARNINGS, SANITIZERS = ["-Wall", "-Wextra", "-Werror"], ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# A smaller gpt.c, which prints the loss of each step.
SMALLER = {"CONTEXT = 64": "CONTEXT = 16", ".layers = 4": ".layers = 2", ".width = 128": ".width = 32", "adamw.t % 10": "adamw.t % 1",
           "write_sample(m, 200)": "write_sample(m, 20)"}


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def losses(program, *options):
    found = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)", run(program, "text", *options), re.M)]
    assert found and all(0 < loss < 5 for loss in found), f"{options}: {found}"
    return found


def compiles(compiler, *options):
    for name in sorted(set(os.listdir(TINY)) & {"line.c", "mlp.c", "gpt.c"}):
        start = time.monotonic()
        run(compiler, *options, f"{TINY}/{name}", "-lm", "-o", name[:-2])
        assert time.monotonic() - start < SECONDS, f"{name} takes longer than {SECONDS} s"
    said = run("./line")
    assert said.rstrip().endswith("y = 3.0000 x + -1.0000"), said


def spreads():
    run("cc", "-O2", "-march=native", *WARNINGS, f"-I{TINY}", "small.c", "-lm", "-o", "small")
    one = losses("./small", "--steps", "20")
    assert len(one) == 20 and one[-1] < one[0] - 0.2, f"it does not learn: {one}"
    for ranks in "1", "2", "4":
        ddp, fsdp = (losses("./small", "--steps", "20", "--ranks", ranks, *more) for more in ([], ["--fsdp"]))
        assert ddp == fsdp, f"{ranks} ranks: {ddp} with DDP, {fsdp} with FSDP"
        assert len(ddp) == 20 and max(abs(a - b) for a, b in zip(one, ddp)) < 1e-5, f"{ranks} ranks: {ddp}, but 1 rank: {one}"
    both = losses("./small", "--steps", "8", "--save", "run", "--ranks", "4", "--fsdp") + losses("./small", "--steps", "20", "--save", "run")
    assert len(both) == 20 and max(abs(a - b) for a, b in zip(one, both)) < 1e-5, f"after a restart: {both}, but: {one}"


def sanitized():
    run("cc", *SANITIZERS, f"-I{TINY}", "small.c", "-lm", "-o", "sanitized")
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0"  # the end of the program frees what is there
    for more in [], ["--fsdp"]:
        losses("./sanitized", "--steps", "3", "--ranks", "2", "--save", "run-" + "".join(more), *more)


def short():
    with open(f"{TINY}/tiny.c", encoding="utf-8") as f:
        lines = f.read().split("\n")[:-1]
    heads = [i for i, line in enumerate(lines) if re.match(r"\w.*\) \{$|\w[^;]*\(.*,$", line)]
    long = [f"{lines[i]}: {n} lines" for i in heads if (n := lines.index("}", i) + 1 - i) > FUNCTION_LINES]
    assert len(heads) > 50 and not long, "\n".join(long)
    assert len(lines) <= LINES, f"tiny.c has {len(lines)} lines; at most {LINES}"


def main():
    with open(f"{TINY}/gpt.c", encoding="utf-8") as f, open("small.c", "w", encoding="utf-8") as small:
        program = f.read()
        assert all(old in program for old in SMALLER), "gpt.c: a number has changed"
        small.write(re.sub("|".join(map(re.escape, SMALLER)), lambda old: SMALLER[old[0]], program))
    with open("text", "w", encoding="utf-8") as f:
        f.writelines(f"Ship {i} sails to port {i * 7 % 11} with {i * i} barrels of salt.\n" for i in range(100))
    sanitizers = subprocess.run(["cc", *SANITIZERS, "-x", "c", "-", "-o", "nothing"], input=b"int main(void) { return 0; }", check=False)
    tests = [("gcc", shutil.which("gcc"), lambda: compiles("gcc", *WARNINGS)), ("tcc", shutil.which("tcc"), lambda: compiles("tcc")),
             ("clang", shutil.which("clang"), lambda: compiles("clang", *WARNINGS)), ("ranks", True, spreads),
             ("sanitizers", sanitizers.returncode == 0, sanitized), ("length", True, short)]
    print(f"1..{len(tests)}")
    for number, (name, possible, test) in enumerate(tests, 1):
        try:
            print(f"ok {number} - {name}{' # SKIP it is not installed' if not possible else test() or ''}", flush=True)
        except (AssertionError, subprocess.TimeoutExpired) as why:
            print(f"not ok {number} - {name}\n# " + str(why).replace("\n", "\n# "), flush=True)


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    main()
