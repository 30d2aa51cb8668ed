#!/usr/bin/env python3
"""make.py: the expected logits of model fixtures, from a reference implementation.

  make.py [--check] DIR...          make DIR's continuations and logits again
  make.py --new CONFIG.json DIR     a fixture for a model of this configuration

A fixture is config.json and fixture.json: tensors as shape and fill, prompts,
the tokens that follow greedily with their margins over the second choice, and a
file of float32 logits a prompt.  Whose numbers they are stands in fixture.json:
`transformers` (the library's version; float32, eager attention, on the CPU), or
`reference` (reference.py, float64).  --check compares instead of writing: the
same tokens, and logits within 1e-5 in relative norm.

Run by hand.  Needs numpy; for `transformers` fixtures and --new also torch and
transformers (the fixtures were made with transformers 5.17.0).
"""
import json
import math
import pathlib
import shutil
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import reference  # noqa: E402
from fill import fill  # noqa: E402

STEPS = 24
PROMPTS = ([1, 5, 9, 200, 77], [1] + [(i * 37 + 11) % 380 for i in range(39)])


def weights(fixture):
    """name -> float64 values (bytes where the tensor is stored as such)."""
    return {name: fill(f"{fixture['family']}/{name}", spec)
            for name, spec in fixture["tensors"].items()}


def library_model(folder, fixture):
    """Token ids -> logits, by transformers on a checkpoint written from the fixture."""
    import torch
    import transformers
    from safetensors.torch import save_file

    if fixture["transformers"] != transformers.__version__:
        print(f"{folder}: made with transformers {fixture['transformers']}, "
              f"this is {transformers.__version__}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        shutil.copy(folder / "config.json", name)
        save_file({k: torch.from_numpy(v).to(torch.bfloat16) for k, v in weights(fixture).items()},
                  f"{name}/model.safetensors", metadata={"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(
            name, dtype=torch.float32, attn_implementation="eager").eval()

    def run(ids):
        with torch.no_grad():
            return model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()

    return run


def logits_of(folder, fixture):
    if "transformers" in fixture:
        return library_model(folder, fixture)
    config, w = json.loads((folder / "config.json").read_text()), weights(fixture)
    return lambda ids: reference.logits(config, w, ids)


def continue_prompt(run, ids):
    """Greedy tokens, their margins, and the logits of every position."""
    greedy, margins = [], []
    for _ in range(STEPS):
        last = run(ids + greedy)[-1]
        second, first = np.sort(last)[-2:]
        greedy.append(int(last.argmax()))
        margins.append(round(float(first - second), 5))
    return greedy, margins, run(ids + greedy)


def make(folder):
    fixture = json.loads((folder / "fixture.json").read_text())
    run = logits_of(folder, fixture)
    for prompt in fixture["prompts"]:
        prompt["greedy"], prompt["margins"], got = continue_prompt(run, prompt["ids"])
        prompt["shape"] = list(got.shape)
        got.astype("<f4").tofile(folder / prompt["logits"])
    (folder / "fixture.json").write_text(json.dumps(fixture))
    return []


def check(folder):
    fixture = json.loads((folder / "fixture.json").read_text())
    run = logits_of(folder, fixture)
    faults = []
    for prompt in fixture["prompts"]:
        want = np.fromfile(folder / prompt["logits"], "<f4").reshape(prompt["shape"])
        got = run(prompt["ids"] + prompt["greedy"])
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        if not error <= 1e-5:
            faults.append(f"{prompt['logits']}: relative error {error:.2e}")
        n = len(prompt["ids"])
        for i, (token, margin) in enumerate(zip(prompt["greedy"], prompt["margins"])):
            if margin >= 1e-3 and got[n + i - 1].argmax() != token:
                faults.append(f"{prompt['logits']}: token {i} is {got[n + i - 1].argmax()}, "
                              f"expected {token}")
    return faults


def spec_of(name, shape):
    """How a tensor is filled: norms around 1, the rest so that activations keep their size."""
    if len(shape) == 1 and "norm" in name:
        return {"shape": shape, "exp": -5, "shift": 4, "offset": 1.0}
    if len(shape) == 1:
        return {"shape": shape, "exp": -10, "shift": 0, "offset": 0.0}
    if "embed" in name:
        return {"shape": shape, "exp": -6, "shift": 0, "offset": 0.0}
    exp = -round(math.log2(math.sqrt(shape[-1]) * 64))
    return {"shape": shape, "exp": exp, "shift": 0, "offset": 0.0}


def new(config, folder):
    import transformers
    from safetensors import safe_open

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(config, folder / "config.json")
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(folder))
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)  # checkpoint names, not the library's own
        with safe_open(f"{name}/model.safetensors", "pt") as file:
            shapes = {k: list(file.get_slice(k).get_shape()) for k in sorted(file.keys())}
    fixture = {"family": folder.name, "transformers": transformers.__version__,
               "tensors": {k: spec_of(k, s) for k, s in shapes.items()},
               "prompts": [{"ids": list(ids), "logits": f"logits{i}.f32"}
                           for i, ids in enumerate(PROMPTS)]}
    (folder / "fixture.json").write_text(json.dumps(fixture))
    return make(folder)


def main():
    words = sys.argv[1:]
    if words[:1] == ["--new"] and len(words) == 3:
        return new(pathlib.Path(words[1]), pathlib.Path(words[2])) and 1
    act = check if words[:1] == ["--check"] else make
    passed = failed = 0
    for folder in map(pathlib.Path, words[1:] if act is check else words):
        faults = act(folder)
        passed, failed = passed + (not faults), failed + bool(faults)
        print(f"{folder.name}: {'; '.join(faults) or 'ok'}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
