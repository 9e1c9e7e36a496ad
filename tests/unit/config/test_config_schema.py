"""What the keys of one job may hold, and how a mistake is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from int8cal.config.schema import JobLayer
from int8cal.errors import ConfigError
from int8cal.job import CalibrationSettings, DataSettings, EvaluationSettings, Job
from int8cal.preprocess import Preprocess

JOB = "model: a.onnx\ndata: photos\n"

CONTRACT = """\
model: model.onnx
data: {path: photos/train, samples: 512, preprocess: {resize: 256, crop: 224, color: RGB, layout: NCHW,
  scale: 0.00392156862745098, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}
calibration: {method: auto, percentile: 99.99}
quantization: {recipe: fast, target: portable, activations: u8, weights: paired,
  exclude: ["/head/*", "op:Softmax"], ranges: {input: [-2.2, 2.7]}}
evaluation: {data: photos/val, labels: folders, gates: ["top1.drop<=1.0"]}
output: {dir: out, overwrite: true}
"""


def test_the_documented_example_loads_field_by_field(load):
    (job,) = load(CONTRACT)
    preprocess = Preprocess(
        256, None, 224, "RGB", "NCHW", 0.00392156862745098, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    )
    assert job.data == DataSettings("photos/train", samples=512, preprocess=preprocess)
    assert job.calibration == CalibrationSettings("auto", 99.99)
    assert job.quantization.weights == "paired"
    assert job.quantization.exclude == ("/head/*", "op:Softmax")
    assert job.quantization.ranges == {"input": (-2.2, 2.7)}
    assert job.evaluation.data == DataSettings("photos/val", preprocess=preprocess, labels="folders")
    assert job.evaluation.gates == ("top1.drop<=1.0",)
    assert (str(job.output.dir), job.output.overwrite, job.name) == ("out", True, "model")


def test_left_out_keys_take_the_defaults_of_the_job_dataclasses(load):
    (job,) = load(JOB)
    assert job == Job(model=job.model, data=DataSettings("photos"), name="a")


def test_the_schema_states_the_defaults_of_the_job_dataclasses():
    layer = JobLayer()
    assert layer.calibration.model_dump() == vars(CalibrationSettings())
    assert layer.evaluation.latency == EvaluationSettings().latency


def test_a_json_schema_can_be_made():
    assert JobLayer.model_json_schema()["additionalProperties"] is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("calibraton: {}", 'job.yaml:3:1: calibraton: unknown key "calibraton"; did you mean "calibration"?'),
        (
            "calibration:\n  methd: kl",
            'job.yaml:4:3: calibration.methd: unknown key "methd"; did you mean "method"?',
        ),
        ("quantization: {optimize: speed}", "quantization.optimize: expected 'latency', got \"speed\""),
        ("method: kl", 'job.yaml:3:1: method: unknown key "method"; did you mean "calibration.method"?'),
        (
            "output: {zzz: 1}",
            'job.yaml:3:10: output.zzz: unknown key "zzz"; the keys here are dir, overwrite',
        ),
        (
            "calibration:\n  method: klm",
            "calibration.method: expected one of 'auto', 'kl', 'percentile', 'mse' or 'max', got \"klm\"; did you mean \"kl\"?",
        ),
        ("models: [a.onnx, b.onnx]", "for a job of each model write jobs: [{model: ...}, ...]"),
        ("calibration: {method: Entropy}", '"Entropy"; did you mean "kl"?'),
        ("quantization: {activations: QUInt8}", '"QUInt8"; did you mean "u8"?'),
        ("quantization: {nodes_to_exclude: [a]}", 'unknown key "nodes_to_exclude"; did you mean "exclude"?'),
        (
            "calibration: {percentile: '99'}",
            'job.yaml:3:27: calibration.percentile: expected a number, got "99"; write it without quotes',
        ),
        ("calibration: {batch_size: true}", "calibration.batch_size: expected a whole number, got true"),
        ("calibration: {threads: 1.5}", "calibration.threads: expected a whole number, got 1.5"),
        ("calibration: {percentile: 0}", "calibration.percentile: expected a number of at least 50, got 0"),
        ("calibration: {percentile: 100.1}", "calibration.percentile: expected a number of at most 100, got 100.1"),
        ("calibration: {percentile: .nan}", "calibration.percentile: expected a finite number, got nan"),
        ("calibration:", "calibration: expected a mapping, got nothing (null)"),
        ("quantization: {exclude: [7]}", "quantization.exclude[0]: expected text, got 7; quote it"),
        ("quantization: {exclude: '*'}", 'quantization.exclude: expected a list, got "*"'),
        (
            "quantization: {ranges: {x: [2, 1]}}",
            "quantization.ranges.x: expected [low, high] with low <= high, got [2, 1]",
        ),
        ("quantization: {ranges: {x: [1]}}", "quantization.ranges.x: expected [low, high]"),
        ("quantization: {ranges: {x: [-.inf, 1]}}", "quantization.ranges.x[0]: expected a finite number, got -inf"),
        ("evaluation: {gates: [top1.drop]}", 'gate "top1.drop" is not of the form NAME<=VALUE'),
        ("evaluation: {gates: ['top1.dorp<=1']}", 'did you mean "top1.drop"?'),
        ("output: {overwrite: 'yes'}", 'output.overwrite: expected true or false, got "yes"'),
        ("evaluation: {data: {samples: 0}}", "evaluation.data.samples: expected a number of at least 1, got 0"),
        ("name: ''", 'name: expected a name without slashes, got ""'),
        ("name: ../up", 'name: expected a name without slashes, got "../up"'),
        ("output: {dir: ''}", 'output.dir: expected a path, got ""'),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_was_expected(refused, text, message):
    assert message in refused(JOB + text + "\n")


@pytest.mark.parametrize("size", ["0", "-1", "1.5", "true", "[224]", "[224, 0]", "[1, 2, 3]", "big", "[1, true]"])
def test_a_size_is_a_side_or_a_pair_of_sides(refused, size):
    message = refused(f"model: a.onnx\ndata: {{path: d, preprocess: {{resize: {size}}}}}\n")
    assert "job.yaml:2:38: data.preprocess.resize: expected a number of pixels, or [height, width]" in message


def test_a_pair_of_sides_becomes_a_tuple(load):
    (job,) = load("model: a.onnx\ndata: {path: d, preprocess: {resize: [8, 16], crop: null}}\n")
    assert job.data.preprocess == Preprocess(resize=(8, 16))


def test_a_fraction_is_the_number_that_the_option_reads(load):
    (job,) = load(JOB.replace("photos", "{path: d, preprocess: {scale: 1/255, mean: [0.5], std: [-2/4]}}"))
    assert (job.data.preprocess.scale, job.data.preprocess.std) == (1 / 255, (-0.5,))


@pytest.mark.parametrize("text", ["1/0", "0/255", "1/2/3", "1 / 255", "1.5/255", "/255", "1/", "x/255"])
def test_what_is_no_fraction_of_integers_is_no_number(load, text):
    with pytest.raises(ConfigError, match=r"data\.preprocess\.scale: expected a number"):
        load(JOB.replace("photos", f"{{path: d, preprocess: {{scale: {text}}}}}"))


@pytest.mark.parametrize("key", ["scale: 0", "std: [1, 0]"])
def test_a_factor_of_zero_is_refused(refused, key):
    assert "a number other than 0" in refused(f"model: a.onnx\ndata: {{path: d, preprocess: {{{key}}}}}\n")


def test_the_first_mistake_of_the_file_is_told_and_the_others_are_counted(refused):
    message = refused("quiet: 1\n" + JOB + "output: 5\ncalibration: {method: x}\n")
    assert "job.yaml:1:8: quiet" in message
    assert message.endswith("(and 2 more mistakes)")
    # where there is nothing to advise, too
    assert refused(JOB + "calibration: {percentile: 101, threads: x}\n").endswith(", got 101 (and 1 more mistake)")


def test_numbers_without_a_point_are_numbers(load):
    (job,) = load(JOB.replace("photos", "{path: d, preprocess: {scale: 4e-3}}"))
    assert job.data.preprocess is not None
    assert job.data.preprocess.scale == 4e-3


def test_numeric_tensor_names_stay_text(load):
    (job,) = load(JOB + "quantization: {ranges: {123: [0, 6]}}\n")
    assert job.quantization.ranges == {"123": (0.0, 6.0)}


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_ordered_range_is_taken_as_it_is(low, high):
    low, high = min(low, high), max(low, high)
    layer = JobLayer.model_validate({"quantization": {"ranges": {"x": [low, high]}}})
    assert layer.quantization.ranges == {"x": [low, high]}
