#!/usr/bin/env python3
"""Names of static functions: at least two words, so that a stack trace or a flame graph can be read.

Such a name appears there alone, without its file: `run` could be in any file; `gloo_run` and `run_node` say where they belong.

And private names (tn__...) that cross files: each is defined in one file, so that it means one thing. A type in one folder and a
function in another with the same name mislead readers and tools.

check_names.py [ROOT]        prints each function whose name is one word, and each private name with a second definition; exit
                             status 1 when there is one
check_names.py --self-test   plants one fault of each kind in a small tree and sees each one found

Tests follow both rules: a stack trace in a test names its helpers. tiny/ and exercises/ do not: there a reader has the whole program
in view, and the names are a textbook's.
"""
import os
import re
import sys

import planted

FOLDERS = ["include", "core", "text", "tensor", "backends", "profile", "autograd", "ops", "nn", "optim", "data", "io", "models", "distributed", "train",
           "tools", "examples", "bench", "tests"]
# Words before a function's name: its type, and attributes in brackets.
FUNCTION = re.compile(r"^(?:template <[^;{}]*?>\s*|TN_PRINTF\([^()]*\)\s*|__attribute__\(\(.*?\)\)\s*)*"
                      r"(?:static|TN__INLINE)\b(?:\s+__attribute__\(\(.*?\)\)|\s+__launch_bounds__\([^()]*\)|[\w\s*&:<>,])*?"
                      r"\b(\w+)\([^;{}=]*?\)[^;{}=()]*[;{]", re.MULTILINE)
# A private name where it is defined: a function's body, a type, a function's type, a macro.
PRIVATE = re.compile(r"^(?:\w[\w *]*?\b(tn__\w+)\([^;{}=]*\)\s*\{"
                     r"|(?:typedef )?(?:struct|union|enum) (tn__\w+)\s*\{"
                     r"|\} (tn__\w+);"
                     r"|typedef \w[\w *]*?\(?\*?(tn__\w+)\)?\([^;{}]*\);"
                     r"|#define (tn__\w+))", re.MULTILINE)
# A build has only one of each (-Dimages, -Ddebug_tensors), they are overloads, or one is a test's stand-in.
ALTERNATIVES = {"tn__png_decode", "tn__jpeg_decode", "tn__module_at_home", "tn__load", "tn__cuda_launched"}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def sources(root):
    for top in FOLDERS:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders.sort()
            for name in sorted(files):
                if name.endswith((".c", ".h", ".cu", ".cuh", ".cc")):
                    yield os.path.relpath(os.path.join(folder, name), root)


def without_comments(root, source):
    with open(os.path.join(root, source), encoding="utf-8") as f:
        return COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment.group()), f.read())


def one_word_faults(source, text):
    seen = set()
    for match in FUNCTION.finditer(text):
        name = match.group(1)
        if "_" not in name and name not in seen:
            seen.add(name)
            line = text.count("\n", 0, match.start(1)) + 1
            yield f"{source}:{line}: static function {name}: one word; say what it does to what (VERB_NOUN, NOUN_VERB)"


def second_definitions(texts):
    """Of private names: each that several files define."""
    places = {}
    for source, text in texts.items():
        for match in PRIVATE.finditer(text):
            name = next(filter(None, match.groups()))
            line = text.count("\n", 0, match.start(match.lastindex)) + 1
            places.setdefault(name, {}).setdefault(source, f"{source}:{line}")
    for name, files in places.items():
        where = list(files.values())
        if len(where) > 1 and name not in ALTERNATIVES:
            yield f"{where[1]}: {name} is defined in {where[0]} too: give one of them another name"


def faults(root):
    texts = {source: without_comments(root, source) for source in sources(root)}
    for source, text in texts.items():
        yield from one_word_faults(source, text)
    yield from second_definitions(texts)


def self_test():
    clean = {"data/log.c": "#include <stdio.h>\n\nstatic int level = 3; /* static int least(void) { */\n"
                           "static const char text[] __attribute__((aligned(8))) = \"x\";\n"
                           "static void (*sink)(const char *);\nstatic int least = sizeof(level);\n"
                           "static void write_line(void) {\n    level = getc(stdin);\n}\n"
                           "int main(void) {\n    write_line();\n}\n",
             "tests/data/test_log.c": "static void writes_lines(void **state) {\n}\n"}
    written = {
        "a function": "static void write(int x) {\n",
        "that is declared twice": "static void write(int x);\nstatic void write(int x) {\n",
        "on two lines": "static void write(int x,\n                  int y) {\n",
        "that returns a pointer": "static const struct line *write(void) {\n",
        "inline": "static inline int write(void) {\n",
        "with an attribute": "static __attribute__((noinline)) void write(void) {\n",
        "with an attribute in front": "__attribute__((constructor)) static void write(void) {\n",
        "with a format": "TN_PRINTF(1, 2) static void write(const char *format, ...) {\n",
        "of a kernel": "template <typename T, int N> static __global__ void __launch_bounds__(N) write(T *x) {\n",
        "with a function as argument": "static void write(void (*f)(int x)) {\n",
        "in a shared header": "TN__INLINE float write(float x) {\n",
    }
    trees = {what: {**clean, "data/log.c": clean["data/log.c"] + text + "}\n"} for what, text in written.items()}
    trees["of a test"] = {**clean, "tests/data/test_log.c": "static void writes(void **state) {\n}\n"}
    clean["data/name.h"] = ("typedef struct tn__name {\n    int at;\n} tn__name;\nint tn__count(tn__name *n);\n"
                            "/* tn__count(n) { */\n")
    clean["data/name.c"] = "int tn__count(tn__name *n) {\n    if (tn__seen(n)) {\n    }\n}\n"
    twice = {
        "a type and a function": "tn_tensor *tn__name(int x) {\n}\n",
        "two functions": "bool tn__count(const char *text,\n               int n) {\n}\n",
        "a function in a header": "static inline int tn__count(void) {\n}\n",
        "a type and a type of functions": "typedef void tn__name(int x);\n",
        "a type and a pointer to functions": "typedef void (*tn__name)(int x);\n",
        "a function and a union": "union tn__count {\n",
        "a type without a tag": "typedef enum {\n    A\n} tn__count;\n",
        "a macro": "#define tn__count(n) 1\n",
    }
    trees = {what: {**clean, **tree} for what, tree in trees.items()}
    trees.update({what: {**clean, "ops/other.c": text} for what, text in twice.items()})
    return planted.self_test(clean, trees, faults)


if __name__ == "__main__":
    sys.exit(planted.check(self_test, faults, lambda root, n: f"names: {n} faults in {len(list(sources(root)))} files"))
