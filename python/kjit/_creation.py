"""Creation functions of the array API, and random numbers.

``device`` is a name: ``cpu``, ``cuda:0``, ``rocm:1``; without one ``kjit.get_device()``. The
default dtypes are float32, int64 and complex64.
"""

from __future__ import annotations

import builtins
from typing import Any

from . import _kjit
from ._kjit import Tensor

Shape = int | tuple[int, ...]
Number = bool | int | float | complex


def arange(
    start: int | float,
    /,
    stop: int | float | None = None,
    step: int | float = 1,
    *,
    dtype: Any = None,
    device: str | None = None,
) -> Tensor:
    """``start``, ``start + step``, … before ``stop``: shape (n,). One argument is ``stop``."""
    if stop is None:
        start, stop = 0, start
    return _kjit.arange(start, stop, step, dtype, device)


def asarray(
    obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: builtins.bool | None = None
) -> Tensor:
    """Converts a tensor, number, nested list, NumPy array, or object with DLPack or a buffer.

    Memory of other libraries is copied. ``copy=False`` raises ``ValueError`` if a copy is needed;
    lists of different lengths raise ``ValueError``, unsupported dtypes ``TypeError``. Without
    ``dtype`` floats become float32, integers int64.

    >>> kjit.asarray([[1, 2], [3, 4]]).shape
    (2, 2)
    """
    from ._interchange import from_foreign

    if isinstance(obj, Tensor):
        same = dtype is None or obj.dtype == _kjit.dtype(dtype)
        out = obj if same else _kjit.astype(obj, dtype, True)
        out = out if device in (None, obj.device) else out.to_device(device)
        if copy is False and out is not obj:
            raise ValueError("asarray: a different dtype or device needs a copy")
        return _kjit.copy(out) if copy else out
    if copy is False:
        raise ValueError("asarray: copy=False needs a kjit.Tensor")
    foreign = from_foreign(obj)
    if foreign is None:
        if isinstance(obj, (list, tuple)):
            obj = _plain(obj)
        return _kjit.from_list(obj, dtype, device)
    if dtype is not None:
        foreign = _kjit.astype(foreign, dtype, True)
    return foreign.to_device(device or _kjit.get_device())


def _plain(values: Any) -> Any:
    """Converts sequences to lists, and tensors inside them to numbers or lists."""
    if isinstance(values, (list, tuple)):
        return [_plain(v) for v in values]
    if isinstance(values, Tensor) or hasattr(values, "tolist"):
        return values.tolist()
    return values


def empty(shape: Shape, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor of zeros. The memory is always cleared."""
    return zeros(shape, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Zeros in the shape of ``x``."""
    return zeros_like(x, dtype=dtype, device=device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: Any = None,
    device: str | None = None,
) -> Tensor:
    """Ones on the ``k``-th diagonal: shape (n_rows, n_cols)."""
    columns = n_rows if n_cols is None else n_cols
    k = _inside(k, n_rows, columns)
    return _kjit.eye(n_rows, columns, k, dtype or _kjit.float32, device)


def _inside(k: int, *sizes: int) -> int:
    """The number of a diagonal, clamped to the first diagonal outside the matrix."""
    most = sum(sizes) + 1
    return max(-most, min(k, most))


def from_dlpack(
    x: Any, /, *, device: str | None = None, copy: builtins.bool | None = None
) -> Tensor:
    """Converts an array of another library. ``copy=False`` shares its memory.

    Memory stays on its device unless ``device`` names a different one. Shared memory must not be
    written afterwards, because kjit assumes constant values. ``copy=False`` raises ``ValueError``
    if a copy is needed.
    """
    return _kjit.from_dlpack(x, device, copy)


def full(
    shape: Shape, fill_value: Number, *, dtype: Any = None, device: str | None = None
) -> Tensor:
    """A tensor with ``fill_value`` in every element."""
    return _kjit.full(shape, fill_value, dtype, device)


def full_like(
    x: Tensor, /, fill_value: Number, *, dtype: Any = None, device: str | None = None
) -> Tensor:
    """A tensor with ``fill_value`` in every element, in the shape of ``x``."""
    return _kjit.full(x.shape, fill_value, dtype or x.dtype, device or x.device)


def linspace(
    start: int | float | complex,
    stop: int | float | complex,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: str | None = None,
    endpoint: builtins.bool = True,
) -> Tensor:
    """``num`` evenly spaced values from ``start`` to ``stop``: shape (num,)."""
    return _kjit.linspace(start, stop, num, dtype, device, endpoint)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Coordinate grids of vectors, of shape (len(a), len(b), …), for "xy" (len(b), len(a), …)."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing '{indexing}' is not valid; use xy or ij")
    if any(a.ndim != 1 for a in arrays):
        raise ValueError("meshgrid needs tensors with one axis")
    if any(a.dtype != arrays[0].dtype for a in arrays):
        raise ValueError("meshgrid: the tensors have different dtypes")
    order = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        order[0], order[1] = 1, 0
    shape = [0] * len(arrays)
    for a, axis in zip(arrays, order):
        shape[axis] = a.shape[0]
    out = []
    for a, axis in zip(arrays, order):
        own = [1] * len(arrays)
        own[axis] = a.shape[0]
        out.append(_kjit.broadcast_to(_kjit.reshape(a, own), tuple(shape)))
    return tuple(out)


def ones(shape: Shape, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor of ones."""
    return _kjit.full(shape, 1, dtype or _kjit.float32, device)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Ones in the shape of ``x``."""
    return full_like(x, 1, dtype=dtype, device=device)


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Sets the elements above the ``k``-th diagonal of (…, rows, columns) to zero."""
    return _kjit.triangle(x, False, _inside(k, *x.shape[-2:]))


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Sets the elements below the ``k``-th diagonal of (…, rows, columns) to zero."""
    return _kjit.triangle(x, True, _inside(k, *x.shape[-2:]))


def zeros(shape: Shape, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor of zeros."""
    return _kjit.full(shape, 0, dtype or _kjit.float32, device)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Zeros in the shape of ``x``."""
    return full_like(x, 0, dtype=dtype, device=device)


def manual_seed(seed: int) -> None:
    """Seeds the random numbers. A seed gives the same numbers on every device."""
    _kjit.manual_seed(seed)


def _sizes(shape: tuple[Any, ...]) -> Any:
    return shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape


def rand(*shape: Any, dtype: Any = None, device: str | None = None) -> Tensor:
    """Uniform random numbers in [0, 1), float32 by default.

    >>> kjit.rand(2, 3).shape
    (2, 3)
    """
    return _kjit.random("rand", _sizes(shape), dtype or _kjit.float32, device)


def randn(*shape: Any, dtype: Any = None, device: str | None = None) -> Tensor:
    """Normal random numbers with mean 0 and standard deviation 1."""
    return _kjit.random("randn", _sizes(shape), dtype or _kjit.float32, device)


def randint(
    low: int,
    high: int | None = None,
    size: Shape = (),
    *,
    dtype: Any = None,
    device: str | None = None,
) -> Tensor:
    """Random integers in [low, high), int64 by default; with one argument in [0, low)."""
    if high is None:
        low, high = 0, low
    return _kjit.random("randint", size, dtype or _kjit.int64, device, low, high)
