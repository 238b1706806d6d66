#!/usr/bin/env python3
"""The short tour is true: a debugger that runs docs/tour.gdb stops at its stops, in one turn of the loop.

docs/tour_short.md has a heading "## N. …" for each stop, and below it `file.c`: `function`. docs/tour.gdb must break at the
same functions, and gdb must reach them in the same order, in these files, while examples/02_line runs. Exit status 77, with
the reason, where there is no gdb, or it may not trace, or the example was not built.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.environ.get("TERN_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
EXAMPLES = os.environ.get("TERN_EXAMPLE_BIN") or os.path.join(ROOT, "build/test/examples")
MOST = 8
END = "tn_optim_zero_grad"  # the last call of a turn of the loop: all stops are in one turn


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def stops_of_page():
    """[(file, function)], in the order of the headings."""
    parts = re.split(r"^## \d+\..*$", read("docs/tour_short.md"), flags=re.M)[1:]
    return [re.search(r"`([\w/]+\.c)`: `(\w+)`", part).groups() for part in parts]


def stops_of_gdb(script, program, count):
    """Where gdb has stopped, as it reports it: [(function, file)], the end of the turn last; and all it said."""
    with tempfile.NamedTemporaryFile("w", suffix=".gdb") as longer:
        longer.write(re.sub(r"^run$", f"break {END}\nrun", script, flags=re.M))
        longer.flush()
        command = ["gdb", "-nx", "-batch", "-x", longer.name] + ["-ex", "continue"] * count + [program]
        environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=0", DEBUGINFOD_URLS="")
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
                              env=environment, cwd=ROOT)
    text = done.stdout + done.stderr
    reached = re.findall(r"^(?:Thread .* hit )?Breakpoint \d+, (?:0x\w+ in )?(\w+) \(.*?\)\s+(?:at (\S+?):\d+)?", text, re.M | re.S)
    return reached, text


def main():
    page = stops_of_page()
    script = read("docs/tour.gdb")
    breaks = re.findall(r"^break (\w+)$", script, re.M)
    if not 0 < len(page) <= MOST or breaks != [name for _, name in page]:
        print(f"docs/tour_short.md stops at {page}\ndocs/tour.gdb at {breaks}")
        return 1
    if not shutil.which("gdb"):
        print("SKIPPED: there is no gdb here, so nobody has walked the tour")
        return 77
    program = os.path.join(EXAMPLES, "02_line")
    if not os.path.exists(program):
        print(f"SKIPPED: there is no {program}: built without examples")
        return 77
    reached, text = stops_of_gdb(script, program, len(page))
    if "ptrace" in text or "not trace" in text:
        print("SKIPPED: gdb may not trace a program here\n" + text)
        return 77
    wrong = [(stop, at) for stop, at in zip(page, reached) if at[1] and os.path.basename(at[1]) not in (os.path.basename(stop[0]), "op.h")]
    if [name for name, _ in reached] != breaks + [END] or wrong:
        print(f"gdb has stopped at {reached}\ndocs/tour_short.md says {page}, then {END}\n\n{text}")
        return 1
    print(f"{len(page)} stops, in the order of docs/tour_short.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
