#!/usr/bin/env python3
"""Every exercise: its form, and what its judge says of the empty hole, of a solution and of typical mistakes."""
import json
import os
import subprocess
import sys

ROOT = os.environ.get("TERN_ROOT", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
OPTIONS = os.path.join(os.environ.get("TERN_TEST_BIN", ""), "../meson-info/intro-buildoptions.json")

if os.path.exists(OPTIONS):
    with open(OPTIONS, encoding="utf-8") as f:
        if any(option["name"] == "b_sanitize" and option["value"] not in ("none", []) for option in json.load(f)):
            print("1..0 # SKIP a program without a sanitizer cannot use a library with one")
            sys.exit(0)
sys.exit(subprocess.run([sys.executable, ROOT + "/exercises/exercise.py", "--test"], check=False).returncode)
