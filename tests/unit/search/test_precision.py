"""Where eight bits are too few: what is measured, what is chosen, and what is never touched."""

import math
from dataclasses import replace

import numpy as np
import pytest

import int8cal
from int8cal.calibration.ranges import choose_ranges
from int8cal.data.sample import Sample
from int8cal.errors import TableError
from int8cal.graph.costs import inference_us
from int8cal.graph.index import Index
from int8cal.graph.islands import owner_of
from int8cal.job import CalibrationSettings, QuantizationSettings
from int8cal.quantization.corrections.residual_codes import FACTOR, ResidualCodes
from int8cal.quantization.table import TableSettings
from int8cal.quantization.table_file import table_to_json
from int8cal.search.candidate import FEW, Inputs
from int8cal.search.precision import LEAST_SAMPLES, MOST_PARTS, Precision, Sweep, optional_regions
from int8cal.search.scorer import LEAST_FIT
from int8cal.search.steps import output_error

pytestmark = pytest.mark.usefixtures("bytes_are_free")

MLP = "g (float[N,32] x) => ({}[N,{}] y) {{ h = Gemm(x, W, B) r = Relu(h) z = Gemm(r, V) y = {} }}"
RESIDUAL = """g (float[N,3,8,8] x) => (float[N,4] y) {
    h = Conv <pads = [1, 1, 1, 1]> (x, W, B) r = Relu(h)
    i = Conv <pads = [1, 1, 1, 1]> (r, U) a = Add(r, i)
    j = Conv <pads = [1, 1, 1, 1]> (a, T) b = Add(a, j)
    p = GlobalAveragePool(b) f = Flatten(p) y = Gemm(f, V)
}"""
ATTENTIVE = "g (float[N,256,16,16] x) => (float[N,4] y) {{ c = Conv(x, W) s = {}(c) f = Flatten(s) y = Gemm(f, V) }}"


def mlp(bench, kind="float", width=8, last="Identity(z)"):
    rng = np.random.default_rng(1)
    weights = {"W": rng.normal(size=(32, 32)) / 5, "B": (32,), "V": rng.normal(size=(32, 8)) / 5}
    return bench.text(MLP.format(kind, width, last), **weights)


def residual(bench):
    return bench.text(RESIDUAL, W=(8, 3, 3, 3), B=(8,), U=(8, 8, 3, 3), T=(8, 8, 3, 3), V=(8, 4))


def feeds(count, *shape, seed=6):
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(1, *shape)).astype(np.float32)} for _ in range(count)]


def rare_peaks(bench, op):
    """A tensor `c` whose values are small but for one in two thousand, sixteen times the others' deviation."""
    rng = np.random.default_rng(2)
    weight = rng.choice([-0.2, 0.2], size=(8, 256, 1, 1))
    data = []
    for _ in range(72):
        x = rng.choice([-1.0, 1.0], size=(1, 256, 16, 16)).astype(np.float32)
        row, column = rng.integers(16, size=2)
        x[0, :, row, column] = np.sign(weight[0, :, 0, 0]) * rng.uniform(0.9, 1.0)
        data.append({"x": x})
    return bench.text(ATTENTIVE.format(op), W=weight, V=(8 * 256, 4)), data


def measured(bench, model, data, **quantization):
    """Model -> (Precision, ranges, settings)."""
    samples = [Sample(feed, str(index)) for index, feed in enumerate(data)]
    prepared, plan = bench.prepared(model), bench.plan(model)
    statistics = bench.statistics(prepared, plan, samples)
    settings = CalibrationSettings(), QuantizationSettings(**quantization)
    ranges = choose_ranges(plan, statistics.tensors, *settings)
    precision = Precision(
        prepared.model, plan, prepared.signature, statistics.tensors, samples, seen=len(samples), seconds=3.0, threads=1
    )
    return precision, ranges, settings


def affines(ranges):
    return {name: entry.affine for name, entry in ranges.entries.items()}


def test_shares_add_up_to_all_the_noise(bench):
    precision, ranges, _ = measured(bench, residual(bench), feeds(8, 3, 8, 8))
    sweep = precision.sweep(affines(ranges))
    assert set(sweep.groups) == set(precision.plan.groups)
    assert sum(sweep.groups.values()) == pytest.approx(1.0)
    assert min(sweep.groups.values()) > 0
    assert all(0 < share < 1.5 for share in sweep.floats.values())
    assert sweep.samples <= 8


