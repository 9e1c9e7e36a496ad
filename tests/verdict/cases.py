"""The corpus: jobs that are broken, beside the same jobs done right, as command lines in the folder that workshop.py fills."""

from __future__ import annotations

from dataclasses import dataclass

OK, USAGE, MODEL, DATA, STATISTICS, TABLE, GATE = 0, 2, 3, 4, 5, 6, 7


@dataclass(frozen=True)
class Case:
    """A broken job and its right twin.

    Attributes:
        name: What is broken.
        broken, right: Arguments of int8cal.
        says: Patterns, all of which one sentence must hold: an error on stderr, or a warning of the report.
        code: The exit code of the broken job.
        strict: Whether it ends with 4 under --strict.
    """

    name: str
    broken: str
    right: str
    says: tuple[str, ...]
    code: int = OK
    strict: bool = False


_CLASSIFIER = "evaluate classifier.onnx classifier_int8.onnx --config"
_RIGHT = f"{_CLASSIFIER} right.yaml"
_CALIBRATE = "calibrate classifier.onnx --no-latency --config"
CALIBRATED = f"{_CALIBRATE} right.yaml -o made/right"
_DETECTOR = "evaluate detector.onnx detector_{}.onnx --data other-scenes.npz --no-latency"
_SEGMENTER = "evaluate segmenter.onnx segmenter_{}.onnx --data other-scenes.npz --no-latency"
_EMBEDDER = "evaluate embedder.onnx embedder_{}.onnx --data other-features.npz --no-latency"
_STEREO = "evaluate stereo.onnx stereo_{}.onnx --data other-sides.npz --no-latency"
_ON_FEATURES = "calibrate embedder.onnx --data features.npz --no-latency --eval-data"
_ON_SIDES = "calibrate stereo.onnx --data sides.npz --no-latency --eval-data"
_READER = "calibrate reader.onnx --eval-data other-sentences.npz --no-latency --data"
_LISTENER = "calibrate listener.onnx --eval-data other-waves.npz --no-latency --data"
_LOGARITHM = "calibrate logarithm.onnx --no-latency --data"


def _int8(name: str) -> str:
    return f"evaluate classifier.onnx classifier_{name}.onnx --config right.yaml"


# The int8 model is ruined, whatever its SQNR.
OUTPUTS = (
    Case("detection head under one scale", _DETECTOR.format("together"), _DETECTOR.format("apart"),
         (r"outputs\.dead", ), GATE),
    Case("dead class", _int8("dead"), _int8("int8"), (r"outputs\.dead",), GATE),
    Case("channel with a weight of zero", _SEGMENTER.format("zero_scale"), _SEGMENTER.format("int8"),
         (r"outputs\.dead",), GATE),
    Case("tied scores", _int8("tied"), _int8("int8"), ("logits", "order|rank|tie")),
    Case("clipped logits", _int8("clipped"), _int8("int8"), ("logits", "saturat")),
    Case("saturated output", _SEGMENTER.format("saturated"), _SEGMENTER.format("int8"), ("classes", "saturat")),
    Case("collapsed embeddings", _EMBEDDER.format("collapsed"), _EMBEDDER.format("int8"), ("embedding",)),
    Case("outputs exchanged", _STEREO.format("exchanged"), _STEREO.format("int8"), ('"mean"', '"spread"', "exchanged")),
    Case("int8 model of other weights", _int8("other_int8"), _int8("int8"), ("another|other", "FP32")),
    Case("models exchanged", "evaluate stereo_int8.onnx stereo.onnx --data other-sides.npz --no-latency",
         _STEREO.format("int8"), ("is quantized", "float model first"), MODEL),
)  # fmt: skip

# The data is not what the model was trained on, or not what it will see.
PREPROCESSING = (
    Case("pixels not divided by 255", f"{_CLASSIFIER} undivided.yaml", _RIGHT, ("255|range",), strict=True),
    Case("BGR", f"{_CLASSIFIER} bgr.yaml", _RIGHT, ("BGR|channel order",), strict=True),
    Case("wrong mean", f"{_CLASSIFIER} mean.yaml", _RIGHT, ("mean",), strict=True),
    Case("declared without scale and mean", f"{_CLASSIFIER} none.yaml", _RIGHT, ("255|range|preprocess",), strict=True),
    Case("no preprocessing at all", f"{_CALIBRATE} undeclared.yaml", CALIBRATED, ("preprocess",), strict=True),
    Case("grey images into an RGB model", f"{_CLASSIFIER} eval-grey.yaml", _RIGHT, ("grey",), strict=True),
    Case("two inputs exchanged", f"{_ON_SIDES} swapped-sides.npz", f"{_ON_SIDES} other-sides.npz",
         ("outside|drift|distribution",), strict=True),
    Case("a channel in another unit", f"{_ON_FEATURES} scaled-features.npz", f"{_ON_FEATURES} other-features.npz",
         ("outside|drift|distribution",), strict=True),
    Case("evaluation brighter than calibration", f"{_CALIBRATE} eval-bright.yaml", CALIBRATED,
         ("outside|drift|distribution",), strict=True),
    Case("evaluation of another domain", f"{_CALIBRATE} eval-noise.yaml", CALIBRATED,
         ("outside|drift|distribution",), strict=True),
)  # fmt: skip

