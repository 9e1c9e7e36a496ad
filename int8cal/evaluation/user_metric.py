"""The user's own metric: where the function comes from, what it is called, and what it can be called with."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from int8cal.data.functions import SPELLING, import_function
from int8cal.errors import ConfigError, UsageError
from int8cal.evaluation.figures import FIGURES, OWN, SHORT, metric_name
from int8cal.extras import extra_hint

if TYPE_CHECKING:
    from collections.abc import Callable

# Entry points of installed packages, this one's among them.
GROUP = "int8cal.metrics"
# What a function may ask for beside outputs and labels, by the names of its parameters.
_EXTRAS = ("origins", "reference")


@dataclass(frozen=True)
class Metric:
    """A function that is ready to be called.

    Attributes:
        name: Of its figure and gates.
        text: As the user wrote it, for messages.
        function: Called as function(outputs, labels).
        extras: Which of "origins" and "reference" it takes by name beside these.
        higher_is_better: Which way is better: its attribute of that name, true where it has none.
        digest: Hash of the file that it comes from; "" where there is none.
    """

    name: str
    text: str
    function: Callable[..., object]
    extras: tuple[str, ...] = ()
    higher_is_better: bool = True
    digest: str = ""


def open_metric(setting: str | Callable[..., object]) -> Metric:
    """Find a metric; it is not called.

    Args:
        setting: "package.module:function", the name of an installed one (entry points of the group int8cal.metrics), or
            a function.

    Raises:
        ConfigError: There is none, it cannot be called with outputs and labels, or its name is that of another figure.
        UsageError: It is one of int8cal's own, and the library that it needs is not installed.
    """
    function = setting if callable(setting) else _found(setting)
    name = function_name(setting) if callable(setting) else metric_name(setting)
    text = name if callable(setting) else setting
    others = [figure for figure in (*FIGURES, *SHORT, "outputs.") if figure not in OWN.values()]
    if any(figure == name or figure.startswith(f"{name}.") for figure in others):
        raise ConfigError(
            f'the metric is called "{name}", as a figure of int8cal\'s own is',
            where=text,
            do=f'give the function another name, such as "my_{name}"',
            key="evaluation.metric",
        )
    lacking = next((each for each in getattr(function, "needs", ()) if importlib.util.find_spec(each) is None), None)
    if lacking is not None:
        raise UsageError(f'metric "{name}" needs {lacking}, which is not installed', do=extra_hint("metrics"))
    better = getattr(function, "higher_is_better", True)
    if not isinstance(better, bool):
        raise ConfigError(
            f"its higher_is_better is {better!r}, expected True or False",
            where=text,
            do="correct it, or remove it for True",
            key="evaluation.metric",
        )
    return Metric(name, text, function, _extras(function, text), better, _digest(function))


def metric_of(setting: str | Callable[..., object] | None) -> Metric | None:
    """Find the metric of a job or a call; None where it has none. Raises as `open_metric`."""
    return None if setting is None else open_metric(setting)


def function_name(function: Callable[..., object]) -> str:
    """Return what a function is called; a callable object by its class, and a lambda, which has no name, "metric"."""
    name = str(getattr(function, "__name__", type(function).__name__))
    return name if name.isidentifier() else "metric"


def _found(text: str) -> Callable[..., object]:
    if SPELLING.fullmatch(text):
        return import_function(text, ConfigError)
    points = {point.name: point.value for point in importlib.metadata.entry_points(group=GROUP)}
    if text not in points:
        raise ConfigError(
            f'no installed package has a metric "{text}"',
            where="evaluation.metric",
            do=f"write package.module:function, or one of {', '.join(sorted(points))}",
            key="evaluation.metric",
        )
    return import_function(points[text], ConfigError)


def _extras(function: Callable[..., object], text: str) -> tuple[str, ...]:
    """Tell what a function takes by name, and refuse one that cannot be called with outputs and labels."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # of some functions in C nothing can be told
        return ()
    extras = tuple(name for name in _EXTRAS if name in signature.parameters)
    try:
        signature.bind(None, None, **dict.fromkeys(extras))
    except TypeError as error:
        raise ConfigError(
            f"cannot be called with outputs and labels: {error}",
            where=f"{text}{signature}",
            do="write it as function(outputs, labels); it may take origins and reference beside them",
            key="evaluation.metric",
        ) from error
    return extras


def _digest(function: Callable[..., object]) -> str:
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
        return "" if file is None else sha256(Path(file).read_bytes()).hexdigest()
    except (TypeError, OSError):
        return ""
