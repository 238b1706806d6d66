"""What the scripts about tokenizers share: the peer (`tokenizers` of PyPI) with one of our named patterns, and our side as a
program."""
import array
import os
import struct
import subprocess
import tempfile

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SHORTENED = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
REST = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n%s]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": SHORTENED + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + REST % "",
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{SHORTENED}?|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{SHORTENED}?|"
             + REST % "/",
}
SPECIAL = "<|endoftext|>"
PROGRAM = os.path.join(os.environ.get("TERN_TEST_BIN", "build/tests"), "tokenizer_program")


def alphabet():
    """The character of each byte."""
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b if b in printable else next(others)) for b in range(256)]


def cut_by(peer, pattern):
    """Makes the peer split by our named pattern."""
    level = pre_tokenizers.ByteLevel
    if pattern == "gpt2":
        peer.pre_tokenizer = level(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated")
        peer.pre_tokenizer = pre_tokenizers.Sequence([split, level(add_prefix_space=False, use_regex=False)])
    peer.decoder = decoders.ByteLevel()
    return peer


def trained(texts, vocab, pattern, whole=False):
    """A tokenizer of the peer; its special token has id 0."""
    peer = cut_by(Tokenizer(models.BPE(ignore_merges=whole)), pattern)
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False, special_tokens=[SPECIAL],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    peer.train_from_iterator(texts, trainer)
    return peer


def put_lists(path, texts):
    with open(path, "wb") as f:
        for text in texts:
            f.write(struct.pack("<I", len(text)) + text)


def lists_of(data, size):
    at = 0
    while at < len(data):
        count, = struct.unpack_from("<I", data, at)
        yield data[at + 4:at + 4 + size * count]
        at += 4 + size * count


def run(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"tokenizer_program {' '.join(map(str, arguments))}: {done.stderr.strip()}")


def encode(path, texts, special=False, how="special"):
    """Our ids of byte strings, by the tokenizer at `path`."""
    with tempfile.TemporaryDirectory() as folder:
        put_lists(f"{folder}/in", texts)
        run("encode", path, f"{folder}/in", f"{folder}/out", *([how] if special or how == "framed" else []))
        with open(f"{folder}/out", "rb") as f:
            return [array.array("i", one).tolist() for one in lists_of(f.read(), 4)]


def decode(path, ids):
    """Our bytes of lists of ids."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/in", "wb") as f:
            for one in ids:
                f.write(struct.pack("<I", len(one)) + array.array("i", one).tobytes())
        run("decode", path, f"{folder}/in", f"{folder}/out")
        with open(f"{folder}/out", "rb") as f:
            return list(lists_of(f.read(), 1))


def train(texts, folder, vocab, pattern):
    with tempfile.TemporaryDirectory() as where:
        put_lists(f"{where}/in", texts)
        run("train", f"{where}/in", folder, vocab, pattern)


def unassigned():
    """The code points that our PCRE2's version of Unicode does not assign."""
    with tempfile.TemporaryDirectory() as folder:
        run("unassigned", f"{folder}/out")
        with open(f"{folder}/out", "rb") as f:
            return set(array.array("I", f.read()))
