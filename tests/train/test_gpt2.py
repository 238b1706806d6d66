#!/usr/bin/env python3
"""What 11_gpt2 and 04_char_gpt print, and that neither loses a run: a checkpoint is only overwritten with --overwrite, and never
while another job runs there, text is not taken for tokens, resuming and stopping are announced, a NaN ends a run. And 11_gpt2
sharded: the losses of an unsharded run, and checkpoints from which any number of ranks continues; and with a Llama."""
import array, functools, json, os, pathlib, random, shutil, signal, subprocess, tempfile

from runs import check, examples, history, run, says, tern, until


def gpt2(*more, data="tokens.bin", steps=6, ranks=1, out="out", model=("--model", "tiny", "--vocab", "300")):
    start = [tern, "run", "-n", str(ranks)] if ranks > 1 else []
    return [*start, examples / "11_gpt2", "--data", data, *model, "--context", "16", "--batch", "2", "--steps", str(steps),
            "--out", out, *more]


def char_gpt(*more, steps=6):
    return [examples / "04_char_gpt", "--data", "text", "--layers", "1", "--heads", "2", "--width", "16", "--context", "8",
            "--batch", "2", "--sample", "4", "--threads", "1", "--steps", str(steps), "--out", "chars", *more]


def files(folder):
    return [(path.relative_to(folder), history(path.parent) if path.suffix == ".csv" else path.read_bytes())
            for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "run.json"]  # it has times


def overwriting(folder, program, out):
    """The second run is refused and changes nothing; with --overwrite it has the results of the first."""
    first = run(folder, program())
    check("1 rank " in first and "1 threads" not in first and "0x" not in first, first)
    before = files(folder / out)
    says("--resume continues it, --overwrite starts over", run(folder, program(), 64))
    refused = run(folder, [tern, "run", "-n", "2", "--max-restarts", "1", *program()], 64)  # and does not start again
    check("[0] " + out in refused and "[1] " not in refused, refused)
    check(files(folder / out) == before, "a refused run has changed files")
    says("continuing after step 6 of " + out, run(folder, program("--resume")))
    run(folder, program("--overwrite"))
    check(files(folder / out) == before, "--overwrite does not start over")
    other = run(folder, program("--resume", "--lr", "1e-4"), 1)
    check("the schedule: peak was 0.00" in other and " but is 0.0001" in other and "0x" not in other, other)


def stopped(folder, command, out, how, start=0, send=subprocess.Popen.send_signal):
    """What it prints when the signal comes three steps later, and the steps that it has done."""
    rows = folder / out / "loss.csv"
    if start == 0:
        rows.unlink(missing_ok=True)
    with open(folder / "log", "w+") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        until(lambda: rows.exists() and rows.read_bytes().count(b"\n") >= start + 3, (folder / "log").read_text, process)
        send(process, how)
        status = process.wait(timeout=120)
        log.seek(0)
        output = log.read()
        check(status == 128 + how, f"status {status}: {output}")
        return output, rows.read_bytes().count(b"\n") - 1


def interrupted(folder, program, out):
    """Ctrl-C, SIGTERM: the step is finished, everything is saved, stopping and resuming are announced, and the exit status says
    that the run is not done. The printed command continues it."""
    output, done = stopped(folder, program("--overwrite", steps=1000000), out, signal.SIGINT)
    for _ in range(2):  # the command with --resume prints itself
        before, line = output.splitlines()[-2:]
        check(f"stopped after step {done} of 1000000 and saved; to continue:" in before, output)
        check(line.startswith("    ") and "--resume" in line and "--over" not in line, output)
        output, later = stopped(folder, ["sh", "-c", "exec " + line.strip()], out, signal.SIGTERM, done + 1)
        says(f"continuing after step {done} of {out}", output)
        done = later


def one_rank(folder):
    """When one rank is asked to stop, all stop after the same step."""
    def send_to_rank_1(launcher, how):
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                mine = path.parent.joinpath("cwd").samefile(folder) and b"\0RANK=1\0" in b"\0" + path.read_bytes()
            except OSError:
                continue
            if mine:
                os.kill(int(path.parent.name), how)

    command = gpt2("--overwrite", steps=1000000, ranks=2, out="asked")
    output, _ = stopped(folder, command, "asked", signal.SIGTERM, send=send_to_rank_1)
    check("stopped after step" in output and "TN_E" not in output, output)


