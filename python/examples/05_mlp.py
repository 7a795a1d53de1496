"""A multilayer perceptron 784 – 256 – 128 – 10 with torch's layers, and its weights in a file.

python3 05_mlp.py [DEVICE]
"""

import os
import sys
import tempfile

import kjit
from kjit import nn

kjit.set_device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
kjit.manual_seed(0)


def perceptron():
    return nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )


net, x = perceptron(), kjit.randn(64, 784)
scores = net(x)
print(net)
print("scores", scores.shape, "first class", kjit.argmax(scores, axis=1)[0].item())

with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "mlp.safetensors")
    kjit.save(file, net.state_dict())
    again = perceptron().load(file)
assert kjit.all(again(x) == scores)
