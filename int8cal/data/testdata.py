"""ONNX test data: folders test_data_set_* with input_0.pb, input_1.pb, … in the order of the model's inputs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from int8cal.data.fit import Header, count_rows, take_row
from int8cal.data.sample import row_name, unreadable
from int8cal.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import onnx

    from int8cal.data.find import FoundFile
    from int8cal.data.sample import Feed
    from int8cal.graph.signature import Signature

INPUT_FILE = re.compile(r"input_(\d+)\.pb")


@dataclass(frozen=True)
class OnnxDataPart:
    """One test data set.

    Attributes:
        name: Its folder as the user would write it.
        rows: How many samples it holds.
        files: (input name, file), one per input.
        signature: The model's inputs.
        labels: Test data sets carry none.
    """

    name: str
    rows: int
    files: tuple[tuple[str, Path], ...]
    signature: Signature
    labels: None = None

    def read(self, rows: Sequence[int]) -> Iterator[Feed]:
        """Load the set once and give the feeds of these rows."""
        from onnx import numpy_helper

        arrays = {}
        for name, path in self.files:
            try:
                arrays[name] = numpy_helper.to_array(_load(path, f"{self.name}/{path.name}"))
            except (ValueError, TypeError, RuntimeError) as error:
                raise unreadable(f"{self.name}/{path.name}", str(error)) from error
        for row in rows:
            yield take_row(arrays, row, self.signature, row_name(self.name, row, self.rows))


def open_test_data(files: Sequence[FoundFile], signature: Signature) -> OnnxDataPart:
    """Check one test data set against the inputs.

    Args:
        files: The input_*.pb of one folder. A tensor whose own name is an input's goes there, else its number counts.
        signature: The model's inputs, in the model's order.

    Returns:
        The set; its values are not kept.

    Raises:
        DataError: Unreadable files, no or two tensors for an input, shapes or dtypes that do not fit.
    """
    from onnx import helper

    names = [spec.name for spec in signature.inputs]
    folder = files[0].name.rpartition("/")[0] or "."
    headers: dict[str, Header] = {}
    chosen: dict[str, Path] = {}
    for file in sorted(files, key=lambda file: _number(file.path)):
        tensor = _load(file.path, file.name)
        number = _number(file.path)
        if tensor.name not in names and number >= len(names):
            raise DataError(
                f"is input number {number}, the model has {len(names)}: {', '.join(names)}",
                where=file.name,
                do="remove the file, or give data made for this model",
            )
        name = tensor.name if tensor.name in names else names[number]
        if name in chosen:
            raise DataError(
                f'feeds input "{name}", and so does {chosen[name].name}',
                where=file.name,
                do="name the tensors after the inputs, or number the files in their order",
            )
        headers[name] = Header(np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)), tuple(tensor.dims))
        chosen[name] = file.path
    missing = [name for name in names if name not in chosen]
    if missing:
        raise DataError(
            f'input "{missing[0]}" is missing; found {", ".join(path.name for path in chosen.values())}',
            where=folder,
            do=f"add input_{names.index(missing[0])}.pb",
        )
    rows = count_rows(headers, signature, folder)
    return OnnxDataPart(folder, rows, tuple(chosen.items()), signature)


def _number(path: Path) -> int:
    match = INPUT_FILE.fullmatch(path.name)
    return int(match.group(1)) if match else 0


def _load(path: Path, name: str) -> onnx.TensorProto:
    import onnx

    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(path.read_bytes())
    except Exception as error:  # protobuf has no typed error class to name; whatever it raises, the file is broken
        raise unreadable(name, str(error)) from error
    known = tensor.data_type in onnx.TensorProto.DataType.values() and tensor.data_type != onnx.TensorProto.UNDEFINED
    if not known:
        raise unreadable(name, "it is not an ONNX tensor")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise unreadable(name, "its values lie in another file")
    return tensor
