"""The corpus: jobs that are broken, beside the same jobs done right, as command lines in the folder that workshop.py fills."""

from __future__ import annotations

from dataclasses import dataclass

OK, USAGE, MODEL, DATA, STATISTICS, TABLE, GATE = 0, 2, 3, 4, 5, 6, 7
CODES = {OK, USAGE, MODEL, DATA, STATISTICS, TABLE, GATE}


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
         (r"outputs\.dead<=0", "6 of 10 channels are constant", "from scores"), GATE),
    Case("dead class", _int8("dead"), _int8("int8"), ('"logits"', "1 of 8 channels", "channels? 3"), GATE),
    Case("channel with a weight of zero", _SEGMENTER.format("zero_scale"), _SEGMENTER.format("int8"),
         (r"outputs\.dead",), GATE),
    Case("tied scores", _int8("tied"), _int8("int8"), ('"logits"', "different values", "order is lost")),
    Case("clipped logits", _int8("clipped"), _int8("int8"), ('"logits"', "of the values are saturated")),
    Case("saturated output", _SEGMENTER.format("saturated"), _SEGMENTER.format("int8"), ('"classes"', "of the values are saturated")),
    Case("collapsed embeddings", _EMBEDDER.format("collapsed"), _EMBEDDER.format("int8"), ('"embedding"', "nearest neighbours")),
    Case("outputs exchanged", _STEREO.format("exchanged"), _STEREO.format("int8"), ('"mean"', '"spread"', "exchanged")),
    Case("int8 model of other weights", _int8("other_int8"), _int8("int8"), ("another|other", "FP32")),
    Case("models exchanged", "evaluate stereo_int8.onnx stereo.onnx --data other-sides.npz --no-latency",
         _STEREO.format("int8"), ("is quantized", "float model first"), MODEL),
)  # fmt: skip

# The data is not what the model was trained on, or not what it will see.
PREPROCESSING = (
    Case("pixels not divided by 255", f"{_CLASSIFIER} undivided.yaml", _RIGHT, ("255|range",), code=GATE, strict=True),
    Case("BGR", f"{_CLASSIFIER} bgr.yaml", _RIGHT, ("BGR|order of colours",), strict=True),
    Case("wrong mean", f"{_CLASSIFIER} mean.yaml", _RIGHT, ("mean|preprocessing",), code=GATE, strict=True),
    Case("declared without scale and mean", f"{_CLASSIFIER} none.yaml", _RIGHT, ("255|range|preprocess",), code=GATE, strict=True),
    Case("no preprocessing at all", f"{_CALIBRATE} undeclared.yaml", CALIBRATED, ("preprocess",), strict=True),
    Case("grey images into an RGB model", f"{_CLASSIFIER} eval-grey.yaml", _RIGHT, ("all 96 evaluation images are grey", "three channels"), strict=True),
    Case("two inputs exchanged", f"{_ON_SIDES} swapped-sides.npz", f"{_ON_SIDES} other-sides.npz",
         ("unlike calibration data", "outside"), strict=True),
    Case("a channel in another unit", f"{_ON_FEATURES} scaled-features.npz", f"{_ON_FEATURES} other-features.npz",
         ("unlike calibration data", "outside"), strict=True),
    Case("evaluation brighter than calibration", f"{_CALIBRATE} eval-bright.yaml", CALIBRATED,
         ("unlike calibration data", "outside"), strict=True),
    Case("evaluation of another domain", f"{_CALIBRATE} eval-noise.yaml", CALIBRATED,
         ("unlike calibration data", "outside"), strict=True),
)  # fmt: skip

LABELS = (
    Case("labels shuffled", f"{_CLASSIFIER} eval-shuffled.yaml", _RIGHT, ("guessing among 8 classes", "labels"), strict=True),
    Case("labels off by one", f"{_CLASSIFIER} eval-off-by-one.yaml", _RIGHT, ("guessing among 8 classes", "labels"), strict=True),
    Case("folders in another order", f"{_CLASSIFIER} eval-order.yaml", _RIGHT, ("guessing among 8 classes", "order of .*classes"), strict=True),
    Case("more labels than classes", f"{_CLASSIFIER} eval-more-classes.yaml", _RIGHT,
         ("label 14 is not a class", "output has 8", "class folders"), DATA),
    Case("all labels equal", f"{_CLASSIFIER} eval-one-class.yaml", _RIGHT, ("all 12 samples have label 2",), strict=True),
    Case("untrained model", "evaluate untrained.onnx untrained.onnx --config right.yaml", _RIGHT, ("guessing among 8 classes",), strict=True),
    Case("a gate on labels without labels",
         f"{_ON_FEATURES} other-features.npz --gate top1.drop<=1",
         f"{_CALIBRATE} right.yaml --gate top1.drop<=5", ("label",), DATA),
)  # fmt: skip

SAMPLES = (
    Case("one sample", f"{_CALIBRATE} calib-one.yaml", CALIBRATED, ("one calibration sample",), strict=True),
    Case("five samples", f"{_CALIBRATE} calib-few.yaml", CALIBRATED, ("with 5 samples", "uncertain by"), strict=True),
    Case("duplicates", f"{_CALIBRATE} calib-same.yaml", CALIBRATED, ("56 of 64", "repeat others"), strict=True),
    Case("constant samples", f"{_CALIBRATE} calib-constant.yaml", CALIBRATED, ("64 of 64", "one single value or colour"), strict=True),
    Case("evaluation on calibration images", f"{_CALIBRATE} eval-calib.yaml", CALIBRATED, ("48 of 96 evaluation samples are calibration samples",), strict=True),
    Case("padding only", f"{_READER} padding.npz", f"{_READER} sentences.npz", ("64 of 64", "padding only"), code=GATE, strict=True),
    Case("silence", f"{_LISTENER} silence.npz", f"{_LISTENER} waves.npz", ("64 of 64", "one single value"), strict=True),
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
         ("verdict_metric:broken",), USAGE),
    Case("metric that is NaN", f"{_RIGHT} --metric verdict_metric:nothing", f"{_RIGHT} --metric verdict_metric:share",
         ("verdict_metric:nothing", "NaN"), USAGE),
    Case("metric of the wrong length", f"{_RIGHT} --metric verdict_metric:short",
         f"{_RIGHT} --metric verdict_metric:each", ("verdict_metric:short", "96"), USAGE),
    Case("metric that does not exist", f"{_RIGHT} --metric verdict_metric:absent",
         f"{_RIGHT} --metric verdict_metric:each", ("verdict_metric", "absent"), USAGE),
)  # fmt: skip

CASES = (*OUTPUTS, *PREPROCESSING, *LABELS, *SAMPLES, *JOBS)
