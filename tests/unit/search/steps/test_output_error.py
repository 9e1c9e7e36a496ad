import numpy as np

import int8cal
from int8cal.quantization.corrections import FineChannels, ResidualCodes, Rounding

TEXT = """g (float[N,128] x) => (float[N,24] y) {
    n = LayerNormalization <axis = -1> (x, S, T) m = MatMul (n, W) y = Add (m, B)
}"""


def test_what_gets_residual_codes_is_rounded_anew_by_what_it_reads(bench):
    rng = np.random.default_rng(2)
    weights = {"S": np.ones(128), "T": np.zeros(128), "W": rng.normal(size=(128, 24)), "B": rng.normal(size=24)}
    mix = rng.normal(size=(128, 128))
    data = [{"x": (rng.normal(size=(16, 128)) @ mix).astype(np.float32)} for _ in range(48)]
    table = int8cal.calibrate(bench.text(TEXT, **weights), data, latency_allowance=1000)
    doubled = {*ResidualCodes.of(table).values, *FineChannels.of(table).values}
    assert doubled
    assert doubled <= Rounding.of(table).values.keys()
