#!/usr/bin/env python3
"""Programs with a hole each, and their judges.

exercise.py              lists them
exercise.py N            compiles exercise N, runs it, and says pass or what differs
exercise.py --test [N]   fills each hole with its solution, with nothing and with typical mistakes (tests/exercises/); prints TAP
"""
import concurrent.futures
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TESTS = os.environ.get("TERN_TEST_BIN")  # in a test the library is the one that is tested
LIBRARY = os.path.dirname(TESTS) if TESTS else os.path.join(ROOT, "build/release")
HOLE = re.compile(r"(/\* ---- yours ---- \*/\n)(.*?)([ \t]*/\* ---- end ---- \*/)", re.S)
SECONDS = 5


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def compile_it(source, program):
    """What the compiler says, and whether there is a program now."""
    command = ["cc", "-O1", "-g", "-Wall", "-o", program, source, "-lm", "-pthread"]
    if "#include <tern/" in read(source):
        if not os.path.exists(LIBRARY + "/libtern.so"):
            return "This exercise is of Tern, whose library is not built yet: ./run build\n", False
        command += ["-I" + ROOT + "/include", "-L" + LIBRARY, "-ltern", "-Wl,-rpath," + LIBRARY]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout, done.returncode == 0


def judge(program, seconds):
    """What it prints, and whether it passes. It ends in time, with all that it has started."""
    with subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True) as run:
        try:
            text = run.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return run.communicate()[0] + f"differs: it does not end within {seconds} s: a loop or a wait has no end\n", False
    if run.returncode < 0:
        text += f"differs: it crashes ({signal.Signals(-run.returncode).name}); gdb -ex run {os.path.relpath(program, ROOT)} shows where\n"
    return text, run.returncode == 0 and text.endswith("pass\n")


def solve(source):
    program = os.path.join(ROOT, "build/exercises", os.path.basename(source)[:-2])
    os.makedirs(os.path.dirname(program), exist_ok=True)
    said, compiled = compile_it(source, program)
    text, passes = judge(program, SECONDS) if compiled else ("", False)
    print(f"{said}{text}{'' if passes else 'The page: ' + os.path.relpath(source[:-2] + '.md', ROOT)}".rstrip("\n"))
    return 0 if passes else 1


def fillings(source):
    """(name, lines) of what fills the hole; None: what is there."""
    parts = re.split(r"^== (solution|mistake: .+)\n", read(f"{ROOT}/tests/exercises/{os.path.basename(source)[:-2]}.txt"), flags=re.M)
    return [("empty", None)] + list(zip(parts[1::2], parts[2::2]))


def wrong_form(source):
    filled, holes = dict(fillings(source)), len(HOLE.findall(read(source)))
    lines, page = read(source).count("\n"), read(source[:-2] + ".md").count("\n")
    solution = filled.get("solution", "").count("\n")
    fits = holes == 1 and 5 <= solution <= 25 and 40 <= lines <= 110 and page <= 40 and len(filled) >= 4
    return "" if fits else f"{lines} lines, {holes} holes; page: {page} lines; solution: {solution} lines; {len(filled)} fillings"


def wrong_filling(source, copy, name, lines):
    """What is wrong, or ""; a mistake's name ends with words that the judge answers."""
    with open(copy + ".c", "w", encoding="utf-8") as f:
        f.write(read(source) if lines is None else HOLE.sub(lambda hole: hole[1] + lines + hole[3], read(source)))
    said, compiled = compile_it(copy + ".c", copy)
    if not compiled or (said and not name.startswith("mistake")):
        return said
    text, passes = judge(copy, 12 * SECONDS)  # the machine may be busy
    if (name == "solution") == passes and re.search("^pass" if passes else "^differs: .*" + re.escape(name.partition(": ")[2]), text, re.M):
        return ""
    return "unexpected: " + text


def test(sources):
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        os.mkdir(folder + "/exercises")
        os.symlink(ROOT + "/tiny", folder + "/tiny")
        os.symlink(ROOT + "/exercises/judge.h", folder + "/exercises/judge.h")
        jobs = [(s, f"{folder}/exercises/{os.path.basename(s)[:-2]}_{i}", *f) for s in sources for i, f in enumerate(fillings(s))]
        results = [(s, "form", wrong_form(s)) for s in sources]
        results += [(job[0], job[2], wrong) for job, wrong in zip(jobs, pool.map(lambda job: wrong_filling(*job), jobs))]
    for i, (source, name, wrong) in enumerate(results, 1):
        print("".join(f"# {line}\n" for line in wrong.splitlines()) + ("not ok" if wrong else "ok"), i, f"- {os.path.basename(source)[:-2]}, {name}")
    print(f"1..{len(results)}")
    return 1 if any(wrong for _, _, wrong in results) else 0


def main(args):
    pages = sorted(glob.glob(ROOT + "/exercises/[0-9][0-9]_*.md"))
    found = {str(int(os.path.basename(page)[:2])): page[:-3] + ".c" for page in pages}
    chosen = args[1:] if args[:1] == ["--test"] else args
    if len(chosen) > 1 or not set(chosen) <= set(found):
        print(f"./run exercise N takes one of {', '.join(found)}")
        return 2
    if args:
        return solve(found[chosen[0]]) if args == chosen else test([found[n] for n in chosen or found])
    for page in pages:
        print(f"{read(page).split(chr(10), 1)[0].lstrip('# '):<60}{os.path.relpath(page, ROOT)}")
    print("\n./run exercise N says whether N is solved. Its page says what to write, into the .c file beside it.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
