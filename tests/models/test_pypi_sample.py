"""Sampling against transformers' logits processors: which tokens are possible, and how likely each is."""
import os
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import pypi

pypi.need("torch", "transformers")
import torch
from transformers.generation.logits_process import (LogitsProcessorList, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
                                                    TopKLogitsWarper, TopPLogitsWarper)

PROGRAM = os.path.join(os.environ["TERN_TEST_BIN"], "dump_sample")
VOCAB = 5000
HOWS = [(penalty, temperature, k, p) for penalty in (1.0, 1.3, 0.8) for temperature in (1.0, 0.6, 2.5)
        for k, p in ((0, 1.0), (1, 1.0), (50, 1.0), (0, 0.9), (0, 0.3), (200, 0.95), (0, 0.0), (4999, 0.999))]


def theirs(logits, before, how):
    penalty, temperature, k, p = how
    steps = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(temperature)])
    steps += ([TopKLogitsWarper(k)] if k > 0 else []) + ([TopPLogitsWarper(p)] if p < 1 else [])
    return steps(before.unsqueeze(0), logits.unsqueeze(0)).softmax(-1)[0]


torch.manual_seed(1)
rows = [torch.randn(VOCAB) * spread - 20 for spread in (0.5, 2.0, 4.0) for _ in HOWS]
befores = [torch.randint(VOCAB, (1 + 37 * i % 300,)) for i in range(len(rows))]
data = b""
for i, (row, before) in enumerate(zip(rows, befores)):
    before = sorted(set(before.tolist()))
    data += struct.pack("<%df5d%di" % (VOCAB, len(before)), *row.tolist(), *HOWS[i % len(HOWS)], len(before), *before)
out = subprocess.run([PROGRAM, str(VOCAB)], input=data, stdout=subprocess.PIPE, check=True, timeout=300).stdout
got = torch.frombuffer(bytearray(out), dtype=torch.float32).view(len(rows), VOCAB)

print("1..1")
worst, edges, failed = 0.0, 0, False
for i, row in enumerate(rows):
    want = theirs(row, befores[i], HOWS[i % len(HOWS)])
    differ = ((want > 0) != (got[i] > 0)).sum().item()
    if differ > 1:  # theirs sums the probabilities in f32: the last token of top_p may be on either side
        print("# %s: %d tokens differ, of %d" % (HOWS[i % len(HOWS)], differ, (want > 0).sum().item()))
        failed = True
    elif differ == 1:
        edges += 1
    else:
        worst = max(worst, ((got[i] - want).abs() / want.clamp(min=1e-30)).max().item())
print("# %d distributions, largest relative difference %.1e, %d with another last token" % (len(rows), worst, edges))
failed = failed or worst > 1e-4 or edges > len(rows) // 20
print("%s 1 - distributions as transformers makes them" % ("not ok" if failed else "ok"))
