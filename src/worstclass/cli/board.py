"""What a person sees of a sweep: a live table with a row for each job, or a line whenever one changes its state."""

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from worstclass.cli import progress
from worstclass.cli.console import print_wide, say
from worstclass.errors import UserError, visible
from worstclass.evaluation.evaluate import Event
from worstclass.inputs.names import RECIPE
from worstclass.metrics.percentages import percent
from worstclass.metrics.tail import has_many, worst_tenth
from worstclass.report.results import attack_title
from worstclass.runs.run import open_run
from worstclass.runs.saver import LOG
from worstclass.sweep.jobs import Failure
from worstclass.sweep.plan import Job

INTERVAL = 1.0


class Row:
    """One job as its folder shows it: a job of this process and one on another machine are watched alike."""

    def __init__(self, job: Job, *, done: bool) -> None:
        self.job = job
        self.state = "done already" if done else "waiting"
        self.epoch, self.valid, self.resumed = f"1/{job.config.epochs}", "", False
        self.many = False  # classes, as soon as its log says so
        self._before = {what: self._stamp(what) for what in ("train", "evaluate")}
        self._began: float | None = None
        self._minutes = ""
        self._ended = done
        self._look()

    @property
    def title(self) -> str:
        return self.state + (", resumed" if self.resumed else "")

    @property
    def minutes(self) -> str:
        if self._began is not None and not self._ended:
            self._minutes = f"{(time.monotonic() - self._began) / 60:.1f}"
        return self._minutes

    @property
    def ended(self) -> bool:
        return self._ended

    def end(self, failure: Failure | None) -> None:
        """The job has ended."""
        self._look()
        self._began = time.monotonic() if self._began is None else self._began
        _ = self.minutes
        self._ended, self.state = True, f"failed: {failure.reason}" if failure else "done"

    def refresh(self) -> None:
        """Look at the folder again: a lock that was taken since the start says that the job has begun."""
        begun = [what for what, stamp in self._before.items() if self._stamp(what) != stamp]
        if self._ended or not begun:
            return
        self._began = time.monotonic() if self._began is None else self._began
        epochs = self._look()
        self.epoch = f"{min(epochs + 1, self.job.config.epochs)}/{self.job.config.epochs}"
        self.state = "evaluating" if "evaluate" in begun else f"training epoch {self.epoch}"

    def cells(self) -> list[str]:
        return [visible(self.job.name), visible(self.title), self.valid, self.minutes]

    def _look(self) -> int:
        """Read its log; gives how many epochs have ended. A file that is just being written is read the next time."""
        with suppress(UserError, OSError, ValueError):
            if (self.job.folder / RECIPE).is_file():
                run = open_run(self.job.folder)
                self.resumed = bool(run.about.get("resumed"))
                log = run.log if (self.job.folder / LOG).is_file() else []
                kept: list[dict[str, Any]] = [line for line in log if line["selected"]]
                if kept:
                    valid, classes = kept[-1]["valid"], kept[-1]["class_robust_accuracy"]
                    self.many = has_many(len(classes))
                    shown = [valid["robust_accuracy"], valid["worst_robust_accuracy"]]
                    shown += [worst_tenth(classes)] if self.many else []
                    attack = "CW " if run.config.valid_attack == "cw" else ""  # PGD goes without saying
                    self.valid = attack + " / ".join(percent(value) for value in shown)
                return len(log)
        return 0

    def _stamp(self, what: str) -> int:
        """When a job last took the folder, by the clock of its disk: a lock is opened anew each time."""
        with suppress(OSError):
            return (self.job.folder / f".{what}.lock").stat().st_mtime_ns
        return 0