LABELS = (
    Case("labels shuffled", f"{_CLASSIFIER} eval-shuffled.yaml", _RIGHT, ("chance",), strict=True),
    Case("labels off by one", f"{_CLASSIFIER} eval-off-by-one.yaml", _RIGHT, ("chance|label",), strict=True),
    Case("folders in another order", f"{_CLASSIFIER} eval-order.yaml", _RIGHT, ("folder|label|chance",), strict=True),
    Case("more labels than classes", f"{_CLASSIFIER} eval-more-classes.yaml", _RIGHT,
         ("label 10", "has 8", "class folders"), DATA),
    Case("all labels equal", f"{_CLASSIFIER} eval-one-class.yaml", _RIGHT, ("label",), strict=True),
    Case("untrained model", "evaluate untrained.onnx untrained.onnx --config right.yaml", _RIGHT, ("chance",), strict=True),
    Case("a gate on labels without labels",
         f"{_ON_FEATURES} other-features.npz --gate top1.drop<=1",
         f"{_CALIBRATE} right.yaml --gate top1.drop<=5", ("label",), DATA),
)  # fmt: skip

SAMPLES = (
    Case("one sample", f"{_CALIBRATE} calib-one.yaml", CALIBRATED, ("one ",), strict=True),
    Case("five samples", f"{_CALIBRATE} calib-few.yaml", CALIBRATED, ("5 ",), strict=True),
    Case("duplicates", f"{_CALIBRATE} calib-same.yaml", CALIBRATED, ("duplicate|same",), strict=True),
    Case("constant samples", f"{_CALIBRATE} calib-constant.yaml", CALIBRATED, ("constant",), strict=True),
    Case("evaluation on calibration images", f"{_CALIBRATE} eval-calib.yaml", CALIBRATED, ("48",), strict=True),
    Case("padding only", f"{_READER} padding.npz", f"{_READER} sentences.npz", ("padding",), strict=True),
    Case("silence", f"{_LISTENER} silence.npz", f"{_LISTENER} waves.npz", ("zero|single value",), GATE),
    Case("NaN of the FP32 model in calibration", f"{_LOGARITHM} features.npz --eval-data other-positive.npz", f"{_LOGARITHM} positive.npz --eval-data other-positive.npz",
         (r"features\.npz\[0\]", "'logarithm'", "NaN"), STATISTICS),
    Case("NaN of the FP32 model in evaluation", f"{_LOGARITHM} positive.npz --eval-data other-features.npz",
         f"{_LOGARITHM} positive.npz --eval-data other-positive.npz", (r"other-features\.npz\[0\]", '"y"', "NaN"), STATISTICS),
)  # fmt: skip

JOBS = (
    Case("table of another model", "quantize segmenter.onnx --table made/right/classifier.table.json -o made/segmenter.int8.onnx",
         "quantize classifier.onnx --table made/right/classifier.table.json -o made/classifier.int8.onnx", ("table",), TABLE),
    Case("gate that can never hold", f"{_RIGHT} --gate agreement>=99", f"{_RIGHT} --gate agreement>=0.95",
         ("agreement",), USAGE),
    Case("gates that contradict each other", f"{_RIGHT} --gate sqnr_db>=20 --gate sqnr_db<=10",
         f"{_RIGHT} --gate sqnr_db>=10 --gate sqnr_db<=60", ("sqnr_db",), USAGE),
    Case("gate on speed without latency", f"{_RIGHT} --no-latency --gate latency.speedup>=1", f"{_RIGHT} --no-latency",
         ("latency",), USAGE),
    Case("metric that fails", f"{_RIGHT} --metric verdict_metric:broken", f"{_RIGHT} --metric verdict_metric:share",
         ("verdict_metric:broken",), DATA),
    Case("metric that is NaN", f"{_RIGHT} --metric verdict_metric:nothing", f"{_RIGHT} --metric verdict_metric:share",
         ("verdict_metric:nothing", "NaN"), DATA),
    Case("metric of the wrong length", f"{_RIGHT} --metric verdict_metric:short",
         f"{_RIGHT} --metric verdict_metric:each", ("verdict_metric:short", "96"), DATA),
    Case("metric that does not exist", f"{_RIGHT} --metric verdict_metric:absent",
         f"{_RIGHT} --metric verdict_metric:each", ("verdict_metric", "absent"), USAGE),
)  # fmt: skip

_NOT_TOLD_YET = (*OUTPUTS[:7], *PREPROCESSING, *LABELS[:3], *LABELS[4:6], *SAMPLES[:6], *JOBS[4:])
CASES = tuple(case for case in (*OUTPUTS, *PREPROCESSING, *LABELS, *SAMPLES, *JOBS) if case not in _NOT_TOLD_YET)
