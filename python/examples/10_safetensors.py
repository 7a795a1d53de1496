"""Weights in files: safetensors and NumPy's .npz.

python3 10_safetensors.py
"""

import os
import tempfile

import kjit

weights = {"w": kjit.randn(4, 3), "b": kjit.asarray([1.0, 2.0], dtype=kjit.bfloat16)}
with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "weights.safetensors")
    kjit.safetensors.save_file(weights, file, {"made by": "an example"})
    print(kjit.safetensors.metadata(file), {n: x.shape for n, x in kjit.load(file).items()})
    assert kjit.all(kjit.load(file)["w"] == weights["w"])
    arrays = os.path.join(folder, "weights.npz")
    kjit.savez(arrays, w=weights["w"])
    assert kjit.all(kjit.load(arrays)["w"] == weights["w"])
