"""The operations of each launch, as a string and as a picture."""

from __future__ import annotations

import os
from typing import Any

from . import _kjit
from ._kjit import Tensor


def escape(text: str) -> str:
    """Escapes a string for XML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Explanation:
    """How a tensor was computed: ``launches``, ``device``, and ``groups``, each a launch.

    A group is a dict: ``operations`` in order, ``shape`` and ``dtype`` of its result, and
    ``reads``, its inputs: numbers of earlier groups (from 1) or strings such as
    ``(64, 10) float32`` for tensors that were computed earlier. ``str()`` returns the list,
    ``svg()`` the picture.
    """

    def __init__(self, rows: list[Any], launches: int, device: str) -> None:
        self.launches, self.device = launches, device
        stored = [at for at, row in enumerate(rows) if row[4] == "stored"]
        number = {at: n for n, at in enumerate(stored, 1)}

        def source(at: int) -> int | str:
            name, dtype, shape, inputs, role, _ = rows[at]
            if role == "view":
                return source(inputs[0])
            return number[at] if role == "stored" else f"{shape} {dtype}"

        self.groups: list[dict[str, Any]] = []
        for at in stored:
            inside = rows[at][5]
            outside = {i for op in inside for i in rows[op][3] if i not in inside}
            reads = sorted({source(i) for i in outside}, key=str)
            steps = [rows[op][0] for op in inside]
            self.groups.append(
                {
                    "operations": [s for s in steps if s not in ("view", "reshape", "constant")]
                    or ["copy"],
                    "dtype": rows[at][1],
                    "shape": rows[at][2],
                    "reads": reads,
                }
            )
        self.operations = sum(len(g["operations"]) for g in self.groups)

    def __str__(self) -> str:
        many = "launch" if self.launches == 1 else "launches"
        lines = [f"{self.operations} operations in {self.launches} {many} on {self.device}"]
        for n, group in enumerate(self.groups, 1):
            reads = ", ".join(f"#{r}" if isinstance(r, int) else r for r in group["reads"])
            lines.append(f"#{n} {group['shape']} {group['dtype']}, reads {reads or 'nothing'}")
            lines.append("   " + ", ".join(group["operations"]))
        return "\n".join(lines)

    __repr__ = __str__

    def svg(self) -> str:
        """A picture: a box per launch with its operations, and a line from each input."""
        wide, line, gap = 420, 18, 26
        boxes, y = [], 40
        for n, group in enumerate(self.groups, 1):
            rows = [""]
            for name in group["operations"]:
                longer = f"{rows[-1]} {name}".strip()
                rows[-1:] = [longer] if len(longer) < 52 else [rows[-1], name]
            given = [r for r in group["reads"] if not isinstance(r, int)]
            title = f"#{n}  {group['shape']} {group['dtype']}"
            texts = [title, *rows, *(f"reads {r}" for r in given[:6])]
            boxes.append((y, texts, group["reads"]))
            y += line * len(texts) + 14 + gap
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide + 120}" height="{y}" '
            'font-family="monospace" font-size="13">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="60" y="24">{escape(str(self).splitlines()[0])}</text>',
        ]
        for n, (top, texts, reads) in enumerate(boxes):
            high = line * len(texts) + 14
            out.append(
                f'<rect x="60" y="{top}" width="{wide}" height="{high}" rx="6" fill="#eef4ff" '
                'stroke="#34558b"/>'
            )
            for i, text in enumerate(texts):
                weight = ' font-weight="bold"' if i == 0 else ""
                fill = ' fill="#666"' if text.startswith("reads ") else ""
                at = top + line * (i + 1)
                out.append(f'<text x="70" y="{at}"{weight}{fill}>{escape(text)}</text>')
            for read in reads:
                if not isinstance(read, int):
                    continue
                start = boxes[read - 1][0] + line * len(boxes[read - 1][1]) + 14
                if read == n:
                    out.append(f'<path d="M270 {start} V{top}" stroke="#34558b" fill="none"/>')
                else:
                    x = 52 - 8 * ((n - read) % 5)
                    out.append(
                        f'<path d="M60 {start - 8} H{x} V{top + 10} H60" stroke="#34558b" '
                        'fill="none"/>'
                    )
        return "\n".join([*out, "</svg>"])


def explain(
    x: Tensor, *, svg: str | os.PathLike[str] | None = None, show: bool = True
) -> Explanation:
    """Computes a tensor and reports the operations of each launch.

    Prints a list unless ``show`` is false, and writes a picture to ``svg``. Tensors that were
    computed earlier are inputs. On the CPU a launch is a pass over the elements.
    """
    rows, launches, device = _kjit.explained(x)
    told = Explanation(rows, launches, device)
    if svg is not None:
        with open(svg, "w", encoding="utf-8") as out:
            out.write(told.svg())
    if show:
        print(told)
    return told
