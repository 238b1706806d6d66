#!/usr/bin/env python3
"""The tours and the spine are true: a debugger finds that a training step passes what they name.

A debugger that runs a tour's gdb script stops at its stops, in one iteration of the loop.

A page has a heading "## N. …" for each stop, and below it `file.c`: `function`. A script must break at the same functions, and
gdb must reach them in the same order, in these files, while the page's example runs; with several ranks, in rank 0. docs/spine.md
lists each source that the second iteration of examples/02_line.c passes, with plain kernels, and no other. Exit status 77, with the
reason, if there is no gdb, it may not trace, or the example was not built.
"""
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile

ROOT = os.environ.get("TERN_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
EXAMPLES = os.environ.get("TERN_EXAMPLE_BIN") or os.path.join(ROOT, "build/test/examples")
END = "tn_optim_zero_grad"  # the last call of an iteration: all stops are in one iteration
TOURS = [
    # page, script, example with its arguments, ranks, which stops of the page
    ("docs/tour_short.md", "docs/tour.gdb", ["02_line"], 1, (1, 8)),
    ("docs/tour_ranks.md", "docs/tour_ranks.gdb", ["07_ddp"], 2, (1, 10)),
    ("docs/tour_ranks.md", "docs/tour_split.gdb", ["23_splitting", "--mesh", "tp=2"], 2, (11, 16)),
    ("docs/tour_mesh.md", "docs/tour_mesh.gdb", ["23_splitting", "--mesh", "dp=2,tp=2,pp=2"], 8, (1, 10)),
]
# Stops once at each function of the library, from the end of an iteration to the end of the next.
PASSED = """
import gdb, subprocess
files = set()
class Once(gdb.Breakpoint):
    def stop(self):
        self.enabled = False
        table = gdb.find_pc_line(gdb.newest_frame().pc()).symtab
        files.add(table.filename if table else "?")
        return False
for command in ("set pagination off", "break END", "run", "delete 1"):
    gdb.execute(command, to_string=True)
library = next(file.filename for file in gdb.objfiles() if "libtern.so" in file.filename)
symbols = [line.split() for line in subprocess.check_output(["nm", "--defined-only", library], text=True).splitlines()]
base = int(gdb.parse_and_eval("(unsigned long)&END")) - next(int(at, 16) for at, _, name in symbols if name == "END")
for at, kind, _ in symbols:
    if kind in "tT":
        Once(f"*{base + int(at, 16)}", internal=True)
for command in ("break tn_call", "continue", "continue"):
    gdb.execute(command, to_string=True)
for name in files:
    print("PASSED", name)
""".replace("END", END)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def stops_of_page(page):
    """[(file, function)], in the order of the headings."""
    parts = re.split(r"^## \d+\..*$", read(page), flags=re.M)[1:]
    return [re.search(r"`([\w/]+\.c)`: `(\w+)`", part).groups() for part in parts]


def places(ranks):
    """The environment of each rank of a job on this host."""
    base = dict(os.environ, ASAN_OPTIONS="detect_leaks=0", DEBUGINFOD_URLS="")
    if ranks == 1:
        return [base]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        base.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(s.getsockname()[1]), TERN_TOKEN=secrets.token_hex(16))
    base.update(WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    return [dict(base, RANK=str(r), LOCAL_RANK=str(r)) for r in range(ranks)]


def said_by_gdb(script, kind, program, environment, more=0):
    """The output of a run under gdb, by a script of this kind (.gdb, .py), then `more` times continue."""
    with tempfile.NamedTemporaryFile("w", suffix=kind) as file:
        file.write(script)
        file.flush()
        done = subprocess.run(["gdb", "-nx", "-batch", "-x", file.name] + ["-ex", "continue"] * more + ["--args", *program], env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    return done.stdout + done.stderr


def stops_of_gdb(script, program, count, ranks):
    """Where gdb has stopped, as it reports it: [(function, file)], the end of the iteration last; and its whole output."""
    environments = places(ranks)
    others = [subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=e)
              for e in environments[1:]]
    try:
        text = said_by_gdb(re.sub(r"^run$", f"break {END}\nrun", script, flags=re.M), ".gdb", program, environments[0], count)
    finally:
        for p in others:  # they wait for the rank that the debugger ended
            p.kill()
            p.wait()
    reached = re.findall(r"^(?:Thread [^\n]* hit )?Breakpoint \d+, (?:0x\w+ in )?(\w+) \(.*?\)\s+(?:at (\S+?):\d+)?", text, re.M | re.S)
    return reached, text


def lacking(program):
    """Whether gdb or the program is not there, which is said."""
    there = shutil.which("gdb") and os.path.exists(program)
    if not there:
        print(f"SKIPPED: there is no gdb, or no {program} (built without examples): nothing was checked")
    return not there


def walk(page, script, example, ranks, which):
    """0, 1 or 77, after saying why."""
    every = stops_of_page(page)
    stops = every[which[0] - 1:which[1]]
    commands = read(script)
    breaks = re.findall(r"^break (\w+)$", commands, re.M)
    if not stops or breaks != [name for _, name in stops] or len(every) > max(tour[-1][1] for tour in TOURS if tour[0] == page):
        print(f"{page} stops at {every}\n{script} at {breaks}")
        return 1
    program = [os.path.join(EXAMPLES, example[0]), *example[1:]]
    if lacking(program[0]):
        return 77
    reached, text = stops_of_gdb(commands, program, len(stops), ranks)
    if "ptrace" in text or "not trace" in text:
        print("SKIPPED: gdb may not trace a program here\n" + text)
        return 77
    wrong = [(stop, at) for stop, at in zip(stops, reached) if at[1] and os.path.basename(at[1]) not in (os.path.basename(stop[0]), "op.h")]
    if [name for name, _ in reached] != breaks + [END] or wrong:
        print(f"gdb stopped at {reached}\n{page} says {stops}, then {END}\n\n{text}")
        return 1
    print(f"{len(stops)} stops, in the order of {page}")
    return 0


def spine():
    """0, 1 or 77, after saying why."""
    program = os.path.join(EXAMPLES, "02_line")
    if lacking(program):
        return 77
    text = said_by_gdb(PASSED, ".py", [program], dict(places(1)[0], TERN_CPU="plain", OMP_NUM_THREADS="1"))
    passed = {os.path.normpath(path).lstrip("./") for path in re.findall(r"^PASSED (.*\.c)$", text, re.M)}
    passed = {path for path in passed if os.path.exists(os.path.join(ROOT, path))}
    if not passed:
        print("SKIPPED: gdb may not trace a program here, or it has no debug information\n" + text)
        return 77
    rows = re.findall(r"^\|.*", read("docs/spine.md"), re.M)
    listed = set(re.findall(r"`([\w/]+\.c)`", "".join(rows)))
    unless = set(re.findall(r"`([\w/]+\.c)`", "".join(row for row in rows if "debug_tensors" in row)))  # the build may lack it
    wrong = (passed ^ listed) - (unless - passed)
    for path in sorted(wrong):
        print(f"docs/spine.md: {path} is {'not listed, but passed' if path in passed else 'listed, but not passed'}")
    print(f"{len(passed)} sources are passed by a step")
    return 1 if wrong else 0


def main():
    outcomes = [walk(*tour) for tour in TOURS] + [spine()]
    return 1 if 1 in outcomes else max(outcomes)


if __name__ == "__main__":
    sys.exit(main())
