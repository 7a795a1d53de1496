"""A convolution with batch norm, ReLU and a pool, as layers and as functions.

python3 06_convolution.py [DEVICE]
"""

import sys

import kjit
from kjit import nn

kjit.set_device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
kjit.manual_seed(0)
x = kjit.randn(2, 3, 31, 33)
net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
y = net(x)

conv, norm = net[0], net[1]
F = kjit.nn.functional
z = F.conv2d(x, conv.weight, conv.bias, padding=1)
z = F.batch_norm(z, norm.running_mean, norm.running_var, norm.weight, norm.bias)
z = F.max_pool2d(kjit.relu(z), 2)
print(f"{x.shape} -> {y.shape}")
assert y.shape == (2, 8, 15, 16) and kjit.all(y == z)
