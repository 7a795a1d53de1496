"""Other libraries' arrays and files: NumPy, buffers, ``.npy``, ``.npz``. NumPy is imported when
used."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from typing import Any

from . import _kjit, safetensors
from ._kjit import Tensor

_FORMATS = {
    "?": "bool",
    "b": "int8",
    "h": "int16",
    "i": "int32",
    "q": "int64",
    "B": "uint8",
    "H": "uint16",
    "I": "uint32",
    "Q": "uint64",
    "e": "float16",
    "f": "float32",
    "d": "float64",
    "Zf": "complex64",
    "Zd": "complex128",
}
_SIZED = {"l": "int", "L": "uint", "n": "int", "N": "uint"}


def from_foreign(obj: Any) -> Tensor | None:
    """A CPU copy of an object with a buffer or DLPack; ``None`` for other objects."""
    if isinstance(obj, (int, float, complex, list, tuple)):
        return None
    try:
        view = memoryview(obj)
    except (TypeError, BufferError, ValueError):
        if hasattr(obj, "__dlpack__"):
            return _kjit.from_dlpack(obj, "cpu", True)
        if hasattr(obj, "__array__"):
            return from_foreign(obj.__array__())
        return None
    word = view.format.lstrip("@=<" if struct.pack("=H", 1) == struct.pack("<H", 1) else "@=>")
    name = _FORMATS.get(word)
    if word in _SIZED:
        name = f"{_SIZED[word]}{view.itemsize * 8}"
    if name is None:
        raise TypeError(f"asarray: kjit has no dtype for elements of format '{view.format}'")
    return _kjit.from_bytes(view.tobytes(), name, list(view.shape or ()), "cpu")


def to_numpy(x: Tensor) -> Any:
    """A copy of a tensor's elements as a NumPy array; bfloat16 as float32."""
    import numpy

    if x.dtype == _kjit.bfloat16:
        x = _kjit.astype(x, _kjit.float32, True)
    return numpy.frombuffer(bytearray(x.tobytes()), dtype=x.dtype.name).reshape(x.shape)


def rebuild(data: bytes, dtype: str, shape: list[int], device: str) -> Tensor:
    """Rebuilds a tensor from the result of ``reduce``."""
    return _kjit.from_bytes(data, dtype, shape, device)


def reduce(x: Tensor) -> tuple[Any, ...]:
    """The data of a tensor that pickle stores."""
    return rebuild, (x.tobytes(), x.dtype.name, list(x.shape), x.device)


_NPY = {"b1": "bool", "c8": "complex64", "c16": "complex128"}
_NPY |= {f"i{n}": f"int{n * 8}" for n in (1, 2, 4, 8)}
_NPY |= {f"u{n}": f"uint{n * 8}" for n in (1, 2, 4, 8)}
_NPY |= {f"f{n}": f"float{n * 8}" for n in (2, 4, 8)}


def _npy(x: Tensor) -> bytes:
    word = next((k for k, name in _NPY.items() if name == x.dtype.name), None)
    if word is None:
        raise TypeError(f"save: .npy does not support {x.dtype.name}; use astype(kjit.float32)")
    order = "|" if x.dtype.itemsize == 1 else "<"
    head = repr({"descr": order + word, "fortran_order": False, "shape": x.shape})
    # The length of magic, version, length and header is a multiple of 64 bytes.
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode("latin1") + x.tobytes()


def save(file: Any, x: Tensor | Mapping[str, Tensor]) -> None:
    """Writes a tensor as ``.npy`` (version 1, little-endian, row-major), or tensors by name as
    ``.npz`` or, if the name ends so, ``.safetensors``. ``file`` is a path or a binary file.

    ``.npy`` and ``.npz`` have no bfloat16, ``.safetensors`` no complex128: ``TypeError``.
    """
    if not isinstance(x, Tensor):
        if isinstance(file, (str, os.PathLike)) and os.fspath(file).endswith(".safetensors"):
            safetensors.save_file(x, file)
        else:
            savez(file, **x)
        return
    data = _npy(x)
    if hasattr(file, "write"):
        file.write(data)
        return
    with open(file, "wb") as out:
        out.write(data)