class Board:
    """The rows of a sweep, looked at every second by a thread of its own."""

    def __init__(self, jobs: Sequence[Job], done: set[str], console: Console | None = None) -> None:
        # standard output as it is now: Ray's is led elsewhere later
        self._console = console or Console(file=sys.stdout, force_terminal=sys.stdout.isatty())
        self.failures: dict[str, Failure] = {}
        self._rows = {job.name: Row(job, done=job.name in done) for job in jobs}
        self._said: dict[str, str] = {}
        self._last, self._when = "", time.monotonic()  # of the lines on how far all are
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(self._table(), console=self._console, auto_refresh=False, redirect_stdout=False)
        self._lines = progress.Lines(self._console)  # of an evaluation in this process, off a terminal
        self._attacking = False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        else:
            self._lines.__enter__()
        self._refresh()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._live:
            self._live.stop()
        else:
            self._lines.__exit__(kind, error, trace)

    def say(self, line: str) -> None:
        """Print a line where the board is; inside `ray_cluster` nothing else can."""
        say(line, self._console)

    def attack(self, event: Event) -> None:
        """Hear how far the evaluation of a job in this process is; off a terminal it has the lines of `evaluate`."""
        if self._live:
            return
        if not self._attacking:
            self._attacking = True
            self._refresh()  # that it is evaluated comes first
        self._lines.attack(event)

    def finish(self, job: Job, failure: Failure | None) -> None:
        """Note the end of a job."""
        self._lines.end_attack(done=failure is None)
        self._attacking = False
        with self._lock:
            self._rows[job.name].end(failure)
            if failure:
                self.failures[job.name] = failure
        self._refresh()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._refresh()

    def _refresh(self) -> None:
        with self._lock:
            for row in self._rows.values():
                row.refresh()
            if self._live:
                self._live.update(self._table(), refresh=True)
                return
            for name, row in self._rows.items():
                kind = row.title.replace(row.epoch, "")  # a line an epoch for each of many runs is nothing to read
                if self._said.get(name, "waiting") != kind:
                    self._said[name] = kind
                    self.say(f"{name}: {row.title}" + (f" (validation {row.valid})" if row.valid else ""))
                    self._when = time.monotonic()
            self._say_how_far()

    def _say_how_far(self) -> None:
        """Off a terminal, a line every half minute, if anything has moved."""
        busy = [f"{name}: {row.title}" for name, row in self._rows.items() if row.state.startswith("training")]
        line = f"{sum(row.ended for row in self._rows.values())} of {len(self._rows)} jobs ended; {', '.join(busy)}"
        if busy and line != self._last and time.monotonic() - self._when >= progress.INTERVAL:
            self._last, self._when = line, time.monotonic()
            self.say(line)

    def _table(self) -> Table:
        many = any(row.many for row in self._rows.values())
        measures = "average / worst / worst tenth" if many else "average / worst"
        table = Table("Run", "State", f"Validation: {measures} %", "Minutes")
        for row in self._rows.values():
            table.add_row(*(Text(cell) for cell in row.cells()))
        return table


def print_results(results: Mapping[str, Any]) -> None:
    """Each job's accuracies, what failed and why, and mean and spread where there is more than one seed."""
    names = results["sweep"]["attacks"]
    attacks = [name.strip() for name in names.split(",") if name.strip()]
    measures = _measures(results)
    table = Table("Run", "State", *map(attack_title, attacks), caption=f"{measures} %", caption_justify="left")
    for line in results["jobs"]:
        state = line["state"] if line["state"] == "done" else f"failed: {line['reason']}"
        found = [line["results"].get(name) for name in attacks]
        cells = ["" if f is None else _accuracies(f) for f in found]
        table.add_row(*(Text(visible(cell)) for cell in (line["name"], state, *cells)))  # names are not markup
    print_wide(table)
    if attacks and any(each["seeds"] > 1 for each in results["summary"]):
        caption = f"{measures} %, mean ± standard deviation over seeds; (the class that is lowest over all)"
        table = Table("Runs", "Seeds", *map(attack_title, attacks), caption=caption, caption_justify="left")
        for each in results["summary"]:
            found = [each["results"].get(name) for name in attacks]
            cells = ["" if f is None else _over_seeds(f) for f in found]
            table.add_row(*(Text(visible(cell)) for cell in (each["group"], str(each["seeds"]), *cells)))
        print_wide(table)


def _measures(results: Mapping[str, Any]) -> str:
    """What cells show; of a sweep over data sets of few and of many classes, some have the third and some have not."""
    found = [cell for line in results["jobs"] for cell in line["results"].values()]
    return "average / worst class" + (" / worst tenth" if any(has_many(len(cell["classes"])) for cell in found) else "")


def _accuracies(found: Mapping[str, Any]) -> str:
    keys = ("average", "worst", *(["worst_tenth"] if has_many(len(found["classes"])) else []))
    return " / ".join(percent(found[key]) for key in keys)


def _over_seeds(found: Mapping[str, Any]) -> str:
    pooled = found["pooled_worst"]
    lowest = f"({pooled['class']} {percent(pooled['value'])})"
    tenth = f" / {_spread(found['worst_tenth'])}" if has_many(found["classes"]) else ""
    return f"{_spread(found['average'])} / {_spread(found['worst'])} {lowest}{tenth}"


def _spread(value: Mapping[str, float | None]) -> str:
    mean, std = value["mean"], value["std"]
    assert mean is not None
    return percent(mean) + ("" if std is None else f" ± {percent(std)}")
