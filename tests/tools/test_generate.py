#!/usr/bin/env python3
"""`tern generate` with a model that knows one text by heart (speaker.c): what it writes, when, and how it ends."""
import json
import os
import pty
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from launch import (LIMIT, TERN, TESTS, Terminal, complete, environment, errors, finish, has, holds, main, output, pids_of, run, same, start,
                    tern, test, until, write)

TEXT = "naïve cafés sell 🍵 and 日本茶.\nA second line."
BYTES = TEXT.encode()


def speaker(said=TEXT):
    complete(os.path.join(TESTS, "speaker"), "model", said)


def generate(*arguments, **options):
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    return complete(TERN, "generate", *arguments, **options)


def says(wanted, *arguments, **options):
    done = generate("--model", "model", *arguments, **options)
    same(done.stdout.decode(), wanted, done.stderr)
    return done.stderr.decode()


def fails(status, part, *arguments, **options):
    done = generate(*arguments, code=status, **options)
    has(done.stderr, part)
    holds(b"generate.c" not in done.stderr, done.stderr)
    return done


@test
def prompts():
    """what follows a prompt, to the end of the text or for so many tokens; with the prompt if asked"""
    speaker()
    same(says(TEXT[2:] + "\n", "--prompt", "na"), "")
    says(TEXT[2:] + "\n", "-m", "model", "-p", "xy", "--temperature", "0")
    says("ïve\n", "--prompt", "na", "--tokens", "4")
    says("naïve\n", "--prompt", "na", "--tokens", "4", "--echo")
    says(TEXT[1:] + "\n", "--prompt", "")  # starts from <|endoftext|>
    says("ïve caf\n", "--prompt", "na", "--stop", "és")
    says("ïve\n", "--prompt", "na", "--stop", "sell", "--stop", " ")
    for dtype in ("f32", "bf16", "int8"):
        says("ïve\n", "--prompt", "na", "--tokens", "4", "--dtype", dtype, "--threads", "1")
    said = says("ï\n---\nï\n---\nï\n", "--prompt", "na", "--tokens", "2", "--samples", "3", "--stats")
    has(said, "prompts: 6 tokens", "answers: 6 tokens", "tokens/s")
    rest = len(BYTES) - 2
    text = generate("--model", "model", "--prompt", "na", "--ignore-eos", "--tokens", str(rest + 2)).stdout.decode()
    same(text, TEXT[2:] + "<|endoftext|>" * 2 + "\n")


@test
def other_draws():
    """the same seed gives the same text, on any number of threads; another seed, sample or line does not"""
    speaker()
    hot = ["--model", "model", "--temperature", "50", "--tokens", "20"]
    texts = [generate(*hot, "--prompt", "na", *more).stdout for more in ([], ["--threads", "1"], ["--seed", "1337"], ["--seed", "1"])]
    holds(texts[0] == texts[1] == texts[2] != texts[3], texts)
    first, second = generate(*hot, "--prompt", "na", "--samples", "2").stdout.split(b"---\n")
    holds(first == texts[0] and second != first, (first, second))
    lines = generate(*hot, "--stop", "\n", input=b"na\nna\n").stdout.split(b"\n")
    holds(lines[0] != lines[1], lines)
    cool = [generate(*hot, "--prompt", "na", *more).stdout.decode() for more in (["--top-k", "1"], ["--top-p", "0"])]
    same(cool, [BYTES[2:22].decode(errors="replace") + "\n"] * 2)
    far = generate("--model", "model", "--prompt", "na", "--tokens", "20", "--repetition-penalty", "1000").stdout
    holds(far != cool[0].encode(), far)


@test
def lines():
    """each line is a prompt, answered in order; also one without a newline, and an empty one"""
    speaker()
    says("ïve\n" * 2 + "ve c\n" + "aïv\n", "--tokens", "4", input="na\nxx\nabcd\n\n".encode())
    says("ïve\n", "--tokens", "4", input=b"na")
    says("", input=b"")


