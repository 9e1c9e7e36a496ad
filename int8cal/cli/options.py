"""Every option that commands share, declared once, with the key of the YAML that it sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
from click.core import ParameterSource

from int8cal.config.available import AVAILABLE
from int8cal.evaluation.figures import OUTPUT_UNITS, UNITS
from int8cal.job import (
    ActivationType,
    CalibrationSettings,
    Fallback,
    Goal,
    Method,
    QuantizationSettings,
    Recipe,
    Runtime,
    TargetName,
    WeightRange,
)
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CommandT = TypeVar("CommandT", bound="Callable[..., Any]")

_META = "int8cal.settings"
# The stations say what is wrong with a path; this type is there so that shells complete file names.
PATH = click.Path(readable=False)
_CALIBRATION = CalibrationSettings()
_QUANTIZATION = QuantizationSettings()


class Setting(click.Option):
    """An option that stands for a key of the YAML.

    Args:
        key: Key path, such as "calibration.method".
        negated: The flag switches the setting off.
    """

    def __init__(self, *args: Any, key: str, negated: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.key = key
        self.negated = negated

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Remember the value under its key when the user gave it; defaults are those of `int8cal.job`."""
        value, args = super().handle_parse_result(ctx, opts, args)
        if self.name and ctx.get_parameter_source(self.name) is ParameterSource.COMMANDLINE:
            value = list(value) if self.multiple else value
            ctx.meta.setdefault(_META, {})[self.key] = (not value) if self.negated else value
        return value, args


def settings_of(context: click.Context) -> tuple[dict[str, object], dict[str, str]]:
    """Collect what the user gave on the command line.

    Args:
        context: The command's context.

    Returns:
        Key path -> value, only for options that were given; and key path -> option name, for messages.
    """
    flags = {
        parameter.key: max(parameter.opts, key=len)
        for parameter in context.command.params
        if isinstance(parameter, Setting)
    }
    return dict(context.meta.get(_META, {})), flags


def _setting(*names: str, key: str, **kwargs: Any) -> Callable[[CommandT], CommandT]:
    return click.option(*names, cls=Setting, key=key, expose_value=False, **kwargs)


def together(*options: Callable[[CommandT], CommandT]) -> Callable[[CommandT], CommandT]:
    """Apply options so that --help shows them in the order given."""

    def decorate(command: CommandT) -> CommandT:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _choice(names: Sequence[str]) -> click.Choice[str]:
    return click.Choice(list(names))


def _default(section: str, key: str, names: Sequence[str], default: str) -> str:
    """Say which choice is the default, and which are known but not built in this version."""
    refused = [name for name in names if name not in AVAILABLE[section, key]]
    return f"(default {default}); {', '.join(refused)} (not in this version)." if refused else f"(default {default})."


def _weight_defaults() -> str:
    """Say which weight range each target takes by itself."""
    ranges = dict.fromkeys(target.weights for target in TARGETS.values())
    return "; ".join(
        f"{weights} for {', '.join(target.name for target in TARGETS.values() if target.weights == weights)}"
        for weights in ranges
    )


def _activation_defaults() -> str:
    """Say which type of activations each target takes by itself, those that differ by name."""
    plain = _QUANTIZATION.activations
    others = [f"{each.activations[0]} for {each.name}" for each in TARGETS.values() if each.activations[0] != plain]
    return "; ".join([plain, *others])


def _gate_names() -> str:
    """List the names that a gate may use, those of one unit together."""
    by_unit: dict[str, list[str]] = {}
    for name, unit in UNITS.items():
        by_unit.setdefault(unit, []).append(name)
    listed = [f"{', '.join(names)} ({unit})" for unit, names in by_unit.items()]
    return "; ".join([*listed, f"of one output {', '.join(f'outputs.NAME.{figure}' for figure in OUTPUT_UNITS)}"])


# Data


def data(*, key: str = "data.path") -> Callable[[CommandT], CommandT]:
    """Declare --data, for calibration or (evaluate) for evaluation samples."""
    return _setting(
        "--data",
        key=key,
        type=PATH,
        metavar="PATH",
        help="Samples: a directory, file or glob of images, .npy, .npz or input_*.pb, or package.module:function.",
    )


def samples(*, section: str = "data") -> Callable[[CommandT], CommandT]:
    """Declare --samples, --seed and --skip-bad of a data section."""
    return together(
        _setting("--samples", key=f"{section}.samples", type=int, metavar="N", help="Use at most N samples."),
        _setting("--seed", key=f"{section}.seed", type=int, metavar="N", help="Choose which N samples (default 0)."),
        _setting(
            "--skip-bad", key=f"{section}.skip_bad", is_flag=True, help="Count and skip unreadable files, not stop."
        ),
    )


# Calibration