def test_a_tensor_with_a_coarse_range_has_most_of_the_noise(bench):
    precision, ranges, _ = measured(bench, residual(bench), feeds(8, 3, 8, 8))
    known = affines(ranges)
    group = next(each.group for each in precision.plan.tensors if each.tensor == "r")
    for point in precision.plan.members(group):
        known[point.tensor] = replace(known[point.tensor], scale=known[point.tensor].scale * 16)
    assert precision.sweep(known).groups[group] > 0.8


def test_those_that_are_asked_for_have_their_share_of_the_noise_of_all(bench):
    precision, ranges, _ = measured(bench, residual(bench), feeds(8, 3, 8, 8))
    whole = precision.sweep(affines(ranges))
    wanted = precision.open_to_residual_codes()
    some = precision.sweep(affines(ranges), wanted)
    assert 0 < len(wanted) < len(whole.groups)
    assert {group for group, share in some.groups.items() if share > 0} == wanted
    # errors of different tensors have little to do with each other
    assert some.total == pytest.approx(whole.total, rel=0.2)
    assert {group: some.groups[group] for group in wanted} == pytest.approx(
        {group: whole.groups[group] * whole.total / some.total for group in wanted}
    )
    assert some.floats.keys() == whole.floats.keys()


def test_the_noise_of_all_is_measured_in_parts_that_fit_into_memory(bench, monkeypatch):
    precision, ranges, _ = measured(bench, residual(bench), feeds(8, 3, 8, 8))
    wanted = precision.open_to_residual_codes()
    once = precision.sweep(affines(ranges), wanted)
    monkeypatch.setattr("int8cal.search.precision.PART_BYTES", 1)
    parts = precision.sweep(affines(ranges), wanted)
    assert parts.total == pytest.approx(once.total, rel=0.2)
    assert parts.total != once.total


def test_where_there_is_no_time_for_all_parts_shares_are_of_the_noise_of_the_int8_model(bench, monkeypatch):
    precision, ranges, _ = measured(bench, residual(bench), feeds(8, 3, 8, 8))
    monkeypatch.setattr("int8cal.search.precision.PART_BYTES", 1)
    monkeypatch.setattr("int8cal.search.precision.LEAST_GROUPS", 2)
    runs = []
    rounding_noise = precision.probe.rounding_noise
    monkeypatch.setattr(
        precision.probe, "rounding_noise", lambda *given: runs.append(len(given[1])) or rounding_noise(*given)
    )
    precision.seconds = 0.5 * precision.run_s
    known = affines(ranges)
    all_parts = precision.sweep(known)
    int8 = 4 * all_parts.total
    assert runs[0] > 2 + MOST_PARTS
    precision._errors.clear()
    sweep = precision.sweep(known, noise=int8)
    assert runs[1:] == [2]
    assert sweep.total == int8
    assert sweep.groups == {group: pytest.approx(share / 4) for group, share in all_parts.groups.items()}
    # less than the two have by themselves cannot be all
    precision._errors.clear()
    assert math.fsum(precision.sweep(known, noise=1e-9 * int8).groups.values()) == pytest.approx(1)
    # few parts are measured all the same
    monkeypatch.setattr("int8cal.search.precision.PART_BYTES", 64_000_000)
    precision._errors.clear()
    assert precision.sweep(known, noise=int8).total < int8
    assert runs[-1] == 3


def test_what_was_measured_is_not_run_again(bench, monkeypatch):
    precision, ranges, _ = measured(bench, mlp(bench), feeds(8, 32))
    known = affines(ranges)
    runs: list[tuple[int, int]] = []
    measure = precision.probe.rounding_noise

    def counted(samples, roundings):
        runs.append((len(samples), len(roundings)))
        return measure(samples, roundings)

    monkeypatch.setattr(precision.probe, "rounding_noise", counted)
    first = precision.sweep(known)
    assert runs == [(8, len(known))]
    assert precision.sweep(known).groups == first.groups
    assert runs[1:] == []
    other = known | {"r": replace(known["r"], scale=4 * known["r"].scale)}
    assert precision.sweep(other).groups["r"] > first.groups["r"]
    assert runs[1:] == [(8, 1)]


