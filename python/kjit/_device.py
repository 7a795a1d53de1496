"""Devices by name, and the capabilities of the namespace."""

from __future__ import annotations

import builtins
import os
from typing import Any

from . import _dtypes, _kjit

_kjit.use_worker(os.environ.get("KJIT_CC", os.path.join(os.path.dirname(__file__), "kjit-cc")))


def set_device(device: str) -> None:
    """Sets the default device of new tensors: ``cpu``, ``cuda``, ``cuda:0``, ``rocm:1``.

    Raises ``ValueError`` or ``RuntimeError`` if the device does not exist or cannot be used: the
    CPU never replaces a GPU.
    """
    _kjit.set_device(device)


def get_device() -> str:
    """The default device of new tensors."""
    return _kjit.get_device()


def device_info(device: str | None = None) -> dict[str, Any]:
    """A dict: device, name, architecture, total_memory (bytes; 0 if unknown), compute_units."""
    return _kjit.device_info(device)


def device_count(kind: str = "cuda") -> int:
    """Number of devices of a kind that this process sees: ``cuda``, ``rocm``, ``cpu``."""
    return _kjit.device_count(kind)


def is_available(kind: str = "cuda") -> builtins.bool:
    """Whether a device of a kind exists."""
    return _kjit.device_count(kind) > 0


def synchronize(device: str | None = None) -> None:
    """Waits for all work on a device; raises the errors of earlier kernels."""
    _kjit.synchronize(device)


def launches(device: str | None = None) -> int:
    """Kernels launched on a GPU so far."""
    return _kjit.launches(device)


def is_cuda_available() -> builtins.bool:
    """Whether an NVIDIA GPU exists."""
    return is_available("cuda")


def is_rocm_available() -> builtins.bool:
    """Whether an AMD GPU exists."""
    return is_available("rocm")


rocm_is_available = is_rocm_available


def rocm_device_count() -> int:
    """Number of AMD GPUs that this process sees."""
    return device_count("rocm")


def rocm_get_device_info(index: int = 0) -> dict[str, Any]:
    """Properties of an AMD GPU."""
    return device_info(f"rocm:{index}")


def get_device_type() -> str:
    """The kind of the default device: ``cpu``, ``cuda``, ``rocm``."""
    return get_device().split(":")[0]


def print_device_info(device: str | None = None) -> None:
    """Prints the properties of a device, one per line."""
    for name, value in device_info(device).items():
        print(f"{name}: {value}")


def to_device(x: Any, device: str) -> Any:
    """Copies a tensor to a device. A tensor that is already there is returned unchanged."""
    return x.to_device(device)


class _Info:
    """The result of ``__array_namespace_info__``."""

    def capabilities(self) -> dict[str, Any]:
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": None,
        }

    def default_device(self) -> str:
        return get_device()

    def default_dtypes(self, *, device: str | None = None) -> dict[str, Any]:
        return {
            "real floating": _kjit.float32,
            "complex floating": _kjit.complex64,
            "integral": _kjit.int64,
            "indexing": _kjit.int64,
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, Any]:
        standard = (
            _dtypes._KINDS["bool"]
            + _dtypes._KINDS["integral"]
            + _dtypes._REAL
            + _dtypes._COMPLEX
        )
        return {d.name: d for d in standard if kind is None or _dtypes.isdtype(d, kind)}

    def devices(self) -> tuple[str, ...]:
        return tuple(d["device"] for d in _kjit.devices())


def __array_namespace_info__() -> _Info:
    """Dtypes, devices and capabilities, as defined by the array API."""
    return _Info()