def quoted(folder):
    """A command line that a shell would change, alone and under `tern run`, whose options are printed, too."""
    out = "it's a $(run); \"of\" *"
    start = [tern, "run", "--nproc-per-node", "2", "--log-dir", "the logs", "--max-restarts=1"]
    for launcher in ([], start):
        output, done = stopped(folder, [*launcher, *gpt2("--over", steps=1000000, out=out)], out, signal.SIGTERM)
        line = next(line for line in output.splitlines() if "--resume" in line).split("] ")[-1]
        check(("run --nproc-per-node 2 --log-dir 'the logs' --max-restarts=1" in line) == bool(launcher), line)
        output, done = stopped(folder, ["sh", "-c", "exec " + line.strip()], out, signal.SIGTERM, done + 1)
        says(f"after step {done} of 1000000 and saved", output)
    secret = ["--token", "0123456789abcdef0123456789abcdef"]
    output, done = stopped(folder, [*start, *secret, *gpt2("--over", steps=1000000, out=out)], out, signal.SIGTERM)
    check("saved; the same command with --resume continues" in output and secret[1] not in output, output)
    shutil.rmtree(folder / out)


def options(folder):
    """Errors say what a value should be and what is missing, and --help shows the defaults."""
    for wrong, told in ((["--steps", "0"], '--steps: "0" should be a whole number above 0'),
                        (["--steps", "2x"], '--steps: "2x" should be a whole number above 0'),
                        (["--steps", "9999999999999999999"], "should be a whole number above 0"),
                        (["--seed", "-1"], '--seed: "-1" should be a whole number >= 0'),
                        (["--stage", "4"], '--stage: "4" should be a whole number from 1 to 3'),
                        (["--shard", "al"], '--shard: "al" should be a whole number above 0, or all'),
                        (["--lr", "0"], '--lr: "0" should be a number above 0'),
                        (["--lr", "nan"], '--lr: "nan" should be a number above 0'),
                        (["--lr", "1,5"], '--lr: "1,5" should be a number above 0'),
                        (["--dropout", "-0.1"], '--dropout: "-0.1" should be a number >= 0'),
                        (["--model", "gpt5"], '--model: "gpt5" should be gpt2, gpt2-medium, gpt2-large, gpt2-xl, mini or tiny'),
                        (["--precision", "f8"], '--precision: "f8" should be f32, bf16 or f16'),
                        (["--stepz", "3"], "unrecognized option '--stepz'"),
                        (["--resume=3"], "'--resume' doesn't allow an argument"),
                        (["more"], "Too many arguments")):
        output = run(folder, gpt2(*wrong, out="none"), 64)
        check(told in output and "Try `11_gpt2 --help'" in output, f"not {told!r}: {output}")
    says("--data PATTERN is missing", run(folder, [examples / "11_gpt2"], 64))
    says("--resume continues and --overwrite starts over: one of them", run(folder, gpt2("-r", "--overwrite", out="none"), 1))
    check(not (folder / "none").exists(), "refused options have made a folder")
    output = " ".join(run(folder, [examples / "11_gpt2", "--help"]).split())
    for told in ("highest learning rate (0.0006)", "steps of training; may grow when the run continues (1000)", "(needed)",
                 "else gpt2: gpt2, gpt2-medium, gpt2-large, gpt2-xl, mini or tiny", "f32, bf16 or f16 (f32)", "-r, --resume",
                 "--peak=TFLOPS"):
        says(told, output)
    says("-d 'PATTERN'".replace("'", ""), run(folder, [examples / "11_gpt2", "--usage"]))
    arguments = gpt2(data="not_there.bin", out="none")[1:]
    says("11_gpt2.c:", run(folder, [examples / "11_gpt2", *arguments], 1))
    output = run(folder, [tern, "train", *arguments], 1)  # its user has no such file
    check(output.startswith("tern train: not_there.bin: ") and output.count("\n") == 1, output)


