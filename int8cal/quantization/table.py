"""The calibration table: every scale and zero point of a quantized model, readable, editable, enough to rebuild it."""

from __future__ import annotations

import difflib
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from int8cal.data.padding import record
from int8cal.data.preprocessing import recorded
from int8cal.declared import declared
from int8cal.errors import TableError
from int8cal.graph.bodies import full_name
from int8cal.graph.select import OF_U8, Selection, patterns_of
from int8cal.job import DEFAULT_TARGET
from int8cal.preprocess import Preprocess
from int8cal.runtime.targets import TARGETS, weight_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal

    from int8cal.calibration.ranges import TensorEntry
    from int8cal.calibration.statistics import Statistics
    from int8cal.graph.embeddings import EmbeddingForm
    from int8cal.graph.layers import KernelForm, LayerForm
    from int8cal.graph.plan import Plan
    from int8cal.graph.prepare import Prepared
    from int8cal.job import ActivationType, Job, TargetName, WeightRange
    from int8cal.numerics import Float64
    from int8cal.numerics.affine import Affine
    from int8cal.quantization.corrections.correction import Correction

    LeftKey = Literal["left_for_latency", "left_for_accuracy", "left_for_gates", "left_without_range"]

# Parts of the settings: nodes that stay float, each with the reason
LEFT: tuple[LeftKey, ...] = ("left_for_latency", "left_for_accuracy", "left_for_gates", "left_without_range")
_OF_GRAPH = frozenset({*LEFT, "recurrent", "recurrent_float", "embeddings", "forms", "steps"})
_ALL_BUT_ZERO = 1e-6  # of the largest scale


@dataclass(frozen=True)
class WeightEntry:
    """One weight tensor.

    Attributes:
        dtype: Of the codes.
        axis: Output channels; None for one scale.
        range: "s8", "s7" or "paired".
        scales: Exact float32 values.
        node: The layer that reads the weight; "" where a table does not say.
        input: The layer's data input; "" likewise.
    """

    dtype: str
    axis: int | None
    range: str
    scales: tuple[float, ...]
    node: str = ""
    input: str = ""

    @property
    def told_scales(self) -> tuple[float, ...]:
        """Return the scales to sum up: a channel below a millionth of the largest is all but zero, and left out."""
        least = max(self.scales, default=0.0) * _ALL_BUT_ZERO
        return tuple(scale for scale in self.scales if scale > least)

    def require_shape(self, key: str, axis: int | None, count: int) -> None:
        """Refuse an entry that is for another weight.

        Args:
            key: The entry's key.
            axis: Output channels that the model expects.
            count: How many scales it expects.

        Raises:
            TableError: Its axis or its number of scales is another.
        """
        if self.axis != axis or len(self.scales) != count:
            raise TableError(
                f"weight {key!r} has {len(self.scales)} scales on axis {self.axis}, the model expects {count} on axis "
                f"{axis}",
                do="remove the entry to have it computed, or calibrate again",
                tensor=key,
            )

    def scales_for(self, codes: str) -> Float64 | None:
        """Return the scales for a range of codes, (channels,).

        None where they are for another: the table's settings were edited, and scales of s8 would clip half of s7.
        """
        return np.array(self.scales, np.float32).astype(np.float64) if self.range == codes else None


