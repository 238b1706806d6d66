#!/usr/bin/env python3
"""The documents: what they name must exist, what they quote must be in the source, what they show must compile.

check_docs.py [ROOT]        prints each fault; exit status 1 when there is one
check_docs.py --self-test   plants one fault of each kind in a small tree and sees each one found

Rules, for every .md file of the project
  - a link or picture leads to a file that exists
  - `path/file.c`, `folder/`, `test_*.c` in backticks exist: from the root, from the document's folder, or below include/; a
    bare `file.c` anywhere below the document's folder. A file named in a heading is one that the page makes.
  - `autograd/engine.c`: `run_hooks`, `run_node` after a file and a colon: names that this file defines
  - `tn_name`, `some_name` in backticks occur in a source; so does every tn_ name in a block of C. The first column of a table
    that is headed PyTorch or Elsewhere has names of other libraries.
  - ```c path/file.c                           a quotation: each line is in that file (a line with only … skips lines)
  - ```c with #include                         a whole file: it compiles; one with a main sees the public headers alone
  - `./run VERB`, `--option`, `-Doption=` and `TERN_VARIABLE` are known to `run`, to a program, to meson_options.txt
  - <!-- printed by folder/script.py arguments -->   what follows, up to an empty line, is the output of that script;
                                             not compared where it exits with 77, since what it runs is not built
  - what a row of docs/coverage.md names (functions, options, examples) occurs in the tests that the row names
  - the table of docs/errors.md that is headed Warning quotes each warning of tn__log_loud once, and no other
  - the files in the tables of docs/spine.md have at most 10,500 lines together
  - folder READMEs have at most 30 lines, and every folder of sources has one; docs/tour.md has at most 200, the short one 80, that of ranks
    150, that of a mesh 120; docs/tiny.md 150, the page of an exercise 40
And in comments of sources: folder/file.c exists.
"""
import fnmatch
import glob
import os
import re
import subprocess
import sys

import planted

LAYERS = ["core", "text", "tensor", "backends", "profile", "autograd", "ops", "nn", "optim", "data", "io", "distributed", "train"]
FOLDERS = LAYERS + ["models", "tools", "include", "examples", "bench", "tests", "docs", "tiny", "exercises"]
ENDINGS = r"(?:c|h|md|py|sh|svg|build|txt|yml)"
PATH = re.compile(rf"^[\w.*/-]+\.{ENDINGS}$|^[\w.*-]+(?:/[\w.*-]+)*/$")
NAME = re.compile(r"^[A-Za-z_]\w*(?:\(\))?$")
STANDS_FOR = {"tn_noun_verb", "tn__x", "_op"}  # patterns of names, not names
PLACEHOLDER = re.compile(r"(?<![A-Z])(?!README|CONTRIBUTING)[A-Z]{4,}")
BEYOND = ("build/", "train.c", "/")  # made by a build, the reader's own program, the root directory
LONGEST = {"docs/tour.md": 200, "docs/tour_short.md": 80, "docs/tour_ranks.md": 150, "docs/tour_mesh.md": 120,
           "docs/debugging.md": 120, "docs/tiny.md": 150, "docs/course.md": 160, "CONTRIBUTING.md": 120}
SPINE, SPINE_LINES, COVERAGE = "docs/spine.md", 10500, "docs/coverage.md"
ERRORS = "docs/errors.md"


