"""Signals that reach the main thread on every system."""

from __future__ import annotations

import signal
import threading

# Those that end a run in order; the last one is that of a terminal or connection that is gone. Windows has none.
INTERRUPTS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def heeded() -> list[signal.Signals]:
    """Return those of `INTERRUPTS` that this process is to heed: not a hangup that `nohup` had it ignore."""
    return [each for each in INTERRUPTS if each == signal.SIGINT or signal.getsignal(each) != signal.SIG_IGN]


def signal_main(number: int) -> None:
    """Send the main thread a signal from any thread; it ends what that waits for where the system can do so.

    `os.kill` would end the process at once on Windows, without its handlers.
    """
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)
