"""A chain of element-wise operations becomes one kernel: no result in between lies in memory.

python3 02_fusion.py [DEVICE]
"""

import sys

import kjit

kjit.set_device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
x, y = kjit.rand(300, 65), kjit.rand(65)
z = kjit.sqrt(kjit.exp(-x * x) + kjit.sin(y) ** 2) / (1 + kjit.abs(x - y))
told = kjit.explain(z)  # computes z, prints what ran
assert len(told.groups) == 1
