#!/usr/bin/env python3
"""`tern tokens`: what it writes, compared with a few lines of Python; on one rank and several; SQuAD's shape; Parquet; progress,
errors, kill -9; tiny Shakespeare."""
import array
import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
# pylint: disable=wrong-import-position
from byte_tokenizer import END, write_tokenizer
from launch import (TERN, Skip, Terminal, environment, errors, finish, free_port, has, holds, main, need, pids_of, run, same, start, tern,
                    test, until, write)


def tokens(*args, **options):
    return tern("tokens", *args, **options)


def make(*args, **options):
    """With a tokenizer whose ids are bytes."""
    if not os.path.exists("vocab.json"):
        write_tokenizer(".")
    return tokens(*args, "--tokenizer", ".", **options)


def shard(path):
    """The header and the tokens of one file."""
    with open(path, "rb") as f:
        data = f.read()
    head = array.array("i", data[:1024])
    same(sys.byteorder, "little")
    items = array.array("H" if head[0] == 20240520 else "I", data[1024:])
    same(head[2], len(items), path)
    return head, items.tolist()


def split(folder, name):
    """The tokens of all files of a split together."""
    files = sorted(f for f in os.listdir(folder) if f.startswith(name + "_"))
    same(files, ["%s_%06d.bin" % (name, i) for i in range(len(files))])
    return sum((shard(os.path.join(folder, f))[1] for f in files), [])


def documents(ids):
    """The texts, each after an END."""
    texts = "".join(chr(i) for i in ids).split(chr(END))
    same(texts[0], "")
    return [text.encode("latin-1") for text in texts[1:]]


def write_lines(path, texts, key="text"):
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8") as f:
        for text in texts:
            f.write(json.dumps({"id": [1, {"x": None}], key: text}, ensure_ascii=random.random() < 0.5) + "\n")


def words(n, rng):
    return " ".join(rng.choice(["to", "be", "or", "not", "é", "文", "\n", "😀", "\"", "<|endoftext|>"]) for _ in range(n))


def contents(folder):
    """All files by name."""
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as f:
            found[name] = f.read()
    return found


@test
def as_python_would():
    """JSON lines, plain, gzip and zstd, and plain text in a folder: the documents, in order, in shards of llm.c's format"""
    rng, expected = random.Random(1), []
    need("zstd")
    os.makedirs("in/sub")
    for name in "a.jsonl", "b.jsonl.gz", "sub/c.json":
        texts = [words(rng.randrange(60), rng) for _ in range(200)]
        write_lines("in/" + name, texts)
        expected += texts
    write("in/sub/d.txt", b"\xef\xbb\xbf" + b"plain \xff text\n" * 5000)
    expected.append(b"plain \xff text\n" * 5000)
    subprocess.run(["zstd", "-q", "--rm", "in/a.jsonl", "-o", "in/a.jsonl.zst"], check=True)
    write("in/.hidden", b"\0")
    text = make("in", "--out", "out", "--shard-bytes", 20000)
    has(text, "601 documents", "out/train_*.bin", "texts contain the special token's text")
    expected = [t if isinstance(t, bytes) else t.encode() for t in expected]
    same(documents(split("out", "train")), expected)
    head, items = shard("out/train_000000.bin")
    same(list(head[:4]), [20240520, 1, len(items), 0])
    holds(19000 < len(items) < 20500, len(items))  # each text counts 4 bytes more than it has, of which one is the end
    with open("out/tokens.json", encoding="utf-8") as f:
        about = json.load(f)
    same((about["finished"], about["vocab"], about["eot"], about["documents"]), (True, 257, END, 601))
    same(about["tokens"], about["train"]["tokens"])
    same(about["bytes"], sum(len(t) for t in expected))


@test
def validation():
    """each document is in one of the two splits; --val-docs takes the first; the same for any number of threads"""
    rng = random.Random(2)
    texts = ["%d %s" % (i, words(rng.randrange(30), rng)) for i in range(1000)]
    write_lines("a.jsonl", texts)
    for threads in 1, 2, 7:
        make("a.jsonl", "--out", f"out{threads}", "--val", 0.05, "--threads", threads)
        same(contents(f"out{threads}"), contents("out1"))
    train, val = documents(split("out1", "train")), documents(split("out1", "val"))
    same((len(train), len(val)), (950, 50))
    same(sorted(train + val), sorted(t.encode() for t in texts))
    make("a.jsonl", "--out", "first", "--val-docs", 7)
    same(documents(split("first", "val")), [t.encode() for t in texts[:7]])
    text = make("a.jsonl", "--out", "none", "--val", 0.0001)
    has(text, "nothing is left for validation")


