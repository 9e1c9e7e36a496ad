"""Calls in threads of our own, and none of numpy's beside them."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

X = TypeVar("X")
Y = TypeVar("Y")

_SHORT_S, _LAST = 150e-6, 8  # a call that no thread is woken for; calls over which what they take is told
_PARTS, _MOST_IN_PART = 64, 32  # of items, per thread; and items of a part
_POLL_SECONDS = 0.1
_part = threading.local()  # of a thread of in_parts: given_up, an event


@contextmanager
def threads_until_done(count: int) -> Iterator[ThreadPoolExecutor]:
    """Give threads to a generator, and wait for what they do, but not where the generator is given up.

    The garbage collector may give it up, in any thread and at any point, inside of threading's own locks too: who waits
    for a thread there waits for ever.
    """
    pool, given_up = ThreadPoolExecutor(count, "int8cal-run"), False
    try:
        yield pool
    except GeneratorExit:
        given_up = True
        raise
    finally:
        pool.shutdown(wait=not given_up, cancel_futures=given_up)


def in_order(function: Callable[[X], Y], items: Iterable[X], at_once: int, *, short_alone: bool = False) -> Iterator[Y]:
    """Call a function for every item, as many calls at the same time as are allowed.

    Args:
        function: Of one item.
        items: Read no more than `at_once` ahead of the result that is handed out.
        at_once: Calls; 1 for none beside each other, in the caller's own thread.
        short_alone: Whether calls that turn out to be shorter than handing them to a thread go on without one. For
            functions that compute, and do not wait for each other.

    Yields:
        Results, in the order of the items.
    """
    if at_once < 2:
        yield from map(function, items)
        return
    took = math.inf  # processor time of calls, that of the last ones most

    def timed(item: X) -> Y:
        nonlocal took
        began = time.thread_time()  # without what it waits for the interpreter
        result = function(item)
        own = time.thread_time() - began
        took = own if took == math.inf else took + (own - took) / _LAST
        return result

    with threads_until_done(at_once) as pool:
        under_way = deque[Future[Y]]()
        for item in items:
            if short_alone and took < _SHORT_S:  # to hand it to a thread, and to wait for it, takes longer
                while under_way:
                    yield under_way.popleft().result()
                yield timed(item)
                continue
            under_way.append(pool.submit(timed, item))
            # one more waits, so that no thread idles while the caller looks at a result
            if len(under_way) > at_once:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def in_parts(function: Callable[[X], Y], items: Iterable[X], threads: int) -> Iterator[Y]:
    """Call a function for every item in threads; of very many items several in turn, which cost less than their calls.

    Where results are given up, as by an interrupt, calls under way are waited for: long ones call `require_wanted`.

    Yields:
        Results, in the order of the items.
    """
    every = list(items)
    if threads < 2 or len(every) < 2:
        yield from map(function, every)
        return
    size = min(max(len(every) // (threads * _PARTS), 1), _MOST_IN_PART)
    given_up = threading.Event()

    def part(first: int) -> list[Y]:
        _part.given_up = given_up
        return [function(item) for item in every[first : first + size]]

    with ThreadPoolExecutor(threads, "int8cal-part") as pool:
        try:
            for results in pool.map(part, range(0, len(every), size)):
                yield from results
        except BaseException:
            given_up.set()
            raise


def require_wanted() -> None:
    """End a call of `in_parts` whose result nobody waits for any more.

    Raises:
        CancelledError: So it is. In other threads nothing is raised.
    """
    given_up: threading.Event | None = getattr(_part, "given_up", None)
    if given_up is not None and given_up.is_set():
        raise CancelledError


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let a matrix product of numpy's use the thread that asks for it, and no further one.

    The threads of its library wait for each other in a busy loop. Where another process has one of the CPUs, as on a
    machine that builds several things, a Cholesky factor of 2,304 columns took 3.4 s with two threads and 0.2 s with
    one. Products in threads of our own wait for nothing, and their bits do not depend on how many threads there are.
    """
    with threadpool_limits(1, "blas"):
        yield


def read_ahead(items: Iterable[X], size: int) -> Iterator[X]:
    """Pass items on in order; a thread, which ends with the iterator, reads up to `size` before they are asked for.

    Raises:
        Exception: Whatever reading an item raised, when its turn comes.
    """
    ready: queue.Queue[tuple[X | None, BaseException | None, bool]] = queue.Queue(maxsize=size)
    stop = threading.Event()

    def put(entry: tuple[X | None, BaseException | None, bool]) -> bool:
        while not stop.is_set():
            try:
                ready.put(entry, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            for item in items:
                if not put((item, None, False)):
                    return
            put((None, None, True))
        except BaseException as error:  # noqa: BLE001 - handed over to the caller's thread
            put((None, error, True))

    thread = threading.Thread(target=read, name="int8cal-read-ahead", daemon=True)
    thread.start()
    given_up = False
    try:
        while True:
            item, error, last = ready.get()
            if error is not None:
                raise error
            if last:
                return
            yield item  # type: ignore[misc]
    except GeneratorExit:
        given_up = True  # perhaps by the garbage collector, see threads_until_done
        raise
    finally:
        stop.set()
        if not given_up:
            thread.join(timeout=5)
