"""AMD GPUs: number, properties and memory."""

from __future__ import annotations

from typing import Any

from .. import _device, _memory, tuning


def is_available() -> bool:
    """Whether there is an AMD GPU."""
    return _device.is_available("rocm")


def device_count() -> int:
    """Number of AMD GPUs that this process sees."""
    return _device.device_count("rocm")


def get_device_info(index: int = 0) -> dict[str, Any]:
    """device, name, architecture, total_memory (bytes), compute_units of an AMD GPU."""
    return _device.device_info(f"rocm:{index}")


def synchronize(index: int = 0) -> None:
    """Waits for all work on an AMD GPU."""
    _device.synchronize(f"rocm:{index}")


def get_memory_manager(index: int = 0) -> _memory.MemoryManager:
    """The memory pool of an AMD GPU."""
    return _memory.get_memory_manager(f"rocm:{index}")


def get_pinned_pool(index: int = 0) -> _memory.PinnedPool:
    """The page-locked memory of an AMD GPU."""
    return _memory.get_pinned_pool(f"rocm:{index}")


def warmup_memory_pool(batch_size: int, model_size: Any, index: int = 0) -> None:
    """Allocates blocks of an AMD GPU, as ``kjit.warmup_memory_pool``."""
    _memory.warmup_memory_pool(batch_size, model_size, f"rocm:{index}")


def get_tuning_cache() -> tuning.TuningCache:
    """The verdicts of tuning on AMD GPUs."""
    return tuning.TuningCache("gfx")