class Tree:
    """The files below a root, read once."""

    def __init__(self, root):
        self.root = root
        self.files = []
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(f for f in folders if not f.startswith((".", "build", "__pycache__")))
            self.files += [os.path.relpath(os.path.join(folder, f), root) for f in sorted(files)]
        self.texts = {}
        code = [f for f in self.files if not f.endswith("check_docs.py") and f.endswith((".c", ".h", ".py", ".sh", ".build"))]
        code += [f for f in self.files if f in ("run", "meson_options.txt")]
        self.words = set(re.findall(r"\w+", "\n".join(self.read(f) for f in code)))
        self.public = set()
        self.programs = {os.path.basename(f)[:-2]: f for f in self.files if f.startswith(("tests/", "examples/")) and f.endswith(".c")}
        for f in self.files:
            if f.startswith("include/"):
                self.public |= set(re.findall(r"\w+", self.read(f)))

    def read(self, path):
        if path not in self.texts:
            with open(os.path.join(self.root, path), encoding="utf-8") as f:
                self.texts[path] = f.read()
        return self.texts[path]

    def find(self, name, document):
        """The path from the root of a file or folder that `document` calls `name`; None if there is none."""
        for base in (os.path.dirname(document), "", "include"):
            path = os.path.normpath(os.path.join(base, name))
            if glob.glob(os.path.join(self.root, path)):
                return path
        folder = os.path.dirname(document) + "/"
        below = [f for f in self.files if "/" not in name and f.startswith(folder) and fnmatch.fnmatch(os.path.basename(f), name)]
        return below[0] if below and folder != "/" else None


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)


def defines(tree, path, name):
    """Whether a file defines a function, type, macro or variable of this name (a header: declares one)."""
    text = without_comments(tree.read(path))
    n = re.escape(name)
    if not path.endswith((".c", ".h")):
        return re.search(rf"\b{n}\b", text) is not None
    if path.endswith(".h"):
        return re.search(rf"\b{n}\b", text) is not None
    return any(re.search(pattern, text, re.MULTILINE) for pattern in (
        rf"^\w[^;=#\n]*\b{n}\([^;]*?\)\s*{{",            # a function with its body
        rf"^[ \t]*#[ \t]*define[ \t]+{n}\b",
        rf"^(?:typedef[ \t]+)?(?:struct|enum|union)[ \t]+{n}\b[^;]*{{",
        rf"^}}[ \t]*{n};",
        rf"^\w[^(){{}}\n]*\b{n}\b(?:\[[^\]]*\])*[ \t]*(?:=|;)"))  # a variable


def blocks_and_prose(text):
    """The fenced blocks as (line, info, body), and the text with blocks blanked, line for line."""
    blocks, prose, inside = [], [], None
    for number, line in enumerate(text.split("\n"), 1):
        fence = re.match(r"^ {0,3}```(.*)$", line)
        if fence and inside is None:
            inside = (number, fence.group(1).strip(), [])
        elif fence:
            blocks.append((inside[0], inside[1], "\n".join(inside[2])))
            inside = None
        elif inside is not None:
            inside[2].append(line)
        prose.append("" if fence or inside is not None or line.startswith("    ") else line)
    if inside is not None:
        blocks.append((inside[0], inside[1], "\n".join(inside[2])))
    return blocks, "\n".join(prose)


# ---- One document ---------------------------------------------------------------------------------------------------


def links(tree, document, prose):
    for match in re.finditer(r"\]\(([^)\s]+)\)", prose):
        target = match.group(1)
        if "://" in target or target.startswith("#"):
            continue
        path = os.path.normpath(os.path.join(os.path.dirname(document), target.split("#")[0]))
        if not os.path.exists(os.path.join(tree.root, path)):
            yield match.start(), f"the link leads to {target}, which does not exist"


def run_verbs(tree):
    return set(re.findall(r"^\./run (\w+)", tree.read("run"), re.MULTILINE)) if "run" in tree.files else set()


