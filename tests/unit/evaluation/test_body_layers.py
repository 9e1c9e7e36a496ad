import numpy as np

from int8cal.evaluation import body_layers
from int8cal.evaluation.body_layers import measure_body_layers


def test_a_model_without_bodies_is_not_prepared_again(bench, monkeypatch):
    # many nodes of several kinds, whose Python objects come and go
    body, last = "", "x"
    for number in range(60):
        body += f"q{number} = QuantizeLinear({last}, s, z) d{number} = DequantizeLinear(q{number}, s, z) "
        last = f"d{number}"
        for extra in range(number % 4):
            body += f"r{number}_{extra} = Clip({last}) "
            last = f"r{number}_{extra}"
    model = bench.text(
        f"g (float[4] x) => (float[4] y) {{ {body} y = Identity({last}) }}", s=np.float32(1), z=np.uint8(0)
    )

    def prepare(*_):
        raise AssertionError("a whole model was prepared for nothing")

    monkeypatch.setattr(body_layers, "prepare", prepare)
    assert measure_body_layers(model, model, []) == ((), {})