def test_what_takes_more_time_than_its_share_of_the_noise_is_worth_is_left(bench):
    precision, ranges, _ = measured(bench, residual(bench), feeds(8, 3, 8, 8))
    sweep = precision.sweep(affines(ranges))
    (dearest, *_), _ = precision.upgrades(sweep, math.inf)
    rate = dearest.gain / (dearest.us / precision.whole_us)
    assert dearest in precision.upgrades(sweep, math.inf, least_worth=0.99 * rate)[0]
    taken, lines = precision.upgrades(sweep, math.inf, least_worth=1.01 * rate)
    assert dearest not in taken
    assert any(line.startswith(dearest.what) and line.endswith(": too little for its time") for line in lines)


def test_what_makes_the_model_grow_by_more_than_it_is_worth_is_left(bench):
    precision, ranges, _ = measured(bench, mlp(bench), feeds(8, 32))
    sweep = precision.sweep(affines(ranges))
    whole = next(each for each in precision.upgrades(sweep, math.inf)[0] if each.bytes)  # before all others
    assert whole.bytes == sum(math.prod(layer.dims) for layer in precision.plan.layers if layer.node in whole.residual)
    price = -10 * math.log10(1 - whole.gain) / whole.bytes
    vars(precision)["_byte_worth_db"] = 0.99 * price
    assert whole in precision.upgrades(sweep, math.inf)[0]
    vars(precision)["_byte_worth_db"] = 1.01 * price
    taken, lines = precision.upgrades(sweep, math.inf)
    assert whole not in taken
    assert any(line.startswith(whole.what) and line.endswith(": too little for its bytes") for line in lines)
    assert whole in precision.upgrades(sweep, math.inf, least_worth=1e-9)[0]  # where time has a price, that decides


def test_what_is_beyond_the_allowance_by_itself_is_not_measured(bench):
    precision, ranges, _ = measured(bench, residual(bench), feeds(8, 3, 8, 8))
    every, some = (precision.open_to_residual_codes(allowance) for allowance in (math.inf, 0.0))
    assert every
    assert some == set()
    sweep = precision.sweep(affines(ranges), some, 0.0)
    assert set(sweep.groups.values()) == {0.0}
    assert sweep.floats == {}


def test_nothing_runs_where_nothing_can_be_done(bench):
    precision, ranges, _ = measured(bench, residual(bench), feeds(8, 3, 8, 8))
    precision.regions = ()
    nothing = precision.sweep(affines(ranges), set())
    assert (nothing.samples, nothing.total, set(nothing.groups.values())) == (0, 0.0, {0.0})
    assert precision.upgrades(nothing, math.inf)[0] == ()


@pytest.mark.parametrize("least", [1, 3])
def test_where_time_is_short_the_coarsest_tensors_alone_are_measured(bench, least, monkeypatch):
    monkeypatch.setattr("int8cal.search.precision.LEAST_GROUPS", least)
    precision, ranges, _ = measured(bench, residual(bench), feeds(8, 3, 8, 8))
    known = affines(ranges)
    group = next(each.group for each in precision.plan.tensors if each.tensor == "r")
    for point in precision.plan.members(group):
        known[point.tensor] = replace(known[point.tensor], scale=known[point.tensor].scale * 16)
    precision.seconds = 0.5 * precision.run_s
    sweep = precision.sweep(known)
    assert (set(sweep.groups), sweep.floats, sweep.samples) == (set(precision.plan.groups), {}, 1)
    # and what all do together
    assert sum(share > 0 for share in sweep.groups.values()) == least < len(sweep.groups)
    assert sweep.groups[group] > 0.8
    assert not precision.has_time_for_ranges


def test_a_dominating_input_gets_a_second_plane_and_pays_for_it(bench):
    precision, ranges, _ = measured(bench, mlp(bench), feeds(8, 32))
    sweep = precision.sweep(affines(ranges))
    taken, lines = precision.upgrades(sweep, math.inf)
    assert next(each.residual for each in taken if each.residual) == ("Gemm_h",)
    assert all(each.us > 0 and each.gain > 0 for each in taken)
    assert len(lines) == 2
    nothing, lines = precision.upgrades(sweep, 0.0)
    assert nothing == ()
    assert all(line.endswith(("more than --latency-allowance leaves", "too little to be tried")) for line in lines)
    assert precision.upgrades(sweep, math.inf, residual=False) == ((), ())


