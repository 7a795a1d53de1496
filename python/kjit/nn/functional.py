"""Operations of neural networks with PyTorch's names. Inference only, without gradients.

Shapes are torch's: (n, channels, …) for convolutions and pools, (…, rows, width) for attention.
Dtypes are floats, and results have the dtype of the input; float16 and bfloat16 are computed in
float32 and rounded.

Raises ``ValueError`` for shapes that do not match, ``TypeError`` for integers,
``NotImplementedError`` for options of torch that are not supported.

    >>> F = kjit.nn.functional
    >>> F.linear(kjit.ones((8, 784)), kjit.ones((10, 784))).shape
    (8, 10)
    >>> F.conv2d(kjit.ones((1, 3, 32, 32)), kjit.ones((16, 3, 3, 3)), padding=1).shape
    (1, 16, 32, 32)
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from .. import _kjit
from .._kjit import Tensor

Sizes = int | Sequence[int]


def _list(value: Sizes, n: int) -> list[int]:
    return [value] * n if isinstance(value, int) else list(value)


def relu(x: Tensor) -> Tensor:
    """max(x, 0), of any shape."""
    return _kjit.activation("relu", x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), of any shape."""
    return _kjit.activation("sigmoid", x)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), of any shape."""
    return _kjit.activation("silu", x)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent, of any shape."""
    return _kjit.unary("tanh", x)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the normal distribution function at x; ``approximate="tanh"`` as in torch."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate '{approximate}' is not valid; use none or tanh")
    return _kjit.activation("gelu_tanh" if approximate == "tanh" else "gelu", x)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) over an axis."""
    return _kjit.softmax(x, dim, False)


def log_softmax(x: Tensor, dim: int = -1) -> Tensor:
    """log(softmax(x)), without overflow."""
    return _kjit.softmax(x, dim, True)


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x if x > 0, otherwise ``negative_slope`` · x, of any shape."""
    return _kjit.where_(x > 0.0, x, x * negative_slope)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x if x > 0, otherwise ``alpha`` · (exp(x) - 1), of any shape."""
    return _kjit.where_(x > 0.0, x, _kjit.unary("expm1", x) * alpha)


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta · x)) / beta; x if beta · x is above ``threshold``."""
    far = x * beta
    near = _kjit.unary("log1p", _kjit.unary("exp", _kjit.clip(far, None, threshold))) / beta
    return _kjit.where_(far > threshold, x, near)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Merges the axes from ``start_dim`` to ``end_dim`` into one."""
    first, last = start_dim % max(x.ndim, 1), end_dim % max(x.ndim, 1)
    if x.ndim == 0:
        return _kjit.reshape(x, [1])
    if last < first:
        raise ValueError(f"flatten: from axis {start_dim} to {end_dim} of {x.shape}")
    shape = x.shape
    one = 1
    for n in shape[first : last + 1]:
        one *= n
    return _kjit.reshape(x, [*shape[:first], one, *shape[last + 1 :]])


def dropout(x: Tensor, p: float = 0.5, training: builtins.bool = False) -> Tensor:
    """Returns x, because dropout has no effect in inference. Raises for ``training=True``."""
    if training:
        raise NotImplementedError("dropout: kjit is for inference only")
    return x


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(…, in) with a weight (out, in) → (…, out)."""
    return _kjit.linear(x, weight, bias)


def embedding(input: Tensor, weight: Tensor) -> Tensor:
    """Gathers rows of a table (rows, width) by integer indices of any shape → (…, width)."""
    return _kjit.embedding(input, weight)


