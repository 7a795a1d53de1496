"""Layers by PyTorch's names, of weights that are given. Inference only.

>>> import kjit
>>> layer = kjit.nn.Linear(kjit.ones((2, 3)), kjit.zeros(2))
>>> layer(kjit.ones((1, 3)))
Tensor([[3.0, 3.0]], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import functional
from .._kjit import Tensor


class Linear:
    """(…, in) → (…, out), of a weight (out, in) and a bias (out,)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


class Conv2d:
    """(n, c, h, w) → (n, out, h', w'), of a weight (out, c / groups, kh, kw)."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, **options: Any
    ) -> None:
        self.weight, self.bias, self.options = weight, bias, options

    def __call__(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight, self.bias, **self.options)


class LayerNorm:
    """Mean 0, variance 1 over the last axes, then weight and bias of their sizes."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> None:
        self.weight, self.bias, self.eps = weight, bias, eps

    def __call__(self, x: Tensor) -> Tensor:
        shape = list(self.weight.shape)
        return functional.layer_norm(x, shape, self.weight, self.bias, self.eps)


class BatchNorm2d:
    """(n, channels, h, w) by mean, variance, weight and bias (channels,)."""

    def __init__(
        self,
        mean: Tensor,
        var: Tensor,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> None:
        self.parts, self.eps = (mean, var, weight, bias), eps

    def __call__(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, *self.parts, eps=self.eps)


class ReLU:
    """max(x, 0)."""

    def __call__(self, x: Tensor) -> Tensor:
        return functional.relu(x)


class GELU:
    """x times the normal distribution's share below x."""

    def __call__(self, x: Tensor) -> Tensor:
        return functional.gelu(x)


class Dropout:
    """x: nothing is dropped in inference."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, x: Tensor) -> Tensor:
        return x


class Sequential:
    """Layers one after the other."""

    def __init__(self, *layers: Callable[[Tensor], Tensor]) -> None:
        self.layers = layers

    def __call__(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


__all__ = [
    "BatchNorm2d",
    "Conv2d",
    "Dropout",
    "GELU",
    "LayerNorm",
    "Linear",
    "ReLU",
    "Sequential",
    "functional",
]