def test_the_allowance_is_not_exceeded(bench):
    precision, ranges, _ = measured(bench, residual(bench), feeds(8, 3, 8, 8))
    sweep = precision.sweep(affines(ranges))
    everything = sum(each.us for each in precision.upgrades(sweep, math.inf)[0])
    whole = everything / 2
    allowance = whole / inference_us(precision.model, precision.plan, precision.elements)
    some, lines = precision.upgrades(sweep, allowance)
    assert sum(each.us for each in some) <= whole
    assert any(line.endswith("more than --latency-allowance leaves") for line in lines)


def test_no_second_plane_where_integer_nodes_read_the_first(bench):
    text = "g (float[N,4,8,8] x) => (float[A,C,D,E] y) { a = Conv(x, W) s = Add(x, a) y = Conv(s, V) }"
    model = bench.text(text, W=(4, 4, 1, 1), V=(4, 4, 1, 1))
    precision, ranges, _ = measured(bench, model, feeds(8, 4, 8, 8))
    taken, _ = precision.upgrades(precision.sweep(affines(ranges)), math.inf)
    assert not any(each.residual for each in taken)


def test_optional_nodes_that_hand_on_to_each_other_are_one_region(bench):
    precision, _, _ = measured(bench, residual(bench), feeds(2, 3, 8, 8))
    assert optional_regions(Index(precision.model), precision.plan) == (
        ("Add_a", "Add_b", "GlobalAveragePool_p", "Flatten_f"),
    )


def test_the_owner_of_a_tensor_is_the_kernel_that_writes_it_activation_and_all(bench):
    precision, _, _ = measured(bench, residual(bench), feeds(2, 3, 8, 8))
    index = Index(precision.model)
    owners = {name: owner_of(index, precision.plan, name) for name in ("x", "r", "a", "f", "y", "h")}
    assert owners == {"x": "", "r": "Conv_h", "a": "Add_a", "f": "Flatten_f", "y": "", "h": ""}


def test_clipping_that_does_no_harm_narrows_a_range(bench):
    precision, ranges, settings = measured(bench, *rare_peaks(bench, "Sigmoid"))
    better, lines = precision.better_ranges(precision.sweep(affines(ranges)), ranges, *settings)
    assert better.entries["c"].method == "outputs"
    assert better.entries["c"].high < 0.75 * ranges.entries["c"].high
    assert better.entries["c"].clipped > 0
    assert any(line.startswith("range of c: ") for line in lines)


def test_an_end_beyond_which_its_reader_tells_nothing_apart_is_moved(bench):
    rng = np.random.default_rng(2)
    model = bench.text(ATTENTIVE.format("Elu"), W=rng.normal(size=(8, 256, 1, 1)), V=(8 * 256, 4))
    precision, ranges, settings = measured(bench, model, feeds(32, 256, 16, 16))
    better, lines = precision.better_ranges(precision.sweep(affines(ranges)), ranges, *settings)
    before, after = ranges.entries["c"], better.entries["c"]
    assert after.method == "outputs"
    assert after.low > 0.6 * before.low
    assert after.high > 0.8 * before.high
    assert lines[0].startswith(f"range of c: {after.low:.4g} to {after.high:.4g} in place of mse, ")


def test_a_channel_that_makes_most_of_the_noise_gets_residual_codes_by_itself(bench):
    rng = np.random.default_rng(2)
    weight = rng.normal(size=(128, 32))
    weight[[3, 70]] *= 30
    model = bench.text("g (float[N,256,128] x) => (float[N,256,32] y) { n = Tanh (x) y = MatMul (n, W) }", W=weight)
    precision, ranges, _ = measured(bench, model, feeds(8, 256, 128))
    sweep = precision.sweep(affines(ranges))
    whole = inference_us(precision.model, precision.plan, precision.elements)
    (everything,), lines = precision.upgrades(sweep, math.inf)
    assert everything.residual == ("MatMul_y",)
    assert [line.rpartition(": ")[2] for line in lines] == ["tried", "tried"]
    # where there is no time for all channels, these two alone
    (taken,), _ = precision.upgrades(sweep, 0.99 * everything.us / whole)
    assert taken.fine == {"MatMul_y": (3, 70)}
    assert 0.8 < taken.gain < everything.gain


