"""Memory pools of GPUs. The CPU has no pool, so its device raises an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _kjit
from ._model import _bytes


def _sizes(sizes: Sequence[int | str]) -> list[int]:
    return [_bytes(size) or 0 for size in sizes]


class MemoryManager:
    """The memory pool of a device: freed blocks that later tensors reuse."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def statistics(self) -> dict[str, int]:
        """hits and misses (requests with and without a free block), live (tensors' blocks), and
        the bytes in_use, peak (the most so far) and held (in use or free)."""
        return _kjit.pool_statistics(self.device, False)

    def warm_up(self, sizes: Sequence[int | str]) -> None:
        """Allocates a block for each size (bytes or ``"64MB"``), all together, then frees them
        to the pool: later tensors of these sizes allocate nothing.

        Raises ``MemoryError`` with the requested and the free bytes if memory is insufficient.
        """
        _kjit.warm_up(self.device, False, _sizes(sizes))

    def clear_pool(self) -> int:
        """Frees blocks that no tensor uses to the driver. Returns their bytes."""
        return _kjit.clear_pool(self.device, False)

    clear = clear_pool


class PinnedPool:
    """Page-locked host memory for copies between host and device."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def statistics(self) -> dict[str, int]:
        """hits and misses (copies that found a block, and copies that allocated one), and held,
        the bytes of the blocks that no copy uses."""
        return _kjit.pool_statistics(self.device, True)

    def warmup(self, sizes: Sequence[int | str] = ("16MB", "16MB")) -> None:
        """Allocates the blocks that copies of these sizes (bytes or ``"64MB"``) pass through. A
        block has at most 4 MiB; longer copies use several. Otherwise the first copies allocate
        them."""
        _kjit.warm_up(self.device, True, _sizes(sizes))

    def clear(self) -> int:
        """Frees the blocks that no copy uses. Returns their bytes."""
        return _kjit.clear_pool(self.device, True)


def get_memory_manager(device: str | None = None) -> MemoryManager:
    """The memory pool of a GPU, by default of the default device."""
    return MemoryManager(device)


def get_pinned_pool(device: str | None = None) -> PinnedPool:
    """The page-locked memory of a GPU, by default of the default device."""
    return PinnedPool(device)


def warmup_memory_pool(batch_size: int, model_size: Any, device: str | None = None) -> None:
    """Allocates ``batch_size`` blocks of ``model_size`` bytes (or ``"64MB"``: the bytes that one
    sample's activations take). ``model_size`` may be an ``nn.Module``: then a block for each of its
    tensors beside them, as if it were loaded."""
    from .nn import Module

    if isinstance(model_size, Module):
        sizes = [x.nbytes for x in model_size.parameters()]
        largest = max(sizes, default=0)
        MemoryManager(device).warm_up([*sizes, *[largest] * batch_size])
    else:
        MemoryManager(device).warm_up([model_size] * batch_size)


def empty_cache() -> int:
    """Frees memory that no tensor uses, on every GPU that is open. Returns its bytes."""
    return _kjit.empty_cache()
