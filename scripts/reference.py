#!/usr/bin/env python3
"""A second implementation of the models that kjit runs: a float64 NumPy forward pass, for test data.

    reference.py logits MODEL.gguf 1,2,3          top 20 logits of the last position
    reference.py check MODEL.gguf ORACLE.json     against the float64 logits of tests/data/oracle/{models,quants}

It was written from the papers and the published model descriptions, not from kjit's Rust. It is short, not fast: it
has no KV cache and computes every position again. Needs numpy and the `gguf` package, whose dequantiser reads the
weights (f32 values as ggml defines them). All later arithmetic is float64.

Llama: Touvron et al. 2023 (RMSNorm before each block, SwiGLU), Ainslie et al. 2023 (grouped queries), Su et al. 2021
(rotary positions). Qwen2 adds biases to q, k and v; Qwen3 an RMSNorm of each q and k head; Qwen3-MoE routes each
token to the k experts of largest softmax probability, their weights renormalised to 1. Gemma 3 (2025): embeddings
times sqrt(width), norms also after each block, GELU (tanh form) in place of SiLU, and five layers with a sliding
window and rotary base 10000 for each layer with full attention.
"""

from __future__ import annotations

import json
import math
import pathlib
import sys

import numpy as np
from gguf import GGUFReader, dequantize


class Model:
    """Metadata and weights of a GGUF file, each weight as a float64 [out, in] array."""

    def __init__(self, path: str):
        reader = GGUFReader(path)
        self.tensors = {t.name: t for t in reader.tensors}
        self.meta = {k: f.contents() for k, f in reader.fields.items() if len(f.data) == 1 or "tokenizer" not in k}
        self.arch = self.meta["general.architecture"]
        if self.arch not in ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3"):
            raise ValueError(f"architecture {self.arch!r} is not described here")
        if self.get("rope.scaling.type", "none") != "none":
            raise ValueError("rope scaling by metadata is not described here")
        self.layers, self.width = self.get("block_count"), self.get("embedding_length")
        self.heads = self.get("attention.head_count")
        self.kv_heads = self.get("attention.head_count_kv", self.heads)
        self.head_dim = self.get("attention.key_length", self.width // self.heads)
        self.eps = float(self.get("attention.layer_norm_rms_epsilon"))
        self.rope_dims = self.get("rope.dimension_count", self.head_dim)
        self.rope_base = float(self.get("rope.freq_base", 10000.0))
        self.window = self.get("attention.sliding_window", 0) if self.arch == "gemma3" else 0
        self.cache: dict[str, np.ndarray] = {}

    def get(self, key: str, default=None):
        value = self.meta.get(f"{self.arch}.{key}", default)
        if value is None:
            raise ValueError(f"the file has no {self.arch}.{key}")
        return value

    def weight(self, name: str) -> np.ndarray | None:
        if name not in self.tensors:
            return None
        if name not in self.cache:
            t = self.tensors[name]
            self.cache[name] = dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]).astype(np.float64)
        return self.cache[name]

    def rows(self, name: str, ids) -> np.ndarray:
        t = self.tensors[name]
        return dequantize(t.data[ids], t.tensor_type).astype(np.float64)

    def rope_is_interleaved(self) -> bool:
        """Llama files hold q and k permuted so that pairs are neighbours; the others pair i with i + n/2."""
        return self.arch == "llama"

    def layer_is_local(self, layer: int) -> bool:
        return self.window > 0 and (layer + 1) % 6 != 0


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def rope(m: Model, x: np.ndarray, base: float) -> np.ndarray:
    """Rotate the first rope_dims elements of each head of x [positions, heads, head_dim]."""
    half = m.rope_dims // 2
    divisors = base ** (2.0 * np.arange(half) / m.rope_dims)
    factors = m.weight("rope_freqs.weight")
    if factors is not None:
        divisors = divisors * factors
    angle = (np.arange(len(x))[:, None] / divisors)[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle)
    out = x.copy()
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if m.rope_is_interleaved() else (
        slice(0, half), slice(half, 2 * half))
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., first] * sin + x[..., second] * cos
    return out