def test_channels_of_a_tensor_that_has_residual_codes_are_not_told(bench):
    weight = np.random.default_rng(2).normal(size=(128, 32))
    weight[3] *= 2.5  # enough to be looked at by itself, too little to be worth it before all others
    model = bench.text("g (float[N,256,128] x) => (float[N,256,32] y) { n = Tanh (x) y = MatMul (n, W) }", W=weight)
    precision, ranges, _ = measured(bench, model, feeds(8, 256, 128))
    sweep = precision.sweep(affines(ranges))
    (taken,), (line,) = precision.upgrades(sweep, math.inf)
    assert taken.residual == ("MatMul_y",)
    assert line.startswith("residual codes for n would take away ")
    # where they have none, both are told
    assert len(precision.upgrades(sweep, 0.0)[1]) == 2


def test_rare_values_that_matter_keep_their_range(bench):
    precision, ranges, settings = measured(bench, *rare_peaks(bench, "LeakyRelu <alpha = 0.9> "))
    better, _ = precision.better_ranges(precision.sweep(affines(ranges)), ranges, *settings)
    assert better.entries["c"] == ranges.entries["c"]


@pytest.mark.parametrize("fixed", ["method", "range"])
def test_what_the_user_fixed_stays(bench, fixed):
    given = {"ranges": {"c": (-50.0, 50.0)}} if fixed == "range" else {}
    precision, ranges, (calibration, quantization) = measured(bench, *rare_peaks(bench, "Sigmoid"), **given)
    calibration = replace(calibration, method="max" if fixed == "method" else "auto")
    better, _ = precision.better_ranges(precision.sweep(affines(ranges)), ranges, calibration, quantization)
    assert better.entries["c"] == ranges.entries["c"]


def test_few_samples_say_nothing_about_ranges(bench):
    model, data = rare_peaks(bench, "Sigmoid")
    precision, ranges, settings = measured(bench, model, data[: LEAST_SAMPLES - 1])
    assert precision.better_ranges(precision.sweep(affines(ranges)), ranges, *settings) == (ranges, ())


@pytest.mark.parametrize(
    ("kind", "width", "last"),
    [("int64", 1, "ArgMax <axis = 1> (z)"), ("float", 8, "Log(q)"), ("float16", 8, "Cast <to = 10> (z)")],
)
def test_no_figure_is_ever_not_a_number(bench, kind, width, last):
    model = mlp(bench, kind, width, last)
    if last == "Log(q)":
        model = mlp(bench, kind, width, "Identity(z)")
        model.graph.node[-1].CopyFrom(bench.text(MLP.format(kind, width, "Log(z)"), W=(1,)).graph.node[-1])
    precision, ranges, _ = measured(bench, model, feeds(8, 32))
    sweep = precision.sweep(affines(ranges))
    figures = [*sweep.groups.values(), *sweep.floats.values(), sweep.total, *sweep.signal]
    assert np.isfinite(figures).all()
    taken, _ = precision.upgrades(sweep, math.inf)
    assert taken


# The whole flow


@pytest.fixture(scope="module")
def flow(bench):
    return mlp(bench), feeds(70, 32)


def test_the_default_flow_takes_planes_when_it_may_and_none_without_an_allowance(flow):
    table = int8cal.calibrate(*flow, latency_allowance=1000)
    assert ResidualCodes.of(table).values["Gemm_h"] == FACTOR
    assert table.settings.recorded["latency_allowance"] == 1000
    frugal = int8cal.calibrate(*flow, latency_allowance=0)
    assert not ResidualCodes.of(frugal)
    assert "left_for_accuracy" not in frugal.settings.recorded


