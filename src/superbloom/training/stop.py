"""Ctrl-C and SIGTERM stop training after the current step."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from superbloom.runtime import is_main_process


class Stop:
    """Records a request to stop: Ctrl-C, and SIGTERM with on_sigterm. A second Ctrl-C ends the process at once.

    Inside the `with` block, `signal` is the number of the signal that was received, 0 if none was.
    """

    def __init__(self, on_sigterm: bool) -> None:
        self.signal = 0
        self._handled = (signal.SIGINT, signal.SIGTERM) if on_sigterm else (signal.SIGINT,)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.listen()
        return self

    def listen(self) -> None:
        """Install the handlers. Call it again after Lightning has installed its own."""
        for number, handler in self._before.items():
            signal.signal(number, self._handle if number in self._handled else handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: Any) -> None:
        self.signal = max(self.signal, number)
        again = ""
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])
            again = "; Ctrl-C again ends at once, without saving"
        if is_main_process():
            os.write(2, f"\nstopping after this step{again}\n".encode())  # not print: a handler may interrupt anything