def savez(file: Any, *args: Tensor, **kwargs: Tensor) -> None:
    """Writes tensors as ``.npz``: by the names of keywords, and ``arr_0``, ``arr_1``, …"""
    _savez(file, args, kwargs, False)


def savez_compressed(file: Any, *args: Tensor, **kwargs: Tensor) -> None:
    """Like ``savez``, with compression."""
    _savez(file, args, kwargs, True)


def _savez(file: Any, args: Any, kwargs: Mapping[str, Tensor], small: bool) -> None:
    import zipfile

    named = {f"arr_{i}": x for i, x in enumerate(args)}
    both = named.keys() & kwargs.keys()
    if both:
        raise ValueError(f"savez: the name {min(both)} is given twice")
    named.update(kwargs)
    parts = {f"{name}.npy": _npy(x) for name, x in named.items()}
    way = zipfile.ZIP_DEFLATED if small else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", way) as out:
        for name, data in parts.items():
            out.writestr(name, data)


def load(file: Any, *, device: str | None = None) -> Any:
    """Reads a file by its beginning: a ``.npy`` of versions 1 to 3 as a tensor, an ``.npz`` or a
    ``.safetensors`` as a dict of tensors by name. Pickled objects are refused.

    Raises ``ValueError`` for damaged files, ``TypeError`` for dtypes that kjit lacks.
    """
    if hasattr(file, "read"):
        return _load(file, device, "load")
    with open(file, "rb") as opened:
        return _load(opened, device, f"load: {os.fspath(file)}")


def _load(file: Any, device: str | None, what: str) -> Any:
    begin = file.read(8)
    if begin[:4] == b"PK\x03\x04" or begin[:4] == b"PK\x05\x06":
        file.seek(-len(begin), 1)
        return _load_npz(file, device, what)
    if begin[:6] == b"\x93NUMPY":
        return _read(file, device, begin)
    if len(begin) == 8 and file.read(1) == b"{":
        file.seek(-9, 1)
        return safetensors.load(file.read(), device=device)
    raise ValueError(f"{what}: not a .npy, .npz or .safetensors file")


def _load_npz(file: Any, device: str | None, what: str) -> dict[str, Tensor]:
    import zipfile
    import zlib

    out = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                with archive.open(name) as part:
                    out[name.removesuffix(".npy")] = _read(part, device, part.read(8))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ValueError(f"{what}: the .npz cannot be read: {error}") from None
    return out


def _exactly(file: Any, count: int) -> bytes:
    """``count`` bytes; a header that promises more than the file has allocates nothing more."""
    parts, left = [], count
    while left > 0:
        part = file.read(min(left, 1 << 24))
        if not part:
            raise ValueError(f"load: the file is truncated; {left} bytes are missing")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _read(file: Any, device: str | None, magic: bytes) -> Tensor:
    if magic[:6] != b"\x93NUMPY" or len(magic) < 8 or magic[6] not in (1, 2, 3):
        raise ValueError("load: not a .npy file of version 1, 2 or 3")
    import ast

    size = 2 if magic[6] == 1 else 4
    length = int.from_bytes(_exactly(file, size), "little")
    if length > 1 << 20:
        raise ValueError(f"load: the .npy header has {length} bytes, which is too long")
    try:
        head = ast.literal_eval(_exactly(file, length).decode("utf-8"))
        word, turned, shape = head["descr"], head["fortran_order"], tuple(head["shape"])
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"load: the .npy header cannot be read: {error}") from None
    if not isinstance(word, str) or word[:1] not in "<|=" or word[1:] not in _NPY:
        raise TypeError(f"load: kjit has no dtype for '{word}'")
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"load: the .npy header has the invalid shape {shape}")
    wide = list(reversed(shape)) if turned else list(shape)
    count = math.prod(wide) * _kjit.dtype(_NPY[word[1:]]).itemsize
    x: Tensor = _kjit.from_bytes(_exactly(file, count), _NPY[word[1:]], wide, device)
    return _kjit.permute(x, list(reversed(range(len(shape))))) if turned else x
