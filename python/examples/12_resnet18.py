"""ResNet-18 with the weights that torch makes from a seed, computed here without torch.

    python3 12_resnet18.py [DEVICE]

torch draws weights from the Mersenne Twister in the order in which layers are made; Python's own
generator is the same one. So the logits are torch's, which ``tests/goldens.json`` holds.
"""

import json
import math
import os
import random
import sys

import kjit
from kjit import nn


class TorchRandom:
    """The numbers of ``torch.manual_seed(seed)`` on the CPU."""

    def __init__(self, seed):
        state = [seed]
        for i in range(1, 624):
            state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) & 0xFFFFFFFF)
        self.draw = random.Random()
        self.draw.setstate((3, (*state, 624), None))

    def uniform(self, shape, low=0.0, high=1.0):
        """Uniform in [low, high): the lower 24 bits of each word."""
        n = math.prod(shape)
        data = self.draw.getrandbits(32 * n).to_bytes(4 * n, "little")
        words = kjit.asarray(data).reshape(n, 4)
        words = kjit.astype(words, kjit.float32)
        unit = words[:, 0] + words[:, 1] * 256.0 + words[:, 2] * 65536.0
        return (unit / 16777216.0 * (high - low) + low).reshape(*shape)


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.downsample = None
        if stride != 1 or i != o:
            parts = nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)
            self.downsample = nn.Sequential(*parts)

    def forward(self, x):
        y = kjit.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return kjit.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        sizes = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
        for n, (i, o, stride) in enumerate(sizes, 1):
            setattr(self, f"layer{n}", nn.Sequential(Block(i, o, stride), Block(o, o, 1)))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x):
        x = kjit.nn.functional.max_pool2d(kjit.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(kjit.mean(x, axis=(2, 3)))


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    drawn, state = TorchRandom(0), {}
    net = ResNet18()
    own = net.state_dict()
    for name, x in own.items():
        layer = name.rpartition(".")[0]
        if x.ndim > 1 or name == "fc.bias":  # batch norms begin with ones and zeros
            bound = 1 / math.sqrt(math.prod(own[f"{layer}.weight"].shape[1:]))
            state[name] = drawn.uniform(x.shape, -bound, bound)
        else:
            state[name] = x
    net.load_state_dict(state)
    x = drawn.uniform((1, 3, 64, 64))
    net.to(device)
    logits = net(x.to_device(device))[0].tolist()

    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "..", "tests", "goldens.json")) as file:
        golden = json.load(file)["resnet18"]
    assert [[n, list(t.shape)] for n, t in own.items()] == golden["state"]
    close = lambda a, b, atol: all(abs(v - w) <= 1e-4 * abs(w) + atol for v, w in zip(a, b))
    assert close(x.reshape(-1)[:4].tolist(), golden["input"], 1e-7)
    assert close(state["fc.bias"][:4].tolist(), golden["fc"], 1e-8)
    assert close(logits[::25], golden["logits"], 1e-5)
    print(f"{sum(t.size for t in own.values())} weights, logits as torch's: {logits[:3]}")


main()
