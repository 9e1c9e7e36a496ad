"""The directory in which all jobs of the corpus run: models, data and YAML files, made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import verdict_data as data
import verdict_models as models

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = {"scale": 1 / 255, "mean": data.MEAN.tolist(), "std": data.STD.tolist(), "color": "RGB", "layout": "NCHW"}
PREPROCESSING = {
    "right": RIGHT,
    "undivided": {key: value for key, value in RIGHT.items() if key != "scale"},
    "bgr": RIGHT | {"color": "BGR", "mean": RIGHT["mean"][::-1], "std": RIGHT["std"][::-1]},
    "mean": RIGHT | {"mean": [-value for value in RIGHT["mean"]]},
    "none": {"layout": "NCHW"},
}


def fill(folder: Path) -> None:
    """Make everything that the jobs name."""
    _classification(folder)
    _detection(folder)
    _features(folder)
    _sentences(folder)
    _waves(folder)
    (folder / "verdict_metric.py").write_text(METRICS)


def _save(folder: Path, **made: onnx.ModelProto) -> None:
    for name, model in made.items():
        onnx.save(model, folder / f"{name}.onnx")


def _yaml(folder: Path, name: str, calib: str, judged: str, preprocess: dict[str, object] | None) -> None:
    declared = "" if preprocess is None else f", preprocess: {preprocess}".replace("'", "")
    (folder / f"{name}.yaml").write_text(
        f"data: {{path: {calib}{declared}}}\nevaluation: {{data: {judged}, labels: folders, latency: false}}\n"
    )


def _classification(folder: Path) -> None:
    labels = data.balanced(960)
    pictures = data.scenes(labels, 1)
    pixels = data.normalized(pictures)
    classifier = models.classifier(pixels, labels)
    other = models.classifier(pixels, labels, seed=9)
    _save(folder, classifier=classifier, untrained=models.untrained(pixels))
    tensors = ("image", "a", "b", "flat", "logits")
    ranges = models.observed(classifier, {"image": pixels[:64]}, tensors)
    low, high = ranges["logits"]
    tied = ranges | {"logits": (low * 60, high * 60)}
    clipped = ranges | {"logits": (low / 4, high / 4)}
    _save(
        folder,
        classifier_int8=models.with_qdq(classifier, ranges),
        classifier_other_int8=models.with_qdq(other, models.observed(other, {"image": pixels[:64]}, tensors)),
        classifier_tied=models.with_qdq(classifier, tied),
        classifier_clipped=models.with_qdq(classifier, clipped),
        classifier_dead=models.with_qdq(models.scaled_channel(classifier, "logits.weight", 3, 0.0, 1), ranges),
    )

    calib, judged = data.balanced(64), data.balanced(96)
    seen, held = data.scenes(calib, 2), data.scenes(judged, 3)
    data.save(folder / "calib", seen, calib)
    data.save(folder / "eval", held, judged)
    rng = np.random.default_rng(4)
    data.save(folder / "eval-shuffled", held, rng.permutation(judged))
    data.save(folder / "eval-off-by-one", held, judged, (*data.NAMES[1:], data.NAMES[0]))
    data.save(folder / "eval-order", held, judged, data.OTHER_ORDER)
    data.save(folder / "eval-more-classes", held, judged, tuple(f"{7 + k}" for k in range(data.CLASSES)))
    data.save(folder / "eval-one-class", held[judged == 2], judged[judged == 2])
    data.save(folder / "eval-bright", np.clip(held.astype(int) + 110, 0, 255).astype(np.uint8), judged)
    data.save(folder / "eval-noise", rng.integers(0, 2, held.shape).astype(np.uint8) * 255, judged)
    data.save(folder / "eval-grey", np.repeat(held.mean(-1, keepdims=True), 3, -1).astype(np.uint8), judged)
    data.save(folder / "eval-calib", np.concatenate([seen[:48], held[:48]]), np.concatenate([calib[:48], judged[:48]]))
    data.flat(folder / "calib-grey", np.repeat(seen.mean(-1, keepdims=True), 3, -1).astype(np.uint8))
    data.flat(folder / "calib-same", np.repeat(seen[:8], 8, 0))
    data.flat(
        folder / "calib-constant", np.broadcast_to(rng.integers(40, 200, (64, 1, 1, 3)), seen.shape).astype(np.uint8)
    )
    data.flat(folder / "calib-one", seen[:1])
    data.flat(folder / "calib-few", seen[:5])
    for name, preprocess in PREPROCESSING.items():
        _yaml(folder, name, "calib", "eval", preprocess)
    _yaml(folder, "undeclared", "calib", "eval", None)
    for each in ("same", "constant", "one", "few", "grey"):
        _yaml(folder, f"calib-{each}", f"calib-{each}", "eval", RIGHT)
    for each in ("shuffled", "off-by-one", "order", "more-classes", "one-class", "bright", "noise", "grey", "calib"):
        _yaml(folder, f"eval-{each}", "calib", f"eval-{each}", RIGHT)


def _detection(folder: Path) -> None:
    pixels = data.normalized(data.scenes(data.balanced(128), 5))
    np.savez(folder / "scenes.npz", image=pixels[:64])
    np.savez(folder / "other-scenes.npz", image=pixels[64:])
    detector, segmenter = models.detector(pixels), models.segmenter(pixels)
    trunk = ("image", "a", "b")
    apart = models.observed(detector, {"image": pixels[:64]}, (*trunk, "boxes", "scores"))
    together = models.observed(detector, {"image": pixels[:64]}, (*trunk, "detections"))
    ranges = models.observed(segmenter, {"image": pixels[:64]}, ("image", "a", "classes"))
    low, high = ranges["classes"]
    _save(
        folder,
        detector=detector,
        detector_apart=models.with_qdq(detector, apart),
        detector_together=models.with_qdq(detector, together),
        segmenter=segmenter,
        segmenter_int8=models.with_qdq(segmenter, ranges),
        segmenter_saturated=models.with_qdq(segmenter, ranges | {"classes": (low, high / 30)}),
        segmenter_zero_scale=models.with_qdq(models.scaled_channel(segmenter, "classes.weight", 1, 0.0, 0), ranges),
    )


def _features(folder: Path) -> None:
    rows, held = data.features(256, 6), data.features(128, 7)
    np.savez(folder / "features.npz", features=rows)
    np.savez(folder / "other-features.npz", features=held)
    np.savez(folder / "scaled-features.npz", features=held * np.where(np.arange(32) == 5, 40, 1).astype(np.float32))
    order = np.r_[1:32, 0]
    np.savez(folder / "turned-features.npz", features=held[:, order])
    embedder = models.embedder(rows)
    apart = models.observed(embedder, {"features": rows}, ("features", "a"))
    _save(
        folder,
        embedder=embedder,
        embedder_int8=models.with_qdq(embedder, apart),
        embedder_collapsed=models.with_qdq(
            embedder, apart | models.observed(embedder, {"features": rows}, ("embedding",))
        ),
        logarithm=models.logarithm(),
    )
    np.savez(folder / "positive.npz", features=np.abs(rows))
    np.savez(folder / "other-positive.npz", features=np.abs(held))
    sides = {"left": rows[:, :16], "right": 20 * rows[:, 16:] + 50}
    other = {"left": held[:, :16], "right": 20 * held[:, 16:] + 50}
    np.savez(folder / "sides.npz", **sides)
    np.savez(folder / "other-sides.npz", **other)
    np.savez(folder / "swapped-sides.npz", left=other["right"], right=other["left"])
    stereo = models.stereo(rows)
    int8 = models.with_qdq(stereo, models.observed(stereo, sides, ("left", "right", "a", "mean", "spread")))
    _save(folder, stereo=stereo, stereo_int8=int8, stereo_exchanged=models.exchanged(int8, "mean", "spread"))


def _sentences(folder: Path) -> None:
    tokens, mask, topics = data.sentences(384, 8)
    _save(folder, reader=models.reader(tokens, mask, topics))
    for name, part in (("sentences", slice(0, 128)), ("other-sentences", slice(128, 256))):
        np.savez(folder / f"{name}.npz", input_ids=tokens[part], attention_mask=mask[part], labels=topics[part])
    np.savez(folder / "padding.npz", input_ids=0 * tokens[:64], attention_mask=0 * mask[:64])


def _waves(folder: Path) -> None:
    sounds, heard = data.waves(384, 9)
    _save(folder, listener=models.listener(sounds, heard))
    np.savez(folder / "waves.npz", wave=sounds[:128])
    np.savez(folder / "other-waves.npz", wave=sounds[128:256])
    np.savez(folder / "silence.npz", wave=0 * sounds[:64])


METRICS = """
import numpy as np


def share(outputs, labels):
    return float((outputs["logits"].reshape(len(labels), -1).argmax(1) == labels).mean())


def each(outputs, labels):
    return (outputs["logits"].reshape(len(labels), -1).argmax(1) == labels).astype(float)


def broken(outputs, labels):
    return outputs["boxes"].mean()


def nothing(outputs, labels):
    return float("nan")


def short(outputs, labels):
    return np.ones(len(labels) - 1)
"""
