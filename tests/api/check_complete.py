#!/usr/bin/python3
"""Every public function is in one of test_inert*.c, is derived from the headers by make_inert.py, or is listed below with
the reason why not.

Reads the names that carry TN_API in the public headers. Fails for a name that no test calls, and for an exception that is not
needed."""

import glob
import os
import re
import sys

import make_inert

ROOT = os.environ.get("TERN_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")

# Functions that no bad argument can reach.
PLAIN = "takes no argument"
EXCEPTIONS = {
    "tn_error_exit": "ends the process; tests/core runs it in a child",
    "tn_options_refuse": "ends the process; tests/tools runs it in a child",
    "tn_print": "tn_fprint to stdout, and nothing may be printed here",
    "tn_stop_on_signals": "changes what signals do to the process; tests/train runs it in a child",
    "tn_stop_asked": PLAIN,
    "tn_stop_status": PLAIN,
    "tn_in_backward": PLAIN,
    "tn_in_recompute": PLAIN,
    "tn_default_generator": PLAIN,
    "tn_memory_reset_peak": PLAIN,
    "tn_memory_trim": PLAIN,
    "tn_build_info": PLAIN,
    "tn_grad_mode": PLAIN,
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
    out = [f"{name}: not in test_inert*.c" for name in names if name not in used and name not in exceptions]
    out += [f"{name}: listed as an exception, but not a public function" for name in exceptions if name not in names]
    out += [f"{name}: listed as an exception, but in test_inert*.c" for name in exceptions if name in used]
    return out


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
    assert problems(["tn_one", "tn_two"], used, {}) == ["tn_two: not in test_inert*.c"]
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
    for file in glob.glob(os.path.join(ROOT, "tests/api/*inert*.[ch]")):
        with open(file, encoding="utf-8") as test:
            used |= mentioned(test.read())
    found = problems(names, used, EXCEPTIONS)
    if len(names) < 300:
        found.append(f"only {len(names)} public functions were found: is the pattern still right?")
    print("\n".join(found) if found else f"{len(names)} public functions, {len(EXCEPTIONS)} exceptions")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
