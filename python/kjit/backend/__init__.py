"""The devices of one vendor, by the names that ROCm libraries have."""

from . import cuda, rocm

__all__ = ["cuda", "rocm"]
