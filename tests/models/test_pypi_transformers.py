#!/usr/bin/env python3
"""Models of random shapes, made and saved by transformers, run in Tern: logits, loss, every gradient, 20 steps of AdamW, greedy
text; then saved by Tern and opened by transformers. The same on meshes of ranks, if heads can be divided. See hf_program.c.

f32 is held to 1e-5 of the largest number of a tensor, or of its norm after the steps, in which single gradients near 0 count for more
than their size. In bf16 both sides round after every operation, each in its own order: ours may be four times as far from PyTorch's
f32 as PyTorch's own bf16 is, plus a few roundings.
"""
import os
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
import pypi
pypi.need("torch", "transformers", "safetensors")

import copy
import random
import subprocess
import tempfile
import torch
import transformers
from safetensors.torch import save_file
import twin

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
STEPS, CONTINUED = 20, 8
draw = random.Random(int(os.environ.get("TERN_SEED", "3")))
torch.manual_seed(draw.randint(0, 10 ** 9))


def gpt2():
    heads = draw.choice([1, 2, 3, 4])
    width = heads * draw.choice([4, 8, 12, 16])
    return transformers.GPT2Config(
        vocab_size=draw.randint(17, 300), n_positions=draw.randint(24, 48), n_embd=width, n_head=heads, n_layer=draw.randint(1, 4),
        activation_function=draw.choice(["gelu_new", "gelu", "relu", "gelu_pytorch_tanh"]),
        layer_norm_epsilon=draw.choice([1e-5, 1e-6, 0.1]), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)


def llama():
    kv_heads = draw.choice([1, 2, 3])
    heads = kv_heads * draw.choice([1, 2, 4])
    head_dim = draw.choice([4, 8, 16])
    scaled = {"rope_type": "llama3", "factor": draw.choice([2.0, 8.0]), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 16}
    return transformers.LlamaConfig(
        vocab_size=draw.randint(17, 300), max_position_embeddings=draw.randint(24, 48), num_key_value_heads=kv_heads,
        num_attention_heads=heads, head_dim=head_dim, hidden_size=draw.choice([heads * head_dim, 24]), intermediate_size=draw.randint(5, 90),
        num_hidden_layers=draw.randint(1, 4), rms_norm_eps=draw.choice([1e-5, 1e-6, 0.1]), tie_word_embeddings=draw.random() < 0.5,
        rope_parameters=dict(draw.choice([{"rope_type": "default"}, scaled]), rope_theta=draw.choice([100.0, 10000.0, 500000.0])),
        bos_token_id=0, eos_token_id=0)


def make(config):
    """Larger weights than one would train from, so that differences show."""
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn(p.shape) * (0.2 if p.dim() > 1 else 0.1) + (1 if "norm" in name or ".ln_" in name else 0) * (p.dim() == 1))
    return model.eval()


def batch_of(config):
    T = draw.randint(3, 16)
    tokens = torch.randint(0, config.vocab_size, (3, T), dtype=torch.int64)
    targets = torch.randint(0, config.vocab_size, (3, T), dtype=torch.int64)
    targets[0, 0] = -100
    return tokens, targets


def loss_of(model, tokens, targets):
    logits = model(tokens).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def their_name(model, path):
    """The name of our parameter in the module of transformers, and whether it is transposed there."""
    prefix = "" if path.startswith("lm_head.") else model.base_model_prefix + "."
    return prefix + path, model.config.model_type == "gpt2" and path.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))


def compute(model, tokens, targets):
    """What hf_program.c writes, under our names (the parameters' are asked for by `ours`)."""
    result = {}
    with torch.no_grad():
        text = tokens[:1]
        for _ in range(CONTINUED):
            text = torch.cat([text, model(text).logits[:, -1:].argmax(-1)], 1)
    result["greedy"] = text
    logits, loss = loss_of(model, tokens, targets)
    result["logits"], result["loss"] = logits.detach(), loss.detach()
    loss.backward()
    result["grad"] = {n: p.grad.clone() for n, p in model.named_parameters()}
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-5, weight_decay=0.1)  # eps: of hf_program.c
    losses = []
    for _ in range(STEPS):
        optim.zero_grad()
        loss = loss_of(model, tokens, targets)[1]
        losses.append(loss.item())
        loss.backward()
        optim.step()
    result["losses"] = torch.tensor(losses)
    result["after"] = {n: p.detach().clone() for n, p in model.named_parameters()}
    return result