def test_where_all_together_are_not_worth_their_time_the_best_half_is_tried(bench, monkeypatch):
    asked: list[float] = []

    def worth_db(_, us):
        asked.append(us)
        return 100.0 if len(asked) == 1 else 0.0

    monkeypatch.setattr(Inputs, "worth_db", worth_db)
    two = "g (float[N,32] x) => (float[N,8] y) { h = Gemm(x, W, B) r = Tanh(h) y = Gemm(r, V) }"
    rng = np.random.default_rng(1)
    model = bench.text(two, W=rng.normal(size=(32, 32)) / 5, B=(32,), V=rng.normal(size=(32, 8)) / 5)
    table = int8cal.calibrate(model, feeds(70, 32), latency_allowance=1000)
    assert len(asked) == 2
    assert asked[1] < asked[0]
    assert len(ResidualCodes.of(table).values) == 1


def test_the_same_data_gives_the_same_table_on_any_number_of_threads(flow):
    tables = [int8cal.calibrate(*flow, latency_allowance=1000, threads=threads) for threads in (1, 1, 2)]
    texts = [
        table_to_json(replace(table, settings=TableSettings({**table.settings.recorded, "threads": 0})))
        for table in tables
    ]
    assert texts[0] == texts[1] == texts[2]
    models = [int8cal.quantize(flow[0], table).SerializeToString(deterministic=True) for table in tables]
    assert models[0] == models[1] == models[2]


def test_one_sample_cannot_tell_what_helps(flow):
    assert not ResidualCodes.of(int8cal.calibrate(flow[0], flow[1][:1], latency_allowance=1000))


def test_few_samples_get_planes_but_no_range_is_fitted_to_them(flow, bench):
    assert ResidualCodes.of(int8cal.calibrate(flow[0], flow[1][:10], latency_allowance=1000))
    model, data = rare_peaks(bench, "Sigmoid")
    many, few = (int8cal.calibrate(model, data[:count]) for count in (len(data), 2 * LEAST_FIT - 1))
    assert many.tensors["c"].method == "outputs"
    assert few.tensors["c"].method not in ("outputs", "percentile")


def test_a_range_that_the_user_gave_is_as_wide_in_two_planes(flow):
    table = int8cal.calibrate(*flow, latency_allowance=1000, ranges={"x": (-3.0, 3.0)})
    entry = table.tensors["x"]
    assert "Gemm_h" in ResidualCodes.of(table).values
    np.testing.assert_allclose([entry.low, entry.high], [-3.0, 3.0], atol=entry.scale)


def test_signed_activations_get_no_second_plane(flow):
    assert not ResidualCodes.of(int8cal.calibrate(*flow, latency_allowance=1000, activations="s8"))


def test_an_excluded_layer_gets_no_second_plane(flow):
    table = int8cal.calibrate(*flow, latency_allowance=1000, exclude=["Gemm_h"])
    assert set(ResidualCodes.of(table).values) == {"Gemm_z"}


@pytest.mark.parametrize("pixels", [False, True])
def test_optional_nodes_stay_float_where_it_is_allowed_and_the_table_says_so(bench, pixels):
    rng = np.random.default_rng(8)
    data = [{"x": rng.integers(0, 256, (1, 3, 8, 8)).astype(np.float32)} for _ in range(2 * FEW + 1)]
    shapes = {"W": (8, 3, 3, 3), "B": (8,), "U": (8, 8, 3, 3), "T": (8, 8, 3, 3), "V": (8, 4)}
    # weights without rounding errors: all the noise is that of activations
    model = bench.text(RESIDUAL, **{name: rng.choice([-0.5, 0.5], size=shape) for name, shape in shapes.items()})
    table = int8cal.calibrate(model, data, latency_allowance=1000, uint8_input=pixels)
    assert {"Add_a", "Add_b"} <= set(table.settings.left("left_for_accuracy"))
    built = int8cal.quantize(model, table)
    types = [node.op_type for node in built.graph.node]
    assert "QuantizeLinear" not in types[types.index("GlobalAveragePool") : types.index("Flatten")]
    assert bench.run(built, {"x": data[0]["x"].astype(np.uint8) if pixels else data[0]["x"]})["y"].shape == (1, 4)


