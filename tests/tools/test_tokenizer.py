#!/usr/bin/env python3
"""`tern tokenizer`: a vocabulary from texts that `tern tokens` takes; wrong files and options."""
import gzip
import json
import os

from launch import has, holds, main, same, tern, test, write

TEXT = "the cat sat on the mat and the dog sat on the log\n" * 20


@test
def words_of_the_text_become_tokens():
    write("text.txt", TEXT)
    has(tern("tokenizer", "text.txt", "--vocab", "270", "--out", "own"), "270 tokens from %d bytes of text: own" % len(TEXT))
    vocab = json.load(open("own/tokenizer.json", encoding="utf-8"))["model"]["vocab"]
    same(len(vocab), 270)
    holds("\u0120the" in vocab and "<|endoftext|>" in vocab, vocab)
    has(tern("tokens", "text.txt", "--tokenizer", "own", "--out", "tokens"), "tokens/train_*.bin")
    holds((os.path.getsize("tokens/train_000000.bin") - 1024) / 2 < len(TEXT) / 2, "nothing was joined")


@test
def texts_of_every_kind_are_one_text():
    os.mkdir("all")
    write("all/a.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in TEXT.splitlines()[:10]))
    with gzip.open("all/b.txt.gz", "wt") as f:
        f.write(TEXT)
    has(tern("tokenizer", "all", "--vocab", "300", "--min-count", "2", "--out", "own"), "bytes of text: own")
    first = open("own/tokenizer.json", encoding="utf-8").read()
    has(tern("tokenizer", "all", "--out", "own", code=1), "tern tokenizer: own has a tokenizer already (--overwrite replaces it)")
    tern("tokenizer", "all", "--vocab", "300", "--min-count", "2", "--out", "own", "--overwrite")
    same(open("own/tokenizer.json", encoding="utf-8").read(), first)


@test
def a_text_that_would_be_replaced():
    write("text.txt", TEXT)
    tern("tokenizer", "text.txt", "--vocab", "270", "--out", "own")
    os.symlink("own", "link")
    for text in ("own/tokenizer.json", "own", "link/../own/tokenizer.json"):
        for out in ("own", "link"):
            has(tern("tokenizer", text, "--out", out, "--overwrite", code=1),
                f"tern tokenizer: the output {out} would replace {text}", "which is also an input; choose another output")
    os.link("own/tokenizer.json", "text2.txt")
    has(tern("tokenizer", "text2.txt", "--out", "own", "--overwrite", code=1), "own would replace text2.txt")
    os.remove("text2.txt")
    deep = "deep/" + "/".join(map(str, range(1, 10)))  # deep in a folder that is read
    os.makedirs(deep)
    os.rename("own/tokenizer.json", deep + "/tokenizer.json")
    has(tern("tokenizer", "deep", "--out", deep, "--overwrite", code=1), f"{deep} would replace {deep}/tokenizer.json")
    os.rename(deep + "/tokenizer.json", "own/tokenizer.json")
    os.rename("own/tokenizer.json", "text2.txt")
    tern("tokenizer", "text2.txt", "--vocab", "270", "--out", "own", "--overwrite")


@test
def what_is_wrong():
    write("text.txt", TEXT)
    write("empty.txt", "")
    for arguments, status, what in ((["--out", "own"], 64, "no text to read"), (["text.txt"], 64, "--out DIR is missing"),
                                    (["text.txt", "--out", "own", "--vocab", "200"], 64, '--vocab: "200" should be a whole number from 257 to 2147483647'),
                                    (["nowhere", "--out", "own"], 1, "tern tokenizer: nowhere: No such file"),
                                    (["empty.txt", "--out", "own"], 1, "tern tokenizer: no text in empty.txt"),
                                    (["text.txt", "--out", "text.txt"], 1, "tern tokenizer: text.txt")):
        has(tern("tokenizer", *arguments, code=status), what)
    holds(not os.path.exists("own"), "something was written")


main()