@test
def one_line_at_a_time():
    """a program can read each answer before it sends the next prompt"""
    speaker()
    with subprocess.Popen([TERN, "generate", "--model", "model", "--tokens", "4"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env=environment()) as p:
        for ask, answer in ((b"na\n", "ïve\n"), (b"abcd\n", "ve c\n")):
            p.stdin.write(ask)
            p.stdin.flush()
            same(p.stdout.readline().decode(), answer)
        p.stdin.close()
        same(p.wait(LIMIT), 0)


@test
def a_model_that_is_cut_short():
    """once the model is loaded its files do not matter; before that they are an error"""
    speaker()
    tern("convert", "model", "plain", "--plain")
    for folder, weights in (("model", "model.safetensors"), ("plain", "tern.safetensors")):
        weights = os.path.join(folder, weights)
        with subprocess.Popen([TERN, "generate", "--model", folder, "--tokenizer", "model", "--tokens", "4", "--threads", "1"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as p:
            for ask in (b"na\n", b"na\n"):
                p.stdin.write(ask)
                p.stdin.flush()
                same(p.stdout.readline().decode(), "ïve\n")
                os.truncate(weights, 100)  # it waits for the next line
            p.stdin.close()
            same(p.wait(LIMIT), 0)
        fails(1, weights, "--model", folder, "--tokenizer", "model", "--prompt", "na")


def on_terminal(*arguments):
    """The single writes."""
    t = Terminal(TERN, "generate", "--model", "model", *arguments, stdin=subprocess.DEVNULL)
    t.finish(0)
    return t.pieces


@test
def whole_characters():
    """each write holds whole characters, though each token is one byte; a terminal gets no commands"""
    speaker()
    pieces = on_terminal("--prompt", "na")
    for piece in pieces:
        piece.decode()  # raises inside a character
    same(b"".join(pieces).decode(), TEXT[2:] + "\n")
    subprocess.run(["rm", "-r", "model"], check=True)
    speaker("ab\x1b]0;title\x07cd\x1b[2Je\rf\tg\nh")
    pieces = b"".join(on_terminal("--prompt", "a"))
    holds(b"\x1b" not in pieces and b"\x07" not in pieces and b"\r" not in pieces and pieces.endswith(b"\tg\nh\n"), pieces)
    raw = generate("--model", "model", "--prompt", "a").stdout  # a pipe gets all of it
    same(raw, b"b\x1b]0;title\x07cd\x1b[2Je\rf\tg\nh\n")


@test
def a_terminal_asks():
    """at a terminal it asks for a prompt; Ctrl-D ends it, and so does Ctrl-C"""
    speaker()
    for end, status in ((b"\x04", 0), (b"\x03", -signal.SIGINT)):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(TERN, [TERN, "generate", "--model", "model", "--tokens", "4"], environment())
        got = b""

        def wait_for(part):
            nonlocal got
            began = time.monotonic()
            while part not in got:
                holds(time.monotonic() < began + LIMIT, got)
                got += os.read(terminal, 4096)
            got = got[got.index(part) + len(part):]

        wait_for(b"> ")
        os.write(terminal, b"na\n")
        wait_for("ïve\r\n> ".encode())
        os.write(terminal, end)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(terminal)
        same(code, status)


@test
def interrupted():
    """Ctrl-C ends the text where it is, with a newline, and the status shows it; no error is printed"""
    speaker("x" * 3000)
    with subprocess.Popen([TERN, "generate", "--model", "model", "--prompt", "x", "--tokens", "1000000", "--ignore-eos"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment()) as p:
        same(p.stdout.read(1), b"x")
        p.send_signal(signal.SIGINT)
        rest, errors = p.communicate(timeout=LIMIT)
        same(p.returncode, 130, errors)
        same(errors, b"")
        holds(rest.endswith(b"\n"), rest[-20:])


@test
def broken_pipes():
    """a reader that goes away ends it at once, and a full disk is an error"""
    speaker("x" * 3000)
    endless = [TERN, "generate", "--model", "model", "--prompt", "x", "--tokens", "1000000", "--ignore-eos"]
    p = subprocess.Popen(endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment(),
                         restore_signals=True)
    same(p.stdout.read(1), b"x")
    p.stdout.close()
    same(p.wait(LIMIT), -signal.SIGPIPE, p.stderr.read())
    p.stderr.close()
    with open("/dev/full", "wb") as full:
        done = subprocess.run(endless, stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=environment(), check=False,
                              timeout=LIMIT)
    same(done.returncode, 1)
    has(done.stderr, "tern: stdout: ")


@test
def ends_of_texts():
    """eos_token_id of the model's files ends a text, a number or a list of them; a wrong one is an error"""
    speaker()
    space, config = ord(" "), json.load(open("model/config.json", encoding="utf-8"))

    def describe(name, value):
        write("model/" + name, json.dumps(value))

    describe("generation_config.json", {"eos_token_id": [space, 5000000], "bos_token_id": None})
    says("ïve\n", "--prompt", "na")
    describe("generation_config.json", {"eos_token_id": ord("v")})
    says("ï\n", "--prompt", "na")
    describe("generation_config.json", {"bos_token_id": ord("n")})  # an empty prompt alone begins with it
    says("ïve\n", "--prompt", "na", "--tokens", "4")
    says("aïve\n", "--prompt", "", "--tokens", "5")
    describe("generation_config.json", {"eos_token_id": "x"})
    fails(1, 'model/generation_config.json: "eos_token_id" is "x" but must be', "--model", "model", "--prompt", "na")
    write("model/generation_config.json", "{")
    fails(1, "model/generation_config.json: byte 1", "--model", "model", "--prompt", "na")
    os.remove("model/generation_config.json")
    config["eos_token_id"] = space
    describe("config.json", config)
    says("ïve\n", "--prompt", "na")


@test
def what_is_missing():
    """folders without a part, wrong command lines, prompts beyond the context"""
    speaker()
    fails(1, "nowhere", "--model", "nowhere", "--prompt", "x")
    for name, part in (("merges.txt", "model"), ("model.safetensors", "model"), ("config.json", "model/config.json")):
        path = os.path.join("model", name)
        os.rename(path, path + ".away")
        fails(1, part, "--model", "model", "--prompt", "x")
        os.rename(path + ".away", path)
    says("ïve\n", "--prompt", "na", "--tokens", "4", "--tokenizer", "model")
    fails(64, "no model", "--prompt", "x")
    for arguments in (["--tokens", "0"], ["--tokens", "x"], ["--temperature", "-1"], ["--temperature", "nan"], ["--top-p", "1.1"],
                      ["--top-k", "-1"], ["--repetition-penalty", "0"], ["--samples", "0"], ["--dtype", "f16"], ["--stop", ""],
                      ["--threads", "0"], ["word"]):
        fails(64, "tern generate: ", "--model", "model", *arguments)
    long = "x" * (3 * len(BYTES))
    done = generate("--model", "model", "--prompt", long, "--tokens", "3")
    has(done.stderr, f"the prompt has {len(long)} tokens, and the model sees the last {2 * len(BYTES) + 8}")
    generate("--help")


def on_ranks(ranks, *arguments):
    """Of a model that lies on ranks: the exit status, what they write, and their errors."""
    done = run("-n", ranks, TERN, "generate", "--model", "model", *arguments, code=None)
    return done.returncode, done.stdout.decode(errors="replace").replace("[0] ", ""), done.stderr.decode()


@test
def on_a_mesh():
    """a model on several ranks writes what it writes on one, once"""
    speaker()
    for arguments in (("--temperature", "0"), ("--temperature", "50", "--samples", "3"), ("--dtype", "bf16"), ("--echo", "--stop", "és")):
        arguments += ("--prompt", "na", "--tokens", "20")
        wanted = generate("--model", "model", *arguments).stdout.decode(errors="replace")
        for ranks, mesh in ((2, "pp=2"), (3, "pp=3"), (2, "shard=2"), (4, "pp=2,shard=2"), (4, "pp=2"), (2, "cp=2,keys")):
            same(on_ranks(ranks, *arguments, "--mesh", mesh)[:2], (0, wanted), mesh)
    says("ïve\n", "--prompt", "na", "--tokens", "4", "--mesh", "dp=1")
    status, text, errors = on_ranks(2, "--prompt", "na", "--tokens", "4", "--mesh", "pp=2", "--dtype", "int8", "--stats")
    same((status, text), (0, "ïve\n"))
    same(errors.count("answers: 4 tokens"), 1, errors)


@test
def meshes_that_do_not_fit():
    """every rank ends, and says what would fit"""
    speaker()
    for ranks, mesh, part in ((2, "pp=3", "is a mesh of 3 ranks or a multiple, and there are 2 (tern run -n 3 would do)"),
                              (2, "tp=2", "2 ranks do not divide 1 heads"), (4, "pp=4", "3 parts has not enough for 4 stages"), (2, "pq=2", '"pq=2" of "pq=2"'),
                              (2, "cp=2", "heads")):
        status, text, errors = on_ranks(ranks, "--prompt", "na", "--mesh", mesh)
        same((status, text), (1, ""), errors)
        has(errors, part)
    fails(1, "tern run -n 2 would do", "--model", "model", "--prompt", "na", "--mesh", "pp=2")
    fails(64, "--mesh needs --prompt TEXT", "--model", "model", "--mesh", "dp=1")
    status, text, errors = on_ranks(2, "--prompt", "na", "--mesh", "pp=2", "--tokenizer", "nowhere")
    same((status, text), (1, ""), errors)
    has(errors, "nowhere")
    os.remove("model/model.safetensors")
    status, text, errors = on_ranks(2, "--prompt", "na", "--mesh", "pp=2")
    same((status, text), (1, ""), errors)


def endless_on_two():
    """A model on two stages that writes lines without end, once it does."""
    speaker("x\n" * 1500)
    p = start("-n", 2, TERN, "generate", "--model", "model", "--prompt", "x", "--tokens", "1000000", "--ignore-eos", "--mesh", "pp=2")
    until(lambda: output(p).count("x\n") > 5, "a text")
    return p


@test
def interrupted_on_a_mesh():
    """Ctrl-C ends the text at the same token on all ranks"""
    p = endless_on_two()
    p.send_signal(signal.SIGINT)
    finish(p, 130)
    holds("tern generate:" not in errors(p), errors(p))


@test
def a_rank_that_dies():
    """the others end, and the launcher says who it was"""
    p = endless_on_two()
    os.kill(pids_of(TERN, p)[1], signal.SIGKILL)
    finish(p, 137)
    has(errors(p), "rank 1")


main()
