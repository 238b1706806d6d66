"""A small GPT-2 with the real vocabulary, learning tiny Shakespeare alongside PyTorch, from the same weights and batches.

learning.py [STEPS] [PICTURE]: TERN_DATA names the folder that has tinyshakespeare.txt and gpt2/ (vocab.json, merges.txt). Losses
must agree to 1e-3 up to step 100; later they diverge, since rounding grows with the steps, and the largest difference is printed.
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers"))
import duel


def losses(folder, name):
    with open(os.path.join(folder, name + ".csv")) as file:
        return [float(row.split(",")[1]) for row in file.read().splitlines()[1:]]


def main():
    steps = sys.argv[1] if len(sys.argv) > 1 else "500"
    picture = sys.argv[2] if len(sys.argv) > 2 else os.path.join(duel.ROOT, "build", "learning.svg")
    data = os.environ.get("TERN_DATA")
    if not data:
        print("skipped: TERN_DATA names no folder with tinyshakespeare.txt and gpt2/")
        return
    with tempfile.TemporaryDirectory() as folder:
        program, env = duel.program("learning"), duel.fair_environment()
        text, tokenizer = os.path.join(data, "tinyshakespeare.txt"), os.path.join(data, "gpt2")
        subprocess.run([program, text, tokenizer, folder, steps], check=True, env=env)
        for peer in duel.find_peers()[:1]:
            subprocess.run(peer.command("torch_learning.py", folder, duel.THREADS), check=True,
                           env=env, stdout=subprocess.DEVNULL)
            ours, theirs = losses(folder, "tern"), losses(folder, "torch")
            far = [abs(a - b) for a, b in zip(ours, theirs)]
            print(f"{'step':>6} {'Tern':>10} {peer.name:>16} {'difference':>11}")
            for step in sorted({0, 1, 10, 100, 200, 300, 400, len(ours) - 1}):
                if step < len(ours):
                    print(f"{step:6} {ours[step]:10.6f} {theirs[step]:16.6f} {far[step]:11.1e}")
            print(f"largest difference: {max(far[:101]):.1e} until step 100, {max(far):.1e} overall")
            subprocess.run([program, "--draw", folder, steps, picture, peer.name], check=True)
            print(f"picture: {picture}")
            if max(far[:101]) > 1e-3:
                sys.exit("the losses differ by more than 1e-3 within 100 steps")


main()