def run_here(folder, tokens, targets, *mesh):
    """hf_program's results, and the folder that it saved."""
    saved, out, batch = folder + "/saved", folder + "/out.safetensors", folder + "/batch.safetensors"
    saved, out = ("-".join((path,) + mesh) for path in (saved, out))
    save_file({"tokens": tokens, "targets": targets}, batch)
    done = subprocess.run([os.path.join(os.environ["TERN_TEST_BIN"], "hf_program"), folder, batch, out, saved, *mesh],
                          env=dict(os.environ, OMP_NUM_THREADS="1"), capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return twin.read(out), saved


def without_effect(name, model):
    """Elements that change no result: keys' biases, which add the same to all scores of a query. Their gradients are
    rounding errors around 0, which 20 steps of Adam amplify."""
    width = model.config.hidden_size
    return slice(width, 2 * width) if name.endswith(".c_attn.bias") else slice(0, 0)


def parameters(here, model, kind):
    """(their name, our tensor in their layout) for all that hf_program wrote under kind."""
    for path, ours in twin.below(here, kind + ".").items():
        name, turned = their_name(model, path)
        yield name, ours.T if turned else ours


def open_there(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="eager", output_loading_info=True)
    return model.eval(), info


def same_model(model, saved):
    """What was saved here is the same model in transformers, bit for bit."""
    again, info = open_there(saved)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info.get(what):
            raise AssertionError("%s: %s" % (what, info[what]))
    mine, theirs = dict(again.named_parameters()), dict(model.named_parameters())
    if mine.keys() != theirs.keys():
        raise AssertionError("other parameters: %s" % (mine.keys() ^ theirs.keys()))
    for name in theirs:
        if mine[name].dtype != theirs[name].dtype or not torch.equal(mine[name], theirs[name]):
            raise AssertionError("%s is not what it was" % name)
    tokens = torch.arange(5)[None] % model.config.vocab_size
    with torch.no_grad():
        # several names mean the same activation, of which transformers has more than one implementation
        twin.close(again(tokens).logits, model(tokens).logits, "logits after saving", 1e-6 if model.dtype == torch.float32 else 0.02)


def config_text(config):
    keys = ("vocab_size", "n_positions", "n_embd", "n_head", "n_layer", "activation_function", "max_position_embeddings", "hidden_size",
            "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "intermediate_size", "tie_word_embeddings")
    return ", ".join("%s %s" % (key, getattr(config, key)) for key in keys if key in config.to_dict())


def on_meshes(config, folder, tokens, targets):
    """The results on each mesh that can divide the model's heads; it saves the same as one rank."""
    results = {}
    if all(getattr(config, name, 2) % 2 == 0 for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size")):
        for ranks, mesh in (("2", "tp=2"), ("4", "tp=2,shard=2")):
            results[mesh], saved = run_here(folder, tokens, targets, ranks, mesh)
            for path in pathlib.Path(folder, "saved").iterdir():
                if path.read_bytes() != pathlib.Path(saved, path.name).read_bytes():
                    raise AssertionError("%s: %s is not one rank's" % (mesh, path.name))
    return results


def in_f32(config, **how):
    def test():
        model = make(config)
        tokens, targets = batch_of(config)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder, **how)
            here, saved = run_here(folder, tokens, targets)
            same_model(model, saved)
            meshes = on_meshes(config, folder, tokens, targets)
        there = compute(model, tokens, targets)
        for mesh, cut in meshes.items():
            for name in ("logits", "loss", "losses"):
                twin.close(cut[name], there[name], "%s: %s" % (mesh, name), 1e-5)
            if cut["greedy"].tolist() != there["greedy"].tolist():
                raise AssertionError("%s: greedy text %s" % (mesh, cut["greedy"].tolist()))
        for name in ("logits", "loss", "losses"):
            twin.close(here[name], there[name], name, 1e-5)
        if here["greedy"].tolist() != there["greedy"].tolist():
            raise AssertionError("greedy text %s, transformers' %s" % (here["greedy"].tolist(), there["greedy"].tolist()))
        for name, ours in parameters(here, model, "grad"):
            twin.close(ours, there["grad"].pop(name), "gradient of " + name, 1e-5)
        for name, ours in parameters(here, model, "after"):
            theirs = there["after"].pop(name)
            ours[without_effect(name, model)] = theirs[without_effect(name, model)]
            error = ((ours - theirs).norm() / theirs.norm()).item()
            if not error <= 1e-5:
                raise AssertionError("%s after %d steps is off by %g of its norm" % (name, STEPS, error))
        if there["grad"] or there["after"]:
            raise AssertionError("we have no %s" % ", ".join(there["after"]))
    return test


def as_rounded(ours, theirs, exact, what):
    """Our rounded numbers are about as near to the exact ones as PyTorch's rounded ones."""
    error, other = ((x.float() - exact).norm().item() for x in (ours, theirs))
    if not error <= 4 * other + 2 ** -6 * exact.norm().item():
        raise AssertionError("%s is off by %g, PyTorch's in bf16 by %g, of %g" % (what, error, other, exact.norm()))


def in_bf16(config):
    def test():
        tokens, targets = batch_of(config)
        with tempfile.TemporaryDirectory() as folder:
            make(config).to(torch.bfloat16).save_pretrained(folder)
            model = open_there(folder)[0]  # keeps in f32 what is not a weight
            here, saved = run_here(folder, tokens, targets)
            same_model(model, saved)
        exact = compute(copy.deepcopy(model).float(), tokens, targets)
        there = compute(model, tokens, targets)
        for name in ("logits", "loss", "losses"):
            as_rounded(here[name], there[name], exact[name], name)
        for name, ours in parameters(here, model, "grad"):
            as_rounded(ours, there["grad"][name], exact["grad"][name], "gradient of " + name)
    return test


def tests():
    for family in (gpt2, llama):
        for _ in range(7):
            config = family()
            yield "%s f32: %s" % (family.__name__, config_text(config)), in_f32(config)
        config = family()
        yield "%s f32 in parts: %s" % (family.__name__, config_text(config)), in_f32(config, max_shard_size=4000)
        for _ in range(3):
            config = family()
            yield "%s bf16: %s" % (family.__name__, config_text(config)), in_bf16(config)


twin.run(list(tests()))
