"""Language models: GGUF files, folders of safetensors, and models of Hugging Face's hub."""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from . import _kjit
from ._kjit import ModelError, Tensor, TextStream

Ids = Sequence[int] | Tensor

_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{unit}b": size for unit, size in _UNITS.items() if unit not in ("", "b")}
_UNITS |= {f"{unit}ib": 1024**n for n, unit in enumerate("kmgt", 1)}


def _bytes(size: int | str | None) -> int | None:
    """A number of bytes: 4000000000, ``"4GB"``, ``"3.5 GiB"``."""
    if size is None or isinstance(size, int):
        return size
    import re

    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", size.strip().lower())
    if not found or found[2] not in _UNITS:
        raise ValueError(f"'{size}' is not a size: use bytes, or a number with a unit, such as '4GB'")
    return int(float(found[1]) * _UNITS[found[2]])


def _list(ids: Ids) -> list[int]:
    return [int(i) for i in (ids.tolist() if isinstance(ids, Tensor) else ids)]


_SAMPLING = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_OPTIONS: dict[str, Any] = {**_SAMPLING, "seed": None, "stop": ()}


class Model:
    """A language model that is open on a device.

    ``ref`` is a GGUF file, a folder of safetensors, or a model of the hub, which is fetched if it
    is not here: ``"hf:ORG/REPO:Q4_K_M"``. ``device`` is ``auto`` (the first GPU, else the CPU),
    ``cpu``, ``cuda:0``, ``rocm:0``, or several: ``cuda:0,cuda:1``. ``context`` is the most tokens
    of prompt and answer together (by default the trained number, at most 8192). ``memory`` bounds
    what a GPU holds (bytes or ``"4GB"``), and layers that do not fit are streamed; ``stream``
    streams all layers. ``threads`` is for the CPU. ``precise`` prefers accuracy to speed.

    One answer is computed at a time; calls of other threads wait. A prompt that begins as the last
    one did is computed from the first difference on, so a chat costs its new tokens only.

    Raises ``FileNotFoundError``, ``ValueError`` for names and options, ``MemoryError``, ``OSError``
    for the hub, and ``ModelError`` for files and devices.
    """

    def __init__(
        self,
        ref: str | os.PathLike[str],
        device: str = "auto",
        *,
        context: int | None = None,
        memory: int | str | None = None,
        stream: builtins.bool = False,
        threads: int | None = None,
        precise: builtins.bool = False,
    ) -> None:
        name = os.fspath(ref)
        size = _bytes(memory)
        self._pid = os.getpid()
        self._native = _kjit.LanguageModel(
            name, device, context, size, stream, threads, precise
        )
        facts = self._native.facts()
        self.device, self.device_name, self.architecture, self.context, self.n_vocab = facts
        self.path: str = self._native.path

    def __repr__(self) -> str:
        return f"<kjit.Model {self.path}: {self.architecture} on {self.device_name}>"

    def _here(self) -> _kjit.LanguageModel:
        if os.getpid() != self._pid:
            raise ModelError("this process was forked after the model was opened: open the model again in this process")
        return self._native

    def tokenize(
        self, text: str, *, add_special: builtins.bool = True, parse_special: builtins.bool = False
    ) -> list[int]:
        """Token ids of a string. ``add_special``: BOS and EOS as in the model; ``parse_special``:
        control tokens in the text (``<|im_end|>``) are recognised."""
        return self._here().tokenize(text, add_special, parse_special)

    def detokenize(self, ids: Ids, *, special: builtins.bool = False) -> str:
        """The text of ids; invalid UTF-8 is replaced. ``special``: control tokens as text.

        Raises ``ValueError`` for an id outside the vocabulary.
        """
        return self._here().detokenize(_list(ids), special)

    tokenise = tokenize
    detokenise = detokenize

    def _known(self, options: dict[str, Any]) -> dict[str, Any]:
        unknown = options.keys() - _OPTIONS.keys()
        if unknown:
            known = ", ".join(_OPTIONS)
            raise TypeError(f"unknown option {min(unknown)}; supported: {known}")
        return _OPTIONS | options

    def _start(self, ids: list[int], most: int | None, options: dict[str, Any]) -> TextStream:
        stop = options["stop"]
        sampling = [float(options[name]) for name in _SAMPLING]
        if most is not None and most < 0:
            raise ValueError(f"max_tokens must not be negative, got {most}")
        stops = [stop] if isinstance(stop, str) else list(stop)
        return self._here().start(ids, most, stops, sampling, options["seed"])

    @overload
    def generate(
        self,
        prompt: str | Ids,
        max_tokens: int | None = ...,
        *,
        stream: Literal[True],
        **options: Any,
    ) -> TextStream: ...
    @overload
    def generate(
        self,
        prompt: str | Ids,
        max_tokens: int | None = ...,
        *,
        stream: Literal[False] = ...,
        **options: Any,
    ) -> str: ...
    def generate(
        self,
        prompt: str | Ids,
        max_tokens: int | None = 256,
        *,
        stream: builtins.bool = False,
        **options: Any,
    ) -> str | TextStream:
        """Continues a prompt (a string or token ids) without a chat template (see ``chat``).

        With ``stream=True`` an iterator over pieces of the text: closing it ends the computation,
        and after its end it has ``reason``, ``ids`` and ``seconds``. ``max_tokens=None``: until the
        context is full. Further options and their defaults:

        ``temperature=0.8`` (0: always the most likely token), ``top_k=40`` (0: all),
        ``top_p=0.95``, ``min_p=0.05``, ``repeat_penalty=1.0``, ``presence_penalty=0.0``,
        ``frequency_penalty=0.0``, ``seed=None`` (another each time), ``stop=()`` (a text or texts
        that end the answer and are not part of it).

        The interpreter's lock is free meanwhile, and Ctrl-C interrupts. Raises ``ValueError`` for
        an empty prompt, one longer than the context, or an option out of range; ``TypeError`` for
        an unknown option; ``ModelError`` for a fault of the device.
        """
        ids = self.tokenize(prompt) if isinstance(prompt, str) else _list(prompt)
        answer = self._start(ids, max_tokens, self._known(options))
        return answer if stream else "".join(answer)

    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int | None = ...,
        *,
        stream: Literal[True],
        **options: Any,
    ) -> TextStream: ...
    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int | None = ...,
        *,
        stream: Literal[False] = ...,
        **options: Any,
    ) -> str: ...
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int | None = None,
        *,
        stream: builtins.bool = False,
        **options: Any,
    ) -> str | TextStream:
        """The assistant's next message. ``messages`` are dicts with ``role`` and ``content``, in
        any form that the model's template supports; the options are those of ``generate``.

        Raises ``ModelError`` if the model has no template, or its template refuses the messages.
        """
        if isinstance(messages, str) or not all(isinstance(m, Mapping) for m in messages):
            raise TypeError("chat needs a list of dicts with role and content")
        import json

        text = json.dumps([dict(m) for m in messages])
        ids = self._here().chat_prompt(text)
        answer = self._start(ids, max_tokens, self._known(options))
        return answer if stream else "".join(answer)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        normalise: builtins.bool = False,
        pooling: str | None = None,
    ) -> Tensor:
        """One vector per text: (n, width), float32, on the device; (width,) for a single string.

        ``normalise`` scales to length 1. ``pooling`` is ``first``, ``last`` or ``mean``, by default
        the file's. A text model opens a second session for this, with a second copy of its
        weights. Raises ``ModelError`` if the file names no pooling, and none is given.
        """
        one = isinstance(texts, str)
        lists = [self.tokenize(t) for t in ([texts] if isinstance(texts, str) else texts)]
        out = self._here().embed(lists, normalise, pooling)
        return out[0] if one else out

    def logits(self, ids: str | Ids, *, all: builtins.bool = False) -> Tensor:
        """Scores of the next token after some ids: (n_vocab,), float32, on the model's device.
        ``all``: after every id, (n, n_vocab)."""
        listed = self.tokenize(ids) if isinstance(ids, str) else _list(ids)
        return self._here().logits(listed, all)


class AutoModel(Model):
    """``Model`` with the interface of other libraries."""

    @classmethod
    def from_pretrained(
        cls, ref: str | os.PathLike[str], device: str = "auto", **options: Any
    ) -> AutoModel:
        """Opens a model; ``memory="4GB"`` limits the GPU memory, ``stream=True`` streams all
        layers, as in ``Model``."""
        return cls(ref, device, **options)
