"""onnxruntime sessions: opened in one place, with the options that int8cal's figures depend on."""

from __future__ import annotations

import ctypes
import io
import math
import os
import re
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx
import onnxruntime as ort

from int8cal import stored
from int8cal.errors import DataError, ModelError, UsageError, shortage_of
from int8cal.graph.load import load_weights
from int8cal.graph.random_numbers import place_of, repeated
from int8cal.numerics.bfloat16 import from_bits, to_bits
from int8cal.protos import ModelView, shell_of
from int8cal.runtime.memory import shared
from int8cal.runtime.scratch import folder_within, loadable, scratch_folder
from int8cal.runtime.segments import join, segments_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from int8cal.numerics import Array
    from int8cal.runtime.segments import Segment

# what matters comes as an exception; its log goes past everything that int8cal prints
ort.set_default_logger_severity(4)

OptimizationLevel = Literal["none", "basic", "all"]
CPU = "CPUExecutionProvider"
# After a run the session's threads wait for the next one in a busy loop, some milliseconds long. Where something else
# runs between two runs, another session or counting, that takes a core from it: on two cores it takes twice as long.
# Such a session plans no memory either: a run by plan takes one block beside what the first run left in the arena, up
# to twice as much. A tenth of a millisecond's inference is 2 % slower without a plan, one of ten as fast.
QUIET = {"session.force_spinning_stop": "1"}
# Of a session that is opened for the graph that it writes: kernels would lay out their weights once more.
NEVER_RUN = {"session.disable_prepacking": "1"}


def weights_beside(name: str, least: int) -> dict[str, str]:
    """Return the entries with which an optimized graph is written without its weights of `least` bytes and more.

    Args:
        name: The file beside the graph that takes them.
        least: Bytes of a tensor.
    """
    return {
        "session.optimized_model_external_initializers_file_name": name,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(least),
    }


# CommonSubexpressionElimination and ConstantSharing drop names that users know; MatMulAddFusion puts Reshapes around
# batched MatMuls. The quantization passes must not see a model that is still float.
_KEEP_NAMES = ("CommonSubexpressionElimination", "ConstantSharing", "MatMulAddFusion", "TransposeOptimizer")
_LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


SIDE_BY_SIDE = 2  # samples at once where many are run: each holds the model's activations


