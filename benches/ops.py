"""The Python package on a GPU: results against NumPy at random sizes, then rates beside torch.

    PYTHONPATH=… python3 benches/ops.py [SEED [DEVICE [SECONDS [PART]]]]

needs the package kjit and NumPy, and torch for comparison. Prints a line of JSON for each check
(`wrong` lists results that differ from NumPy's in float64) and for each case (kjit's figure and
torch's). A check ends after SECONDS (60), because a cold cache compiles each kernel. PART is
`checks`, `rates`, or `all`.
"""

import json
import sys
import time

import numpy as np

import kjit

F = kjit.nn.functional
SEED = int(sys.argv[1]) if len(sys.argv) > 1 else int(time.time())
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cuda:0"
rng = np.random.default_rng(SEED)
kjit.set_device(DEVICE)
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 60
PART = sys.argv[4] if len(sys.argv) > 4 else "all"
wrong, counts = [], {"checked": 0}
print(json.dumps({"seed": SEED, "device": kjit.device_info(DEVICE)}), flush=True)


class Over(Exception):
    """The time of a check is over."""


def close(name, got, want, rtol, atol):
    """Holds a result against float64: |got - want| <= atol + rtol |want|; NaN never passes."""
    counts["checked"] += 1
    if time.time() - counts["start"] > SECONDS:
        raise Over
    try:
        got = np.asarray(kjit.astype(got(), kjit.float32).numpy()).astype(np.float64)
    except Exception as e:  # a failure is a result of this run, and the other runs continue
        wrong.append([name, repr(e)[:200]])
        return
    if got.shape != want.shape:
        wrong.append([name, f"{got.shape} for {want.shape}"])
        return
    off = np.abs(got - want) - (atol + rtol * np.abs(want))
    if not (off <= 0).all():
        wrong.append([name, float(np.nanmax(off)), int((~(off <= 0)).sum())])


def sums_of(a, b, c=0.0):
    """How far a float32 sum of k products may be from the exact one, in any order: 2 · √k · 2^-24 · Σ|a||b|
    (Higham and Mary 2019, with probability; at most k · 2^-24 · Σ|a||b|, which always holds). One chain of k
    multiply-adds, the longest order, comes to 0.14 of it in a million sums of 520 terms; TF32 to 36 times it."""
    k = a.shape[-1]
    return min(k, 2 * k**0.5) * 2.0**-24 * (np.abs(a) @ np.abs(b) + np.abs(c))


DTYPES = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


def given(dtype, *shape):
    """A tensor of the device, and its values in float64."""
    x = kjit.astype(kjit.asarray(rng.standard_normal(shape).astype(np.float32)), getattr(kjit, dtype))
    x.eval()
    return x, kjit.astype(x, kjit.float32).numpy().astype(np.float64)


def erf(x):
    # Abramowitz and Stegun 7.1.26 is too coarse; the series of math.erf is exact enough.
    import math
    return np.vectorize(math.erf)(x)


