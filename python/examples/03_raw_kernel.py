"""A kernel of one's own in CUDA's words, from one text on NVIDIA and AMD GPUs.

    python3 03_raw_kernel.py [DEVICE]

The CPU has no compiler, so the kernel needs a GPU; without one the example says so.
"""

import sys

import kjit

KERNEL = kjit.RawKernel(
    """
extern "C" __global__ void saxpy(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}""",
    "saxpy",
)

gpus = [kind for kind in ("cuda", "rocm") if kjit.is_available(kind)]
if len(sys.argv) > 1 or gpus:
    kjit.set_device(sys.argv[1] if len(sys.argv) > 1 else f"{gpus[0]}:0")
    n = 1000
    x, y = kjit.arange(n, dtype=kjit.float32), kjit.ones(n)
    KERNEL((n + 127) // 128, 128, (x, y, 2.5, n))
    print(f"y[7] = {y[7].item()} on {y.device}")
    assert y[7].item() == 18.5
else:
    print("no GPU here: a RawKernel runs on cuda:N and rocm:N")