def hugging_face(weights, to, **config):
    """A Hugging Face folder made of weights that Tern has saved; its linears are (in, out)."""
    data = weights.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8:8 + size])
    out, blob = {}, b""
    for name, entry in head.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + k for k in entry["data_offsets"])
        part, shape = array.array("f", data[begin:end]), entry["shape"]
        if any(name.endswith(linear + ".weight") for linear in ("c_attn", "c_proj", "c_fc")):
            rows, columns = shape
            part, shape = array.array("f", [part[r * columns + c] for c in range(columns) for r in range(rows)]), [columns, rows]
        out["transformer." + name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(blob), len(blob) + 4 * len(part)]}
        blob += part.tobytes()
    text = json.dumps(out).encode()
    to.mkdir()
    (to / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + blob)
    (to / "config.json").write_text(json.dumps({"model_type": "gpt2", **config}))


def begun(folder):
    """--init: the size and the weights of a folder, whole or sharded, only at the first step."""
    val = ["--val", "tokens.bin", "--val-every", "20", "--val-batches", "2"]
    learned = measured(run(folder, gpt2(*val, "--lr", "1e-2", out="learned", steps=20)))
    run(folder, [tern, "convert", "learned", "--weights", "--to", "weights.safetensors"])
    (folder / "learned" / "merges.txt").write_text("#version: 0.2\n")  # a step has the tokenizer of its run
    run(folder, [tern, "convert", "learned/step-000020", "stepped"])
    check((folder / "stepped" / "merges.txt").exists(), "stepped has no tokenizer")
    hugging_face(folder / "weights.safetensors", folder / "hf", vocab_size=300, n_positions=16, n_embd=64, n_layer=2, n_head=2)
    command = [examples / "11_gpt2", "--data", "tokens.bin", "--init", "hf", "--context", "16", "--batch", "2", *val]
    kept = measured(run(folder, [*command, "--lr", "1e-30", "--steps", "1", "--out", "kept"]))
    check(kept[0].split(": ")[1] == learned[0].split(": ")[1], f"{kept} is not {learned}")
    many = [tern, "run", "-n", "2", *command, "--steps", "6", "--save-every", "3"]
    run(folder, [*many, "--out", "all"])
    run(folder, [*many, "--out", "cut", "--shard", "all"])
    check(losses(folder, "cut") == losses(folder, "all"), "--init in parts")
    check(losses(folder, "all")[0] < 5.3, "--init on two ranks")
    end = files(folder / "cut")
    shutil.rmtree(folder / "cut/step-000006")
    says("continuing after step 3", run(folder, [*many, "--out", "cut", "--shard", "all", "--resume"]))
    check(files(folder / "cut") == end, "resuming after --init")
    size = [a for a in command if a not in ("--context", "16")] # the folder's model has one
    run(folder, [*size, "--steps", "1", "--out", "size"])
    says("--context 17: the model sees 16 tokens at once", run(folder, [*size, "--context", "17", "--out", "none"], 64))
    (folder / "note.txt").write_text("text")
    says("note.txt: Not a directory", run(folder, [*command, "--steps", "1", "--out", "note.txt"], 1))
    (folder / "hf/config.json").write_text('{"model_type": "opt"}')
    says("model_type", run(folder, [*command, "--out", "none"], 1))


def longer(folder):
    """--steps grows: what came before stays, and the learning rate follows the longer cosine."""
    recipe = ["--warmup", "2", "--save-every", "4", "--val", "tokens.bin", "--val-every", "4", "--val-batches", "1"]
    run(folder, gpt2(*recipe, out="longer"))
    short = history(folder / "longer")
    says("the schedule has 10 steps instead of 6", run(folder, gpt2(*recipe, "--resume", out="longer", steps=10)))
    rows = history(folder / "longer")
    check(rows[:7] == short and len(rows) == 11, rows)
    rates = [float(row[2]) for row in rows[7:]]
    check(rates[0] > float(rows[6][2]) and rates == sorted(rates, reverse=True), rates)
    says("the schedule: steps was 10 but is 6",
         run(folder, gpt2(*recipe, "--resume", out="longer", steps=6), 1))


def grown(folder):
    """A short run, whose warm-up is a fraction of its steps, continues for more steps."""
    for program, out in ((functools.partial(gpt2, out="grown"), "grown"), (char_gpt, "chars")):
        run(folder, program("--overwrite", steps=10))
        says("the schedule has 30 steps instead of 10", run(folder, program("--resume", steps=30)))
        check(len((folder / out / "loss.csv").read_text().splitlines()) == 31, "rows of the losses")


