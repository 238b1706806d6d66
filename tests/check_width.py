#!/usr/bin/env python3
"""Lines of sources have at most 100 characters: what clang-format leaves alone (comments, tables) must keep to it, too.

check_width.py FILE...   prints each longer line; exit status 1 if there is one
"""
import sys

WIDTH = 100


def long_lines(path):
    with open(path, encoding="utf-8") as f:
        return [(i, len(line.rstrip("\n"))) for i, line in enumerate(f, 1) if len(line.rstrip("\n")) > WIDTH]


def main():
    found = [f"{path}:{i}: {width} characters, {WIDTH} are allowed" for path in sys.argv[1:] for i, width in long_lines(path)]
    if found:
        print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
