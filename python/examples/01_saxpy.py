"""a · x + y on a device: one pass over memory, compiled at its first use and kept on disk.

python3 01_saxpy.py [DEVICE]
"""

import sys

import kjit

kjit.set_device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
a, n = 2.5, 100_003
x, y = kjit.arange(n, dtype=kjit.float32), kjit.ones(n)
z = a * x + y  # nothing is computed yet
z.eval()
print(f"{n} elements on {z.device}: z[7] = {z[7].item()}")
assert z[7].item() == 18.5
