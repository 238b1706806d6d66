"""Fine-tuning on prompts and completions, against PyTorch's ignore_index: from JSON lines through `tern tokens --pairs` and the loader
to the loss and its gradients, in which only completions and their ends count."""
import json
import os
import subprocess
import tempfile

from byte_tokenizer import END, write_tokenizer
from twin import close, read, run, torch

BIN = os.environ["TERN_TEST_BIN"]
TERN = os.path.join(os.path.dirname(BIN), "tools", "tern")
LENGTH, IGNORED = 12, -100
PAIRS = [("2+2=", " 4"), ("", "no prompt"), ("only a prompt", ""), ("a prompt that is longer than the window", " yes")]


def wanted(prompt, completion):
    """A row of x and of y, as a loop in Python makes them."""
    prompt = list(prompt.encode()) or [END]
    tokens = prompt + list(completion.encode()) + [END]
    targets = [IGNORED] * len(prompt) + tokens[len(prompt):]
    tokens, targets = tokens[-(LENGTH + 1):], targets[-(LENGTH + 1):]
    rest = LENGTH + 1 - len(tokens)
    return tokens[:-1] + [0] * rest, targets[1:] + [IGNORED] * rest


def dump(pairs):
    with tempfile.TemporaryDirectory() as folder:
        lines, out, dumped = (os.path.join(folder, name) for name in ("pairs.jsonl", "out", "dump.safetensors"))
        write_tokenizer(folder)
        with open(lines, "w", encoding="utf-8") as f:
            for prompt, completion in pairs:
                f.write(json.dumps({"prompt": prompt, "completion": completion, "id": -0.5}) + "\n")
        subprocess.run([TERN, "tokens", lines, "--pairs", "--tokenizer", folder, "--out", out], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([os.path.join(BIN, "dump_pairs"), dumped, os.path.join(out, "train_*.bin")], check=True)
        return read(dumped)


def windows():
    data = dump(PAIRS)
    rows = [wanted(*pair) for pair in PAIRS]
    close(data["x"], torch.tensor([x for x, _ in rows]), "x", 0)
    close(data["y"], torch.tensor([y for _, y in rows]), "y", 0)


def loss_and_gradients():
    data = dump(PAIRS)
    rows = [wanted(*pair) for pair in PAIRS]
    x, y = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
    table, head = (data[name].clone().requires_grad_() for name in ("table", "head"))
    logits = table[x] @ head.T
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORED)
    loss.backward()
    close(data["loss"], loss.detach(), "loss", 1e-6)
    close(data["grad.table"], table.grad, "grad.table", 1e-5)
    close(data["grad.head"], head.grad, "grad.head", 1e-5)
    learned = {row[0][t] for row in rows for t in range(LENGTH) if row[1][t] != IGNORED}
    moved = set(data["grad.table"].abs().sum(1).nonzero().flatten().tolist())
    if moved != learned:
        raise AssertionError("tokens %s have gradients, but targets follow tokens %s" % (sorted(moved), sorted(learned)))


run([("windows of pairs are what a loop in Python makes of them", windows),
     ("loss and gradients are PyTorch's with ignore_index: only completions and their ends count", loss_and_gradients)])
