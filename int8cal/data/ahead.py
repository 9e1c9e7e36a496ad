"""Reading ahead: a thread decodes the next samples while the current one runs."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")

_POLL_SECONDS = 0.1


def read_ahead(items: Iterable[T], size: int) -> Iterator[T]:
    """Pass items on in order, with up to `size` of them read before they are asked for.

    Args:
        items: Read in one background thread, which ends with the iterator.
        size: Items held at the most; 0 reads in the caller's thread.

    Raises:
        Exception: Whatever reading an item raised, when its turn comes.
    """
    if size < 1:
        yield from items
        return
    ready: queue.Queue[tuple[T | None, BaseException | None, bool]] = queue.Queue(maxsize=size)
    stop = threading.Event()

    def put(entry: tuple[T | None, BaseException | None, bool]) -> bool:
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
    try:
        while True:
            item, error, last = ready.get()
            if error is not None:
                raise error
            if last:
                return
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        thread.join(timeout=5)
