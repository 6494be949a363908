"""Ctrl-C and SIGTERM while a run trains: the step under way is ended and saved first; Ctrl-C again stops at once."""

import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any, Self

from worstclass.cli.console import say

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAVING = (
    "\nStopping: the step or the validation under way ends first, then the run is saved. Ctrl-C again stops at once."
)


class Stop:
    """Whether a training was asked to stop. As a context it takes the two signals, from handlers that raise.

    While it does not wait, before the first step and after the last, a signal goes to the handler of before at once.
    `here` is false where nothing is taken: of several processes each would end another step.
    """

    def __init__(self, *, here: bool = True) -> None:
        self.waits = False
        self.heard: list[int] = []
        self._here = here and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._lines: SimpleQueue[str | None] = SimpleQueue()  # a handler may be called in the middle of a print
        self._speaker = threading.Thread(target=self._speak, daemon=True)

    def __call__(self) -> bool:
        return bool(self.heard)

    def __enter__(self) -> Self:
        self._speaker.start()
        for number in SIGNALS if self._here else ():
            before = signal.getsignal(number)
            if callable(before):  # else it is ignored, or ends the process
                self._before[number] = before
                signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._lines.put(None)
        self._speaker.join()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        again = number in self.heard or (bool(self.heard) and number == signal.SIGINT)
        if again or not self.waits:  # SIGTERM may follow Ctrl-C from a parent that heard it too
            self._before[number](number, frame)
        if not self.heard:
            self._lines.put(SAVING)
        self.heard.append(number)

    def _speak(self) -> None:
        while (line := self._lines.get()) is not None:
            say(line)
