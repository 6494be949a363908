"""Train a run on disk, and what its recipe wants after the last epoch: a base beside it, adjusted logits."""

import warnings
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from worstclass.config.keys import Config
from worstclass.data import Source
from worstclass.data.sources import Notify
from worstclass.execution.distributed import ALONE, Team
from worstclass.inputs.names import RECIPE
from worstclass.runs.adjust import adjust_selected
from worstclass.runs.base import BASE, base_config, base_epoch, check_base, settle
from worstclass.runs.finished import is_trained
from worstclass.runs.run import Run, learned_images, open_data, open_run
from worstclass.runs.session import train_one
from worstclass.runs.warm_start import Fork
from worstclass.training.engine import Engine


def train_run(
    config: Config,
    out: Path | str,
    *,
    resume: bool = False,
    fork: Fork | None = None,
    keep: Collection[int] = (),
    data_dir: Path | str = Path("data"),
    device: torch.device | str = "cpu",
    engine: Engine | None = None,
    checkpoint_minutes: float = 1.0,
    allow_code: bool = False,
    team: Team = ALONE,
    data_limit: int | None = None,
    compile_cache: Path | str | None = None,
    notify: Notify | None = None,
    stop: Callable[[], bool] | None = None,
    on_start: Callable[[Run], None] | None = None,
    on_step: Callable[[int, int, int], None] | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
    on_base: Callable[[], None] | None = None,
    on_compare: Callable[[int, int], None] = lambda done, total: None,
    on_adjust: Callable[[int, int], None] = lambda done, total: None,
    on_fallback: Callable[[str], None] = warnings.warn,
) -> Run:
    """Train, or continue, a run in the folder `out`; of the test part nothing is read but the size of its images.

    After each epoch a line is added to the log. Once `checkpoint_minutes` have passed since the last time, and at the
    end, the whole state is saved while training goes on, with the epoch selected so far; each file is replaced
    atomically, and what came after the last checkpoint that was written is made again. A damaged checkpoint is found by
    its digest, and the one before it taken. A folder that another process trains in is refused.
    `stop()` is asked after each step and epoch: if it says so, the state is saved, and `KeyboardInterrupt` is raised.
    `on_start(run)`, before the first step, `on_step(epoch, step, steps)` and `on_epoch(record)` watch, and
    `on_fallback(line)` hears what was taken in the place of something else. Images of more than `data_limit` bytes stay
    in host memory, as `fit` says. Every process of a `team` calls this with the same arguments; the leader alone
    touches the folder, and watches. A run may go on from an epoch of another, its `fork`. The state at the end of each
    epoch in `keep` stays, for forks to come.
    What the fast engine compiles is kept in the folder `compile_cache`, where a later run of the same kind finds it:
    whoever can write there can run code (docs/security.md).
    With `base_start` in the recipe a run that learns no weights is trained too, in the folder `base`, and what is
    selected is the better of the two or a network between them (`runs.base`); `on_base()` is called before it starts,
    and `on_compare(done, total)` as they are compared.
    With `adjust_budget` its logits are adjusted last (`runs.logit_adjustment`), and `on_adjust(done, total)` is called.
    """
    out = Path(out)

    @cache
    def data() -> Source:  # opened, and its training images read, once for the run and its base
        opened = partial(open_data, config, allow_code=allow_code, data_dir=data_dir, notify=notify)
        source = team.leader_first(opened)
        return replace(source, read=cache(source.read))

    one = partial(
        train_one,
        data=data,
        device=device,
        engine=engine,
        checkpoint_minutes=checkpoint_minutes,
        allow_code=allow_code,
        team=team,
        data_limit=data_limit,
        compile_cache=None if compile_cache is None else Path(compile_cache),
        stop=stop,
        on_step=on_step,
        on_epoch=on_epoch,
        on_fallback=on_fallback,
    )
    if config.select == "worst":  # the recipe of the run says what it was
        config = config.for_classes(data().num_classes)
    config = config.from_epoch(fork.epoch if fork and fork.run.config.method != config.method else 0)
    if config.base_start is None and config.adjust_budget is None:
        return one(config, out, resume=resume, fork=fork, keep=keep, on_start=on_start)
    if fork and config.base_start is not None:
        check_base(config, fork.epoch)
    done = torch.tensor(int(resume and team.leads and is_trained(Run(out, config, {}))))
    if team.broadcast(done).item() == 1:  # its own weights would take the place of those that ship
        return open_run(out) if team.leads else Run(out, config, {})
    bases = set() if config.base_start is None else {base_epoch(config)}
    run = one(config, out, resume=resume, fork=fork, keep={*keep, *bases}, on_start=on_start)
    if bases:
        begun = team.broadcast(torch.tensor(int((out / BASE / RECIPE).is_file()))).item() == 1  # as the leader sees it
        if on_base and team.leads:
            on_base()
        if begun:
            one(open_run(out / BASE).config, out / BASE, resume=True)
        else:
            one(base_config(config), out / BASE, fork=Fork(run, base_epoch(config)))
    if not team.leads:
        return run
    learned = learned_images(config, data())
    if bases:
        run = Run(out, config, settle(run, learned.train, learned.valid, torch.device(device), on_compare))
    if config.adjust_budget is not None:
        adjusted = adjust_selected(run, learned.valid, torch.device(device), allow_code=allow_code, on_attack=on_adjust)
        run = Run(out, config, adjusted)
    return run
