"""Layers by PyTorch's names and arguments, with ``state_dict`` in torch's names. Inference only.

>>> import kjit
>>> net = kjit.nn.Sequential(kjit.nn.Linear(3, 2), kjit.nn.ReLU())
>>> _ = net.load_state_dict({"0.weight": kjit.ones((2, 3)), "0.bias": kjit.zeros(2)})
>>> net(kjit.ones((1, 3)))
Tensor([[3.0, 3.0]], dtype=float32)
"""

from . import functional
from ._activations import (
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    ELU,
    GELU,
    LeakyReLU,
    LogSoftmax,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
    ReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from ._layers import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    Dropout,
    Embedding,
    Flatten,
    GroupNorm,
    Identity,
    LayerNorm,
    Linear,
    RMSNorm,
)
from ._module import Module, ModuleDict, ModuleList, Sequential

__all__ = [
    "AdaptiveAvgPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "Dropout",
    "ELU",
    "Embedding",
    "Flatten",
    "GELU",
    "GroupNorm",
    "Identity",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Tanh",
    "functional",
]