def layer_norm(
    x: Tensor,
    normalized_shape: Sizes,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean 0, variance 1 over the last axes, of sizes ``normalized_shape``."""
    return _kjit.norm(x, _list(normalized_shape, 1), weight, bias, eps, False)


def rms_norm(
    x: Tensor, normalized_shape: Sizes, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / sqrt(mean(x**2) + eps) over the last axes; the default eps is the dtype's."""
    if eps is None:
        from .._dtypes import finfo

        eps = finfo(x.dtype).eps
    return _kjit.norm(x, _list(normalized_shape, 1), weight, None, eps, True)


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(n, channels, …): mean 0, variance 1 in each group of channels."""
    return _kjit.group_norm(x, num_groups, weight, bias, eps)


def batch_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: builtins.bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalises (n, channels, …) by the given mean and variance (channels,)."""
    if training:
        raise NotImplementedError("batch_norm: kjit is for inference only")
    return _kjit.batch_norm(x, running_mean, running_var, weight, bias, eps)


def _conv(
    n: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes | str,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    if x.ndim == n + 1:
        out = _conv(n, _kjit.expand_dims(x, 0), weight, bias, stride, padding, dilation, groups)
        return _kjit.squeeze(out, 0)
    if x.ndim != n + 2:
        raise ValueError(f"conv{n}d needs a tensor of {n + 2} or {n + 1} axes, got shape {x.shape}")
    steps, wide = _list(stride, n), _list(dilation, n)
    if padding == "same":
        if any(s != 1 for s in steps):
            raise ValueError("conv: padding 'same' needs stride 1")
        reach = [d * (k - 1) for d, k in zip(wide, weight.shape[2:])]
        x = _kjit.pad(x, [(0, 0), (0, 0)] + [(r // 2, r - r // 2) for r in reach], 0)
        padding = 0
    elif padding == "valid":
        padding = 0
    if isinstance(padding, str):
        raise ValueError(f"conv: padding '{padding}' is not valid; use same, valid or sizes")
    return _kjit.conv(x, weight, bias, (steps, _list(padding, n), wide), groups)


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """(n, c, w) with a weight (out, c / groups, kw) → (n, out, w')."""
    return _conv(1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """(n, c, h, w) with a weight (out, c / groups, kh, kw) → (n, out, h', w')."""
    return _conv(2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """(n, c, d, h, w) with a weight (out, c / groups, kd, kh, kw) → (n, out, d', h', w')."""
    return _conv(3, x, weight, bias, stride, padding, dilation, groups)


def _conv_transpose(n: int, x: Tensor, weight: Tensor, bias: Any, *rest: Any) -> Tensor:
    stride, padding, output_padding, groups, dilation = rest
    lists = (_list(stride, n), _list(padding, n), _list(dilation, n))
    return _kjit.conv_transpose(x, weight, bias, lists, _list(output_padding, n), groups)


def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """(n, c, w) with a weight (c, out / groups, kw) → (n, out, w')."""
    return _conv_transpose(
        1, x, weight, bias, stride, padding, output_padding, groups, dilation
    )


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """(n, c, h, w) with a weight (c, out / groups, kh, kw) → (n, out, h', w')."""
    return _conv_transpose(
        2, x, weight, bias, stride, padding, output_padding, groups, dilation
    )


def _pool_lists(
    n: int, kernel: Sizes, stride: Sizes | None, padding: Sizes, dilation: Sizes = 1
) -> tuple[list[int], tuple[list[int], list[int], list[int]]]:
    sizes = _list(kernel, n)
    steps = sizes if stride is None else _list(stride, n)
    return sizes, (steps, _list(padding, n), _list(dilation, n))


def max_pool1d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> Tensor:
    """The greatest element of each window of (…, w)."""
    return _kjit.max_pool(x, *_pool_lists(1, kernel_size, stride, padding, dilation))


def max_pool2d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> Tensor:
    """The greatest element of each window of (…, h, w)."""
    return _kjit.max_pool(x, *_pool_lists(2, kernel_size, stride, padding, dilation))


def max_pool3d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> Tensor:
    """The greatest element of each window of (…, d, h, w)."""
    return _kjit.max_pool(x, *_pool_lists(3, kernel_size, stride, padding, dilation))


def avg_pool1d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    count_include_pad: builtins.bool = True,
) -> Tensor:
    """The mean of each window of (…, w)."""
    lists = _pool_lists(1, kernel_size, stride, padding)
    return _kjit.avg_pool(x, *lists, count_include_pad)


def avg_pool2d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    count_include_pad: builtins.bool = True,
) -> Tensor:
    """The mean of each window of (…, h, w)."""
    lists = _pool_lists(2, kernel_size, stride, padding)
    return _kjit.avg_pool(x, *lists, count_include_pad)


def avg_pool3d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    count_include_pad: builtins.bool = True,
) -> Tensor:
    """The mean of each window of (…, d, h, w)."""
    lists = _pool_lists(3, kernel_size, stride, padding)
    return _kjit.avg_pool(x, *lists, count_include_pad)


def adaptive_avg_pool2d(x: Tensor, output_size: Sizes) -> Tensor:
    """(…, h, w) averaged to (…, *output_size)."""
    return _kjit.adaptive_avg_pool(x, _list(output_size, 2))


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: builtins.bool = False,
    scale: float | None = None,
    enable_gqa: builtins.bool = False,
    *,
    window: tuple[int | None, int | None] | None = None,
) -> Tensor:
    """softmax(query keyᵀ * scale + mask) value, of (…, rows, width); a bool mask selects.

    ``window=(left, right)``: row i sees keys i - left … i + right, ``None`` for no end; with
    ``is_causal`` no key after i. A row that sees no key is NaN. ``enable_gqa``: (…, heads, rows,
    width), of which key and value have fewer heads, each for several neighbouring heads of the query.
    """
    op = "scaled_dot_product_attention"
    if dropout_p:
        raise NotImplementedError(f"{op}: kjit is for inference only")
    left, right = window or (None, None)
    for name, end in (("left", left), ("right", right)):
        if end is not None and not 0 <= end < 1 << 31:
            raise ValueError(f"{op}: the window's {name} is {end}; it is from 0 to 2147483647, or None")
    bounds = (left, 0 if is_causal else right)
    if not enable_gqa or query.ndim < 3 or key.ndim < 3 or query.shape[-3] == key.shape[-3]:
        return _kjit.attention(query, key, value, attn_mask, bounds, scale)
    heads, groups = query.shape[-3], key.shape[-3]
    if value.ndim < 3 or value.shape[-3] != groups or groups == 0 or heads % groups:
        raise ValueError(f"{op}: {heads} heads of the query cannot share {groups} of key and value")

    def apart(x: Tensor, heads: int, each: int) -> Tensor:
        return _kjit.reshape(x, (*x.shape[:-3], heads, each, *x.shape[-2:]))

    each = heads // groups
    mask = attn_mask
    if mask is not None and mask.ndim >= 3:
        mask = apart(mask, 1, 1) if mask.shape[-3] == 1 else apart(mask, groups, each)
    out = _kjit.attention(
        apart(query, groups, each), apart(key, groups, 1), apart(value, groups, 1), mask, bounds, scale
    )
    return _kjit.reshape(out, (*out.shape[:-4], heads, *out.shape[-2:]))


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(input - target)**2; reduction ``mean``, ``sum`` or ``none``."""
    return _kjit.pair_loss("mse", input, target, reduction)


def binary_cross_entropy(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """-(t log p + (1 - t) log(1 - p)) of probabilities p and targets t."""
    return _kjit.pair_loss("bce", input, target, reduction)


bce_loss = binary_cross_entropy


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """-input at the target class, of log-probabilities (n, classes, …)."""
    return _kjit.class_loss(False, input, target, weight, ignore_index, reduction)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """The loss of scores (n, classes, …). Targets are integer classes or class probabilities."""
    return _kjit.class_loss(True, input, target, weight, ignore_index, reduction)
