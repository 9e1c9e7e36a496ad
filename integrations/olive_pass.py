"""A pass of Olive that calibrates with int8cal: a float model goes in, a QDQ model comes out, its table beside it.

from olive.model import ONNXModelHandler
from olive.passes.olive_pass import create_pass_from_dict

pass_ = create_pass_from_dict(Int8cal, {"data": "photos", "settings": {"recipe": "accurate"}}, disable_search=True)
quantized = pass_.run(ONNXModelHandler("model.onnx"), "out/model.onnx")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes.olive_pass import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

import int8cal

if TYPE_CHECKING:
    from olive.hardware.accelerator import AcceleratorSpec


class Int8cal(Pass):
    """Quantize to int8 by calibration on data."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:  # noqa: ARG003 - of all
        return {
            "data": PassConfigParam(
                type_=str,
                required=True,
                description="Samples, as for --data: a path, datasets:NAME, or module:function",
            ),
            "settings": PassConfigParam(
                type_=dict[str, Any],
                default_value={},
                description="Keywords of int8cal.calibrate, such as recipe, target, samples or preprocess.",
            ),
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        table = int8cal.calibrate(model.model_path, config.data, **config.settings)
        path = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(int8cal.quantize(model.model_path, table), path)
        table.save(path.with_suffix(".table.json"))
        return ONNXModelHandler(str(path))
