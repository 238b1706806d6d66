"""The products of ../products.c in PyTorch: "name ms" lines. torch_products.py DTYPE; OMP_NUM_THREADS chooses the threads."""
import os
import sys

import torch

from serve import now

LAYERS = [(256, 2304, 768), (256, 768, 3072), (1024, 3072, 768), (1024, 768, 3072)]
OTHERS = [(64, 64, 64), (128, 128, 128)] + [(rows, 2304, 768) for rows in (1, 2, 3, 4, 8, 16, 32)]

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
dtype = torch.bfloat16 if sys.argv[1] == "bf16" else torch.float32


def best_ms(f):
    times, begin = [], now()
    while len(times) < 5 or (len(times) < 200 and now() < begin + 0.1):
        start = now()
        f()
        times.append(now() - start)
    return 1e3 * min(times)


with torch.no_grad():
    for m, n, k in LAYERS + OTHERS:
        x, w, y = (torch.randn(*size).to(dtype) for size in ((m, k), (n, k), (m, n)))
        print(f"{m}x{n}x{k}_forward {best_ms(lambda: x @ w.T):.5f}", flush=True)
        if (m, n, k) in LAYERS:
            print(f"{m}x{n}x{k}_input {best_ms(lambda: y @ w):.5f}", flush=True)
            print(f"{m}x{n}x{k}_weight {best_ms(lambda: y.T @ x):.5f}", flush=True)