def check_products():
    for dtype, eps in DTYPES.items():
        for i in range(8):
            m, n, k = (int(v) for v in rng.integers(1, 300, 3))
            if i % 2:
                m, n, k = (8 * (v // 8 + 1) for v in (m, n, k))
            if i == 7:
                m, n, k = 1160, 1544, 520
            ta, tb = rng.integers(0, 2, 2)
            x, a = given(dtype, *((k, m) if ta else (m, k)))
            y, b = given(dtype, *((n, k) if tb else (k, n)))
            bias, c = given(dtype, n)
            if ta:
                x, a = kjit.matrix_transpose(x), a.T
            if tb:
                y, b = kjit.matrix_transpose(y), b.T
            name = f"{dtype} {m}x{k}{'T' * ta} @ {k}x{n}{'T' * tb}"
            if i % 3:
                close(name, lambda: x @ y, a @ b, eps, sums_of(a, b))
                continue
            close(name + " bias relu", lambda: kjit.relu(x @ y + bias), np.maximum(a @ b + c, 0),
                  2 * eps, sums_of(a, b, c) + 8 * eps * k**0.5)
        z = int(rng.integers(2, 5))
        x, a = given(dtype, z, 70, 64)
        y, b = given(dtype, 64, 33)
        close(f"{dtype} batch", lambda: x @ y, a @ b, eps, sums_of(a, b))
        w, d = given(dtype, 33, 64)
        v, e = given(dtype, 33)
        close(f"{dtype} gelu", lambda: F.gelu(F.linear(x, w, v)),
              (lambda t: t * 0.5 * (1 + erf(t / 2**0.5)))(a @ d.T + e), 4 * eps, 80 * eps + 4e-5)


def check_rows():
    for dtype, eps in DTYPES.items():
        for i in range(3):
            m, n = int(rng.integers(1, 70)), int(rng.integers(1, (100, 3000, 40000)[i]))
            x, a = given(dtype, m, n)
            w, b = given(dtype, n)
            e = np.exp(a - a.max(1, keepdims=True))
            s = e / e.sum(1, keepdims=True)
            name = f"{dtype} {m}x{n}"
            close("softmax " + name, lambda: F.softmax(x, 1), s, 6 * eps, 6 * eps)
            close("log_softmax " + name, lambda: F.log_softmax(x, 1), np.log(s), 6 * eps, 30 * eps)
            d = a - a.mean(1, keepdims=True)
            norm = d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5)
            # In half precision the mean is rounded before it is subtracted.
            if n > 1:
                close("layer_norm " + name, lambda: F.layer_norm(x, (n,), w, None, 1e-5), norm * b,
                      24 * eps, 60 * eps)
                rms = a / np.sqrt((a * a).mean(1, keepdims=True) + 1e-5)
                close("rms_norm " + name, lambda: F.rms_norm(x, (n,), w, 1e-5), rms * b, 16 * eps,
                      16 * eps)


def check_convolutions():
    for dtype, eps in DTYPES.items():
        for i in range(3):
            n, g, each, o = (int(rng.integers(1, k)) for k in (3, 3, 9, 9))
            h, w = (int(v) for v in rng.integers(5, 24, 2))
            stride, padding, dilation = (int(rng.integers(1, 3)), int(rng.integers(0, 3)), int(rng.integers(1, 3)))
            kh, kw = (int(v) for v in rng.integers(1, 4, 2))
            if (kh - 1) * dilation >= h or (kw - 1) * dilation >= w:
                continue
            x, a = given(dtype, n, g * each, h, w)
            f, b = given(dtype, g * o, each, kh, kw)
            pad = np.pad(a, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
            oh, ow = ((pad.shape[2 + j] - ((kh, kw)[j] - 1) * dilation - 1) // stride + 1 for j in (0, 1))
            want = np.zeros((n, g * o, oh, ow))
            for p in range(kh):
                for q in range(kw):
                    part = pad[:, :, p * dilation:p * dilation + (oh - 1) * stride + 1:stride,
                               q * dilation:q * dilation + (ow - 1) * stride + 1:stride]
                    for j in range(g):
                        want[:, j * o:(j + 1) * o] += np.einsum(
                            "nchw,oc->nohw", part[:, j * each:(j + 1) * each],
                            b[j * o:(j + 1) * o, :, p, q])
            close(f"conv2d {dtype} {a.shape} {b.shape} s{stride} p{padding} d{dilation} g{g}",
                  lambda: F.conv2d(x, f, None, stride, padding, dilation, g), want, eps,
                  1e-5 * (each * kh * kw)**0.5 + 1e-5)


def check_large():
    """Sizes from which large products with functions and large convolutions take other kernels."""
    for dtype, eps in DTYPES.items():
        x, a = given(dtype, 2, 64, 37, 41)
        f, b = given(dtype, 72, 64, 3, 3)
        pad = np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1)))
        want = np.zeros((2, 72, 37, 41))
        for p in range(3):
            for q in range(3):
                want += np.einsum("nchw,oc->nohw", pad[:, :, p:p + 37, q:q + 41], b[:, :, p, q])
        close(f"conv2d {dtype} of 64 channels", lambda: F.conv2d(x, f, None, 1, 1), want, eps, 4e-4)
        for m, n, k in ((1160, 1544, 520), (4096, 520, 264), (777, 1031, 512)):
            x, a = given(dtype, m, k)
            w, b = given(dtype, n, k)
            v, c = given(dtype, n)
            t = a @ b.T + c
            tol = 8e-6 * k**0.5 + 8 * eps * k**0.5
            close(f"{dtype} gelu {m}x{k}x{n}", lambda: F.gelu(F.linear(x, w, v)),
                  t * 0.5 * (1 + erf(t / 2**0.5)), 4 * eps, tol)
            close(f"{dtype} silu {m}x{k}x{n}", lambda: kjit.silu(F.linear(x, w, v)),
                  t / (1 + np.exp(-t)), 4 * eps, tol)