def beside(folder):
    """While a job runs in a folder, on one rank or two, no other can; after it was killed or stopped, the next continues."""
    for ranks in (1, 2):
        shutil.rmtree(folder / "busy", ignore_errors=True)
        command = gpt2("--save-every", "2", out="busy", steps=1000000, ranks=ranks)
        with open(folder / "log", "w") as log:
            first = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        until(lambda: any((folder / "busy").glob("step-??????")), (folder / "log").read_text, first)
        for more in ([], ["--resume"], ["--overwrite"]):
            said = run(folder, gpt2(*more, out="busy", steps=1000000), 1)
            says("another job runs in busy: it holds busy/lock", said)
            check("continuing" not in said, said)
        check(first.poll() is None, (folder / "log").read_text())
        first.send_signal(signal.SIGKILL if ranks == 1 else signal.SIGTERM)
        first.wait(timeout=120)
        says("continuing after step", run(folder, gpt2("--resume-anyway", out="busy", steps=1)))


def diverged(folder):
    """A NaN ends a run: earlier checkpoints stay, the message names the last, and no model is exported. A
    launcher does not restart it."""
    wild = ["--lr", "1e30", "--save-every", "1"]
    for ranks in (1, 2):
        shutil.rmtree(folder / "wild", ignore_errors=True)
        said = run(folder, gpt2(*wild, out="wild", ranks=ranks, steps=20), 65)
        steps = sorted(path.name for path in (folder / "wild").glob("step-*"))
        says("the loss is NaN or infinite; the last checkpoint is " + steps[-1] + " in wild", said)
        check(not (folder / "wild/config.json").exists(), "it has exported a model")
        said = run(folder, gpt2(*wild, "--resume", "--allow-nan", out="wild", ranks=ranks, steps=20), 65)
        says("has elements that are NaN or infinite; the last checkpoint is step-", said)
    again = [tern, "run", "-n", "2", "--max-restarts", "3", *gpt2(*wild, out="again", steps=20)]
    check("start again" not in run(folder, again, 65), "a NaN was started again")


def tiny_llama(to):
    """A Hugging Face folder with small random weights."""
    width, heads, groups, hidden, vocab = 16, 4, 2, 24, 384
    draw, entries, blob = random.Random(1), {}, b""
    shapes = {"model.embed_tokens.weight": [vocab, width], "model.norm.weight": [width], "lm_head.weight": [vocab, width]}
    for layer in range(2):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": [width], at + "post_attention_layernorm.weight": [width]}
        shapes |= {at + f"self_attn.{name}_proj.weight": [rows, width] for name, rows in
                   (("q", width), ("k", width * groups // heads), ("v", width * groups // heads), ("o", width))}
        shapes |= {at + f"mlp.{name}_proj.weight": shape for name, shape in
                   (("gate", [hidden, width]), ("up", [hidden, width]), ("down", [width, hidden]))}
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = array.array("f", [draw.gauss(0, 0.1) if len(shape) > 1 else 1 for _ in range(count)]).tobytes()
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(blob), len(blob) + len(values)]}
        blob += values
    head = json.dumps(entries).encode()
    to.mkdir()
    (to / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + blob)
    (to / "config.json").write_text(json.dumps({
        "model_type": "llama", "vocab_size": vocab, "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": 2,
        "num_attention_heads": heads, "num_key_value_heads": groups, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "hidden_act": "silu"}))


def tensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    return {name: data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]]
            for name, entry in json.loads(data[8:8 + size]).items() if name != "__metadata__"}


