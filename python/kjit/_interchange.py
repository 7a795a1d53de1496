"""Other libraries' arrays and files: NumPy, buffers, ``.npy``. NumPy is imported when used."""

from __future__ import annotations

import ast
import struct
from typing import Any

from . import _kjit
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
    """A copy, on the CPU, of what has a buffer or DLPack; none of what has neither."""
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
    return _kjit.from_bytes(view.tobytes(), name, list(view.shape), "cpu")


def to_numpy(x: Tensor) -> Any:
    """A copy of a tensor's elements as a NumPy array; bfloat16 as float32."""
    import numpy

    if x.dtype == _kjit.bfloat16:
        x = _kjit.astype(x, _kjit.float32, True)
    return numpy.frombuffer(bytearray(x.tobytes()), dtype=x.dtype.name).reshape(x.shape)


def rebuild(data: bytes, dtype: str, shape: list[int], device: str) -> Tensor:
    """A tensor of what ``reduce`` took apart."""
    return _kjit.from_bytes(data, dtype, shape, device)


def reduce(x: Tensor) -> tuple[Any, ...]:
    """What pickle keeps of a tensor."""
    return rebuild, (x.tobytes(), x.dtype.name, list(x.shape), x.device)


_NPY = {"b1": "bool", "c8": "complex64", "c16": "complex128"}
_NPY |= {f"i{n}": f"int{n * 8}" for n in (1, 2, 4, 8)}
_NPY |= {f"u{n}": f"uint{n * 8}" for n in (1, 2, 4, 8)}
_NPY |= {f"f{n}": f"float{n * 8}" for n in (2, 4, 8)}


def save(file: Any, x: Tensor) -> None:
    """Writes a ``.npy`` file (version 1), little-endian and row-major. No bfloat16."""
    word = next((k for k, name in _NPY.items() if name == x.dtype.name), None)
    if word is None:
        raise TypeError(f"save: .npy has no {x.dtype.name}; astype(kjit.float32) first")
    order = "|" if x.dtype.itemsize == 1 else "<"
    head = repr({"descr": order + word, "fortran_order": False, "shape": x.shape})
    # The length of magic, version, length and header is a multiple of 64 bytes.
    head += " " * (-(len(head) + 11) % 64) + "\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode("latin1")
    if hasattr(file, "write"):
        file.write(data + x.tobytes())
        return
    with open(file, "wb") as out:
        out.write(data + x.tobytes())


def load(file: Any, *, device: str | None = None) -> Tensor:
    """Reads a ``.npy`` file of versions 1 to 3. Pickled objects are refused."""
    if hasattr(file, "read"):
        return _read(file, device)
    with open(file, "rb") as opened:
        return _read(opened, device)


def _read(file: Any, device: str | None) -> Tensor:
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY" or len(magic) < 8 or magic[6] not in (1, 2, 3):
        raise ValueError("load: this is no .npy file of versions 1 to 3")
    size = 2 if magic[6] == 1 else 4
    length = int.from_bytes(file.read(size), "little")
    if length > 1 << 20:
        raise ValueError(f"load: a .npy header of {length} bytes")
    try:
        head = ast.literal_eval(file.read(length).decode("utf-8"))
        word, turned, shape = head["descr"], head["fortran_order"], tuple(head["shape"])
    except (ValueError, SyntaxError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"load: the .npy header cannot be read: {error}") from None
    if not isinstance(word, str) or word[:1] not in "<|=" or word[1:] not in _NPY:
        raise TypeError(f"load: kjit has no dtype for '{word}'")
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"load: the .npy header has the shape {shape}")
    wide = list(reversed(shape)) if turned else list(shape)
    x = _kjit.from_bytes(file.read(), _NPY[word[1:]], wide, device)
    return _kjit.permute(x, list(reversed(range(len(shape))))) if turned else x
