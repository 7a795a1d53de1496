"""Memory shared with other libraries through DLPack: NumPy, torch, CuPy, JAX.

    python3 09_dlpack.py

On a GPU, ``torch.from_dlpack(x)`` and ``kjit.from_dlpack(t, copy=False)`` share its memory.
"""

import kjit

x = kjit.arange(6, dtype=kjit.float32).reshape(2, 3)
for name in ("numpy", "torch"):
    try:
        library = __import__(name)
    except ImportError:
        print(f"no {name} here")
        continue
    theirs = library.from_dlpack(x[:, ::2])  # a view of the same memory
    ours = kjit.from_dlpack(theirs, copy=False)
    print(f"{name}: {theirs.tolist()}")
    assert theirs.tolist() == ours.tolist() == [[0.0, 2.0], [3.0, 5.0]]
again = kjit.from_dlpack(x.T, copy=False)
assert again.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
