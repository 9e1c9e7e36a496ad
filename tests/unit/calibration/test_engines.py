"""One pass on this machine: the same statistics whatever the order and the files, and NaN named where it arises."""

import copy
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
import pytest
from onnx import numpy_helper

from int8cal.calibration import collector
from int8cal.calibration.engines import local as keeping
from int8cal.data.sample import Sample
from int8cal.errors import DataError, StatisticsError
from int8cal.graph.signature import signature_of
from int8cal.graph.taps import Tap
from int8cal.runtime.sessions import Session


@pytest.fixture
def network(tools):
    return tools.network()


def test_every_tap_is_counted_over_every_sample(network, tools):
    statistics = network.collect(tools.samples(5)).statistics
    assert list(statistics.tensors) == ["x", "r", "f"]
    assert [tensor.count for tensor in statistics.tensors.values()] == [5 * 2 * 25, 5 * 4 * 25, 5 * 4]
    assert statistics.samples == 5
    assert statistics.tensors["r"].minimum == 0.0
    assert statistics.tensors["x"].channels.count == 5 * 25


def test_values_are_those_of_the_network(network, tools):
    samples = tools.samples(3)
    found = network.collect(samples).statistics.tensors["f"]
    model = network.model.__class__()
    model.CopyFrom(network.model)
    model.graph.output.append(next(value for value in model.graph.value_info if value.name == "f"))
    session = Session(model)
    values = np.concatenate([session.run(sample.feed, ["f"])["f"] for sample in samples])
    expected = tools.count(values)
    assert (found.minimum, found.maximum) == (expected.minimum, expected.maximum)
    np.testing.assert_array_equal(found.bins, expected.bins)


@pytest.mark.parametrize("batch", ["N", 1, 2, 4])
def test_order_and_shards_leave_no_trace(tools, batch):
    network = tools.network(batch)
    samples = tools.samples(7)
    whole = tools.file_bytes(network.collect(samples).statistics)
    assert tools.file_bytes(network.collect(samples[::-1]).statistics) == whole
    shuffled = [samples[index] for index in (3, 0, 6, 2, 5, 1, 4)]
    assert tools.file_bytes(network.collect(shuffled).statistics) == whole
    for cuts in ((0, 3, 7), (0, 1, 2, 7), (0, 6, 7)):
        shards = [network.collect(samples[a:b]).statistics for a, b in pairwise(cuts)]
        assert tools.file_bytes(reduce(add, shards)) == whole
        assert tools.file_bytes(reduce(add, shards[::-1])) == whole


@pytest.mark.parametrize("batch", ["N", 1, 2])
def test_runs_side_by_side_leave_no_trace(tools, monkeypatch, batch):
    network, samples = tools.network(batch), tools.samples(9)
    alone = tools.file_bytes(network.collect(samples, threads=2).statistics)
    monkeypatch.setattr(keeping, "LEAST_BESIDE", 0)
    opened, open_taps = [], keeping.open_taps
    monkeypatch.setattr(
        keeping, "open_taps", lambda *given, **how: opened.append(how["at_once"]) or open_taps(*given, **how)
    )
    for largest in (1, 3, 16):
        monkeypatch.setattr(collector, "_LARGEST_GROUP", largest)
        assert tools.file_bytes(network.collect(samples, threads=2).statistics) == alone
    assert opened == [2, 2, 2]


def test_samples_whose_taps_are_large_run_alone(network, tools, monkeypatch):
    def at_once(model=network.model):
        return keeping._at_once(model, signature_of(model), network.taps, tools.samples(1)[0])

    assert at_once() == 1  # 154 values
    monkeypatch.setattr(keeping, "LEAST_BESIDE", 0)
    assert at_once() == 2
    # another sample could be larger, and a convolution could add up otherwise then
    free = copy.deepcopy(network.model)
    free.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "H"
    assert at_once(free) == 1
    whole = replace(signature_of(network.model), whole=True)
    assert keeping._at_once(network.model, whole, network.taps, tools.samples(1)[0]) == 1
    monkeypatch.setattr(keeping, "BESIDE_BYTES", 2 * 4 * 153)
    assert at_once() == 1


