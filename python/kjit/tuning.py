"""Tuning of tensor kernels on GPUs.

A product has several tilings; a table says which is used. With ``exhaustive(True)`` the first
product of each size and layout measures all of them, and the verdict is kept in the cache folder:
later processes use it without measuring. The CPU has nothing to tune.
"""

from __future__ import annotations

import builtins
import os
from typing import Any

from . import _kjit

__all__ = [
    "TuningCache", "exhaustive", "get_tuning_cache", "is_exhaustive", "set_cache_file", "verdicts",
]


def exhaustive(on: builtins.bool = True) -> None:
    """Turns measuring on or off; off at the start of a process. A measurement compiles each tiling
    and launches it some fifty times. Verdicts of earlier measurements are used in either case."""
    _kjit.tuning_exhaustive(on)


def is_exhaustive() -> builtins.bool:
    """Whether new products are measured."""
    return _kjit.tuning_is_exhaustive()


def set_cache_file(path: str | os.PathLike[str] | None) -> int:
    """Sets a text file of verdicts beside the cache folder: its verdicts come first, and those that
    are measured or used from now on are written to it. ``None`` sets none. Returns the number of
    verdicts in the file, 0 if it does not exist yet.

    Raises ``ValueError`` with the file and the line if a line is no verdict.
    """
    return _kjit.tuning_file(None if path is None else os.fspath(path))


def verdicts() -> list[dict[str, Any]]:
    """All verdicts of the file and the cache folder: device (``sm_90``), subject (dtype, batch ×
    rows × columns × depth, strides), choice, microseconds (of a launch, by candidate), refused
    (candidates that could not run, and why)."""
    return _kjit.tuning_verdicts()


class TuningCache:
    """The verdicts of a vendor's devices."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    def enable_exhaustive_search(self, on: builtins.bool = True) -> None:
        """As ``kjit.tuning.exhaustive``: it holds for all devices of the process."""
        exhaustive(on)

    def disable_exhaustive_search(self) -> None:
        """Turns measuring off."""
        exhaustive(False)

    def set_cache_file(self, path: str | os.PathLike[str] | None) -> int:
        """As ``kjit.tuning.set_cache_file``."""
        return set_cache_file(path)

    def verdicts(self) -> list[dict[str, Any]]:
        """As ``kjit.tuning.verdicts``, of this vendor's architectures."""
        return [v for v in verdicts() if v["device"].startswith(self._prefix)]

    def __len__(self) -> int:
        return len(self.verdicts())


def get_tuning_cache() -> TuningCache:
    """The verdicts of all devices."""
    return TuningCache()
