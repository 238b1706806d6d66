#!/usr/bin/env python3
"""Every public function is used or told of: by another source, an example, a tool, a benchmark or a document.

check_public.py [ROOT]        prints each function that nothing but its definition and tests names; exit status 1 when there is one
check_public.py --self-test   plants one such function in a small tree and sees it found

A function that carries TN_API in include/tern/ counts as used when its name stands in a .c, .h, .cu or .md file outside tests/,
other than the file that defines it. A comment is no use, in a header neither: a header tells what is there, a document or an
example what it is for.
"""
import os
import re
import sys
import tempfile

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
            # A definition begins a line and is no call: return type, name, bracket.
            defined = set(re.findall(r"^\w[^;{}()=\n]*?[ *](tn_\w+)\(", text, flags=re.M))
            text = re.sub(r"\bTN_API\b[^;(]*?\btn_\w+\s*\(", " ", text) if header else text
        for name in set(re.findall(r"\btn_\w+", text)) - (set() if header else defined):
            uses.setdefault(name, set()).add(path)
    return sorted((path, name) for name, path in public.items() if name not in uses)


def self_test():
    tree = {"include/tern/a.h": "TN_API int tn_used(void);\nTN_API int *tn_told(int a);\n/* tn_alone */\nTN_API void tn_alone(void);\n"
                                "#define TN_M tn_macro()\nTN_API int tn_macro(void);\n",
            "core/a.c": "int tn_used(void) {\n    return 0;\n}\nint *tn_told(int a) {\n    return 0;\n}\nvoid tn_alone(void) {\n}\n"
                        "int tn_macro(void) {\n    return 1;\n}\n", "nn/a.c": "static int f(void) {\n    return tn_used();\n}\n",
            "README.md": "`tn_told`\n", "tests/test_a.c": "tn_alone();\n"}
    with tempfile.TemporaryDirectory() as root:
        for path, text in tree.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        found = unused(root)
    right = found == [("include/tern/a.h", "tn_alone")]
    print("1 planted fault, %s" % ("found" if right else f"found instead: {found}"))
    return 0 if right else 1


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    found = unused(root)
    for path, name in found:
        print(f"{path}: {name}: no source, example or document uses it")
    print(f"public functions: {len(found)} unused")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