def test_a_group_ends_where_a_sample_is_larger_than_the_one_that_told_its_size(tools):
    small, large = tools.samples(4), tools.samples(5, shape=(2, 9, 9))
    left, seen = iter([*small, *large]), small[0].feed["x"].nbytes
    assert [len(keeping._part(left, 1, 16, 2, seen)) for _ in range(4)] == [5, 2, 2, 0]


def test_threads_leave_no_trace(network, tools):
    one, two = (tools.file_bytes(network.collect(tools.samples(3), threads=count).statistics) for count in (1, 2))
    assert one == two


@pytest.mark.parametrize("batch", ["N", 2])
@pytest.mark.parametrize("largest", [1, 3, 4, 16])
def test_how_many_samples_are_counted_together_leaves_no_trace(tools, monkeypatch, batch, largest):
    whole = tools.file_bytes(tools.network(batch).collect(tools.samples(13)).statistics)
    monkeypatch.setattr(collector, "_LARGEST_GROUP", largest)
    assert tools.file_bytes(tools.network(batch).collect(tools.samples(13)).statistics) == whole


def test_padded_rows_of_a_fixed_batch_are_not_counted(tools):
    statistics = tools.network(4).collect(tools.samples(5)).statistics
    assert [tensor.count for tensor in statistics.tensors.values()] == [5 * 2 * 25, 5 * 4 * 25, 5 * 4]


def test_the_fingerprint_is_the_sum_over_the_samples(network, tools):
    samples = tools.samples(4)
    expected = sum(sample.fingerprint for sample in samples) % 2**128
    assert network.collect(samples).statistics.fingerprint == expected


def test_kept_samples_do_not_depend_on_the_order(network, tools):
    samples = tools.samples(9)
    smallest = sorted(samples, key=lambda sample: sample.fingerprint)[:3]
    for order in (samples, samples[::-1], samples[4:] + samples[:4]):
        kept = network.collect(order, keep=3).kept
        assert [sample.origin for sample in kept] == [sample.origin for sample in smallest]


@pytest.mark.parametrize("fits", [1, 4, 6])
def test_no_more_samples_are_kept_than_fit_into_memory_in_any_order(network, tools, monkeypatch, fits):
    samples = tools.samples(9)
    size = sum(value.nbytes for value in samples[0].feed.values())
    monkeypatch.setattr(keeping, "KEPT_BYTES", fits * size)
    monkeypatch.setattr(keeping, "KEPT_ALWAYS", 2)
    smallest = sorted(samples, key=lambda sample: sample.fingerprint)[: max(fits, 2)]
    for order in (samples, samples[::-1], samples[4:] + samples[:4]):
        kept = network.collect(order, keep=8).kept
        assert [sample.origin for sample in kept] == [sample.origin for sample in smallest]


def test_no_more_samples_are_kept_than_there_are(network, tools):
    assert len(network.collect(tools.samples(2), keep=5).kept) == 2
    assert network.collect(tools.samples(2)).kept == ()


def test_samples_are_streamed(network, tools, monkeypatch):
    monkeypatch.setattr(collector, "_LARGEST_GROUP", 2)
    alive = []

    def stream():
        import gc
        import weakref

        for sample in tools.samples(12):
            copy = Sample({name: array.copy() for name, array in sample.feed.items()}, sample.origin)
            alive.append(weakref.ref(copy.feed["x"]))
            yield copy
            del copy
            gc.collect()
            assert sum(each() is not None for each in alive) <= 3

    network.collect(stream())


def test_no_sample_is_an_error_of_the_data(network):
    with pytest.raises(DataError, match="yields no sample"):
        network.collect([])