def check_elements():
    for n in (1, 33, 4099):
        for m in (1, 129):
            x, a = given("float32", n, m)
            y, b = given("float32", n, m)
            close(f"fma {n}x{m}", lambda: x * y + x, a * b + a, 3e-7, 3e-7)
            close(f"exp {n}x{m}", lambda: kjit.exp(x), np.exp(a), 3e-7, 0)
            close(f"sum {n}x{m}", lambda: kjit.sum(x, axis=1), a.sum(1), 3e-7, 3e-7)


def check_attention():
    for dtype, eps in DTYPES.items():
        for causal in (False, True):
            z, t, d = int(rng.integers(1, 4)), int(rng.integers(2, 200)), int(rng.integers(1, 17)) * 8
            (q, a), (k, b), (v, c) = (given(dtype, z, t, d) for _ in range(3))
            s = a @ b.transpose(0, 2, 1) / d**0.5
            if causal:
                s = np.where(np.tril(np.ones((t, t), bool)), s, -np.inf)
            e = np.exp(s - s.max(-1, keepdims=True))
            close(f"attention {dtype} {z}x{t}x{d} causal {causal}",
                  lambda: F.scaled_dot_product_attention(q, k, v, None, is_causal=causal),
                  e / e.sum(-1, keepdims=True) @ c, 4 * eps, 24 * eps)
        # A key for every row, so that no row is NaN.
        for kind in ("bool", "bias", "window", "window causal", "wide bool", "wide window"):
            wide = kind.startswith("wide")
            z, t, d = int(rng.integers(1, 4)), int(rng.integers(2, 400)), int(rng.integers(1, 17)) * 8
            d += 128 if wide else 0
            (q, a), (k, b), (v, c) = (given(dtype, z, t, d) for _ in range(3))
            s = a @ b.transpose(0, 2, 1) / d**0.5
            row, key = np.arange(t)[:, None], np.arange(t)[None, :]
            mask, window = None, None
            if "window" in kind:
                left, right = (int(n) for n in rng.integers(0, t, 2))
                window, causal = (left, right), kind.endswith("causal")
                s = np.where((key >= row - left) & (key <= row + (0 if causal else right)), s, -np.inf)
            elif kind == "bias":
                mask, m = given(dtype, t, t)
                s, causal = s + m, False
            else:
                m = (rng.integers(0, 4, (z, t, t)) > 0) | (row == key)
                mask, causal = kjit.asarray(m), False
                s = np.where(m, s, -np.inf)
            e = np.exp(s - s.max(-1, keepdims=True))
            close(f"attention {dtype} {z}x{t}x{d} {kind}",
                  lambda: F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, window=window),
                  e / e.sum(-1, keepdims=True) @ c, 4 * eps, 24 * eps)


CHECKS = (check_products, check_large, check_rows, check_elements, check_convolutions, check_attention)
for check in CHECKS if PART != "rates" else ():
    wrong, counts = [], {"checked": 0, "start": time.time()}
    try:
        check()
    except Over:
        pass
    except Exception as e:
        wrong.append([check.__name__, repr(e)[:300]])
    took = round(time.time() - counts["start"], 1)
    row = {"check": check.__name__, "checked": counts["checked"], "s": took, "wrong": wrong}
    print(json.dumps(row), flush=True)

if DEVICE == "cpu" or PART == "checks":
    sys.exit()
try:
    import torch
except ImportError:
    torch = None


def seconds(f, wait):
    f()
    wait()
    start = time.perf_counter()
    f()
    wait()
    n = max(3, min(500, int(0.05 / max(time.perf_counter() - start, 1e-6))))
    best = 1e9
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(n):
            f()
        wait()
        best = min(best, (time.perf_counter() - start) / n)
    return best


def launched(name, make):
    """The number of launches of a warm call."""
    make().eval()
    before = kjit.launches()
    make().eval()
    print(json.dumps({"launches": name, "of": kjit.launches() - before}), flush=True)


def rate(name, amount, ours, theirs):
    """`amount` / seconds of both; 0: microseconds."""
    row = {"case": name}
    for who, make, wait in (("kjit", ours, kjit.synchronize),
                            ("torch", theirs, torch.cuda.synchronize if torch else None)):
        if wait is None:
            continue
        try:
            t = seconds(make(), wait)
            row[who] = round(amount / t, 1) if amount else round(t * 1e6, 1)
        except Exception as e:
            row[who] = repr(e)[:200]
    print(json.dumps(row), flush=True)


