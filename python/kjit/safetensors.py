"""Files of safetensors: tensors by name, with a JSON header that is checked. No pickle.

>>> import kjit
>>> data = kjit.safetensors.save({"w": kjit.ones((2, 2))})
>>> kjit.safetensors.load(data)["w"]
Tensor([[1.0, 1.0], [1.0, 1.0]], dtype=float32)
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from . import _kjit
from ._kjit import Tensor

_NAMES = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
_WORDS = {name: word for word, name in _NAMES.items()}

# The format's own bound.
_LONGEST_HEADER = 100_000_000


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name occurs twice in the header")
    return out


def _header(data: Any) -> tuple[dict[str, Any], int]:
    """The entries, and the offset of the tensors' bytes."""
    import json

    length = int.from_bytes(data[:8], "little") if len(data) >= 8 else -1
    if not 0 < length <= min(_LONGEST_HEADER, len(data) - 8):
        raise ValueError(f"safetensors: a header of {length} bytes in a file of {len(data)}")
    try:
        head = json.loads(bytes(data[8 : 8 + length]).decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"safetensors: the header cannot be read: {error}") from None
    if not isinstance(head, dict):
        raise ValueError("safetensors: the header is not a JSON object")
    return head, 8 + length


def _checked(name: str, entry: Any, room: int) -> tuple[str, list[int], int, int]:
    """dtype, shape, first and last byte of an entry, checked against the file."""
    try:
        word, shape = entry["dtype"], list(entry["shape"])
        first, last = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"safetensors: '{name}' needs dtype, shape and two data_offsets"
        ) from None
    if not isinstance(word, str) or word not in _NAMES:
        raise TypeError(f"safetensors: '{name}' has the dtype {word}; supported: {', '.join(_NAMES)}")
    if not all(type(n) is int and n >= 0 for n in [*shape, first, last]):
        raise ValueError(f"safetensors: '{name}' has the invalid shape {shape} or offsets {first} to {last}")
    size = math.prod(shape) * _kjit.dtype(_NAMES[word]).itemsize
    if not (first <= last <= room and last - first == size):
        raise ValueError(
            f"safetensors: '{name}' with dtype {word} and shape {tuple(shape)} needs {size} bytes, "
            f"not {first} to {last} of {room}"
        )
    return _NAMES[word], shape, first, last


def _tensors(data: Any, device: str | None) -> dict[str, Tensor]:
    head, start = _header(data)
    out = {}
    for name, entry in head.items():
        if name == "__metadata__":
            continue
        dtype, shape, first, last = _checked(name, entry, len(data) - start)
        part = bytes(data[start + first : start + last])
        out[name] = _kjit.from_bytes(part, dtype, shape, device)
    return out


def load(data: bytes, *, device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file's bytes, by name.

    Raises ``ValueError`` for a damaged header, ``TypeError`` for a dtype that kjit lacks (F8).
    """
    return _tensors(data, device)


def load_file(
    file: str | os.PathLike[str], *, device: str | None = None
) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file, by name; tensors are read one by one.

    Raises as ``load``.
    """
    import mmap

    with open(file, "rb") as opened:
        if os.fstat(opened.fileno()).st_size < 9:
            raise ValueError(f"safetensors: {os.fspath(file)} is too short for a header")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _tensors(data, device)


def metadata(file: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata (strings) of a file."""
    with open(file, "rb") as opened:
        head = opened.read(8)
        length = int.from_bytes(head, "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"safetensors: a header of {length} bytes")
        entries, _ = _header(head + opened.read(length))
    found = entries.get("__metadata__", {})
    return found if isinstance(found, dict) else {}


def save(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a file with these tensors. Raises ``TypeError`` for complex128."""
    import json

    head: dict[str, Any] = {}
    if metadata:
        head["__metadata__"] = dict(metadata)
    at, parts = 0, []
    # Larger elements come first, so that each tensor is aligned.
    for name in sorted(tensors, key=lambda n: (-tensors[n].dtype.itemsize, n)):
        x = tensors[name]
        if x.dtype.name not in _WORDS:
            raise TypeError(f"safetensors: '{name}' has the dtype {x.dtype.name}, which the format does not support")
        data = x.tobytes()
        head[name] = {
            "dtype": _WORDS[x.dtype.name],
            "shape": list(x.shape),
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
        parts.append(data)
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def save_file(
    tensors: Mapping[str, Tensor],
    file: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes tensors and metadata (strings) by name. Raises ``TypeError`` for complex128."""
    data = save(tensors, metadata)
    with open(file, "wb") as out:
        out.write(data)