@pytest.mark.parametrize("kind", ["argmax", "shape"])
def test_models_whose_outputs_cannot_be_compared_are_scored_in_front_of_what_decides(bench, kind):
    if kind == "argmax":
        model = mlp(bench, "int64", 1, "ArgMax <axis = 1> (z)")
    else:
        text = "g (float[N,32] x) => (float[A] y) { h = Gemm(x, W, B) r = Relu(h) z = Gemm(r, V) n = NonZero(z) "
        text += "f = Cast <to = 1> (n) y = ReduceSum <keepdims = 0> (f, axis) }"
        model = bench.text(text, W=(32, 32), B=(32,), V=(32, 8), axis=np.array([0]))
    table = int8cal.calibrate(model, feeds(70, 32), latency_allowance=1000)
    assert ResidualCodes.of(table).values["Gemm_h"] == FACTOR


@pytest.mark.parametrize("channels", [1, 3])
def test_a_layer_that_takes_raw_pixels_has_no_second_plane(bench, channels):
    rng = np.random.default_rng(8)
    data = [{"x": rng.integers(0, 256, (1, channels, 8, 8)).astype(np.float32)} for _ in range(4)]
    text = f"g (float[N,{channels},8,8] x) => (float[A,C,D,E] y) {{ h = Conv(x, W, B) y = Tanh(h) }}"
    model = bench.text(text, W=(4, channels, 3, 3), B=(4,))
    table = int8cal.calibrate(model, data, uint8_input=True)
    table = table.corrected(ResidualCodes({"Conv_h": FACTOR}))
    with pytest.raises(TableError, match="names 'Conv_h', which is no layer with an input of its own in float"):
        int8cal.quantize(model, table)


def test_what_is_left_is_shared_out_anew_where_some_have_residual_codes():
    sweep = Sweep({"a": 0.8, "b": 0.15, "c": 0.05}, {("n",): 0.1}, 2.0, np.ones(1), 4)
    rest = sweep.without({"a"})
    left = 1 - 0.97 * 0.8
    assert rest.groups == pytest.approx({"a": 0.0, "b": 0.15 / left, "c": 0.05 / left})
    assert rest.floats == pytest.approx({("n",): 0.1 / left})
    assert rest.total == pytest.approx(2.0 * left)
    assert sweep.without(()).groups == sweep.groups
    loud = replace(sweep, groups={"a": 1.5, "b": 0.1, "c": 0.1}).without({"a"})
    assert all(0.0 <= share < math.inf for share in loud.groups.values())


def test_another_round_starts_from_the_ranges_of_the_one_before(bench, monkeypatch):
    rounds, better_ranges = [], Precision.better_ranges

    def recorded(self, sweep, ranges, *settings):
        better, lines = better_ranges(self, sweep, ranges, *settings)
        rounds.append((ranges.entries["c"], better.entries["c"]))
        return better, lines

    monkeypatch.setattr(Precision, "better_ranges", recorded)
    monkeypatch.setattr(output_error, "HALF_DB", 0.1)
    table = int8cal.calibrate(*rare_peaks(bench, "Sigmoid"))
    assert len(rounds) > 1
    (first, chosen), *later = rounds
    assert chosen.high < 0.75 * first.high
    assert all(before == chosen for before, _ in later[:1])
    assert table.tensors["c"].affine == rounds[-1][1].affine


def test_float_regions_are_measured_where_ranges_took_the_time(bench, monkeypatch):
    blocks = [f"c{n} = Conv(r{n}, W{n}) a{n} = Add(r{n}, c{n}) r{n + 1} = Relu(a{n})" for n in range(40)]
    text = f"g (float[N,8,6,6] x) => (float[N,8,6,6] y) {{ r0 = Conv(x, V) {' '.join(blocks)} y = Conv(r40, V) }}"
    model = bench.text(text, V=(8, 8, 1, 1), **{f"W{n}": (8, 8, 1, 1) for n in range(40)})
    seen, upgrades = [], Precision.upgrades

    def recorded(self, sweep, *more, **others):
        seen.append((self, sweep))
        return upgrades(self, sweep, *more, **others)

    monkeypatch.setattr(Precision, "upgrades", recorded)
    monkeypatch.setattr(
        "int8cal.search.precision.run_seconds", lambda *_: 1.5 / 70
    )  # seconds of `fast` for 70 inferences
    int8cal.calibrate(model, feeds(4 * LEAST_FIT, 8, 6, 6), latency_allowance=1000)
    precision, sweep = seen[0]
    assert precision.has_time_for_ranges
    assert len(precision.plan.groups) > 70
    assert sweep.floats
