"""The package on an NVIDIA GPU: folds, chains and ordered operations against NumPy, then rates, times
of a call and of sorts beside torch. Writes JSON, and prints each part as it ends.

    PYTHONPATH=… python3 benches/ops_rates.py result.json --order
"""
import json, sys, time, traceback
import numpy as np
import kjit
out, bad = {}, []
def save(): json.dump({"wrong": bad, **out}, open(sys.argv[1], "w"), indent=1)
kjit.set_device("cuda:0")
rng = np.random.default_rng(5)
T0 = time.perf_counter()
def close(name, got, want, rtol=1e-5, atol=1e-6):
    try:
        got = np.asarray(got.numpy())
        ok = got.shape == want.shape and np.allclose(got.astype(np.float64), want.astype(np.float64), rtol=rtol, atol=atol, equal_nan=True)
        if not ok: bad.append((name, str(got.ravel()[:4]), str(want.ravel()[:4])))
    except Exception as e: bad.append((name, repr(e)[:300]))
def section(f):
    t = time.perf_counter()
    try: f()
    except Exception: bad.append((f.__name__, traceback.format_exc()[-600:]))
    out["seconds " + f.__name__] = round(time.perf_counter() - t, 2); save()
    print(f.__name__, out["seconds " + f.__name__], "s, wrong:", len(bad), *bad[:3], flush=True)

def folds():
    for shape in [(1,), (5,), (100,), (4097,), (1 << 20,), (3000017,), (1, 70001), (3, 5), (7, 33), (1000, 31), (4099, 64), (33, 100003), (70001, 3), (100003, 33), (1025, 1024), (64, 4096), (5, 7, 65), (2, 300000, 3)]:
        a = rng.standard_normal(shape).astype(np.float32); x = kjit.asarray(a); d = a.astype(np.float64)
        for axis in [None] + list(range(len(shape))):
            n = max(1.0, a.size if axis is None else a.shape[axis]) ** 0.5
            close(f"sum {shape} {axis}", kjit.sum(x, axis=axis), d.sum(axis).astype(np.float32), 1e-6, 1e-6 * n)
            close(f"max {shape} {axis}", kjit.max(x, axis=axis), d.max(axis), 0, 0)
        close(f"argmax {shape}", kjit.argmax(x, axis=len(shape) - 1), d.argmax(len(shape) - 1), 0, 0)
    a = rng.integers(-1000, 1000, 1000003).astype(np.int64); close("int sum", kjit.sum(kjit.asarray(a)), a.sum(), 0, 0)
    # Many divided folds behind each other use the same counters.
    x = kjit.asarray(np.ones(1 << 22, np.float32)); v = [kjit.sum(x * float(i)) for i in range(200)]
    for i, s in enumerate(v): close(f"repeated sum {i}", s, np.float32(i * float(1 << 22)), 0, 0)
section(folds)

def chains():
    for n, m in [(1, 1), (31, 33), (1000, 129), (4099, 65), (1, 1000003)]:
        a, b = rng.standard_normal((n, m)).astype(np.float32), rng.standard_normal(m).astype(np.float32)
        x, y = kjit.asarray(a), kjit.asarray(b)
        close(f"row {n}x{m}", x * y + 1.5, a * b + 1.5); close(f"T {n}x{m}", kjit.matrix_transpose(x) - 1, a.T - 1)
        close(f"flip {n}x{m}", kjit.flip(x) * 2, a[::-1, ::-1] * 2); close(f"cat {n}x{m}", kjit.concat([x, x + 1], axis=1), np.concatenate([a, a + 1], 1))
        h = a.astype(np.float16); close(f"half {n}x{m}", kjit.asarray(h) * 3, h * np.float16(3), 0, 0)
    s = kjit.asarray(np.arange(16, dtype=np.float32))
    for i in range(50): close(f"constants {i}", s * float(i) + float(i % 3), np.arange(16, dtype=np.float32) * i + i % 3)
section(chains)

def timed(f, n=20, sync=kjit.synchronize):
    f(); sync(); best = 1e9
    for _ in range(3):
        t = time.perf_counter()
        for _ in range(n): f()
        sync(); best = min(best, (time.perf_counter() - t) / n)
    return best
try:
    import torch
    torch.cuda.init(); ts = torch.cuda.synchronize
except Exception: torch = None
def rate(name, bytes, f, g):
    t = timed(f); row = {"kjit GB/s": round(bytes / t / 1e9, 1)}
    if torch and g: row["torch GB/s"] = round(bytes / timed(g, sync=ts) / 1e9, 1)
    out[name] = row; save(); print(json.dumps({name: row}), flush=True)

