#!/usr/bin/python3
"""Every public function is called by make_inert.py, which derives calls from the headers, or in test_inert_by_hand.c, or is
listed below with the reason why not.

Reads the names that carry TN_API in the public headers. Fails for a name that no test calls, and for an exception that is not
needed."""

import os
import re
import sys

import make_inert

ROOT = os.environ.get("TERN_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")

EXCEPTIONS = {
    "tn_error_exit": "ends the process; tests/core runs it in a child",
    "tn_options_refuse": "ends the process; tests/tools runs it in a child",
    "tn_print": "tn_fprint to stdout, and nothing may be printed here",
    "tn_stop_on_signals": "changes what signals do to the process; tests/train runs it in a child",
}


def without_comments(text):
    """Empties strings, too: "/tmp/*.bin" starts no comment."""
    return re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', lambda m: '""' if m[0][0] == '"' else " ", text, flags=re.S)


def declared(text):
    """The function names after TN_API: the last word before the first bracket."""
    text = without_comments(text)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
    return re.findall(r"\bTN_API\b[^;(]*?\b(tn_\w+)\s*\(", text)


def mentioned(text):
    """Called, or named in a table of functions."""
    return set(re.findall(r"\btn_\w+", without_comments(text)))


def problems(names, used, exceptions):
    out = [f"{name}: neither derived nor in test_inert_by_hand.c" for name in names if name not in used and name not in exceptions]
    out += [f"{name}: listed as an exception, but not a public function" for name in exceptions if name not in names]
    out += [f"{name}: listed as an exception, but called" for name in exceptions if name in used]
    return out


def without_zeros(found, test):
    """Options without from_defaults, and calls by hand that do not try options of zeros."""
    for kind in sorted(kind for name, (kind, _) in found.functions.items() if name.endswith("_defaults") and found.maker(kind)):
        if not found.struct(kind).rstrip().endswith("bool from_defaults;"):
            yield f"{kind}: its last member is not from_defaults"
    for name in sorted(make_inert.BY_HAND):
        if any(found.maker(kind) for kind, _ in found.functions[name][1]) and f"(ZEROS, {name}(" not in test:
            yield f"{name}: test_inert_by_hand.c does not call it with options of zeros"


def self_test():
    header = """
        #define TN_API x
        TN_API tn_tensor *tn_one(int (*f)(int)); /* TN_API void tn_comment(int); */
        TN_API bool
        tn_two(void) TN_PRINTF(1, 2);
        static inline void tn_three(void);
    """
    assert declared(header) == ["tn_one", "tn_two"], declared(header)
    used = mentioned('tn_one("/*"); /* tn_two(1) "*/ text("tn_two(1) */");')
    assert problems(["tn_one", "tn_two"], used, {}) == ["tn_two: neither derived nor in test_inert_by_hand.c"]
    assert problems(["tn_two"], used, {"tn_two": "why"}) == []
    assert len(problems(["tn_one"], used, {"tn_one": "why", "tn_gone": "why"})) == 2


def main():
    self_test()
    names = []
    for folder in ("include/tern", "include/tern/sys"):
        for file in sorted(os.listdir(os.path.join(ROOT, folder))):
            if file.endswith(".h"):
                with open(os.path.join(ROOT, folder, file), encoding="utf-8") as header:
                    names += declared(header.read())
    used = make_inert.covered()
    with open(os.path.join(ROOT, "tests/api/test_inert_by_hand.c"), encoding="utf-8") as test:
        by_hand = test.read()
    used |= mentioned(by_hand)
    found = problems(names, used, EXCEPTIONS)
    found += without_zeros(make_inert.Headers(make_inert.texts()), by_hand)
    if len(names) < 300:
        found.append(f"only {len(names)} public functions were found: is the pattern still right?")
    print("\n".join(found) if found else f"{len(names)} public functions, {len(EXCEPTIONS)} exceptions")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