@dataclass(frozen=True)
class StepResult:
    """What one step of a recipe gave.

    Attributes:
        name: The step.
        before_db, after_db: score on the holdout without and with it, in dB; before is None at the start, and
            both are where outputs have none (they are zero, or of another shape): infinities become None.
        kept: Whether it was kept; a step that does not help is taken back.
    """

    name: str
    before_db: float | None
    after_db: float | None
    kept: bool

    def __post_init__(self) -> None:
        for name in ("before_db", "after_db"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                object.__setattr__(self, name, None)


@dataclass(frozen=True)
class TableSettings:
    """What the plan and the weights were made with, and the preprocessing.

    Attributes:
        recorded: As the file has it, keys in its order. What was taken out has the default.
    """

    recorded: Mapping[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> TargetName:
        """Where the model will run."""
        target: TargetName = self.recorded.get("target", DEFAULT_TARGET)
        return target

    @property
    def weights(self) -> WeightRange:
        """The range of weights' codes; the target's own where none is recorded."""
        weights: WeightRange | None = self.recorded.get("weights")
        return weights or TARGETS[self.target].weights

    @property
    def activations(self) -> ActivationType:
        """What activations are; u8 where none is recorded."""
        activations: ActivationType = self.recorded.get("activations", "u8")
        return activations

    @property
    def recurrent(self) -> dict[str, KernelForm]:
        """How recurrent nodes are quantized; one that is missing stays float."""
        return dict(self.recorded.get("recurrent", {}))

    @property
    def forms(self) -> dict[str, LayerForm]:
        """How layers are quantized whose input has no calibrated range, beside those of `weights_only`."""
        return dict(self.recorded.get("forms", {}))

    @property
    def embeddings(self) -> dict[str, EmbeddingForm]:
        """How embeddings are quantized, by the node that reads them first; one that is missing stays float."""
        return dict(self.recorded.get("embeddings", {}))

    @property
    def steps(self) -> list[dict[str, object]]:
        """What each step of the recipe gave, as JSON; empty unless it was to be explained."""
        return list(self.recorded.get("steps", ()))

    @property
    def selection(self) -> Selection:
        """Which nodes may be quantized: the user's patterns, and what measuring, or the want of a range, left float."""
        left = tuple(item for key in LEFT for item in self.left(key).items())
        include, exclude = (tuple(self.recorded.get(key, ())) for key in ("include", "exclude"))
        weights_only = tuple(patterns_of(self.recorded.get("weights_only")))
        pixels = bool(self.recorded.get("uint8_input", False))
        forms, of_u8 = tuple(self.forms.items()), self.activations in OF_U8
        return Selection(include, exclude, left, self.target, weights_only, forms, pixels, of_u8)

    def left(self, key: LeftKey) -> dict[str, str]:
        """Return nodes that stay float, each with the reason."""
        return dict(self.recorded.get(key, {}))

    @property
    def of_graph(self) -> dict[str, Any]:
        """What is about nodes of one graph alone: a body of an If, Loop or Scan has its own."""
        return {key: value for key, value in self.recorded.items() if key in _OF_GRAPH}

    def for_body(self, own: Mapping[str, Any]) -> TableSettings:
        """Return the settings of a body: these, with what is about its own nodes."""
        shared = {key: value for key, value in self.recorded.items() if key not in _OF_GRAPH}
        return TableSettings({**shared, **own})

    def with_left(self, key: LeftKey, left: Mapping[str, str]) -> TableSettings:
        """Return the settings with other nodes that stay float, of one kind."""
        return TableSettings({**self.recorded, key: dict(left)})

    def with_recurrent(self, forms: Mapping[str, KernelForm], why: Mapping[str, str] | None = None) -> TableSettings:
        """Return the settings with other forms of recurrent nodes, and why the cells of some compute in float."""
        rest = {key: value for key, value in self.recorded.items() if key != "recurrent_float"}
        return TableSettings({**rest, "recurrent": dict(forms), **({"recurrent_float": dict(why)} if why else {})})

    def with_forms(self, forms: Mapping[str, LayerForm]) -> TableSettings:
        """Return the settings with other forms of layers."""
        return TableSettings({**self.recorded, "forms": dict(forms)})

    def with_embeddings(self, forms: Mapping[str, EmbeddingForm]) -> TableSettings:
        """Return the settings with other forms of embeddings; without the part where none is quantized."""
        rest = {key: value for key, value in self.recorded.items() if key != "embeddings"}
        return TableSettings({**rest, "embeddings": dict(forms)} if forms else rest)

    def with_steps(self, steps: Iterable[StepResult]) -> TableSettings:
        """Return the settings with what each step gave."""
        return TableSettings({**self.recorded, "steps": [asdict(step) for step in steps]})


class TableData(TypedDict, total=False):
    """What a table was calibrated on; tables of other tools do not say.

    Attributes:
        padding: See `data.padding.record`.
        bodies: How often each body of an If, Loop or Scan that holds a layer was run; where a model has any.
        shards: The parts of the data that were counted, such as "1/3"; where they are not all of it.
    """

    fingerprint: str
    samples: int
    padding: dict[str, dict[str, dict[str, object]]]
    bodies: dict[str, int]
    shards: list[str]


@dataclass(frozen=True, repr=False)
class CalibrationTable:
    """Everything that `quantize` needs besides the FP32 model.

    Attributes:
        model: {"sha256", "name"} of the FP32 file.
        data: What it was calibrated on.
        settings: What the plan and the weights were made with, and the preprocessing.
        tensors: Entries of activations, by tensor.
        weights: Entries of weights, by name; a weight read by two layers has one entry per layer, "weight@node".
        corrections: What a recipe changed, in the file's order; at most one of each kind of quantization.corrections.
        warnings: What the user should know, by tensor.
        run: Identity of the run that made it, see `int8cal.identity`; "" for tables of other tools and of before.
        bodies: Tables of bodies of If, Loop and Scan, by their paths (see `graph.bodies`); a body without one is float.
    """

    model: dict[str, str]
    data: TableData
    settings: TableSettings
    tensors: dict[str, TensorEntry]
    weights: dict[str, WeightEntry]
    corrections: tuple[Correction, ...] = ()
    warnings: tuple[str, ...] = ()
    run: str = ""
    bodies: Mapping[str, CalibrationTable] = field(default_factory=dict)

    @property
    def every_tensor(self) -> dict[str, TensorEntry]:
        """Entries of activations, those of bodies too: "If_0/then_branch/h"."""
        return {full_name(path, name): each for path, own in self.graphs.items() for name, each in own.tensors.items()}

    @property
    def graphs(self) -> dict[str, CalibrationTable]:
        """The main graph's table under "", and those of bodies by path."""
        return {"": self, **self.bodies}

    def with_graphs(self, tables: Mapping[str, CalibrationTable]) -> CalibrationTable:
        """Return the table with other ones of some of its graphs, by path; "" is the main graph."""
        bodies = {path: tables.get(path, each) for path, each in self.bodies.items()}
        return replace(tables.get("", self), bodies=bodies)

    def __repr__(self) -> str:
        name, samples = self.model.get("name"), self.data.get("samples")
        return f"CalibrationTable(model={name!r}, samples={samples}, tensors={len(self.tensors)})"

    def corrected(self, *corrections: Correction) -> CalibrationTable:
        """Return the table with these corrections in place of those of the same kind; empty ones are left out."""
        given = {each.key: each for each in corrections}
        merged = {each.key: each for each in self.corrections} | given
        return replace(self, corrections=tuple(each for each in merged.values() if each or each.key not in given))

    @property
    def body_selections(self) -> dict[str, Selection]:
        """Which nodes of bodies may be quantized, by the bodies' paths: of one that no sample ran, none."""
        none = Selection(exclude=("*",))
        bodies = {path: none for path, runs in self.data.get("bodies", {}).items() if not runs}
        return bodies | {path: each.settings.selection for path, each in self.bodies.items()}

    def affines(self, plan: Plan) -> dict[str, Affine]:
        """Return the affine of every planned tensor; a user's edit of one tensor holds for all that share its scale.

        Raises:
            TableError: An entry is missing, or two edits contradict each other.
        """
        missing = next((each.tensor for each in plan.tensors if each.tensor not in self.tensors), None)
        if missing is not None:
            near = difflib.get_close_matches(missing, self.tensors, 1)
            hint = f" (it has {near[0]!r})" if near else ""
            raise TableError(
                f"has no entry for tensor {missing!r}{hint}",
                do="calibrate again with the same settings",
                tensor=missing,
            )
        result: dict[str, Affine] = {}
        for group in plan.groups:
            members = [each.tensor for each in plan.members(group)]
            chosen = [name for name in members if self.tensors[name].source == "user"] or members
            affine = self.tensors[chosen[0]].affine
            other = next((name for name in chosen if self.tensors[name].affine != affine), None)
            if other is not None:
                raise TableError(
                    f"tensors {chosen[0]!r} and {other!r} share one scale, but have different ones",
                    do="edit only one of them, or both alike",
                )
            result |= dict.fromkeys(members, affine)
        return result

    def save(self, path: str | Path) -> None:
        """Write a .table.json, atomically; see quantization.table_file."""
        from int8cal.quantization.table_file import save_table

        save_table(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> CalibrationTable:
        """Read a .table.json, edits included.

        Raises:
            TableError: The file is missing or malformed.
        """
        from int8cal.quantization.table_file import load_table

        return load_table(Path(path))


def blank_table(job: Job, prepared: Prepared, statistics: Statistics) -> CalibrationTable:
    """Start the table of a job: everything but numbers."""
    data: TableData = {"fingerprint": f"{statistics.fingerprint:032x}", "samples": statistics.samples}
    if statistics.padding:
        data["padding"] = record(statistics.padding)
    if statistics.shards:
        data["shards"] = [str(each) for each in sorted(statistics.shards)]
    return CalibrationTable(
        model={"sha256": prepared.sha256, "name": prepared.name},
        data=data,
        settings=TableSettings(_recorded(job) | {"weights": weight_range(job.quantization)}),
        tensors={},
        weights={},
        warnings=tuple(str(each) for each in statistics.padding if each.how == "kept"),
    )


def _recorded(job: Job) -> dict[str, Any]:
    """Take the settings that tables hold, those that are not always there at the end."""
    always, given = {}, {}
    for section in (job.calibration, job.quantization, job.data):
        kind: type = type(section)
        for setting in declared(kind):
            value, when = _plain(getattr(section, setting.name), job.model), setting.option.recorded
            if when == "always":
                always[setting.name] = value
            elif when and getattr(section, when) is not None:
                given[setting.name] = value
    return always | given


def _plain(value: Any, model: Path) -> Any:
    """Write a value as JSON has it; the tokenizer's place is told from the model's."""
    if isinstance(value, Preprocess):
        return recorded(value, model)
    if isinstance(value, dict):
        return {key: _plain(each, model) for key, each in value.items()}
    return list(value) if isinstance(value, tuple) else value
