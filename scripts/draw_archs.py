#!/usr/bin/env python3
"""Generates tiny models with random sizes, optional tensors and optional keys, for every architecture.

    draw_archs.py --out DIR                       draws 0, 1 and 2 of each architecture, and index.json
    draw_archs.py --out DIR --draws 20            the first twenty
    draw_archs.py --out DIR --draws 5:8 gemma2    some draws of some architectures
    draw_archs.py --list                          the architectures
    draw_archs.py --keys gemma2 --draws 20        one line for each draw: its keys

make_archs.py has one size of each architecture. This script draws everything that a loader reads: heads, widths,
ranks, experts, groups, factors, windows, patterns, rotations, vocabularies and layers; biases, norms, tied or
separate output matrices, fused or separate projections; keys that may be absent. The architecture and the
number identify a draw: "gemma2-7" is the same file on every machine. It needs only the standard library.

index.json lists for each file: its architecture, the prompt, the context length (if a choice depends on it), and
whether the result is a vector. tests/data/oracle/draws.json has the reference values of the draws (see its
README).
"""
import argparse, array, base64, hashlib, json, math, os, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from make_archs import ARR, BOOL, F32, M, STR, U32  # noqa: E402

DRAWS = {}


class Random:
    """Random numbers from SHAKE-128, equal in every version of Python."""

    def __init__(r, text):
        r.bytes, r.at = hashlib.shake_128(text.encode()).digest(16384), 0

    def below(r, n):
        r.at += 4
        return int.from_bytes(r.bytes[r.at - 4 : r.at], "little") % n

    def int(r, a, b):
        return a + r.below(b - a + 1)

    def of(r, *xs):
        return xs[r.below(len(xs))]

    def may(r, percent=50):
        return r.below(100) < percent

    def both(r, n, percent=50):
        """Returns a list of booleans. If it is long enough, it has both values: loaders expect a layer of each kind."""
        xs = [r.may(percent) for _ in range(n)]
        if n > 1 and len(set(xs)) == 1: xs[r.below(n)] ^= True
        return xs if n > 1 else [True]

    def real(r, a, b):
        """Returns a number with three digits, so that rounding to f32 does not change its text."""
        return float(f"{a + (b - a) * r.below(100001) / 100000:.3g}")


