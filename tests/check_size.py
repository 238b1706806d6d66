#!/usr/bin/env python3
"""Counts lines of code per folder and compares them with docs/size.md, whose table says how many each may have.

check_size.py [--write]     --write: puts today's counts into the table; what a folder may have is changed by hand
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TABLE = os.path.join(ROOT, "docs", "size.md")
CODE = re.compile(r"\.(c|h|cc|cu|cuh|py|sh)$|^run$")
ROW = re.compile(r"^\| `([^`]+)` \| ([0-9]+) \| ([0-9]+) \|$", re.M)


def counts():
    """Lines of the files that git knows, by folder of the top level; a file there counts for itself."""
    found = {}
    for path in subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0"):
        if CODE.search(path) and os.path.exists(os.path.join(ROOT, path)):
            with open(os.path.join(ROOT, path), "rb") as f:
                folder = path.split("/")[0]
                found[folder] = found.get(folder, 0) + f.read().count(b"\n")
    return found


def main():
    with open(TABLE, encoding="utf-8") as f:
        text = f.read()
    found, most = counts(), {name: int(limit) for name, _, limit in ROW.findall(text)}
    if sys.argv[1:] == ["--write"]:
        with open(TABLE, "w", encoding="utf-8") as f:
            f.write(ROW.sub(lambda row: f"| `{row[1]}` | {found.get(row[1], 0)} | {row[3]} |", text))
    wrong = [f"{name} has {n} lines, and docs/size.md allows {most[name]}" if name in most else f"{name} has no row in docs/size.md"
             for name, n in sorted(found.items()) if n > most.get(name, -1)]
    wrong += [f"docs/size.md has a row for {name}, which has no code" for name in most if name not in found]
    print("\n".join(wrong + [f"size: {len(wrong)} faults, {sum(found.values())} lines"]))
    return 1 if wrong else 0


sys.exit(main())
