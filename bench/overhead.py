"""What an operation costs apart from its arithmetic: on one element, in ns, Tern and PyTorch taking turns."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel

ROWS = [
    ("recorded_add", "x + y, recorded, and its release"),
    ("recorded_mul", "x y, recorded, and its release"),
    ("backward_add", "backward through one addition"),
    ("add", "x + y, not recorded"),
    ("empty", "a tensor made and dropped"),
    ("view", "a view made and dropped"),
    ("module", "a module's call"),
    ("scope", "a scope"),
]


duel.compare_lists("ns", "overhead", "torch_overhead.py", ROWS)
