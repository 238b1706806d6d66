#!/usr/bin/env python3
"""Breaks the code at random places, one at a time, and measures how often the tests notice.

mutate.py [--seed N] [--count N] [--seconds N] [--compare FILE] [PATH...]   PATHs are folders or files; without any, FOLDERS

A mutant differs in one line of a function: another operator, another comparison, a dropped statement, 0 for 1, one more. Which
lines are drawn depends on the seed and on the text of each line, so that unchanged code has the same mutants in another revision.
A mutant that does not compile, or to the same instructions, is replaced by the next of the draw. Once for each state of the tree,
the ordinary tests run with a library that records which of them reach which line (build/mutate/reached.json). A mutant runs those
that reach its line, the quickest and nearest first, until one fails, or hangs, or SECONDS (60) are spent.

Mutants may kill and delete: tests run in a namespace of their own, where nothing can be written but an empty /tmp and /dev/shm.
The results are also in build/mutate/SEED.json; --compare names such a file of another revision and lists what was noticed there
and is not here. Survivors are no error: they are what is measured.
"""
import argparse
import bisect
import collections
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = os.path.join(ROOT, "build", "mutate")
FOLDERS = ["ops", "autograd", "nn", "optim", "backends/cpu", "distributed", "io"]
OPTIONS = ["-Dbuildtype=debugoptimized", "-Ddebug=false", "-Doptimization=1", "-Ddebug_tensors=enabled", "-Dcuda=disabled", "-Dbench=false",
           "-Dcpu_levels=3"]  # one level, the same on each machine
