"""The interface of a correction: something that a recipe changes in a model besides the ranges of its tensors."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sized
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from int8cal.errors import TableError
from int8cal.graph.index import Index

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import onnx

    from int8cal.calibration.statistics import ChannelStatistics
    from int8cal.graph.plan import Plan
    from int8cal.numerics import Float64
    from int8cal.quantization.table import CalibrationTable, WeightEntry

V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class ReadChannels:
    """What a layer reads in place of a tensor of the prepared model: (x - rest) * slope, and perhaps a constant.

    Attributes:
        source: The tensor of the prepared model, x.
        slope, rest: Float64 (C,).
        constant: Value of one more channel; None for no such channel.
    """

    source: str
    slope: Float64
    rest: Float64
    constant: float | None = None

    def mean(self, seen: ChannelStatistics) -> Float64:
        """Return the mean of each channel, from the statistics of x; float64 (C,), or (C + 1,) with a constant."""
        mean = (seen.mean - self.rest) * self.slope * seen.count / seen.count
        # by way of sums, as statistics would hold it: tables made so far stay the same to the last bit
        return mean if self.constant is None else np.append(mean, self.constant) * seen.count / seen.count


@dataclass(frozen=True, eq=False)
class Rescaled:
    """A model with rescaled channels, as large as the prepared one: the same is not made, and held, twice.

    Attributes:
        source, plan: The model and the plan that it was made of.
        exponents: As a table holds them, by a chain's tensor.
        model: The result.
    """

    source: onnx.ModelProto
    plan: Plan
    exponents: Mapping[str, tuple[float, ...]]
    model: onnx.ModelProto

    @cached_property
    def index(self) -> Index:
        """Of the result."""
        return Index(self.model)


@dataclass(frozen=True, eq=False)
class Draft:
    """An int8 model before its integers are made; corrections change it one after the other.

    Attributes:
        index: Of the float model that the integers stand for.
        plan: Its plan.
        rescaling_plan: The plan under which channels were rescaled: that from before layers were left in float for
            gates.
        table: With an entry for every planned tensor.
        entries: Entries of the table's weights, by node.
        bias_deltas: What to add to biases, in real units, (output channels,) by node.
        rounding: Codes as text, by node; see `corrections.integers`.
        residual: Nodes whose inputs come with residual codes.
        copies: Channels of its input that a node reads once more, by node.
        fine: Channels of its input that come with residual codes, by node.
        pixels: Tensors that hold raw pixels, and the code that a Pad in front of one fills in; None without Pad.
        read: Tensors that layers read where it is something else than in the prepared model.
        metadata: For metadata_props of the int8 model.
        rescaled: A model whose channels were rescaled before, for a table that asks for the same.
    """

    index: Index
    plan: Plan
    rescaling_plan: Plan
    table: CalibrationTable
    entries: Mapping[str, WeightEntry]
    bias_deltas: Mapping[str, Float64] = field(default_factory=dict)
    rounding: Mapping[str, str] = field(default_factory=dict)
    residual: frozenset[str] = frozenset()
    copies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fine: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pixels: Mapping[str, int | None] = field(default_factory=dict)
    read: Mapping[str, ReadChannels] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    rescaled: Rescaled | None = None

    @property
    def model(self) -> onnx.ModelProto:
        """The float model that the integers stand for."""
        return self.index.model

    @cached_property
    def with_remainder(self) -> frozenset[str]:
        """Tensors that come with residual codes, of some channels at least."""
        nodes = self.residual | set(self.fine)
        return frozenset(layer.input for layer in self.plan.layers if layer.node in nodes)

    @property
    def pixel_nodes(self) -> frozenset[str]:
        """Layers that read raw pixels; they stay int8, and one code leaves nothing of a pixel."""
        return frozenset(layer.node for layer in self.plan.layers if layer.input in self.pixels)


class Correction(ABC):
    """A table's record of a correction, frozen; it is falsy where it changes nothing.

    Attributes:
        key: Its key among the table's "corrections".
        lost: What converting a table to another runtime's loses with it, as a sentence; "" for nothing to say.
    """

    key: str
    lost: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def read(cls, content: Any, where: str) -> Self:
        """Read the record of a table's JSON.

        Raises:
            TableError: It is malformed.
        """

    @abstractmethod
    def to_json(self) -> Any:
        """Return what `read` reads."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """What it changes, in a few words."""

    @abstractmethod
    def apply(self, draft: Draft) -> Draft:
        """Change an int8 model before its integers are made.

        Raises:
            TableError: The record does not fit the model.
        """

    def without(self, nodes: Collection[str]) -> Self:
        """Return what is left of it when some nodes stay float."""
        del nodes
        return self

    @classmethod
    def of(cls, table: CalibrationTable) -> Self | None:
        """Return a table's record; None where it has none."""
        return next((each for each in table.corrections if isinstance(each, cls)), None)


