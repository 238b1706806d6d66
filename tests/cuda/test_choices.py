#!/usr/bin/env python3
"""What decides by time on a GPU (bench/gpu_choices.py): every case runs on both sides, over the emulator; a setting changes the calls
that it names; verdicts follow the numbers."""
import os
import subprocess
import sys
import tempfile

ROOT = os.environ.get("TERN_ROOT", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
TESTS = os.environ.get("TERN_TEST_BIN", os.path.join(ROOT, "build/test/tests"))
BENCH = os.path.join(os.path.dirname(TESTS), "bench")
PROGRAM = os.path.join(BENCH, "gpu_choices")
FAKE = os.path.join(TESTS, "emulator/libfake_cudnn.so")
sys.path.insert(0, os.path.join(ROOT, "bench"))
import gpu_choices


def check(truth, what):
    if not truth:
        sys.exit(f"FAILED: {what}")


def run_case(case, **settings):
    """(what it asked of the device, what it said)."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "record")
        done = subprocess.run([PROGRAM, "--small", case], env=dict(os.environ, TERN_EMULATOR_RECORD=path, **settings), capture_output=True,
                              text=True)
        check(done.returncode == 0, f"{case}: {done.stderr}")
        with open(path, encoding="utf-8") as f:
            return f.read(), done.stderr


def choices_change_calls():
    for name, case, there, instead in (("sums_in_product", "sums:out", "product BGRADB", "fold_columns"),
                                       ("gelu_in_product", "gelu", "product GELU_AUX_BIAS", "tn__loop_kernel"),
                                       ("slope_in_product", "slope", "product DGELU", "tn__loop_kernel"),
                                       ("padded_lengths", "attention:odd", "set ", "attention "),
                                       ("few_queries", "attention:token", "attention_join", "\nattention ")):
        record, _ = run_case(case)
        check(there in record, f"{case} asks for {there}: {record}")
        record, _ = run_case(case, TERN_CUDA_CHOICES=f"tuned=0,{name}=0")
        check(there not in record and instead in record, f"{case} with {name}=0 asks for {instead}: {record}")
    for wrong in ("slow=1", "gelu_in_product=", "gelu_in_product=2", "few_queries=-1", "few_queries=8x"):
        _, words = run_case("sums:out", TERN_CUDA_CHOICES=f"tuned=0,{wrong}", TERN_LOG="warn")
        check(f"{wrong} is no choice" in words, f"what is no choice is said: {words}")


def verdicts_follow():
    slow, fast, between = [2.0, 2.1], [1.0, 1.1], [1.05, 2.05]
    check(gpu_choices.verdict([slow], [fast]) is True, "the other side is faster")
    check(gpu_choices.verdict([fast], [slow]) is False, "the other side is slower")
    check(gpu_choices.verdict([slow], [between]) is False, "ranges that overlap")
    check(gpu_choices.verdict([[1.0]], [[0.99]]) is False, "less than the margin")
    check(gpu_choices.verdict([fast, slow], [slow, fast]) is False, "the sum of several cases")
    check(gpu_choices.verdict([slow], [[]]) is None, "a side that did not run")
    listed = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True).stdout.split()
    asked = {case for side in gpu_choices.SIDES for case in gpu_choices.cases_of(side)}
    check(asked == set(listed), f"every case is asked for: {asked ^ set(listed)}")


def main():
    if not os.path.exists(PROGRAM) or not os.path.exists(FAKE):
        print("skipped: the benchmarks or the stand-in for cuDNN were not built", file=sys.stderr)
        sys.exit(77)
    os.environ.update(TERN_CUDA="cuda_emulator", TERN_CUDNN=FAKE, TERN_BENCH_BIN=BENCH)
    verdicts_follow()
    choices_change_calls()
    done = subprocess.run([sys.executable, os.path.join(ROOT, "bench/gpu_choices.py"), "--try"], capture_output=True, text=True)
    check(done.returncode == 0 and "did not run" not in done.stdout, f"every case runs: {done.stdout}{done.stderr}")
    check("choices.h should say" in done.stdout, done.stdout)
    print(done.stdout)


if __name__ == "__main__":
    main()
