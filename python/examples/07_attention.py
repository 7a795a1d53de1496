"""Attention by its parts, and by the function that has all of them.

python3 07_attention.py [DEVICE]
"""

import math
import sys

import kjit

kjit.set_device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
kjit.manual_seed(0)
q, k, v = kjit.randn(2, 4, 31, 16), kjit.randn(2, 4, 33, 16), kjit.randn(2, 4, 33, 16)
weights = kjit.softmax(q @ k.mT / math.sqrt(16), -1)
by_parts = weights @ v
whole = kjit.scaled_dot_product_attention(q, k, v)
error = kjit.max(kjit.abs(by_parts - whole)).item()
print(f"{whole.shape}, largest difference {error:.1e}")
assert error < 1e-5
