"""Activations and pools as layers, with torch's arguments."""

from __future__ import annotations

import builtins

from . import functional
from ._module import Module
from .functional import Sizes
from .._kjit import Tensor


class ReLU(Module):
    """max(x, 0), of any shape."""

    def __init__(self, inplace: builtins.bool = False) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x)


class LeakyReLU(Module):
    """x if x > 0, otherwise ``negative_slope`` · x, of any shape."""

    def __init__(self, negative_slope: float = 0.01, inplace: builtins.bool = False) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(x, self.negative_slope)


class ELU(Module):
    """x if x > 0, otherwise ``alpha`` · (exp(x) - 1), of any shape."""

    def __init__(self, alpha: float = 1.0, inplace: builtins.bool = False) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return functional.elu(x, self.alpha)


class Sigmoid(Module):
    """1 / (1 + exp(-x)), of any shape."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.sigmoid(x)


class Tanh(Module):
    """Hyperbolic tangent, of any shape."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.tanh(x)


class GELU(Module):
    """x times the normal distribution function at x; ``approximate="tanh"`` as in torch."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x, self.approximate)


class SiLU(Module):
    """x * sigmoid(x), of any shape."""

    def __init__(self, inplace: builtins.bool = False) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(x)


class Softplus(Module):
    """log(1 + exp(x)), of any shape."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.softplus(x)


class Softmax(Module):
    """exp(x) / sum(exp(x)) over an axis."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return functional.softmax(x, self.dim)


class LogSoftmax(Module):
    """log(softmax(x)) over an axis."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return functional.log_softmax(x, self.dim)


class _MaxPool(Module):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
    ) -> None:
        super().__init__()
        self.options = (kernel_size, stride, padding, dilation)


class MaxPool1d(_MaxPool):
    """The greatest element of each window of (…, w)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool1d(x, *self.options)


class MaxPool2d(_MaxPool):
    """The greatest element of each window of (…, h, w)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(x, *self.options)


class MaxPool3d(_MaxPool):
    """The greatest element of each window of (…, d, h, w)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool3d(x, *self.options)


class _AvgPool(Module):
    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        count_include_pad: builtins.bool = True,
    ) -> None:
        super().__init__()
        self.options = (kernel_size, stride, padding, count_include_pad)


class AvgPool1d(_AvgPool):
    """The mean of each window of (…, w)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool1d(x, *self.options)


class AvgPool2d(_AvgPool):
    """The mean of each window of (…, h, w)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(x, *self.options)


class AvgPool3d(_AvgPool):
    """The mean of each window of (…, d, h, w)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool3d(x, *self.options)


class AdaptiveAvgPool2d(Module):
    """(…, h, w) averaged to (…, *output_size)."""

    def __init__(self, output_size: Sizes) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(x, self.output_size)
