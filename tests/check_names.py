#!/usr/bin/env python3
"""Names of static functions: at least two words, so that a stack trace or a flame graph can be read.

Such a name appears there alone, without its file: `run` may be anybody's, `gloo_run` and `run_node` say whose.

check_names.py [ROOT]        prints each function whose name is one word; exit status 1 when there is one
check_names.py --self-test   plants one fault of each kind in a small tree and sees each one found

Test programs are left out: a trace of theirs begins in the test that it is about.
"""
import os
import re
import sys

import planted

FOLDERS = ["include", "core", "text", "tensor", "backends", "profile", "autograd", "ops", "nn", "optim", "data", "io", "distributed", "train",
           "tools", "examples", "bench"]
# Words before a function's name: its type, and what is said about it in brackets.
FUNCTION = re.compile(r"^(?:template <[^;{}]*?>\s*|TN_PRINTF\([^()]*\)\s*|__attribute__\(\(.*?\)\)\s*)*"
                      r"(?:static|TN__INLINE)\b(?:\s+__attribute__\(\(.*?\)\)|\s+__launch_bounds__\([^()]*\)|[\w\s*&:<>,])*?"
                      r"\b(\w+)\([^;{}=]*?\)[^;{}=()]*[;{]", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def sources(root):
    for top in FOLDERS:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(files):
                if name.endswith((".c", ".h", ".cu", ".cuh", ".cc")):
                    yield os.path.relpath(os.path.join(folder, name), root)


def faults(root):
    for source in sources(root):
        with open(os.path.join(root, source), encoding="utf-8") as f:
            text = COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment.group()), f.read())
        seen = set()
        for match in FUNCTION.finditer(text):
            name = match.group(1)
            if "_" not in name and name not in seen:
                seen.add(name)
                line = text.count("\n", 0, match.start(1)) + 1
                yield f"{source}:{line}: static function {name}: one word; say what it does to what (VERB_NOUN, NOUN_VERB)"


def self_test():
    clean = {"data/log.c": "#include <stdio.h>\n\nstatic int level = 3; /* static int least(void) { */\n"
                           "static const char text[] __attribute__((aligned(8))) = \"x\";\n"
                           "static void (*sink)(const char *);\nstatic int least = sizeof(level);\n"
                           "static void write_line(void) {\n    level = getc(stdin);\n}\n"
                           "int main(void) {\n    write_line();\n}\n",
             "tests/data/test_log.c": "static void run(void) {\n}\n"}
    written = {
        "a function": "static void write(int x) {\n",
        "that is declared twice": "static void write(int x);\nstatic void write(int x) {\n",
        "on two lines": "static void write(int x,\n                  int y) {\n",
        "that gives a pointer": "static const struct line *write(void) {\n",
        "inline": "static inline int write(void) {\n",
        "with an attribute": "static __attribute__((noinline)) void write(void) {\n",
        "with an attribute in front": "__attribute__((constructor)) static void write(void) {\n",
        "with a format": "TN_PRINTF(1, 2) static void write(const char *format, ...) {\n",
        "of a kernel": "template <typename T, int N> static __global__ void __launch_bounds__(N) write(T *x) {\n",
        "with a function as argument": "static void write(void (*f)(int x)) {\n",
        "in a shared header": "TN__INLINE float write(float x) {\n",
    }
    trees = {what: {**clean, "data/log.c": clean["data/log.c"] + text + "}\n"} for what, text in written.items()}
    return planted.self_test(clean, trees, faults)


if __name__ == "__main__":
    sys.exit(planted.check(self_test, faults, lambda root, n: f"names: {n} faults in {len(list(sources(root)))} files"))