class Draw(M):
    """A model whose sizes are drawn while it is built."""

    def __init__(d, arch, number):
        super().__init__(arch, arch, f"draw/{number}")
        d.r, d.context, d.optional = Random(f"{arch}/{number}"), 64, {}
        d.number = number

    # --- sizes
    def size(d, bound=False, gqa=True, layers=None, heads=None, dims=None, ctx=None, ff="plain", split_v=False, ln=False, eps=None,
             tok=None, widths=None, kv_list=False, key="D"):
        """Draws width, layers and heads. `bound`: no key gives the size of a head; it is width / heads."""
        r = d.r
        d.L = r.of(*(layers or (1, 2, 2, 3, 3, 4)))
        d.H = r.of(*(heads or (1, 2, 3, 4, 4, 5, 6, 8)))
        d.KV = r.of(*[k for k in range(1, d.H + 1) if d.H % k == 0]) if gqa else d.H
        if bound:
            choice = dims or (8, 10, 12, 16, 18, 20, 24, 32, 36, 48)
            d.D = r.of(*[x for x in choice if 24 <= d.H * x <= 160] or choice[-1:])
            d.E = d.H * d.D
        else:
            d.E = r.of(*(widths or (32, 40, 48, 56, 64, 72, 80, 96)))
            d.D = r.of(*(dims or (8, 10, 12, 16, 20, 24, 32, 36, 40, 48)))
            while d.H * d.D > 256: d.H = d.H // 2 or 1; d.KV = 1 if gqa else d.H
        d.F = r.of(24, 32, 40, 48, 56, 64, 80, 96, 100, 128)
        d.V = r.int(263, 340)
        d.u("block_count", d.L); d.u("context_length", ctx or r.of(128, 512, 2048, 4096, 131072)); d.u("embedding_length", d.E)
        if ff == "plain": d.u("feed_forward_length", [d.F] * d.L if r.may(10) else d.F)
        if heads != (0,):
            d.u("attention.head_count", [d.H] * d.L if r.may(10) else d.H)
            if d.KV != d.H or r.may(70): d.u("attention.head_count_kv", [d.KV] * d.L if r.may(10) else d.KV)
        if not bound or r.may(25):
            # The default of the format is the width divided by the number of heads.
            if bound or d.E != d.H * d.D or r.may(): d.u("attention.key_length", d.D); d.u("attention.value_length", d.D)
        d.eps = eps or r.of(1e-5, 1e-6, 1e-5, 1e-3, 0.02)
        d.f("attention.layer_norm_epsilon" if ln else "attention.layer_norm_rms_epsilon", d.eps)
        if r.may(50): d.u("vocab_size", d.V)
        d.tokenizer(*(tok or r.of(("gpt2", "gpt-2"), ("gpt2", "qwen2"), ("llama",))))
        d.rot = d.D

    def layers_list(d, value):
        """Returns one number, or a list with this number for each layer."""
        return [value] * (d.L + d.next) if d.r.may(20) else value

    next = 0

    def further(d, percent=30):
        """Adds blocks that predict further tokens. The forward pass ignores them."""
        if d.r.may(percent):
            d.next = 1
            d.u("block_count", d.L + 1); d.u("nextn_predict_layers", 1)
            for k in list(d.kvs):
                t, v = d.kvs[k]
                if t == ARR and k.startswith(d.arch + ".") and len(v[1]) == d.L and "pattern" not in k and "sections" not in k: d.u(k[len(d.arch) + 1 :], v[1] + [v[1][-1]])
        elif d.r.may(20): d.u("nextn_predict_layers", 0)

    def further_tensors(d):
        for i in range(d.L, d.L + d.next):
            p = f"blk.{i}.nextn."
            d.lin(p + "eh_proj", 2 * d.E, d.E); d.norm(p + "enorm", d.E); d.norm(p + "hnorm", d.E)
            if d.r.may(): d.norm(p + "shared_head_norm", d.E)

    # --- rotation
    def rope(d, partial=False, head=None, factors=None, freqs=False, swa_base=False, scaling=True, sections=None, base=True, tensors="type"):
        """Draws the base, the rotated part of a head, and the scaling. `factors`: "long" adds the two lists that depend
        on the context. `tensors`: with "type", only the scaling type longrope has them."""
        r, head = d.r, head or d.D
        d.rot = head
        if partial and r.may(70): d.rot = r.of(*range(2, head + 1, 2))
        if partial and d.rot != head or r.may(40): d.u("rope.dimension_count", d.rot)
        if base and r.may(75): d.f("rope.freq_base", r.of(100.0, 500.0, 10000.0, 12345.6, 1e6, 5e6))
        if swa_base and r.may(50): d.f("rope.freq_base_swa", r.of(50.0, 1000.0, 10000.0, 77777.0))
        if sections is not None:
            n, a = d.rot // 2, r.below(d.rot // 2 + 1)
            b = r.below(n - a + 1)
            d.u("rope.dimension_sections", [a, b, n - a - b, 0][: sections])
        kind = r.of(None, None, "none", "linear", "linear", "yarn", "yarn", "factor", "old", "longrope") if scaling else None
        if kind in ("none", "linear", "yarn", "longrope"): d.s("rope.scaling.type", kind)
        if kind == "old": d.f("rope.scale_linear", r.of(2.0, 3.5))
        elif kind == "yarn":
            if r.may(90): d.f("rope.scaling.factor", r.of(1.0, 2.0, 4.0, 7.5, 40.0))
        elif kind and r.may(70): d.f("rope.scaling.factor", r.of(0.5, 1.0, 2.0, 3.3, 8.0))
        if kind and r.may(60): d.u("rope.scaling.original_context_length", r.of(10, 24, 64, 255, 256, 257, 4096))
        if scaling and r.may(20): d.f("rope.scaling.attn_factor", r.of(0.8, 1.0, 1.19))
        if scaling and r.may(10): d.b("rope.scaling.finetuned", True)
        n = d.rot // 2
        if factors and (tensors == "always" or kind == "longrope") and r.may(80):
            d.context = 256
            d.t("rope_factors_long.weight", (n,), fn=lambda j, x: round(1.0 + 40.0 * j / n, 4)); d.t("rope_factors_short.weight", (n,), fn=lambda j, x: round(1.0 + 2.0 * j / n, 4))
        elif freqs and kind != "longrope" and r.may(50): d.rope_freqs(n)

    # --- parts
    def head(d, tied="may", bias=None, out_norm="output_norm", norm_bias=False, no_norm=False, gain=None):
        """Adds the embedding, the last norm and the output matrix. `tied`: "may", "always" or "never"."""
        own = tied == "never" or tied == "may" and d.r.may(60)
        # Embeddings have different magnitudes, so that a missing scale is detected.
        d.embd(tied=not own, out_bias=False, sd=None, out_norm=out_norm, norm_bias=norm_bias, no_norm=no_norm, gain=gain or 2.5)
        if own and (bias == "must" or bias == "may" and d.r.may()): d.t("output.bias", (d.V,), 0, 0.3)

    def scales(d, *names):
        """Adds scales of single matrices, as files of some block formats have them."""
        if d.r.may(12):
            for n in names:
                if n + ".weight" in d.tensors and d.r.may(60): d.t(n + ".scale", (1,), 1, 0.15)

    def must(d, what):
        """Returns whether an optional part exists: equal in all layers of a draw, or drawn for each layer."""
        if what in (True, False, None): return bool(what)
        key = what
        if key not in d.optional: d.optional[key] = d.r.of("all", "none", "none", "some")
        return d.optional[key] == "all" or d.optional[key] == "some" and d.r.may()

    def qkv(d, i, H=None, KV=None, D=None, Dv=None, bias="qkv bias", fused="may", gate=False, gain=1.6, obias="o bias", out=True, qk=None, E=None):
        """Adds the projections of attention. `fused`: "may", "must" or "never"."""
        H, KV, D, E = H or d.H, KV or d.KV, D or d.D, E or d.E
        Dv, p = Dv or D, f"blk.{i}."
        if "fused" not in d.optional: d.optional["fused"] = fused == "must" or fused == "may" and d.r.may(30)
        q, k, v = H * D * (2 if gate else 1), KV * D, KV * Dv
        if d.optional["fused"]:
            d.lin(p + "attn_qkv", E, q + k + v, gain)
            if d.must(bias):
                if bias is True or fused == "must" or d.r.may(70): d.t(p + "attn_qkv.bias", (q + k + v,), 0, 0.2)
                else:
                    for n, w in (("q", q), ("k", k), ("v", v)): d.t(f"{p}attn_{n}.bias", (w,), 0, 0.2)
        else:
            for n, w, g in (("q", q, gain), ("k", k, gain), ("v", v, 1.2)):
                d.lin(f"{p}attn_{n}", E, w, g)
                if d.must(bias) if bias is True else d.must(bias and f"{n} bias"): d.t(f"{p}attn_{n}.bias", (w,), 0, 0.2)
        if out:
            d.lin(p + "attn_output", H * Dv, E, 1.0)
            if d.must(obias): d.t(p + "attn_output.bias", (E,), 0, 0.2)
        if qk == "head": d.norm(p + "attn_q_norm", D, mean=1.35); d.norm(p + "attn_k_norm", D, mean=1.35)
        if qk == "whole": d.norm(p + "attn_q_norm", H * D, mean=1.35); d.norm(p + "attn_k_norm", KV * D, mean=1.35)

    def dense(d, i, F=None, kind="gated", bias="ffn bias", suffix="", gain=1.3):
        """Adds a feed-forward part: "gated", "plain", or "both" (gate and up in one tensor)."""
        F, p = F or d.F, f"blk.{i}.ffn_"
        parts = {"gated": (("gate", F), ("up", F)), "plain": (("up", F),), "both": (("up", 2 * F),)}[kind]
        for n, w in parts:
            d.lin(p + n + suffix, d.E, w, gain)
            if d.must(bias) if bias is True else d.must(bias and f"{n} bias"): d.t(f"{p}{n}{suffix}.bias", (w,), 0, 0.2)
        d.lin(p + "down" + suffix, F, d.E, gain)
        if d.must(bias) if bias is True else d.must(bias and "down bias"): d.t(f"{p}down{suffix}.bias", (d.E,), 0, 0.2)

    def mixture(d, F="key", groups=True, scale=False, norm=False, gating=None, dense_first=False, shared=None, bound_F=None, most=12, used=None):
        """Adds the keys of experts. `F`, their width: "key" (always a key), "may" (a key, or else derived from the dense
        part's width), or None (the dense part's width)."""
        r = d.r
        d.N = r.of(*[n for n in (2, 3, 4, 5, 6, 8, 9, 12) if n <= most])
        d.used = used or r.int(1, min(4, d.N))
        d.FE = r.of(16, 24, 32, 40, 48, 56)
        d.groups = None
        if groups and d.N in (8, 9, 12, 6, 4) and r.may(40):
            # The score of a group is the sum of its two best experts, so a group needs at least two.
            count = r.of(*[g for g in range(2, d.N) if d.N % g == 0 and d.N // g >= 2])
            keep = r.int(1, count - 1) if count > 1 else 1
            if keep * (d.N // count) >= d.used: d.groups = (count, keep)
            d.u("expert_group_count", count if d.groups else 1)
            if d.groups: d.u("expert_group_used_count", keep)
        d.u("expert_count", d.N); d.u("expert_used_count", d.layers_list(d.used))
        if F == "key" or F == "may" and r.may(60): d.u("expert_feed_forward_length", d.layers_list(d.FE))
        elif F == "may":
            d.F = d.FE * d.used if bound_F == "share" else d.FE
            d.u("feed_forward_length", d.F)
        else: d.FE = d.F
        if dense_first:
            if d.L and r.may(70): d.lead = r.int(0, d.L); d.u("leading_dense_block_count", d.lead)
            else: d.lead = 0
        else: d.lead = 0
        if scale and r.may(60): d.f("expert_weights_scale", r.of(0.0, 1.0, 0.6, 2.5))
        if norm and r.may(60): d.b("expert_weights_norm", r.may())
        if gating == "must": d.u("expert_gating_func", r.of(1, 2))
        elif gating == "may" and r.may(60): d.u("expert_gating_func", r.of(0, 1, 2))
        if shared == "count": d.SN = r.int(1, 2); d.u("expert_shared_count", d.SN); d.FS = d.FE * d.SN
        elif shared == "count or none": d.SN = r.int(0, 2); d.u("expert_shared_count", d.SN); d.FS = d.FE * d.SN
        elif shared == "size":
            d.FS = r.of(24, 40, 64); d.u("expert_shared_feed_forward_length", d.FS)
        elif shared == "size or ffn":
            d.FS = d.F
            if r.may(60): d.FS = r.of(24, 40, 64); d.u("expert_shared_feed_forward_length", d.FS)
        elif shared == "size or none":
            d.FS = r.of(0, 0, 24, 40)
            if d.FS or r.may(): d.u("expert_shared_feed_forward_length", d.FS)
        else: d.FS = 0

    def experts(d, i, probs=None, gate=True, bias=False, fused=None, shared=None, inner=None, gain=1.3, N=None):
        """Adds a layer's experts. `probs`: a bias for the choice. `fused`: gate and up in one tensor. Both: "may", True or
        None."""
        p, N, FE, I = f"blk.{i}.", N or d.N, d.FE, inner or d.E
        d.lin(p + "ffn_gate_inp", d.E, N, 1.8, bias)
        if d.must(probs and (probs is True or "probs bias")): d.t(p + "exp_probs_b.bias", (N,), 0, 0.15)
        if fused and d.must("gate and up"): d.lin(p + "ffn_gate_up_exps", I, 2 * FE, gain, False, (N,))
        else:
            if d.must(gate) if gate in (True, False) else not d.must("no gate"): d.lin(p + "ffn_gate_exps", I, FE, gain, bias, (N,))
            d.lin(p + "ffn_up_exps", I, FE, gain, bias, (N,))
        d.lin(p + "ffn_down_exps", FE, I, gain, bias, (N,))
        if shared is not False and d.FS: d.dense(i, d.FS, kind=shared or "gated", bias=False, suffix="_shexp")

    def normed(d, i, *names, bias=False):
        d.norms(i, *names, bias=d.must(bias) if isinstance(bias, str) else bias)

    # --- the prompt
    def ids(d):
        """Draws a prompt that is longer than every drawn window and period."""
        n = d.r.int(20, 30)
        if d.embedding: n = d.r.int(3, 30)
        raw = hashlib.shake_128(f"{d.arch}/{d.number}/prompt".encode()).digest(2 * n)
        ids = [(raw[2 * j] | raw[2 * j + 1] << 8) % d.V for j in range(n)]
        return ids


def draw(*archs):
    def deco(f):
        for arch in archs: DRAWS[arch] = f
        return f
    return deco


# ------------------------------------------------------------------------------- llama and models like it
def layers(d, norms=("attn_norm", "ffn_norm"), ffn="gated", fbias=False, norm_bias=False, **attention):
    for i in range(d.L):
        d.normed(i, *norms, bias=norm_bias); d.qkv(i, **attention); d.dense(i, kind=ffn, bias=fbias)


def llama_like(d, experts=False, shared=None, tied="may"):
    """Draws for llama's loader, which other architectures share: optional biases, frequency factors, experts with the
    width of the dense part."""
    if experts: d.mixture(F=None, shared=shared)
    d.head(tied=tied)
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i)
        if experts: d.experts(i, gate="may")
        else: d.dense(i)
        p = f"blk.{i}."
        d.scales(*[p + n for n in ("attn_q", "attn_k", "attn_v", "attn_output")])


@draw("llama")
def _(d):
    d.size(); d.rope(factors="long", freqs=True); llama_like(d, d.r.may(40))


@draw("mistral3")
def _(d):
    r = d.r
    d.size(); d.rope(factors="long", freqs=True)
    if r.may(60): d.f("attention.temperature_scale", r.of(0.0, 0.1, 0.4))
    if r.may(60): d.u("rope.scaling.original_context_length", r.of(7, 12, 64))
    if r.may(40): d.f("rope.scaling.yarn_beta_fast", r.of(4.0, 16.0)); d.f("rope.scaling.yarn_beta_slow", r.of(0.25, 2.0))
    if r.may(40): d.f("rope.scaling.yarn_log_multiplier", r.of(0.0, 0.5, 1.0, 1.4))
    llama_like(d, r.may(30))


@draw("refact")
def _(d):
    d.size(); llama_like(d)


def granite_keys(d, must=True):
    r = d.r
    if must: d.f("logit_scale", r.of(0.5, 2.5, 6.0))
    elif r.may(70): d.f("logit_scale", r.of(0.5, 2.5))
    if r.may(70): d.f("residual_scale", r.of(0.22, 0.7, 1.3))
    if r.may(70): d.f("embedding_scale", r.of(0.8, 2.0, 12.0))
    if r.may(70): d.f("attention.scale", r.of(0.05, 0.11, 0.3))


@draw("granite", "granitemoe")
def _(d):
    d.size(); d.rope(factors="long", freqs=True)
    if d.arch == "granite" and d.r.may(25): d.b("rope.scaling.finetuned", d.r.may())
    granite_keys(d); llama_like(d, d.arch == "granitemoe" or d.r.may(20), "size or none")


@draw("granite_swa")
def _(d):
    r = d.r
    d.size(layers=(2, 3, 4)); d.rope(factors="long", freqs=True); granite_keys(d)
    d.u("attention.sliding_window", r.int(2, 9)); d.b("attention.sliding_window_pattern", r.both(d.L))
    if r.may(60): d.b("attention.rope_pattern", r.both(d.L, 60))
    moe = r.may()
    if moe: d.mixture(F=None, shared="size or none")
    d.head()
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i); d.t(f"blk.{i}.attn_sinks.weight", (d.H,), 0.5, 1.0)
        if moe: d.experts(i, fused=True, shared="both")
        else: d.dense(i)


@draw("minicpm")
def _(d):
    r = d.r
    d.size(); d.rope(factors="long", freqs=True)
    for k, xs in (("embedding_scale", (0.8, 2.0)), ("residual_scale", (0.22, 0.7)), ("logit_scale", (0.5, 2.0))):
        if r.may(60): d.f(k, r.of(*xs))
    llama_like(d, r.may(15))


@draw("xverse", "internlm2")
def _(d):
    d.size(bound=True); d.rope(); d.head(tied="never"); layers(d, obias=False)


@draw("baichuan")
def _(d):
    d.size(bound=True, layers=(1, 2, 3, 32, 32, 40, 40), heads=(1, 2, 3), dims=(8, 12, 16)); d.rope(); d.head(tied="never")
    if d.L > 8: d.F = 24; d.u("feed_forward_length", 24)
    layers(d, obias=False)


@draw("ernie4_5")
def _(d):
    d.size(); d.rope(); d.head(); layers(d)


@draw("ernie4_5-moe")
def _(d):
    d.size(layers=(1, 2, 3, 4)); d.rope(); d.mixture(dense_first=True, shared="size or none"); d.u("interleave_moe_layer_step", 1); d.head()
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False)
        if i >= d.lead: d.experts(i, probs="may")
        else: d.dense(i, bias=False)