def ones(dtype, *shape):
    x = kjit.astype(kjit.randn(*shape), getattr(kjit, dtype))
    x.eval()
    return x


def theirs(dtype, *shape):
    return torch.randn(*shape, device="cuda").to(getattr(torch, dtype))


def pair(dtype, *shapes):
    return (lambda: [ones(dtype, *s) for s in shapes]), (lambda: [theirs(dtype, *s) for s in shapes])


def both(name, amount, dtype, shapes, ours, other):
    k, t = pair(dtype, *shapes)

    def make(values, f):
        args = values()
        return lambda: f(*args)
    rate(name, amount, lambda: make(k, lambda *a: ours(*a).eval()), lambda: make(t, other))


T = torch.nn.functional if torch else None
X, W, B, I, K = (ones("float32", *s) for s in ((64, 512), (512, 512), (512,), (2, 8, 9, 9), (8, 8, 3, 3)))
launched("softmax", lambda: F.softmax(X, -1))
launched("layer_norm", lambda: F.layer_norm(X, (512,), B, B))
launched("linear, bias, relu", lambda: kjit.relu(F.linear(X, W, B)))
launched("linear, bias, gelu, residual", lambda: F.gelu(F.linear(X, W, B)) + X)
launched("conv2d, relu", lambda: kjit.relu(F.conv2d(I, K)))
if torch:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
both("x * 2 + 1, 256 MB, GB/s", 0.512 * 1.048576, "float32", [(64 << 20,)], lambda x: x * 2.0 + 1.0, lambda x: x * 2.0)
both("sum of 256 MB, GB/s", 0.256 * 1.048576, "float32", [(64 << 20,)], lambda x: kjit.sum(x), lambda x: x.sum())
both("sum of rows 16384x4096, GB/s", 0.256 * 1.048576, "float32", [(16384, 4096)], lambda x: kjit.sum(x, axis=1), lambda x: x.sum(1))
for dtype in ("float32", "float16"):
    size = 4 if dtype == "float32" else 2
    for m, n in ((16384, 4096), (65536, 512), (512, 131072)):
        both(f"softmax {dtype} {m}x{n}, GB/s", 2e-9 * size * m * n, dtype, [(m, n)], lambda x: F.softmax(x, -1), lambda x: T.softmax(x, -1))
    both(f"layer_norm {dtype} 16384x4096, GB/s", 2e-9 * size * 16384 * 4096, dtype, [(16384, 4096), (4096,), (4096,)],
         lambda x, w, b: F.layer_norm(x, (4096,), w, b), lambda x, w, b: T.layer_norm(x, (4096,), w, b))
for dtype in ("float16", "bfloat16", "float32"):
    for n in (4096, 2048, 1024, 512, 4095, 1000):
        both(f"matmul {dtype} {n}, TFLOP/s", 2e-12 * n**3, dtype, [(n, n), (n, n)], lambda a, b: a @ b, lambda a, b: a @ b)
both("matmul float16 a bT 4096, TFLOP/s", 2e-12 * 4096**3, "float16", [(4096, 4096), (4096, 4096)], lambda a, b: a @ kjit.matrix_transpose(b), lambda a, b: a @ b.T)
both("batched float16 64x512x512x512, TFLOP/s", 2e-12 * 64 * 512**3, "float16", [(64, 512, 512), (64, 512, 512)], lambda a, b: a @ b, lambda a, b: a @ b)
both("linear + bias + relu float16 4096, TFLOP/s", 2e-12 * 4096**3, "float16", [(4096, 4096), (4096, 4096), (4096,)],
     lambda x, w, b: kjit.relu(F.linear(x, w, b)), lambda x, w, b: torch.relu(T.linear(x, w, b)))
both("linear + bias + gelu float16 4096, TFLOP/s", 2e-12 * 4096**3, "float16", [(4096, 4096), (4096, 4096), (4096,)],
     lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda x, w, b: T.gelu(T.linear(x, w, b)))
for dtype in ("float32", "float16"):
    both(f"conv2d {dtype} 32x64x56x56 3x3, TFLOP/s", 2e-12 * 32 * 64 * 64 * 9 * 56 * 56, dtype, [(32, 64, 56, 56), (64, 64, 3, 3)],
         lambda x, w: F.conv2d(x, w, None, 1, 1), lambda x, w: T.conv2d(x, w, None, 1, 1))