def rates():
    N = 64 << 20
    X = torch.randn(N, device="cuda"); x = kjit.asarray(X.cpu().numpy()); M = x.reshape(16384, 4096); MT = X.reshape(16384, 4096)
    rate("x * 2 + 1, 256 MB", 8 * N, lambda: (x * 2.0 + 1.0).eval(), lambda: X * 2.0)
    rate("x + y", 12 * N, lambda: (x + x * 0.5).eval(), lambda: X + X)
    h = x.astype(kjit.float16); h.eval(); H = X.half()
    rate("half x * 2", 4 * N, lambda: (h * 2.0).eval(), lambda: H * 2.0)
    rate("rows + row", 8 * N, lambda: (M + M[0]).eval(), lambda: MT + MT[0])
    rate("exp", 8 * N, lambda: kjit.exp(x).eval(), lambda: torch.exp(X))
    rate("sum of all", 4 * N, lambda: kjit.sum(x).eval(), lambda: X.sum())
    rate("max of all", 4 * N, lambda: kjit.max(x).eval(), lambda: X.max())
    g = x.astype(kjit.uint8); g.eval(); G = X.to(torch.uint8)
    rate("uint8 max of all", N, lambda: kjit.max(g).eval(), lambda: G.max())
    rate("half sum of all", 2 * N, lambda: kjit.sum(h).eval(), lambda: H.sum())
    rate("sum axis 1 (16384, 4096)", 4 * N, lambda: kjit.sum(M, axis=1).eval(), lambda: MT.sum(1))
    rate("sum axis 0 (16384, 4096)", 4 * N, lambda: kjit.sum(M, axis=0).eval(), lambda: MT.sum(0))
    a, A = x.reshape(1 << 20, 64), X.reshape(1 << 20, 64)
    rate("sum axis 1 (1M, 64)", 4 * N, lambda: kjit.sum(a, axis=1).eval(), lambda: A.sum(1))
    rate("sum axis 0 (1M, 64)", 4 * N, lambda: kjit.sum(a, axis=0).eval(), lambda: A.sum(0))
    b, B = x.reshape(64, 1 << 20), X.reshape(64, 1 << 20)
    rate("sum axis 1 (64, 1M)", 4 * N, lambda: kjit.sum(b, axis=1).eval(), lambda: B.sum(1))
    rate("sum axis 0 (64, 1M)", 4 * N, lambda: kjit.sum(b, axis=0).eval(), lambda: B.sum(0))
section(rates)

def calls():
    s = kjit.asarray(np.ones(16, np.float32)); us = lambda f, sync=kjit.synchronize: round(timed(f, 1000, sync) * 1e6, 2)
    c = {"x * 2 + 1 kjit": us(lambda: (s * 2.0 + 1.0).eval()), "graph alone": us(lambda: s * 2.0 + 1.0), "x + x kjit": us(lambda: (s + s).eval()), "sum kjit": us(lambda: kjit.sum(s).eval()), "python call: s.shape": us(lambda: s.shape)}
    if torch:
        S = torch.ones(16, device="cuda"); c["x * 2 + 1 torch"] = us(lambda: S * 2.0 + 1.0, ts); c["x * 2 torch"] = us(lambda: S * 2.0, ts); c["sum torch"] = us(lambda: S.sum(), ts)
    # Evaluation alone: the graphs are made before.
    best = 1e9
    for _ in range(3):
        made = [s * float(i) + 1.0 for i in range(1000)]; kjit.synchronize(); t = time.perf_counter()
        for m in made: m.eval()
        kjit.synchronize(); best = min(best, (time.perf_counter() - t) / 1000)
    c["eval alone kjit"] = round(best * 1e6, 2)
    try:  # The driver's launch alone, of an empty kernel, by ctypes (some 1 us of its own)
        import ctypes, cupy
        k = cupy.RawKernel('extern "C" __global__ void f() {}', "f"); k.compile(); cu = ctypes.CDLL("libcuda.so.1"); fn = ctypes.c_void_p(k.kernel.ptr)
        c["cuLaunchKernel by ctypes"] = us(lambda: cu.cuLaunchKernel(fn, 1, 1, 1, 256, 1, 1, 0, None, None, None), cupy.cuda.Device().synchronize)
        c["ctypes alone"] = us(lambda: cu.cuLaunchKernel(None, 1, 1, 1, 256, 1, 1, 0, None, None, None), cupy.cuda.Device().synchronize)
        C = cupy.ones(16, dtype=cupy.float32); c["x * 2 + 1 cupy"] = us(lambda: C * 2.0 + 1.0, cupy.cuda.Device().synchronize)
    except Exception as e: c["driver"] = repr(e)[:200]
    out["microseconds a call"] = c
