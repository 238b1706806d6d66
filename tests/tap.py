#!/usr/bin/env python3
"""Between cmocka, Meson and the reader.

tap.py run PROGRAM...       runs a cmocka program and repairs its TAP: cmocka reports a skipped test as "not ok ... # SKIP",
                            which Meson would count as a failure.
tap.py count WHAT...        counts the single tests in Meson's testlog.json files, shows what failed, and ends with
                            "N passed, N failed[, N skipped]". stage:NAME is something else that failed, skipped:NAME
                            that was skipped. Exit status 1 when something failed or nothing ran.
tap.py names BUILD [PART]   the names of a build folder's tests that contain PART; exit status 1 when there is none. Meson's own
lists differ between versions.
"""
import json
import os
import re
import subprocess
import sys

RESULT = re.compile(r"^\s*(not )?ok\b\s*(\d*)\s*-?\s*(.*)$")
PLAN = re.compile(r"^\s*1\.\.(\d+)")
SKIP = re.compile(r"#\s*SKIP", re.IGNORECASE)


def short_name(name):
    """A test's name as in tests/meson.build; before it, a log has "tern:core / " or, from a newer Meson, "core - tern:"."""
    return re.split(r" / | - ", name)[-1].split(":")[-1]


def names(build, part=""):
    with open(os.path.join(build, "meson-info/intro-tests.json"), encoding="utf-8") as f:
        found = [test["name"] for test in json.load(f) if part in test["name"]]
    print("\n".join(found) if found else f"no test's name contains {part or 'anything'}", file=sys.stdout if found else sys.stderr)
    return 0 if found else 1


def run(command):
    program = subprocess.Popen(command, stdout=subprocess.PIPE)
    for raw in program.stdout:
        line = raw.decode("utf-8", "replace")
        match = RESULT.match(line)
        if match and match.group(1) and SKIP.search(line):
            line = line.replace("not ok", "ok", 1)
        sys.stdout.write(line.lstrip("\t "))
        sys.stdout.flush()
    status = program.wait()
    if status < 0:
        print(f"Bail out! killed by signal {-status}", flush=True)
        return 128 - status
    return status


def count_tap(text):
    """(passed, names of failed, skipped) of one program's output. Planned tests that never ran have failed."""
    passed, skipped, failed, planned, bailed = 0, 0, [], None, ""
    for line in text.splitlines():
        plan, match = PLAN.match(line), RESULT.match(line)
        if plan:
            planned = int(plan.group(1))
        elif line.startswith("Bail out!"):
            bailed = line[len("Bail out!"):].strip()
        elif match and SKIP.search(line):
            skipped += 1
        elif match and match.group(1):
            failed.append(match.group(3))
        elif match:
            passed += 1
    seen = passed + skipped + len(failed)
    if planned is not None and seen < planned:
        failed += [f"planned test {i + 1} did not run {bailed}".rstrip() for i in range(seen, planned)]
    return passed, failed, skipped


def count(logs):
    passed, skipped, failures = 0, 0, []
    for log in logs:
        if log.startswith("skipped:"):
            skipped += 1
            continue
        if log.startswith("stage:") or not os.path.exists(log):
            failures.append((log, log, "failed" if log.startswith("stage:") else "no tests ran"))
            continue
        for test in (json.loads(line) for line in open(log, encoding="utf-8")):
            name, before = short_name(test["name"]), len(failures)
            text = test.get("stdout") or ""
            ok, skip = test["result"] in ("OK", "EXPECTEDFAIL"), test["result"] == "SKIP"
            if any(PLAN.match(line) for line in text.splitlines()):
                good, bad, idle = count_tap(text)
                if not bad and not ok and not skip:  # every line said ok, the program did not: a leak, an exit status
                    bad = [f"{test['result'].lower()} after its last test (exit status {test.get('returncode')})"]
                passed, skipped = passed + good, skipped + idle
                failures += [(log, name, what) for what in bad]
            elif ok:
                passed += 1
            elif skip:
                skipped += 1
            else:
                failures.append((log, name, test["result"].lower()))
            if len(failures) > before:
                print(f"---- {name}")
                print("\n".join((text + (test.get("stderr") or "")).splitlines()[-60:]))
    for log, name, what in failures:
        print(f"failed: {name}: {what}" + (f"   [{log}]" if len(logs) > 1 and log != name else ""))
    print(f"{passed} passed, {len(failures)} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failures or passed == 0 else 0


if __name__ == "__main__":
    verb = {"run": run, "count": count, "names": lambda rest: names(*rest[:2])}.get(sys.argv[1] if len(sys.argv) > 2 else "")
    sys.exit(verb(sys.argv[2:]) if verb else __doc__)