def llama(folder):
    """--init with a Llama: its own weights at the first step, learning, whole or sharded, and a model that other commands open, with
    its tokenizer."""
    tiny_llama(folder / "llama")
    shutil.copytree(folder / "words", folder / "llama", dirs_exist_ok=True)
    command = [examples / "11_gpt2", "--data", "tokens/train_*.bin", "--init", "llama", "--context", "16", "--batch", "4"]
    run(folder, [*command, "--lr", "1e-30", "--weight-decay", "0", "--steps", "1", "--out", "same"])
    check(tensors(folder / "same/model.safetensors") == tensors(folder / "llama/model.safetensors"), "other weights than --init's")
    many = [tern, "run", "-n", "2", *command, "--lr", "1e-2", "--steps", "30", "--save-every", "10"]
    run(folder, [*many, "--out", "taught"])
    run(folder, [*many, "--shard", "all", "--out", "taught-parts"])
    fell = losses(folder, "taught")
    check(fell == losses(folder, "taught-parts"), "a Llama in parts")
    check(fell[-1] < fell[0] - 1, f"a Llama has not learned: {fell}")
    check(json.loads((folder / "taught/config.json").read_text())["model_type"] == "llama", "no Llama came out")
    says("perplexity ", run(folder, [tern, "eval", "--model", "taught", "--data", "tokens/train_*.bin"]))
    says("It was", run(folder, [tern, "generate", "--model", "taught", "--prompt", "It was", "--tokens", "4", "--echo"]))
    says("dropout 0.1, but a llama has none", run(folder, [*command, "--dropout", "0.1", "--out", "none"], 1))


