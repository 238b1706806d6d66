"""The LSTM of ../lstm.c in PyTorch, from its weights and with its batch: torch_lstm.py FOLDER THREADS LAYERS WIDTH"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from serve import serve
from shared import load_batches, load_weights

VOCAB = 96


class Net(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, x):
        return self.head(self.lstm(self.wte(x))[0])


def main():
    torch.set_num_threads(int(sys.argv[2]))
    (x,), (y,) = load_batches(sys.argv[1])
    model = Net(int(sys.argv[3]), int(sys.argv[4]))
    load_weights(model, sys.argv[1])
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)

    def step():
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return loss.item()

    serve(step)


main()
