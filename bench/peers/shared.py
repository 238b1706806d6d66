"""What both sides of a comparison start from: Tern's program writes its weights and batches, the peer reads them."""
import json
import os

import torch

DTYPES = {"F32": (torch.float32, 4), "I64": (torch.int64, 8)}


def read(path):
    """The tensors of a safetensors file by name."""
    with open(path, "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        data = bytearray(f.read())
    tensors = {}
    for name, t in head.items():
        if name != "__metadata__":
            (dtype, size), (begin, end) = DTYPES[t["dtype"]], t["data_offsets"]
            tensors[name] = torch.frombuffer(data, dtype=dtype, count=(end - begin) // size, offset=begin).reshape(t["shape"])
    return tensors


def load_weights(model, folder):
    """Every parameter and buffer of `model`, by the names of Hugging Face's GPT-2, which Tern has too."""
    weights = {name.replace(".mlp.", "."): t for name, t in read(os.path.join(folder, "weights.safetensors")).items()}
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weights.pop(name))
        for name, b in model.named_buffers():
            if name in weights:
                b.copy_(weights.pop(name))
    if weights:
        raise KeyError(f"Tern has more weights: {', '.join(weights)}")


def load_batches(folder):
    """(steps, batch, tokens) twice: inputs and targets."""
    batches = read(os.path.join(folder, "batches.safetensors"))
    return batches["x"], batches["y"]