_ENGINES = ("local", "ray")
method = together(
    _setting(
        "--method",
        key="calibration.method",
        type=_choice(get_args(Method)),
        help=f"How statistics become clip ranges (default {_CALIBRATION.method}).",
    ),
    _setting(
        "--percentile",
        key="calibration.percentile",
        type=float,
        metavar="P",
        help=f"Percent of values kept by method percentile (default {_CALIBRATION.percentile}).",
    ),
)
threads = _setting(
    "--threads", key="calibration.threads", type=int, metavar="N", help="Threads of the runtime (default 0: all cores)."
)
engine = together(
    _setting(
        "--batch-size",
        key="calibration.batch_size",
        type=int,
        metavar="N",
        help=f"Samples read ahead (default {_CALIBRATION.batch_size}); results do not depend on it.",
    ),
    threads,
    _setting(
        "--stats",
        key="calibration.statistics",
        type=PATH,
        metavar="FILE",
        help="Statistics counted before, such as merged shards; the data is then only judged on.",
    ),
    _setting(
        "--engine",
        key="calibration.engine",
        type=_choice(_ENGINES),
        help=f"Where calibration runs {_default('calibration', 'engine', _ENGINES, _CALIBRATION.engine)}",
    ),
)

# Quantization

quantization = together(
    _setting(
        "--recipe",
        key="quantization.recipe",
        type=_choice(get_args(Recipe)),
        help="How much work goes into accuracy "
        + _default("quantization", "recipe", get_args(Recipe), _QUANTIZATION.recipe),
    ),
    _setting(
        "--target",
        key="quantization.target",
        type=_choice(get_args(TargetName)),
        help="Where the model will run "
        + _default("quantization", "target", get_args(TargetName), _QUANTIZATION.target),
    ),
    _setting(
        "--activations",
        key="quantization.activations",
        type=_choice(get_args(ActivationType)),
        help=f"Integer type of activations (default: {_activation_defaults()}).",
    ),
    _setting(
        "--weights",
        key="quantization.weights",
        type=_choice(get_args(WeightRange)),
        help="Range of the weights' codes: s8 (-127..127), s7 (-64..63), or paired, the largest codes of which no two "
        f"can saturate on CPUs without VNNI (default: {_weight_defaults()}).",
    ),
    _setting(
        "--exclude",
        key="quantization.exclude",
        multiple=True,
        metavar="GLOB",
        help="Leave these nodes in float: name pattern or op:Type. Repeatable.",
    ),
    _setting(
        "--include",
        key="quantization.include",
        multiple=True,
        metavar="GLOB",
        help="Quantize these nodes only: name pattern or op:Type. Repeatable.",
    ),
    _setting(
        "--uint8-input",
        key="quantization.uint8_input",
        is_flag=True,
        help="Let the int8 model take raw pixels 0..255: scale, mean and std move into its first layers.",
    ),
    _setting(
        "--optimize",
        key="quantization.optimize",
        type=_choice(get_args(Goal)),
        help="Measure each layer here, and leave in float what is slower in int8 (default: measure nothing).",
    ),
    _setting(
        "--explain",
        key="quantization.explain",
        is_flag=True,
        help="Report what each step of the recipe gave, here and in later evaluations of the model.",
    ),
    _setting(
        "--latency-allowance",
        key="quantization.latency_allowance",
        type=float,
        metavar="PERCENT",
        help="Time that better accuracy may cost, of the int8 model's estimated time "
        f"(default {_QUANTIZATION.latency_allowance:g}).",
    ),
    _setting(
        "--budget",
        key="quantization.budget",
        type=float,
        metavar="PERCENT",
        help="Leave the fewest layers in float that make the gates hold; all of them may add so much to the int8 "
        "model's estimated time. Needs --gate; not with --optimize (default: gates only judge).",
    ),
    _setting(
        "--fallback",
        key="quantization.fallback",
        type=_choice(get_args(Fallback)),
        help="With --budget: float, or first a second plane of codes for layers whose input exists as float "
        f"(default {_QUANTIZATION.fallback}).",
    ),
)

# Evaluation

eval_data = _setting(
    "--eval-data",
    key="evaluation.data.path",
    type=PATH,
    metavar="PATH",
    help="Samples the int8 model is judged on (default: the calibration data).",
)
judgement = together(
    _setting(
        "--labels",
        key="evaluation.labels",
        type=PATH,
        metavar="FILE",
        help='CSV of file,label, or "folders" for class folders.',
    ),
    _setting(
        "--gate",
        key="evaluation.gates",
        multiple=True,
        metavar="'NAME<=VALUE'",
        help="Exit with 7 unless this holds, such as 'top1.drop<=1.0'. Repeatable. Names: " + _gate_names() + ".",
    ),
    _setting(
        "--runtime",
        key="evaluation.runtimes",
        multiple=True,
        type=_choice(get_args(Runtime)),
        help="Run the int8 model there as well, and report both. Repeatable (default onnxruntime, which always runs).",
    ),
    _setting(
        "--provider",
        key="evaluation.providers",
        multiple=True,
        metavar="NAME",
        help="Evaluate with this execution provider of onnxruntime, such as cuda. Repeatable, in the order of "
        "preference (default cpu, which always calibrates).",
    ),
    _setting(
        "--no-latency", key="evaluation.latency", is_flag=True, negated=True, help="Do not measure the models' speed."
    ),
)

# Files and output

config = click.option(
    "--config",
    type=PATH,
    metavar="FILE",
    help="YAML with settings of one job; options given here win over it.",
)
directory = _setting(
    "-o",
    "--output",
    key="output.dir",
    type=PATH,
    metavar="DIR",
    help="Directory for the results (default ./<model>-int8).",
)
overwrite = _setting("--overwrite", key="output.overwrite", is_flag=True, help="Replace results that exist.")
quiet = _setting("-q", "--quiet", key="quiet", is_flag=True, help="Print errors only.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print report.json on stdout, and nothing else there.")
