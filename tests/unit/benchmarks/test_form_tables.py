"""python -m benchmarks forms, on tiny graphs: its rows, and its SQNR beside numpy's own arithmetic; never a time."""

import json
import subprocess
import sys

import numpy as np
import pytest
from onnx import numpy_helper
from recurrent_cells import Cell, float_products, run_cell

from benchmarks.forms import TABLES
from benchmarks.run import ROOT

pytestmark = pytest.mark.newest  # older runtimes have no GatherBlockQuantized of 8 bits

ROWS = {
    "products": ["float", "static", "dynamic", "DequantizeLinear (MatMulNBits)", "Cast and Mul"],
    "product-codes": ["float", "static", "dynamic", "DequantizeLinear (MatMulNBits)", "Cast and Mul"],
    "embeddings": [
        "float",
        "rows: two `Gather`, `Cast`, `Mul`",
        "columns: `Gather`, `Cast`, `Mul`",
        "rows: two `Gather`, `DequantizeLinear`, `Mul`",
        "columns: `Gather`, `DequantizeLinear`",
        "`com.microsoft.GatherBlockQuantized`, blocks of 16",
    ],
    "recurrent": ["float", "kernel", "int8 → Cast → Mul", "behind DequantizeLinear"],
    "recurrent-codes": ["float", "kernel", "weights only", "W alone, weights only", "R alone, weights only"],
    "pixels": [
        "3 channels",
        "3 + 1 channels by `Pad`",
        "each channel padded with its own mean (`Split`, `Pad`, `Concat`)",
    ],
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the command prints of all tables, and what it measured: table -> form -> figures of the only column."""
    stored = tmp_path_factory.mktemp("forms") / "all.json"
    arguments = ["forms", "--tiny", "--rounds", "1", "--repeat", "1", "--json", str(stored)]
    command = [sys.executable, "-m", "benchmarks", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    measured = json.loads(stored.read_text(encoding="utf-8"))["measurements"]
    return done.stdout, {name: next(iter(columns.values())) for name, columns in measured.items()}


def test_every_table_has_a_row_for_each_form(printed):
    out, measured = printed
    assert {name: list(forms) for name, forms in measured.items()} == ROWS
    for name, section in zip(ROWS, out.split("### ")[1:], strict=True):
        lines = [line for line in section.splitlines() if line.startswith("|")]
        assert [line.split("|")[1].strip() for line in lines[2:]] == ROWS[name]


def graph(name):
    """The tiny float graph of a table: constants and its first feed."""
    feeds, forms = TABLES[name].forms(*TABLES[name].tiny)
    _, model = next(forms)
    return {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}, feeds[0]


def rounded(values, axis, limit=127):
    scales = np.abs(values).max(axis=axis, keepdims=True) / limit
    return np.round(values / scales) * scales


def decibels(exact, other):
    return 10 * np.log10((exact.astype(float) ** 2).sum() / ((exact.astype(float) - other) ** 2).sum())


def sqnr(measured, name):
    return {form: figures["sqnr_db"] for form, figures in measured[name].items()}


def test_a_product_has_the_noise_of_its_codes(printed):
    constants, feed = graph("product-codes")
    x, weight, bias = feed["x"], constants["w"], constants["b"]
    exact = x @ weight + bias
    found = sqnr(printed[1], "product-codes")
    weights_alone = decibels(exact, x @ rounded(weight, 0) + bias)
    assert found["float"] is None
    assert found["Cast and Mul"] == pytest.approx(weights_alone, abs=0.01)
    for form in ROWS["product-codes"][1:4]:  # activations are rounded too: 8 bits of normal values
        assert 35 < found[form] < weights_alone


def test_rows_that_are_looked_up_have_the_noise_of_their_codes(printed):
    constants, feed = graph("embeddings")
    table, indices = constants["t"], feed["i"]
    blocks = rounded(table.reshape(len(table), -1, 16), 2).reshape(table.shape)
    rows, columns = rounded(table, 1), rounded(table, 0)
    expected = [decibels(table[indices], each[indices]) for each in (rows, columns, rows, columns, blocks)]
    assert list(sqnr(printed[1], "embeddings").values())[1:] == pytest.approx(expected, abs=0.01)
    sizes = [figures["bytes"] for figures in printed[1]["embeddings"].values()]
    assert max(sizes[1:]) < sizes[0] / 2


def test_a_cell_has_the_noise_of_its_codes(printed):
    constants, feed = graph("recurrent-codes")
    limit = TABLES["recurrent-codes"].tiny[-1]

    def states(which):
        weights = {name: rounded(constants[name], 2, limit) if name in which else constants[name] for name in "wr"}
        cell = Cell("LSTM", float_products(weights["w"]), float_products(weights["r"]), constants["b"])
        return run_cell(cell, feed["x"])[0]

    exact = states("")
    expected = [decibels(exact, states(which)) for which in ("wr", "w", "r")]
    found = sqnr(printed[1], "recurrent-codes")
    assert list(found.values())[2:] == pytest.approx(expected, abs=0.05)
    assert 25 < found["kernel"] < expected[0]


def test_an_unknown_table_is_one_line(bench):
    status, _, err = bench("forms", "--tables", "words")
    assert status == 2
    assert err == f'benchmarks: no table "words"; there are {", ".join(TABLES)}\n'