@test
def split_and_key():
    """--split cuts a plain text into documents; --key names another text; --eot another end"""
    write("a.txt", "one\n\n two\ntwo \n\n\n\nthree\n")
    make("a.txt", "--out", "out", "--split", r"\n\n")
    same(documents(split("out", "train")), [b"one", b"two\ntwo", b"three"])
    write_lines("b.jsonl", ["x"], key="content")
    make("b.jsonl", "--out", "out2", "--key", "content", "--eot", "<|endoftext|>")
    same(documents(split("out2", "train")), [b"x"])
    has(make("b.jsonl", "--out", "out3", code=1), "b.jsonl: line 1: there is no \"text\" in it, but \"id\", \"content\"")


@test
def wrong_command_lines():
    """missing and wrong options are named, with status 64; errors with status 1 name the file, and nothing of the program"""
    write_lines("a.jsonl", ["x"])
    for part, args in [("no text to read", ["--tokenizer", ".", "--out", "o"]), ("--tokenizer PATH is missing", ["a.jsonl", "--out", "o"]),
                       ("--out DIR is missing", ["a.jsonl", "--tokenizer", "."]),
                       ('--val: "1" should be a fraction, at least 0 and below 1', ["a.jsonl", "--tokenizer", ".", "--out", "o", "--val", "1"]),
                       ("are alternatives", ["a.jsonl", "--tokenizer", ".", "--out", "o", "--val", ".1", "--val-docs", "1"]),
                       ("whole number", ["a.jsonl", "--tokenizer", ".", "--out", "o", "--shard-bytes", "0"])]:
        has(tokens(*args, code=64), part)
    has(tokens("--help"), "IN... --tokenizer PATH --out DIR", "<|endoftext|>")
    same(tokens("a.jsonl", "--tokenizer", "nowhere", "--out", "o", code=1)[:28], "tern tokens: nowhere: No suc")
    same(make("nowhere", "--out", "o", code=1), "tern tokens: nowhere: No such file or directory\n")
    write("b.jsonl", b'{"text": "x"}\n{"text": "\xff"}\n')
    same(make("b.jsonl", "--out", "o", code=1), "tern tokens: b.jsonl: line 2: not UTF-8, at byte 11\n")
    holds(not os.path.exists("o/train_000000.bin"))
    open("empty.txt", "wb").close()
    same(make("empty.txt", "--out", "o", code=1), "tern tokens: there is no document in 1 file\n")
    write("c.txt", b"PAR1" + bytes(100))
    same(make("c.txt", "--out", "o", code=1),
         "tern tokens: c.txt is a Parquet file; expected text (also .gz or .zst)\n")


@test
def folders():
    """a folder that has tokens is refused, and replaced with --overwrite"""
    write_lines("a.jsonl", ["one"])
    make("a.jsonl", "--out", "out")
    before = contents("out")
    same(make("a.jsonl", "--out", "out", code=1), "tern tokens: out has tokens already (--overwrite replaces them)\n")
    same(contents("out"), before)
    write_lines("a.jsonl", ["two"])
    make("a.jsonl", "--out", "out", "--overwrite")
    same(documents(split("out", "train")), [b"two"])


@test
def a_text_that_would_be_replaced():
    """an input that has the name of a shard or of tokens.json in the folder that is written"""
    os.mkdir("out")
    for name in ("train_000000.bin", "val_000123.bin", "tokens.json"):
        write(os.path.join("out", name), "It was the best of times.\n" * 20)
        os.symlink(os.path.join("out", name), "link.txt")
        for text in (os.path.join("out", name), os.path.join(".", "out", "..", "out", name), "link.txt", "out"):
            has(make(text, "--out", "out", "--overwrite", code=1), "tern tokens: the output out would replace %s" % text, "which is also an input")
        os.remove("link.txt")
        has(open(os.path.join("out", name)).read(), "best of times")
        os.remove(os.path.join("out", name))


@test
def damaged():
    """compressed data that break off are an error that names the file, at any place"""
    write_lines("whole.jsonl.gz", [words(2000, random.Random(i)) for i in range(50)])
    size = os.path.getsize("whole.jsonl.gz")
    with open("whole.jsonl.gz", "rb") as f:
        whole = f.read()
    for keep in 0, 1, 10, size // 2, size - 8, size - 1:
        write("cut.jsonl.gz", whole[:keep])
        has(make("cut.jsonl.gz", "--out", "out", code=1), "tern tokens: cut.jsonl.gz ")


def large(path, size):
    """A text of `size` bytes."""
    with open(path, "w", encoding="utf-8") as f:
        line = words(3000, random.Random(5)).replace("<|endoftext|>", "end") + "\n"
        while f.tell() < size:
            f.write(line)


