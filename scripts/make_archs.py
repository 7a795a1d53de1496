#!/usr/bin/env python3
"""Write tiny synthetic GGUF models, one per architecture, bit for bit reproducible from a seed.

    make_archs.py --out DIR                 all models
    make_archs.py --out DIR gemma2 bloom    some
    make_archs.py --list                    names, architectures, sizes
    make_archs.py --out DIR --seed 7 ...    other weights, other prompt (no reference logits for those)
    make_archs.py --out DIR --check archs.json   and compare each file's sha256 with the index

Standard library only. Weights come from SHAKE-128 of "seed/model/tensor", so they are the same on
every machine; all tensors are F32. Matrices are uniform with a standard deviation of gain/sqrt(fan in),
norm weights spread around 1 (never 1), biases are non-zero, and windows, soft caps, clamps and scales
are set to values that show within 24 tokens. The metadata keys are those that the usual converter writes.
Models named -wide have no reference logits: a GPU is held against the host with them.
"""
import argparse, array, hashlib, json, math, os, struct, sys

SEED = 20251
MODELS = {}


def model(name, arch=None):
    def deco(f):
        MODELS[name] = (arch or name, f)
        return f
    return deco


# ---------------------------------------------------------------------------------------- GGUF
U32, I32, F32, BOOL, STR, ARR = 4, 5, 6, 7, 8, 9


def gstr(s):
    b = s.encode("utf-8")
    return struct.pack("<Q", len(b)) + b


def gval(t, v):
    if t == STR:
        return gstr(v)
    if t == ARR:
        et, xs = v
        return struct.pack("<IQ", et, len(xs)) + b"".join(gval(et, x) for x in xs)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[t], v)


def f16(x):
    return struct.pack("<e", x)


def _q8_0(b, sd, u): b[0:2] = f16(sd / 73.9 * u)
def _q4_0(b, sd, u): b[0:2] = f16(sd / 4.64 * u * (-1 if b[2] & 1 else 1))
def _q4_k(b, sd, u): b[0:2], b[2:4] = f16(sd / 253 * u), f16(7.5 * sd / 253 * u)
def _q6_k(b, sd, u): b[208:210] = f16(sd / 1366 * u * (-1 if b[0] & 1 else 1))
def _mxfp4(b, sd, u): b[0] = 128 + round(math.log2(sd / 5.85)) + (b[0] % 3 - 1)


# type id, elements and bytes of a block, where the scale goes (all other bytes of a block are random)
QUANT = {"Q4_0": (2, 32, 18, _q4_0), "Q8_0": (8, 32, 34, _q8_0), "Q4_K": (12, 256, 144, _q4_k), "Q6_K": (14, 256, 210, _q6_k), "MXFP4": (39, 32, 17, _mxfp4)}


