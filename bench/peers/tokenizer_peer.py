"""Encodes or decodes a text: tokenizer_peer.py PEER FOLDER TEXT PATTERN [decode], as ../tokenizer.c does."""
import json
import os
import sys

import serve

PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def with_tokenizers(folder, pattern):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    if os.path.exists(f"{folder}/tokenizer.json"):
        there = Tokenizer.from_file(f"{folder}/tokenizer.json")
    else:
        there = Tokenizer(models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt"))
        there.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        there.decoder = decoders.ByteLevel()
    there.encode_special_tokens = True  # as text like any other, which is what the others do
    return lambda text: there.encode(text).ids, lambda ids: there.decode(ids, skip_special_tokens=False)


def with_tiktoken(folder, pattern):
    import tiktoken

    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = iter(range(0x100, 0x200))
    byte_of = {chr(b if b in printable else next(others)): b for b in range(256)}
    path = f"{folder}/tokenizer.json"
    with open(path if os.path.exists(path) else f"{folder}/vocab.json", encoding="utf-8") as f:
        vocab = json.load(f)
    vocab = vocab["model"]["vocab"] if "model" in vocab and isinstance(vocab["model"], dict) else vocab
    ranks = {bytes(map(byte_of.get, text)): id for text, id in vocab.items() if text != "<|endoftext|>"}
    there = tiktoken.Encoding("peer", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})
    return there.encode_ordinary, there.decode


def main():
    peer, folder, path, pattern = sys.argv[1:5]
    encode, decode = {"tokenizers": with_tokenizers, "tiktoken": with_tiktoken}[peer](folder, pattern)
    with open(path, encoding="utf-8", newline="") as f:
        text = f.read()
    if len(sys.argv) > 5:
        ids = encode(text)
        serve.serve(lambda: len(decode(ids).encode()))
    else:
        serve.serve(lambda: len(encode(text)))


main()