def inputs():
    """Documents and one long text, with which a run has several batches."""
    write_tokenizer(".")
    os.mkdir("in")
    rng = random.Random(6)
    write_lines("in/a.jsonl", ["%d %s" % (i, words(rng.randrange(40), rng)) for i in range(9000)])
    large("in/b.txt", 1 << 20)
    return ["in", "--tokenizer", ".", "--val", "0.1", "--shard-bytes", "100000"]


FAST = {"TERN_TIMEOUT": 20, "OMP_NUM_THREADS": 1, "TERN_TOKEN": "secret"}


def on_ranks(ranks, *args, **more):
    return run("-n", ranks, TERN, "tokens", *args, env=environment(**FAST), **more)


@test
def ranks():
    """the bytes of one process, from any number of ranks and threads; and from ranks of two launchers, as on two hosts"""
    options = inputs()
    tokens(*options, "--out", "one")
    for ranks, threads in (1, 2), (2, 1), (3, 2):
        out = f"out{ranks}"
        done = on_ranks(ranks, *options, "--out", out, "--threads", threads)
        same(done.stdout.count(b"9001 documents"), 1)
        holds(contents(out) == contents("one"), "other bytes")
    job = ["-n", 2, "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--grace", 1]
    nodes = [start(*job, TERN, "tokens", *options, "--out", "hosts", env=environment(**FAST)) for _ in range(2)]
    for node in nodes:
        finish(node, 0)
    holds(contents("hosts") == contents("one"), "other bytes")
    pairs = ["p.jsonl", "--pairs", "--tokenizer", ".", "--val", "0.3", "--shard-bytes", "20000"]
    with open("p.jsonl", "w", encoding="utf-8") as f:
        for i in range(9000):
            f.write(json.dumps({"prompt": "p" * (i % 7), "completion": "%d" % i}) + "\n")
    one = tokens(*pairs, "--out", "pairs1")
    done = on_ranks(3, *pairs, "--out", "pairs3")
    has(done.stdout, *one.replace("pairs1", "pairs3").splitlines())
    holds(contents("pairs3") == contents("pairs1"), "other bytes")


@test
def other_texts():
    """a rank that reads other texts, or writes elsewhere, is named, and nothing is finished"""
    options = inputs()
    for name, words_of in ("texts.sh", "in$RANK/a.jsonl %s --out out"), ("folders.sh", "in/a.jsonl %s --out out$RANK"):
        write(name, "mkdir -p out$RANK; exec %s tokens %s\n" % (TERN, words_of % " ".join(options[1:])))
    shutil.copytree("in", "in0")
    shutil.copytree("in", "in1")
    done = run("-n", 2, "sh", "texts.sh", env=environment(**FAST), code=1)
    has(done.stderr, "rank 1 has texts of other names, sizes or times, other options or another tokenizer than rank 0")
    done = run("-n", 2, "sh", "folders.sh", env=environment(**FAST), code=1)
    has(done.stderr, "out0/train_000001.bin is missing: rank 1 wrote it into another folder")
    for folder in "out", "out0":
        with open(folder + "/tokens.json", encoding="utf-8") as f:
            same(json.load(f)["finished"], False)


@test
def killed_ranks():
    """kill -9 of each rank in turn: it is named, and the command again, on other ranks, keeps the whole shards"""
    options = inputs()
    large("in/c.txt", 6 << 20)
    tokens(*options, "--out", "one")
    for victim, again in (0, 2), (1, 1), (2, 3):
        out = f"out{victim}"
        p = start("-n", 3, TERN, "tokens", *options, "--out", out, env=environment(**FAST))
        until(lambda: os.path.exists(f"{out}/train_000002.bin"), "some shards are there")
        os.kill(pids_of(TERN, p)[victim], signal.SIGKILL)
        finish(p, 128 + signal.SIGKILL)
        has(errors(p), f"rank {victim} (host", "was killed by SIGKILL")
        done = on_ranks(again, *options, "--out", out)
        holds(re.search(rb" [1-9]\d* shards? of an interrupted run kept", done.stdout), done.stdout)
        holds(contents(out) == contents("one"), "other bytes")


SQUAD = {"version": "1.1", "data": [
    {"title": "Rivers", "paragraphs": [
        {"context": "The Oder is long.", "qas": [
            {"id": "1", "question": "Which is?", "answers": [{"text": "The Oder", "answer_start": 0}]},
            {"id": "2", "question": "How is it?", "answers": [{"text": "long", "answer_start": 12}, {"text": "is long", "answer_start": 9}]}]},
        {"context": "Nobody asks.", "qas": []}]},
    {"title": "Hills", "paragraphs": [
        {"context": "A hill.", "qas": [{"id": "3", "question": "Whose?", "answers": [], "is_impossible": True}]}]}]}


