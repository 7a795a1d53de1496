"""NVIDIA GPUs: number, properties and memory."""

from __future__ import annotations

from typing import Any

from .. import _device, _memory, tuning


def is_available() -> bool:
    """Whether there is an NVIDIA GPU."""
    return _device.is_available("cuda")


def device_count() -> int:
    """Number of NVIDIA GPUs that this process sees."""
    return _device.device_count("cuda")


def get_device_info(index: int = 0) -> dict[str, Any]:
    """device, name, architecture, total_memory (bytes), compute_units of an NVIDIA GPU."""
    return _device.device_info(f"cuda:{index}")


def synchronize(index: int = 0) -> None:
    """Waits for all work on an NVIDIA GPU."""
    _device.synchronize(f"cuda:{index}")


def get_memory_manager(index: int = 0) -> _memory.MemoryManager:
    """The memory pool of an NVIDIA GPU."""
    return _memory.get_memory_manager(f"cuda:{index}")


def get_pinned_pool(index: int = 0) -> _memory.PinnedPool:
    """The page-locked memory of an NVIDIA GPU."""
    return _memory.get_pinned_pool(f"cuda:{index}")


def warmup_memory_pool(batch_size: int, model_size: Any, index: int = 0) -> None:
    """Allocates blocks of an NVIDIA GPU, as ``kjit.warmup_memory_pool``."""
    _memory.warmup_memory_pool(batch_size, model_size, f"cuda:{index}")


def get_tuning_cache() -> tuning.TuningCache:
    """The verdicts of tuning on NVIDIA GPUs."""
    return tuning.TuningCache("sm_")
