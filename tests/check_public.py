#!/usr/bin/env python3
"""The public functions: each is used or documented, and named by the rules of CONTRIBUTING.md.

check_public.py [ROOT]        prints each fault; exit status 1 when there is one
check_public.py --self-test   plants one fault of each kind in a small tree and sees each found

Used: its name is in a .c, .h, .cu or .md file outside tests/, other than the file that defines it. A comment does not count, not
even in a header: a header says what exists, a document or an example what it is for.

Names: an operation ends in _op if its plain name is a type's, and only then. What a program calls takes `void *m`; only what the
library calls takes a `tn_module *`. What saves or writes takes what is written first, then the path, then how.
"""
import os
import re
import sys

import planted

CODE = (".c", ".h", ".cu", ".cuh")
ELSEWHERE = ("tests/", "build", ".")  # what does not count as use


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def sources(root):
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith((".", "build", "__pycache__")))
        for name in sorted(files):
            path = os.path.relpath(os.path.join(folder, name), root)
            if path.endswith(CODE + (".md",)) and not path.startswith(ELSEWHERE):
                with open(os.path.join(root, path), encoding="utf-8") as f:
                    yield path, f.read()


def declared(text):
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", "", without_comments(text), flags=re.M)
    return re.findall(r"\bTN_API\b[^;(]*?\b(tn_\w+)\s*\(", text)


def unused(root):
    public, uses = {}, {}
    for path, text in sources(root):
        header = path.startswith("include/")
        public.update({name: path for name in declared(text)} if header else {})
        defined = set()
        if path.endswith(CODE):
            text = without_comments(text)
            # A definition begins a line and is not a call: return type, name, bracket.
            defined = set(re.findall(r"^\w[^;{}()=\n]*?[ *](tn_\w+)\(", text, flags=re.M))
            text = re.sub(r"\bTN_API\b[^;(]*?\btn_\w+\s*\(", " ", text) if header else text
        text = re.sub(r"\bTN_WITH\((tn_\w+)", r"\1_defaults", text)  # which it calls
        for name in set(re.findall(r"\btn_\w+", text)) - (set() if header else defined):
            uses.setdefault(name, set()).add(path)
    return sorted((path, name) for name, path in public.items() if name not in uses)


def misnamed(root):
    headers = [(path, without_comments(text)) for path, text in sources(root) if path.startswith("include/")]
    types = {name for _, text in headers for name in re.findall(r"^(?:typedef [^;{(]*\b|\} )(tn_\w+);", text, re.M)}
    for path, text in headers:
        for name in declared(text):
            if name in types:
                yield path, name, "is a type's name too: add _op"
            if name.endswith("_op") and name[:-3] not in types:
                yield path, name, f"no type is named {name[:-3]}: drop _op"
        for name in re.findall(r"\bTN_API\b[^;(]*?\b(tn_\w+)\([^;()]*\btn_module \*\w", text):
            yield path, name, "takes a tn_module *; what programs call takes void *m"
        for name in re.findall(r"\bTN_API\b[^;(]*?\b(tn_(?:\w*save|write)\w*)\(\s*const char \*(?:path|folder),", text):
            yield path, name, "takes the path first: first what is written, then where"


HEADER = ("typedef struct tn_line {\n    int a;\n} tn_line;\ntypedef struct tn_module tn_module;\n"
          "TN_API int tn_used(void);\nTN_API int *tn_told(int a);\nTN_API void tn_line_op(void);\n"
          "TN_API void tn_train(void *m, void (*f)(tn_module *m, int a));\n"
          "TN_API int tn_line_save(int a, const char *path);\n")
CODE_FILE = ("int tn_used(void) {\n    return 0;\n}\nint *tn_told(int a) {\n    return 0;\n}\nvoid tn_line_op(void) {\n}\n"
             "void tn_train(void *m, void (*f)(tn_module *m, int a)) {\n}\nint tn_line_save(int a, const char *path) {\n    return 0;\n}\n")
CLEAN = {"include/tern/a.h": HEADER, "core/a.c": CODE_FILE, "README.md": "`tn_told`, `tn_line_op`, `tn_line_save`\n",
         "nn/a.c": "static int f(void) {\n    tn_train();\n    return tn_used();\n}\n", "tests/test_a.c": "tn_told();\n"}
PLANTED = {  # what, where, and what is replaced by what
    "a function that nothing names": ("README.md", "`tn_told`, ", ""),
    "a function in a comment only": ("nn/a.c", "return tn_used();", "return 0; /* tn_used */"),
    "an operation named as a type": ("include/tern/a.h", "tn_line_op", "tn_line"),
    "an operation with a needless _op": ("include/tern/a.h", "int tn_used(void);", "int tn_used_op(void);"),
    "a module that asks for a cast": ("include/tern/a.h", "tn_train(void *m", "tn_train(tn_module *m"),
    "a path before what is written": ("include/tern/a.h", "tn_line_save(int a, const char *path)", "tn_line_save(const char *path, int a)"),
}


def faults(root):
    return [(path, name, "no source, example or document uses it") for path, name in unused(root)] + list(misnamed(root))


def self_test():
    trees = {}
    for what, (path, old, new) in PLANTED.items():
        assert old in CLEAN[path], what
        trees[what] = {**CLEAN, path: CLEAN[path].replace(old, new)}
    return planted.self_test(CLEAN, trees, faults, most=2)


if __name__ == "__main__":
    sys.exit(planted.check(self_test, faults, lambda root, n: f"public functions: {n} faults", ": ".join))
