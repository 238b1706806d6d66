#!/usr/bin/env python3
"""What bash completes after `tern`: every verb of its help, every option that a verb's --help has, nothing that is not there, and
files elsewhere. And that the manual pages, where they were built, have those options."""
import pathlib, re, subprocess, sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "train"))
from runs import check, root, tern


def complete(*words):
    """What the script offers for the last word."""
    script = (f'. "{root}/tools/completion.bash"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tern_complete "$1"; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "-c", script, "bash", str(tern), *words], capture_output=True, text=True, timeout=60)
    check(done.returncode == 0 and not done.stderr, done.stderr)
    return done.stdout.split()


def help_of(*verb):
    return subprocess.run([tern, *verb, "--help"], capture_output=True, text=True, check=True).stdout


verbs = re.findall(r"^tern ([a-z]+)", help_of(), re.M)
check("train" in verbs and "run" in verbs and len(verbs) > 8, verbs)
check(complete("") == sorted(set(verbs) | {"--version"}), complete(""))
check(complete("to") == ["tokenizer", "tokens"], complete("to"))
for verb in verbs:
    if verb != "info":
        options = set(re.findall(r"--[a-z][-a-z0-9]+", help_of(verb)))
        check(len(options) > 3 and set(complete(verb, "-")) == options, f"{verb}: {complete(verb, '-')}")
        page = tern.parent / f"tern-{verb}.1"
        if page.exists():
            text = page.read_text().replace("\\-", "-")
            check(all(option in text for option in re.findall(r"^ .*?(--[a-z][-a-z0-9]+)", help_of(verb), re.M)), f"{page} lacks options")
check(complete("train", "--res") == ["--resume", "--resume-anyway"], complete("train", "--res"))
check(complete("train", "--data", "x", "--keep") == ["--keep-best"], complete("train", "--data", "x", "--keep"))
check(complete("train", "tok") == [] and complete("nonsense", "--a") == [], "what is not there")
