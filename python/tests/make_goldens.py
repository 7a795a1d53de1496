"""Writes ``goldens.json`` by torch: shape, dtype, some elements and the sum of every case.

    pip install torch && python3 make_goldens.py

Float results are computed in float64 and given with nine digits, so torch's rounding is not part
of them. ``resnet18`` is in float32 as torch computes it.
"""

import json
import math
import os
import sys

import torch

import goldens

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "examples"))


def make(values, dtype, shape):
    x = torch.tensor(values, dtype=getattr(torch, dtype)).reshape(shape)
    # The inputs are float32 numbers; the arithmetic is float64.
    return x.double() if x.is_floating_point() else x


def flip(x):
    return torch.flip(x, (0,)) if x.ndim else x


def number(v):
    if isinstance(v, float):
        return float(f"{v:.9g}") if math.isfinite(v) else str(v)
    return v


class Space:
    """torch under the names that kjit has."""

    concat = staticmethod(torch.cat)
    argsort = staticmethod(lambda x: torch.argsort(x, stable=True))
    sort = staticmethod(lambda x: torch.sort(x).values)

    def __getattr__(self, name):
        return getattr(torch, name)


def main():
    out = []
    functions = {
        "xp": Space(),
        "F": torch.nn.functional,
        "gather": torch.gather,
        "scatter_add": lambda x, axis, index, values: x.scatter_add(axis, index, values),
    }
    for at, case in enumerate(goldens.cases()):
        given = goldens.inputs_of(at, case, make, flip)
        with torch.no_grad():
            y = eval(case[1], functions | given)
        flat = y.reshape(-1)
        kept = [number(flat[i].item()) for i in goldens.samples(flat.numel())]
        kind = "float" if y.is_floating_point() else str(y.dtype).removeprefix("torch.")
        total = number(flat.double().sum().item()) if flat.numel() else 0.0
        out.append([list(y.shape), kind, kept, total])
    with open(os.path.join(HERE, "goldens.json"), "w") as file:
        lines = [json.dumps(one, separators=(",", ":")) for one in out]
        net = json.dumps(resnet18(), separators=(",", ":"))
        file.write('{"cases":[\n' + ",\n".join(lines) + '\n],\n"resnet18":' + net + "}\n")
    print(f"{len(out)} cases, torch {torch.__version__}")


def resnet18():
    """Logits of ResNet-18 with torch's initial weights of seed 0, for an input of the seed's."""
    from torch import nn

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
            y = torch.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            return torch.relu(y + (x if self.downsample is None else self.downsample(x)))

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
            x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.fc(x.mean((2, 3)))

    torch.manual_seed(0)
    net = ResNet18().eval()
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        y = net(x)[0]
    names = [[name, list(t.shape)] for name, t in net.state_dict().items()]
    return {
        "logits": [number(v) for v in y[::25].tolist()],
        "input": [number(v) for v in x.flatten()[:4].tolist()],
        "fc": [number(v) for v in net.fc.bias[:4].tolist()],
        "state": names,
    }


main()
