#!/usr/bin/env python3
"""Writes tests/data/tokenizer_table.h: ids from `tokenizers` (PyPI), for tests that run without it.

    make_tokenizer_table.py > tests/data/tokenizer_table.h

A small vocabulary is trained there on the text below; the test trains its own on the same text, so the table checks both
against it. The ids of special tokens, which come first there, are last here.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tokenizer_peer as peer

VOCAB = 400
TEXT = ("We hold these truths to be self-evident, that all men are created equal, that they are endowed by their Creator with "
        "certain unalienable Rights, that among these are Life, Liberty and the pursuit of Happiness.\n\n"
        "Don't panic: it's 42, they'll say, and WE'VE heard THAT 1234567 times.  The caf\u00e9 na\u00efve \u00fcber Stra\u00dfe.\n"
        "\u042d\u0442\u043e \u0442\u0435\u043a\u0441\u0442, \u044d\u0442\u043e \u0442\u043e\u0436\u0435 \u0442\u0435\u043a\u0441\u0442. "
        "\u4eca\u65e5\u306f\u4e16\u754c\u3001\u4eca\u65e5\u306f\u3002 \U0001f600\U0001f600 for (int i = 0; i < n; i++) { sum += x[i]; }\n")
LINES = [
    "", "the", " the truths that they hold", "They'll, they'LL, it's IT'S 'Tis 's", "It\u2019s '\u017f",
    "1 12 123 1234 12345 \u0663\u0664\u0665 \u00bd \u2167", "a  b   c\td\n\ne \n f\r\ng  ", "   ", "\n\n\n", "\u00a0\u00a0x\u3000y\u2028z",
    "caf\u00e9 cafe\u0301 e\u0301\u0302\u0303 \u0301", "\u4eca\u65e5\u306f\u4e16\u754c\u3002", "\U0001f600\U0001f600\U0001f468\u200d\U0001f469",
    "HTMLParser iPhone XMLHttpRequest", "x=1;//y\n/**/", "\u042d\u0442\u043e \u044d\u0442\u043e", "\u180e \u200b \ufeff", "\x1c \x1f \x85 \x7f\x01",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "<|endoftext|>",
]


def literal(text):
    """A C string literal, in lines that fit."""
    parts = []
    for b in text.encode():
        plain = 0x20 <= b < 0x7f and chr(b) not in '"\\?'
        parts.append(chr(b) if plain else f"\\{b:03o}")
    lines, line = [], ""
    for part in parts:
        if len(line) + len(part) > 80:
            lines.append(line)
            line = ""
        line += part
    return "\n        ".join(f'"{one}"' for one in lines + [line])


def main():
    out = ["/* Made by make_tokenizer_table.py, by which it can be made again: the ids of a text by each", " * pattern. */",
           "/* clang-format off */",
           f"enum {{ TABLE_VOCAB = {VOCAB}, TABLE_PATTERNS = {len(peer.PATTERNS)} }};",
           "#define SAME {.count = -1} /* as by the pattern before */",
           "static const char table_text[] =",
           f"        {literal(TEXT)};", "",
           f"static const char *const table_patterns[] = {{{', '.join(f'{chr(34)}{name}{chr(34)}' for name in peer.PATTERNS)}}};", "",
           "static const struct {", "    const char *text;", "    struct {", "        int count;", "        int32_t ids[80];",
           "    } by[TABLE_PATTERNS];", "} table[] = {"]
    trained = [peer.trained([TEXT], VOCAB, pattern) for pattern in peer.PATTERNS]
    for line in LINES:
        rows = []
        for there in trained:
            size = there.get_vocab_size()
            ids = [id - 1 if id else size - 1 for id in there.encode(line).ids]
            parts = [", ".join(map(str, ids[i:i + 18])) for i in range(0, len(ids), 18)]
            rows.append(f"{{{len(ids)}, {{" + ",\n        ".join(parts or ["0"]) + "}}")
        by = rows[0] + "".join(", SAME" if row == before else ",\n      " + row for before, row in zip(rows, rows[1:]))
        out += [f"    {{{literal(line)},", f"     {{{by}}}}},"]
    print("\n".join(out + ["};", "/* clang-format on */"]))


if __name__ == "__main__":
    main()