def command(tree, text):
    """What is wrong with a command or an option in backticks; None if nothing is."""
    verb = re.match(r"^(?:\./)run (\w+)", text)
    if verb and verb.group(1) not in run_verbs(tree):
        return f"./run has no verb {verb.group(1)}"
    for option in re.findall(r"(?<!\S)--([a-z][\w-]*)", text):
        if option != "help" and not any(re.search(rf'["\-]{re.escape(option)}["\s|)=\'\]]', tree.read(f)) for f in tree.files
                                        if f.endswith((".c", ".py", ".sbatch")) or f == "run"):
            return f"no program knows the option --{option}"
    for option in re.findall(r"(?<!\S)-D([a-z]\w*)=", text):
        known = tree.read("meson_options.txt") if "meson_options.txt" in tree.files else ""
        if f"'{option}'" not in known and option not in ("buildtype", "prefix", "werror") and not option.startswith("b_"):
            return f"meson_options.txt has no {option}"
    for variable in re.findall(r"\bTERN_[A-Z]+\b", text):
        if variable not in tree.words:
            return f"nothing reads {variable}"
    return None


def in_backticks(tree, document, prose):
    for match in re.finditer(r"`([^`\n]+)`", prose):
        text, at = match.group(1), match.start()
        if PATH.match(text):
            made = re.search(rf"^#.*`{re.escape(text)}`", prose, re.MULTILINE)
            if not made and not text.startswith(BEYOND) and not PLACEHOLDER.search(text) and not tree.find(text, document):
                yield at, f"`{text}` does not exist"
        elif NAME.match(text):
            name = text.rstrip("()")
            if ("_" in name or text.endswith("()")) and name not in tree.words | STANDS_FOR:
                yield at, f"`{text}` is in no source"
        else:
            for name in re.findall(r"\b(?:tn_|TN_)\w+", text):
                if name not in tree.words and not re.search(rf"\b{name}\*", text):
                    yield at, f"{name} in `{text}` is in no source"
        fault = command(tree, text)
        if fault:
            yield at, fault


def stops(tree, document, prose):
    """`file.c`: `name`, `name` and `name`"""
    for match in re.finditer(r"`([\w./-]+\.[ch])`:((?:(?:,| and|, then)?\s+`\w+(?:\(\))?`)+)", prose):
        path = tree.find(match.group(1), document)
        for name in re.findall(r"`(\w+)", match.group(2)):
            if path and not defines(tree, path, name):
                yield match.start(), f"`{match.group(1)}` does not define `{name}`"


def squeezed(line):
    return re.sub(r"\s+", " ", line).strip()


def quotation(tree, document, source, body):
    path = tree.find(source, document)
    if not path or not os.path.isfile(os.path.join(tree.root, path)):
        return f"quotes {source}, which does not exist"
    there = {squeezed(line) for line in tree.read(path).split("\n")}
    for line in body.split("\n"):
        if squeezed(line) not in there and squeezed(line) not in ("", "…", "/* … */"):
            return f"quotes {source}, where this line is not: {squeezed(line)}"
    return None


def compiles(tree, body, document):
    """The compiler's first error. Constants that another block of the page adds are known."""
    others = set(re.findall(r"\bTN_[A-Z0-9_]+", tree.read(document).replace(body, ""))) - tree.words
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c", "-Iinclude"]
    command += [] if re.search(r"\bmain\(", body) else ["-I."]
    command += [f"-D{name}=0" for name in sorted(others)]
    done = subprocess.run(command + ["-"], input=body, cwd=tree.root, text=True, capture_output=True, check=False)
    return None if done.returncode == 0 else "does not compile: " + next((line for line in done.stderr.split("\n") if "error:" in line), done.stderr)


def code_blocks(tree, document, blocks):
    for line, info, body in blocks:
        language, _, source = info.partition(" ")
        if language != "c":
            for text in re.findall(r"^(?:\$ )?(\./run .*|meson .*)$", body, re.MULTILINE):
                fault = command(tree, text.split("#")[0])
                if fault:
                    yield line, fault
            continue
        unknown = set(re.findall(r"\b(?:tn_|TN_)\w+", without_comments(body))) - tree.words
        for name in sorted(unknown if "#include" not in body else ()): # the compiler checks the names in a whole file
            yield line, f"the block names {name}, which is in no source"
        if source:
            fault = quotation(tree, document, source, body)
        else:
            fault = compiles(tree, body, document) if "#include" in body else None
        if fault:
            yield line, "the block " + fault


