import numpy as np

from int8cal.runtime.sessions import simplify


def test_folding_keeps_names_and_outputs(bench):
    model = bench.text(
        """g (float[N,4,8,8] x) => (float[N,3] y, float[N,3] z) {
            c = Conv(x, W, B)
            b = BatchNormalization(c, s, o, m, v)
            i = Identity(b)
            r = Relu(i)
            g = GlobalAveragePool(r)
            f = Flatten(g)
            t = Transpose(G)
            y = MatMul(f, t)
            z = MatMul(f, t)
        }""",
        W=(8, 4, 3, 3),
        B=(8,),
        s=(8,),
        o=(8,),
        m=(8,),
        v=np.linspace(0.5, 2, 8),
        G=(3, 8),
    )
    before = model.SerializeToString(deterministic=True)
    simple = simplify(model)
    assert model.SerializeToString(deterministic=True) == before
    assert [node.op_type for node in simple.graph.node] == [
        "Conv",
        "Relu",
        "GlobalAveragePool",
        "Flatten",
        "MatMul",
        "MatMul",
    ]
    kept = {name for node in simple.graph.node for name in node.output}
    assert {"r", "g", "f", "y", "z"} <= kept  # equal nodes are not merged, since users know both names
    feed = bench.samples(model, 1)[0].feed
    for name, value in bench.run(model, feed).items():
        np.testing.assert_allclose(bench.run(simple, feed)[name], value, rtol=1e-4, atol=1e-5)


def test_nothing_is_left_of_its_temporary_files(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    simplify(bench.text("g (float[N,4] x) => (float[N,3] y) { y = MatMul(x, W) }", W=(4, 3)))
    assert list(tmp_path.iterdir()) == []


def test_large_constants_come_back_from_their_temporary_file(bench):
    model = bench.text("g (float[N,600] x) => (float[N,600] y) { y = MatMul(x, W) }", W=(600, 600))
    simple = simplify(model)
    assert simple.graph.initializer[0].raw_data == model.graph.initializer[0].raw_data
