"""Options that commands share: those of a job's settings, as `int8cal.job` declares them, and a few beside them."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource

from int8cal.cli.grouped import GroupedOption
from int8cal.config.words import meant_value
from int8cal.declared import Declared, all_declared, alternatives
from int8cal.job import QuantizationSettings
from int8cal.phrases import has_plain_digits
from int8cal.preprocess import SETS
from int8cal.runtime.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    _PairType = click.ParamType[tuple[str, float]]
    _NamesType = click.ParamType[tuple[str, str]]
else:
    _PairType = _NamesType = click.ParamType  # older versions of click have no generic one

CommandT = TypeVar("CommandT", bound="Callable[..., Any]")

_META = "int8cal.settings"
# The stations say what is wrong with a path; this type is there so that shells complete file names.
PATH = click.Path(readable=False)


class _Whole(click.types.IntParamType):
    """A whole number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read plain digits."""
        if not has_plain_digits(str(value)):
            self.fail(f"{value!r} is not a valid integer.", param, ctx)
        return super().convert(value, param, ctx)


class WholeWithin(click.IntRange):
    """A whole number between bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read plain digits."""
        return super().convert(WHOLE.convert(value, param, ctx), param, ctx)


class _Real(click.types.FloatParamType):
    """A number."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read plain digits."""
        if not has_plain_digits(str(value)):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return super().convert(value, param, ctx)


class _NumberOf(_PairType):
    """NAME=NUMBER."""

    name = "NAME=NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Split at the last sign of equality."""
        name, _, number = str(value).rpartition("=")
        try:
            found = float(number) if has_plain_digits(number) else math.nan
        except ValueError:
            found = math.nan
        if not name or math.isnan(found):
            self.fail(f"expected NAME=NUMBER, got {value!r}", param, ctx)
        return name, found


class _ChoiceOf(click.Choice[str]):
    """One of the values of a setting."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Name the values, and the one that is probably meant."""
        message = super().get_invalid_choice_message(value, ctx)
        near = meant_value(str(value), [str(choice) for choice in self.choices])
        return f"{message.rstrip('.')}, did you mean {near!r}?" if near else message


class _NameOf(_NamesType):
    """NAME=INPUT."""

    name = "NAME=INPUT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first sign of equality."""
        name, _, given = str(value).partition("=")
        if not name or not given:
            self.fail(f"expected NAME=INPUT, got {value!r}", param, ctx)
        return name, given


NUMBER_OF, NAME_OF = _NumberOf(), _NameOf()
WHOLE, REAL = _Whole(), _Real()


class Setting(GroupedOption):
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
            if self.multiple:
                value = dict(value) if self.type in (NUMBER_OF, NAME_OF) else list(value)
            ctx.meta.setdefault(_META, {})[self.key] = (not value) if self.negated else value
        return value, args


def _size(text: str) -> int | list[int]:
    """Read pixels: 256, or height and width as 256x320."""
    match = re.fullmatch(r"([0-9]+)(?:x([0-9]+))?", text)
    if match is None:
        raise click.BadParameter(f'"{text}" is no size: give pixels, such as 256, or HEIGHTxWIDTH, such as 256x320')
    return int(match[1]) if match[2] is None else [int(match[1]), int(match[2])]


def _number(text: str, example: str = "1/255") -> float:
    """Read a number or a fraction, as close as a float comes."""
    try:
        if not has_plain_digits(text):
            raise ValueError
        return float(Fraction(text.strip()))
    except (ValueError, ZeroDivisionError, OverflowError) as error:
        raise click.BadParameter(f'"{text}" is no number: give for example {example}') from error


def _numbers(text: str) -> list[float]:
    """Read numbers with commas between them."""
    return [_number(part, "0.485,0.456,0.406") for part in text.split(",")]


