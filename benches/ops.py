"""The Python package on a GPU: results against NumPy at 28 sizes, then rates beside torch, as JSON.

    PYTHONPATH=… python3 benches/ops.py        # with the package kjit, NumPy and, for comparison, torch
"""

import sys, time, json
import numpy as np
import kjit
out = {"devices": kjit.device_count("cuda"), "info": str(kjit.device_info("cuda:0")) if kjit.device_count("cuda") else None}
kjit.set_device("cuda:0")
rng = np.random.default_rng(7)
bad = []
def close(name, got, want, rtol=1e-5, atol=1e-6):
    got = np.asarray(got.numpy())
    if got.shape != want.shape or not np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True): bad.append((name, float(np.nanmax(np.abs(got - want))) if got.shape == want.shape else [got.shape, want.shape]))
for n in (1, 31, 33, 65, 127, 1000, 4099):
    for m in (1, 7, 64, 129):
        a = rng.standard_normal((n, m)).astype(np.float32); b = rng.standard_normal((n, m)).astype(np.float32)
        x, y = kjit.asarray(a), kjit.asarray(b)
        close(f"fma {n}x{m}", x * y + x, a * b + a)
        close(f"exp {n}x{m}", kjit.exp(x), np.exp(a))
        close(f"sum {n}x{m}", kjit.sum(x, axis=1), a.astype(np.float64).sum(1).astype(np.float32), 1e-5, 1e-5)
        e = np.exp(a - a.max(1, keepdims=True)); close(f"softmax {n}x{m}", kjit.nn.functional.softmax(x, 1), e / e.sum(1, keepdims=True))
        close(f"T {n}x{m}", kjit.matrix_transpose(x) + 1, a.T + 1)
        w = rng.standard_normal((m, 50)).astype(np.float32); close(f"matmul {n}x{m}", x @ kjit.asarray(w), (a.astype(np.float64) @ w).astype(np.float32), 1e-4, 1e-4)
out["wrong"] = bad
def timed(f, n=20):
    f(); kjit.synchronize(); t = time.perf_counter()
    for _ in range(n): f()
    kjit.synchronize(); return (time.perf_counter() - t) / n
x = kjit.asarray(rng.standard_normal(64 << 20).astype(np.float32)); x.eval() if hasattr(x, "eval") else None
t = timed(lambda: (x * 2.0 + 1.0).eval()); out["elementwise GB/s (256 MB in, 256 MB out)"] = 0.512 * 1.048576 / t
t = timed(lambda: kjit.sum(x).eval()); out["sum GB/s"] = 0.256 * 1.048576 / t
a = kjit.asarray(rng.standard_normal((4096, 4096)).astype(np.float16)); t = timed(lambda: (a @ a).eval(), 5); out["f16 matmul TFLOP/s"] = 2 * 4096 ** 3 / t / 1e12
s = kjit.asarray(np.ones(16, np.float32)); t = timed(lambda: (s * 2.0 + 1.0).eval(), 500); out["warm call us"] = t * 1e6
try:
    import torch
    X = torch.randn(64 << 20, device="cuda"); A = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    def tt(f, n=20):
        f(); torch.cuda.synchronize(); t = time.perf_counter()
        for _ in range(n): f()
        torch.cuda.synchronize(); return (time.perf_counter() - t) / n
    out["torch elementwise (mul) GB/s"] = 0.512 * 1.048576 / tt(lambda: X * 2.0); out["torch copy GB/s"] = 0.512 * 1.048576 / tt(lambda: X.clone())
    out["torch sum GB/s"] = 0.256 * 1.048576 / tt(lambda: X.sum()); out["torch f16 matmul TFLOP/s"] = 2 * 4096 ** 3 / tt(lambda: A @ A) / 1e12
    S = torch.ones(16, device="cuda"); out["torch warm call us"] = tt(lambda: S * 2.0, 500) * 1e6
except Exception as e: out["torch"] = repr(e)
print(json.dumps(out, indent=1))
