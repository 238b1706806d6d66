"""A tokenizer whose ids are bytes, in GPT-2's files: the texts of tests are their own tokens."""
import json
import os

END = 256  # <|endoftext|>


def letters():
    """The characters for bytes that GPT-2's files use."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def write_tokenizer(folder):
    """vocab.json and merges.txt, without a merge."""
    vocab = {letter: byte for byte, letter in letters().items()}
    vocab["<|endoftext|>"] = END
    with open(os.path.join(folder, "vocab.json"), "w", encoding="utf-8") as f:
        json.dump(vocab, f)
    with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as f:
        f.write("#version: 0.2\n")
