"""A quick verdict on an int8 model: the SQNR of its outputs on a few kept samples, for choosing between corrections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from int8cal.evaluation.pixel_feeds import feeds_for
from int8cal.numerics.metrics import ErrorSums, error_sums
from int8cal.runtime.batching import run_each
from int8cal.runtime.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx

    from int8cal.graph.signature import Signature
    from int8cal.runtime.batching import SampleLike


HELD_BYTES = 128_000_000


def output_judge(
    fp32: onnx.ModelProto, signature: Signature, samples: Sequence[SampleLike], *, threads: int = 0
) -> Callable[[onnx.ModelProto], float] | None:
    """Prepare a judge.

    Args:
        fp32: The prepared model; run once, on the first call.
        signature: Its inputs.
        samples: The samples to judge on, as the FP32 model takes them; as many as have outputs of HELD_BYTES.
        threads: Threads of the runtime.

    Returns:
        A function from an int8 model to the mean SQNR in dB over its float outputs, -inf where quantization decides the
        shape of one; None when there are no samples.
    """
    if not samples:
        return None
    reference: list[dict[str, np.ndarray]] = []

    def judge(int8: onnx.ModelProto) -> float:
        if not reference:
            held = 0
            for _, outputs in run_each(Session(fp32, threads=threads), signature, samples):
                reference.append(outputs)
                held += sum(value.nbytes for value in outputs.values())
                if held > HELD_BYTES:
                    break
        session = Session(int8, threads=threads)
        sums: dict[str, ErrorSums] = {}
        feeds = feeds_for(int8, samples[: len(reference)])
        for expected, (_, actual) in zip(reference, run_each(session, signature, feeds), strict=True):
            for name, value in expected.items():
                if value.dtype.kind == "f":
                    if value.shape != actual[name].shape:
                        return float("-inf")
                    part = error_sums(value, actual[name])
                    sums[name] = sums[name] + part if name in sums else part
        ratios = [each.sqnr_db for each in sums.values() if each.sqnr_db is not None]
        return float(np.mean(ratios)) if ratios else float("-inf")

    return judge
