"""What each step of a recipe gave, as an int8 model carries it that was calibrated with --explain."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import onnx

from int8cal.calibration.table import StepResult
from int8cal.errors import ModelError
from int8cal.protos import metadata_of
from int8cal.quantization.build import STEPS_KEY


def steps_of(int8: Path | onnx.ModelProto) -> tuple[StepResult, ...]:
    """Read the steps from a model's metadata; none where there are none.

    Args:
        int8: A quantized model, made by any tool, or its file; weights are not looked at.

    Raises:
        ModelError: The metadata is malformed.
    """
    model = onnx.load(str(int8), load_external_data=False) if isinstance(int8, Path) else int8
    text = metadata_of(model, STEPS_KEY)
    if text is None:
        return ()
    try:
        steps = tuple(
            StepResult(**{field.name: entry[field.name] for field in fields(StepResult)}) for entry in json.loads(text)
        )
        sound = all(
            isinstance(step.name, str)
            and isinstance(step.kept, bool)
            and isinstance(step.before_db, (int, float, type(None)))
            and isinstance(step.after_db, (int, float, type(None)))
            for step in steps
        )
    except (ValueError, TypeError, KeyError):
        sound = False
    if not sound:
        raise ModelError(
            f'its metadata "{STEPS_KEY}" is not a list of steps with name, before_db, after_db and kept',
            do="calibrate the model again",
        )
    return steps