@test
def squad():
    """the commands of docs/data.md for SQuAD's own file, on one line and on many, compressed too"""
    with open("one.json", "w", encoding="utf-8") as f:
        json.dump(SQUAD, f)
    with gzip.open("many.json.gz", "wt", encoding="utf-8") as f:
        json.dump(SQUAD, f, indent=4)
    for name in "one.json", "many.json.gz":
        out = name.split(".", maxsplit=1)[0]
        make(name, "--key", "data[].paragraphs[].qas[].question", "--out", out + "-questions")
        same(documents(split(out + "-questions", "train")), [b"Which is?", b"How is it?", b"Whose?"])
        text = make(name, "--pairs", "--prompt", r"{data[].paragraphs[].context}\n{data[].paragraphs[].qas[].question}\n",
                    "--completion", "data[].paragraphs[].qas[].answers[0].text", "--out", out)
        has(text, "2 pairs")
        with open(out + "/train_000000.bin", "rb") as f:
            head, items = array.array("i", f.read(1024)), array.array("I", f.read())[:-4]  # two ends follow
        same(head[2], len(items))
        unlearned = 1 << 31
        written = bytes(i & 255 for i in items if i & ~unlearned != END)
        has(written, "The Oder is long.\nWhich is?\nThe OderThe Oder is long.\nHow is it?\nlong")
        learned = bytes(i for i in items if i < END)
        has(learned, "The Oderlong")
    for args, part in [(["--key", "data[].x"], "one.json: line 1: there is no \"x\" in data[0], but \"title\", \"paragraphs\""),
                       (["--key", "data[.x"], "\"data[.x\": .name, [] or [number] should be here, at byte 5"),
                       (["--pairs", "--prompt", "data[].title", "--completion", "other[].x"], "go through different lists")]:
        has(make("one.json", "--out", "wrong", *args, code=1), "tern tokens: " + part if part[0] != "g" else part)
    has(make("one.json", "--out", "wrong", "--prompt", "x", code=64), "--prompt and --completion are for --pairs")


@test
def parquet():
    """the command of docs/data.md that converts a Parquet file"""
    python = os.environ.get("TERN_PYPI_PYTHON") or sys.executable
    if subprocess.run([python, "-c", "import pyarrow.parquet"], capture_output=True, check=False).returncode != 0:
        raise Skip("there is no pyarrow")
    table = "import pyarrow, pyarrow.parquet as p; p.write_table(pyarrow.table({'text': ['one', 'zwölf\\n', ''], 'n': [1, 2, 3]}), 'a.parquet')"
    subprocess.run([python, "-c", table], check=True)
    has(make("a.parquet", "--out", "out", code=1), "a.parquet is a Parquet file")
    page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "data.md")
    with open(page, encoding="utf-8") as f:
        script = f.read().split("```python\n")[1].split("```")[0]
    write("to_jsonl.py", script)
    with open("a.jsonl", "wb") as f:
        subprocess.run([python, "to_jsonl.py", "a.parquet", "text"], stdout=f, check=True)
    make("a.jsonl", "--out", "out")
    same(documents(split("out", "train")), [b"one", "zwölf\n".encode(), b""])


@test
def progress():
    """on a terminal one line is redrawn again and again, and gone at the end"""
    write_tokenizer(".")
    large("a.txt", 30 << 20)
    t = Terminal(TERN, "tokens", "a.txt", "--tokenizer", ".", "--out", "out", stdout=subprocess.PIPE)
    out = t.p.stdout.read()
    seen = t.finish(0)
    t.p.stdout.close()
    has(out, "1 document, ")
    if seen:  # the machine may be too fast for a line
        has(seen, "\r", " % ", "MB/s", "tokens")
        holds(b"\n" not in seen and seen.endswith(b"\r\x1b[K"), seen)


@test
def shakespeare():
    """tiny Shakespeare with GPT-2's tokenizer: the tokens that nanoGPT and llm.c count"""
    data = os.environ.get("TERN_DATA") or "/nonexistent"
    text, gpt2 = os.path.join(data, "tinyshakespeare.txt"), os.path.join(data, "gpt2")
    if not os.path.exists(text) or not os.path.exists(gpt2):
        raise Skip("TERN_DATA has no tinyshakespeare.txt and gpt2/")
    tokens(text, "--tokenizer", gpt2, "--out", "out")
    ids = split("out", "train")
    same((len(ids), ids[:6]), (1 + 338025, [50256, 5962, 22307, 25, 198, 8421]))  # "First Citizen:\nBefore"
    tokens(text, "--tokenizer", gpt2, "--out", "val", "--val", "0.1", "--split", r"\n\n")
    val, train = split("val", "val"), split("val", "train")
    same(val.count(50256) + train.count(50256), 7222)  # speeches
    holds(0.08 < len(val) / (len(val) + len(train)) < 0.12)


main()
