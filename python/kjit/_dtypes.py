"""Dtypes: limits, promotion and kinds."""

from __future__ import annotations

import builtins
from typing import Any, NamedTuple

from . import _kjit
from ._kjit import (
    Tensor,
    bfloat16,
    bool,
    complex64,
    complex128,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)

_SIGNED = (int8, int16, int32, int64)
_UNSIGNED = (uint8, uint16, uint32, uint64)
_REAL = (float32, float64)
_COMPLEX = (complex64, complex128)
_EXTRA = (float16, bfloat16)
_KINDS = {
    "bool": (bool,),
    "signed integer": _SIGNED,
    "unsigned integer": _UNSIGNED,
    "integral": _SIGNED + _UNSIGNED,
    "real floating": _REAL + _EXTRA,
    "complex floating": _COMPLEX,
    "numeric": _SIGNED + _UNSIGNED + _REAL + _EXTRA + _COMPLEX,
}


class finfo_object(NamedTuple):
    """Limits of a floating-point dtype; of a complex dtype the limits of its real dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Any


class iinfo_object(NamedTuple):
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: Any


_FLOATS = {
    "float16": (16, 2.0**-10, 65504.0, 2.0**-14),
    "bfloat16": (16, 2.0**-7, (2 - 2.0**-7) * 2.0**127, 2.0**-126),
    "float32": (32, 2.0**-23, (2 - 2.0**-23) * 2.0**127, 2.0**-126),
    "float64": (64, 2.0**-52, (2 - 2.0**-52) * 2.0**1023, 2.0**-1022),
}


def _dtype_of(x: Any) -> Any:
    return x.dtype if isinstance(x, Tensor) else _kjit.dtype(x)


def finfo(type: Any, /) -> finfo_object:
    """Limits of a floating-point dtype, or of a tensor's dtype."""
    own = _dtype_of(type)
    part = {"complex64": float32, "complex128": float64}.get(own.name, own)
    if part.name not in _FLOATS:
        raise TypeError(f"finfo takes a floating-point dtype, got {own.name}")
    bits, eps, most, smallest = _FLOATS[part.name]
    return finfo_object(bits, eps, most, -most, smallest, part)


def iinfo(type: Any, /) -> iinfo_object:
    """Limits of an integer dtype, or of a tensor's dtype."""
    own = _dtype_of(type)
    bits = own.itemsize * 8
    if own in _SIGNED:
        return iinfo_object(bits, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), own)
    if own in _UNSIGNED:
        return iinfo_object(bits, 2**bits - 1, 0, own)
    raise TypeError(f"iinfo takes an integer dtype, got {own.name}")


def isdtype(dtype: Any, kind: Any) -> builtins.bool:
    """Whether a dtype equals ``kind``, or has that kind: ``"integral"``, or a tuple of kinds."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ValueError(f"isdtype: kind '{kind}' is not valid; use {', '.join(_KINDS)}")
        return dtype in _KINDS[kind]
    return builtins.bool(dtype == kind)


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The common dtype of these tensors and dtypes by promotion."""
    dtypes: list[Any] = []
    numbers: list[Any] = []
    for x in arrays_and_dtypes:
        number = isinstance(x, (int, float, complex)) and not isinstance(x, Tensor)
        (numbers if number else dtypes).append(x)
    if not dtypes:
        raise ValueError("result_type takes one tensor or dtype at least")
    out = _dtype_of(dtypes[0])
    for other in dtypes[1:]:
        out = _kjit.promote(out, _dtype_of(other))
    for x in numbers:
        one = _kjit.full((), 0, out, "cpu")
        out = _kjit.where_(_kjit.full((), True, None, "cpu"), one, x).dtype
    return out


def can_cast(from_: Any, to: Any, /) -> builtins.bool:
    """Whether promotion can convert the first dtype to the second."""
    try:
        return builtins.bool(_kjit.promote(_dtype_of(from_), _dtype_of(to)) == _dtype_of(to))
    except TypeError:
        return False


def astype(
    x: Tensor, dtype: Any, /, *, copy: builtins.bool = True, device: str | None = None
) -> Tensor:
    """Casts to a dtype. Floats are truncated toward zero to integers and limited to their range."""
    out = _kjit.astype(x, dtype, copy)
    return out if device is None else out.to_device(device)


__all__ = ["astype", "can_cast", "finfo", "iinfo", "isdtype", "result_type", "dtype"]
