"""onnxruntime's own offline optimizer at the basic level: folds constants, BatchNorm and biases, drops identities."""

from __future__ import annotations

import onnx

from int8cal.runtime.sessions import Session, scratch_folder, weights_beside

# CommonSubexpressionElimination and ConstantSharing drop names that users know; MatMulAddFusion puts Reshapes around
# batched MatMuls. The quantization passes must not see a model that is still float.
_KEEP_NAMES = ("CommonSubexpressionElimination", "ConstantSharing", "MatMulAddFusion", "TransposeOptimizer")


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """Fold what is constant and return the simplified graph; its outputs equal the original's up to float rounding.

    Args:
        model: A float model of any size.

    Returns:
        A new model. Opset imports that onnxruntime adds and no node uses are still there; `graph.prepare` drops them.

    Raises:
        ModelError: onnxruntime cannot load the model.
        OutputError: The temporary directory is full.
    """
    with scratch_folder() as folder:
        path = folder / "simplified.onnx"
        Session(
            model,
            threads=1,
            optimization="basic",
            optimized_path=path,
            disabled_optimizers=_KEEP_NAMES,
            entries=weights_beside("simplified.data", 1 << 20),
        )
        return onnx.load(str(path))