def without_foreign(prose):
    """The text with the column of other libraries' names in its tables blanked, character for character."""
    foreign, lines = False, []
    for line in prose.split("\n"):
        foreign = line.startswith("|") and (foreign or line.startswith(("| PyTorch |", "| Elsewhere |")))
        cell = re.match(r"\|[^|]*", line).group() if foreign else ""
        lines.append(" " * len(cell) + line[len(cell):])
    return "\n".join(lines)


def printed(tree, text):
    """Tables that a script computes."""
    for match in re.finditer(r"^<!-- printed by (\S+\.py)((?: \S+)*) -->\n((?:.+\n)*)", text, re.MULTILINE):
        script, arguments, shown = match.groups()
        done = subprocess.run([sys.executable, script, *arguments.split()], cwd=tree.root, text=True, capture_output=True, check=False)
        if done.returncode == 77:
            continue
        if done.returncode != 0:
            yield match.start(), f"{script}{arguments} fails: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}"
        elif done.stdout != shown:
            yield match.start(), f"{script}{arguments} now prints something else"


def spine(tree, prose):
    """The lines of the files in the first column of its tables."""
    rows = re.findall(r"^\| (`[^|]+`) \|", prose, re.MULTILINE)
    paths = [tree.find(name, "") for row in rows for name in re.findall(r"`([\w./-]+)`", row)]
    lines = sum(tree.read(path).count("\n") for path in paths if path)
    if not paths or lines > SPINE_LINES:
        yield 1, f"the spine is {len(paths)} files of {lines} lines; at most {SPINE_LINES} lines"


def reached(tree, test):
    """A test's text, with that of the headers it includes and of the programs that it starts by name."""
    texts, more = {}, [test]
    while more:
        path = more.pop()
        if path in texts:
            continue
        texts[path] = tree.read(path)
        if path.endswith(".py"):
            more += [tree.programs[word] for word in set(re.findall(r"\w+", texts[path])) if word in tree.programs]
        for name in re.findall(r'#include "([^"]+)"', texts[path]):
            more += [f for f in (name, os.path.join(os.path.dirname(path), name)) if f.startswith("tests/") and f in tree.files]
    return "\n".join(texts.values())


def rows(tree, _, prose):
    """What a row of docs/coverage.md names here is in the tests that it names."""
    for match in re.finditer(r"^\| .* \| (.*) \| (.*`tests/.*) \|$", prose, re.MULTILINE):
        here, tests = match.groups()
        text = "\n".join(reached(tree, path) for path in re.findall(r"`(tests/[\w/]+\.\w+)`", tests) if path in tree.files)
        for name in re.findall(r"\b(?:tn|TN)_\w+|--[a-z][\w-]+|(?<=examples/)\w+(?=\.c)", " ".join(re.findall("`([^`]*)`", here))):
            if not re.search(rf"(?<![\w-]){name}(?![a-z0-9-])", text):
                yield match.start(1), f"none of the row's tests has {name}"


