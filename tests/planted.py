"""For the checks of the tree: their command line, and a small clean tree in which faults are planted one at a time; each must
be found."""
import os
import sys
import tempfile


def found_in(tree, faults):
    """What faults(root) finds in {path: text}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in tree.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        return list(faults(root))


def self_test(clean, planted, faults, most=1):
    """Expects nothing in the clean tree, and in each of {what: tree} one fault, or up to `most` lines about it. Returns the number
    of wrong answers."""
    wrong = 0
    for what, tree in [("nothing", clean)] + list(planted.items()):
        found = found_in(tree, faults)
        if len(found) not in (range(1, most + 1) if tree is not clean else [0]):
            print(f"planted: {what}; found: {found}")
            wrong += 1
    print(f"{len(planted)} planted faults, {wrong} wrong answers")
    return wrong


def check(self_test, faults, summary, line=str):
    """The main program of a check: --self-test, or the faults of a tree (this one unless another is named), each as a `line`,
    and summary(root, how many). Returns its exit status."""
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    found = list(faults(root))
    print("\n".join([line(fault) for fault in found] + [summary(root, len(found))]))
    return 1 if found else 0