def given_settings(context: click.Context) -> tuple[dict[str, object], dict[str, str]]:
    """Return key path -> value of the options that were given, and key path -> option name, for messages."""
    flags = {
        parameter.key: max(parameter.opts, key=len)
        for parameter in context.command.params
        if isinstance(parameter, Setting)
    }
    return dict(context.meta.get(_META, {})), flags


def settings(*paths: str) -> Callable[[CommandT], CommandT]:
    """Declare the options of settings.

    Args:
        paths: Key paths, in the order of --help; "calibration.*" for all of a section that are not named beside it,
            without the sections in it.
    """
    known = {each.path: each for each in all_declared() if each.option.flag}
    chosen: list[Declared] = []
    for path in paths:
        section = path.removesuffix("*")
        inside = [each for each in known.values() if each.path == section + each.name and each.section is None]
        chosen += [each for each in inside if each.path not in paths] if path.endswith("*") else [known[path]]

    def decorate(command: CommandT) -> CommandT:
        for setting in reversed(chosen):
            command = _option(setting)(command)
        return command

    return decorate


def _option(setting: Declared) -> Callable[[CommandT], CommandT]:
    """Make the option of a setting; only a job knows its default."""
    option = setting.option
    kinds = alternatives(setting.hint)
    several = get_origin(kinds[0]) is tuple
    kind = alternatives(get_args(kinds[0])[0])[0] if several else kinds[0]
    numbers = several and kind is float
    names = get_origin(kinds[0]) is dict and setting.form == ""
    how: dict[str, Any]
    if kind is bool or setting.form == "nodes":
        how = {"is_flag": True, "negated": setting.default is True}
    elif setting.form == "values" or names:
        how = {"type": NAME_OF if names else NUMBER_OF}
    elif get_origin(kind) is Literal:
        how = {"type": _ChoiceOf(get_args(kind))}
    elif setting.form == "size":
        how = {"type": _size}
    elif setting.form == "nonzero" or numbers:
        how = {"type": _numbers if numbers else _number}
    elif setting.section is not None or setting.form not in ("", "metric"):
        how = {"type": PATH}
    else:
        how = {"type": WHOLE if kind is int else REAL if kind is float else kind}
    return click.option(
        *option.flag.split(),
        cls=Setting,
        key=setting.path if setting.section is None else f"{setting.path}.path",
        expose_value=False,
        multiple=(several and not numbers) or names or setting.form == "values",
        group=option.group,
        first=option.first,
        metavar=option.metavar or ("N" if kind is int else None),
        help=_help(setting),
        **how,
    )


def _help(setting: Declared) -> str:
    """Fill in what the text of --help says of defaults and targets."""
    return (setting.option.help or setting.option.about).format(
        default=f"{setting.default:g}" if isinstance(setting.default, float) else setting.default,
        activations_of_targets=_activations_of_targets(),
        preprocess_sets=", ".join(SETS),
        weights_of_targets=_weights_of_targets(),
    )


def _weights_of_targets() -> str:
    """Say which weight range each target takes by itself."""
    ranges = dict.fromkeys(target.weights for target in TARGETS.values())
    return "; ".join(
        f"{weights} for {', '.join(target.name for target in TARGETS.values() if target.weights == weights)}"
        for weights in ranges
    )


def _activations_of_targets() -> str:
    """Say which type of activations each target takes by itself, those that differ by name."""
    plain = QuantizationSettings().activations
    others = [f"{each.activations[0]} for {each.name}" for each in TARGETS.values() if each.activations[0] != plain]
    return "; ".join([plain, *others])


config = click.option(
    "--config",
    cls=GroupedOption,
    group="Output",
    first=True,
    type=PATH,
    metavar="FILE",
    help="YAML with settings of the job; options win over it.",
)
# of commands that write one file; those with settings of a job have output.overwrite
overwrite = click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
as_json = click.option(
    "--json",
    "as_json",
    cls=GroupedOption,
    group="Output",
    is_flag=True,
    help="Print report.json on stdout, and nothing else there.",
)
