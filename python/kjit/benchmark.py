"""Times operations on a device: ``python -m kjit.benchmark --all``.

Each case runs ``--warmup`` times, then ``--iterations`` times; the time is that of one call: the
whole divided by the iterations, with one wait for the device at the end. Nothing is checked here.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import kjit

Case = tuple[str, float, str, Callable[[], Any]]


def _given(dtype: str, *shape: int) -> Any:
    x = kjit.astype(kjit.randn(*shape), getattr(kjit, dtype))
    x.eval()
    return x


def matmul(dtype: str, small: bool) -> Iterator[Case]:
    """Products of square matrices, and a linear layer with bias and ReLU."""
    for n in (128, 256) if small else (512, 1024, 2048, 4096):
        a, b = _given(dtype, n, n), _given(dtype, n, n)
        yield f"matmul {n} × {n} × {n}", 2e-9 * n**3, "GFLOP/s", partial(kjit.matmul, a, b)
    n = 256 if small else 4096
    x, w, c = _given(dtype, n, n), _given(dtype, n, n), _given(dtype, n)
    linear = kjit.nn.functional.linear
    yield f"linear + bias + relu {n}", 2e-9 * n**3, "GFLOP/s", lambda: kjit.relu(linear(x, w, c))


def conv(dtype: str, small: bool) -> Iterator[Case]:
    """Convolutions of two dimensions, 3 × 3."""
    large = ((32, 64, 56), (16, 256, 28), (32, 512, 7))
    for n, c, h in ((1, 8, 28), (2, 16, 28)) if small else large:
        x, w = _given(dtype, n, c, h, h), _given(dtype, c, c, 3, 3)
        name, work = f"conv2d {n} × {c} × {h} × {h}, 3 × 3", 2e-9 * n * c * c * 9 * h * h
        yield name, work, "GFLOP/s", partial(kjit.conv2d, x, w, None, 1, 1)


def elementwise(dtype: str, small: bool) -> Iterator[Case]:
    """Element-wise chains and reductions, by bytes read and written."""
    n = 1 << (16 if small else 26)
    x = _given(dtype, n)
    size = 1e-9 * n * x.dtype.itemsize
    yield f"x * 2 + 1 of {n}", 2 * size, "GB/s", lambda: x * 2 + 1
    yield f"exp of {n}", 2 * size, "GB/s", lambda: kjit.exp(x)
    yield f"sum of {n}", size, "GB/s", lambda: kjit.sum(x)


def norm(dtype: str, small: bool) -> Iterator[Case]:
    """Softmax and layer norm of rows, by bytes read and written."""
    m, n = (64, 512) if small else (16384, 4096)
    x, w, b = _given(dtype, m, n), _given(dtype, n), _given(dtype, n)
    size = 2e-9 * m * n * x.dtype.itemsize
    f = kjit.nn.functional
    yield f"softmax {m} × {n}", size, "GB/s", lambda: f.softmax(x, -1)
    yield f"layer_norm {m} × {n}", size, "GB/s", lambda: f.layer_norm(x, (n,), w, b)


def attention(dtype: str, small: bool) -> Iterator[Case]:
    """Scaled dot-product attention."""
    h, t, d = (2, 128, 64) if small else (8, 8192, 128)
    q, k, v = (_given(dtype, 1, h, t, d) for _ in range(3))
    sdpa = kjit.nn.functional.scaled_dot_product_attention
    work = 4e-9 * h * t * t * d
    yield f"attention {h} × {t} × {d}", work, "GFLOP/s", lambda: sdpa(q, k, v)
    yield "attention, causal", work / 2, "GFLOP/s", lambda: sdpa(q, k, v, is_causal=True)


GROUPS = {"matmul": matmul, "conv": conv, "elementwise": elementwise, "norm": norm,
          "attention": attention}
DTYPES = ("float16", "bfloat16", "float32", "float64")


def seconds(call: Callable[[], Any], device: str, iterations: int, warmup: int) -> float:
    """Seconds of one call."""
    for _ in range(warmup):
        call().eval()
    kjit.synchronize(device)
    start = time.perf_counter()
    for _ in range(iterations):
        call().eval()
    kjit.synchronize(device)
    return (time.perf_counter() - start) / iterations


def count(text: str) -> int:
    """A number of calls."""
    if not text.isdigit() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 to 1000000")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kjit.benchmark", description=__doc__)
    parser.add_argument("--all", action="store_true", help="all groups")
    for name, group in GROUPS.items():
        parser.add_argument(f"--{name}", action="store_true", help=group.__doc__)
    add = parser.add_argument
    add("--iterations", type=count, default=20, metavar="N", help="timed calls (20)")
    add("--warmup", type=count, default=3, metavar="N", help="calls before them (3)")
    add("--device", help="cpu, cuda:0, rocm:0 (the first GPU, or the CPU)")
    add("--dtype", default="float32", choices=DTYPES)
    add("--small", action="store_true", help="small sizes, as on the CPU")
    add("--exhaustive", action="store_true", help="measure the tilings of products first")
    add("--json", action="store_true", help="a line of JSON for each case")
    given = parser.parse_args(argv)
    chosen = [n for n in GROUPS if given.all or getattr(given, n)]
    if not chosen:
        parser.error("choose --all or some of " + ", ".join(f"--{n}" for n in GROUPS))
    kinds = ("cuda", "rocm")
    device = given.device or next((f"{k}:0" for k in kinds if kjit.is_available(k)), "cpu")
    try:
        kjit.set_device(device)
    except (RuntimeError, ValueError) as error:
        parser.error(str(error))
    kjit.tuning.exhaustive(given.exhaustive)
    info = kjit.device_info(device)
    if not given.json:
        print(f"{info['device']}: {info['name']} ({info['architecture']}), {given.dtype}, "
              f"{given.iterations} iterations after {given.warmup}")
    small = given.small or kjit.get_device_type() == "cpu"
    for name in chosen:
        for case, work, unit, call in GROUPS[name](given.dtype, small):
            took = seconds(call, device, given.iterations, given.warmup)
            if given.json:
                row = {"case": case, "dtype": given.dtype, "us": took * 1e6, unit: work / took}
                print(json.dumps(row), flush=True)
            else:
                print(f"{case:<40} {took * 1e6:12.1f} µs {work / took:12.1f} {unit}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
