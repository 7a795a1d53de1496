"""The base class of layers: tensors and submodules by name, with torch's names and order."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .. import _kjit
from .._kjit import Tensor


class Module:
    """A layer or a network. A subclass sets tensors and modules as attributes and has ``forward``.

    Inference only: ``eval()`` changes nothing, and ``train()`` raises.
    """

    _tensors: dict[str, Tensor | None]
    _modules: dict[str, Module]

    def __init__(self) -> None:
        object.__setattr__(self, "_tensors", {})
        object.__setattr__(self, "_modules", {})

    def __setattr__(self, name: str, value: Any) -> None:
        if "_tensors" not in self.__dict__:
            name_ = type(self).__name__
            raise RuntimeError(f"{name_}: call super().__init__() before {name} = …")
        home: dict[str, Any] = self.__dict__
        if isinstance(value, Tensor) or (value is None and name in self._tensors):
            home = self._tensors
        elif isinstance(value, Module):
            home = self._modules
        for other in (self._tensors, self._modules, self.__dict__):
            if other is not home:
                other.pop(name, None)
        if home is self.__dict__:
            object.__setattr__(self, name, value)
        else:
            home[name] = value  # in its place, if it was there before

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for part in ("_tensors", "_modules"):
            if name in own.get(part, {}):
                return own[part][name]
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def __delattr__(self, name: str) -> None:
        if name in self._tensors:
            del self._tensors[name]
        elif name in self._modules:
            del self._modules[name]
        else:
            object.__delattr__(self, name)

    def _tensor(self, name: str, value: Tensor | None) -> None:
        """Sets a tensor; ``None`` if the layer does not have it, such as a bias."""
        self._tensors[name] = value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the result. Subclasses must define this method."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all submodules, with their names: ``layer1.0.conv1``."""
        yield prefix, self
        for name, part in self._modules.items():
            yield from part.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all submodules."""
        for _, part in self.named_modules():
            yield part

    def children(self) -> Iterator[Module]:
        """The direct submodules of this module."""
        yield from self._modules.values()

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors with their names, as in ``state_dict``."""
        yield from self.state_dict().items()

    def parameters(self) -> Iterator[Tensor]:
        """All tensors."""
        yield from self.state_dict().values()

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors by torch's names: ``layer1.0.conv1.weight``."""
        out = {}
        for prefix, part in self.named_modules():
            for name, value in part._tensors.items():
                if value is not None:
                    out[f"{prefix}.{name}" if prefix else name] = value
        return out

    def load_state_dict(
        self, state: Mapping[str, Any], strict: builtins.bool = True
    ) -> tuple[list[str], list[str]]:
        """Loads tensors (or arrays of other libraries) by name. Dtype and device of the module's
        tensors stay.

        Returns the names that ``state`` lacks, and the names that the module lacks. With ``strict``
        such names raise ``KeyError``; a wrong shape raises ``ValueError``. Then nothing has
        changed.
        """
        own = self.state_dict()
        optional = {n for n in own if n.endswith("num_batches_tracked")}
        missing = [n for n in own if n not in state and n not in optional]
        unexpected = [n for n in state if n not in own]
        if strict and (missing or unexpected):
            raise KeyError(
                f"load_state_dict of {type(self).__name__}: "
                f"missing {_few(missing)}; unexpected {_few(unexpected)}"
            )
        new = {}
        for name in own.keys() & state.keys():
            old, value = own[name], state[name]
            if not isinstance(value, Tensor):
                from .._creation import asarray

                value = asarray(value)
            if value.shape != old.shape:
                raise ValueError(f"load_state_dict: {name} has {value.shape}, not {old.shape}")
            new[name] = value.astype(old.dtype).to_device(old.device)
        for prefix, part in self.named_modules():
            for name in part._tensors:
                full = f"{prefix}.{name}" if prefix else name
                if full in new:
                    part._tensors[name] = new[full]
        return missing, unexpected

    def load(self, file: str | os.PathLike[str], strict: builtins.bool = True) -> Module:
        """Loads the tensors of a ``.safetensors`` or ``.npz`` file by name; returns the module."""
        from .._interchange import load

        state = load(file)
        if isinstance(state, Tensor):
            raise ValueError(f"load: {file} contains one tensor without a name")
        self.load_state_dict(state, strict)
        return self

    def to(self, target: Any) -> Module:
        """Moves all tensors to a device (``"cuda:0"``), or casts the floating-point ones to a
        dtype; returns the module."""
        cast = not isinstance(target, str) or target in _FLOATS
        for part in self.modules():
            for name, value in part._tensors.items():
                if value is None:
                    continue
                if not cast:
                    part._tensors[name] = value.to_device(target)
                elif value.dtype.kind == "real floating":
                    part._tensors[name] = value.astype(target)
        return self

    def half(self) -> Module:
        """Casts the floating-point tensors to float16."""
        return self.to(_kjit.float16)

    def eval(self) -> Module:
        """Returns the module: it is always in inference mode."""
        return self

    def train(self, mode: builtins.bool = True) -> Module:
        """Raises unless ``mode`` is false, because gradients are not supported."""
        if mode:
            raise NotImplementedError("train: kjit is for inference only")
        return self

    def _describe(self) -> str:
        return ""

    def __repr__(self) -> str:
        if not self._modules:
            return f"{type(self).__name__}({self._describe()})"
        lines = [f"{type(self).__name__}("]
        for name, part in self._modules.items():
            lines.append(f"  ({name}): " + repr(part).replace("\n", "\n  "))
        return "\n".join([*lines, ")"])


_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:5]) or "none"
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")


class Sequential(Module):
    """Applies layers in sequence. A function can be a layer."""

    def __init__(self, *layers: Module | Callable[[Tensor], Tensor] | Mapping[str, Module]) -> None:
        super().__init__()
        named: Iterable[tuple[str, Any]] = ((str(i), layer) for i, layer in enumerate(layers))
        if len(layers) == 1 and isinstance(layers[0], Mapping):
            named = layers[0].items()
        for name, layer in named:
            self._modules[name] = layer if isinstance(layer, Module) else _Function(layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._modules.values():
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int) -> Module:
        return list(self._modules.values())[index]


class _Function(Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)

    def _describe(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


class ModuleList(Module):
    """A list of modules, named 0, 1, … in ``state_dict``."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        for part in modules:
            self.append(part)

    def append(self, module: Module) -> ModuleList:
        """Adds a module at the end; returns the list."""
        self._modules[str(len(self._modules))] = module
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int) -> Module:
        return list(self._modules.values())[index]


class ModuleDict(Module):
    """Modules by name."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self._modules.update(modules or {})

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __getitem__(self, name: str) -> Module:
        return self._modules[name]
