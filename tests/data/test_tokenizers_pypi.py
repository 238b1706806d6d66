"""The same ids as from `tokenizers`, in both directions: their files here, our files there.

Only the characters on which the two sides' versions of Unicode differ are left out. PCRE2's is the older one, so each of them must be
one that it does not assign; they are found by testing both sides, character by character.
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback

ROOT = os.environ.get("TERN_ROOT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
HERE = os.path.join(ROOT, "tests/data")
sys.path[:0] = [os.path.join(ROOT, "tests/support"), HERE]
import pypi

pypi.need("tokenizers", "transformers")

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

import tokenizer_peer as peer

RANDOM = random.Random(20240817)
CLASSES = [r"\p{L}", r"\p{N}", r"\p{M}", r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\s"]
SPACES = [*range(9, 14), *range(0x1c, 0x21), 0x85, 0xa0, 0x1680, 0x180e, *range(0x2000, 0x200c), 0x2028, 0x2029, 0x202f, 0x205f,
          0x3000, 0xfeff]
DIGITS = [0x30, 0x660, 0x6f0, 0x966, 0xe50, 0xff10, 0x2160, 0x2460, 0x1d7ce, 0x10a40]
CONTRACTIONS = ["'s", "'S", "'ll", "'LL", "'lL", "'Re", "'VE", "'d", "'M", "'t", "'\u017f", "\u2019s", "don't", "I'Ve"]


def class_members(pattern):
    """The code points that the peer has in a class."""
    every = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for at in range(0, len(every), 4096):
        found.update(ord(one) for one, _ in split.pre_tokenize_str("".join(map(chr, every[at:at + 4096]))))
    return found


def characters_that_differ():
    """Those in a class of the peer that are unassigned here."""
    return set().union(*map(class_members, CLASSES)) & peer.unassigned()


def kinds_of_characters():
    pools = [range(0x20, 0x7f), range(0x80, 0x800), range(0x800, 0x3000), SPACES, range(0x300, 0x370), range(0x110000),
             [d + i for d in DIGITS for i in range(10)], b"\r\n\n /"]
    return [[c for c in pool if not 0xd800 <= c < 0xe000 and c not in DIFFERENT] for pool in pools]


def random_text(count):
    """Characters of all planes, with short and long runs of the kinds that patterns distinguish."""
    out = []
    while count > 0:
        run = "".join(map(chr, RANDOM.choices(RANDOM.choice(KINDS), k=RANDOM.randrange(1, 6))))
        out.append(run if RANDOM.random() < 0.9 else RANDOM.choice(CONTRACTIONS))
        count -= len(out[-1])
    return "".join(out)


def sources():
    names = subprocess.run(["git", "ls-files", "*.c", "*.h", "*.md", "*.py"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not names:
        names = [os.path.join(top, name) for top, _, files in os.walk(ROOT) if "build" not in top for name in files
                 if name.endswith((".c", ".h", ".md", ".py"))]
    texts = []
    for name in names:
        with open(os.path.join(ROOT, name), encoding="utf-8", newline="") as f:
            texts.append(f.read())
    return texts


def expect_same(what, texts, theirs, ours):
    for text, a, b in zip(texts, theirs, ours):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            raise AssertionError(f"{what}: id {at} of {text[:60]!r}…: {a[at:at + 5]}, here {b[at:at + 5]}")
    assert len(theirs) == len(ours)


def expect_ids(what, there, path, texts):
    theirs = [one.ids for one in there.encode_batch(texts, add_special_tokens=False)]
    ours = peer.encode(path, [text.encode() for text in texts], special=True)
    expect_same(what, texts, theirs, ours)
    assert peer.decode(path, ours) == [text.encode() for text in texts], f"{what}: decoding"


def gpt2_files():
    folder = os.path.join(os.environ["TERN_DATA"], "gpt2")
    there = peer.cut_by(Tokenizer(models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt")), "gpt2")
    there.add_special_tokens([peer.SPECIAL])
    return folder, there


# ---- The tests -------------------------------------------------------------------------------------------------------

def characters_differ_only_by_version():
    """Except for the characters that are left out, the classes are the same."""
    assert DIFFERENT < peer.unassigned()
    print(f"# {len(DIFFERENT)} characters are in a class of `tokenizers` and not assigned in PCRE2's Unicode")


def ids_of_gpt2():
    folder, there = gpt2_files()
    with open(os.path.join(os.environ["TERN_DATA"], "tinyshakespeare.txt"), encoding="utf-8", newline="") as f:
        shakespeare = f.read()
    texts = [shakespeare, "".join(SOURCES), f"a{peer.SPECIAL}b", ""]
    while sum(len(text.encode()) for text in texts[4:]) < 10_000_000:
        texts.append(random_text(200_000))
    expect_ids("gpt2", there, folder, texts)


def ids_of_trained(pattern, whole):
    there = peer.trained(SOURCES[::4], 4000, pattern, whole)
    texts = ["".join(SOURCES[1::4]), random_text(300_000)] + [random_text(15) for _ in range(20_000)]
    texts += ["x" * 5000, "ab" * 3000, " " * 3000 + "x", "\n \n" * 999, f"{peer.SPECIAL}{peer.SPECIAL[:5]}{peer.SPECIAL}"]
    with tempfile.TemporaryDirectory() as folder:
        there.save(f"{folder}/tokenizer.json")
        expect_ids(pattern, there, folder, texts)
        with open(f"{folder}/tokenizer.json", encoding="utf-8") as f:
            whole = json.load(f)
        merges = whole["model"]["merges"]
        whole["model"]["merges"] = [" ".join(one) if isinstance(one, list) else one.split(" ") for one in merges]
        with open(f"{folder}/tokenizer.json", "w", encoding="utf-8") as f:
            json.dump(whole, f)
        expect_ids(pattern + " with merges in their other form", there, folder, texts[2:])


def other_cuts():
    """Several pre-tokenizers in sequence, and the space that RoBERTa puts in front."""
    level, digits = pre_tokenizers.ByteLevel, pre_tokenizers.Digits
    split = pre_tokenizers.Split("e", "isolated")
    texts = ["".join(SOURCES[1::16]), random_text(50_000)] + [random_text(15) for _ in range(2000)]
    for cuts in [[digits(True), split, level(add_prefix_space=False)], [digits(False), level(add_prefix_space=False)]]:
        there = peer.trained(SOURCES[::16], 2000, "gpt2")
        there.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        with tempfile.TemporaryDirectory() as folder:
            there.save(f"{folder}/tokenizer.json")
            expect_ids("several cuts", there, folder, texts)
    there.pre_tokenizer = level(add_prefix_space=True)
    texts += [f"{peer.SPECIAL}a", f" a{peer.SPECIAL}", ""]
    with tempfile.TemporaryDirectory() as folder:
        there.save(f"{folder}/tokenizer.json")
        theirs = [there.encode(text).ids for text in texts]
        expect_same("a space in front", texts, theirs, peer.encode(folder, [text.encode() for text in texts], special=True))


def meanings_of_patterns():
    """Random patterns: here they are refused, or they cut as there. Every pair of bytes is a token, so that cuts show."""
    atoms = [*"abstfAS'01 .-_&+$^}中、éß", *(r"\n \r \t \v \s \S \d \D \p{L} \p{Lu} \P{L} \p{N} \p{Han} \p{^Han} \p{Katakana} "
             r"\x41 \x{4e2d} \. \- \R \A \z \Z \é \' \< \_ \{ \/ \a \w \b \h \Q \1 \xe4 (?i)").split()]
    members = [*"abstfAS'01 .-_&+中éßſ{(|*", *r"\n \s \S \d \v \p{L} \P{N} \p{Han} a-f A-Z \- \] \x41-\x{5a} 一-龥 &&".split()]
    repeats = "* + ? *? +? ?? *+ ++ ?+ {2} {1,2} {,2} {2,} {1,2}? {2}? {2}+ {0} {".split()
    groups = "(?: ( (?= (?! (?> (?<= (?<! (?i: (?m: (?-i: (?i-m: (?x: (?<n>".split()
    letters = peer.alphabet()
    characters = "abstfAS' \n\r\t01中、éſß\u2028.-_{}&\v\u0345Kk+α"
    pairs = [(letters[a], letters[b]) for a in sorted(set(characters.encode())) for b in sorted(set(characters.encode()))]
    vocab = {text: id for id, text in enumerate(letters + [a + b for a, b in pairs])}
    there = Tokenizer(models.BPE(vocab, pairs))
    pick, same = RANDOM.choice, 0

    def some(depth):
        return "|".join("".join(item(depth) for _ in range(RANDOM.randrange(1, 4))) for _ in range(pick([1, 1, 2, 3])))

    def item(depth):
        kind = RANDOM.random()
        one = (pick(atoms) if kind < 0.6 or depth == 0 else pick(groups) + some(depth - 1) + ")" if kind > 0.8 else
               f"[{pick(['', '', '^'])}{''.join(RANDOM.choices(members, k=RANDOM.randrange(1, 4)))}]")
        return one + (pick(repeats) if RANDOM.random() < 0.35 else "")

    with tempfile.TemporaryDirectory() as folder:
        while same < 100:
            pattern = some(2)
            try:
                split = pre_tokenizers.Split(Regex(pattern), "isolated")
            except Exception:
                continue
            there.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
            there.save(f"{folder}/tokenizer.json")
            texts = ["".join(RANDOM.choices(characters, k=RANDOM.randrange(30))) for _ in range(30)]
            try:
                ours = peer.encode(folder, [text.encode() for text in texts])
            except RuntimeError as error:
                assert "the pattern is not understood" in str(error), (pattern, error)
                continue
            expect_same(repr(pattern), texts, [one.ids for one in there.encode_batch(texts, add_special_tokens=False)], ours)
            same += 1


def tokens_around_a_text():
    """As transformers puts them: for Llama 3 and RoBERTa, and GPT-2, which has none."""
    there = peer.trained(SOURCES[::16], 1000, "gpt2")
    there.add_special_tokens(["<s>", "</s>"])
    begin, end = there.token_to_id("<s>"), there.token_to_id("</s>")
    level = processors.ByteLevel(trim_offsets=True)
    template = [processors.TemplateProcessing(single=single, pair="$A $B", special_tokens=[("<s>", begin), ("</s>", end)])
                for single in ["<s> $A", "<s> $A </s>", "$A </s>", "<s> <s> $A"]]
    for one in [level, *template, processors.Sequence([level, template[0]]), processors.RobertaProcessing(("</s>", end), ("<s>", begin)),
                processors.BertProcessing(("</s>", end), ("<s>", begin))]:
        there.post_processor = one
        with tempfile.TemporaryDirectory() as folder:
            there.save(f"{folder}/tokenizer.json")
            with open(f"{folder}/tokenizer_config.json", "w", encoding="utf-8") as f:
                json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}, f)
            peer.run("save", folder, f"{folder}/again")
            texts = ["", "one two", "a<s>b"]
            theirs = AutoTokenizer.from_pretrained(folder)(texts)["input_ids"]
            for path in (folder, f"{folder}/again"):
                expect_same(str(one), texts, theirs, peer.encode(path, [text.encode() for text in texts], how="framed"))


def random_bytes():
    """Characters as the peer has them alone; what is between them is a piece of its own."""
    there = peer.trained(SOURCES[::8], 4000, "gpt2")
    letters = peer.alphabet()
    texts = [RANDOM.randbytes(RANDOM.randrange(60)) for _ in range(3000)]
    for _ in range(3000):
        text = bytearray(random_text(20).encode())
        text[RANDOM.randrange(len(text))] = RANDOM.randrange(256)
        texts.append(bytes(text))
    theirs = []
    for text in texts:
        ids, run = [], ""
        for c in text.decode("utf-8", "surrogateescape") + "\0":
            stray = 0xdc80 <= ord(c) <= 0xdcff
            if run and stray != (0xdc80 <= ord(run[0]) <= 0xdcff):
                ids += ids_of_run(there, letters, run)
                run = ""
            run += c
        theirs.append(ids + ids_of_run(there, letters, run[:-1]))
    with tempfile.TemporaryDirectory() as folder:
        there.save(f"{folder}/tokenizer.json")
        ours = peer.encode(folder, texts)
        expect_same("random bytes", texts, theirs, ours)
        assert peer.decode(folder, ours) == texts


def ids_of_run(there, letters, run):
    if run and 0xdc80 <= ord(run[0]) <= 0xdcff:
        return [token.id for token in there.model.tokenize("".join(letters[ord(c) - 0xdc00] for c in run))]
    return there.encode(run).ids


def training(pattern):
    """The same merges from the same texts; what is saved opens there with the same ids."""
    there = peer.trained(SOURCES[::4], 3000, pattern)
    with tempfile.TemporaryDirectory() as folder:
        peer.train([text.encode() for text in SOURCES[::4]], folder, 3000, pattern)
        with open(f"{folder}/tokenizer.json", encoding="utf-8") as f:
            ours = json.load(f)
        theirs = json.loads(there.to_str())
        assert ours["model"]["merges"] == theirs["model"]["merges"], pattern
        size = there.get_vocab_size()
        expected = {text: id - 1 if id else size - 1 for text, id in theirs["model"]["vocab"].items()}
        expected[peer.SPECIAL] = size - 1
        assert ours["model"]["vocab"] == expected
        texts = ["".join(SOURCES[1::8]), random_text(100_000), f"x{peer.SPECIAL}"]
        expect_ids("saved, " + pattern, Tokenizer.from_file(f"{folder}/tokenizer.json"), folder, texts)
        fast = AutoTokenizer.from_pretrained(folder)
        assert [fast(text)["input_ids"] for text in texts] == peer.encode(folder, [text.encode() for text in texts], special=True)
        assert fast.eos_token_id == size - 1


def committed_table():
    """The table for tests without the peer is what the peer computes."""
    made = subprocess.run([sys.executable, os.path.join(HERE, "make_tokenizer_table.py")], capture_output=True, text=True, check=True)
    with open(os.path.join(HERE, "tokenizer_table.h"), encoding="utf-8") as f:
        assert f.read() == made.stdout


NEEDS_DATA = [ids_of_gpt2]
TESTS = [(characters_differ_only_by_version,), (ids_of_gpt2,), (random_bytes,), (other_cuts,), (committed_table,),
         (meanings_of_patterns,), (tokens_around_a_text,)]
TESTS += [(ids_of_trained, pattern, pattern != "gpt2") for pattern in peer.PATTERNS]
TESTS += [(training, pattern) for pattern in peer.PATTERNS]

SOURCES = sources()
DIFFERENT = characters_that_differ()
KINDS = kinds_of_characters()
print(f"1..{len(TESTS)}")
for number, (test, *arguments) in enumerate(TESTS, 1):
    name = " ".join([test.__name__, *map(str, arguments)])
    if test in NEEDS_DATA and not os.environ.get("TERN_DATA"):
        print(f"ok {number} - {name} # SKIP TERN_DATA, the folder with gpt2/ and tinyshakespeare.txt, is not set")
        continue
    try:
        test(*arguments)
        print(f"ok {number} - {name}", flush=True)
    except Exception:
        print("# " + traceback.format_exc().strip().replace("\n", "\n# "))
        print(f"not ok {number} - {name}", flush=True)
