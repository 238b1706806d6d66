"""Operations on a million f32, one thread, in ms, Tern and PyTorch taking turns: those that are not bound by memory alone."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

NAMES = ["exp", "sin", "cos", "tan", "tanh", "sum", "argmax", "argmax_rows", "argmax_columns", "cumsum", "argsort", "topk_50", "topk_1000",
         "rand", "randn", "randperm", "dropout"]

duel.compare_lists("ms", "elements", "torch_elements.py", [(name, name.replace("_", " ")) for name in NAMES])