@draw("smollm3")
def _(d):
    d.size(layers=(1, 3, 4, 5)); d.rope(); d.head(); layers(d, obias=False)


@draw("arcee")
def _(d):
    d.size(); d.rope(freqs=True); d.head(); layers(d, ffn="plain", obias=False)


@draw("glm4")
def _(d):
    r = d.r
    d.size(); d.rope(partial=True, sections=4 if r.may(30) else None); d.further(); d.head()
    for i in range(d.L + d.next): d.norms(i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"); d.qkv(i, obias=False); d.dense(i, kind="both", bias=False)
    d.further_tensors()


@draw("chatglm")
def _(d):
    d.size(bound=True); d.rope(partial=True); d.head(); layers(d, ffn="both", obias=False)


@draw("deepseek")
def _(d):
    d.size(bound=True); d.rope(); d.mixture(dense_first=True, scale=True, shared="count"); d.head()
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False)
        if i < d.lead: d.dense(i, bias=False)
        else: d.experts(i)


@draw("bailingmoe")
def _(d):
    d.size(); d.rope(); d.mixture(scale=True, norm=True, shared="count"); d.head(tied="never")
    if d.r.may(20): d.u("leading_dense_block_count", d.r.int(0, d.L))
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False); d.experts(i)


@draw("bailingmoe2")
def _(d):
    r = d.r
    d.size(bound=True); d.rope(partial=True); d.mixture(dense_first=True, scale=True, norm=True, gating="must", shared="count"); d.further(20)
    d.FS = d.FE * d.SN
    if r.may(): s = r.of(24, 40); d.u("expert_shared_feed_forward_length", s); d.FS = s * d.SN
    d.head(tied="never")
    for i in range(d.L + d.next):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, fused="must", bias=False, obias=False, qk="head")
        if i < d.lead: d.dense(i, bias=False)
        else: d.experts(i, probs="may")
        if i >= d.L: d.norms(i, "layer_output_norm")
    d.further_tensors()


@draw("llama4")
def _(d):
    r = d.r
    d.size(layers=(4, 5)); d.rope(freqs=True, swa_base=True); d.mixture(groups=False)
    step = r.of(1, 2, 2, 3); d.u("interleave_moe_layer_step", step); d.FS = d.FE
    if r.may(30): d.u("attention.sliding_window", r.of(8192, 5))
    if r.may(30): d.u("attention.sliding_window_pattern", r.of(2, 3, 4)) if r.may() else d.b("attention.sliding_window_pattern", r.both(d.L))
    d.head()
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False)
        if (i + 1) % step == 0: d.experts(i)
        else: d.dense(i, bias=False)


# ------------------------------------------------------------------------------- qwen and models like it
@draw("qwen")
def _(d):
    d.size(bound=True, gqa=False, ff=None); d.u("feed_forward_length", 2 * d.F); d.rope(partial=True); d.head(tied="never")
    layers(d, fused="must", bias=True, obias=False)


@draw("qwen2", "qwen2vl")
def _(d):
    # llama.cpp does not read qwen2vl's epsilon, so it is too small to have an effect.
    d.size(bound=True, eps=1e-6 if d.arch == "qwen2vl" else None); d.rope(sections=4 if d.arch == "qwen2vl" else None); d.head(bias="may"); layers(d, obias=False)


@draw("qwen2moe")
def _(d):
    d.size(bound=True); d.rope(); d.mixture(F="may", bound_F="share", shared="size or ffn"); d.head(tied="never")
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False); d.experts(i); d.t(f"blk.{i}.ffn_gate_inp_shexp.weight", (d.E,), 0, 1.5 / math.sqrt(d.E))


@draw("qwen3", "qwen3vl")
def _(d):
    d.size(); d.rope(sections=4 if d.arch == "qwen3vl" else None); d.head()
    if d.arch == "qwen3vl" and d.r.may(): d.u("n_deepstack_layers", 0)
    layers(d, obias=False, qk="head")


@draw("qwen3moe", "qwen3vlmoe")
def _(d):
    d.size(); d.rope(sections=4 if d.arch == "qwen3vlmoe" else None); d.mixture(F="may", bound_F="share"); d.head()
    if d.arch == "qwen3vlmoe" and d.r.may(): d.u("n_deepstack_layers", 0)
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False, qk="head"); d.experts(i)


@draw("grovemoe")
def _(d):
    r = d.r
    d.size(); d.rope(); d.mixture(groups=False)
    G = r.of(*[g for g in range(1, d.N + 1) if d.N % g == 0 and d.N // g >= d.used]); d.u("experts_per_group", G); d.f("expert_group_scale", r.of(0.05, 0.4, 1.0))
    FC = d.D
    if r.may(60): FC = r.of(16, 24, 40); d.u("expert_chunk_feed_forward_length", FC)
    d.head()
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False, qk="head"); d.experts(i)
        p = f"blk.{i}.ffn_"
        for n, a, b in (("gate", d.E, FC), ("up", d.E, FC), ("down", FC, d.E)): d.lin(p + n + "_chexps", a, b, 2.0, extra=(d.N // G,))


@draw("dots1")
def _(d):
    d.size(gqa=False); d.rope(); d.mixture(dense_first=True, scale=True, norm=True, gating="must", shared="count"); d.head(tied="never")
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False, qk="head")
        if i < d.lead: d.dense(i, bias=False)
        else: d.experts(i, probs="may")


@draw("openelm")
def _(d):
    r = d.r
    d.size(layers=(1, 2, 3), ff=None); n = d.L
    ks = [r.of(1, 1, 2, 3) for _ in range(n)]; hs = [k * r.of(1, 2, 3) for k in ks]; fs = [r.of(24, 40, 64) for _ in range(n)]
    d.u("attention.head_count", hs); d.u("attention.head_count_kv", ks); d.u("feed_forward_length", fs); d.u("attention.key_length", d.D); d.u("attention.value_length", d.D); d.rope(partial=True)
    d.head(tied="always")
    for i in range(n): d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, H=hs[i], KV=ks[i], fused="must", bias=False, obias=False, qk="head"); d.dense(i, fs[i], bias=False)


@draw("apertus")
def _(d):
    r = d.r
    d.size(); d.rope(factors="long", freqs=True)
    for k in ("alpha_n", "alpha_p", "beta", "eps"):
        v = [-1e-6 if k == "eps" else r.real(0.2, 1.5) for _ in range(d.L)]
        if r.may(20): d.kv("xielu." + k, F32, v[0])
        else: d.kv("xielu." + k, ARR, (F32, v))
    d.head(tied="never")
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, qk="head"); d.dense(i, kind="plain", bias=False)


@draw("hunyuan-dense")
def _(d):
    r = d.r
    d.size(); d.rope(sections=4 if r.may(30) else None)
    if r.may(30): d.f("rope.scaling.alpha", r.of(0.0, 2.0, 1000.0))
    if r.may(20): d.u("expert_count", 1); d.u("expert_used_count", 1)
    d.head(); layers(d, obias=False, qk="head")


@draw("hunyuan-moe")
def _(d):
    d.size(); d.rope(); d.mixture(shared="size or ffn"); d.FE = d.F; d.head()
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False, qk="head"); d.experts(i)


@draw("minimax-m2")
def _(d):
    d.size(); d.rope(partial=False); d.mixture(gating="must"); d.FE = d.F; d.head(tied="never")
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, bias=False, obias=False, qk="whole"); d.experts(i, probs=True)


@draw("olmoe")
def _(d):
    d.size(bound=True, gqa=False); d.rope(); d.mixture(F=None); d.head(tied="never")
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, bias=False, obias=False, qk="whole"); d.experts(i)


@draw("seed_oss")
def _(d):
    d.size(); d.rope(); d.head(); layers(d, norms=("attn_norm", "post_attention_norm"), obias=False)


@draw("glm4moe")
def _(d):
    r = d.r
    d.size(); d.rope(partial=True, sections=4 if r.may(20) else None); d.mixture(dense_first=True, scale=True, norm=True, gating="may", shared="count"); d.further(); d.head()
    for i in range(d.L + d.next):
        d.norms(i, "attn_norm", "post_attention_norm"); d.qkv(i, obias=False)
        for n in "qk":
            if d.must(n + " norm"): d.norm(f"blk.{i}.attn_{n}_norm", d.D, mean=1.35)
        if i < d.lead: d.dense(i, bias=False)
        else: d.experts(i, probs=True)
    d.further_tensors()


@draw("exaone")
def _(d):
    d.size(); d.rope(freqs=True); d.head(); layers(d, obias=False)


@draw("pangu-embedded")
def _(d):
    d.size(); d.rope(factors="long", freqs=True); d.head(); layers(d, obias=True)


@draw("bitnet")
def _(d):
    d.size(bound=True); d.rope(partial=True); d.head(tied="always")
    for i in range(d.L):
        d.norms(i, "attn_norm", "attn_sub_norm", "ffn_norm"); d.norm(f"blk.{i}.ffn_sub_norm", d.F); d.qkv(i, fused="never", bias=False, obias=False); d.dense(i, bias=False)
        for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            if d.must(n + " scale"): d.t(f"blk.{i}.{n}.scale", (1,), 1, 0.15)


@draw("phi3")
def _(d):
    d.size(bound=True, tok=("llama",)); d.rope(partial=True, factors="long", tensors="always")
    if d.r.may(): d.u("attention.sliding_window", d.r.of(0, 5, 131072))
    d.head(); layers(d, ffn="both", obias=False)


@draw("phimoe")
def _(d):
    d.size(bound=True); d.rope(factors="long", tensors="always"); d.mixture(F=None); d.head(tied="never", norm_bias=True, bias="must")
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm", bias=True); d.qkv(i, obias=True); d.experts(i)


# ------------------------------------------------------------------------------- windows on some layers
def window(d, must=True, period=True, pattern=True, low=2, high=9, off=True, each=0):
    """Draws a window of a few tokens and the layers that have it. `each`: at least one layer with and one without, if
    the model has enough layers."""
    r = d.r
    if must or r.may(70): d.u("attention.sliding_window", r.int(low, high))
    elif off and r.may(): d.u("attention.sliding_window", 0); return
    if period and (each and d.L < each or r.may(30)): d.u("attention.sliding_window_pattern", r.of(*range(2, min(d.L, 4) + 1)) if each else r.of(2, 3, 4))
    elif pattern and r.may(30): d.b("attention.sliding_window_pattern", r.both(d.L) + [False] * d.next)


