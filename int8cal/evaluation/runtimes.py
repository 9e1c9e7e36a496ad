"""The int8 model in a second runtime: its error, how far onnxruntime agrees, and what runs on integers there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from int8cal.errors import ModelError
from int8cal.evaluation.outputs import OutputComparison
from int8cal.evaluation.result import FloatNode, Fusion, RuntimeResult
from int8cal.evaluation.result_parts import TITLES, RuntimeAgreement, ends
from int8cal.runtime.machine import exact_products, resolve
from int8cal.runtime.openvino import OpenVinoSession, is_installed, require_openvino
from int8cal.runtime.sessions import CPU
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import onnx

    from int8cal.data.sample import Sample
    from int8cal.evaluation.output_groups import GroupFinder
    from int8cal.evaluation.result import Latency, Saturation
    from int8cal.job import QuantizationSettings
    from int8cal.runtime.batching import Arrays

    NamePairs = tuple[tuple[str, str], ...]

OTHERS = {"openvino": OpenVinoSession}


def further(names: Sequence[str]) -> tuple[str, ...]:
    """Return the runtimes that were asked for beside onnxruntime, each once.

    Raises:
        UsageError: One is not installed.
    """
    found = tuple(name for name in dict.fromkeys(names) if name in OTHERS)
    if "openvino" in found:
        require_openvino()
    return found


def unasked(names: Sequence[str], *, latency: bool, target: str, providers: Sequence[str]) -> tuple[str, ...]:
    """Name the runtimes in which both models are timed though nobody asked: those that are installed.

    Args:
        names: The runtimes that were asked for; where there are any, no other is measured.
        latency: Whether speed is measured at all.
        target: A name of runtime.targets.TARGETS; a model for other hardware is timed elsewhere only where asked.
        providers: Execution providers of onnxruntime; other hardware's is not compared with this CPU unasked.
    """
    here = TARGETS[target].onnxruntime or target in OTHERS
    if names or not (latency and here and resolve(providers) == (CPU,)):
        return ()
    return tuple(OTHERS) if is_installed() else ()


def target_warnings(target: str, names: Sequence[str]) -> tuple[str, ...]:
    """Warn where speed and integer kernels were measured in a runtime that the model is not for.

    Args:
        target: A name of runtime.targets.TARGETS.
        names: The runtimes that were asked for.
    """
    if TARGETS[target].onnxruntime or target in names:
        return ()
    there = f"; --runtime {target} measures there" if target in OTHERS else ""
    return (f"target {target}: latency and fusion are those of onnxruntime on this CPU{there}",)


def saturated_here(target: str, unsafe: Callable[[], Saturation]) -> tuple[str, ...]:
    """Warn where sums of products saturate on this CPU, which they do not on the target.

    Args:
        target: A name of runtime.targets.TARGETS.
        unsafe: Audits the model for a CPU like this one.
    """
    if TARGETS[target].orders or exact_products():
        return ()
    found = unsafe()
    if not found.unsafe_channels:
        return ()
    told = (
        f"sums of products saturate on this CPU, and not on target {target}: they can in {found.unsafe_channels} of "
        f"{found.channels} channels, so figures, and what a recipe chooses by them, may be worse here than there; "
        "calibrate and evaluate on a CPU with exact sums"
    )
    return (told,)


def slow_warnings(settings: QuantizationSettings) -> tuple[str, ...]:
    """Say so where what was asked for is no faster than the FP32 model (docs/forms.md)."""
    if settings.activations == "u16":
        return (
            "activations of 16 bits: onnxruntime's CPU provider computes them in float, slower than the FP32 model",
        )
    if settings.weights_only is True:
        return ("weights only: the file is smaller, but the model computes in float, about as fast as the FP32 model",)
    return ()


def speed_warnings(target: str, latency: Latency | None) -> tuple[str, ...]:
    """Say so where the int8 model is surely slower than the FP32 model, and its target is a CPU like this one.

    Args:
        target: A name of runtime.targets.TARGETS.
        latency: Of both models in onnxruntime; None where it was not measured.
    """
    interval = ends(latency.speedup_ci95) if latency else None
    if interval is None or interval[1] >= 1 or not TARGETS[target].onnxruntime:
        return ()
    return ("the int8 model is slower than the FP32 model here; --optimize latency finds out where",)


class SecondRuntime:
    """One further runtime during an evaluation; `add` each sample, then read `result` and `reasons`."""

    def __init__(
        self, name: str, int8: Path | onnx.ModelProto, outputs: NamePairs, groups: GroupFinder, *, threads: int
    ) -> None:
        """Open the int8 model there.

        Args:
            name: A key of OTHERS.
            int8: The quantized model.
            outputs: (FP32 name, int8 name) of each output.
            groups: Finds their groups of channels.
            threads: Threads of the runtime; 0 for all CPUs.

        Raises:
            ModelError: The runtime cannot load it, or does not give one of its outputs.
            UsageError: The runtime is not installed.
        """
        self.name, self._int8, self._threads = name, int8, threads
        self.session = OTHERS[name](int8, threads=threads)
        second = f"int8 model in {TITLES[name]}"
        self._of_fp32 = OutputComparison(outputs, groups, second=second)
        both = tuple((int8_name, int8_name) for _, int8_name in outputs)
        self._of_int8 = OutputComparison(both, first="int8 model in onnxruntime", second=second)
        lost = next((int8_name for int8_name, _ in both if int8_name not in self.session.outputs), None)
        if lost is not None:
            raise ModelError(f'{TITLES[name]} gives no output "{lost}"', do="evaluate without --runtime openvino")

    def timed(self, threads: int) -> OpenVinoSession:
        """Return a session of the int8 model with so many threads, to measure its speed."""
        return self.session if threads == self._threads else OTHERS[self.name](self._int8, threads=threads)

    def add(self, sample: Sample, fp32: Arrays, int8: Arrays, here: Arrays) -> None:
        """Compare one sample: `here` are the int8 model's outputs in this runtime, the others in onnxruntime.

        Raises:
            Int8calError: See OutputComparison.
        """
        self._of_fp32.add(sample, fp32, here)
        self._of_int8.add(sample, int8, here)

    def result(self, latency: Latency | None) -> RuntimeResult:
        """Return what was found."""
        layers = self.session.executed()
        floats = tuple(
            FloatNode(each.name, each.op_type, f"runs {each.kernel}") for each in layers if not each.is_integer
        )
        between = self._of_int8.metrics()
        return RuntimeResult(
            name=self.name,
            metrics=self._of_fp32.metrics(),
            outputs=self._of_fp32.outputs(),
            kernels=Fusion(len(layers) - len(floats), len(floats), floats),
            latency=latency,
            against=RuntimeAgreement(between.sqnr_db, between.cosine, between.max_abs_error, between.agreement),
        )

    def warnings(self) -> tuple[str, ...]:
        """Name the outputs that are of little use there."""
        return self._of_fp32.warnings()

    def reasons(self) -> dict[str, str]:
        """Say for each figure that is None why; keys are dotted paths of report.json."""
        prefix = f"runtimes.{self.name}"
        found = {f"{prefix}.{path}": reason for path, reason in self._of_fp32.reasons().items()}
        for path, reason in self._of_int8.reasons().items():
            part, _, key = path.partition(".")
            if part == "metrics":
                found[f"{prefix}.against_onnxruntime.{key}"] = reason
        return found
