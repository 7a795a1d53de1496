#!/usr/bin/env python3
"""Writes tests/data/golden: the results of scripts/reference.py for small synthetic models of every architecture.

    make_goldens.py [MODELS]        MODELS: folder for the models (default: a temporary folder)

Needs numpy and the `gguf` package (`python3 -m venv v && v/bin/pip install numpy gguf`). Tests need only the models,
which scripts/fetch-test-models creates with scripts/make_gguf.py. `models.sha256` has the digest of each model.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import reference

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent / "tests" / "data" / "golden"
SEED = 1

# Every architecture in the common types, and one of them in every type that make_gguf.py writes.
MODELS = {
    "tiny-llama": ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k_m", "q5_k_m", "q6_k"],
    "tiny-tied": ["q8_0", "q4_k_m"],
    "tiny-qwen2": ["f32", "f16", "q8_0", "q4_k_m"],
    "tiny-qwen3": ["f32", "f16", "q8_0", "q4_k_m"],
    "tiny-moe": ["f16", "q8_0", "q4_k_m"],
    "tiny-gemma3": ["f32", "f16", "q8_0", "q4_k_m"],
}
TAPPED = "q8_0"  # the type whose intermediate values are stored
LENGTHS = [1, 7, 33, 65, 300]
GREEDY_STEPS = 24


def short(x) -> float:
    return float(f"{float(x):.10g}")


def greedy(m: reference.Model, ids: list[int]) -> dict:
    ids, new, steps = list(ids), [], []
    for _ in range(GREEDY_STEPS):
        (best, first), (second, next_best) = reference.top(reference.forward(m, ids)[0], 2)
        new.append(best)
        steps.append([second, short(first), short(first - next_best)])
        ids.append(best)
    return {"ids": new, "runner_up_top1_margin": steps}


def golden(path: pathlib.Path, shape: str, quant: str, sha256: str) -> dict:
    m = reference.Model(str(path))
    vocab = len(m.tensors["token_embd.weight"].data)
    rng = np.random.default_rng(20)
    prompts = [{"id": f"{n}R", "ids": [int(i) for i in rng.integers(0, vocab - 2, n)]} for n in LENGTHS]
    probe = [int(i) for i in rng.choice(vocab, 64, replace=False)]
    if quant not in ("f32", "q8_0", "q4_k_m"):
        prompts = [p for p in prompts if len(p["ids"]) in (1, 33)]
    logits, next_logprobs = [], []
    for p in prompts:
        every = reference.forward(m, p["ids"], positions=slice(None))
        last = every[-1]
        logits.append({
            "id": p["id"],
            "top20": [[i, short(v)] for i, v in reference.top(last, 20)],
            "logsumexp": short(reference.logsumexp(last)),
            "probe_ids": probe,
            "probe_logits": [short(v) for v in last[probe]],
        })
        if len(p["ids"]) == 33:
            values = [short(row[i] - reference.logsumexp(row)) for row, i in zip(every, p["ids"][1:])]
            next_logprobs.append({"id": p["id"], "values": values})
    out = {
        "model": f"{shape}-{quant}",
        "file": f"tiny/{path.name}",
        "sha256": sha256,
        "made_by": f"scripts/make_gguf.py --shape {shape} --quant {quant} --seed {SEED} --out {path.name}",
        "oracle": "scripts/reference.py (float64 NumPy) through scripts/make_goldens.py",
        "prompts": {"note": "random ids", "list": prompts},
        "logits_truth_f64": {"note": "last position", "list": logits},
        "next_logprobs": {"note": "log probability of id i+1 after ids 0..=i", "list": next_logprobs},
        "greedy_exact": {"note": "steps: [runner-up id, top logit, top logit minus runner-up]", "list": [
            {"id": p["id"], **greedy(m, p["ids"])} for p in prompts if len(p["ids"]) in (7, 33)
        ]},
    }
    if quant == TAPPED:
        taps: dict[str, np.ndarray] = {}
        ids = next(p for p in prompts if len(p["ids"]) == 33)
        reference.forward(m, ids["ids"], taps)
        kept = {"embedding", "final_norm"} | {k for k in taps if k.startswith("layer0.")}
        kept |= {"layer5.q_rope", "layer5.attention"} if m.window else set()
        out["taps"] = {
            "note": "values of the last position, heads one after another; q and k after bias, norm and rotation; "
                    "attention before attn_output; after_attention and out include the residual",
            "id": ids["id"],
            "values": {k: [short(v) for v in taps[k]] for k in taps if k in kept},
        }
    return out


def write_json(path: pathlib.Path, value: dict) -> None:
    """Writes one top-level key per line, so that a diff of goldens shows the changed values."""
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in value.items())
    path.write_text("{\n" + lines + "\n}\n")


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        folder.mkdir(parents=True, exist_ok=True)
        OUT.mkdir(parents=True, exist_ok=True)
        manifest = []
        for shape, quants in MODELS.items():
            for quant in quants:
                path = folder / f"{shape}-{quant}.gguf"
                subprocess.run([sys.executable, HERE / "make_gguf.py", "--shape", shape, "--quant", quant,
                                "--seed", str(SEED), "--out", path], check=True, stdout=subprocess.DEVNULL)
                sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
                manifest.append(f"{sha256}  tiny/{path.name}\n")
                write_json(OUT / f"{shape}-{quant}.json", golden(path, shape, quant, sha256))
                print(f"{shape}-{quant}", file=sys.stderr)
        (OUT / "models.sha256").write_text("".join(manifest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