def full_output(folder, program, out):
    """Printing to a full disk is a failure, even if everything was saved."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(program("--resume"), cwd=folder, stdout=full, stderr=subprocess.PIPE, timeout=300)
    check(done.returncode == 1, f"status {done.returncode} with a full stdout: {done.stderr}")


def exported(folder):
    """A run exports a model that other commands open, the same one if it was sharded, with the tokenizer it began with."""
    for out, more in (("exported", []), ("pieces", ["--shard", "all"])):
        says("model: " + out, run(folder, gpt2(*more, out=out, ranks=2)))
        says("perplexity ", run(folder, [tern, "eval", "--model", out, "--data", "tokens.bin"]))
    for name in ("config.json", "model.safetensors"):
        check((folder / "pieces" / name).read_bytes() == (folder / "exported" / name).read_bytes(), f"in parts: another {name}")
    (folder / "exported/merges.txt").write_text("#version: 0.2\n")
    says("one of --init, --config and --model", run(folder, gpt2("--init", "exported", out="spoken"), 64))
    vocab = run(folder, gpt2("--init", "exported", out="spoken", model=["--vocab", "300"]), 64)
    says("--vocab: the model of --init has its own", vocab)
    run(folder, gpt2("--init", "exported", out="spoken", ranks=2, model=[]))
    check((folder / "spoken/merges.txt").read_text() == "#version: 0.2\n", "the tokenizer did not come along")


def vocabulary(folder):
    """The vocabulary is that of the data if --vocab does not set it; a smaller one is refused."""
    run(folder, [tern, "tokenizer", "text", "--vocab", "260", "--out", "words"])
    run(folder, [tern, "tokens", "text", "--tokenizer", "words", "--out", "tokens"])
    command = [examples / "11_gpt2", "--data", "tokens/train_*.bin", "--model", "tiny", "--context", "16", "--steps", "1", "--out", "told"]
    says("a vocabulary of 260, but 259 are wanted here", run(folder, [*command, "--vocab", "259"], 1))
    run(folder, command)
    check(json.loads((folder / "told/config.json").read_text())["vocab_size"] == 384, "not the vocabulary of the data")


def no_checkpoint(folder, program, out):
    for path in (folder / out).glob("step-*"):
        shutil.rmtree(path)
    (folder / out / "checkpoint.safetensors").unlink(missing_ok=True)
    output = run(folder, program("--resume"))
    check("no checkpoint in " in output and "to continue from: starting over" in output, output)


def text(folder):
    output = run(folder, gpt2(data="text"), 1)
    check("text is text, not tokens" in output and output.count("[TN_EFORMAT]") == 1, output)
    told = run(folder, [tern, "train", "--data", "text"], 1)  # the command's user knows nothing of statuses
    check(told.startswith("tern train: text is text, not tokens") and "TN_E" not in told, told)
    check(not (folder / "out").exists(), "a refused run has made its folder")


def damaged(folder):
    """A checkpoint that cannot be read is reported, and does not prevent starting over."""
    index = folder / "out/step-000006/index.json"
    index.write_text(index.read_text()[:-9])
    says("index.json", run(folder, gpt2("--resume"), 1))
    run(folder, gpt2("--overwrite"))
    says("continuing after step 6", run(folder, gpt2("--resume")))


def losses(folder, out):
    return [float(row.split(",")[1]) for row in (folder / out / "loss.csv").read_text().splitlines()[1:]]


def measured(output):
    return [line.split("step ")[1] for line in output.splitlines() if ": val loss" in line]


def close(a, b):
    return len(a) == len(b) > 0 and all(abs(x - y) < 1e-5 * y for x, y in zip(a, b))


def in_parts(folder):
    """The model sharded over ranks: the losses, to the last bit, of ranks that each have all of it; if micro-batches are reduced one by
    one, which adds them in another order, the losses of one rank up to rounding."""
    validated = ["--val", "tokens.bin", "--val-every", "3", "--val-batches", "2"]
    for ranks in (1, 2):
        whole = measured(run(folder, gpt2(*validated, ranks=ranks, out="whole")))
        for more in (["--shard", "all"], ["--stage", "2", "--offload"], ["--stage", "1"]):
            parts = measured(run(folder, gpt2(*validated, *more, ranks=ranks, out="parts")))
            check(losses(folder, "parts") == losses(folder, "whole"), f"{ranks} ranks, {more}: other losses")
            check(len(parts) == 2 and parts == whole, f"{ranks} ranks, {more}: {parts}, not {whole}")
            shutil.rmtree(folder / "parts")
        shutil.rmtree(folder / "whole")
    many = ["--tokens", "256"]
    run(folder, gpt2(*many, "--shard", "2", "--stage", "1", ranks=2, out="first"))
    run(folder, gpt2(*many, ranks=2, out="second"))
    check(losses(folder, "first") == losses(folder, "second"), "stage 1 with many micro-batches")
    run(folder, gpt2(*many, "--shard", "2", ranks=4, out="copies"))
    check(close(losses(folder, "copies"), losses(folder, "first")), "two copies of two parts each")
    says('"al" should be a whole number above 0, or all', run(folder, gpt2("--shard", "al", ranks=2, out="x"), 64))
    says("shard=3,cp=1,tp=1 is a mesh of 3 ranks or a multiple, and there are 2", run(folder, gpt2("--shard", "3", ranks=2, out="x"), 1))


def accumulated(folder):
    """Ranks with a sequence each, and one rank that has the same sequences one after another: the same bits, also of the losses."""
    for ranks in (2, 4):
        for out, n in (("ranks", ranks), ("rank", 1)):
            run(folder, gpt2("--batch", "1", "--tokens", str(16 * ranks), "--overwrite", ranks=n, out=out, steps=12))
        check(losses(folder, "ranks") == losses(folder, "rank"), f"{losses(folder, 'ranks')} are not {losses(folder, 'rank')}")
        weights = [(folder / out / "model.safetensors").read_bytes() for out in ("ranks", "rank")]
        check(weights[0] == weights[1], f"the weights of {ranks} ranks are not those of one")


def models_told(folder, out):
    """What the commands say of a run's model: the one that it exported, and those made of its checkpoint. Their perplexity, a text."""
    shutil.rmtree(folder / "converted", ignore_errors=True)
    run(folder, [tern, "convert", out, "--to", "file.safetensors"])
    run(folder, [tern, "convert", "file.safetensors", "converted"])
    told = []
    for model in (out, "converted"):
        output = run(folder, [tern, "eval", "--model", model, "--data", "tokens.bin", "--json"])
        written = run(folder, [tern, "generate", "--model", model, "--tokenizer", "words", "--prompt", "It", "--temperature", "0",
                               "-n", "12"])
        told.append((json.loads(output[output.index("{"):output.index("}") + 1])["perplexity"], written))
    check(told[0] == told[1] and len(told[0][1]) > 12, f"{out}: {told}")
    return told[0]


