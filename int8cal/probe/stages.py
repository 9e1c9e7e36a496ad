"""The float model with places for errors, in stages: what stands in front of an error is not run again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from int8cal.graph.taps import tapped_model
from int8cal.probe.injection import make_injection, sites_in
from int8cal.runtime.memory import give_back, release
from int8cal.runtime.segments import stages_of
from int8cal.runtime.sessions import QUIET, SIDE_BY_SIDE, Session, cpu_count

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import onnx

    from int8cal.graph.plan import Plan
    from int8cal.numerics import Array
    from int8cal.probe.injection import ErrorSite
    from int8cal.runtime.batching import Arrays
    from int8cal.runtime.segments import Segment

    ErrorOf = Callable[[ErrorSite], Array]

_PASSING_BYTES = 20_000_000  # of a run without errors, that those with errors begin with
_HELD_BYTES = 128_000_000  # of all runs, beside that


class Stages:
    """A model with sites for errors, which are added to the tensors of a run without.

    Args:
        model: The prepared (and equalized) model.
        plan: Its plan.
        ends: Tensors that errors are measured at.
        shown: Tensors whose values a run without errors gives as well.
        behind_layers: Errors can enter behind layers as well, before their activations.
        threads: Of the runtime; 0 for all CPUs.

    Attributes:
        stages: In their order.
        places: In which of them each tensor is made.
        at_once: How many runs may go on at the same time, once there was one without errors.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        plan: Plan,
        *,
        ends: Sequence[str],
        shown: Sequence[str] = (),
        behind_layers: bool = False,
        threads: int = 0,
    ) -> None:
        give_back()  # of sessions before
        segments = stages_of(tapped_model(model, (*ends, *shown)))
        measured, read = set(ends), {name for each in segments for name in each.inputs}
        self.stages = [
            _Stage(
                each,
                plan,
                [name for name in each.outputs if name in measured],
                [name for name in each.outputs if name in read],
                behind_layers,
                threads,
            )
            for each in segments
        ]
        self.places = {name: number for number, each in enumerate(segments) for name in each.outputs}
        self._needed = max((number for number, stage in enumerate(self.stages, 1) if stage.ends), default=0)
        self.at_once = min(SIDE_BY_SIDE, threads or cpu_count())
        self._held: dict[tuple[RunValues, int], Arrays] = {}  # by run and stage, in the order in which it was asked for
        self._holding = Lock()

    @cached_property
    def sites(self) -> frozenset[ErrorSite]:
        """Where errors can be added."""
        return frozenset().union(*(stage.sites for stage in self.stages))

    def clean_run(self, feed: Arrays) -> tuple[RunValues, Arrays]:
        """Run a feed without errors.

        Returns:
            Its tensors, and the ends.

        Raises:
            DataError: A kernel failed on these values.
        """
        made: list[Arrays] = []
        ends: Arrays = {}
        known = dict(feed)
        for stage in self.stages:
            made.append(stage.clean(known))
            ends.update((name, made[-1][name]) for name in stage.ends if name in made[-1])
            known.update((name, made[-1][name]) for name in stage.passing if name in made[-1])
            if sum(map(_bytes, made)) > _HELD_BYTES // 4:
                made[-1] = {}
        passing: Arrays = {}
        for stage in reversed(self.stages[1:]):  # the later stages are what most runs with errors begin with
            more = {name: known[name] for name in stage.segment.inputs if name in known and name not in feed}
            if _bytes(passing | more) <= _PASSING_BYTES:
                passing |= more
        values = RunValues(self, feed | passing, _bytes(passing))
        for number, given in enumerate(made):
            if given:
                self._hold(values, number, given)
        return values, ends

    def value(self, values: RunValues, name: str) -> Array:
        """Return a tensor of a run without errors, which is held or computed again."""
        number = self.places[name]
        with self._holding:
            held = self._held.pop((values, number), None)
            if held is not None:  # it was asked for last, now
                self._held[values, number] = held
                return held[name]
        known, held = values.known, {}
        for stage in self.stages[self.start(number, known) : number + 1]:
            held = stage.clean(known)
            known = known | held
        self._hold(values, number, held)
        return held[name]

    def noisy_run(self, values: RunValues, sites: Collection[ErrorSite], error_of: ErrorOf) -> Arrays:
        """Return the ends that errors may reach, from the first stage on that one enters.

        Args:
            values: Of the run without errors.
            sites: Where errors are added.
            error_of: Gives that of a site, of the shape of its tensor.

        Raises:
            DataError: A kernel failed on these values.
        """
        reached = [number for number, stage in enumerate(self.stages) if not stage.sites.isdisjoint(sites)]
        if not reached:
            return {}
        found: Arrays = {}
        known = values.known
        for stage in self.stages[self.start(reached[0], known) : self._needed]:
            noisy, exact = stage.noisy(known, {site: error_of(site) for site in sites if site in stage.sites})
            found.update(noisy)
            known = known | exact
        return found

    def start(self, number: int, known: Collection[str]) -> int:
        """Return with which stage to begin for one of them, by what is known."""
        while number and any(name not in known for name in self.stages[number].segment.inputs):
            number -= 1
        return number

    def give_up(self) -> None:
        """Give the memory of sessions and of what is held back; the next run opens them again."""
        for stage in self.stages:
            stage.shut()
        self._held.clear()
        release()

    def _hold(self, values: RunValues, number: int, given: Arrays) -> None:
        """Hold what a stage gave in a run, in place of what was asked for least lately."""
        with self._holding:
            self._held.pop((values, number), None)
            while self._held and _bytes(given) + sum(map(_bytes, self._held.values())) > _HELD_BYTES:
                del self._held[next(iter(self._held))]
            self._held[values, number] = given