section(calls)

def order():
    for shape in [(1,), (7,), (1000,), (4097,), (1 << 20,), (3, 5), (33, 1025), (5, 7, 65), (70001, 3), (4, 100003)]:
        for dtype in (np.float32, np.int32, np.float16):
            a = (rng.standard_normal(shape) * 50).astype(dtype)
            if dtype != np.int32 and a.size > 3: a.ravel()[::7] = np.nan
            x = kjit.asarray(a); ax = len(shape) - 1
            close(f"argsort {shape} {a.dtype}", kjit.argsort(x, axis=ax), np.argsort(a, axis=ax, kind="stable"), 0, 0)
            close(f"sort {shape} {a.dtype}", kjit.sort(x, axis=ax), np.sort(a, axis=ax), 0, 0)
            f = np.nan_to_num(a).astype(dtype)
            w = np.cumsum(f, axis=ax, dtype=np.float64 if dtype != np.int32 else np.int64)
            if dtype != np.float16: close(f"cumsum {shape} {a.dtype}", kjit.cumulative_sum(kjit.asarray(f), axis=ax), w, 1e-6, 1e-3)
    v = rng.integers(0, 50, 10007).astype(np.int32); u = kjit.unique_all(kjit.asarray(v)); w = np.unique(v, return_index=True, return_inverse=True, return_counts=True)
    for name, g, e in zip(("values", "indices", "inverse", "counts"), u, w): close("unique " + name, g, e, 0, 0)
    close("nonzero", kjit.nonzero(kjit.asarray(v > 25))[0], np.nonzero(v > 25)[0], 0, 0)
    close("mask", kjit.asarray(v)[kjit.asarray(v > 25)], v[v > 25], 0, 0)
    b, i, s = np.zeros(100, np.float32), rng.integers(0, 100, 5000), rng.standard_normal(5000).astype(np.float32)
    w = b.copy(); np.add.at(w, i, s); close("scatter_add", kjit.scatter_add(kjit.asarray(b), 0, kjit.asarray(i), kjit.asarray(s)), w, 1e-5, 1e-4)
    x = kjit.asarray(np.arange(5.0, dtype=np.float32))
    for bad_index in ([1, 7], [-6]):
        try: kjit.take(x, kjit.asarray(np.array(bad_index)), axis=0).numpy(); bad.append("no IndexError")
        except IndexError as e: out.setdefault("IndexError says", []).append(str(e))
    close("after the error", x + 1, np.arange(5.0) + 1)
if "--order" in sys.argv: section(order)

def order_rates():
    N = 16 << 20; X = torch.randn(N, device="cuda"); x = kjit.asarray(X.cpu().numpy()); r = {}
    ms = lambda f, n=5, sync=kjit.synchronize: round(timed(f, n, sync) * 1e3, 3)
    r["cumsum kjit"], r["cumsum torch"] = ms(lambda: kjit.cumulative_sum(x).eval()), ms(lambda: X.cumsum(0), sync=ts)
    r["sort kjit"], r["sort torch"] = ms(lambda: kjit.sort(x).eval()), ms(lambda: X.sort(stable=True), sync=ts)
    y, Y = x.reshape(4096, 4096), X.reshape(4096, 4096)
    r["rows cumsum kjit"], r["rows cumsum torch"] = ms(lambda: kjit.cumulative_sum(y, axis=1).eval()), ms(lambda: Y.cumsum(1), sync=ts)
    r["rows sort kjit"], r["rows sort torch"] = ms(lambda: kjit.sort(y, axis=1).eval()), ms(lambda: Y.sort(stable=True), sync=ts)
    I = torch.randint(0, 1 << 20, (N,), device="cuda"); i = kjit.asarray(I.cpu().numpy()); z, Z = kjit.zeros(1 << 20), torch.zeros(1 << 20, device="cuda")
    r["scatter_add kjit"], r["scatter_add torch (not deterministic)"] = ms(lambda: kjit.scatter_add(z, 0, i, x).eval()), ms(lambda: Z.scatter_add(0, I, X), sync=ts)
    out["ms, 16M elements"] = r
if "--order" in sys.argv: section(order_rates)
out["seconds"] = round(time.perf_counter() - T0, 1); save(); print(json.dumps({"wrong": bad, **out}, indent=1))