def loud_warnings(tree, prose):
    """The quotes in the table of warnings, beside the messages of the code; … stands for anything."""
    table = re.search(r"^\| Warning \|.*\n((?:\|.*\n)*)", prose, re.MULTILINE)
    quotes = re.findall(r'^\| "([^"]+)" \|', table.group(1) if table else "", re.MULTILINE)
    messages = []
    for source in tree.files:
        for call in re.findall(r'\btn__log_loud\(((?:\s|PRI\w+|"(?:[^"\\]|\\.)*")+)', tree.read(source) if source.endswith(".c") else ""):
            messages.append("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', call)))
    found = {quote: [m for m in messages if re.search(".*".join(map(re.escape, quote.split("…"))), m)] for quote in quotes}
    for quote, those in found.items():
        if len(those) != 1:
            yield 1, f'"{quote}" is in {len(those)} warnings of the code'
    for message in messages:
        if not any(message in those for those in found.values()):
            yield 1, f'the table of warnings has nothing of "{message}"'


def document_faults(tree, document):
    text = tree.read(document)
    blocks, prose = blocks_and_prose(text)
    prose = without_foreign(prose)
    for rule in (links, in_backticks, stops) + ((rows,) if document == COVERAGE else ()):
        for at, fault in rule(tree, document, prose):
            yield prose.count("\n", 0, at) + 1, fault
    for at, fault in printed(tree, text):
        yield text.count("\n", 0, at) + 1, fault
    yield from code_blocks(tree, document, blocks)
    if document == SPINE:
        yield from spine(tree, prose)
    if document == ERRORS:
        yield from loud_warnings(tree, prose)
    folder = os.path.dirname(document)
    page = 30 if os.path.basename(document) == "README.md" and folder else 40 if folder == "exercises" else None
    most = LONGEST.get(document, page)
    if most and text.count("\n") > most:
        yield most, f"{text.count(chr(10))} lines; at most {most}"


# ---- All of it --------------------------------------------------------------------------------------------------------


def comment_faults(tree, source):
    text = tree.read(source)
    for comment in re.finditer(r"/\*.*?\*/", text, re.DOTALL):
        for match in re.finditer(rf"(?<![\w/<.])(?:{'|'.join(FOLDERS)})/[\w./-]*\w\.(?:c|h|md|py|sh)\b", comment.group()):
            if not tree.find(match.group(), source):
                line = text.count("\n", 0, comment.start() + match.start()) + 1
                yield line, f"the comment names {match.group()}, which does not exist"


def faults(root):
    tree = Tree(root)
    for path in tree.files:
        found = ()
        if path.endswith(".md"):
            found = document_faults(tree, path)
        elif path.endswith((".c", ".h")):
            found = comment_faults(tree, path)
        for line, fault in found:
            yield f"{path}:{line}: {fault}"
    for folder in LAYERS + ["examples", "tests", "bench"]:
        if any(f.startswith(folder + "/") for f in tree.files) and folder + "/README.md" not in tree.files:
            yield f"{folder}/: no README.md"


# ---- Self-test --------------------------------------------------------------------------------------------------------

CLEAN = {
    "README.md": "`./run test` and `core/error.c`; [the tour](docs/tour.md), `core/`, `tn_raise`, `docs/*.md`, `--steps`, "
                 "`-Dfuzz=true`, `TERN_LOG`\n| PyTorch | Tern |\n|---|---|\n| `no_such_thing` | `limit` (`raise_v()`) |\n"
                 "```c\n#include <tern/core.h>\nint main(void) {\n    return tn_raise(0);\n}\n```\n",
    "docs/tour.md": "`core/error.c`: `raise_v`, `tn_raise` and `limit`.\n"
                    "```c core/error.c\n    return raise_v(status);\n…\n}\n```\n\n"
                    "<!-- printed by docs/table.py 2 -->\n| 2 | 4 |\n\nEnd.\n",
    "docs/table.py": "import sys\nn = int(sys.argv[1])\nprint(f'| {n} | {n * n} |')\n",
    "docs/coverage.md": "| there | here | test |\n|---|---|---|\n| x | `tn_raise`, `--steps` | `tests/test_x.py` |\n",
    "tests/test_x.py": "run('program_x', '--steps')\n",
    "tests/program_x.c": '#include "x.h"\n',
    "tests/x.h": "int x(void) { return tn_raise(1); }\n",
    "tests/README.md": "x\n",
    "docs/spine.md": "| file |\n|---|\n| `core/error.c` | raising |\n",
    "docs/errors.md": '| Warning | said |\n|---|---|\n| "no … scope" | once |\n',
    "core/README.md": "`error.c`: `raise_v()`\n",
    "core/error.c": "/* See docs/tour.md. */\n#include <tern/core.h>\nstatic int limit = 3;\n"
                    "static int raise_v(int status) {\n    return status + limit;\n}\n"
                    "int tn_raise(int status) {\n    return raise_v(status);\n}\n"
                    'void warn(int n) {\n    tn__log_loud("step %" PRId64\n    " has no good "\n    "scope", n);\n}\n'
                    'const char *const names[] = {"steps", "TERN_LOG"};\n',
    "include/tern/core.h": "int tn_raise(int status);\n",
    "run": "./run test\n",
    "meson_options.txt": "option('fuzz')\n",
}
PLANTED = {  # what, where, and what is replaced by what
    "a name in our column that does not exist": ("README.md", "(`raise_v()`)", "(`raise_w()`)"),
    "a file that does not exist": ("README.md", "core/error.c", "core/errors.c"),
    "a folder that does not exist": ("README.md", "`core/`", "`cores/`"),
    "a pattern without files": ("README.md", "docs/*.md", "docs/*.txt"),
    "a link to nothing": ("README.md", "](docs/tour.md)", "](docs/walk.md)"),
    "a function that does not exist": ("README.md", "`tn_raise`", "`tn_rise`"),
    "a verb that does not exist": ("README.md", "./run test", "./run tests"),
    "an option that does not exist": ("README.md", "--steps", "--stops"),
    "a build option that does not exist": ("README.md", "-Dfuzz", "-Dfuzzy"),
    "a variable that nothing reads": ("README.md", "TERN_LOG", "TERN_LOGS"),
    "a program that does not compile": ("README.md", "tn_raise(0)", "tn_raise(0, 1)"),
    "a program with an undefined name": ("README.md", "return tn_raise(0);", "return TN_NONE;"),
    "a name that another file defines": ("docs/tour.md", "and `limit`", "and `main`"),
    "a name in a comment only": ("core/error.c", "static int limit = 3;\n", "int lim; /* limit */\n"),
    "a name that is called, not defined": ("docs/tour.md", "`raise_v`, `tn_raise`", "`tn_raise`, `status`"),
    "a stop in a folder's README": ("core/README.md", "raise_v()", "raise_w()"),
    "a line that is not in the source": ("docs/tour.md", "return raise_v(status);", "return raise_v(0);"),
    "a table that is out of date": ("docs/tour.md", "| 4 |", "| 5 |"),
    "a table that its script has changed": ("docs/table.py", "n * n", "n ** 3"),
    "a script that fails": ("docs/table.py", "import sys", "import nothing"),
    "a quotation of nothing": ("docs/tour.md", "```c core/error.c", "```c core/scope.c"),
    "a comment that points at nothing": ("core/error.c", "docs/tour.md", "docs/walk.md"),
    "a warning that the table has not": ("docs/errors.md", '| "no … scope" | once |\n', ""),
    "a warning that is gone": ("core/error.c", "tn__log_loud", "tn_log_write"),
    "a long README": ("core/README.md", "\n", "\n" * 31),
    "a row whose tests do not have it": ("tests/x.h", "tn_raise(1)", "0"),
    "a row whose tests do not give the option": ("tests/test_x.py", "--steps", "steps"),
    "a spine that has grown": ("core/error.c", "limit = 3;\n", "limit = 3;\n" + "\n" * 10500),
    "a spine of nothing": ("docs/spine.md", "`core/error.c`", "core"),
    "a long tour": ("docs/tour.md", "`limit`.\n", "`limit`.\n" + "\n" * 200),
}


def self_test():
    trees = {"no README": {path: text for path, text in CLEAN.items() if path != "core/README.md"}}
    for what, (path, old, new) in PLANTED.items():
        assert old in CLEAN[path], what
        trees[what] = {**CLEAN, path: CLEAN[path].replace(old, new, 1)}
    return planted.self_test(CLEAN, trees, faults, most=2)  # a name may be in no source and in no file


if __name__ == "__main__":
    sys.exit(planted.check(self_test, faults, lambda root, n: f"documents: {n} faults"))