def cpu_count() -> int:
    """Return the number of CPUs this process may use (its affinity mask, not the machine's total)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Session:
    """A model ready to run, on the CPU provider by default; `run` maps output names to arrays.

    Attributes:
        inputs, outputs: Names, in the model's order.
        at_once: How many calls of `run` may go on at the same time without slowing each other.
        repeats: Whether the model draws random numbers, which are the same in every run of a feed here.
    """

    def __init__(
        self,
        model: onnx.ModelProto | ModelView | Path | str,
        *,
        threads: int = 0,
        at_once: int = 1,
        optimization: OptimizationLevel = "all",
        optimized_path: Path | None = None,
        disabled_optimizers: Sequence[str] = (),
        entries: dict[str, str] | None = None,
        profile_prefix: Path | None = None,
        providers: Sequence[str] = (CPU,),
        timed: bool = False,
    ) -> None:
        """Open a session.

        Args:
            model: A file (external data beside it is found), or a model or view in memory (any size).
            threads: Intra-op threads; 0 for one per available CPU.
            at_once: Runs that share them, each with its part, where there are as many; see runtime.batching.
            optimization: onnxruntime's graph optimization level.
            optimized_path: Where onnxruntime writes the graph it will really run; None for nowhere.
            disabled_optimizers: Names of onnxruntime graph transformers to leave out.
            entries: Further session configuration entries.
            profile_prefix: How the name of the profiler's trace begins, see `end_profiling`; None for no profile.
            providers: Full names of execution providers in the order of preference (see `machine.resolve`). The CPU
                provider takes the nodes that no other does only where it is named.
            timed: Whether random nodes run as they are, as they do in a file and where the graph or a profile is
                written. Elsewhere their numbers follow from the feed, see graph.random_numbers.

        Raises:
            ModelError: onnxruntime cannot load the model; the message is its own first line.
            UsageError: A provider does not start here, or leaves nodes to a CPU provider that was not named.
        """
        threads = threads or cpu_count()
        self.at_once = min(at_once, threads)
        # sessions for many samples are many, too, and each one's arena would keep what its largest run took
        together = shared() if at_once > 1 else {}
        options = _options(threads // self.at_once, optimization, (entries or {}) | together, profile_prefix)
        if CPU not in providers:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        how = options, tuple(disabled_optimizers), tuple(providers)
        written, cpu = optimized_path is not None, tuple(providers) == (CPU,)
        cuts = {"small": threads == self.at_once and not written, "between_floats": cpu and not written}
        cutting = cuts if optimization == "all" and profile_prefix is None else None
        inputs: tuple[str, ...] = ()
        self._place = ""  # the input that says where random numbers begin
        if not (timed or written or profile_prefix or isinstance(model, (str, Path))):
            with suppress(ModelError, UsageError):  # of a type or by a provider that the added nodes are not for
                if (found := repeated(model, simplify)) is not None:
                    inputs, self._place = self._begin(found[0], how, None, cutting), found[1]
        self.repeats = bool(self._place)
        if not self.repeats:
            inputs = self._begin(model, how, optimized_path, cutting)
        self.inputs = tuple(name for name in inputs if name != self._place)

    def _begin(
        self,
        model: onnx.ModelProto | ModelView | Path | str,
        how: tuple[ort.SessionOptions, tuple[str, ...], tuple[str, ...]],
        optimized_path: Path | None,
        cuts: dict[str, bool] | None,
    ) -> tuple[str, ...]:
        """Open a model, a long one in segments unless `cuts` is None; return its inputs."""
        segments: list[Segment] = []
        if not isinstance(model, (str, Path)):
            segments = [] if cuts is None else segments_of(model, **cuts)
            self.outputs = _once(shell_of(model).graph.output)
        if not segments:
            session = _open(model, *how, optimized_path)
            inputs = tuple(value.name for value in session.get_inputs())
            self.outputs = _once(session.get_outputs())
            self._parts = [_Part(session, inputs, self.outputs)]
            return inputs
        paths = [optimized_path and optimized_path.with_suffix(f".{number}") for number in range(len(segments))]
        self._parts = []
        made = {name for each in segments for name in each.outputs}
        for each, path in zip(segments, paths, strict=True):
            part = each.model
            self._parts.append(_Part(_open(part, *how, path), each.inputs, each.outputs))
            # an input with a default is none of those that have to be fed
            made.update(tensor.name for tensor in part.graph.initializer)
        if optimized_path is not None:
            joined = join([onnx.load(str(path), load_external_data=False) for path in paths if path is not None])
            onnx.save(joined, optimized_path)
        return tuple(dict.fromkeys(name for each in segments for name in each.inputs if name not in made))

    def run(self, feed: dict[str, Array], outputs: Sequence[str] | None = None) -> dict[str, npt.NDArray[np.generic]]:
        """Run one feed.

        Args:
            feed: Input name -> array, as the model's signature asks.
            outputs: Names to compute; None for all.

        Returns:
            Output name -> array. An optional output that is absent is left out.

        Raises:
            DataError: A kernel failed on these values (a shape that only the data decides, for example).
        """
        names = list(outputs) if outputs is not None else list(self.outputs)
        if self._place:
            own = {name: feed[name] for name in self.inputs if name in feed}  # without defaults: places for errors
            feed = feed | {self._place: np.array(place_of(own), np.int64)}
        try:
            whole = self._parts[0] if len(self._parts) == 1 else None
            values = _run_parts(self._parts, names, feed) if whole is None else whole.run(names, feed)
        except Exception as error:  # see _open
            raise DataError(
                f"inference failed: {first_line(error)}",
                do="check its shapes and values with onnxruntime alone, or leave the sample out",
            ) from error
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def end_profiling(self) -> Path:
        """Stop the profiler; returns the trace that it wrote."""
        return Path(self._parts[0].session.end_profiling())

    def whole(self) -> ort.InferenceSession | None:
        """Return the runtime's own session, to run into arrays of the caller's; None where that is not all of a run."""
        return self._parts[0].session if len(self._parts) == 1 and not self.repeats else None


@dataclass(frozen=True, eq=False)
class _Part:
    """An open model, or segment of one; see runtime.segments."""

    session: ort.InferenceSession
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def bfloat16(self) -> frozenset[str]:
        values = (*self.session.get_inputs(), *self.session.get_outputs())
        return frozenset(value.name for value in values if value.type == "tensor(bfloat16)")

    def run(self, names: Sequence[str], feed: dict[str, Array]) -> list[Any]:
        """Run one feed; bfloat16 goes in and comes out as float32, since numpy has no such type."""
        if not self.bfloat16:
            return list(self.session.run(names, feed))
        given = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(to_bits(value), onnx.TensorProto.BFLOAT16)
            if name in self.bfloat16
            else ort.OrtValue.ortvalue_from_numpy(value)
            for name, value in feed.items()
        }
        found = self.session.run_with_ort_values(names, given)
        return [_array(value, name in self.bfloat16) for name, value in zip(names, found, strict=True)]


def _array(value: ort.OrtValue, is_bfloat16: bool) -> Array | None:
    if not value.has_value():
        return None
    if not is_bfloat16:
        return value.numpy()  # type: ignore[no-any-return]
    shape = tuple(value.shape())
    memory = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return from_bits(np.frombuffer(memory, np.uint16)).reshape(shape)


def _run_parts(parts: Sequence[_Part], names: Sequence[str], feed: dict[str, Array]) -> list[Any]:
    """Run segments one after the other; a tensor between them is dropped behind its last reader."""
    last = {name: place for place, part in enumerate(parts) for name in part.inputs}
    wanted, held, found = set(names), dict(feed), dict[str, Any]()
    for place, part in enumerate(parts):
        asked = [name for name in part.outputs if name in wanted or last.get(name, -1) > place]
        if not asked:  # the runtime would give all
            continue
        values = part.run(asked, {name: held[name] for name in part.inputs if name in held})
        given = dict(zip(asked, values, strict=True))
        found.update((name, value) for name, value in given.items() if name in wanted)
        held = {name: value for name, value in (held | given).items() if last.get(name, -1) > place}
    return [found[name] for name in names]


def _options(
    threads: int, optimization: OptimizationLevel, entries: dict[str, str], profile_prefix: Path | None
) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = _LEVELS[optimization]
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    # weights that are not laid out get a plan of memory too, which takes time by the square of their number
    options.enable_mem_pattern = entries.keys().isdisjoint(QUIET | NEVER_RUN)
    if profile_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    return options


def _open(
    model: onnx.ModelProto | ModelView | Path | str,
    options: ort.SessionOptions,
    disabled_optimizers: tuple[str, ...],
    providers: tuple[str, ...],
    optimized_path: Path | None,
) -> ort.InferenceSession:
    if optimized_path is not None:
        options.optimized_model_filepath = str(optimized_path)
    with loadable(model) as source:
        try:
            # where a provider fails, onnxruntime prints that it takes the CPU provider, and takes it
            with nullcontext() if providers == (CPU,) else redirect_stdout(io.StringIO()):
                session = ort.InferenceSession(
                    source,
                    options,
                    providers=list(providers),
                    disabled_optimizers=list(disabled_optimizers) or None,
                    enable_fallback=0,
                )
        except Exception as error:  # onnxruntime raises a family of pybind exceptions without a public base
            name = model_name(model)
            if shortage := shortage_of(error):
                raise shortage from error
            if "fallback to CPU EP" in str(error):
                raise UsageError(
                    f"does not take all nodes of {name}, and the CPU provider is not named",
                    where=f"provider {', '.join(providers)}",
                    do="add --provider cpu behind it to let the CPU provider take the others",
                ) from error
            said = first_line(error)
            raise ModelError(
                f"onnxruntime cannot load it: {said}",
                where=str(name),
                do=_advice(error, said),
                **({} if isinstance(model, (str, Path)) else {"graph": name}),
            ) from error
    session.disable_fallback()
    idle = [name for name in providers if name not in session.get_providers()]
    if idle:
        raise UsageError(
            "onnxruntime did not start it",
            where=f"provider {idle[0]}",
            do="check its driver and libraries, or leave it out",
        )
    return session


def _advice(error: Exception, said: str) -> str:
    """Say what to do about a model that does not load; where it is valid, checking it finds nothing."""
    if type(error).__name__ == "NotImplemented":
        return "export it with types or an opset that it has a kernel for"
    if "is not a registered function/op" in said:
        return "export it without this operator, which onnxruntime does not have"
    if re.search(r"\bOpset \d+ is under development|\bIR version\b", said):
        return "export it with an older opset, or install a newer onnxruntime"
    return "check it with onnx.checker.check_model(full_check=True), or export it again"


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """Let onnxruntime fold constants, BatchNorm and biases and drop identities, with its optimizer at the basic level.

    Args:
        model: A float model of any size.

    Returns:
        A new model, whose outputs equal the original's up to float rounding. Opset imports that onnxruntime adds and no
        node uses are still there; `graph.prepare` drops them.

    Raises:
        ModelError: onnxruntime cannot load the model.
        OutputError: The temporary directory is full.
    """
    place = stored.folder()
    with scratch_folder() if place is None else folder_within(place) as folder:
        path = folder / "simplified.onnx"
        Session(
            model,
            threads=1,
            optimization="basic",
            optimized_path=path,
            disabled_optimizers=_KEEP_NAMES,
            entries=weights_beside(f"simplified{stored.SUFFIX}", stored.LEAST) | NEVER_RUN,
        )
        found = onnx.load(str(path), load_external_data=False)
        load_weights(found, folder)
        return found


def _once(values: Iterable[Any]) -> tuple[str, ...]:
    """Return the names of a model's outputs: it may list one twice."""
    return tuple(dict.fromkeys(value.name for value in values))


def model_name(model: onnx.ModelProto | ModelView | Path | str) -> str:
    """Return what messages call a model: its file, or the name of its graph."""
    if isinstance(model, (str, Path)):
        return str(model)
    return str(shell_of(model).graph.name)


def first_line(error: Exception) -> str:
    """Return the first line of a runtime's message, 500 characters and "..." at most, without files of ours or its."""
    # the file that it names may be a copy of ours; behind a place in its source stands a C++ signature
    text = re.sub(r"Load model from .+? failed: ?", "", (str(error).strip() or type(error).__name__).splitlines()[0])
    text = re.sub(r"/onnxruntime_src/\S+:\d+ .*?\)(?: const)?(?: \[with [^]]*\])? ", "", text)
    return text if len(text) <= 500 else f"{text[:500]}..."
