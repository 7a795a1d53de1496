"""Layers with torch's arguments. Initial weights have torch's distribution."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

from . import functional
from ._module import Module
from .functional import Sizes
from .. import _kjit
from .._creation import ones, rand, randn, zeros
from .._kjit import Tensor


def _uniform(shape: tuple[int, ...], inputs: int, dtype: Any, device: str | None) -> Tensor:
    bound = 1 / math.sqrt(inputs) if inputs > 0 else 0.0
    dtype = _kjit.float32 if dtype is None else dtype
    return rand(*shape, dtype=dtype, device=device) * (2 * bound) - bound


def _pair(value: Sizes, n: int) -> tuple[int, ...]:
    return (value,) * n if isinstance(value, int) else tuple(value)


class Identity(Module):
    """Returns x, of any shape."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class Dropout(Identity):
    """Returns x, because dropout has no effect in inference."""

    def __init__(self, p: float = 0.5, inplace: builtins.bool = False) -> None:
        super().__init__()
        self.p = p


class Flatten(Module):
    """(n, a, b, …) → (n, a · b · …): merges the axes from ``start_dim`` to ``end_dim``."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        return functional.flatten(x, self.start_dim, self.end_dim)


class Linear(Module):
    """(…, in_features) → (…, out_features); weight (out, in), bias (out,)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: builtins.bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        shape = (out_features, in_features)
        self._tensor("weight", _uniform(shape, in_features, dtype, device))
        own = _uniform((out_features,), in_features, dtype, device) if bias else None
        self._tensor("bias", own)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)

    def _describe(self) -> str:
        has = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={has}"


class Embedding(Module):
    """Integers of any shape → (…, embedding_dim), rows of a weight (num_embeddings, …)."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.padding_idx = padding_idx
        dtype = _kjit.float32 if dtype is None else dtype
        weight = randn(num_embeddings, embedding_dim, dtype=dtype, device=device)
        if padding_idx is not None:
            weight[padding_idx] = 0.0
        self._tensor("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        return functional.embedding(x, self.weight)


class _Conv(Module):
    _axes = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: builtins.bool = True,
        padding_mode: str = "zeros",
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if padding_mode != "zeros":
            raise NotImplementedError(f"{name}: padding_mode '{padding_mode}', only 'zeros'")
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{name}: {in_channels}, {out_channels} channels in {groups} groups")
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        kernel = _pair(kernel_size, self._axes)
        shape = (out_channels, in_channels // groups, *kernel)
        inputs = math.prod(shape[1:])
        self._tensor("weight", _uniform(shape, inputs, dtype, device))
        self._tensor("bias", _uniform((out_channels,), inputs, dtype, device) if bias else None)

    def _run(self, conv: Callable[..., Tensor], x: Tensor) -> Tensor:
        return conv(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def _describe(self) -> str:
        w = self.weight.shape
        return f"{w[1] * self.groups}, {w[0]}, kernel_size={w[2:]}, stride={self.stride}"


class Conv1d(_Conv):
    """(n, in, w) → (n, out, w'); weight (out, in / groups, kw)."""

    _axes = 1

    def forward(self, x: Tensor) -> Tensor:
        return self._run(functional.conv1d, x)


class Conv2d(_Conv):
    """(n, in, h, w) → (n, out, h', w'); weight (out, in / groups, kh, kw)."""

    def forward(self, x: Tensor) -> Tensor:
        return self._run(functional.conv2d, x)


class Conv3d(_Conv):
    """(n, in, d, h, w) → (n, out, d', h', w'); weight (out, in / groups, kd, kh, kw)."""

    _axes = 3

    def forward(self, x: Tensor) -> Tensor:
        return self._run(functional.conv3d, x)


class _ConvTranspose(Module):
    _axes = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: builtins.bool = True,
        dilation: Sizes = 1,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.groups, self.dilation = groups, dilation
        kernel = _pair(kernel_size, self._axes)
        shape = (in_channels, out_channels // groups, *kernel)
        inputs = math.prod(shape[1:])
        self._tensor("weight", _uniform(shape, inputs, dtype, device))
        self._tensor("bias", _uniform((out_channels,), inputs, dtype, device) if bias else None)

    def _run(self, conv: Callable[..., Tensor], x: Tensor) -> Tensor:
        return conv(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )


class ConvTranspose1d(_ConvTranspose):
    """(n, in, w) → (n, out, w'); weight (in, out / groups, kw)."""

    _axes = 1

    def forward(self, x: Tensor) -> Tensor:
        return self._run(functional.conv_transpose1d, x)


class ConvTranspose2d(_ConvTranspose):
    """(n, in, h, w) → (n, out, h', w'); weight (in, out / groups, kh, kw)."""

    def forward(self, x: Tensor) -> Tensor:
        return self._run(functional.conv_transpose2d, x)


class _BatchNorm(Module):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: builtins.bool = True,
        track_running_stats: builtins.bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if not track_running_stats:
            raise NotImplementedError("BatchNorm: kjit is for inference and needs running_mean")
        self.eps = eps
        own: Any = {"device": device, "dtype": _kjit.float32 if dtype is None else dtype}
        self._tensor("weight", ones(num_features, **own) if affine else None)
        self._tensor("bias", zeros(num_features, **own) if affine else None)
        self._tensor("running_mean", zeros(num_features, **own))
        self._tensor("running_var", ones(num_features, **own))
        self._tensor("num_batches_tracked", zeros((), dtype=_kjit.int64, device=device))

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )

    def _describe(self) -> str:
        return f"{self.running_mean.shape[0]}, eps={self.eps}"


class BatchNorm1d(_BatchNorm):
    """(n, features) or (n, features, w), by the stored mean and variance (features,)."""


class BatchNorm2d(_BatchNorm):
    """(n, features, h, w), by the stored mean and variance (features,)."""


class BatchNorm3d(_BatchNorm):
    """(n, features, d, h, w), by the stored mean and variance (features,)."""


class LayerNorm(Module):
    """Mean 0, variance 1 over the last axes, of sizes ``normalized_shape``."""

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float = 1e-5,
        elementwise_affine: builtins.bool = True,
        bias: builtins.bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = _pair(normalized_shape, 1), eps
        own: Any = {"device": device, "dtype": _kjit.float32 if dtype is None else dtype}
        affine = elementwise_affine
        self._tensor("weight", ones(self.normalized_shape, **own) if affine else None)
        self._tensor("bias", zeros(self.normalized_shape, **own) if affine and bias else None)

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(
            x, self.normalized_shape, self.weight, self.bias, self.eps
        )


class RMSNorm(Module):
    """x / sqrt(mean(x**2) + eps) over the last axes; the default eps is the dtype's."""

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float | None = None,
        elementwise_affine: builtins.bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps = _pair(normalized_shape, 1), eps
        own: Any = {"device": device, "dtype": _kjit.float32 if dtype is None else dtype}
        one = ones(self.normalized_shape, **own) if elementwise_affine else None
        self._tensor("weight", one)

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(Module):
    """(n, channels, …): mean 0, variance 1 in each group of channels."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: builtins.bool = True,
        device: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_groups, self.eps = num_groups, eps
        own: Any = {"device": device, "dtype": _kjit.float32 if dtype is None else dtype}
        self._tensor("weight", ones(num_channels, **own) if affine else None)
        self._tensor("bias", zeros(num_channels, **own) if affine else None)

    def forward(self, x: Tensor) -> Tensor:
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
