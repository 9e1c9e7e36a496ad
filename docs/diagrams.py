"""The drawings of docs/saturation.md: two products in one instruction, and which weights meet there.

Run: python docs/diagrams.py. Numbers and pairs are those of int8cal itself; a test compares the files with what is
drawn here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from int8cal.numerics.affine import S8, U8
from int8cal.numerics.pairs import SAFE_SUM, pair_starts
from int8cal.runtime.targets import ONEDNN, ONNXRUNTIME

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGES = Path(__file__).resolve().parent / "images"
BLUE, ORANGE, GREY, RED, GREEN, VIOLET = "#d7e8fb", "#fde6c8", "#eeeeee", "#f7c4c0", "#cdebd0", "#efdcf5"
POSITIONS = (BLUE, ORANGE, "#d9f0dc", VIOLET)
ABOVE, BELOW = "#c0392b", "#1f5fa8"
_SIZE = 'viewBox="0 0 860 {0}" width="860" height="{0}"'
_HEAD = f'<svg xmlns="http://www.w3.org/2000/svg" {_SIZE} role="img" aria-label="{{1}}">'
S16 = np.iinfo(np.int16)
SAFE = 84  # a weight; with what it leaves of SAFE_SUM beside it, a safe pair


def drawings() -> dict[str, str]:
    """Return the text of each drawing by its file's name."""
    return {"vpmaddubsw.svg": instruction(), "pairs.svg": pairs()}


def instruction() -> str:
    """Draw the largest s8 weights, and a safe pair, as VPMADDUBSW adds their products."""
    lines = [_HEAD.format(380, "Two products in one VPMADDUBSW"), '<rect width="860" height="380" fill="#ffffff"/>']
    lines += _sum(40, "s8: largest weights meet", (S8.qmax, S8.qmax), f"s16 ends at {S16.max}: half of the sum is lost")
    product = f"{U8.qmax} × {SAFE_SUM} = {U8.qmax * SAFE_SUM} fits, whatever the inputs are"  # noqa: RUF001 - a product
    lines += _sum(480, f"safe: positive parts add up to {SAFE_SUM}", (SAFE, SAFE_SUM - SAFE), product)
    told = "VPMADDUBSW, on every x86 CPU without VNNI: two products of u8 × s8 are added into s16, with saturation."  # noqa: RUF001
    lines += [_text(430, 342, 13, told, fill="#444")]
    lines += [_text(430, 364, 13, "VPDPBUSD (VNNI) adds four products into s32 at once and is exact.", fill="#444")]
    return "\n".join([*lines, '<path d="M420 20 V320" stroke="#bbb"/></svg>', ""])


def _sum(left: int, title: str, weights: tuple[int, int], told: str) -> Iterator[str]:
    middle = left + 150
    yield _text(middle, 28, 16, title, bold=True)
    for x, weight in zip((left, left + 160), weights, strict=True):
        yield from _box(x, 50, 60, BLUE, str(U8.qmax))
        yield _text(x + 75, 72, 14, "×")  # noqa: RUF001 - a product
        yield from _box(x + 90, 50, 60, ORANGE, str(weight))
        yield _line(f"M{x + 75} 88 V116")
        yield from _box(x + 20, 118, 110, GREY, str(U8.qmax * weight))
        yield _line(f"M{x + 75} 152 L{middle} 186")
    exact = U8.qmax * sum(weights)
    yield from _box(middle - 70, 188, 140, GREY, f"sum {exact}")
    yield _line(f"M{middle} 222 V252")
    held = min(exact, int(S16.max))
    yield from _box(middle - 70, 254, 140, GREEN if held == exact else RED, f"s16: {held}")
    yield _text(middle, 310, 13, told, fill="#444")


def pairs() -> str:
    """Draw weights in the order of reduction, with an arc for each pair: onnxruntime's above, oneDNN's below."""
    label = "Which weights meet, for 4 and for 3 input channels"
    lines = [_HEAD.format(270, label), '<rect width="860" height="270" fill="#ffffff"/>']
    even = "4 input channels: both runtimes pair channels (0, 1), (2, 3) of one kernel position p"
    odd = "3 input channels: onnxruntime runs on across positions, oneDNN leaves the odd channel alone"
    lines += [*_row(32, even, 4, 4), *_row(132, odd, 5, 3)]
    for x, stroke, name in ((20, ABOVE, "onnxruntime (MLAS)"), (220, BELOW, "oneDNN (OpenVINO)")):
        lines.append(f'<path d="M{x} 232 H{x + 30}" stroke="{stroke}" stroke-width="2.2"/>')
        lines.append(_text(x + 38, 237, 13, name, anchor="start"))
    lines.append(_text(420, 237, 13, "portable keeps the union of both safe", fill="#444", anchor="start"))
    return "\n".join([*lines, "</svg>", ""])


def _row(y: int, title: str, positions: int, channels: int) -> Iterator[str]:
    yield _text(20, y, 14, title, bold=True, anchor="start")
    for at in range(positions * channels):
        position, channel = divmod(at, channels)
        fill = POSITIONS[position % len(POSITIONS)]
        yield f'<rect x="{20 + 50 * at}" y="{y + 28}" width="46" height="30" rx="3" fill="{fill}" stroke="#444"/>'
        yield _text(43.0 + 50 * at, y + 48, 12, f"p{position} c{channel}")
    for orders, end, bend, stroke in ((ONNXRUNTIME, y + 28, y + 14, ABOVE), (ONEDNN, y + 58, y + 72, BELOW)):
        for start in (int(each) for order in orders for each in pair_starts(order, positions, channels)):
            first, second = 43.0 + 50 * start, 93.0 + 50 * start
            path = f"M{first} {end} C{first} {bend} {second} {bend} {second} {end}"
            yield f'<path d="{path}" stroke="{stroke}" stroke-width="2.2" fill="none"/>'


def _box(x: int, y: int, width: int, fill: str, text: str) -> Iterator[str]:
    yield f'<rect x="{x}" y="{y}" width="{width}" height="34" rx="4" fill="{fill}" stroke="#444"/>'
    yield _text(x + width / 2, y + 22.0, 15, text)


def _text(
    x: float, y: float, size: int, text: str, *, fill: str = "#222", bold: bool = False, anchor: str = "middle"
) -> str:
    weight = "bold" if bold else "normal"
    place = f'x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}"'
    return f'<text {place} font-family="system-ui, sans-serif">{text}</text>'


def _line(path: str) -> str:
    return f'<path d="{path}" stroke="#444" fill="none"/>'


def main() -> None:
    """Write all drawings."""
    for name, text in drawings().items():
        (IMAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