@pytest.mark.parametrize(("bad", "kind"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_an_input_that_is_not_finite_is_named_with_its_sample(network, tools, bad, kind):
    samples = tools.samples(3)
    samples[1].feed["x"][0, 1, 2, 3] = bad
    with pytest.raises(StatisticsError, match=f"calib/0001.npz: input 'x' holds {kind}") as caught:
        network.collect(samples)
    assert caught.value.exit_code == 5
    assert caught.value.fields == {"sample": "calib/0001.npz", "tensor": "x"}


def log_network(tools, taps):
    """Log of a negative value is NaN; what comes behind reads it."""
    model = tools.model(
        """net (float[N,3] x) => (float[N,2] y) {
            a = Abs(x)
            s = Add(x, a)
            l = Log(x)
            m = Add(l, s)
            y = MatMul(m, G)
        }""",
        G=np.ones((3, 2), np.float32),
    )
    return tools.wrap(model, taps)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_first_tensor_that_is_not_finite_is_named_though_it_is_not_tapped(tools, batch):
    network = log_network(tools, (Tap("x"), Tap("m", -1, 3)))
    if batch == 2:
        network.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    good, bad = np.array([[1.0, 2.0, 3.0]], np.float32), np.array([[1.0, -2.0, 3.0]], np.float32)
    samples = [Sample({"x": good}, "good.npy"), Sample({"x": bad}, "bad.npy"), Sample({"x": good}, "later.npy")]
    with pytest.raises(StatisticsError, match=r"bad.npy: tensor 'l' \(output of Log 'Log_2'\) holds NaN") as caught:
        network.collect(samples)
    assert caught.value.fields == {"tensor": "l", "node": "Log_2", "sample": "bad.npy"}
    assert "leave the sample out" in str(caught.value)


def test_a_weight_that_holds_nan_is_named_in_place_of_the_sample(tools):
    network = log_network(tools, (Tap("m", -1, 3),))
    weight = next(each for each in network.model.graph.initializer if each.name == "G")
    weight.CopyFrom(numpy_helper.from_array(np.array([[1, 1], [1, np.nan], [1, 1]], np.float32), "G"))
    network = tools.wrap(network.model, (Tap("y", -1, 2),))
    with pytest.raises(StatisticsError, match=r"statistics: weight 'G' of MatMul 'MatMul_4' holds NaN;") as caught:
        network.collect([Sample({"x": np.array([[1.0, 2.0, 3.0]], np.float32)}, "good.npy")])
    assert caught.value.fields == {"tensor": "G", "node": "MatMul_4", "graph": "net"}


def test_infinity_is_named_too(tools):
    network = log_network(tools, (Tap("m", -1, 3),))
    samples = [Sample({"x": np.array([[1.0, 0.0, 3.0]], np.float32)}, "zero.npy")]
    with pytest.raises(StatisticsError, match=r"tensor .l. .* holds infinity"):
        network.collect(samples)


def test_channels_that_contradict_the_weights_are_reported_as_they_are(tools, network):
    odd = tools.wrap(network.model, (Tap("x", 1, 7),))
    with pytest.raises(StatisticsError, match="'x' has 2 channels on axis 1, the weights 7"):
        odd.collect(tools.samples(1))


def test_taps_on_inputs_alone_need_no_output(tools, network):
    inputs = tools.wrap(network.model, (Tap("x", 1, 2),))
    assert inputs.collect(tools.samples(2)).statistics.tensors["x"].count == 100


def counted(network, samples):
    counting = keeping.Counting(
        network.model, signature_of(network.model), network.taps, model_sha256="0" * 64, record=True
    )
    counting.extend(samples)
    return counting.result()


def test_recording_outputs_leaves_no_trace(network, tools):
    samples = tools.samples(6)
    found = counted(network, samples)
    assert tools.file_bytes(found.statistics) == tools.file_bytes(network.collect(samples).statistics)
    session = Session(network.model)
    assert [*found.outputs] == [sample.fingerprint for sample in samples]
    for sample, outputs in zip(samples, found.outputs.values(), strict=True):
        np.testing.assert_allclose(outputs["y"], session.run(sample.feed)["y"], rtol=1e-5, atol=1e-6)


def test_outputs_are_recorded_as_far_as_there_is_room(network, tools, monkeypatch):
    monkeypatch.setattr(keeping, "RECORDED_BYTES", 3 * (3 * 4 + keeping.HOLDING_BYTES))  # three float32 each
    samples = tools.samples(6)
    assert [*counted(network, samples).outputs] == [sample.fingerprint for sample in samples[:3]]


def test_outputs_of_a_fixed_batch_are_not_recorded(tools):
    assert counted(tools.network(2), tools.samples(4)).outputs == {}