@draw("olmo2")
def _(d):
    d.size(bound=True, layers=(2, 3, 4, 5)); d.rope(swa_base=True); window(d, must=False); d.head(tied="never")
    for i in range(d.L): d.norms(i, "post_attention_norm", "post_ffw_norm"); d.qkv(i, bias="qkv bias", obias=False, qk="whole"); d.dense(i, bias=False)


@draw("exaone4")
def _(d):
    r = d.r
    d.size(bound=True, layers=(1, 2, 3, 4, 64), heads=(1, 2, 4), dims=(8, 12, 16, 20))
    if d.L == 64: d.F = 24; d.u("feed_forward_length", 24)
    d.rope(freqs=True, swa_base=True)
    if r.may(70): window(d, must=r.may(70))
    if d.L < 10: d.further(20)
    d.head()
    for i in range(d.L + d.next): d.norms(i, "post_attention_norm", "post_ffw_norm"); d.qkv(i, obias=False, qk="head"); d.dense(i, bias=False)
    d.further_tensors()


@draw("exaone-moe")
def _(d):
    r = d.r
    d.size(layers=(2, 3, 4, 5)); d.rope(freqs=True, swa_base=True); d.mixture(dense_first=True, scale=True, norm=True, gating="must"); d.FS = d.FE
    if r.may(): d.u("expert_shared_count", r.int(1, 2))
    if r.may(): d.FS = r.of(24, 40); d.u("expert_shared_feed_forward_length", d.FS)
    d.further(20); window(d); d.head(tied="never")
    if d.next: d.tensors.pop("rope_freqs.weight", None)
    for i in range(d.L + d.next):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False, qk="head")
        if i < d.lead or i >= d.L: d.dense(i, bias=False)
        else: d.experts(i, probs="may")
    d.further_tensors()


@draw("afmoe")
def _(d):
    d.size(layers=(2, 3, 4, 5)); d.rope(partial=True, swa_base=True); d.mixture(dense_first=True, scale=True, norm=True, gating="may", shared="count or none"); window(d); d.head()
    for i in range(d.L):
        d.norms(i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"); d.qkv(i, obias=False, qk="head"); d.lin(f"blk.{i}.attn_gate", d.E, d.H * d.D, 1.3)
        if i < d.lead: d.dense(i, bias=False)
        else: d.experts(i, probs=True)


@draw("smallthinker")
def _(d):
    d.size(layers=(2, 4, 5)); d.rope(swa_base=True); d.mixture(gating="must"); window(d, must=False); d.head()
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, obias=False); d.experts(i)


@draw("mimo2")
def _(d):
    r = d.r
    d.size(layers=(2, 3, 4), ff=None); d.F = r.of(32, 48); d.u("feed_forward_length", d.F)
    Dk, Dv = d.D, r.of(8, 12, 16, 24, 32)
    d.u("attention.key_length", Dk); d.u("attention.value_length", Dv)
    kvs = [r.of(*[k for k in range(1, d.H + 1) if d.H % k == 0]) for _ in range(d.L)]
    d.u("attention.head_count_kv", kvs); d.rope(partial=True, swa_base=True); d.u("attention.sliding_window", r.int(2, 9)); d.b("attention.sliding_window_pattern", r.both(d.L))
    if r.may(60): d.f("attention.value_scale", r.of(0.707, 1.0, 1.4))
    d.mixture(); d.head(tied="never")
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm"); d.qkv(i, KV=kvs[i], D=Dk, Dv=Dv, bias=False, obias=False)
        if d.must("sinks"): d.t(f"blk.{i}.attn_sinks.weight", (d.H,), 0.5, 1.0)
        if r.may(40): d.dense(i, bias=False)
        else: d.experts(i, probs="may")


@draw("gpt-oss")
def _(d):
    d.size(layers=(1, 2, 3, 4)); d.rope(swa_base=True); d.mixture(groups=False); window(d); d.head(tied="never")
    for i in range(d.L):
        d.norms(i, "attn_norm", "post_attention_norm"); d.qkv(i, obias=True); d.t(f"blk.{i}.attn_sinks.weight", (d.H,), 0.5, 1.0); d.experts(i, bias=True, gain=2.6)


