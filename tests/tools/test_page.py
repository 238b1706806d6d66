#!/usr/bin/env python3
"""docs/gpt2.md: every command of the page, in order, in one folder, on a small text and for few steps. Blocks that are headed by a
file's name are that file; those headed `sh` are commands. What is replaced to make them small must be on the page."""
import os
import re
import subprocess

from launch import TERN, TESTS, environment, holds, main, same, test, write

ROOT = os.environ.get("TERN_ROOT", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
EXAMPLES = os.environ.get("TERN_EXAMPLE_BIN", os.path.join(TESTS, "../examples"))
SMALLER = (("--vocab 2048", "--vocab 300"), ("--model mini", "--model tiny"), ("--context 128", "--context 32"), ("--steps 700", "--steps 4"),
           ("--steps 60", "--steps 2"), ("--stride 64", "--stride 16"))
BLOCK = re.compile(r"^```(\S+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def small_text():
    """The page's text: the beginning of tiny Shakespeare, or words in its place."""
    path = os.path.join(os.environ.get("TERN_DATA", "nowhere"), "tinyshakespeare.txt")
    if os.path.exists(path):
        with open(path) as f:
            return f.read(20000)
    words = "but soft what light through yonder window breaks it is the east and the sun".split()
    lines = (" ".join(words[(i * 7 + j * j) % len(words)] for j in range(9)) for i in range(400))
    return "ROMEO:\n" + "\n".join(lines) + "\n"


def smaller(command, used):
    for large, small in SMALLER:
        if large in command:
            used.add(large)
            command = command.replace(large, small)
    return command


@test
def every_command_of_the_page():
    with open(os.path.join(ROOT, "docs/gpt2.md"), encoding="utf-8") as f:
        blocks = BLOCK.findall(f.read())
    write("text.txt", small_text())
    path = os.pathsep.join([os.path.dirname(TERN), os.path.abspath(EXAMPLES), os.environ["PATH"]])
    used, ran = set(), 0
    for kind, name, body in blocks:
        if name and kind != "c":
            write(name, body)
        elif kind == "sh":
            done = subprocess.run(["bash", "-e", "-u", "-o", "pipefail", "-c", smaller(body, used)], env=environment(PATH=path, TERN_TIMEOUT=60),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
            same(done.returncode, 0, body + done.stdout.decode(errors="replace"))
            ran += 1
    holds(ran >= 8, f"only {ran} blocks of commands")
    same(used, {large for large, _ in SMALLER}, "what is made smaller must be on the page")
    for made in ("gpt/tokenizer.json", "gpt/config.json", "gpt/model.safetensors", "gpt/loss.svg", "tokens/val_000000.bin",
                 "small/tern.safetensors", "tuned/model.safetensors"):
        holds(os.path.exists(made), f"{made} was not made")


main()