def on_meshes(folder):
    """The model on a mesh of ranks: one rank's losses and text, up to rounding; a run that began on one mesh continues on another."""
    def trained(ranks, *more, out="mesh"):
        run(folder, gpt2("--tokens", "64", "--save-every", "3", *more, ranks=ranks, out=out))
        return losses(folder, out)

    alone = trained(1, out="one_rank")
    told = models_told(folder, "one_rank")
    for ranks, mesh in ((2, "tp=2"), (2, "tp=2,sequence"), (2, "cp=2"), (4, "tp=2,shard=2"), (4, "tp=2,cp=2,keys"), (2, "pp=2,zb_h1")):
        check(close(trained(ranks, "--mesh", mesh, "--overwrite"), alone), f"{mesh}: {losses(folder, 'mesh')}, not {alone}")
        perplexity, text_there = models_told(folder, "mesh")
        check(close([perplexity], [told[0]]) and text_there == told[1], f"{mesh}: {perplexity}, {text_there!r}, not {told}")
    shutil.rmtree(max((folder / "mesh").glob("step-*")))
    check(close(trained(2, "--mesh", "shard=2", "--resume"), alone), "resumed on another mesh")
    says("write shard=N, stage=N", run(folder, gpt2("--mesh", "tp=2", "--stage", "2", ranks=2, out="x"), 1))


def resumed_in_parts(folder):
    """A sharded checkpoint of 2 ranks: they continue with the same bits, also from one file made of it, and one rank that has the
    whole model continues with the same losses up to rounding."""
    many = ["--tokens", "128", "--save-every", "3"]
    run(folder, gpt2(*many, "--shard", "all", ranks=2, out="parts"))
    end = losses(folder, "parts")
    last = files(folder / "parts")
    shutil.rmtree(folder / "parts/step-000006")
    for copy in ("alone", "file"):
        shutil.copytree(folder / "parts", folder / copy)
    run(folder, [tern, "convert", "file", "--to", "file/checkpoint.safetensors"])
    shutil.rmtree(folder / "file/step-000003")
    says("continuing after step 3 of parts", run(folder, gpt2(*many, "--shard", "all", "--resume", ranks=2, out="parts")))
    check(files(folder / "parts") == last, "resuming in parts has other bits")
    alone = run(folder, gpt2(*many, "--resume", out="alone"))
    says("continuing after step 3 of alone", alone)
    check("instead of" not in alone, f"the same --tokens on another number of ranks: {alone}")
    check(close(losses(folder, "alone"), end), "resuming alone")
    shutil.copytree(folder / "file", folder / "other")
    says("a step has 64 tok instead of 128", run(folder, gpt2("--tokens", "64", "--save-every", "3", "--resume", out="other")))
    says("needs tern run --max-restarts N", run(folder, gpt2("--memory-every", "2", ranks=2, out="remembered")))
    says("continuing after step 3 of file", run(folder, gpt2(*many, "--shard", "all", "--resume", ranks=2, out="file")))
    check(losses(folder, "file") == end, "resuming from one file")


def memory(folder):
    """What loss.csv and the progress line call memory is the same, and has the gradients in the ranks' shared memory: a rank of two
    has as much as one alone."""
    most = []
    for ranks in (1, 2):
        run(folder, gpt2("--overwrite", ranks=ranks, steps=2, out="memory", model=("--model", "mini", "--vocab", "300")))
        head, *_, last = (folder / "memory/loss.csv").read_text().splitlines()
        most.append(float(dict(zip(head.split(","), last.split(",")))["memory_mb"]))
    gradients = 4 * 3.3  # MB
    check(most[0] > 4 * gradients - 1 and abs(most[0] - most[1]) < gradients / 2, f"memory on one rank and on two: {most}")


with tempfile.TemporaryDirectory() as top:
    folder = pathlib.Path(top)
    (folder / "text").write_text("It was the best of times, it was the worst of times.\n" * 100)
    (folder / "tokens.bin").write_bytes(array.array("H", [(7 * i + i * i % 3) % 300 for i in range(3000)]).tobytes())
    text(folder)
    for program, out in ((gpt2, "out"), (char_gpt, "chars")):
        overwriting(folder, program, out)
        interrupted(folder, program, out)
        no_checkpoint(folder, program, out)
        full_output(folder, program, out)
    exported(folder)
    vocabulary(folder)
    options(folder)
    quoted(folder)
    one_rank(folder)
    longer(folder)
    grown(folder)
    beside(folder)
    diverged(folder)
    llama(folder)
    begun(folder)
    damaged(folder)
    accumulated(folder)
    in_parts(folder)
    resumed_in_parts(folder)
    memory(folder)
    on_meshes(folder)
