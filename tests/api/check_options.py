#!/usr/bin/python3
"""Every public function that takes options is in test_options.c with zeroed options, and each struct of options ends with
from_defaults.

Options are what the *_defaults(void) functions of the public headers return."""
import glob
import os
import re
import sys

ROOT = os.environ.get("TERN_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
GIVES = {  # functions that fill in or read options, and do not need them from *_defaults()
    "tn_setup_finish": "ends what tn_setup_model began",
    "tn_setup_scaler": "reads one member, and takes NULL",
    "tn_setup_flops": "reads one member, and takes NULL",
}


def without_comments(text):
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$|/\*.*?\*/|//[^\n]*", " ", text, flags=re.M | re.S)


def problems(headers, test):
    headers, test = without_comments(headers), without_comments(test)
    made = dict(re.findall(r"\bTN_API (tn_\w+) (tn_\w+)_defaults\(void\)", headers))
    aliases = {new: old for old, new in re.findall(r"\btypedef (tn_\w+) (tn_\w+_options);", headers)}
    for kind in sorted(made):
        body = re.search(r"typedef struct %s \{(.*?)\} %s;" % ((aliases.get(kind, kind),) * 2), headers, re.S)
        if not body or not body[1].rstrip().endswith("bool from_defaults;"):
            yield f"{kind}: its last member is not from_defaults"
    called = set(re.findall(r"\b(tn_\w+)\(", test)) | {"tn_" + name for name in re.findall(r"\bOPTIMISER\((\w+)\)", test)}
    for name, arguments in re.findall(r"\bTN_API\b[^;(]*?\b(tn_\w+)\s*\(([^;]*?)\)\s*(?:TN_PRINTF[^;]*)?;", headers):
        takes = [kind for kind in made if re.search(r"\b%s\b" % kind, arguments)]
        if takes and name not in called and name not in GIVES:
            yield f"{name}: takes {takes[0]} and is not in test_options.c"
    for name in GIVES:
        if name not in headers:
            yield f"{name}: listed as an exception, but not a public function"


def unmade(text, kinds):
    """Initialisers of options that no *_defaults() made; {0}, to be filled or refused, does not count."""
    pattern = r"\b(%s)(?:\)|\s+\w+\s*=)\s*\{((?:[^{}]|\{[^{}]*\})*)\}" % "|".join(sorted(kinds))
    for found in re.finditer(pattern, without_comments(text)):
        members = found[2].strip()
        if members != "0" and "from_defaults" not in members and not members.endswith("true"):
            yield f"{found[1]} = {{{' '.join(found[2].split())[:60]}}}: not from its function; write TN_WITH"


def sources():
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if f != "build" and not f.startswith("."))
        for name in sorted(files):
            if name.endswith((".c", ".h", ".cc", ".cu")) and name not in ("test_options.c", "with_program.c"):
                yield os.path.join(folder, name)


def self_test():
    kinds = ["tn_one_options"]
    assert len(list(unmade("tn_one_options o = {.a = 1}; f((tn_one_options){.d = {1}})", kinds))) == 2
    assert not list(unmade("tn_one_options o = TN_WITH(tn_one, .a = 1); (tn_one_options){.from_defaults = true}", kinds))
    header = """
        typedef struct tn_one_options { int a; bool from_defaults; } tn_one_options;
        typedef tn_one_options tn_two_options;
        typedef struct tn_three_options { bool from_defaults; int a; } tn_three_options;
        TN_API tn_one_options tn_one_defaults(void);
        TN_API tn_two_options tn_two_defaults(void);
        TN_API tn_three_options tn_three_defaults(void);
        TN_API int tn_takes(int a, const tn_one_options *o);
        TN_API void tn_takes_too(tn_two_options options /* (b) */, int b);
    """ + " ".join(GIVES)
    assert list(problems(header, "tn_takes(1, &zeros)")) == [
        "tn_three_options: its last member is not from_defaults",
        "tn_takes_too: takes tn_two_options and is not in test_options.c"], list(problems(header, "tn_takes(1, &zeros)"))
    assert len(list(problems(header, "OPTIMISER(takes) OPTIMISER(takes_too)"))) == 1


def main():
    self_test()
    headers = "\n".join(open(path, encoding="utf-8").read() for path in sorted(glob.glob(os.path.join(ROOT, "include/tern/*.h"))))
    with open(os.path.join(ROOT, "tests/api/test_options.c"), encoding="utf-8") as test:
        found = list(problems(headers, test.read()))
    kinds = set(re.findall(r"\bTN_API (tn_\w+) tn_\w+_defaults\(void\)", headers))
    for path in sources():
        with open(path, encoding="utf-8") as file:
            found += [f"{os.path.relpath(path, ROOT)}: {fault}" for fault in unmade(file.read(), kinds)]
    if len(re.findall(r"_defaults\(void\)", headers)) < 60:
        found.append("fewer than 60 kinds of options were found: is the pattern still right?")
    print("\n".join(found) if found else "options: all made by *_defaults(), and all that take them are tested with zeros")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