@dataclass(frozen=True)
class NamedValues(Correction, Generic[V]):
    """A correction with a value for each of some layers or tensors, by name."""

    values: Mapping[str, V] = field(default_factory=dict)

    @classmethod
    def read(cls, content: Any, where: str) -> Self:
        """Read an object, see `Correction.read`."""
        if not isinstance(content, dict):
            raise TableError(
                f"corrections.{cls.key} is {str(content)[:40]}, expected an object", where=where, do="correct it"
            )
        place = f"{where}: corrections.{cls.key}"
        return cls({name: cls._read_value(value, f"{place} of {name!r}") for name, value in content.items()})

    @classmethod
    @abstractmethod
    def _read_value(cls, value: Any, place: str) -> V: ...

    def to_json(self) -> dict[str, V]:
        """Return an object, see `Correction.to_json`."""
        return dict(self.values)

    @property
    def summary(self) -> str:
        """How many there are."""
        return f"{len(self.values)} entries"

    @classmethod
    def of(cls, table: CalibrationTable) -> Self:
        """Return a table's record; an empty one where it has none."""
        return super().of(table) or cls()

    def __bool__(self) -> bool:
        return bool(self.values)

    def without_names(self, names: Collection[str]) -> Self:
        """Return the record without some layers or tensors."""
        values = {name: value for name, value in self.values.items() if name not in names}
        return type(self)(values)


class OfNodes(NamedValues[V], Generic[V]):
    """A correction of single layers, by node."""

    def without(self, nodes: Collection[str]) -> Self:
        """Drop nodes."""
        return self.without_names(nodes)


@dataclass(frozen=True)
class UnknownCorrection(Correction):
    """A correction that this version does not know: it stays in the file and is not applied."""

    key: str
    content: Any

    @classmethod
    def read(cls, content: Any, where: str) -> Self:
        """Take anything; `where` is its key."""
        return cls(where, content)

    def to_json(self) -> Any:
        """Return it as it was."""
        return self.content

    @property
    def summary(self) -> str:
        """How many parts it has, if it has parts."""
        return f"{len(self.content)} entries" if isinstance(self.content, Sized) else str(self.content)[:40]

    def apply(self, draft: Draft) -> Draft:
        """Change nothing."""
        return draft


def read_numbers(values: Any, limit: float, place: str, *, step: float = 0.0) -> tuple[float, ...]:
    """Read a list of numbers: none beyond a limit, and multiples of a step where one is given.

    Raises:
        TableError: It is something else.
    """
    if not isinstance(values, list):
        raise TableError(f"is {str(values)[:40]}, expected a list of numbers", where=place, do="correct it")
    for value in values:
        if abs(read_number(value, "a value", place)) > limit or (step and value % step):
            raise TableError(f"{str(value)[:40]} is out of range", where=place, do="correct it")
    return tuple(values)


def read_number(value: object, key: str, place: str) -> float:
    """Read a finite number of a table.

    Args:
        value: Of its JSON.
        key, place: What it is and where, for messages.

    Raises:
        TableError: It is something else.
    """
    # a float compares with integers of any size, which float() and isfinite() do not take
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise TableError(f"{key} is {str(value)[:40]}, expected a finite number", where=place, do="correct it")
    return float(value)
