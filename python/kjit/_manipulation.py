"""Manipulation, indexing and linear algebra of the array API.

Results keep the dtype; several tensors are promoted to a common one. A *view* shares memory.

Raises ``ValueError`` for shapes that do not match, ``IndexError`` for an axis that does not exist
or an index out of range (on GPUs at the next synchronisation), ``TypeError`` for a wrong dtype.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from . import _kjit
from ._kjit import Tensor
from ._elementwise import Operand


def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """Broadcasts all tensors to their common shape."""
    shape = broadcast_shapes(*(a.shape for a in arrays))
    return tuple(_kjit.broadcast_to(a, shape) for a in arrays)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape of these shapes after broadcasting."""
    return _kjit.broadcast_shapes([list(s) for s in shapes])


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """Broadcasts x to a shape; a view."""
    return _kjit.broadcast_to(x, shape)


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Concatenates tensors along an axis; with ``None`` they are flattened first.

    The other axes must have equal sizes: ``ValueError``.

    >>> kjit.concat([kjit.zeros((2, 3)), kjit.ones((1, 3))]).shape
    (3, 3)
    """
    if axis is None:
        return _kjit.concat([_kjit.reshape(a, [-1]) for a in arrays], 0, False)
    return _kjit.concat(list(arrays), axis, False)


def expand_dims(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """Adds axes of size 1 at these positions of the result; a view."""
    return _kjit.expand_dims(x, axis)


def flip(x: Tensor, /, *, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """Reverses these axes, or all; a view."""
    return _kjit.flip(x, axis)


def moveaxis(
    x: Tensor, source: int | tuple[int, ...], destination: int | tuple[int, ...], /
) -> Tensor:
    """Moves axes from ``source`` to ``destination``; the other axes keep their order; a view."""
    return _kjit.moveaxis(x, source, destination)


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """Permutes the axes; a view."""
    return _kjit.permute(x, list(axes))


def repeat(x: Tensor, repeats: int | Tensor, /, *, axis: int | None = None) -> Tensor:
    """Repeats each element; without an axis the tensor is flattened first."""
    if axis is None:
        x, axis = _kjit.reshape(x, [-1]), 0
    times = repeats.tolist() if isinstance(repeats, Tensor) else repeats
    return _kjit.repeat(x, times if isinstance(times, list) else [times], axis)


def reshape(
    x: Tensor, /, shape: tuple[int, ...], *, copy: builtins.bool | None = None
) -> Tensor:
    """The elements in row-major order with a different shape. One size may be -1.

    A view if possible, otherwise a copy. ``copy=False`` raises instead; ``copy=True`` always
    copies.

    >>> kjit.reshape(kjit.arange(6), (2, -1)).shape
    (2, 3)
    """
    out = _kjit.reshape(x, [shape] if isinstance(shape, int) else list(shape))
    return _kjit.copy(out) if copy else out


def roll(
    x: Tensor,
    /,
    shift: int | tuple[int, ...],
    *,
    axis: int | tuple[int, ...] | None = None,
) -> Tensor:
    """Rotates axes: the last elements move to the front. Without an axis the flattened tensor."""
    if axis is None:
        shift = sum(shift) if isinstance(shift, tuple) else shift
        return _kjit.reshape(_kjit.roll(_kjit.reshape(x, [-1]), shift, 0), list(x.shape))
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise ValueError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for s, a in zip(shifts, axes):
        x = _kjit.roll(x, s, a)
    return x


def squeeze(x: Tensor, /, axis: int | tuple[int, ...]) -> Tensor:
    """Removes these axes of size 1; a view."""
    return _kjit.squeeze(x, axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Joins tensors of one shape along a new axis.

    >>> kjit.stack([kjit.zeros((2, 3))] * 4, axis=1).shape
    (2, 4, 3)
    """
    return _kjit.concat(list(arrays), axis, True)


def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """Repeats the whole tensor along each axis."""
    return _kjit.tile(x, list(repetitions))


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Splits an axis into its slices; views."""
    return _kjit.unstack(x, axis)


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Gathers slices of an axis by integer indices of shape (n,). The axis gets size n.

    >>> kjit.take(kjit.asarray([10, 20, 30]), kjit.asarray([2, 0]), axis=0).tolist()
    [30, 10]
    """
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"take: axis is required for {x.ndim} dimensions")
        axis = 0
    return _kjit.take(x, indices, axis, False)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """``x[i, indices[i, j]]`` for the last axis, and so on; other axes broadcast."""
    return _kjit.take(x, indices, axis, True)


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """(…, m, k) × (…, k, n) → (…, m, n); a vector is a row (left) or a column (right).

    Leading axes broadcast. On GPUs float16, bfloat16 and float32 are summed in float32.

    >>> kjit.matmul(kjit.ones((5, 2, 3)), kjit.ones((3, 4))).shape
    (5, 2, 4)
    """
    return _kjit.product("matmul", x1, x2, -1)


def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes swapped; a view."""
    return _kjit.matrix_transpose(x)


def tensordot(
    x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """Sum of products over the last axes of x1 and the first axes of x2, or over given axes."""
    if isinstance(axes, int):
        if axes < 0 or axes > min(x1.ndim, x2.ndim):
            raise ValueError(f"tensordot: {axes} axes of {x1.shape} and {x2.shape}")
        axes = (list(range(x1.ndim - axes, x1.ndim)), list(range(axes)))
    return _kjit.tensordot(x1, x2, list(axes[0]), list(axes[1]))


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Sum of conj(x1) * x2 over an axis of each."""
    return _kjit.product("vecdot", x1, x2, axis)


def where(condition: Tensor, x1: Operand, x2: Operand, /) -> Tensor:
    """Elements of x1 if the condition (bool) is true, otherwise of x2. All three broadcast.

    >>> kjit.where(kjit.asarray([True, False]), 1.0, kjit.asarray([5.0, 6.0])).tolist()
    [1.0, 6.0]
    """
    return _kjit.where_(condition, x1, x2)


def scatter_add(x: Tensor, axis: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy of x with ``src`` added along an axis at ``index``, which has the shape of ``src``.

    The values of an index are added in order, so results do not change from run to run.

    >>> ids = kjit.asarray([0, 2, 2])
    >>> kjit.scatter_add(kjit.zeros((3,)), 0, ids, kjit.ones((3,))).tolist()
    [1.0, 0.0, 2.0]
    """
    return _kjit.scatter(x, axis, index, src, True)


def scatter(x: Tensor, axis: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy of x with ``src`` written along an axis at ``index``; the last write wins."""
    return _kjit.scatter(x, axis, index, src, False)


def gather(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """``x[index[i, j], j]`` for axis 0, and so on: torch's name for ``take_along_axis``."""
    return _kjit.take(x, index, axis, True)


def pad(x: Tensor, pairs: Sequence[tuple[int, int]], value: Any = 0) -> Tensor:
    """Pads each axis with ``value``: a pair of widths (before, after) for each axis.

    >>> kjit.pad(kjit.ones((2, 2)), [(0, 1), (2, 0)]).shape
    (3, 4)
    """
    return _kjit.pad(x, list(pairs), value)


def transpose(x: Tensor, axis0: int, axis1: int) -> Tensor:
    """Two axes swapped; a view."""
    order = list(range(x.ndim))
    order[axis0], order[axis1] = order[axis1], order[axis0]
    return _kjit.permute(x, order)
