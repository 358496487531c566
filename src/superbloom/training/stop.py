"""Ctrl-C and SIGTERM end training after the current step."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from superbloom.runtime import main_process


class Stop:
    """Ctrl-C, and SIGTERM if `terminate`, ask training to stop after its step; a second Ctrl-C ends it at once.

    While it is entered, `signal` is the one that asked, 0 as long as none did.
    """

    def __init__(self, terminate: bool) -> None:
        self.signal = 0
        self._heard = (signal.SIGINT, signal.SIGTERM) if terminate else (signal.SIGINT,)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.listen()
        return self

    def listen(self) -> None:
        """Also to be called once Lightning has put handlers of its own in place."""
        for number, handler in self._before.items():
            signal.signal(number, self._handle if number in self._heard else handler)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: Any) -> None:
        self.signal = max(self.signal, number)
        again = ""
        if number == signal.SIGINT:
            signal.signal(number, self._before[number])
            again = "; Ctrl-C again ends at once, without saving"
        if main_process():
            os.write(2, f"\nstopping after this step{again}\n".encode())  # not print: this interrupts anything
