"""What PyTorch calls the operations of ops/sort/, where it has another name or other arguments."""
import torch

TWINS = {
    "argsort": lambda x, dim, descending: torch.sort(x, dim=dim, descending=descending, stable=True)[1],
    "topk": lambda x, k, dim, largest: torch.topk(x, k, dim, largest)[1],
}