@dataclass(frozen=True, eq=False)
class RunValues:
    """Tensors of a run without errors, by name.

    Attributes:
        known: The feed, and what passes from stage to stage; others are computed again where they are not held.
        nbytes: Size of what passes.
    """

    stages: Stages
    known: Arrays
    nbytes: int

    def __getitem__(self, name: str) -> Array:
        return self.known[name] if name in self.known else self.stages.value(self, name)


def _bytes(values: Arrays) -> int:
    return sum(value.nbytes for value in values.values())


class _Stage:
    """A part of the model; its session is opened by the first run.

    Args:
        segment: Its nodes, and the weights that they read.
        plan: Of the whole.
        ends: Tensors of it that errors are measured at.
        passing: Tensors of it that later stages read.
        behind_layers, threads: As for `Stages`.
    """

    def __init__(
        self,
        segment: Segment,
        plan: Plan,
        ends: Sequence[str],
        passing: Sequence[str],
        behind_layers: bool,
        threads: int,
    ) -> None:
        self.segment, self._plan, self.ends, self.passing = segment, plan, ends, passing
        self._behind_layers, self._threads = behind_layers, threads

    @cached_property
    def sites(self) -> frozenset[ErrorSite]:
        return sites_in(self.segment.nodes, self._plan, self.ends, behind_layers=self._behind_layers)

    def shut(self) -> None:
        self.__dict__.pop("opened", None)

    @cached_property
    def opened(self) -> _Opened:
        shown = [name for name in self.segment.outputs if name not in self.ends or name in self.passing]
        injection = make_injection(
            self.segment.model, self._plan, behind_layers=self._behind_layers, ends=self.ends, shown=shown
        )
        session = Session(injection.model, threads=self._threads, at_once=SIDE_BY_SIDE, entries=QUIET)
        exact = {name: injection.exact.get(name, name) for name in self.passing}
        return _Opened(session, injection.inputs, exact)

    def clean(self, values: Arrays) -> Arrays:
        """Return all that the segment gives, of the values of earlier ones."""
        return self.opened.session.run(self._fed(values), self.segment.outputs)

    def noisy(self, values: Arrays, errors: Mapping[ErrorSite, Array]) -> tuple[Arrays, Arrays]:
        """Return its ends, and what passes: without the errors that are added where it is read."""
        opened = self.opened
        added = {opened.inputs[site]: error for site, error in errors.items()}
        asked = [*dict.fromkeys((*self.ends, *opened.exact.values()))]
        # asked for none, it would give all
        found = opened.session.run(self._fed(values) | added, asked) if asked else {}
        return (
            {name: found[name] for name in self.ends if name in found},
            {name: found[shown] for name, shown in opened.exact.items() if shown in found},
        )

    def _fed(self, values: Arrays) -> Arrays:
        return {name: values[name] for name in self.segment.inputs if name in values}


@dataclass(frozen=True)
class _Opened:
    """An open stage, without its weights.

    Attributes:
        inputs: Names of the optional inputs, by site.
        exact: Names under which it gives what passes, without the errors that are added where that is read.
    """

    session: Session
    inputs: Mapping[ErrorSite, str]
    exact: Mapping[str, str]
