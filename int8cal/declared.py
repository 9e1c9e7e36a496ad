"""The settings that `int8cal.job` declares, as a list to make other things from: a schema, options, keywords."""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from int8cal.job import Job
from int8cal.setting import Form, Option

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Declared:
    """A setting as it is declared.

    Attributes:
        path: Its keys, such as "calibration.method".
        hint: Its type, annotated with `Form` and `Option`.
        default: `dataclasses.MISSING` where a job must have a value.
        option: What is said of it.
    """

    path: str
    hint: Any
    default: Any
    option: Option

    @property
    def name(self) -> str:
        """Its last key."""
        return self.path.rpartition(".")[2]

    @property
    def section(self) -> type | None:
        """The dataclass with the settings below it; None for a value."""
        kinds = (each for each in alternatives(self.hint) if isinstance(each, type))
        return next((each for each in kinds if dataclasses.is_dataclass(each)), None)

    @property
    def form(self) -> str:
        """Name of the `Form` that the value as a whole has, or empty."""
        return next(filter(None, map(form_of, alternatives(self.hint, bare=False))), "")


def form_of(hint: Any) -> str:
    """Return the name of the `Form` that a type is annotated with, or empty."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note.name for note in notes if isinstance(note, Form)), "")


def alternatives(hint: Any, *, bare: bool = True) -> tuple[Any, ...]:
    """Split a type at its bars, None left out; `bare` takes forms off."""
    if get_origin(hint) is Annotated and (bare or not form_of(hint)):
        return alternatives(get_args(hint)[0], bare=bare)
    if get_origin(hint) in (Union, UnionType):
        return tuple(part for each in get_args(hint) for part in alternatives(each, bare=bare))
    return () if hint is type(None) else (hint,)


@cache
def declared(section: type = Job, prefix: str = "") -> tuple[Declared, ...]:
    """List the settings of a section of the job, without those of the sections in it.

    Args:
        section: One of the dataclasses of `int8cal.job`.
        prefix: Of their paths, such as "calibration.".
    """
    defaults = {
        each.name: each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        for each in dataclasses.fields(section)
    }
    found = []
    hint: Any
    for name, hint in inspect.get_annotations(section).items():
        inner = get_args(hint)[0] if get_origin(hint) is ClassVar else hint
        default = defaults[name] if name in defaults else getattr(section, name)
        found.append(Declared(prefix + name, inner, default, inner.__metadata__[-1]))
    return tuple(found)


def all_declared(section: type = Job, prefix: str = "") -> Iterator[Declared]:
    """List the settings of a job with all its sections, each section before what is in it."""
    for each in declared(section, prefix):
        yield each
        if each.section is not None:
            yield from all_declared(each.section, f"{each.path}.")


def keywords(function: Literal["calibrate", "evaluate"]) -> dict[str, Declared]:
    """Tell which setting each keyword of a function of the Python API stands for."""
    settings = [each for each in all_declared() if each.path.count(".") == 1]
    return {each.option.keyword or each.name: each for each in settings if function in each.option.api}
