"""Statistical, sorting, searching, set and utility functions of the array API.

``axis`` is an axis, a tuple of axes, or ``None`` for all. Reduced axes are removed, or with
``keepdims`` have size 1.

Raises ``IndexError`` for an axis that does not exist, ``TypeError`` for a dtype that a function
does not support, ``ValueError`` for the maximum or minimum of no elements.

    >>> kjit.sum(kjit.ones((2, 3)), axis=1, keepdims=True).shape
    (2, 1)
"""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple

from . import _kjit
from ._elementwise import Operand
from ._kjit import Tensor

Axes = int | tuple[int, ...] | None


def all(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Whether every element is nonzero; True for no elements."""
    return _kjit.reduce("all", x, axis, keepdims)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Whether any element is nonzero; False for no elements."""
    return _kjit.reduce("any", x, axis, keepdims)


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """Index of the first greatest element, or of the first NaN: int64."""
    return _kjit.arg_extreme(x, axis, keepdims, True)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: builtins.bool = False) -> Tensor:
    """Index of the first least element, or of the first NaN: int64."""
    return _kjit.arg_extreme(x, axis, keepdims, False)


def argsort(
    x: Tensor, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
) -> Tensor:
    """Indices that sort an axis, always stable; NaN last (first if descending): int64."""
    return _kjit.sort(x, axis, descending, True)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """Number of nonzero elements: int64."""
    return _kjit.reduce("count_nonzero", x, axis, keepdims)


def cumulative_prod(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: builtins.bool = False,
) -> Tensor:
    """Cumulative product along an axis."""
    return _kjit.cumulative(x, True, axis, dtype, include_initial)


def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: builtins.bool = False,
) -> Tensor:
    """Cumulative sum along an axis. Integers and bools are summed in 64 bits."""
    return _kjit.cumulative(x, False, axis, dtype, include_initial)


def diff(
    x: Tensor,
    /,
    *,
    axis: int = -1,
    n: int = 1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """Differences of neighbours along an axis, applied ``n`` times."""
    if n < 0:
        raise ValueError(f"diff: n must not be negative, got {n}")
    parts = [p for p in (prepend, x, append) if p is not None]
    return _kjit.diff(_kjit.concat(parts, axis, False) if len(parts) > 1 else x, axis, n)


def isin(x1: Operand, x2: Operand, /, *, invert: builtins.bool = False) -> Tensor:
    """Whether each element of x1 occurs in x2: bool, in the shape of x1."""
    return _kjit.isin(x1, x2, invert)


def max(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """The greatest element; NaN if any is NaN. Raises for no elements."""
    return _kjit.reduce("max", x, axis, keepdims)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """The mean; NaN for no elements. Integers are averaged in float32."""
    return _kjit.reduce("mean", x, axis, keepdims)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """The least element; NaN if any is NaN. Raises for no elements."""
    return _kjit.reduce("min", x, axis, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of nonzero elements, one tensor for each axis: int64."""
    return _kjit.nonzero(x)


def prod(
    x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: builtins.bool = False
) -> Tensor:
    """The product; 1 for no elements. Integers and bools are multiplied in 64 bits."""
    return _kjit.reduce("prod", x, axis, keepdims, dtype)


def searchsorted(
    x1: Tensor, x2: Operand, /, *, side: str = "left", sorter: Tensor | None = None
) -> Tensor:
    """Insertion index of each x2 in the sorted x1, before (right: after) equal elements: int64."""
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side '{side}' is not valid; use left or right")
    return _kjit.searchsorted(x1, x2, side == "right", sorter)


def sort(
    x: Tensor, /, *, axis: int = -1, descending: builtins.bool = False, stable: builtins.bool = True
) -> Tensor:
    """Sorts along an axis, always stable; NaN last (first if descending).

    >>> kjit.sort(kjit.asarray([3, 1, 2]), descending=True).tolist()
    [3, 2, 1]
    """
    return _kjit.sort(x, axis, descending, False)


def std(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: builtins.bool = False
) -> Tensor:
    """Square root of ``var``."""
    return _kjit.variance(x, axis, correction, keepdims, True)


def sum(
    x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: builtins.bool = False
) -> Tensor:
    """The sum; 0 for no elements. Integers and bools are summed in 64 bits.

    Floats are accumulated in float64 and rounded once to the dtype of x (or ``dtype``).
    """
    return _kjit.reduce("sum", x, axis, keepdims, dtype)


def var(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: builtins.bool = False
) -> Tensor:
    """Sum of squared distances from the mean, divided by n - ``correction``."""
    return _kjit.variance(x, axis, correction, keepdims, False)


def logsumexp(x: Tensor, /, *, axis: Axes = None, keepdims: builtins.bool = False) -> Tensor:
    """log(sum(exp(x))), without overflow."""
    return _kjit.reduce("logsumexp", x, axis, keepdims)


class UniqueAll(NamedTuple):
    """The result of ``unique_all``."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The result of ``unique_counts``."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The result of ``unique_inverse``."""

    values: Tensor
    inverse_indices: Tensor


def unique_all(x: Tensor, /) -> UniqueAll:
    """Sorted distinct values, first indices, inverse indices, counts. Each NaN is distinct."""
    return UniqueAll(*_kjit.unique(x))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Sorted distinct values, and the number of each."""
    values, _, _, counts = _kjit.unique(x)
    return UniqueCounts(values, counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Sorted distinct values, and the index of each element's value, in the shape of x."""
    values, _, inverse, _ = _kjit.unique(x)
    return UniqueInverse(values, inverse)


def unique_values(x: Tensor, /) -> Tensor:
    """Sorted distinct values."""
    return _kjit.unique(x)[0]