# ------------------------------------------------------------------------------- gemma
def gemma_layers(d, **attention):
    for i in range(d.L): d.norms(i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"); d.qkv(i, obias=False, **attention); d.dense(i, bias=False)


@draw("gemma")
def _(d):
    d.size(); d.rope(partial=True); d.head(tied="always"); layers(d, obias=False)


@draw("gemma2")
def _(d):
    r = d.r
    d.size(layers=(1, 2, 3, 4)); d.rope(partial=True, swa_base=True)
    if r.may(80): d.f("attn_logit_softcapping", r.of(2.0, 3.0, 50.0))
    if r.may(80): d.f("final_logit_softcapping", r.of(3.0, 30.0))
    if r.may(80): window(d)
    d.head(tied="always"); gemma_layers(d)


@draw("gemma3")
def _(d):
    r = d.r
    d.size(layers=(1, 3, 6, 7)); d.rope(partial=True, swa_base=True)
    if r.may(40): d.f("final_logit_softcapping", r.of(0.0, 3.0, 30.0))
    window(d, must=False); d.head(); gemma_layers(d, qk="head")


@draw("gemma-embedding")
def _(d):
    d.embedding = True
    d.size(layers=(2, 3, 6, 7)); d.rope(partial=True, swa_base=True); window(d, each=6); d.u("pooling_type", d.r.of(1, 2, 3)); d.head(); gemma_layers(d, qk="head")
    if d.r.may(30):
        n = d.r.of(24, 40, 64)
        d.u("dense_2_feat_in", d.E); d.u("dense_2_feat_out", n); d.u("dense_3_feat_in", n); d.u("dense_3_feat_out", d.E); d.lin("dense_2", d.E, n); d.lin("dense_3", n, d.E)


@draw("gemma3n")
def _(d):
    r = d.r
    d.size(layers=(20, 21, 22, 25), heads=(1, 2, 3, 4), dims=(8, 12, 16), widths=(24, 32, 40)); nl, EA, R, NA = d.L, 256, 64, 4
    d.F = r.of(24, 32); d.u("feed_forward_length", [d.F] * nl if r.may() else d.F)
    d.rope(partial=True, swa_base=True); d.u("attention.sliding_window", r.int(2, 9))
    if r.may(50): d.b("attention.sliding_window_pattern", [(i + 1) % 5 != 0 for i in range(nl)])
    # These are constants in llama.cpp.
    if r.may(70): d.u("attention.shared_kv_layers", nl - 20)
    if r.may(70): d.u("altup.num_inputs", NA)
    if r.may(70): d.u("altup.active_idx", 0)
    if r.may(70): d.u("embedding_length_per_layer_input", EA)
    if r.may(70): d.f("activation_sparsity_scale", [1.6448533535003662] * 10 + [0.0] * (nl - 10))
    if r.may(70): d.f("final_logit_softcapping", 30.0)
    own = r.may(30)
    d.embd(tied=not own, sd=0.25); e = d.E
    d.lin("altup_proj", e, e, 1.0, extra=(NA - 1,)); d.lin("altup_unembd_proj", e, e, 1.0, extra=(NA - 1,))
    d.t("per_layer_token_embd.weight", (EA * nl, d.V), 0, 0.06); d.lin("per_layer_model_proj", e, EA * nl); d.norm("per_layer_proj_norm", EA)
    for i in range(nl):
        p = f"blk.{i}."
        d.norms(i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm", "altup_router_norm", "laurel_post_norm")
        d.attn(i, qk="head", qkmean=0.5); d.dense(i, bias=False)
        d.lin(p + "inp_gate", e, EA); d.lin(p + "proj", EA, e)
        d.t(p + "altup_correct_coef.weight", (NA, NA), 0, 0.4); d.t(p + "altup_correct_scale.weight", (e,), 1, 0.2)
        d.t(p + "altup_predict_coef.weight", (NA, NA * NA), 0, 0.3); d.lin(p + "altup_router", e, NA)
        d.lin(p + "laurel_l", e, R); d.lin(p + "laurel_r", R, e)


@draw("gemma4")
def _(d):
    r = d.r
    d.size(layers=(2, 3, 4, 5, 6), heads=(2, 4, 6), ff=None, dims=(16, 24, 32, 40)); n = d.L
    DF, DS = d.D, r.of(8, 16, 20, 32)
    swa = r.both(n, 60)
    KF, KS = (r.of(*[k for k in range(1, d.H + 1) if d.H % k == 0]) for _ in range(2))
    kvs = [KS if s else KF for s in swa]
    d.u("attention.head_count_kv", kvs)
    for k, v in (("key_length", DF), ("value_length", DF), ("key_length_swa", DS), ("value_length_swa", DS)): d.u("attention." + k, v)
    moe = r.may(40)
    fs = [r.of(32, 48, 64) for _ in range(n)] if r.may() else [r.of(32, 48)] * n
    d.u("feed_forward_length", fs if len(set(fs)) > 1 or r.may() else fs[0])
    d.rope(head=DF, swa_base=True)
    if r.may(): d.u("rope.dimension_count", DF)
    if r.may(): d.u("rope.dimension_count_swa", DS)
    else: d.u("rope.dimension_count_swa", DS)
    d.u("attention.sliding_window", r.int(2, 9)); d.b("attention.sliding_window_pattern", swa)
    share = 0
    # Layers that share keys read the last two layers that do not: one with a window, then one without.
    if r.may(60): share = r.of(*[s for s in range(n - 1) if s == 0 or swa[n - s - 2] and not swa[n - s - 1]]); d.u("attention.shared_kv_layers", share)
    pl = r.of(0, 8, 16, 24); d.u("embedding_length_per_layer_input", pl)
    if r.may(80): d.f("final_logit_softcapping", r.of(3.0, 30.0))
    if moe: d.mixture(groups=False)
    own = r.may(30)
    d.embd(tied=not own, sd=0.16)
    if not all(swa): d.t("rope_freqs.weight", (DF // 2,), fn=lambda j, x: 1.0 if j < DF // 8 else 1e30)
    if pl: d.t("per_layer_token_embd.weight", (pl * n, d.V), 0, 0.3); d.lin("per_layer_model_proj", d.E, pl * n); d.norm("per_layer_proj_norm", pl)
    no_v, scaled = r.may(30), r.of(0, 50, 100)
    fused = r.may(20)
    for i in range(n):
        p, D, K = f"blk.{i}.", DS if swa[i] else DF, kvs[i]
        if fused: d.lin(p + "attn_qkv", d.E, (d.H + 2 * K) * D); d.norm(p + "attn_k_norm", D, mean=0.45)
        else:
            d.lin(p + "attn_q", d.E, d.H * D)
            if i < n - share or r.may(20):
                d.lin(p + "attn_k", d.E, K * D); d.norm(p + "attn_k_norm", D, mean=0.45)
                if not (no_v and not swa[i]): d.lin(p + "attn_v", d.E, K * D)
        d.norm(p + "attn_q_norm", D, mean=0.45); d.lin(p + "attn_output", d.H * D, d.E)
        d.norms(i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        if r.may(scaled): d.t(p + "layer_output_scale.weight", (1,), 0.9, 0.1)
        d.dense(i, fs[i], bias=False)
        if moe and r.may(80):
            e, N, FE = d.E, d.N, d.FE
            d.lin(p + "ffn_gate_inp", e, N, 1.8); d.t(p + "ffn_gate_inp.scale", (e,), math.sqrt(e), 0.2 * math.sqrt(e))
            d.norms(i, "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
            if d.must("gate and up"): d.lin(p + "ffn_gate_up_exps", e, 2 * FE, 1.3, extra=(N,))
            else: d.lin(p + "ffn_gate_exps", e, FE, 1.3, extra=(N,)); d.lin(p + "ffn_up_exps", e, FE, 1.3, extra=(N,))
            d.lin(p + "ffn_down_exps", FE, e, 1.3, extra=(N,))
            if d.must("down scale"): d.t(p + "ffn_down_exps.scale", (N,), 1, 0.25)
        if pl: d.lin(p + "inp_gate", d.E, pl, 1.5); d.lin(p + "proj", pl, d.E); d.norms(i, "post_norm")


@draw("grok")
def _(d):
    r = d.r
    d.size(bound=True); d.rope()
    d.mixture(F="may")
    for k, xs in (("logit_scale", (0.577, 1.5)), ("embedding_scale", (1.5, 78.0)), ("attention.output_scale", (0.15, 0.088)), ("attn_logit_softcapping", (2.0, 30.0)),
                  ("router_logit_softcapping", (2.0, 30.0)), ("final_logit_softcapping", (0.0, 4.0)), ("rope.scaling.yarn_ext_factor", (1.0,)),
                  ("rope.scaling.yarn_attn_factor", (1.0, 0.9)), ("rope.scaling.yarn_beta_fast", (8.0, 20.0)), ("rope.scaling.yarn_beta_slow", (1.0, 2.0))):
        if r.may(60 if "yarn" not in k else 20): d.f(k, r.of(*xs))
    if r.may(20): d.u("attention.temperature_length", 1024)
    post = r.of("layer_output_norm", "post_ffw_norm"); both = r.may(30)
    d.head(gain=4)
    for i in range(d.L):
        d.norms(i, "attn_norm", "attn_output_norm", "ffn_norm", post); d.qkv(i, obias=False); d.experts(i, gate="may")
        if both: d.dense(i, bias=False)


# ------------------------------------------------------------------------------- LayerNorm
@draw("orion")
def _(d):
    d.size(bound=True, ln=True); d.rope(); d.head(tied="never", norm_bias=True); layers(d, norm_bias=True, obias=False)


def clamp(d, must=False):
    if must or d.r.may(70): d.f("attention.clamp_kqv", d.r.of(0.0, 0.5, 1.5, 8.0))


@draw("olmo")
def _(d):
    d.size(bound=True, ln=True); d.rope(); clamp(d); d.head(no_norm=True)
    for i in range(d.L): d.qkv(i, obias=False); d.dense(i, bias=False)


@draw("dbrx")
def _(d):
    d.size(bound=True, ln=True); d.rope(); clamp(d, True); d.mixture(F=None); d.head(tied="never")
    for i in range(d.L): d.norms(i, "attn_norm", "attn_output_norm"); d.qkv(i, fused="must", bias=False, obias=False); d.experts(i)


@draw("stablelm")
def _(d):
    d.size(bound=True, ln=True); d.rope(partial=True); d.head(tied="never", norm_bias=True)
    if d.r.may(): d.b("use_parallel_residual", d.r.may())
    qk = d.r.may()
    for i in range(d.L):
        d.norms(i, "attn_norm", bias=True); d.qkv(i, obias=False); d.dense(i, bias=False)
        if d.must("ffn norm"): d.norms(i, "ffn_norm", bias=d.r.may(80))
        if qk:
            for n, h in (("q", d.H), ("k", d.KV)): d.t(f"blk.{i}.attn_{n}_norm.weight", (d.D, h), 1.2, 0.3)


@draw("command-r")
def _(d):
    d.size(bound=True, ln=True, layers=(1, 2, 3, 64), heads=(1, 2, 4), dims=(8, 12, 16, 24)); d.rope(partial=True)
    if d.L == 64: d.F = 24; d.u("feed_forward_length", 24)
    if d.r.may(80): d.f("logit_scale", d.r.of(0.0625, 0.4, 1.0))
    d.head(tied="always", gain=6)
    for i in range(d.L):
        d.norms(i, "attn_norm"); d.qkv(i, obias=False); d.dense(i, bias=False)
        if d.L >= 64:
            for n, h in (("q", d.H), ("k", d.KV)): d.t(f"blk.{i}.attn_{n}_norm.weight", (d.D, h), 1.2, 0.3)


@draw("cohere2")
def _(d):
    d.size(bound=True, ln=True, layers=(1, 2, 3, 4, 5)); d.rope(partial=True, swa_base=True); d.f("logit_scale", d.r.of(0.0625, 0.4, 1.0)); window(d); d.head(tied="always", gain=6)
    for i in range(d.L): d.norms(i, "attn_norm"); d.qkv(i, obias=False); d.dense(i, bias=False)


@draw("phi2")
def _(d):
    d.size(bound=True, ln=True); d.rope(partial=True); d.head(tied="never", norm_bias=True, bias="must")
    for i in range(d.L): d.norms(i, "attn_norm", bias=True); d.qkv(i, obias=True); d.dense(i, kind="plain", bias=True)


@draw("falcon")
def _(d):
    d.size(bound=True, ln=True); d.rope(); d.head(norm_bias=True)
    if d.r.may(): d.s("tensor_data_layout", "jploski")
    for i in range(d.L):
        d.norms(i, "attn_norm", bias=True); d.qkv(i, fused="must", bias=False, obias=False); d.dense(i, kind="plain", bias=False)
        if d.must("second norm"): d.norms(i, "attn_norm_2", bias=d.r.may(80))


@draw("gptneox")
def _(d):
    d.size(bound=True, ln=True); d.rope(partial=True); d.b("use_parallel_residual", d.r.may()); d.head(tied="never", norm_bias=True)
    layers(d, ffn="plain", fbias=True, norm_bias=True, fused="must", bias=True, obias=True)


@draw("gpt2", "starcoder")
def _(d):
    n = d.r.of(48, 64); d.size(bound=True, ln=True, ctx=n); d.context = 48
    d.head(norm_bias=True); d.t("position_embd.weight", (d.E, n), 0, 0.4)
    layers(d, ffn="plain", fbias=True, norm_bias=True, fused="must", bias=True, obias=True)


@draw("starcoder2")
def _(d):
    d.size(bound=True, ln=True); d.rope(); d.head(norm_bias=True); layers(d, ffn="plain", fbias=True, norm_bias=True, obias=True)


@draw("codeshell")
def _(d):
    d.size(bound=True, ln=True); d.rope(); d.head(tied="never", norm_bias=True); layers(d, ffn="plain", fbias=True, norm_bias=True, obias=True)
    if d.r.may(30): d.tensors["output.weight"], _ = d.tensors.pop("token_embd.weight"), d.tensors.pop("output.weight")


@draw("jais2")
def _(d):
    d.size(ln=True); d.rope(); d.head(norm_bias=True); layers(d, ffn="plain", fbias=True, norm_bias=True, obias=True)


@draw("nemotron")
def _(d):
    d.size(bound=True, ln=True); d.rope(); d.head(tied="never", norm_bias=True); layers(d, ffn="plain", fbias="ffn bias", norm_bias=True)


@draw("bloom")
def _(d):
    d.size(bound=True, ln=True); d.head(norm_bias=True); d.norm("token_embd_norm", d.E, bias=True)
    layers(d, ffn="plain", fbias=True, norm_bias=True, fused="must", bias=True, obias=True)


@draw("mpt")
def _(d):
    r = d.r
    n = r.of(48, 64); d.size(bound=True, ln=True, ctx=n); d.context = 48; clamp(d)
    if r.may(80): d.f("attention.max_alibi_bias", r.of(0.0, 4.0, 8.0))
    d.head(norm_bias=r.may())
    if r.may(20): d.t("position_embd.weight", (d.E, n), 0, 0.4)
    norm_bias = r.may()
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm", bias=norm_bias); d.qkv(i, fused="must"); d.dense(i, kind="plain"); act_scales(d, i)


def act_scales(d, i):
    """Adds divisors of the activated values and multiplies ffn_down by them. So the results, and their reference
    values, do not depend on the divisors."""
    r, down = Random(f"{d.arch}/{d.number}/scales/{i}"), f"blk.{i}.ffn_down.weight"
    if r.may(60):
        scales = [r.real(0.3, 3.0) for _ in range(d.F)]
        d.t(f"blk.{i}.ffn.act.scales", (d.F,), fn=lambda j, x: scales[j])
        d.tensors[down] = (*d.tensors[down][:3], lambda j, x: x * scales[j % d.F])


@draw("jais")
def _(d):
    d.size(bound=True, ln=True)
    if d.r.may(80): d.f("attention.max_alibi_bias", d.r.of(4.0, 8.0))
    d.head(tied="never", norm_bias=True); layers(d, fbias=True, norm_bias=True, fused="must", bias=True, obias=True, gain=3.0)


@draw("arctic")
def _(d):
    d.size(bound=True); d.rope(); d.mixture(F=None); d.head()
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm", "ffn_norm_exps"); d.qkv(i, obias=False); d.dense(i, d.E, bias=False); d.experts(i)


# ------------------------------------------------------------------------------- latent attention
def latent_sizes(d, lora=True):
    r = d.r
    d.R, d.nope, d.v, d.Q = r.of(16, 20, 24, 32, 48, 64), r.of(8, 12, 16, 20, 24, 32), r.of(8, 12, 16, 24, 32), r.of(12, 16, 24, 32, 48) if lora else 0
    d.turn = r.of(4, 6, 8, 10, 16)


def latent_layer(d, i, low, absorbed, H=None):
    p, H, g, qk = f"blk.{i}.", H or d.H, 1.4, d.nope + d.turn
    if low: d.lin(p + "attn_q_a", d.E, d.Q); d.norm(p + "attn_q_a_norm", d.Q); d.lin(p + "attn_q_b", d.Q, H * qk, g)
    else: d.lin(p + "attn_q", d.E, H * qk, g)
    d.lin(p + "attn_kv_a_mqa", d.E, d.R + d.turn, g); d.norm(p + "attn_kv_a_norm", d.R)
    if absorbed: d.t(p + "attn_k_b.weight", (d.nope, d.R, H), 0, g / math.sqrt(d.R)); d.t(p + "attn_v_b.weight", (d.R, d.v, H), 0, 1.2 / math.sqrt(d.R))
    else: d.lin(p + "attn_kv_b", d.R, H * (d.nope + d.v), 1.3)
    d.lin(p + "attn_output", H * d.v, d.E)


def latent_keys(d, absorbed):
    if absorbed:
        d.u("attention.key_length", d.R + d.turn); d.u("attention.value_length", d.R); d.u("attention.key_length_mla", d.nope + d.turn); d.u("attention.value_length_mla", d.v)
        d.u("attention.head_count_kv", 1)
    else: d.u("attention.key_length", d.nope + d.turn); d.u("attention.value_length", d.v); d.u("attention.head_count_kv", d.H)
    d.u("attention.kv_lora_rank", d.R); d.u("rope.dimension_count", d.turn)
    if d.Q: d.u("attention.q_lora_rank", d.Q)


def latent_scaling(d):
    """Draws the rotation of latent attention. A scaled rotation changes the scale of the scores."""
    r = d.r
    if r.may(70): d.f("rope.freq_base", r.of(100.0, 10000.0, 1e6))
    kind = r.of(None, "yarn", "yarn", "yarn", "linear", "none")
    if kind: d.s("rope.scaling.type", kind)
    if kind and r.may(85): d.f("rope.scaling.factor", r.of(1.0, 2.0, 4.0, 40.0))
    if kind and r.may(70): d.u("rope.scaling.original_context_length", r.of(12, 64, 4096))
    if r.may(60): d.f("rope.scaling.yarn_log_multiplier", r.of(0.0, 0.0707, 0.1, 0.2))
    if r.may(15): d.f("rope.scaling.attn_factor", r.of(0.8, 1.2))


def temperature(d):
    r = d.r
    if r.may(40): d.f("attention.temperature_scale", r.of(0.1, 0.3)); d.u("attention.temperature_length", r.of(5, 12, 8192))


@draw("deepseek2")
def _(d):
    r = d.r
    few = r.may(25)
    d.size(gqa=False, layers=(26, 27) if few else (1, 2, 3), heads=(1, 2, 3, 4, 6), widths=(24, 32) if few else None, ff=None); latent_sizes(d)
    if few: d.R, d.nope, d.v, d.turn = 16, 8, 8, 4; d.H = min(d.H, 2); d.u("attention.head_count", d.H)
    absorbed, low = r.may(75), not few
    d.F = r.of(24, 40); d.u("feed_forward_length", d.F)
    if few: d.Q = 0
    latent_keys(d, absorbed); latent_scaling(d); temperature(d)
    d.mixture(dense_first=True, scale=True, norm=True, gating="may", shared="count", most=4 if few else 12)
    if few: d.FE = 16; d.u("expert_feed_forward_length", 16); d.FS = 16 * d.SN
    if not few: d.further(25)
    d.head()
    for i in range(d.L + d.next):
        d.norms(i, "attn_norm", "ffn_norm"); latent_layer(d, i, low, absorbed)
        if i < d.lead: d.dense(i, bias=False)
        else: d.experts(i, probs="may", fused=True)
    d.further_tensors()


@draw("deepseek32")
def _(d):
    r = d.r
    d.size(gqa=False, layers=(1, 2, 3), heads=(1, 2, 3, 4)); latent_sizes(d); d.Q = min(d.Q, 24); latent_keys(d, True); latent_scaling(d)
    d.mixture(dense_first=True, scale=True, norm=True, gating="must", shared="count")
    ih, ik = r.of(12, 16), r.of(64, 64, 128)   # with fewer heads many keys have the score 0, and the choice is not unique
    ik = max(ik, d.turn); d.u("attention.indexer.head_count", ih); d.u("attention.indexer.key_length", ik); d.u("attention.indexer.top_k", r.of(3, 8, 15, 64)); d.further(25); d.head()
    for i in range(d.L + d.next):
        d.norms(i, "attn_norm", "ffn_norm"); latent_layer(d, i, True, True)
        p = f"blk.{i}.indexer."
        d.norm(p + "k_norm", ik, bias=True); d.lin(p + "proj", d.E, ih); d.lin(p + "attn_k", d.E, ik, 1.5); d.lin(p + "attn_q_b", d.Q, ih * ik, 1.5)
        if i < d.lead: d.dense(i, bias=False)
        else: d.experts(i, probs="may")
    d.further_tensors()


@draw("mistral4")
def _(d):
    r = d.r
    d.size(gqa=False, layers=(1, 2, 3), heads=(1, 2, 3, 4)); latent_sizes(d); absorbed = r.may(75); latent_keys(d, absorbed); latent_scaling(d); temperature(d)
    d.mixture(dense_first=True, scale=True, norm=True, gating="may", shared="count"); d.head()
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm"); latent_layer(d, i, True, absorbed)
        if i < d.lead: d.dense(i, bias=False)
        else: d.experts(i, probs="may", fused=True)


@draw("minicpm3")
def _(d):
    r = d.r
    d.size(gqa=False, heads=(1, 2, 3, 4, 6)); latent_sizes(d); d.v = r.of(8, 16, 20); latent_keys(d, False); head = d.D; d.D = d.nope + d.turn; d.rot = d.turn
    if r.may(60): d.f("rope.freq_base", r.of(500.0, 10000.0))
    kind = r.of(None, None, "linear", "yarn", "longrope")
    if kind: d.s("rope.scaling.type", kind); d.f("rope.scaling.factor", r.of(1.0, 2.0))
    if r.may(60): d.u("rope.scaling.original_context_length", r.of(64, 255, 256, 4096))
    if r.may(60):
        d.context, n = 256, d.turn // 2
        d.t("rope_factors_long.weight", (n,), fn=lambda j, x: round(1.0 + 40.0 * j / n, 4)); d.t("rope_factors_short.weight", (n,), fn=lambda j, x: round(1.0 + 2.0 * j / n, 4))
    d.embd(tied=r.may(40), sd=0.08)
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm"); latent_layer(d, i, True, False); d.dense(i, bias=False)


@draw("plm")
def _(d):
    d.size(gqa=False, heads=(1, 2, 3, 4, 6)); latent_sizes(d, lora=False); latent_keys(d, False); latent_scaling_plain(d); d.head(tied="always")
    for i in range(d.L): d.norms(i, "attn_norm", "ffn_norm"); latent_layer(d, i, False, False); d.dense(i, kind="plain", bias=False)


def latent_scaling_plain(d):
    r = d.r
    if r.may(70): d.f("rope.freq_base", r.of(100.0, 10000.0, 1e5))
    kind = r.of(None, None, "yarn", "linear", "none")
    if kind: d.s("rope.scaling.type", kind); d.f("rope.scaling.factor", r.of(1.0, 2.0, 4.0))


# ------------------------------------------------------------------------------- states
def delta_layer(d, i, S, NK, NV, conv, ba):
    p, kd, vd = f"blk.{i}.", S * NK, S * NV
    if ba == "old": d.lin(p + "ssm_in", d.E, 2 * kd + 2 * vd, 1.3)
    else: d.lin(p + "attn_qkv", d.E, 2 * kd + vd, 1.3); d.lin(p + "attn_gate", d.E, vd, 1.3)
    d.t(p + "ssm_conv1d.weight", (conv, 2 * kd + vd), 0, 0.6); d.t(p + "ssm_dt.bias", (NV,), -0.5, 0.8); d.t(p + "ssm_a", (NV,), -0.5, 0.5, fn=lambda j, x: -round(math.exp(x), 6))
    if ba: d.lin(p + "ssm_ba", d.E, 2 * NV, 1.2)
    else: d.lin(p + "ssm_beta", d.E, NV, 1.2); d.lin(p + "ssm_alpha", d.E, NV, 1.2)
    d.norm(p + "ssm_norm", S); d.lin(p + "ssm_out", vd, d.E, 1.2)


@draw("qwen3next", "qwen35", "qwen35moe")
def _(d):
    r, ba, moe = d.r, d.arch == "qwen3next", d.arch != "qwen35"
    d.size(layers=(2, 3, 4, 5), heads=(1, 2, 4), dims=(16, 20, 24, 32)); d.rope(partial=True, sections=None if ba else 4)
    S, NK, conv = r.of(8, 16, 24, 32), r.of(1, 2, 3), r.of(2, 3, 4)
    NV = NK * r.of(1, 2, 3); every = r.of(*range(2, min(d.L, 4) + 1))
    d.ssm_keys(conv, S * NV, S, NV, NK)
    if every != 4 or r.may(): d.u("full_attention_interval", every)
    recurrent = [(i + 1) % every != 0 for i in range(d.L)]
    if moe: d.mixture(F="may", bound_F="share", shared="size or ffn")
    d.further(20)
    if r.may(25): recurrent = r.both(d.L, 60); d.b("attention.recurrent_layers", recurrent + [False] * d.next)
    d.head()
    old = ba and r.may(30)
    for i in range(d.L + d.next):
        d.norms(i, "attn_norm", "post_attention_norm")
        if i >= d.L or not recurrent[i]: d.qkv(i, gate=True, fused="never", obias=False, qk="head")
        else: delta_layer(d, i, S, NK, NV, conv, "old" if old else ba)
        if moe: d.experts(i, fused=True); d.t(f"blk.{i}.ffn_gate_inp_shexp.weight", (d.E,), 0, 1.5 / math.sqrt(d.E))
        else: d.dense(i, bias=False)
    d.further_tensors()


@draw("kimi-linear")
def _(d):
    r = d.r
    d.size(gqa=False, layers=(2, 3, 4), heads=(1, 2, 3, 4)); latent_sizes(d, lora=False); S, conv = r.of(8, 16, 24, 32), r.of(2, 3, 4)
    full = r.both(d.L, 40)
    latent_keys(d, True); d.u("attention.head_count_kv", [1 if f else 0 for f in full]); d.u("ssm.conv_kernel", conv); d.u("kda.head_dim", S)
    d.mixture(dense_first=True, scale=True, gating="must", shared="count"); d.head(tied="never")
    fused = r.may(25)
    for i in range(d.L):
        p, n = f"blk.{i}.", S * d.H
        d.norms(i, "attn_norm", "ffn_norm")
        if full[i]: latent_layer(d, i, False, True)
        else:
            for x in "qkv":
                d.t(p + f"ssm_conv1d_{x}.weight", (conv, 1, n) if r.may() else (conv, 1, n, 1), 0, 0.6)
                if not fused: d.lin(p + f"attn_{x}", d.E, n, 1.3)
            if fused: d.lin(p + "attn_qkv", d.E, 3 * n, 1.3)
            d.lin(p + "ssm_f_a", d.E, S); d.lin(p + "ssm_f_b", S, n); d.lin(p + "ssm_beta", d.E, d.H, 1.2)
            d.t(p + "ssm_a", (1, d.H), -0.5, 0.5, fn=lambda j, x: -round(math.exp(x), 6)); d.t(p + "ssm_dt.bias", (n,), -0.5, 0.8)
            d.lin(p + "ssm_g_a", d.E, S, 1.2); d.lin(p + "ssm_g_b", S, n, 1.2); d.norm(p + "ssm_norm", S); d.lin(p + "attn_output", n, d.E, 1.2)
        if i < d.lead: d.dense(i, bias=False)
        else: d.experts(i, probs=True)


def state_sizes(d, inner=None):
    r = d.r
    d.heads2 = r.of(1, 2, 3, 4, 6); d.groups2 = r.of(*[g for g in (1, 2, 3) if d.heads2 % g == 0]); d.state, d.conv = r.of(4, 8, 12, 16, 32), r.of(2, 3, 4)
    d.inner = inner or d.heads2 * r.of(8, 12, 16, 24)
    if inner:
        d.heads2 = r.of(*[h for h in (1, 2, 3, 4, 6, 8) if inner % h == 0]); d.groups2 = r.of(*[g for g in (1, 2, 3, 4) if d.heads2 % g == 0])
    d.ssm_keys(d.conv, d.inner, d.state, d.heads2, d.groups2)


def mamba2(d, i, norm=True):
    d.mamba2(i, d.inner, d.state, d.groups2, d.heads2, d.conv, norm=norm)


@draw("granitehybrid")
def _(d):
    r = d.r
    d.size(layers=(2, 3, 4), ff=None); d.F = r.of(24, 40, 48); d.u("feed_forward_length", d.F)
    full = r.both(d.L, 40)
    d.u("attention.head_count_kv", [d.KV if f else 0 for f in full]); state_sizes(d, 2 * d.E); d.rope(freqs=True)
    if r.may(50): d.b("rope.scaling.finetuned", r.may())
    granite_keys(d, must=True)
    moe = r.may()
    if moe: d.mixture(F=None, shared="size or none")
    d.head()
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm")
        if full[i]: d.qkv(i)
        else: mamba2(d, i)
        if moe: d.experts(i, gate="may")
        else: d.dense(i)


def nemotron_h(d, moe):
    r = d.r
    n = r.of(2, 3, 4, 5); pat = [r.of("M", "M", "*", "-") for _ in range(n)]
    a = r.below(n); pat[a] = "M"; pat[(a + 1 + r.below(n - 1)) % n] = "*"
    d.size(layers=(n,), ln=True, ff=None); F = r.of(24, 40, 64)
    fs = [F if c == "-" else 0 for c in pat]
    d.u("feed_forward_length", fs); d.u("attention.head_count_kv", [d.KV if c == "*" else 0 for c in pat]); state_sizes(d)
    d.u("attention.key_length", d.D); d.u("attention.value_length", d.D)
    if r.may(): d.f("attention.layer_norm_rms_epsilon", r.of(1e-5, 1e-3))
    inner = None
    if moe:
        d.mixture(F="key", scale=True, norm=True, groups=True); d.FS = r.of(24, 40); FEs = [d.FE] * n
        if r.may(30) and not d.groups:
            # Number of chosen experts and their width, for each layer.
            FEs = [r.of(16, 24, 40) for _ in range(n)]
            d.u("expert_feed_forward_length", FEs); d.u("expert_used_count", [r.int(1, d.N) for _ in range(n)])
        d.u("expert_shared_feed_forward_length", d.FS)
        if r.may(): d.u("expert_shared_count", 1)
        if r.may(40): inner = r.of(16, 24); d.u("moe_latent_size", inner)
    d.head()
    for i, c in enumerate(pat):
        d.norms(i, "attn_norm")
        if c == "M": mamba2(d, i)
        elif c == "*": d.qkv(i)
        elif moe:
            d.FE = FEs[i]
            d.experts(i, probs=True, gate=False, inner=inner, shared="plain")
            if inner: d.lin(f"blk.{i}.ffn_latent_down", d.E, inner); d.lin(f"blk.{i}.ffn_latent_up", inner, d.E)
        else: d.dense(i, F, kind="plain")


@draw("nemotron_h")
def _(d): nemotron_h(d, False)


@draw("nemotron_h_moe")
def _(d): nemotron_h(d, True)


@draw("lfm2", "lfm2moe")
def _(d):
    r, moe = d.r, d.arch == "lfm2moe"
    d.size(bound=True, layers=(2, 3, 4)); full = r.both(d.L, 40); cache = r.of(2, 3, 4)
    d.u("attention.head_count_kv", [d.KV if f else 0 for f in full]); d.u("shortconv.l_cache", cache); d.rope(partial=True)
    if not moe and r.may(30): d.u("attention.sliding_window", r.of(0, 3, 7))
    if moe: d.mixture(dense_first=True, gating="must")
    d.head(out_norm="token_embd_norm")
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm")
        if full[i]: d.qkv(i, obias=False, qk="head")
        else: d.t(f"blk.{i}.shortconv.conv.weight", (cache, d.E), 0, 0.8); d.lin(f"blk.{i}.shortconv.in_proj", d.E, 3 * d.E, 1.2); d.lin(f"blk.{i}.shortconv.out_proj", d.E, d.E, 1.2)
        if moe and i >= d.lead: d.experts(i, probs=True)
        else: d.dense(i, bias=False)


def mamba1(d, i, inner, rank, norms=False):
    p = f"blk.{i}."
    d.lin(p + "ssm_in", d.E, 2 * inner, 1.2); d.t(p + "ssm_conv1d.weight", (d.conv, inner), 0, 0.6); d.t(p + "ssm_conv1d.bias", (inner,), 0, 0.2)
    d.lin(p + "ssm_x", inner, rank + 2 * d.state, 1.5); d.lin(p + "ssm_dt", rank, inner, 1.0); d.t(p + "ssm_dt.bias", (inner,), -1.0, 0.8)
    d.t(p + "ssm_a", (d.state, inner), 0.3, 0.6, fn=lambda j, x: -round(math.exp(x), 6)); d.t(p + "ssm_d", (inner,), 1, 0.25); d.lin(p + "ssm_out", inner, d.E, 1.2)
    if norms: d.norm(p + "ssm_dt_norm", rank); d.norm(p + "ssm_b_norm", d.state); d.norm(p + "ssm_c_norm", d.state)


@draw("mamba")
def _(d):
    r = d.r
    d.size(heads=(0,), gqa=False, dims=(8,), ff=None); d.state, d.conv, rank = r.of(4, 8, 12, 16), r.of(2, 3, 4), r.of(2, 3, 4, 8)
    d.u("attention.head_count", 0); d.u("feed_forward_length", 0); d.ssm_keys(d.conv, 2 * d.E, d.state, rank)
    if r.may(60): d.b("ssm.dt_b_c_rms", r.may())
    d.head()
    for i in range(d.L): d.norms(i, "attn_norm"); mamba1(d, i, 2 * d.E, rank)


@draw("mamba2")
def _(d):
    d.size(heads=(0,), gqa=False, dims=(8,), ff=None); d.u("attention.head_count", 0); d.u("feed_forward_length", 0); state_sizes(d, None if d.r.may() else 2 * d.E); d.head()
    for i in range(d.L): d.norms(i, "attn_norm"); mamba2(d, i)


@draw("jamba")
def _(d):
    r = d.r
    d.size(bound=True, layers=(2, 3, 4)); full = r.both(d.L, 40); d.state, d.conv, rank = r.of(4, 8, 16), r.of(2, 3, 4), r.of(2, 4, 6)
    d.u("attention.head_count_kv", [d.KV if f else 0 for f in full]); d.ssm_keys(d.conv, 2 * d.E, d.state, rank); d.mixture(F=None); d.head()
    for i in range(d.L):
        d.norms(i, "attn_norm", "ffn_norm")
        if full[i]: d.qkv(i, obias=False)
        else: mamba1(d, i, 2 * d.E, rank, norms=True)
        if r.may(): d.experts(i)
        else: d.dense(i, bias=False)


@draw("falcon-h1")
def _(d):
    d.size(); d.rope(partial=True, freqs=True); state_sizes(d); d.head()
    norm = d.r.may()
    for i in range(d.L):
        d.norms(i, "attn_norm"); d.t(f"blk.{i}.ffn_norm", (d.E,), 1, 0.22); d.qkv(i); d.dense(i); mamba2(d, i, norm=norm)


@draw("rwkv6")
def _(d):
    r = d.r
    d.size(heads=(0,), gqa=False, dims=(8,), ln=True, ff=None, widths=(32, 48, 64, 96), tok=("rwkv",)); hs = r.of(*[h for h in (8, 16, 24, 32) if d.E % h == 0]); x, w, F, e = r.of(4, 8, 12), r.of(4, 8, 12), r.of(40, 64, 96), d.E
    d.u("attention.head_count", 0); d.u("feed_forward_length", F); d.u("wkv.head_size", hs); d.u("time_mix_extra_dim", x); d.u("time_decay_extra_dim", w)
    if r.may(70): d.u("rescale_every_n_layers", r.of(0, 1, 2, 3))
    if r.may(20): d.u("token_shift_count", 2)
    d.head(tied="never", norm_bias=True); d.norm("token_embd_norm", e, bias=True)
    fused = r.may()
    for i in range(d.L):
        p, c = f"blk.{i}.time_mix_", f"blk.{i}.channel_mix_"
        d.norms(i, "attn_norm", "attn_norm_2", bias=True); d.lin(p + "w1", e, 5 * x); d.lin(p + "w2", x, e, extra=(5,)); d.t(p + "lerp_x.weight", (e, 1, 1), 0.5, 0.25)
        if fused: d.t(p + "lerp_fused.weight", (e, 1, 1, 5), 0.5, 0.25)
        else:
            for n in "wkvrg": d.t(p + f"lerp_{n}.weight", (e, 1, 1), 0.5, 0.25)
        d.t(p + "first.weight", (hs, e // hs), 0, 0.5); d.t(p + "decay.weight", (e,), -1.0, 0.8); d.lin(p + "decay_w1", e, w); d.lin(p + "decay_w2", w, e)
        for n in ("key", "value", "receptance", "gate", "output"): d.lin(p + n, e, e, 1.2)
        d.norm(p + "ln", e, bias=True); d.t(c + "lerp_k.weight", (e, 1, 1), 0.5, 0.25); d.t(c + "lerp_r.weight", (e, 1, 1), 0.5, 0.25); d.lin(c + "key", e, F, 1.2); d.lin(c + "value", F, e); d.lin(c + "receptance", e, e, 1.2)


@draw("rwkv7")
def _(d):
    r = d.r
    d.size(heads=(0,), gqa=False, dims=(8,), ln=True, ff=None, widths=(32, 48, 64, 96), tok=("rwkv",)); hs, e, F = r.of(*[h for h in (8, 16, 24, 32) if d.E % h == 0]), d.E, r.of(40, 64, 96)
    d.u("attention.head_count", 0); d.u("feed_forward_length", F); d.u("wkv.head_size", hs)
    dr, ir, vr, gr = (r.of(4, 8, 12, 16) for _ in range(4))
    for k, v in (("decay", dr), ("iclr", ir), ("value_residual_mix", vr), ("gate", gr)): d.u(f"attention.{k}_lora_rank", v)
    if r.may(20): d.u("token_shift_count", 2)
    d.head(tied="never", norm_bias=True); d.norm("token_embd_norm", e, bias=True)
    for i in range(d.L):
        p, c = f"blk.{i}.time_mix_", f"blk.{i}.channel_mix_"
        d.norms(i, "attn_norm", "attn_norm_2", bias=True); d.t(p + "w0.weight", (e,), -1.0, 0.8); d.lin(p + "w1", e, dr); d.lin(p + "w2", dr, e); d.t(p + "a0.weight", (e,), 0, 0.7); d.lin(p + "a1", e, ir); d.lin(p + "a2", ir, e)
        m = ir if i == 0 else vr
        d.t(p + "v0.weight", (e,), 0, 0.7); d.lin(p + "v1", e, m); d.lin(p + "v2", m, e); d.lin(p + "g1", e, gr, 1.5); d.lin(p + "g2", gr, e, 1.5)
        d.t(p + "lerp_fused.weight", (e, 1, 1, 6), 0.5, 0.25); d.t(p + "k_k.weight", (e,), 0.85, 0.2); d.t(p + "k_a.weight", (e,), 1.0, 0.2); d.t(p + "r_k.weight", (e,), 0, 0.4)
        for n in ("key", "value", "receptance", "output"): d.lin(p + n, e, e, 1.2)
        d.norm(p + "ln", e, bias=True); d.t(c + "lerp_k.weight", (e, 1, 1), 0.5, 0.25); d.lin(c + "key", e, F, 1.2); d.lin(c + "value", F, e, 1.0)


# ------------------------------------------------------------------------------- encoders
def encoder(d, pooling=(1, 2, 3)):
    d.embedding = True
    if d.r.may(80): d.b("attention.causal", False)
    else: d.b("attention.causal", False)
    d.u("pooling_type", d.r.of(*pooling))


def embedding(d, types="may"):
    d.t("token_embd.weight", (d.E, d.V), 0, 0.7)
    if types is True or d.r.may(70): d.t("token_types.weight", (d.E, 2), 0, 0.4)
    d.norm("token_embd_norm", d.E, bias=True)


def classifier(d):
    """Adds the head that scores pairs of texts. Models that return vectors do not use it."""
    if d.r.may(15): d.lin("cls", d.E, d.E, bias=d.arch == "bert"); d.lin("cls.output", d.E, 1, bias=True)


@draw("bert")
def _(d):
    n = d.r.of(48, 64); d.size(bound=True, ln=True, ctx=n, tok=("bert", "jina-v2-en")); d.context = 48; encoder(d); embedding(d); classifier(d); d.t("position_embd.weight", (d.E, n), 0, 0.4)
    for i in range(d.L): d.qkv(i); d.dense(i, kind="plain"); d.norms(i, "attn_output_norm", "layer_output_norm", bias=True)


@draw("nomic-bert")
def _(d):
    d.size(bound=True, ln=True, tok=("bert", "jina-v2-en")); d.rope(partial=True); encoder(d); embedding(d)
    for i in range(d.L): d.qkv(i); d.dense(i, bias="ffn bias"); d.tensors.pop(f"blk.{i}.ffn_gate.bias", None); d.norms(i, "attn_output_norm", "layer_output_norm", bias=True)


@draw("nomic-bert-moe")
def _(d):
    every = d.r.of(0, 2, 2, 3)
    d.size(bound=True, ln=True, layers=(1, 2, 3, 4), tok=("bert", "jina-v2-en")); d.rope(partial=True); encoder(d); d.u("moe_every_n_layers", every); d.mixture(F=None, groups=False); embedding(d)
    for i in range(d.L):
        d.qkv(i)
        if every and i % every == 1: d.experts(i, gate=False)
        else: d.dense(i, kind="plain")
        d.norms(i, "attn_output_norm", "layer_output_norm", bias=True)


@draw("jina-bert-v2")
def _(d):
    r = d.r
    d.size(bound=True, ln=True, tok=("bert", "jina-v2-en")); encoder(d); embedding(d, True)
    qk, kind, second = r.may(30), r.of("gated", "gated", "both"), r.may(30)
    for i in range(d.L):
        d.qkv(i, obias=True, fused="never" if qk else "may"); p = f"blk.{i}.ffn_"
        if kind == "gated": d.lin(p + "gate", d.E, d.F, 1.3); d.lin(p + "up", d.E, d.F, 1.3)
        else: d.lin(p + "up", d.E, 2 * d.F, 1.3)
        d.lin(p + "down", d.F, d.E, 1.3, bias=True); d.norms(i, "attn_output_norm", "layer_output_norm", bias=True)
        if qk and d.KV == d.H: d.norms(i, "attn_q_norm", "attn_k_norm", bias=True)
        if second: d.norms(i, "attn_norm_2", bias=True)


@draw("modern-bert")
def _(d):
    r = d.r
    d.size(bound=True, gqa=False, ln=True, layers=(2, 3, 4, 5), tok=("bert", "jina-v2-en")); d.rope(swa_base=True); encoder(d); window(d, must=False, high=10, each=2)
    d.t("token_embd.weight", (d.E, d.V), 0, 0.7); d.norm("token_embd_norm", d.E); d.norm("output_norm", d.E)
    if r.may(30): d.s("hidden_activation", r.of("gelu", "silu", "reglu"))
    classifier(d)
    for i in range(d.L):
        if i or r.may(30): d.norms(i, "attn_norm")
        d.norms(i, "ffn_norm"); d.qkv(i, fused="must", bias=False, obias=False); d.lin(f"blk.{i}.ffn_up", d.E, 2 * d.F, 1.3); d.lin(f"blk.{i}.ffn_down", d.F, d.E, 1.3)


# -------------------------------------------------------------------------------
def build(arch, number):
    d = Draw(arch, number)
    DRAWS[arch](d)
    return d


def goldens(folder, path):
    """Reduces llama.cpp's results (NAME.f32 in the folder: f32 logits of all positions, or the vector) to the values
    that tests compare: log sum exp of each position, and the eight most likely tokens of the last one. Vectors are
    stored completely. If a file has no results, llama.cpp refuses it."""
    with open(os.path.join(folder, "index.json")) as f: index = json.load(f)
    kept = {"what": "see README.md", "draws": {}}
    if os.path.exists(path):
        with open(path) as f: kept = json.load(f)
    for e in index:
        number, found = int(e["name"].rsplit("-", 1)[1]), None
        results = os.path.join(folder, e["name"] + ".f32")
        if os.path.exists(results):
            xs = array.array("f"); xs.frombytes(open(results, "rb").read())
            if not e["vector"]:
                n = len(e["ids"]); v = len(xs) // n
                rows = [xs[i * v : (i + 1) * v] for i in range(n)]
                sums = [max(r) + math.log(sum(math.exp(x - max(r)) for x in r)) for r in rows]
                best = sorted(range(v), key=lambda i: (-rows[-1][i], i))[:8]
                xs = array.array("f", sums + [x for i in best for x in (float(i), rows[-1][i])])
            if all(math.isfinite(x) for x in xs): found = base64.b64encode(xs.tobytes()).decode()
        of = kept["draws"].setdefault(e["arch"], [])
        of += [None] * (number + 1 - len(of)); of[number] = found
    lines = ",\n".join(json.dumps(arch) + ": [\n" + ",\n".join(json.dumps(x) for x in kept["draws"][arch]) + "\n]" for arch in sorted(kept["draws"]))
    with open(path, "w") as f: f.write('{"what": ' + json.dumps(kept["what"]) + ', "draws": {\n' + lines + "\n}}\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("archs", nargs="*"); ap.add_argument("--out"); ap.add_argument("--draws", default="3"); ap.add_argument("--list", action="store_true"); ap.add_argument("--keys", action="store_true"); ap.add_argument("--goldens")
    a = ap.parse_args()
    if a.goldens: goldens(a.out, a.goldens); return 0
    archs = a.archs or sorted(DRAWS)
    first, _, last = a.draws.rpartition(":")
    numbers = range(int(first or 0), int(last))
    if a.list or not (a.out or a.keys):
        print("\n".join(archs)); return 0
    if a.keys:
        for arch in archs:
            for n in numbers:
                d = build(arch, n)
                print(f"{arch}-{n}", " ".join(f"{k[len(arch) + 1:]}={v[1][1] if v[0] == ARR else v[1]}" for k, v in d.kvs.items() if k.startswith(arch + ".")))
        return 0
    os.makedirs(a.out, exist_ok=True)
    index = []
    for arch in archs:
        for n in numbers:
            d = build(arch, n); name = f"{arch}-{n}"
            sha = d.write(os.path.join(a.out, name + ".gguf"))
            index.append({"name": name, "arch": arch, "sha256": sha, "ids": d.ids(), "context": d.context, "vector": d.embedding})
    with open(os.path.join(a.out, "index.json"), "w") as f: json.dump(index, f)
    return 0


if __name__ == "__main__":
    sys.exit(main())
