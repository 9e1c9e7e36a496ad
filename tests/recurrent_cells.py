"""Reference LSTM, GRU and RNN in numpy: what ONNX says a cell computes, with the products handed in.

A product maps rows (M, K) to (M, gates * hidden). Handing in one that rounds its rows first gives the arithmetic of an
integer kernel: `dynamic_products` is onnxruntime's, which takes a range from the rows at hand; `hidden_products` is
oneDNN's for the hidden state, with the fixed scale 127.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from int8cal.audit.simulate import quantize_dynamically

if TYPE_CHECKING:
    from int8cal.numerics.weights import GateCodes

Float64 = npt.NDArray[np.float64]
Product = Callable[[Float64], Float64]


@dataclass(frozen=True)
class Cell:
    """A recurrent node of one layer.

    Attributes:
        op_type: "LSTM", "GRU" or "RNN", with ONNX's default activations.
        inputs, states: The product with W, and with R, of each direction.
        bias: (directions, 2 * gates * hidden): that of W, then that of R; zeros for none.
        direction: "forward", "reverse" or "bidirectional".
        clip: Bound of what enters an activation; inf for none.
        linear_before_reset: GRU: multiply by the reset gate behind the product with R.
        input_forget: LSTM: the forget gate is 1 - input gate.
        peepholes: LSTM: (directions, 3 * hidden) for gates i, o, f; None for none.
    """

    op_type: str
    inputs: Sequence[Product]
    states: Sequence[Product]
    bias: npt.NDArray[np.floating[Any]]
    direction: str = "forward"
    clip: float = np.inf
    linear_before_reset: bool = False
    input_forget: bool = False
    peepholes: npt.NDArray[np.floating[Any]] | None = None

    @property
    def hidden(self) -> int:
        """Size of the hidden state."""
        return int(self.bias.shape[1] // (2 * {"LSTM": 4, "GRU": 3, "RNN": 1}[self.op_type]))


def run_cell(
    cell: Cell,
    x: npt.NDArray[np.floating[Any]],
    *,
    hidden: npt.NDArray[np.floating[Any]] | None = None,
    memory: npt.NDArray[np.floating[Any]] | None = None,
    lengths: Sequence[int] | None = None,
) -> tuple[Float64, Float64, Float64]:
    """Run a cell over sequences, in float64 but for what its products round.

    Args:
        cell: The cell.
        x: (steps, batch, inputs).
        hidden, memory: First states, (directions, batch, hidden); zeros where None.
        lengths: Steps of each sequence; all where None. Outputs behind a sequence's end are 0.

    Returns:
        Y (steps, directions, batch, hidden), Y_h and Y_c (directions, batch, hidden); Y_c is 0 but for an LSTM.
    """
    steps, batch, _ = x.shape
    count = len(cell.inputs)
    ends = np.full(batch, steps) if lengths is None else np.asarray(lengths)
    first = np.zeros((count, batch, cell.hidden))
    last_h = first.copy() if hidden is None else hidden.astype(np.float64)
    last_c = first.copy() if memory is None else memory.astype(np.float64)
    y = np.zeros((steps, count, batch, cell.hidden))
    for direction in range(count):
        backward = cell.direction == "reverse" or direction == 1
        order = np.tile(np.arange(steps)[:, np.newaxis], (1, batch))
        if backward:  # each sequence starts at its own end
            order = np.where(order < ends, ends - 1 - order, order)
        walked = np.take_along_axis(x.astype(np.float64), order[:, :, np.newaxis], axis=0)
        # the product with all steps' inputs at once, as the runtime has it: a range holds for the whole sequence
        longest = int(ends.max(initial=0))
        given = cell.inputs[direction](walked[:longest].reshape(longest * batch, -1)).reshape(longest, batch, -1)
        h, c = last_h[direction], last_c[direction]
        for step in range(longest):
            new_h, new_c = _STEPS[cell.op_type](cell, direction, given[step], h, c)
            alive = (step < ends)[:, np.newaxis]
            h, c = np.where(alive, new_h, h), np.where(alive, new_c, c)
            y[order[step], direction, np.arange(batch)] = np.where(alive, new_h, 0.0)
        last_h[direction], last_c[direction] = h, c
    return y, last_h, last_c


def float_products(weight: npt.NDArray[np.floating[Any]]) -> list[Product]:
    """Return the plain product with each direction's weights (directions, gates * hidden, K)."""
    return [partial(_float_product, each.astype(np.float64).T) for each in weight]