def attention(m: Model, layer: int, x: np.ndarray, tap) -> np.ndarray:
    b, n = f"blk.{layer}.", len(x)

    def project(name: str, heads: int) -> np.ndarray:
        y = x @ m.weight(f"{b}attn_{name}.weight").T
        bias = m.weight(f"{b}attn_{name}.bias")
        if bias is not None:
            y = y + bias
        y = y.reshape(n, heads, -1)
        norm = m.weight(f"{b}attn_{name}_norm.weight")
        return y if norm is None else rms_norm(y, norm, m.eps)

    local = m.layer_is_local(layer)
    base = 10000.0 if local else m.rope_base
    q = tap(layer, "q_rope", rope(m, project("q", m.heads), base))
    k = tap(layer, "k_rope", rope(m, project("k", m.kv_heads), base))
    v = tap(layer, "v", project("v", m.kv_heads))
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    hidden = (distance < 0) | ((distance >= m.window) if local else False)
    group = m.heads // m.kv_heads
    out = np.empty((n, m.heads, v.shape[-1]))
    for h in range(m.heads):
        scores = q[:, h] @ k[:, h // group].T / math.sqrt(m.head_dim)
        out[:, h] = softmax(np.where(hidden, -np.inf, scores)) @ v[:, h // group]
    out = tap(layer, "attention", out.reshape(n, -1))
    return out @ m.weight(f"{b}attn_output.weight").T


def feed_forward(m: Model, layer: int, x: np.ndarray, tap) -> np.ndarray:
    b = f"blk.{layer}."
    activation = gelu_tanh if m.arch == "gemma3" else silu

    def glu(x, gate, up, down):
        return (activation(x @ gate.T) * (x @ up.T)) @ down.T

    if m.arch != "qwen3moe":
        return glu(x, *(m.weight(f"{b}ffn_{p}.weight") for p in ("gate", "up", "down")))
    gate, up, down = (m.weight(f"{b}ffn_{p}_exps.weight") for p in ("gate", "up", "down"))
    probabilities = softmax(x @ m.weight(f"{b}ffn_gate_inp.weight").T)
    chosen = np.argsort(-probabilities, axis=-1, kind="stable")[:, : m.get("expert_used_count")]
    tap(layer, "experts", chosen)
    weights = np.take_along_axis(probabilities, chosen, axis=-1)
    weights = tap(layer, "expert_weights", weights / weights.sum(axis=-1, keepdims=True))
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        for expert, weight in zip(chosen[i], weights[i]):
            out[i] += weight * glu(row, gate[expert], up[expert], down[expert])
    return out


def forward(m: Model, ids: list[int], taps: dict[str, np.ndarray] | None = None, positions=slice(-1, None)) -> np.ndarray:
    """Logits [positions, vocabulary]. `taps`, if given, receives intermediate values of the last position."""

    def tap(layer, name, value):
        if taps is not None:
            taps[f"layer{layer}.{name}" if layer is not None else name] = value[-1].reshape(-1)
        return value

    x = m.rows("token_embd.weight", ids)
    if m.arch == "gemma3":
        x = x * math.sqrt(m.width)
    tap(None, "embedding", x)
    for layer in range(m.layers):
        b = f"blk.{layer}."
        y = attention(m, layer, rms_norm(x, m.weight(b + "attn_norm.weight"), m.eps), tap)
        if m.arch == "gemma3":
            y = rms_norm(y, m.weight(b + "post_attention_norm.weight"), m.eps)
        x = tap(layer, "after_attention", x + y)
        y = feed_forward(m, layer, rms_norm(x, m.weight(b + "ffn_norm.weight"), m.eps), tap)
        if m.arch == "gemma3":
            y = rms_norm(y, m.weight(b + "post_ffw_norm.weight"), m.eps)
        x = tap(layer, "out", x + y)
    x = tap(None, "final_norm", rms_norm(x[positions], m.weight("output_norm.weight"), m.eps))
    head = "output.weight" if "output.weight" in m.tensors else "token_embd.weight"
    vocab = len(m.tensors[head].data)
    # in slices: a vocabulary of 262144 in float64 would need gigabytes
    return np.concatenate([x @ m.rows(head, slice(i, i + 16384)).T for i in range(0, vocab, 16384)], axis=1)


def logsumexp(x: np.ndarray) -> float:
    return float(x.max() + np.log(np.exp(x - x.max()).sum()))


def top(x: np.ndarray, n: int) -> list:
    best = np.argsort(-x, kind="stable")[:n]
    return [[int(i), float(x[i])] for i in best]


def check(m: Model, oracle: str) -> None:
    data = json.load(open(oracle))
    if "list" not in data["prompts"]:  # a re-quantised file uses the prompts of its original
        original = pathlib.Path(oracle).parent.parent / "models" / (data["model"].split("-")[0] + ".json")
        data["prompts"] = json.load(open(original))["prompts"]
    prompts = {p["id"]: p["ids"] for p in data["prompts"]["list"]}
    for want in data["logits_truth_f64"]["list"]:
        got = forward(m, prompts[want["id"]])[0]
        pairs = want["top20"] + list(zip(want["probe_ids"], want["probe_logits"]))
        worst = max(abs(got[p[0]] - p[1]) for p in pairs)
        print(f"{want['id']:5} max |difference| {worst:.3e}, of logsumexp {abs(logsumexp(got) - want['logsumexp']):.3e}")


def main() -> int:
    if len(sys.argv) != 4 or sys.argv[1] not in ("logits", "check"):
        print(__doc__, file=sys.stderr)
        return 2
    model = Model(sys.argv[2])
    if sys.argv[1] == "check":
        check(model, sys.argv[3])
    else:
        logits = forward(model, [int(i) for i in sys.argv[3].split(",")])[0]
        print(json.dumps({"n_vocab": len(logits), "top": top(logits, 20), "logsumexp": logsumexp(logits)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
