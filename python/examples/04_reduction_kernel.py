"""A reduction of one's own: the Euclidean norm of rows, in CuPy's words.

    python3 04_reduction_kernel.py [DEVICE]

On the CPU, which has no compiler, the same is said with operations.
"""

import sys

import kjit

NORM = kjit.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")

kjit.set_device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
x = kjit.asarray([[3.0, 4.0], [5.0, 12.0]])
if kjit.get_device() == "cpu":
    y = kjit.sqrt(kjit.sum(x * x, axis=1))
else:
    y = NORM(x, 1)
print(f"norms {y.tolist()} on {y.device}")
assert y.tolist() == [5.0, 13.0]