class M:
    """One model: metadata, tensors, and helpers to describe both."""

    def __init__(m, name, arch, seed):
        m.name, m.arch, m.seed = name, arch, seed
        m.kvs, m.tensors, m.hp, m.embedding = {}, {}, {}, False
        m.kv("general.architecture", STR, arch)
        m.kv("general.type", STR, "model")
        m.kv("general.name", STR, f"{name} tiny synthetic")
        m.kv("general.file_type", U32, 0)
        m.kv("general.quantization_version", U32, 2)
        m.L, m.quant = 0, lambda name: None

    def quantise(m, file_type, label, pick):
        """pick(tensor) names the block format of a matrix; everything else stays F32."""
        m.kv("general.file_type", U32, file_type)
        m.hp["weights"] = label
        m.quant = lambda n: pick(n) if len(m.tensors[n][0]) > 1 and n.endswith(".weight") and "ffn_gate_inp" not in n else None

    # --- metadata
    def kv(m, k, t, v):
        m.kvs[k] = (t, v)

    def _k(m, t, k, v):
        m.kv(f"{m.arch}.{k}", t, v)
        m.hp[k] = v[1] if t == ARR else v

    def u(m, k, v):
        m._k(ARR, k, (U32, v)) if isinstance(v, list) else m._k(U32, k, v)

    def f(m, k, v):
        m._k(ARR, k, (F32, v)) if isinstance(v, list) else m._k(F32, k, v)

    def b(m, k, v):
        m._k(ARR, k, (BOOL, v)) if isinstance(v, list) else m._k(BOOL, k, v)

    def s(m, k, v):
        m._k(STR, k, v)

    def base(m, E, L, H, KV, F, D=None, eps=1e-5, ln=False, theta=None, rot=None, ctx=2048, tok=("gpt2", "gpt-2"), V=None):
        m.E, m.L, m.H, m.KV, m.F, m.D = E, L, H, KV, F, D or (E // H if isinstance(H, int) and H else 0)
        m.V = V or 384
        m.u("block_count", L); m.u("context_length", ctx); m.u("embedding_length", E)
        if F is not None: m.u("feed_forward_length", F)
        if H is not None: m.u("attention.head_count", H)
        if KV is not None: m.u("attention.head_count_kv", KV)
        if theta: m.f("rope.freq_base", float(theta))
        if eps: m.f("attention.layer_norm_epsilon" if ln else "attention.layer_norm_rms_epsilon", eps)
        if D: m.u("attention.key_length", D); m.u("attention.value_length", D)
        m.rot = rot or m.D
        if rot: m.u("rope.dimension_count", rot)
        m.u("vocab_size", m.V)
        m.tokenizer(*tok)

    # --- tensors: (dims, mean, std, transform)
    def t(m, name, dims, mean=0.0, sd=1.0, fn=None):
        assert name not in m.tensors, name
        m.tensors[name] = (tuple(int(d) for d in dims), mean, sd, fn)

    def lin(m, name, n_in, n_out, gain=1.0, bias=False, extra=()):
        m.t(name + ".weight", (n_in, n_out, *extra), 0, gain / math.sqrt(n_in))
        if bias: m.t(name + ".bias", (n_out, *extra), 0, 0.2)

    def norm(m, name, *dims, bias=False, mean=1.0):
        m.t(name + ".weight", dims, mean, 0.22 * mean)
        if bias: m.t(name + ".bias", dims, 0, 0.12)

    def embd(m, tied=False, out_bias=False, sd=None, out_norm="output_norm", norm_bias=False, no_norm=False, gain=2.5):
        m.t("token_embd.weight", (m.E, m.V), 0, sd or (gain / math.sqrt(m.E) if tied else 0.7))
        if not no_norm: m.norm(out_norm, m.E, bias=norm_bias)
        if not tied: m.lin("output", m.E, m.V, gain, out_bias)
        m.hp["tied"] = tied

    def attn(m, i, H=None, KV=None, D=None, bias=False, obias=False, fused=False, qk=None, qkmean=1.35, gain=1.6, names="attn", n_q=None):
        H, KV, D = H or m.H, KV or m.KV, D or m.D
        p = f"blk.{i}."
        if fused:
            m.lin(p + "attn_qkv", m.E, (H + 2 * KV) * D, gain, bias)
        else:
            m.lin(p + "attn_q", m.E, n_q or H * D, gain, bias)
            m.lin(p + "attn_k", m.E, KV * D, gain, bias)
            m.lin(p + "attn_v", m.E, KV * D, 1.2, bias)
        m.lin(p + "attn_output", H * D, m.E, 1.0, obias)
        if qk == "head": m.norm(p + "attn_q_norm", D, mean=qkmean); m.norm(p + "attn_k_norm", D, mean=qkmean)
        if qk == "whole": m.norm(p + "attn_q_norm", H * D, mean=qkmean); m.norm(p + "attn_k_norm", KV * D, mean=qkmean)

    def ffn(m, i, F=None, gate=True, bias=False, suffix="", gain=1.3):
        F = F or m.F
        p = f"blk.{i}.ffn_"
        if gate: m.lin(p + "gate" + suffix, m.E, F, gain, bias)
        m.lin(p + "up" + suffix, m.E, F, gain, bias)
        m.lin(p + "down" + suffix, F, m.E, gain, bias)

    def moe(m, i, N, F, shared=0, probs_b=False, gate=True, bias=False, gain=1.3, inner=None):
        p = f"blk.{i}."
        I = inner or m.E
        m.lin(p + "ffn_gate_inp", m.E, N, 1.8, bias)
        if probs_b: m.t(p + "exp_probs_b.bias", (N,), 0, 0.15)
        if gate: m.lin(p + "ffn_gate_exps", I, F, gain, bias, (N,))
        m.lin(p + "ffn_up_exps", I, F, gain, bias, (N,))
        m.lin(p + "ffn_down_exps", F, I, gain, bias, (N,))
        if shared: m.ffn(i, shared, gate=gate, suffix="_shexp")

    def norms(m, i, *which, bias=False, mean=1.0):
        for w in which: m.norm(f"blk.{i}.{w}", m.E, bias=bias, mean=mean)

    def experts(m, N, used, F=None, shared_n=None, shared_F=None, dense=None, scale=None, norm=None, gating=None, groups=None):
        m.u("expert_count", N); m.u("expert_used_count", used)
        if F: m.u("expert_feed_forward_length", F)
        if shared_n is not None: m.u("expert_shared_count", shared_n)
        if shared_F: m.u("expert_shared_feed_forward_length", shared_F)
        if dense is not None: m.u("leading_dense_block_count", dense)
        if scale is not None: m.f("expert_weights_scale", scale)
        if norm is not None: m.b("expert_weights_norm", norm)
        if gating: m.u("expert_gating_func", gating)
        if groups: m.u("expert_group_count", groups[0]); m.u("expert_group_used_count", groups[1])

    def yarn(m, factor, orig, fast=None, slow=None, **kw):
        m.s("rope.scaling.type", "yarn"); m.f("rope.scaling.factor", factor); m.u("rope.scaling.original_context_length", orig)
        if fast: m.f("rope.scaling.yarn_beta_fast", fast); m.f("rope.scaling.yarn_beta_slow", slow)
        for k, v in kw.items(): m.f("rope.scaling." + k, v)

    def rope_freqs(m, n, vals=None):
        """Llama-3 factors: 1 for the fast dimensions, growing to 8 for the slow ones."""
        vals = vals or [1.0 if j < n * 0.3 else min(8.0, 1.0 + 7.0 * (j / n - 0.3) / 0.5) for j in range(n)]
        m.t("rope_freqs.weight", (n,), fn=lambda j, x: vals[j])

    def mamba2(m, i, inner, state, groups, heads, conv, norm=True):
        p = f"blk.{i}."
        m.lin(p + "ssm_in", m.E, 2 * inner + 2 * groups * state + heads, 1.2)
        m.t(p + "ssm_conv1d.weight", (conv, inner + 2 * groups * state), 0, 0.6)
        m.t(p + "ssm_conv1d.bias", (inner + 2 * groups * state,), 0, 0.2)
        m.t(p + "ssm_dt.bias", (heads,), -1.0, 0.8)
        m.t(p + "ssm_a", (1, heads), 0.3, 0.5, fn=lambda j, x: -round(math.exp(x), 6))
        m.t(p + "ssm_d", (1, heads), 1, 0.25)
        if norm: m.norm(p + "ssm_norm", inner // groups, groups)
        m.lin(p + "ssm_out", inner, m.E, 1.2)

    def ssm_keys(m, conv, inner, state, rank, groups=None):
        m.u("ssm.conv_kernel", conv); m.u("ssm.inner_size", inner); m.u("ssm.state_size", state); m.u("ssm.time_step_rank", rank)
        if groups is not None: m.u("ssm.group_count", groups)

    # --- tokenizers: own small vocabularies
    def tokenizer(m, kind, pre="default"):
        V, k = m.V, "tokenizer.ggml."
        m.kv(k + "model", STR, kind)
        m.hp["tokenizer"] = f"{kind}/{pre}" if kind != "llama" else "llama"
        if kind == "gpt2":
            m.kv(k + "pre", STR, pre)
            bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
            u, n = {b: chr(b) for b in bs}, 0
            for b in range(256):
                if b not in u: u[b] = chr(256 + n); n += 1
            toks = [u[b] for b in range(256)]
            sp = u[32]
            merges = [(sp, "t"), ("h", "e"), ("i", "n"), (sp, "a"), ("r", "e"), ("o", "n"), (sp + "t", "he"), ("e", "r"), (sp, "s"), ("a", "t"),
                      (sp, "w"), ("o", "u"), (sp, "o"), ("n", "d"), (sp + "a", "nd"), ("in", "g"), ("e", "s"), ("o", "r"), (sp, "c"), (sp + "o", "f")]
            merges[19] = (sp + "o", "f")
            for c in "bcdfghklmnprstvz":
                for v in "aeiou":
                    if (c, v) not in merges: merges.append((c, v))
            merges = merges[: V - 256 - 3]
            toks += [a + b for a, b in merges]
            while len(toks) < V - 3: toks.append(f"<|reserved_{len(toks)}|>")
            n_norm = 256 + len(merges)
            toks += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
            types = [1] * n_norm + [3] * (V - n_norm)
            m.kv(k + "tokens", ARR, (STR, toks)); m.kv(k + "token_type", ARR, (I32, types))
            m.kv(k + "merges", ARR, (STR, [a + " " + b for a, b in merges]))
            m.kv(k + "bos_token_id", U32, V - 3); m.kv(k + "eos_token_id", U32, V - 1)
            m.kv(k + "add_bos_token", BOOL, False)
            m.lo, m.hi = 33, n_norm
        elif kind in ("llama", "gemma4"):
            if kind == "llama": m.kv(k + "pre", STR, "default")
            toks = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
            types = [2, 3, 3] + [6] * 256
            pieces = ["\u2581", "\u2581t", "he", "in", "\u2581a", "re", "on", "\u2581the", "er", "\u2581s", "at", "ou", "nd", "\u2581and", "ing", "es", "or"]
            pieces += list("etaoinsrhldcumfpgwybvkxjqz") + list("ETAOINSRHLDCUMFPGWYBVKXJQZ") + list("0123456789.,!?'\"-()")
            pieces += [c + v for c in "bcdfghklmnprstvz" for v in "aeiou"]
            pieces = list(dict.fromkeys(pieces))[: V - 259]
            toks += pieces; types += [1] * len(pieces)
            if m.arch == "phi3":
                for j, x in enumerate(("<|endoftext|>", "<|user|>", "<|end|>")): toks[V - 3 + j], types[V - 3 + j] = x, 3
            scores = [0.0] * 259 + [-float(j) for j in range(len(pieces))]
            if kind == "gemma4":
                one = [x for x in pieces if len(x) == 1]
                have, merges = set(one) | {"\u2581"}, []
                for x in pieces:
                    if len(x) > 1:
                        for c in range(1, len(x)):
                            if x[:c] in have and x[c:] in have: merges.append(x[:c] + " " + x[c:]); have.add(x); break
                m.kv(k + "merges", ARR, (STR, merges))
            m.kv(k + "tokens", ARR, (STR, toks)); m.kv(k + "scores", ARR, (F32, scores)); m.kv(k + "token_type", ARR, (I32, types))
            for key, v in (("bos_token_id", 1), ("eos_token_id", 2), ("unknown_token_id", 0)): m.kv(k + key, U32, v)
            m.kv(k + "add_bos_token", BOOL, True); m.kv(k + "add_eos_token", BOOL, False)
            m.lo, m.hi = 259, V
        elif kind == "bert":
            m.kv(k + "pre", STR, pre)
            toks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
            al = "abcdefghijklmnopqrstuvwxyz0123456789"
            words = ["\u2581" + c for c in al + ".,!?"] + list(al) + ["\u2581" + c + v for c in "bcdfghklmnprstvz" for v in "aeiou"] + [c + v for c in "bcdfghklmnprstvz" for v in "aeiou"]
            words += ["\u2581" + c + v + d for c in "bdklmnrst" for v in "aeiou" for d in "nrst"]
            toks += words[: V - 5]
            assert len(toks) == V
            m.kv(k + "tokens", ARR, (STR, toks)); m.kv(k + "token_type", ARR, (I32, [3] * 5 + [1] * (V - 5)))
            for key, v in (("unknown_token_id", 1), ("seperator_token_id", 3), ("padding_token_id", 0), ("cls_token_id", 2), ("bos_token_id", 2), ("mask_token_id", 4)): m.kv(k + key, U32, v)
            m.kv(k + "token_type_count", U32, 2)
            m.lo, m.hi = 5, V
        elif kind == "rwkv":
            esc = [chr(b) if 32 < b < 127 and chr(b) not in "\\'\"" else f"\\x{b:02x}" for b in range(256)]
            toks = ["<s>"] + esc[1:]
            toks += [c + v for c in "bcdfghjklmnprstvwxz" for v in "aeiou"] + [c + v + d for c in "bdklmnrst" for v in "aeiou" for d in "nrst"]
            toks = (["<s>"] + toks[1:])[:V]
            m.kv(k + "tokens", ARR, (STR, toks)); m.kv(k + "token_type", ARR, (I32, [1] * V))
            m.lo, m.hi = 33, V

    # --- output
    def values(m, name):
        dims, mean, sd, fn = m.tensors[name]
        n = math.prod(dims)
        raw = array.array("H")
        raw.frombytes(hashlib.shake_128(f"{m.seed}/{m.name}/{name}".encode()).digest(2 * n))
        if sys.byteorder == "big": raw.byteswap()
        k = sd * math.sqrt(12.0) / 65536.0
        xs = [mean + (r - 32767.5) * k for r in raw]
        if fn: xs = [fn(j, x) for j, x in enumerate(xs)]
        return array.array("f", xs)

    def blocks(m, name):
        """The bytes of a quantised tensor."""
        dims, _, sd, _ = m.tensors[name]
        _, elems, size, patch = QUANT[m.quant(name)]
        assert dims[0] % elems == 0, name
        n = math.prod(dims) // elems
        raw = bytearray(hashlib.shake_128(f"{m.seed}/{m.name}/{name}".encode()).digest(n * (size + 1)))
        out = bytearray()
        for j in range(n):
            b = raw[j * size : (j + 1) * size]
            patch(b, sd, 0.75 + raw[n * size + j] / 512)
            out += b
        return bytes(out)

    def prompt(m, n=24):
        raw = hashlib.shake_128(f"{m.seed}/{m.name}/prompt".encode()).digest(2 * n)
        ids = [m.lo + (raw[2 * j] | raw[2 * j + 1] << 8) % (m.hi - m.lo) for j in range(n)]
        bos = m.kvs.get("tokenizer.ggml.bos_token_id")
        if m.kvs.get("tokenizer.ggml.add_bos_token", (0, False))[1] and bos: ids[0] = bos[1]
        if m.embedding: ids[0], ids[-1] = 2, 3
        return ids

    def write(m, path):
        head = struct.pack("<IIQQ", 0x46554747, 3, len(m.tensors), len(m.kvs))
        head += b"".join(gstr(k) + struct.pack("<I", t) + gval(t, v) for k, (t, v) in m.kvs.items())
        off, info = 0, b""
        for name, (dims, *_) in m.tensors.items():
            q = m.quant(name)
            t, elems, size = QUANT[q][:3] if q else (0, 1, 4)
            info += gstr(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", t, off)
            off += (math.prod(dims) // elems * size + 31) // 32 * 32
        head += info
        head += b"\0" * (-len(head) % 32)
        sha = hashlib.sha256(head)
        with open(path, "wb") as f:
            f.write(head)
            for name in m.tensors:
                if m.quant(name): b = m.blocks(name)
                else:
                    a = m.values(name)
                    if sys.byteorder == "big": a.byteswap()
                    b = a.tobytes()
                b += b"\0" * (-len(b) % 32)
                f.write(b); sha.update(b)
        return sha.hexdigest()


# ---------------------------------------------------------------------------------------- architectures
QWEN, LL3, SPM = ("gpt2", "qwen2"), ("gpt2", "llama-bpe"), ("llama",)
E, L, H, KV, F = 128, 3, 4, 2, 192   # defaults
EPS = 1e-5


def llama_layers(m, qk=None, bias=False, obias=False, fbias=False, moe=None):
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm")
        m.attn(i, bias=bias, obias=obias, qk=qk)
        if moe: m.moe(i, *moe)
        else: m.ffn(i, bias=fbias)


@model("llama")
def _(m):
    m.base(E, L, H, KV, F, eps=EPS, theta=10000, rot=E // H, tok=SPM); m.embd(); llama_layers(m)


@model("llama-rope3", "llama")
def _(m):
    m.base(E, L, H, 1, F, D=64, eps=EPS, theta=500, rot=64, tok=LL3); m.embd(tied=True); m.rope_freqs(32); llama_layers(m)


@model("llama-bias", "llama")
def _(m):
    m.base(E, L, H, KV, F, eps=EPS, theta=10000, rot=E // H, tok=LL3); m.s("rope.scaling.type", "linear"); m.f("rope.scaling.factor", 4.0)
    m.embd(); llama_layers(m, bias=True, obias=True, fbias=True)


@model("llama-yarn", "llama")
def _(m):
    m.base(E, L, H, KV, F, eps=EPS, theta=10000, rot=E // H, tok=SPM); m.yarn(4.0, 64); m.embd(); llama_layers(m)


@model("llama-moe", "llama")
def _(m):
    m.base(E, L, H, KV, 96, eps=EPS, theta=1e6, rot=E // H, tok=SPM); m.experts(8, 2); m.embd(); llama_layers(m, moe=(8, 96))


@model("mistral3")
def _(m):
    m.base(E, L, H, KV, F, D=48, eps=EPS, theta=10000, rot=48, tok=("gpt2", "tekken")); m.yarn(4.0, 10, 4.0, 0.25, yarn_log_multiplier=1.0)
    m.f("attention.temperature_scale", 0.4); m.embd(tied=True); llama_layers(m)


@model("llama4")
def _(m):
    N = 6
    m.base(E, 4, H, KV, F, D=32, eps=EPS, theta=500000, rot=32, tok=("gpt2", "llama4")); m.experts(N, 1, 96); m.u("interleave_moe_layer_step", 2)
    m.embd(); m.rope_freqs(16)
    for i in range(4):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i)
        if (i + 1) % 2 == 0: m.moe(i, N, 96, shared=96)
        else: m.ffn(i)


@model("qwen2")
def _(m):
    m.base(E, L, H, KV, F, eps=1e-6, theta=1e6, tok=QWEN); m.embd(tied=True); llama_layers(m, bias=True)


@model("qwen2moe")
def _(m):
    m.base(E, L, H, KV, F, eps=1e-6, theta=1e6, tok=QWEN); m.experts(8, 3, 64, shared_F=96); m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, bias=True); m.moe(i, 8, 64, shared=96); m.t(f"blk.{i}.ffn_gate_inp_shexp.weight", (m.E,), 0, 1.5 / math.sqrt(m.E))


@model("qwen3")
def _(m):
    m.base(E, L, H, KV, F, D=64, eps=1e-6, theta=1e6, tok=QWEN); m.embd(tied=False); llama_layers(m, qk="head")


@model("qwen3moe")
def _(m):
    m.base(E, L, H, KV, F, D=64, eps=1e-6, theta=1e6, tok=QWEN); m.experts(8, 3, 64); m.embd(); llama_layers(m, qk="head", moe=(8, 64))


def delta_layer(m, i, S, NK, NV, conv, ba):
    p, kd, vd = f"blk.{i}.", S * NK, S * NV
    m.lin(p + "attn_qkv", m.E, 2 * kd + vd, 1.3); m.lin(p + "attn_gate", m.E, vd, 1.3)
    m.t(p + "ssm_conv1d.weight", (conv, 2 * kd + vd), 0, 0.6)
    m.t(p + "ssm_dt.bias", (NV,), -0.5, 0.8)
    m.t(p + "ssm_a", (NV,), -0.5, 0.5, fn=lambda j, x: -round(math.exp(x), 6))
    if ba: m.lin(p + "ssm_ba", m.E, 2 * NV, 1.2)
    else: m.lin(p + "ssm_beta", m.E, NV, 1.2); m.lin(p + "ssm_alpha", m.E, NV, 1.2)
    m.norm(p + "ssm_norm", S); m.lin(p + "ssm_out", vd, m.E, 1.2)


def qwen_hybrid(m, ba, moe, mrope):
    S, NK, NV, conv, every = 32, 2, 4, 4, 4
    D, rot = 64, 16
    m.base(E, 4, 4, 2, None if moe == "only" else F, D=D, eps=1e-6, theta=10000, rot=rot, tok=QWEN if ba else ("gpt2", "qwen35"))
    if mrope: m.u("rope.dimension_sections", [3, 3, 2, 0])
    m.ssm_keys(conv, S * NV, S, NV, NK); m.u("full_attention_interval", every)
    N, FE, FS = 8, 48, 64
    if moe: m.experts(N, 3, FE, shared_F=FS)
    m.embd(tied=False)
    for i in range(m.L):
        m.norms(i, "attn_norm", "post_attention_norm")
        if (i + 1) % every == 0: m.attn(i, qk="head", n_q=2 * m.H * D)
        else: delta_layer(m, i, S, NK, NV, conv, ba)
        if moe: m.moe(i, N, FE, shared=FS); m.t(f"blk.{i}.ffn_gate_inp_shexp.weight", (m.E,), 0, 1.5 / math.sqrt(m.E))
        else: m.ffn(i)


@model("qwen3next")
def _(m): qwen_hybrid(m, True, True, False)


@model("qwen35")
def _(m): qwen_hybrid(m, False, False, True)


@model("qwen35moe")
def _(m): qwen_hybrid(m, False, True, True)


@model("gemma")
def _(m):
    m.base(E, L, H, 1, F, D=64, eps=1e-6, tok=SPM); m.embd(tied=True, sd=0.1); llama_layers(m)


def gemma_layers(m, qk=None, qkmean=1.35):
    for i in range(m.L):
        m.norms(i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"); m.attn(i, qk=qk, qkmean=qkmean); m.ffn(i)


@model("gemma2")
def _(m):
    m.base(E, 4, H, KV, F, D=48, eps=1e-6, tok=SPM)
    m.f("attn_logit_softcapping", 3.0); m.f("final_logit_softcapping", 3.0); m.u("attention.sliding_window", 8); m.embd(tied=True, sd=0.14); gemma_layers(m)


@model("gemma3")
def _(m):
    m.base(96, 7, H, 1, 128, D=32, eps=1e-6, theta=1e6, tok=SPM)
    m.u("attention.sliding_window", 8); m.f("rope.freq_base_swa", 10000.0)
    m.embd(tied=True, sd=0.15); gemma_layers(m, qk="head")


@model("gemma3n")
def _(m):
    nl, EA, R, NA = 22, 256, 64, 4
    m.base(64, nl, 2, 1, ([192] * nl), D=32, eps=1e-6, theta=1e6, tok=SPM, V=352)
    pat = [(i + 1) % 5 != 0 for i in range(nl)]
    m.u("attention.sliding_window", 8); m.b("attention.sliding_window_pattern", pat); m.u("attention.shared_kv_layers", nl - 20); m.f("rope.freq_base_swa", 10000.0)
    m.f("final_logit_softcapping", 30.0); m.u("altup.num_inputs", NA); m.u("altup.active_idx", 0); m.u("embedding_length_per_layer_input", EA); m.f("activation_sparsity_scale", [1.6448] * 10 + [0.0] * (nl - 10))
    m.embd(tied=True, sd=0.25); e = m.E
    m.lin("altup_proj", e, e, 1.0, extra=(NA - 1,)); m.lin("altup_unembd_proj", e, e, 1.0, extra=(NA - 1,))
    m.t("per_layer_token_embd.weight", (EA * nl, m.V), 0, 0.06); m.lin("per_layer_model_proj", e, EA * nl); m.norm("per_layer_proj_norm", EA)
    for i in range(nl):
        p = f"blk.{i}."
        m.norms(i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm", "altup_router_norm", "laurel_post_norm")
        m.attn(i, qk="head", qkmean=0.5); m.ffn(i, F=m.F[i])
        m.lin(p + "inp_gate", e, EA); m.lin(p + "proj", EA, e)
        m.t(p + "altup_correct_coef.weight", (NA, NA), 0, 0.4); m.t(p + "altup_correct_scale.weight", (e,), 1, 0.2)
        m.t(p + "altup_predict_coef.weight", (NA, NA * NA), 0, 0.3); m.lin(p + "altup_router", e, NA)
        m.lin(p + "laurel_l", e, R); m.lin(p + "laurel_r", R, e)


def gemma4(m, moe, DF=64):
    nl, e = 6, 96
    swa = [(i + 1) % 3 != 0 for i in range(nl)]
    DS, HH, KS, KF = 32, 4, 2, 1
    share = 0 if moe else 3
    ffs = ([128] * 3 + [192] * 3) if not moe else 96
    m.base(e, nl, HH, [KS if x else KF for x in swa], ffs, D=None, eps=1e-6, theta=1e6, tok=("gemma4",))
    m.u("attention.key_length", DF); m.u("attention.value_length", DF); m.u("attention.key_length_swa", DS); m.u("attention.value_length_swa", DS)
    m.u("rope.dimension_count", DF); m.u("rope.dimension_count_swa", DS); m.f("rope.freq_base_swa", 10000.0)
    m.u("attention.sliding_window", 8); m.b("attention.sliding_window_pattern", swa); m.u("attention.shared_kv_layers", share)
    pl = 0 if moe else 32
    m.u("embedding_length_per_layer_input", pl); m.f("final_logit_softcapping", 3.0)
    N, FE = 8, 48
    if moe: m.experts(N, 3, FE)
    m.embd(tied=True, sd=0.16)
    n = DF // 2
    m.t("rope_freqs.weight", (n,), fn=lambda j, x: 1.0 if j < n // 4 else 1e30)
    if pl: m.t("per_layer_token_embd.weight", (pl * nl, m.V), 0, 0.3); m.lin("per_layer_model_proj", e, pl * nl); m.norm("per_layer_proj_norm", pl)
    for i in range(nl):
        p = f"blk.{i}."
        D, K = (DS, KS) if swa[i] else (DF, KF)
        own = i < nl - share
        near = 0.45 if D <= 64 else 0.3
        m.lin(p + "attn_q", e, HH * D); m.norm(p + "attn_q_norm", D, mean=near)
        if own:
            m.lin(p + "attn_k", e, K * D); m.norm(p + "attn_k_norm", D, mean=near)
            if not (moe and not swa[i]): m.lin(p + "attn_v", e, K * D)
        m.lin(p + "attn_output", HH * D, e)
        m.norms(i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"); m.t(p + "layer_output_scale.weight", (1,), 0.9, 0.1)
        m.ffn(i, ffs if isinstance(ffs, int) else ffs[i])
        if moe:
            m.lin(p + "ffn_gate_inp", e, N, 1.8); m.t(p + "ffn_gate_inp.scale", (e,), math.sqrt(e), 0.2 * math.sqrt(e))
            m.norms(i, "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
            m.lin(p + "ffn_gate_up_exps", e, 2 * FE, 1.3, extra=(N,)); m.lin(p + "ffn_down_exps", FE, e, 1.3, extra=(N,)); m.t(p + "ffn_down_exps.scale", (N,), 1, 0.25)
        if pl: m.lin(p + "inp_gate", e, pl, 1.5); m.lin(p + "proj", pl, e); m.norms(i, "post_norm")


@model("gemma4")
def _(m): gemma4(m, False)


@model("gemma4-moe", "gemma4")
def _(m): gemma4(m, True)


@model("gemma4-wide", "gemma4")   # global heads as wide as the real ones; compares GPU with host, without reference logits
def _(m): gemma4(m, False, DF=512)


@model("phi2")
def _(m):
    m.base(E, L, H, H, 4 * E, ln=True, eps=1e-5, rot=16, tok=("gpt2", "default")); m.embd(out_bias=True, norm_bias=True)
    for i in range(m.L): m.norms(i, "attn_norm", bias=True); m.attn(i, bias=True, obias=True); m.ffn(i, gate=False, bias=True)


def longrope(m, n):
    m.u("rope.scaling.original_context_length", 4096); m.f("rope.scaling.attn_factor", 1.19)
    m.t("rope_factors_long.weight", (n,), fn=lambda j, x: 1.0 + 40.0 * j / n)
    m.t("rope_factors_short.weight", (n,), fn=lambda j, x: 1.0 + 2.0 * j / n)


@model("phi3")
def _(m):
    m.base(E, L, H, KV, F, eps=1e-5, theta=10000, rot=E // H, ctx=131072, tok=SPM); m.u("attention.sliding_window", 131072)
    longrope(m, E // H // 2)
    m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, fused=True); m.lin(f"blk.{i}.ffn_up", m.E, 2 * m.F, 1.3); m.lin(f"blk.{i}.ffn_down", m.F, m.E, 1.3)


@model("phimoe")
def _(m):
    m.base(E, L, H, KV, 96, eps=1e-5, theta=10000, rot=E // H, ctx=131072, tok=SPM); m.u("attention.sliding_window", 131072); longrope(m, E // H // 2); m.experts(8, 2)
    m.embd(out_bias=True, norm_bias=True)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm", bias=True); m.attn(i, bias=True, obias=True); m.moe(i, 8, 96)


@model("gpt2")
def _(m):
    m.base(E, L, H, None, 4 * E, ln=True, ctx=64); m.KV = H; m.embd(tied=True, norm_bias=True); m.t("position_embd.weight", (E, 64), 0, 0.4)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm", bias=True); m.attn(i, fused=True, bias=True, obias=True); m.ffn(i, gate=False, bias=True)


@model("gptneox")
def _(m):
    m.base(E, L, H, None, 4 * E, ln=True, rot=8, tok=("gpt2", "olmo")); m.KV = H; m.b("use_parallel_residual", True); m.embd(norm_bias=True)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm", bias=True); m.attn(i, fused=True, bias=True, obias=True); m.ffn(i, gate=False, bias=True)


@model("falcon")
def _(m):
    m.base(E, L, H, 1, 4 * E, ln=True, tok=("gpt2", "falcon")); m.s("tensor_data_layout", "jploski"); m.embd(tied=False, norm_bias=True)
    for i in range(m.L):
        m.norms(i, "attn_norm", bias=True)
        m.attn(i, fused=True); m.ffn(i, gate=False)


@model("starcoder2")
def _(m):
    m.base(E, L, H, KV, 4 * E, ln=True, theta=1e5, tok=("gpt2", "starcoder")); m.embd(tied=True, norm_bias=True)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm", bias=True); m.attn(i, bias=True, obias=True); m.ffn(i, gate=False, bias=True)


@model("stablelm")
def _(m):
    m.base(E, L, H, H, F, ln=True, rot=8, tok=("gpt2", "stablelm2")); m.b("use_parallel_residual", False); m.embd(norm_bias=True)
    for i in range(m.L):
        m.norms(i, "attn_norm", bias=True); m.attn(i, bias=True); m.ffn(i)
        m.norms(i, "ffn_norm", bias=True)


@model("bloom")
def _(m):
    m.base(E, L, H, None, 4 * E, ln=True, tok=("gpt2", "bloom")); m.KV = H; m.embd(tied=True, norm_bias=True); m.norm("token_embd_norm", E, bias=True)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm", bias=True); m.attn(i, fused=True, bias=True, obias=True); m.ffn(i, gate=False, bias=True)


@model("mpt")
def _(m):
    m.base(E, L, H, None, 4 * E, ln=True, tok=("gpt2", "mpt")); m.KV = H; m.f("attention.clamp_kqv", 1.5); m.f("attention.max_alibi_bias", 8.0); m.embd(tied=True)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, fused=True); m.ffn(i, gate=False)


@model("olmo")
def _(m):
    m.base(E, L, H, H, F, ln=True, theta=10000, tok=("gpt2", "olmo")); m.f("attention.clamp_kqv", 1.5); m.embd(tied=True, no_norm=True)
    for i in range(m.L): m.attn(i); m.ffn(i)


@model("olmo2")
def _(m):
    m.base(E, 3, H, KV, F, eps=1e-6, theta=500000, tok=("gpt2", "olmo"))
    m.embd()
    for i in range(m.L): m.norms(i, "post_attention_norm", "post_ffw_norm"); m.attn(i, qk="whole"); m.ffn(i)


@model("olmoe")
def _(m):
    m.base(E, L, H, H, 64, theta=10000, tok=("gpt2", "olmo")); m.experts(8, 3); m.embd()
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, qk="whole"); m.moe(i, 8, 64)


def granite_keys(m):
    m.f("attention.scale", 0.11); m.f("embedding_scale", 0.8); m.f("residual_scale", 0.7); m.f("logit_scale", 2.5)


@model("granite")
def _(m):
    m.base(E, L, H, KV, F, theta=10000, rot=E // H, tok=("gpt2", "refact")); granite_keys(m); m.embd(tied=True, gain=5); llama_layers(m)


@model("granitemoe")
def _(m):
    N, FF, S = 8, 64, 0
    m.base(E, L, H, KV, FF, theta=10000, rot=E // H, tok=("gpt2", "refact")); granite_keys(m); m.experts(N, 3, shared_F=S); m.embd(tied=True, gain=5); llama_layers(m, moe=(N, FF, S))


@model("granitehybrid")
def _(m):
    pat = [0, 1, 0, 0]   # 1 = attention
    inner, state, groups, heads = 2 * E, 32, 1, 8
    m.base(E, len(pat), H, [KV if x else 0 for x in pat], 64, D=None, theta=10000, tok=("gpt2", "refact")); granite_keys(m); m.ssm_keys(4, inner, state, heads, groups)
    m.b("rope.scaling.finetuned", False); m.u("rope.dimension_count", E // H)
    m.experts(8, 3, shared_F=96)
    m.embd(tied=True, gain=5)
    for i, x in enumerate(pat):
        m.norms(i, "attn_norm", "ffn_norm")
        if x: m.attn(i, KV=KV)
        else: m.mamba2(i, inner, state, groups, heads, 4)
        m.moe(i, 8, 64, 96)


@model("internlm2")
def _(m):
    m.base(E, L, H, KV, F, theta=1e6, rot=E // H, tok=SPM); m.embd(); llama_layers(m)


@model("command-r")
def _(m):
    m.base(E, L, H, H, F, ln=True, theta=8e6, tok=("gpt2", "command-r")); m.f("logit_scale", 0.4); m.s("rope.scaling.type", "none"); m.embd(tied=True, gain=6)
    for i in range(m.L): m.norms(i, "attn_norm"); m.attn(i); m.ffn(i)


@model("cohere2")
def _(m):
    m.base(E, 4, H, KV, F, ln=True, theta=50000, D=None, rot=E // H, tok=("gpt2", "command-r")); m.f("logit_scale", 0.4); m.u("attention.sliding_window", 8); m.s("rope.scaling.type", "none"); m.embd(tied=True, gain=6)
    for i in range(m.L): m.norms(i, "attn_norm"); m.attn(i); m.ffn(i)


@model("deepseek")
def _(m):
    N, FE = 8, 48
    m.base(E, L, H, H, F, eps=1e-6, theta=10000, rot=E // H, tok=("gpt2", "deepseek-llm")); m.s("rope.scaling.type", "none"); m.experts(N, 3, FE, shared_n=2, dense=1, scale=1.0); m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i)
        if i < 1: m.ffn(i)
        else: m.moe(i, N, FE, shared=FE * 2)


def mla_keys(m, R, rope, nope, v, qr):
    if qr: m.u("attention.q_lora_rank", qr)
    m.u("attention.kv_lora_rank", R); m.u("attention.key_length", R + rope); m.u("attention.value_length", R)
    m.u("attention.key_length_mla", nope + rope); m.u("attention.value_length_mla", v); m.u("rope.dimension_count", rope)


def mla(m, i, R, rope, nope, v, qr, H=None):
    p, H, g = f"blk.{i}.", H or m.H, 1.4
    if qr: m.lin(p + "attn_q_a", m.E, qr); m.norm(p + "attn_q_a_norm", qr); m.lin(p + "attn_q_b", qr, H * (nope + rope), g)
    else: m.lin(p + "attn_q", m.E, H * (nope + rope), g)
    m.lin(p + "attn_kv_a_mqa", m.E, R + rope, g); m.norm(p + "attn_kv_a_norm", R)
    m.t(p + "attn_k_b.weight", (nope, R, H), 0, g / math.sqrt(R)); m.t(p + "attn_v_b.weight", (R, v, H), 0, 1.2 / math.sqrt(R))
    m.lin(p + "attn_output", H * v, m.E)


def deepseek2(m, layers, dims, qr, gating, groups, scale, norm, yarn, dense=1, idx=None, e=None, probs=True, tok=("gpt2", "deepseek-v3"), FE=48):
    R, rope, nope, v = dims
    N, SN = 8, 1
    if e: N = 4
    m.base(e or E, layers, 4, 1, F if not e else 64, eps=1e-6, theta=10000, tok=tok)
    mla_keys(m, R, rope, nope, v, qr); m.experts(N, 3 if not e else 2, FE, shared_n=SN, dense=dense, scale=scale, norm=norm, gating=gating, groups=groups)
    if yarn: m.yarn(4.0, 64, yarn_log_multiplier=0.1)
    m.embd()
    for i in range(layers):
        m.norms(i, "attn_norm", "ffn_norm"); mla(m, i, R, rope, nope, v, qr)
        if idx:
            p, (ih, ik) = f"blk.{i}.indexer.", idx
            m.norm(p + "k_norm", ik, bias=True); m.lin(p + "proj", m.E, ih); m.lin(p + "attn_k", m.E, ik, 1.5); m.lin(p + "attn_q_b", qr, ih * ik, 1.5)
        if i < dense: m.ffn(i)
        else: m.moe(i, N, FE, shared=FE * SN, probs_b=probs and gating == 2)


@model("deepseek2")
def _(m): deepseek2(m, 3, (64, 16, 32, 32), 48, 2, (4, 2), 2.5, True, True)


@model("deepseek2-softmax", "deepseek2")
def _(m): deepseek2(m, 3, (32, 16, 32, 48), 64, 1, None, 1.5, False, False)


@model("deepseek2-lite", "deepseek2")
def _(m): deepseek2(m, 27, (32, 16, 16, 16), 0, 1, None, 1.0, False, True, e=64, tok=("gpt2", "deepseek-llm"))


@model("deepseek32")
def _(m):
    m.u("attention.indexer.head_count", 4); m.u("attention.indexer.key_length", 64); m.u("attention.indexer.top_k", 12)
    deepseek2(m, 2, (64, 16, 32, 32), 48, 2, (4, 2), 2.5, True, True, idx=(4, 64))


@model("deepseek32-wide", "deepseek32")   # row sizes that matrix units support; compares GPU with host, without reference logits
def _(m):
    m.u("attention.indexer.head_count", 8); m.u("attention.indexer.key_length", 32); m.u("attention.indexer.top_k", 11)
    deepseek2(m, 2, (64, 16, 32, 32), 64, 2, (4, 2), 2.5, True, True, idx=(8, 32), FE=64)


@model("mistral4")
def _(m):
    m.f("attention.temperature_scale", 0.3); m.u("attention.temperature_length", 10)
    deepseek2(m, 2, (64, 16, 32, 32), 48, 1, None, 1.0, True, True, dense=0, tok=("gpt2", "tekken"))


@model("glm4")
def _(m):
    m.base(E, L, H, KV, F, theta=10000, rot=E // H // 2, tok=("gpt2", "glm4")); m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"); m.attn(i, bias=True); m.lin(f"blk.{i}.ffn_up", m.E, 2 * m.F, 1.3); m.lin(f"blk.{i}.ffn_down", m.F, m.E, 1.3)


@model("glm4moe")
def _(m):
    N, FE, nx = 8, 48, 1
    m.base(E, 3 + nx, H, KV, F, D=48, theta=10000, rot=24, tok=("gpt2", "glm4")); m.experts(N, 3, FE, shared_n=1, dense=1, scale=2.5, norm=True, gating=2)
    if nx: m.u("nextn_predict_layers", nx)
    m.embd()
    for i in range(m.L):
        p = f"blk.{i}."
        m.norms(i, "attn_norm", "post_attention_norm"); m.attn(i, bias=True, qk="head")
        if i < 1: m.ffn(i)
        else: m.moe(i, N, FE, shared=FE, probs_b=True)
        if i >= 3: m.lin(p + "nextn.eh_proj", 2 * m.E, m.E); m.norms(i, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")


@model("gpt-oss")
def _(m):
    N, FE = 8, 64
    m.base(64, 4, H, KV, FE, D=32, theta=150000, tok=("gpt2", "gpt-4o")); m.u("attention.sliding_window", 8); m.yarn(32.0, 4096, 32.0, 1.0)
    m.experts(N, 3, FE); m.embd()
    for i in range(4):
        m.norms(i, "attn_norm", "post_attention_norm"); m.attn(i, bias=True, obias=True); m.t(f"blk.{i}.attn_sinks.weight", (m.H,), 0.5, 1.0); m.moe(i, N, FE, bias=True, gain=2.6)


@model("smollm3")
def _(m):
    m.base(E, 4, H, KV, F, eps=1e-6, theta=5e6, rot=E // H, tok=("gpt2", "smaug-bpe")); m.embd(tied=True); llama_layers(m)


@model("exaone")
def _(m):
    m.base(E, L, H, KV, F, theta=500, rot=E // H, tok=("gpt2", "exaone")); m.embd(tied=False); m.rope_freqs(E // H // 2); llama_layers(m)


def exaone4_layers(m):
    for i in range(m.L): m.norms(i, "post_attention_norm", "post_ffw_norm"); m.attn(i, qk="head"); m.ffn(i)


@model("exaone4")
def _(m):
    m.base(E, L, H, KV, F, theta=1e6, rot=E // H, tok=("gpt2", "exaone4")); m.embd(tied=True); m.rope_freqs(E // H // 2); exaone4_layers(m)


@model("exaone4-swa", "exaone4")
def _(m):
    m.base(32, 64, 2, 1, 48, theta=10000, rot=16, tok=("gpt2", "exaone4")); m.u("attention.sliding_window", 8); m.u("attention.sliding_window_pattern", 4); m.embd(); exaone4_layers(m)


@model("ernie4_5")
def _(m):
    m.base(E, L, H, KV, F, D=48, theta=500000, tok=SPM); m.embd(tied=True); llama_layers(m)


@model("ernie4_5-moe")
def _(m):
    N, FE = 8, 48
    m.base(E, L, H, KV, F, D=48, theta=500000, tok=SPM); m.experts(N, 3, FE, shared_n=2, shared_F=96, dense=1); m.u("interleave_moe_layer_step", 1); m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i)
        if i < 1: m.ffn(i)
        else: m.moe(i, N, FE, shared=96, probs_b=True)


@model("hunyuan-dense")
def _(m):
    m.base(E, L, H, KV, F, D=48, theta=11158840.0, tok=("gpt2", "hunyuan-dense")); m.embd(tied=True); llama_layers(m, qk="head")


@model("hunyuan-moe")
def _(m):
    N, FE, S = 8, 64, 64
    m.base(E, L, H, KV, FE, D=48, theta=10000, tok=("gpt2", "hunyuan")); m.experts(N, 3, FE, shared_F=S); m.embd(); llama_layers(m, qk="head", moe=(N, FE, S))


@model("seed_oss")
def _(m):
    m.base(E, L, H, KV, F, D=48, theta=1e7, tok=("gpt2", "seed-coder")); m.embd()
    for i in range(m.L): m.norms(i, "attn_norm", "post_attention_norm"); m.attn(i, bias=True); m.ffn(i)


@model("minimax-m2")
def _(m):
    N, FE = 8, 64
    m.base(E, L, H, KV, FE, D=48, theta=5e6, rot=24, tok=("gpt2", "minimax-m2")); m.experts(N, 3, FE, gating=2); m.embd()
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, qk="whole"); m.moe(i, N, FE, probs_b=True)


@model("nemotron")
def _(m):
    m.base(E, L, H, KV, 256, ln=True, theta=10000, rot=E // H // 2, tok=SPM); m.embd(norm_bias=True)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm", bias=True); m.attn(i); m.ffn(i, gate=False)


def nemotron_h(m, moe):
    pat = "M-M*-"
    inner, state, groups, heads = 128, 32, 2, 8
    FF = 192
    m.base(E, len(pat), H, [KV if c == "*" else 0 for c in pat], [FF if c == "-" else 0 for c in pat], ln=True, tok=("gpt2", "default"))
    m.u("attention.key_length", 32); m.u("attention.value_length", 32); m.f("attention.layer_norm_rms_epsilon", 1e-5); m.ssm_keys(4, inner, state, heads, groups)
    m.D = 32
    N, FE, S, lat = 8, 48, 64, 0
    if moe:
        m.experts(N, 3, FE, shared_n=1, shared_F=S, scale=2.5, norm=True)
        m.u("expert_group_count", 1)
        if lat: m.u("moe_latent_size", lat)
    m.embd()
    for i, c in enumerate(pat):
        m.norms(i, "attn_norm")
        if c == "M": m.mamba2(i, inner, state, groups, heads, 4)
        elif c == "*": m.attn(i, KV=KV)
        elif moe:
            m.moe(i, N, FE, shared=S, probs_b=True, gate=False, inner=lat or None)
            if lat: m.lin(f"blk.{i}.ffn_latent_down", m.E, lat); m.lin(f"blk.{i}.ffn_latent_up", lat, m.E)
        else: m.ffn(i, FF, gate=False)


@model("nemotron_h")
def _(m): nemotron_h(m, False)


@model("nemotron_h_moe")
def _(m): nemotron_h(m, True)


def lfm2(m, moe):
    pat, cache = "cca", 3
    N, FE, dense = 8, 48, 1
    m.base(E, len(pat), H, [KV if c == "a" else 0 for c in pat], F, theta=1e6, tok=("gpt2", "lfm2")); m.u("shortconv.l_cache", cache)
    if moe: m.experts(N, 3, FE, dense=dense, gating=2)
    m.embd(tied=True, out_norm="token_embd_norm")
    for i, c in enumerate(pat):
        m.norms(i, "attn_norm", "ffn_norm")
        if c == "a": m.attn(i, KV=KV, qk="head")
        else: m.t(f"blk.{i}.shortconv.conv.weight", (cache, m.E), 0, 0.8); m.lin(f"blk.{i}.shortconv.in_proj", m.E, 3 * m.E, 1.2); m.lin(f"blk.{i}.shortconv.out_proj", m.E, m.E, 1.2)
        if moe and i >= dense: m.moe(i, N, FE, probs_b=True)
        else: m.ffn(i)


@model("lfm2")
def _(m): lfm2(m, False)


@model("lfm2moe")
def _(m): lfm2(m, True)


def mamba1(m, i, inner, state, rank, conv, norms=False):
    p = f"blk.{i}."
    m.lin(p + "ssm_in", m.E, 2 * inner, 1.2); m.t(p + "ssm_conv1d.weight", (conv, inner), 0, 0.6); m.t(p + "ssm_conv1d.bias", (inner,), 0, 0.2)
    m.lin(p + "ssm_x", inner, rank + 2 * state, 1.5); m.lin(p + "ssm_dt", rank, inner, 1.0); m.t(p + "ssm_dt.bias", (inner,), -1.0, 0.8)
    m.t(p + "ssm_a", (state, inner), 0.3, 0.6, fn=lambda j, x: -round(math.exp(x), 6)); m.t(p + "ssm_d", (inner,), 1, 0.25); m.lin(p + "ssm_out", inner, m.E, 1.2)
    if norms: m.norm(p + "ssm_dt_norm", rank); m.norm(p + "ssm_b_norm", state); m.norm(p + "ssm_c_norm", state)


@model("mamba")
def _(m):
    e, state, rank = 96, 16, 8
    m.base(e, 3, 0, None, 0, tok=("gpt2", "mpt")); m.ssm_keys(4, 2 * e, state, rank); m.b("ssm.dt_b_c_rms", False); m.embd(tied=True)
    for i in range(3): m.norms(i, "attn_norm"); mamba1(m, i, 2 * e, state, rank, 4)


@model("mamba2")
def _(m):
    e, state, groups, heads = 96, 32, 1, 6
    m.base(e, 3, 0, None, 0, tok=("gpt2", "mpt")); m.ssm_keys(4, 2 * e, state, heads, groups); m.embd(tied=True)
    for i in range(3): m.norms(i, "attn_norm"); m.mamba2(i, 2 * e, state, groups, heads, 4)


@model("jamba")
def _(m):
    pat, e, state, rank, N = [0, 1, 0, 0], 96, 16, 8, 4
    m.base(e, len(pat), 4, [2 if x else 0 for x in pat], 96, eps=1e-6, tok=SPM); m.ssm_keys(4, 2 * e, state, rank); m.experts(N, 2); m.embd(tied=False)
    for i, x in enumerate(pat):
        m.norms(i, "attn_norm", "ffn_norm")
        if x: m.attn(i, KV=2)
        else: mamba1(m, i, 2 * e, state, rank, 4, norms=True)
        if i % 2: m.moe(i, N, m.F)
        else: m.ffn(i)


@model("falcon-h1")
def _(m):
    inner, state, groups, heads = 192, 32, 1, 6
    m.base(E, L, H, KV, F, D=48, theta=1e11, tok=("gpt2", "falcon-h1")); m.ssm_keys(4, inner, state, heads, groups); m.embd(tied=True)
    for i in range(m.L):
        m.norms(i, "attn_norm"); m.t(f"blk.{i}.ffn_norm", (E,), 1, 0.22); m.attn(i); m.ffn(i); m.mamba2(i, inner, state, groups, heads, 4, norm=False)


@model("rwkv7")
def _(m):
    e, hs, F4 = 128, 32, 256
    dr, ir, vr, gr = (16, 16, 8, 32)
    m.base(e, 3, 0, None, F4, ln=True, tok=("rwkv",)); m.u("wkv.head_size", hs)
    for k, v in (("decay", dr), ("iclr", ir), ("value_residual_mix", vr), ("gate", gr)): m.u(f"attention.{k}_lora_rank", v)
    m.embd(norm_bias=True); m.norm("token_embd_norm", e, bias=True)
    for i in range(3):
        p = f"blk.{i}.time_mix_"
        m.norms(i, "attn_norm", "attn_norm_2", bias=True)
        m.t(p + "w0.weight", (e,), -1.0, 0.8); m.lin(p + "w1", e, dr); m.lin(p + "w2", dr, e)
        m.t(p + "a0.weight", (e,), 0, 0.7); m.lin(p + "a1", e, ir); m.lin(p + "a2", ir, e)
        r = ir if i == 0 else vr
        m.t(p + "v0.weight", (e,), 0, 0.7); m.lin(p + "v1", e, r); m.lin(p + "v2", r, e)
        m.lin(p + "g1", e, gr, 1.5); m.lin(p + "g2", gr, e, 1.5)
        m.t(p + "lerp_fused.weight", (e, 1, 1, 6), 0.5, 0.25); m.t(p + "k_k.weight", (e,), 0.85, 0.2); m.t(p + "k_a.weight", (e,), 1.0, 0.2); m.t(p + "r_k.weight", (e,), 0, 0.4)
        for n in ("key", "value", "receptance", "output"): m.lin(p + n, e, e, 1.2)
        m.norm(p + "ln", e, bias=True)
        c = f"blk.{i}.channel_mix_"
        m.t(c + "lerp_k.weight", (e, 1, 1), 0.5, 0.25); m.lin(c + "key", e, F4, 1.2); m.lin(c + "value", F4, e, 1.0)


def bert(m, nomic):
    m.embedding = True
    m.base(E, L, H, None, F, ln=True, eps=1e-12, ctx=64, theta=1000.0 if nomic else None, tok=("bert", "jina-v2-en")); m.KV = H
    m.b("attention.causal", False); m.u("pooling_type", 1)
    m.t("token_embd.weight", (E, m.V), 0, 0.7); m.t("token_types.weight", (E, 2), 0, 0.4); m.norm("token_embd_norm", E, bias=True)
    if not nomic: m.t("position_embd.weight", (E, 64), 0, 0.4)
    for i in range(m.L):
        if nomic: m.attn(i, fused=True); m.ffn(i)
        else: m.attn(i, bias=True, obias=True); m.ffn(i, gate=False, bias=True)
        m.norms(i, "attn_output_norm", "layer_output_norm", bias=True)


@model("bert")
def _(m): bert(m, False)


@model("nomic-bert")
def _(m): bert(m, True)


@model("minicpm")
def _(m):
    m.base(E, L, H, H, F, theta=10000, rot=E // H, tok=SPM); m.f("embedding_scale", 0.8); m.f("residual_scale", 0.7); m.f("logit_scale", 2.0); m.embd(tied=True, gain=5); llama_layers(m)


@model("minicpm3")
def _(m):
    R, rope, nope, qr, H3 = 48, 16, 32, 64, 4
    v = E // H3
    m.base(E, L, H3, H3, F, theta=10000, ctx=32768, tok=SPM); m.u("attention.q_lora_rank", qr); m.u("attention.kv_lora_rank", R); m.u("attention.key_length", nope + rope); m.u("rope.dimension_count", rope)
    longrope(m, rope // 2); m.kvs.pop("minicpm3.rope.scaling.attn_factor"); m.hp.pop("rope.scaling.attn_factor"); m.embd(sd=0.08)
    for i in range(m.L):
        p = f"blk.{i}."
        m.norms(i, "attn_norm", "ffn_norm"); m.lin(p + "attn_q_a", E, qr); m.norm(p + "attn_q_a_norm", qr); m.lin(p + "attn_q_b", qr, H3 * (nope + rope), 1.4)
        m.lin(p + "attn_kv_a_mqa", E, R + rope, 1.4); m.norm(p + "attn_kv_a_norm", R); m.lin(p + "attn_kv_b", R, H3 * (nope + v), 1.3); m.lin(p + "attn_output", H3 * v, E); m.ffn(i)


@model("arcee")
def _(m):
    m.base(E, L, H, KV, 256, D=48, theta=10000, rot=48, tok=LL3); m.yarn(4.0, 64); m.embd()
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm"); m.attn(i); m.ffn(i, gate=False)


@model("apertus")
def _(m):
    m.base(E, L, H, KV, 256, theta=500, rot=E // H, tok=("gpt2", "tekken"))
    for k, a in (("alpha_n", (0.6,)), ("alpha_p", (0.9,)), ("beta", (0.5,)), ("eps", (-1e-6,))):
        m.kv("xielu." + k, ARR, (F32, [a[0] * (1 + 0.3 * i) if k != "eps" else a[0] for i in range(m.L)])); m.hp["xielu." + k] = m.kvs["xielu." + k][1][1]
    m.embd(); m.rope_freqs(E // H // 2)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, qk="head"); m.ffn(i, gate=False)


@model("baichuan")
def _(m):
    m.base(32, 32, 2, 2, 48, eps=1e-6, rot=16, tok=SPM); m.embd(); llama_layers(m)


@model("dots1")
def _(m):
    N, FE = 8, 48
    m.base(E, L, H, H, F, D=48, theta=1e7, tok=QWEN); m.experts(N, 3, FE, shared_n=2, dense=1, scale=2.5, norm=True, gating=2); m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, qk="head")
        if i < 1: m.ffn(i)
        else: m.moe(i, N, FE, shared=FE * 2, probs_b=True)


@model("bailingmoe")
def _(m):
    N, FE = 8, 48
    m.base(E, L, H, KV, F, D=48, theta=600000, rot=48, tok=("gpt2", "bailingmoe")); m.experts(N, 3, FE, shared_n=2, dense=0, scale=1.0, norm=True); m.embd()
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm"); m.attn(i); m.moe(i, N, FE, shared=FE * 2)


@model("bailingmoe2")
def _(m):
    N, FE = 8, 48
    m.base(E, L, H, KV, F, eps=1e-6, theta=600000, rot=E // H // 2, tok=("gpt2", "bailingmoe2")); m.experts(N, 3, FE, shared_n=1, shared_F=48, dense=1, scale=2.5, norm=True, gating=2, groups=(4, 2)); m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, fused=True, qk="head")
        if i < 1: m.ffn(i)
        else: m.moe(i, N, FE, shared=48, probs_b=True)


@model("kimi-linear")
def _(m):
    pat, S, conv = "kkka", 32, 4
    R, rope, nope, v = (64, 16, 32, 32)
    N, FE, H3 = 8, 48, 4
    m.base(E, len(pat), H3, [1 if c == "a" else 0 for c in pat], F, eps=1e-5, theta=10000, tok=("gpt2", "kimi-k2")); mla_keys(m, R, rope, nope, v, 0)
    m.u("ssm.conv_kernel", conv); m.u("kda.head_dim", S); m.experts(N, 3, FE, shared_n=1, dense=1, scale=2.446, gating=2); m.embd()
    for i, c in enumerate(pat):
        p, d = f"blk.{i}.", S * H3
        m.norms(i, "attn_norm", "ffn_norm")
        if c == "a": mla(m, i, R, rope, nope, v, 0)
        else:
            for x in "qkv": m.t(p + f"ssm_conv1d_{x}.weight", (conv, 1, d), 0, 0.6); m.lin(p + f"attn_{x}", m.E, d, 1.3)
            m.lin(p + "ssm_f_a", m.E, S); m.lin(p + "ssm_f_b", S, d); m.lin(p + "ssm_beta", m.E, H3, 1.2)
            m.t(p + "ssm_a", (1, H3), -0.5, 0.5, fn=lambda j, x: -round(math.exp(x), 6)); m.t(p + "ssm_dt.bias", (d,), -0.5, 0.8)
            m.lin(p + "ssm_g_a", m.E, S, 1.2); m.lin(p + "ssm_g_b", S, d, 1.2); m.norm(p + "ssm_norm", S); m.lin(p + "attn_output", d, m.E, 1.2)
        if i < 1: m.ffn(i)
        else: m.moe(i, N, FE, shared=FE, probs_b=True)


@model("chatglm")
def _(m):
    m.base(E, L, H, KV, F, theta=10000, rot=E // H // 2, tok=("gpt2", "chatglm-bpe")); m.embd()
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, fused=True, bias=True); m.lin(f"blk.{i}.ffn_up", m.E, 2 * m.F, 1.3); m.lin(f"blk.{i}.ffn_down", m.F, m.E, 1.3)


# --- further architectures
@model("qwen")
def _(m):
    m.base(E, L, H, None, 2 * F, eps=1e-6, theta=10000, rot=E // H, tok=QWEN); m.KV = H; m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, fused=True); m.t(f"blk.{i}.attn_qkv.bias", (3 * E,), 0, 0.2); m.ffn(i, F)


@model("qwen2vl")
def _(m):
    m.base(E, L, H, KV, F, eps=1e-6, theta=1e6, tok=QWEN); m.u("rope.dimension_sections", [4, 6, 6, 0]); m.embd(tied=True); llama_layers(m, bias=True)


@model("qwen3vl")
def _(m):
    m.base(E, L, H, KV, F, D=64, eps=1e-6, theta=5e6, tok=QWEN); m.u("rope.dimension_sections", [12, 10, 10, 0]); m.u("n_deepstack_layers", 0); m.embd(tied=False); llama_layers(m, qk="head")


@model("qwen3vlmoe")
def _(m):
    m.base(E, L, H, KV, F, D=64, eps=1e-6, theta=5e6, tok=QWEN); m.u("rope.dimension_sections", [12, 10, 10, 0]); m.u("n_deepstack_layers", 0); m.experts(8, 3, 64); m.embd(); llama_layers(m, qk="head", moe=(8, 64))


def classic(m, pos=False, rope=False, kv=None, tied=True):
    m.embd(tied=tied, norm_bias=True)
    if pos: m.t("position_embd.weight", (E, pos), 0, 0.4)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm", bias=True); m.attn(i, fused=True, bias=True, obias=True); m.ffn(i, gate=False, bias=True)


@model("starcoder")
def _(m):
    m.base(E, L, H, 1, 4 * E, ln=True, ctx=64, tok=("gpt2", "starcoder")); classic(m, pos=64, tied=True)


@model("codeshell")
def _(m):
    m.base(E, L, H, 2, 4 * E, ln=True, theta=10000, tok=("gpt2", "codeshell")); m.s("rope.scaling.type", "linear"); m.f("rope.scaling.factor", 1.0); classic(m, tied=False)


@model("jais2")
def _(m):
    m.base(E, L, H, KV, 4 * E, ln=True, theta=500000, D=48, rot=48, tok=("gpt2", "jais-2")); classic(m, tied=True)


@model("jais")
def _(m):
    m.base(E, L, H, None, F, ln=True, tok=("gpt2", "jais")); m.KV = H; m.f("attention.max_alibi_bias", 8.0); m.embd(norm_bias=True)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm", bias=True); m.attn(i, fused=True, bias=True, obias=True, gain=3.0); m.ffn(i, bias=True)


@model("refact")
def _(m):
    m.base(E, L, H, 1, F, tok=("gpt2", "refact")); m.embd(tied=False); llama_layers(m)


@model("orion")
def _(m):
    m.base(E, L, H, KV, F, ln=True, theta=10000, tok=SPM); m.embd(norm_bias=True)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm", bias=True); m.attn(i); m.ffn(i)


@model("xverse")
def _(m):
    m.base(E, L, H, H, F, eps=1e-6, rot=E // H, tok=SPM); m.embd(); llama_layers(m)


@model("pangu-embedded")
def _(m):
    m.base(E, L, H, KV, F, D=48, theta=16e6, rot=48, tok=SPM); m.embd(tied=True); llama_layers(m, bias=True, obias=True)


@model("bitnet")
def _(m):
    m.base(E, L, H, KV, F, theta=500000, rot=E // H, tok=LL3); m.s("rope.scaling.type", "linear"); m.f("rope.scaling.factor", 1.0); m.embd(tied=True)
    for i in range(m.L):
        m.norms(i, "attn_norm", "attn_sub_norm", "ffn_norm"); m.norm(f"blk.{i}.ffn_sub_norm", m.F); m.attn(i); m.ffn(i)
        if True:
            for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"): m.t(f"blk.{i}.{n}.scale", (1,), 1, 0.15)


@model("plm")
def _(m):
    R, rope, nope, H3 = 48, 16, 32, 4
    v = E // H3
    m.base(E, L, H3, H3, 256, theta=100000, tok=QWEN); m.u("attention.kv_lora_rank", R); m.u("attention.key_length", nope + rope); m.u("attention.value_length", v); m.u("rope.dimension_count", rope); m.embd(tied=True)
    for i in range(m.L):
        p = f"blk.{i}."
        m.norms(i, "attn_norm", "ffn_norm"); m.lin(p + "attn_q", E, H3 * (nope + rope), 1.4); m.lin(p + "attn_kv_a_mqa", E, R + rope, 1.4); m.norm(p + "attn_kv_a_norm", R)
        m.lin(p + "attn_kv_b", R, H3 * (nope + v), 1.3); m.lin(p + "attn_output", H3 * v, E); m.ffn(i, gate=False)


@model("openelm")
def _(m):
    hs, ks, fs, D = [4, 6, 8], [2, 3, 4], [128, 160, 192], 32
    m.base(128, len(hs), hs, ks, fs, D=D, eps=1e-6, theta=10000, rot=D, tok=SPM); m.embd(tied=True)
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, H=hs[i], KV=ks[i], D=D, fused=True, qk="head"); m.ffn(i, fs[i])


@model("grok")
def _(m):
    N, FF = 8, 96
    m.base(E, L, H, KV, FF, theta=10000, rot=E // H, tok=SPM); m.experts(N, 2); m.f("embedding_scale", 1.5); m.f("logit_scale", 0.577); m.f("attention.output_scale", 0.15); m.f("attn_logit_softcapping", 2.0); m.f("router_logit_softcapping", 2.0)
    m.embd(gain=4)
    for i in range(m.L):
        m.norms(i, "attn_norm", "attn_output_norm", "ffn_norm"); m.attn(i); m.moe(i, N, FF)
        m.norms(i, "layer_output_norm")


@model("dbrx")
def _(m):
    N, FF = 8, 96
    m.base(E, L, H, KV, FF, ln=True, theta=500000, tok=("gpt2", "dbrx")); m.f("attention.clamp_kqv", 1.5); m.experts(N, 3); m.embd()
    for i in range(m.L): m.norms(i, "attn_norm", "attn_output_norm"); m.attn(i, fused=True); m.moe(i, N, FF)


@model("arctic")
def _(m):
    N, FF = 8, 96
    m.base(E, L, H, KV, FF, theta=10000, rot=E // H, tok=SPM); m.experts(N, 2); m.embd()
    for i in range(m.L): m.norms(i, "attn_norm", "ffn_norm", "ffn_norm_exps"); m.attn(i); m.ffn(i, E); m.moe(i, N, FF)


@model("exaone-moe")
def _(m):
    N, FE, nx = 8, 48, 1
    m.base(E, 4 + nx, H, KV, F, D=48, theta=1e6, tok=("gpt2", "exaone-moe")); m.u("attention.sliding_window", 8); m.b("attention.sliding_window_pattern", [True, True, True, False] + [False] * nx)
    m.experts(N, 3, FE, shared_n=1, shared_F=64, dense=1, scale=2.5, norm=True, gating=2)
    if nx: m.u("nextn_predict_layers", nx)
    m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, qk="head")
        if i < 1 or i >= 4: m.ffn(i)
        else: m.moe(i, N, FE, shared=64, probs_b=True)
        if i >= 4: m.lin(f"blk.{i}.nextn.eh_proj", 2 * m.E, m.E); m.norms(i, "nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm")


@model("afmoe")
def _(m):
    N, FE, SN = 8, 48, 1
    m.base(E, 4, H, KV, F, D=48, theta=10000, tok=("gpt2", "afmoe")); m.u("attention.sliding_window", 8); m.experts(N, 3, FE, shared_n=SN, dense=1, scale=2.0, norm=True, gating=2); m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"); m.attn(i, qk="head"); m.lin(f"blk.{i}.attn_gate", m.E, m.H * m.D, 1.3)
        if i < 1: m.ffn(i)
        else: m.moe(i, N, FE, shared=FE * SN, probs_b=True)


@model("smallthinker")
def _(m):
    N, FE = 8, 64
    m.base(E, 4, H, KV, FE, D=48, eps=1e-6, theta=1e6, tok=QWEN)
    m.u("attention.sliding_window", 4096)
    m.experts(N, 3, FE, gating=2); m.embd(tied=False); llama_layers(m, moe=(N, FE))


def grovemoe(m, FE):
    N, FC, G = 8, 64, 2
    m.base(E, L, H, KV, F, D=48, eps=1e-6, theta=1e6, tok=QWEN); m.experts(N, 3, FE); m.u("expert_chunk_feed_forward_length", FC); m.u("experts_per_group", G); m.f("expert_group_scale", 0.05); m.embd()
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i, qk="head"); m.moe(i, N, FE)
        p = f"blk.{i}.ffn_"
        m.lin(p + "gate_chexps", E, FC, 2.0, extra=(N // G,)); m.lin(p + "up_chexps", E, FC, 2.0, extra=(N // G,)); m.lin(p + "down_chexps", FC, E, 2.0, extra=(N // G,))


@model("grovemoe")
def _(m): grovemoe(m, 48)


@model("grovemoe-wide", "grovemoe")   # row sizes that matrix units support; compares GPU with host, without reference logits
def _(m): grovemoe(m, 64)


@model("mimo2")
def _(m):
    N, FE, Dk, Dv = 8, 48, 48, 32
    swa = [False, True, True, False]
    kvs = [4 if x else 2 for x in swa]
    m.base(E, len(swa), H, kvs, F, theta=5e6, tok=QWEN); m.u("attention.key_length", Dk); m.u("attention.value_length", Dv); m.u("rope.dimension_count", 16); m.f("rope.freq_base_swa", 10000.0)
    m.u("attention.sliding_window", 8); m.b("attention.sliding_window_pattern", swa); m.f("attention.value_scale", 0.707); m.experts(N, 3, FE, gating=2); m.embd()
    for i in range(m.L):
        p = f"blk.{i}."
        m.norms(i, "attn_norm", "ffn_norm"); m.lin(p + "attn_q", E, H * Dk, 1.5); m.lin(p + "attn_k", E, kvs[i] * Dk, 1.5); m.lin(p + "attn_v", E, kvs[i] * Dv, 1.3); m.lin(p + "attn_output", H * Dv, E)
        if swa[i]: m.t(p + "attn_sinks.weight", (H,), 0.5, 1.0)
        if i < 1: m.ffn(i)
        else: m.moe(i, N, FE, probs_b=True)


@model("granite_swa")
def _(m):
    swa = [True, True, False, True]
    N, FF, S = 0, 192, 64
    m.base(E, len(swa), H, KV, FF, theta=10000, rot=E // H, tok=("gpt2", "refact")); granite_keys(m); m.u("attention.sliding_window", 8); m.b("attention.sliding_window_pattern", swa)
    m.b("attention.rope_pattern", [True, True, False, True])
    if N: m.experts(N, 2, shared_F=S)
    m.embd(tied=True, gain=5)
    for i in range(m.L):
        m.norms(i, "attn_norm", "ffn_norm"); m.attn(i); m.t(f"blk.{i}.attn_sinks.weight", (H,), 0.5, 1.0)
        if not N: m.ffn(i)
        else:
            p = f"blk.{i}.ffn_"
            m.lin(p + "gate_inp", E, N, 1.8); m.lin(p + "gate_up_exps", E, 2 * FF, 1.3, extra=(N,)); m.lin(p + "down_exps", FF, E, 1.3, extra=(N,)); m.lin(p + "up_shexp", E, 2 * S, 1.3); m.lin(p + "down_shexp", S, E, 1.3)


@model("rwkv6")
def _(m):
    e, hs, F4, x, d = 128, 32, 256, 16, 32
    m.base(e, 3, 0, None, F4, ln=True, tok=("rwkv",)); m.u("wkv.head_size", hs); m.u("time_mix_extra_dim", x); m.u("time_decay_extra_dim", d); m.u("rescale_every_n_layers", 2)
    m.embd(norm_bias=True); m.norm("token_embd_norm", e, bias=True)
    for i in range(3):
        p, c = f"blk.{i}.time_mix_", f"blk.{i}.channel_mix_"
        m.norms(i, "attn_norm", "attn_norm_2", bias=True); m.lin(p + "w1", e, 5 * x); m.lin(p + "w2", x, e, extra=(5,)); m.t(p + "lerp_x.weight", (e, 1, 1), 0.5, 0.25); m.t(p + "lerp_fused.weight", (e, 1, 1, 5), 0.5, 0.25)
        m.t(p + "first.weight", (hs, e // hs), 0, 0.5); m.t(p + "decay.weight", (e,), -1.0, 0.8); m.lin(p + "decay_w1", e, d); m.lin(p + "decay_w2", d, e)
        for n in ("key", "value", "receptance", "gate", "output"): m.lin(p + n, e, e, 1.2)
        m.norm(p + "ln", e, bias=True); m.t(c + "lerp_k.weight", (e, 1, 1), 0.5, 0.25); m.t(c + "lerp_r.weight", (e, 1, 1), 0.5, 0.25); m.lin(c + "key", e, F4, 1.2); m.lin(c + "value", F4, e); m.lin(c + "receptance", e, e, 1.2)


@model("modern-bert")
def _(m):
    m.embedding = True
    m.base(E, 4, H, None, F, ln=True, theta=160000, tok=("bert", "jina-v2-en")); m.KV = H; m.f("rope.freq_base_swa", 10000.0); m.b("attention.causal", False); m.u("pooling_type", 2); m.u("attention.sliding_window", 8); m.u("attention.sliding_window_pattern", 3)
    m.t("token_embd.weight", (E, m.V), 0, 0.7); m.norm("token_embd_norm", E); m.norm("output_norm", E)
    for i in range(m.L):
        if i: m.norms(i, "attn_norm")
        m.norms(i, "ffn_norm"); m.attn(i, fused=True); m.lin(f"blk.{i}.ffn_up", E, 2 * F, 1.3); m.lin(f"blk.{i}.ffn_down", F, E, 1.3)


@model("jina-bert-v2")
def _(m):
    m.embedding = True
    m.base(E, L, H, None, F, ln=True, eps=1e-12, tok=("bert", "jina-v2-en")); m.KV = H; m.b("attention.causal", False); m.u("pooling_type", 1)
    m.t("token_embd.weight", (E, m.V), 0, 0.7); m.t("token_types.weight", (E, 2), 0, 0.4); m.norm("token_embd_norm", E, bias=True)
    for i in range(m.L):
        m.attn(i, bias=True, obias=True); p = f"blk.{i}.ffn_"
        m.lin(p + "gate", E, F, 1.3); m.lin(p + "up", E, F, 1.3); m.lin(p + "down", F, E, 1.3, bias=True); m.norms(i, "attn_output_norm", "layer_output_norm", bias=True)


@model("nomic-bert-moe")
def _(m):
    N = 6
    m.embedding = True
    m.base(E, 4, H, None, F, ln=True, theta=1000.0, tok=("bert", "jina-v2-en")); m.KV = H; m.b("attention.causal", False); m.u("pooling_type", 1); m.u("moe_every_n_layers", 2); m.experts(N, 2)
    m.t("token_embd.weight", (E, m.V), 0, 0.7); m.t("token_types.weight", (E, 2), 0, 0.4); m.norm("token_embd_norm", E, bias=True)
    for i in range(m.L):
        m.attn(i, fused=True, bias=True, obias=True)
        if i % 2: m.moe(i, N, F, gate=False)
        else: m.ffn(i, gate=False, bias=True)
        m.norms(i, "attn_output_norm", "layer_output_norm", bias=True)


@model("gemma-embedding")
def _(m):
    m.embedding = True
    m.base(96, 7, H, 1, 128, D=32, eps=1e-6, theta=1e6, tok=SPM); m.u("attention.sliding_window", 8); m.f("rope.freq_base_swa", 10000.0); m.u("pooling_type", 1)
    m.embd(tied=True, sd=0.15); gemma_layers(m, qk="head")


# --- block formats: the weights are random blocks, the reference is computed from their f32 values
def k_m(n): return "Q6_K" if "ffn_down" in n or "attn_v" in n or n in ("output.weight", "token_embd.weight") else "Q4_K"


@model("llama-q4_k_m", "llama")
def _(m):
    m.base(256, 2, 8, 2, 256, theta=10000, rot=32, tok=SPM); m.quantise(15, "Q4_K, Q6_K", k_m); m.embd(); llama_layers(m)


@model("qwen3moe-q4_k_m", "qwen3moe")
def _(m):
    m.base(256, 2, 4, 2, 256, D=64, eps=1e-6, theta=1e6, tok=QWEN); m.experts(8, 3, 256); m.quantise(15, "Q4_K, Q6_K", k_m); m.embd(); llama_layers(m, qk="head", moe=(8, 256))


@model("gemma2-q8_0", "gemma2")
def _(m):
    m.base(128, 4, 4, 2, 192, D=64, eps=1e-6, tok=SPM); m.quantise(7, "Q8_0", lambda n: "Q8_0")
    m.f("attn_logit_softcapping", 2.5); m.f("final_logit_softcapping", 4.0); m.u("attention.sliding_window", 7); m.embd(tied=True, sd=0.14); gemma_layers(m)


@model("qwen2-q4_0", "qwen2")
def _(m):
    m.base(128, 3, 4, 2, 192, eps=1e-6, theta=1e6, tok=QWEN); m.quantise(2, "Q4_0, Q6_K", lambda n: "Q8_0" if n == "token_embd.weight" else "Q4_0"); m.hp["weights"] = "Q4_0, Q8_0"; m.embd(tied=True); llama_layers(m, bias=True)


@model("gpt-oss-mxfp4", "gpt-oss")
def _(m):
    N, FE = 8, 64
    m.base(64, 4, 4, 2, FE, D=32, theta=150000, tok=("gpt2", "gpt-4o")); m.u("attention.sliding_window", 7); m.yarn(32.0, 4096, 32.0, 1.0)
    m.experts(N, 3, FE); m.quantise(38, "MXFP4 experts, Q8_0", lambda n: "MXFP4" if "exps" in n else "Q8_0"); m.embd()
    for i in range(4):
        m.norms(i, "attn_norm", "post_attention_norm"); m.attn(i, bias=True, obias=True); m.t(f"blk.{i}.attn_sinks.weight", (m.H,), 0.5, 1.0); m.moe(i, N, FE, bias=True, gain=2.6)


# ----------------------------------------------------------------------------------------
def build(name, seed=None):
    arch, f = MODELS[name]
    m = M(name, arch, SEED if seed is None else seed)
    f(m)
    return m


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("names", nargs="*"); ap.add_argument("--out"); ap.add_argument("--seed", type=int); ap.add_argument("--list", action="store_true"); ap.add_argument("--check")
    a = ap.parse_args()
    names = a.names or list(MODELS)
    if a.list or not a.out:
        for n in names:
            m = build(n, a.seed); print(f"{n:18s} {m.arch:16s} {sum(math.prod(t[0]) for t in m.tensors.values()) * 4 / 1e6:6.2f} MB  {len(m.tensors)} tensors")
        return 0
    os.makedirs(a.out, exist_ok=True)
    want = {x["name"]: x for x in json.load(open(a.check))["models"]} if a.check else {}
    bad = 0
    for n in names:
        m = build(n, a.seed); sha = m.write(os.path.join(a.out, n + ".gguf"))
        ok = "" if n not in want else " ok" if want[n]["sha256"] == sha else " DIFFERS from the index"
        bad += "DIFF" in ok
        print(sha, n + ok)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
