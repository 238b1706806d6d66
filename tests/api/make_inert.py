#!/usr/bin/python3
"""Calls every public function that makes a tensor from tensors with senseless arguments, derived from the headers.

    make_inert.py OUT [DEPFILE]     writes OUT, C code that test_inert.c includes

For each function whose parameters are all of a kind below:

  - the first tensor absent or inert: the result is inert, and an absent one is an error
  - each other tensor absent or inert, which may be allowed: nothing crashes
  - each number, up to the extremes of its type, with valid tensors

A function with a parameter of another kind is not covered here; check_complete.py asks for it by name.
"""
import glob
import os
import re
import sys

ROOT = os.environ.get("TERN_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")

# An ordinary value of a type and, if it has strange ones, their array and its length.
NUMBERS = {
    "int": ("1", "ints", "INTS"),
    "int64_t": ("1", "longs", "LONGS"),
    "double": ("0.5", "reals", "REALS"),
    "float": ("0.5f", "reals", "REALS"),
    "tn_dims": ("TN_DIMS(1)", "strange", "STRANGE"),
    "bool": ("true", None, None),
    "tn_dtype": ("TN_F32", "dtypes", "DTYPES"),
    "tn_device": ("tn_cpu()", None, None),
    "tn_reduction": ("TN_MEAN", "reductions", "REDUCTIONS"),
    "tn_generator *": ("NULL", None, None),
    "const char *": ("NULL", None, None),
    "how many": ("2", None, None),  # the length of the list before it
}
TENSOR, LIST, OUT = "tn_tensor *", "tn_tensor *const *", "tn_tensor **"


# Their functions manage tensors or gradients, and make no tensors.
NOT_HERE = ("core.h", "autograd.h")


def headers():
    return sorted(p for p in glob.glob(os.path.join(ROOT, "include/tern/*.h")) if os.path.basename(p) not in NOT_HERE)


def without_comments(text):
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$|/\*.*?\*/", " ", text, flags=re.M | re.S)


def parameters(text):
    """The types: "tn_tensor *x, int dim" gives ["tn_tensor *", "int"]."""
    types = [re.sub(r"\b\w+$", "", p.strip()).strip() for p in " ".join(text.split()).split(",")]
    return ["how many" if i and kind == "int" and types[i - 1] == LIST else kind for i, kind in enumerate(types)]


def functions(texts):
    """(name, types) of each function from tensors to a tensor whose parameter types are all known."""
    text = without_comments("\n".join(texts))
    options = {name + "_options" for name in re.findall(r"\b(tn_\w+)_options \1_defaults\(void\)", text)}
    for name, arguments in re.findall(r"\bTN_API\s+tn_tensor \*(tn_\w+)\(([^()]*)\)", text):
        types = parameters(arguments)
        known = set(NUMBERS) | options | {TENSOR, LIST, OUT}
        if types[0] in (TENSOR, LIST) and all(t in known for t in types):
            yield name, types


def value(kind, tensor):
    """A valid argument, or `tensor` for a parameter that takes one."""
    if kind == TENSOR:
        return tensor
    if kind == LIST:
        return "(tn_tensor *[]){%s, x}" % tensor
    if kind == OUT:
        return "NULL"
    return NUMBERS[kind][0] if kind in NUMBERS else kind[:-len("_options")] + "_defaults()"


def calls(name, types):
    """C statements. t is absent or inert, x is valid, and so is o, the other tensors, in one dtype after another."""
    def call(changed, argument):
        return "%s(%s)" % (name, ", ".join(argument if i == changed else value(k, "o" if i else "x") for i, k in enumerate(types)))

    yield "INERT(%s);" % call(0, value(types[0], "t"))
    for i, kind in enumerate(types):
        if i and kind in (TENSOR, LIST):
            yield "TAKES(%s);" % call(i, value(kind, "t"))
        elif kind in NUMBERS and NUMBERS[kind][1]:
            array, count = NUMBERS[kind][1:]
            cast = "(float)" if kind == "float" else ""
            yield "for (int i = 0; i < %s; i++) {\n        TAKES(%s);\n    }" % (count, call(i, "%s%s[i]" % (cast, array)))


def program(texts):
    found = list(functions(texts))
    lines = ["/* Made by make_inert.py from the public headers. */"]
    for name, types in found:
        lines += ["static void inert_%s(tn_tensor *t, tn_tensor *x, tn_tensor *o) {" % name]
        lines += ["    " + c for c in calls(name, types)] + ["    (void)o;", "}"]
    lines += ["static void (*const derived[])(tn_tensor *t, tn_tensor *x, tn_tensor *o) = {"]
    return "\n".join(lines + ["    inert_%s," % name for name, _ in found] + ["};", ""])


def self_test():
    header = """
        TN_API tn_tensor *tn_one(tn_tensor *x, /* which */ int dim);
        TN_API tn_tensor *tn_two(tn_tensor *const *list, tn_two_options o);
        TN_API tn_two_options tn_two_defaults(void);
        TN_API tn_tensor *tn_three(tn_tensor *x, struct unknown *u);
        TN_API tn_tensor *tn_four(int n);
    """
    assert dict(functions([header])) == {"tn_one": [TENSOR, "int"], "tn_two": [LIST, "tn_two_options"]}
    assert list(calls("tn_two", [LIST, "tn_two_options"])) == ["INERT(tn_two((tn_tensor *[]){t, x}, tn_two_defaults()));"]
    assert "TAKES(tn_one(x, ints[i]))" in "".join(calls("tn_one", [TENSOR, "int"]))


def covered():
    """The names of the functions that are called, including those that make options."""
    self_test()
    return set(re.findall(r"\btn_\w+", program([open(path, encoding="utf-8").read() for path in headers()])))


def main():
    self_test()
    out = sys.argv[1]
    with open(out, "w", encoding="utf-8") as file:
        file.write(program([open(path, encoding="utf-8").read() for path in headers()]))
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write("%s: %s\n" % (out, " ".join(os.path.abspath(h).replace(" ", "\\ ") for h in headers())))


if __name__ == "__main__":
    main()