LIBRARY = "libtern.so.0.1.0"
NOT_CODE = re.compile(r"/\*.*?\*/|//[^\n]*|^[ \t]*#(?:\\\n|[^\n])*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S | re.M)
MESSAGE = re.compile(r"\b(?:tn__raise|tn__fail|tn__log_|\w*refuse|\w*complain|\w*warn)\w*\(")
# What a match of the pattern becomes, by kind.
OPPOSITE = {"+": "-", "-": "+", "*": "/", "/": "*", "&": "|", "|": "&", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "++": "--", "--": "++",
            "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "0": "1", "1": "0", "0.0": "1.0",
            "1.0": "0.0", "true": "false", "false": "true"}
KINDS = [
    ("sign", re.compile(r"(?<= )[-+*/&|](?= )|(?<= )[-+*/]=(?= )|(?:\+\+|--)(?!\) \{)"), OPPOSITE.get),
    ("sign", re.compile(r"(?<=[(,=?:n] )-(?=[\w(])|(?<=\()-(?=[\w(])"), lambda text: ""),
    ("comparison", re.compile(r"(?<= )(?:[<>]=?|==|!=|&&|\|\|)(?= )"), OPPOSITE.get),
    ("comparison", re.compile(r"!(?=[\w(])"), lambda text: ""),
    ("statement", re.compile(r"(?:^|(?<=\) \{ ))(?:[*(]*\w[\w.>\[\]-]*\)?(?: [-+*/|&^%]?= [^;]*|\([^;]*\)|\+\+|--)|break|continue)(?=;(?:$| \}$))"), lambda text: ""),
    ("constant", re.compile(r"(?<![\w.])(?<![-+] )(?:[01](?:\.0)?|true|false)(?![\w.])"), OPPOSITE.get),
    ("one off", re.compile(r"(?<![\w.])(?:[2-9]|[1-9]\d+)(?![\w.])"), lambda text: str(int(text) + 1)),
    ("one off", re.compile(r" [-+] 1(?![\w.])"), lambda text: ""),
]
# The library that records: each block of code calls this, and marks its place in a file that all processes of the test share.
RECORDER = """#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
static unsigned char *map;
extern char __ehdr_start[] __attribute__((visibility("hidden")));
__attribute__((constructor(101))) static void open_map(void) {
    int fd = open(MAP, O_RDWR | O_CLOEXEC);
    void *found = fd < 0 ? MAP_FAILED : mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    map = found == MAP_FAILED ? 0 : found;
    if (fd >= 0) { close(fd); }
}
void __sanitizer_cov_trace_pc(void) {
    size_t at = (size_t)((char *)__builtin_return_address(0) - __ehdr_start);
    if (map && at < SIZE) { map[at] = 1; }
}
"""
MAP, MAP_BYTES = os.path.join(WORK, "map"), 1 << 25
# $1: the file that is to be MAP. A hostile mutant must not fill memory either.
SANDBOX = f"""mount --bind "$1" {shlex.quote(MAP)} && shift
while read -r _ point _; do case $point in /proc* | {shlex.quote(MAP)}) ;; *) mount -o remount,bind,ro "$point" 2>/dev/null ;; esac; done </proc/self/mounts
mount -t tmpfs -o size=2g none /tmp && mount -t tmpfs -o size=2g none /dev/shm || exit 99
[ ! -w {shlex.quote(WORK)} ] && [ ! -w / ] || exit 99
ulimit -v 16000000
"$@"
exit $?"""

Mutant = collections.namedtuple("Mutant", "id path line function kind old new")


def blank(match):
    return re.sub(r"[^\n]", " ", match.group())


def code_of(text):
    """The text with everything blank that is not code, or is a message."""
    text = NOT_CODE.sub(blank, text)
    for match in MESSAGE.finditer(text):
        end, depth = match.end(), 1
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = text[:match.end()] + re.sub(r"[^\n]", " ", text[match.end():end - 1]) + text[end - 1:]
    return text


def mutants_of(path, seed):
    """One of each kind for each line of a function; not tables."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = file.read()
    raw, depth, head, inside, seen = text.split("\n"), 0, "", False, collections.Counter()
    for number, line in enumerate(code_of(text).split("\n")):
        if depth == 0:
            head += line
            inside = head.endswith(") {") and not re.search(r"_samples?\(", head)  # what an operation is tested with
        elif inside and not re.match(r"\s+(?:static const|[.{])", line):
            start = len(line) - len(line.lstrip())
            found = collections.defaultdict(list)
            for kind, pattern, becomes in KINDS:
                found[kind] += [(start + m.start(), start + m.end(), becomes(m.group())) for m in pattern.finditer(line.strip())]
            function = re.search(r"(\w+)\(", head).group(1)
            for kind, places in ((kind, places) for kind, places in found.items() if places):
                what = (path, function, kind, raw[number].strip())
                seen[what] += 1
                key = hashlib.sha256(repr((seed, what, seen[what])).encode()).hexdigest()
                first, end, new = places[int(key[-6:], 16) % len(places)]
                yield Mutant(key[:16], path, number + 1, function, kind, raw[number], raw[number][:first] + new + raw[number][end:])
        depth += line.count("{") - line.count("}")
        if depth == 0 and line.endswith((";", "}")):
            head = ""


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=WORK, check=False, **options)


def must_run(command, **options):
    done = run(command, **options)
    if done.returncode != 0:
        sys.exit(shlex.join(command)[:300] + "\n" + done.stdout.decode("utf-8", "replace")[-3000:])
    return done.stdout.decode("utf-8", "replace")


def built():
    """Builds the tree; (the command that links the library, how each source of it is compiled)."""
    os.makedirs(WORK, exist_ok=True)
    if not os.path.exists(os.path.join(WORK, "build.ninja")):
        must_run(["meson", "setup", WORK, ROOT] + OPTIONS)
    if os.path.exists(os.path.join(WORK, LIBRARY)):
        os.remove(os.path.join(WORK, LIBRARY))  # it may be a mutant's
    must_run(["ninja"])
    link = []
    for word in shlex.split(must_run(["ninja", "-t", "commands", LIBRARY]).splitlines()[-1]):
        link += must_run(["ar", "t", word]).split() if word.endswith(".a") and not word.startswith("/") else [word]
    compiles = {}
    with open(os.path.join(WORK, "compile_commands.json"), encoding="utf-8") as file:
        for entry in json.load(file):
            words = shlex.split(entry["command"])
            if entry["output"] in link:
                first = words.index("-MD")
                compiles[os.path.normpath(os.path.join("build/mutate", entry["file"]))] = (
                    entry["output"], entry["file"], [word for word in words[:first] if word != "ccache"])
    return link, compiles


def link_library(link, replaced, more=()):
    must_run([replaced.get(word, word) for word in link] + list(more))


def assembly(compiles, path, text):
    """What the compiler makes of the text in place of the file's; None if it refuses."""
    _, file, command = compiles[path]
    done = subprocess.run(command + ["-w", "-iquote", os.path.dirname(file), "-S", "-x", "c", "-", "-o", "-"], cwd=WORK, check=False,
                          input=f'# 1 "{file}"\n{text}'.encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout if done.returncode == 0 else None


def failure(test, limit, mapped=MAP):
    """How the test failed, or None. Whatever it has started ends with it."""
    command = ["unshare"] + (["-Ur"] if os.getuid() else []) + ["-mpf", "--kill-child", "--mount-proc", "sh", "-c", SANDBOX, "sh", mapped]
    environment = {**os.environ, **test["env"], "TERN_OP_CHECK": "brief", "XDG_CONFIG_HOME": "/tmp", "XDG_RUNTIME_DIR": "/tmp"}
    try:
        done = run(command + test["cmd"], env=environment, timeout=limit, stdin=subprocess.DEVNULL, start_new_session=True)
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode == 99:
        sys.exit("unshare(1) cannot make a namespace in which mutants do no harm")
    wrong = re.search(r"^\s*not ok\s*\d*\s*-?\s*((?!.*# SKIP).*)", done.stdout.decode("utf-8", "replace"), re.M)
    return wrong.group(1) if wrong else None if done.returncode in (0, 77) else f"exit status {done.returncode}"


def blocks_of(library):
    """{file: {line: set of blocks}}: a block is the address behind its call of the recorder."""
    lines, block, starts, place = collections.defaultdict(lambda: collections.defaultdict(set)), None, False, None
    process = subprocess.Popen(["objdump", "-dl", "--no-show-raw-insn", library], stdout=subprocess.PIPE, encoding="utf-8", errors="replace")
    for row in process.stdout:
        found = re.match(r"(/\S+\.c):(\d+)|\s*([0-9a-f]+):\t(\w+)", row)
        if found and found.group(1):
            place = os.path.relpath(os.path.normpath(found.group(1)), ROOT), int(found.group(2))
        elif found:
            block = int(found.group(3), 16) if starts else block
            starts = "<__sanitizer_cov_trace_pc" in row
            if block and place:
                lines[place[0]][place[1]].add(block)
        elif row.endswith(">:\n"):
            block, starts = None, False
    return lines


def reached(link, compiles, folders, limit):
    """{"seconds": {test: its seconds}, "lines": {file: {line: tests}}}; made when the sources or the tests have changed."""
    digest = hashlib.sha256(repr((folders, limit)).encode())
    for name in sorted(must_run(["git", "-C", ROOT, "ls-files", "--full-name", "*.c", "*.h", "*.py", "*.build"]).split()):
        if name != "tests/mutate.py" and os.path.exists(os.path.join(ROOT, name)):
            with open(os.path.join(ROOT, name), "rb") as file:
                digest.update(name.encode() + file.read())
    kept = os.path.join(WORK, "reached.json")
    if os.path.exists(kept):
        with open(kept, encoding="utf-8") as file:
            found = json.load(file)
        if found["digest"] == digest.hexdigest():
            return found
    os.makedirs(os.path.join(WORK, "recorded"), exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        replaced = {compiles[path][0]: f"recorded/{path.replace('/', '_')}.o" for path in compiles if path.startswith(tuple(folders))}
        list(pool.map(lambda path: must_run(compiles[path][2] + ["-g", "-w", "-fsanitize-coverage=trace-pc", "-fno-optimize-sibling-calls", "-c", compiles[path][1], "-o",
                                            replaced[compiles[path][0]]]), [path for path in compiles if compiles[path][0] in replaced]))
        must_run(["cc", "-O1", "-fPIC", "-fvisibility=hidden", f'-DMAP="{MAP}"', f"-DSIZE={MAP_BYTES}", "-x", "c", "-", "-c", "-o", "recorder.o"],
                 input=RECORDER.encode())
        link_library(link, replaced, ["recorder.o"])
        blocks = blocks_of(os.path.join(WORK, LIBRARY))

        def record(test):
            own = os.path.join(WORK, "recorded", test["name"].replace("/", "_"))
            with open(own, "wb") as file:
                file.truncate(MAP_BYTES)
            start = time.time()
            wrong = failure(test, 4 * limit, own)  # recording makes kernels slow
            seconds = time.time() - start
            with open(own, "rb") as file:
                hit = {match.start() for match in re.finditer(b"\1", file.read())}
            os.remove(own)
            if wrong:
                print(f"left out: {test['name']}, which fails unchanged: {wrong}", flush=True)
            return test["name"], seconds, set() if wrong else hit

        results = list(pool.map(record, tests()))
    found = {"digest": digest.hexdigest(), "seconds": {name: round(seconds, 2) for name, seconds, _ in results}, "lines": {
        path: {line: [name for name, _, hit in results if not hit.isdisjoint(of_line)] for line, of_line in sorted(lines.items())}
        for path, lines in blocks.items()}}
    with open(kept, "w", encoding="utf-8") as file:
        json.dump(found, file)
    link_library(link, {})
    with open(kept, encoding="utf-8") as file:
        return json.load(file)


def tests():
    """The ordinary ones, as Meson knows them, but for those that read the sources."""
    with open(os.path.join(WORK, "meson-info", "intro-tests.json"), encoding="utf-8") as file:
        return [test for test in json.load(file) if not {"tern:long", "tern:device", "tern:tests"} & set(test["suite"])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--compare", metavar="FILE")
    parser.add_argument("paths", nargs="*", metavar="PATH")
    options = parser.parse_args()
    os.nice(max(0, 10 - os.nice(0)))
    link, compiles = built()
    open(MAP, "ab").close()
    found = reached(link, compiles, FOLDERS, options.seconds)
    by_name = {test["name"]: test for test in tests()}
    chosen = [path for path in compiles if any(path == p or path.startswith(p.rstrip("/") + "/") for p in options.paths or FOLDERS)]
    drawn = sorted(mutant for path in chosen for mutant in mutants_of(path, options.seed))
    print(f"{len(drawn)} places; {len(by_name)} tests", flush=True)
    results, originals, began = [], {}, time.time()
    for mutant in drawn:
        if len(results) == options.count:
            break
        with open(os.path.join(ROOT, mutant.path), encoding="utf-8") as file:
            lines = file.read().split("\n")
        if mutant.path not in originals:
            originals[mutant.path] = assembly(compiles, mutant.path, "\n".join(lines))
        lines[mutant.line - 1] = mutant.new
        start, made = time.time(), assembly(compiles, mutant.path, "\n".join(lines))
        if made in (None, originals[mutant.path]):
            continue
        must_run(["cc", "-c", "-x", "assembler", "-", "-o", "mutant.o"], input=made)
        link_library(link, {compiles[mutant.path][0]: "mutant.o"})
        reach = found["lines"].get(mutant.path, {})
        known = sorted(map(int, reach))  # a line without instructions of its own belongs to the one before
        names = reach[str(known[max(0, bisect.bisect_right(known, mutant.line) - 1)])] if known else []
        far = {name: 1 if name.split("/")[0] in mutant.path.split("/") else 4 for name in names}
        verdict, ran = "SURVIVED: no test comes here", 0
        for name in sorted(names, key=lambda name: found["seconds"][name] * far[name]):
            wrong = failure(by_name[name], 10 + max(2 * found["seconds"][name], min(10 * found["seconds"][name], options.seconds)))
            ran += 1
            if wrong:
                verdict = f"{name}: {wrong}"
                break
            verdict = f"SURVIVED {ran} of the {len(names)} tests that come here"
            if time.time() - start > options.seconds:
                break
        results.append(dict(mutant._asdict(), verdict=verdict, seconds=round(time.time() - start, 1)))
        print(f"{len(results):3d}  {mutant.path}:{mutant.line}  {mutant.kind}  {verdict}  ({time.time() - start:.0f} s)\n"
              f"       - {mutant.old.strip()}\n       + {mutant.new.strip()}", flush=True)
        with open(os.path.join(WORK, f"{options.seed}.json"), "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    link_library(link, {})
    survivors = [result for result in results if result["verdict"].startswith("SURVIVED")]
    print("\nsurvivors:" if survivors else "\nno survivor")
    for result in survivors:
        print(f"  {result['path']}:{result['line']}  {result['kind']}:  {result['old'].strip()}  ->  {result['new'].strip()}")
    print(f"{len(results) - len(survivors)} of {len(results)} noticed, in {time.time() - began:.0f} s")
    if options.compare:
        with open(options.compare, encoding="utf-8") as file:
            before = {result["id"]: result["verdict"] for result in json.load(file)}
        for result in survivors:
            if not before.get(result["id"], "SURVIVED").startswith("SURVIVED"):
                print(f"  lost: {result['path']}:{result['line']}  noticed before by {before[result['id']]}")


if __name__ == "__main__":
    main()