for dtype in ("float16", "bfloat16", "float32"):
    for n in (64, 256, 1024, 8192, 32768):
        m = (128 << 20) // (2 if dtype != "float32" else 4) // n
        both(f"softmax {dtype} {m}x{n}, GB/s", 0.256 * 1.048576, dtype, [(m, n)], lambda x: F.softmax(x, -1), lambda x: T.softmax(x, -1))
        both(f"layer_norm {dtype} {m}x{n}, GB/s", 0.256 * 1.048576, dtype, [(m, n), (n,), (n,)],
             lambda x, w, b: F.layer_norm(x, w.shape, w, b), lambda x, w, b: T.layer_norm(x, w.shape, w, b))
for name in ("silu", "sigmoid", "tanh"):
    both(f"linear + bias + {name} float16 4096, TFLOP/s", 2e-12 * 4096**3, "float16", [(4096, 4096), (4096, 4096), (4096,)],
         lambda x, w, b: getattr(kjit, name)(F.linear(x, w, b)), lambda x, w, b: getattr(torch, name, T.silu)(T.linear(x, w, b)))
for name in ("exp", "log", "tanh", "sin", "erf"):
    if hasattr(kjit, name):
        both(f"{name} of 256 MB float32, GB/s", 0.512 * 1.048576, "float32", [(64 << 20,)], getattr(kjit, name), getattr(torch, name))
both("conv2d float16 16x256x28x28 3x3, TFLOP/s", 2e-12 * 16 * 256 * 256 * 9 * 28 * 28, "float16", [(16, 256, 28, 28), (256, 256, 3, 3)],
     lambda x, w: F.conv2d(x, w, None, 1, 1), lambda x, w: T.conv2d(x, w, None, 1, 1))
MLP = [(64, 784), (256, 784), (256,), (128, 256), (128,), (10, 128), (10,)]
both("MLP 784-256-128-10, batch 64, us", 0, "float32", MLP,
     lambda x, a, b, c, d, e, f: F.linear(kjit.relu(F.linear(kjit.relu(F.linear(x, a, b)), c, d)), e, f),
     lambda x, a, b, c, d, e, f: T.linear(torch.relu(T.linear(torch.relu(T.linear(x, a, b)), c, d)), e, f))
both("a warm call, us", 0, "float32", [(16,)], lambda x: x * 2.0 + 1.0, lambda x: x * 2.0)
both("a warm softmax, us", 0, "float32", [(4, 16)], lambda x: F.softmax(x, -1), lambda x: T.softmax(x, -1))
both("a warm small product, us", 0, "float16", [(64, 64), (64, 64)], lambda a, b: a @ b, lambda a, b: a @ b)
for d in (64, 128):
    both(f"attention float16 8x8192x{d}, TFLOP/s", 4e-12 * 8 * 8192**2 * d, "float16", [(1, 8, 8192, d)] * 3,
         lambda q, k, v: F.scaled_dot_product_attention(q, k, v), lambda q, k, v: T.scaled_dot_product_attention(q, k, v))
SEEN = kjit.tril(kjit.ones((8192, 8192), dtype=kjit.bool)) if DEVICE != "cpu" else None
THEIRS = torch.ones(8192, 8192, dtype=torch.bool, device="cuda").tril() if torch else None
both("attention float16 8x8192x128, bool mask, TFLOP/s", 4e-12 * 8 * 8192**2 * 128, "float16", [(1, 8, 8192, 128)] * 3,
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, SEEN), lambda q, k, v: T.scaled_dot_product_attention(q, k, v, THEIRS))
both("attention float16 8x8192x128, causal, TFLOP/s", 2e-12 * 8 * 8192**2 * 128, "float16", [(1, 8, 8192, 128)] * 3,
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), lambda q, k, v: T.scaled_dot_product_attention(q, k, v, is_causal=True))
both("attention float16 8x8192x128, causal window of 1024 (torch: causal), us", 0, "float16", [(1, 8, 8192, 128)] * 3,
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, window=(1023, 0)), lambda q, k, v: T.scaled_dot_product_attention(q, k, v, is_causal=True))
both("attention float16 8x8192x256, TFLOP/s", 4e-12 * 8 * 8192**2 * 256, "float16", [(1, 8, 8192, 256)] * 3,
     lambda q, k, v: F.scaled_dot_product_attention(q, k, v), lambda q, k, v: T.scaled_dot_product_attention(q, k, v))
