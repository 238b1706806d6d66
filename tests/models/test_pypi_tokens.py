#!/usr/bin/env python3
"""A folder that Tern writes says which token ends a text: transformers ends there, in every family. Without a tokenizer the folder
names no token, so none beyond the vocabulary."""
import os
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
import pypi
pypi.need("torch", "transformers")

import json
import subprocess
import tempfile
import torch
import transformers

torch.set_num_threads(1)
TESTS = os.path.abspath(os.environ.get("TERN_TEST_BIN", "build/test/tests"))
TERN = os.path.join(os.path.dirname(TESTS), "tools", "tern")
TEXT = "naive cats sell tea.\nA second line."
END = 256
failures = 0


def check(number, what, wanted, found):
    global failures
    failures += wanted != found
    print("%s %d - %s" % ("ok" if wanted == found else "not ok", number, what), flush=True)
    if wanted != found:
        print("# %r, and not %r" % (found, wanted))


def generate(folder, prompt):
    """Greedily, with the folder's defaults."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([list(prompt.encode())])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_length=len(TEXT) + 6)
    return model, out[0].tolist()


with tempfile.TemporaryDirectory() as top:
    os.chdir(top)
    subprocess.run([os.path.join(TESTS, "speaker"), "spoken", TEXT], check=True)
    print("1..5")
    model, ids = generate("spoken", "na")  # written before there was a tokenizer
    check(1, "no end: it continues", [None, None, len(TEXT) + 6], [model.config.bos_token_id, model.config.eos_token_id, len(ids)])
    subprocess.run([TERN, "convert", "spoken", "told"], check=True)
    model, ids = generate("told", "na")
    check(2, "with one it ends", list(TEXT.encode()) + [END], ids)
    check(3, "the ids of the tokenizer", (END, [END]),
          (len(transformers.AutoTokenizer.from_pretrained("told")) - 1, [model.generation_config.eos_token_id]))
    config = json.load(open("spoken/config.json", encoding="utf-8"))
    json.dump({**config, "eos_token_id": [ord("."), END]}, open("spoken/config.json", "w", encoding="utf-8"))
    os.remove("spoken/vocab.json")
    subprocess.run([TERN, "convert", "spoken", "several"], check=True)
    model, ids = generate("several", "na")
    check(4, "several ends", TEXT.index(".") + 1, len(ids))
    check(5, "written again by transformers", True, (model.save_pretrained("again"), os.path.exists("again/config.json"))[1])
sys.exit(failures > 0)