def dynamic_products(gates: GateCodes) -> list[Product]:
    """Return products as onnxruntime's DynamicQuantizeLSTM computes them: rows to u8 by their own range, then s32."""
    return [
        partial(_dynamic_product, codes.astype(np.int64).T, scales.astype(np.float32))
        for codes, scales in zip(gates.codes, gates.scales, strict=True)
    ]


def hidden_products(gates: GateCodes) -> list[Product]:
    """Return products of a hidden state as oneDNN computes them: u8 with scale 127 and shift 128, then s32."""
    return [
        partial(_hidden_product, codes.astype(np.int64).T, scales)
        for codes, scales in zip(gates.codes, gates.scales, strict=True)
    ]


def _float_product(weight: Float64, rows: Float64) -> Float64:
    return rows @ weight


def _dynamic_product(codes: npt.NDArray[np.int64], scales: npt.NDArray[np.float32], rows: Float64) -> Float64:
    quantized, scale, zero_point = quantize_dynamically(rows.astype(np.float32))
    sums = (quantized.astype(np.int64) - zero_point) @ codes
    result: Float64 = (sums.astype(np.float32) * (scale * scales)).astype(np.float64)
    return result


def _hidden_product(codes: npt.NDArray[np.int64], scales: Float64, rows: Float64) -> Float64:
    hidden = np.clip(np.rint(127 * rows) + 128, 0, 255).astype(np.int64)
    result: Float64 = ((hidden - 128) @ codes) * (scales / 127)
    return result


def _sigmoid(x: Float64) -> Float64:
    result: Float64 = 0.5 * (1 + np.tanh(0.5 * x))
    return result


def _lstm(cell: Cell, direction: int, given: Float64, h: Float64, c: Float64) -> tuple[Float64, Float64]:
    bound = cell.clip
    bias = cell.bias[direction].astype(np.float64).reshape(2, -1).sum(axis=0)
    i, o, f, g = np.split(given + cell.states[direction](h) + bias, 4, axis=1)
    peeps = np.zeros(3 * cell.hidden) if cell.peepholes is None else cell.peepholes[direction].astype(np.float64)
    peep_i, peep_o, peep_f = np.split(peeps, 3)
    i = _sigmoid(np.clip(i + peep_i * c, -bound, bound))
    f = 1 - i if cell.input_forget else _sigmoid(np.clip(f + peep_f * c, -bound, bound))
    new_c = f * c + i * np.tanh(np.clip(g, -bound, bound))
    o = _sigmoid(np.clip(o + peep_o * new_c, -bound, bound))
    return o * np.tanh(new_c), new_c


def _gru(cell: Cell, direction: int, given: Float64, h: Float64, c: Float64) -> tuple[Float64, Float64]:
    bound, product = cell.clip, cell.states[direction]
    bias_w, bias_r = cell.bias[direction].astype(np.float64).reshape(2, -1)
    size = 2 * cell.hidden
    state = product(h)
    gates = np.clip((given + state + bias_w + bias_r)[:, :size], -bound, bound)
    update, reset = np.split(_sigmoid(gates), 2, axis=1)
    last = slice(size, None)
    inner = reset * (state + bias_r)[:, last] if cell.linear_before_reset else (product(reset * h) + bias_r)[:, last]
    new = np.tanh(np.clip((given + bias_w)[:, last] + inner, -bound, bound))
    return (1 - update) * new + update * h, c


def _rnn(cell: Cell, direction: int, given: Float64, h: Float64, c: Float64) -> tuple[Float64, Float64]:
    bias = cell.bias[direction].astype(np.float64).reshape(2, -1).sum(axis=0)
    total = np.clip(given + cell.states[direction](h) + bias, -cell.clip, cell.clip)
    return np.tanh(total), c


_STEPS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
