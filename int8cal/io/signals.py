"""Signals that reach the main thread on every system."""

from __future__ import annotations

import signal
import threading


def signal_main(number: int) -> None:
    """Send the main thread a signal from any thread; it ends what that waits for where the system can do so.

    `os.kill` would end the process at once on Windows, without its handlers.
    """
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)
