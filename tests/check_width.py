#!/usr/bin/env python3
"""Lines of sources have at most 100 characters, or what the .clang-format of their folder allows: what clang-format leaves alone
(comments, tables) must keep to it, too.

check_width.py FILE...   prints each longer line; exit status 1 if there is one
"""
import os
import re
import sys

WIDTH = 100


def width_of(folder):
    style = os.path.join(folder, ".clang-format")
    if not os.path.exists(style):
        return WIDTH
    with open(style, encoding="utf-8") as f:
        limit = re.search(r"^ColumnLimit: (\d+)", f.read(), re.M)
    return int(limit[1]) if limit else WIDTH


def long_lines(path):
    most = width_of(os.path.dirname(path))
    with open(path, encoding="utf-8") as f:
        return [(i, len(line.rstrip("\n")), most) for i, line in enumerate(f, 1) if len(line.rstrip("\n")) > most]


def main():
    found = [f"{path}:{i}: {width} characters, {most} are allowed" for path in sys.argv[1:] for i, width, most in long_lines(path)]
    if found:
        print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
