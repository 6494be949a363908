"""How far a training or an evaluation is: bars at a terminal, a plain line now and then in a log or a pipe."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from worstclass.cli.console import console, fold, say
from worstclass.evaluation.evaluate import Event

INTERVAL = 30.0  # seconds between plain lines


class Watch(Protocol):
    """Hears how far a job is. As a context it shows that while the job runs."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def attack(self, event: Event) -> None: ...

    def begin(self, what: str, done: int, steps: int) -> None: ...

    def step(self, what: str, step: int, steps: int) -> None: ...

    def epoch(self, line: str) -> None: ...

    def count(self, what: str, done: int, total: int) -> None: ...

    def download(self, what: str, done: int, total: int) -> None: ...


def watch() -> Watch:
    """Bars at a terminal, lines elsewhere: in a notebook or a log too that asks for colours (FORCE_COLOR)."""
    return Bars() if console.is_terminal and console.file.isatty() else Lines()


class Bars:
    """A bar for each attack, for the epoch and for a download; they vanish at the end."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), _Done(), _Rate(), TimeRemainingColumn())
        self._progress = RichProgress(*columns, console=console, transient=True)
        self._bars: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def attack(self, event: Event) -> None:
        bar = self._bar(_family(event), event.total, percent=event.standing is not None)
        standing = "" if event.standing is None else f", {event.standing} standing"
        self._progress.update(bar, description=f"{_title(event)}{standing}", completed=event.done)

    def begin(self, what: str, done: int, steps: int) -> None:
        self.step(what, done, steps)

    def step(self, what: str, step: int, steps: int) -> None:
        self._progress.update(self._bar("epoch", steps), description=what, completed=step, total=steps)

    def epoch(self, line: str) -> None:
        say(fold(line, console.width))
        self._progress.reset(self._bar("epoch", None))

    def count(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._bar("count", total), description=what, completed=done, total=total)

    def download(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._bar("download", total), description=what, completed=done)

    def _bar(self, name: str, total: float | None, **fields: Any) -> Any:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task("", total=total, **fields)
        return self._bars[name]


class Lines:
    """A line when an attack begins and ends and after each epoch, and one whenever `INTERVAL` has passed without.

    A thread of its own prints the latter: one batch of a strong attack may take many minutes.
    """

    def __init__(self, where: Console | None = None) -> None:
        self._where = where
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._status: Callable[[], str] | None = None
        self._said = self._began = time.monotonic()
        self._what, self._first, self._training = "", 0.0, False
        self._last: Event | None = None
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self.end_attack()

    def attack(self, event: Event) -> None:
        if self._last is None or _family(self._last) != _family(event):
            self.end_attack()
            self._begin(_family(event), event.done)
            self._say(self._state(event, ""))
        elif event.attack != self._last.attack:  # the next part of an ensemble
            self._say(self._state(event, self._left(event.done, event.total)))
        self._last = event
        self._status = lambda: self._state(event, self._left(event.done, event.total))

    def begin(self, what: str, done: int, steps: int) -> None:
        if not self._training:  # later epochs have the line of the one before
            self._say(f"{what}: {steps} steps")
            self._training = True
        self._begin(what, done)
        self._status = lambda: f"{what}: step {done + 1}/{steps}{self._left(done, steps)}"

    def step(self, what: str, step: int, steps: int) -> None:
        if what != self._what:
            self.begin(what, step - 1, steps)
        self._status = lambda: f"{what}: step {step}/{steps}{self._left(step, steps)} of this epoch"

    def epoch(self, line: str) -> None:
        self._status = None
        self._say(line)

    def count(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self._begin(what, done)
            self._say(f"{what}: {done}/{total}")
        self._status = lambda: f"{what}: {done}/{total}{self._left(done, total)}"
        if done == total:
            self._status = None
            self._say(f"{what}: done in {clock(time.monotonic() - self._began)}")

    def download(self, what: str, done: int, total: int) -> None:
        if what != self._what:
            self._begin(what, done)
            self._say(f"{what}, {total / 1e6:.0f} MB")
        self._status = lambda: f"{what}: {done / 1e6:.0f}/{total / 1e6:.0f} MB{self._left(done, total)}"

    def _begin(self, what: str, done: float) -> None:
        self._what, self._first, self._began = what, done, time.monotonic()

    def _left(self, done: float, total: float) -> str:
        """The time left, at the speed so far; nothing where there was none."""
        if done <= self._first:
            return f", {clock(time.monotonic() - self._began)} so far"
        return f", {clock((time.monotonic() - self._began) * (total - done) / (done - self._first))} left"

    def _state(self, event: Event, left: str) -> str:
        if event.standing is None:
            return f"{_title(event)}: {event.done:.0f}/{event.total:.0f} images{left}"
        share = event.done / event.total if event.total else 1.0
        return f"{_title(event)}: {share:.0%}, {event.standing} standing{left}"

    def end_attack(self, *, done: bool = True) -> None:
        """What comes next is no part of the attack under way, if there is one; whether it has come to its end."""
        if self._last is not None and done:
            self._say(f"{_family(self._last)}: done in {clock(time.monotonic() - self._began)}")
        self._last, self._status = None, None

    def _say(self, line: str) -> None:
        with self._lock:
            say(line, self._where)
            self._said = time.monotonic()

    def _speak(self) -> None:
        while not self._stop.wait(min(1.0, INTERVAL)):
            status = self._status
            if status is not None and time.monotonic() - self._said >= INTERVAL:
                self._say(status())


def clock(seconds: float) -> str:
    """A length of time: 0:07, 12:30 or 3:05:00."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _family(event: Event) -> str:
    """The attack, of whose part an event may be: `autoattack` of `autoattack: apgd-t`."""
    return event.attack.partition(":")[0]


def _title(event: Event) -> str:
    """The attack and its part; an attack that is its own only part is named once."""
    family, _, part = event.attack.partition(": ")
    return family if part in ("", family) else event.attack


class _Done(ProgressColumn):
    """How much is done: so many of so many, or a percentage where the units are of no interest."""

    def render(self, task: Task) -> Text:
        if task.fields.get("percent"):
            return Text(f"{task.percentage:.0f}%")
        return Text(f"{int(task.completed)}/{'?' if task.total is None else int(task.total)}")


class _Rate(ProgressColumn):
    """Steps (or images) a second."""

    def render(self, task: Task) -> Text:
        unknown = task.speed is None or task.fields.get("percent")
        return Text("" if unknown else f"{task.speed:.1f}/s")
