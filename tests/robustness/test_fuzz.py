"""Ten thousand harmed files for each reader (a thousand without --full): what is not refused cleanly must be whole.

Each example of hypothesis is a seed of some hundred cases; they are counted, and those that are alike count once.
"""

import json
import os
import random
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import hostile
from cifar_files import FILES10, SMALL10
from mutate import any_value, harm_bytes, harm_value
from tiny import tiny_config, write_tiny_npz
from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, read_recipe, recipe_names, to_toml
from worstclass.data import Images, open_source
from worstclass.data.cifar import read_cifar, read_cifar_names
from worstclass.errors import UserError
from worstclass.evaluation.checks import load_findings
from worstclass.evaluation.outcomes import Outcomes
from worstclass.evaluation.saved import CARD, load_card
from worstclass.evaluation.targets import evaluate_target, run_target
from worstclass.runs.train import train_run
from worstclass.strategies import WAT
from worstclass.sweep import expand, read_sweep
from worstclass.training import State, new_state
from worstclass.training.checkpoint import load_state, load_tensors, save_state, save_tensors

Case = Callable[[random.Random], tuple[Any, Callable[[], None]]]
Fuzz = Callable[[Case], None]
BATCH = 120


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a disk takes longer to open a file than we to read it."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def fuzz(full: bool) -> Fuzz:
    """So many different cases: each is (what it is, for counting; a reading of it that may raise UserError)."""
    return partial(run_cases, cases=10_000 if full else 1000)


def run_cases(case: Case, *, cases: int) -> None:
    seen: set[int] = set()
    outcomes = {"read": 0, "refused": 0}

    @settings(max_examples=cases // 100, database=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**60))
    def run(seed: int) -> None:
        for number in range(BATCH):
            content, read = case(random.Random(f"{seed} {number}"))
            seen.add(hash(content))
            try:
                read()
                outcomes["read"] += 1
            except UserError as error:
                outcomes["refused"] += 1
                if "\n" in str(error) or len(str(error)) > 2000:
                    raise AssertionError(f"seed {seed}, case {number}: not one line") from error
            except BaseException as error:
                error.add_note(f"seed {seed}, case {number}: {content!r:.2000}")
                raise

    run()
    assert len(seen) >= cases, len(seen)
    assert min(outcomes.values()) > cases // 200, outcomes  # both happen, or the cases are too tame or too wild


def check_config(config: Config) -> None:
    assert make_config(tomllib.loads(to_toml(config))) == config


def test_configurations(fuzz: Fuzz) -> None:
    good = make_config({}).recipe()
    keys = list(good)

    def case(draw: random.Random) -> tuple[Any, Callable[[], None]]:
        values = {key: any_value(draw) for key in draw.sample(keys, draw.randint(1, 2))}
        if draw.random() < 0.2:
            values = harm_value(draw, {**good, "lr_milestones": [0.75, "9/10"]})
        elif draw.random() < 0.1:
            values[draw.choice(["", "epoch", "Eps", "x" * 500])] = 1
        if draw.random() < 0.3:
            values = {**values, "seed": draw.randrange(2**30)} if isinstance(values, dict) else values
        return json.dumps(values), lambda: check_config(make_config(values if isinstance(values, dict) else {}))

    fuzz(case)


def test_recipes(folder: Path, fuzz: Fuzz) -> None:
    shipped = [to_toml(make_config(read_recipe(name))).encode() for name in recipe_names()]
    recipes = Path(__file__).parents[2] / "src" / "worstclass" / "recipes"
    shipped += [path.read_bytes() for path in recipes.glob("*.toml")]
    path = folder / "a.toml"

    def case(draw: random.Random) -> tuple[Any, Callable[[], None]]:
        content = (
            draw.randbytes(draw.randrange(100)) if draw.random() < 0.05 else harm_bytes(draw, draw.choice(shipped))
        )

        def read() -> None:
            path.write_bytes(content)
            check_config(make_config(read_recipe(str(path))))

        return content, read

    fuzz(case)


def test_sweeps(folder: Path, fuzz: Fuzz) -> None:
    """Whatever is read comes to runs with a folder each, and every run to a recipe that reads back."""
    good = [(Path(__file__).parents[2] / "examples" / "sweep.toml").read_bytes()]
    good.append(b'[grid]\nmethod = ["wat", "csl", "natural"]\neta = [0.1, "1/2"]\nflip = [true]\n[set]\nbeta = 3\n')
    path = folder / "sweep.toml"

    def case(draw: random.Random) -> tuple[Any, Callable[[], None]]:
        content = harm_bytes(draw, draw.choice(good))

        def read() -> None:
            path.write_bytes(content)
            jobs = expand(read_sweep(path), Path("out"))
            assert len({job.folder for job in jobs}) == len(jobs) > 0
            for job in jobs:
                assert job.folder.parent == Path("out")
                check_config(job.config)

        return content, read

    fuzz(case)


def check_images(images: Images, num_classes: int) -> None:
    assert images.x.dtype == torch.uint8
    assert images.x.dim() == 4
    assert images.x.numel()
    assert len(images.x) == len(images.y)
    assert 0 <= int(images.y.min()) <= int(images.y.max()) < num_classes


def npy_of(array: Any) -> bytes:
    array = np.asarray(array)
    return hostile.npy(array.dtype.str, array.shape, array.tobytes())


DATA = {
    "x_train": npy_of(np.arange(96, dtype=np.uint8).reshape(6, 4, 4)),
    "y_train": npy_of(np.arange(6) % 3),
    "class_names": npy_of(np.array(["a", "b", "c"])),
}
OUTCOMES = {
    "labels": npy_of(np.arange(6, dtype=np.int16) % 3),
    "predictions/natural": npy_of(np.arange(6, dtype=np.int16) % 2),
    "predictions/pgd-5": npy_of(np.zeros(6, dtype=np.int16)),
    "broken_by/pgd-5": npy_of(np.array(["natural", "", "", "pgd-5", "", ""])),
}
TYPES = [
    "|u1",
    "<i8",
    "<i2",
    ">i4",
    "<f4",
    "<f8",
    "|b1",
    "<U3",
    "|S4",
    "|O",
    "<c16",
    "<M8[s]",
    "|V8",
    "<U0",
    "zz",
    3,
    None,
    [("a", "|u1")],
]


def harmed_npz(draw: random.Random, good: dict[str, bytes], path: Path) -> bytes:
    """Harm inside the arrays, with the checksums of the archive in order; or to the archive as a whole."""
    members = dict(good)
    name = draw.choice(list(members))
    match draw.randrange(4):
        case 0:
            members[name] = harm_bytes(draw, members[name])
        case 1:
            data = members[name].partition(b"}")[2]
            shape: Any = tuple(
                draw.choice((0, 1, 2, 3, 4, 6, 12, 96, -1, 2**40, 2**63)) for _ in range(draw.randrange(5))
            )
            members[name] = hostile.npy(draw.choice(TYPES), any_value(draw) if draw.random() < 0.2 else shape, data)
        case 2:
            array = np.frombuffer(
                draw.randbytes(draw.choice((6, 12, 24, 48, 96))), dtype=draw.choice(("u1", "i1", "u2", "i2"))
            )
            members[name] = npy_of(array)
        case _:
            members[draw.choice([*members, "x", "../x", "predictions/../x", "predictions/"])] = members.pop(name)
    hostile.archive(path, {f"{key}.npy": value for key, value in members.items()}, draw.choice((0, 8)))
    content = path.read_bytes()
    if draw.random() < 0.4:
        content = harm_bytes(draw, content)
    return content if draw.random() < 0.98 else draw.randbytes(draw.randrange(200))


def test_npz_files(folder: Path, fuzz: Fuzz) -> None:
    path = folder / "a.npz"

    def case(draw: random.Random) -> tuple[Any, Callable[[], None]]:
        data = draw.random() < 0.5
        content = harmed_npz(draw, DATA if data else OUTCOMES, path)

        def read() -> None:
            path.write_bytes(content)
            if data:
                source = open_source(f"npz:{path}")
                check_images(source.read("train"), source.num_classes)
                return
            outcomes = Outcomes.load(path)
            outcomes.check_range(3, path)
            outcomes.save(path)
            again = Outcomes.load(path)
            assert np.array_equal(again.labels, outcomes.labels)
            for name, values in outcomes.predictions.items():
                assert np.array_equal(again.predictions[name], values)

        return content, read

    fuzz(case)


def test_cifar_files(folder: Path, fuzz: Fuzz) -> None:
    """Without the digests, which would refuse everything but the official bytes."""
    layout = replace(SMALL10, test={"test_batch.bin": (2, None)})
    row = 3073

    def case(draw: random.Random) -> tuple[Any, Callable[[], None]]:
        content = bytearray(FILES10["test_batch.bin"])
        for _ in range(draw.randint(1, 3)):
            content[draw.choice((0, row, draw.randrange(2 * row)))] = draw.randrange(256)
        harmed, names = bytes(content), FILES10[layout.names_file]
        if draw.random() < 0.3:
            harmed = harm_bytes(draw, harmed)
        if draw.random() < 0.5:
            names = harm_bytes(draw, names)

        def read() -> None:
            (folder / "test_batch.bin").write_bytes(harmed)
            (folder / layout.names_file).write_bytes(names)
            assert len(set(read_cifar_names(layout, folder))) == 10
            images = read_cifar(layout, folder, "test")
            check_images(images, 10)
            assert images.x.shape == (2, 3, 32, 32)
            assert bytes([int(images.y[1])]) + images.x[1].numpy().tobytes() == harmed[row:]

        return (harmed, names), read

    fuzz(case)


def tiny_state() -> State:
    plan = make_config({}).make_plan()
    torch.manual_seed(0)
    state = new_state(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), WAT(torch.ones(3), eta=0.1), plan)
    state.epoch, state.step = 1, 2
    return state


DTYPES = ["F32", "F64", "F16", "BF16", "I64", "I8", "U8", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64", "U16", "U64", "x"]


def test_checkpoints(folder: Path, fuzz: Fuzz) -> None:
    """Bytes; the header of the format; and our own header and tensors, with a digest that fits them."""
    path, target = folder / "a.safetensors", tiny_state()
    save_state(path, tiny_state(), {"best": {"epoch": 1, "score": [0.5, 0.6]}})
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    layout, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    tensors, header = load_tensors(path)

    def case(draw: random.Random) -> tuple[Any, Callable[[], None]]:
        kind = draw.randrange(4)
        if kind == 0:
            content = harm_bytes(draw, whole)
        elif kind == 1:
            harmed = harm_value(draw, layout)
            if isinstance(harmed, dict) and draw.random() < 0.5:
                entry = harmed.get(draw.choice(list(layout)))
                if isinstance(entry, dict):
                    entry["dtype"] = draw.choice(DTYPES)
            content = hostile.safetensors(json.dumps(harmed).encode("utf-8", "replace"), data)
        else:
            own, new = dict(tensors), harm_value(draw, header) if draw.random() < 0.7 else dict(header)
            if draw.random() < 0.6:
                name = draw.choice(list(own))
                own[draw.choice([name, "model.x", "optimizer.x", "strategy.x", "epoch.x", "x"])] = own.pop(name)
                name = draw.choice(list(own))
                kinds = (torch.float64, torch.int64, torch.complex64, torch.bool, torch.uint8, torch.float16)
                own[name] = torch.zeros(draw.choice(((), (0,), (3,), (4,), (3, 5), (3, 4))), dtype=draw.choice(kinds))
            new = new if isinstance(new, dict) else {}
            if draw.random() < 0.5:
                new = {**new, "seconds": draw.random()}
            save_tensors(path, own, new)
            content = path.read_bytes()

        def read() -> None:
            path.write_bytes(content)
            _, found = load_state(path, target)
            assert isinstance(found["epoch"], int)
            assert (target.epoch, target.step) == (found["epoch"], found.get("step", 0))
            save_state(path, target, {"best": found.get("best")})
            assert load_tensors(path)[1]["epoch"] == target.epoch

        return content, read

    fuzz(case)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("fuzz")
    run = train_run(tiny_config(write_tiny_npz(root / "tiny.npz"), epochs=1), root / "run")
    evaluate_target(run_target(run), ["pgd-2"], run.folder)
    return run.folder


def test_cards(evaluated: Path, folder: Path, fuzz: Fuzz) -> None:
    good = json.loads((evaluated / CARD).read_text())
    good["columns"] = {name: {"attack": "PGD()", "average": {"value": 0.5}} for name in good["columns"]}
    good["about"]["recipe"], good["findings"] = {"epochs": 1}, good["findings"][:2]
    text = json.dumps(good).encode()

    def case(draw: random.Random) -> tuple[Any, Callable[[], None]]:
        content = harm_bytes(draw, text) if draw.random() < 0.3 else json.dumps(harm_value(draw, good)).encode()

        def read() -> None:
            (folder / CARD).write_bytes(content)
            card = load_card(folder)
            assert all(isinstance(finding.seen, str) for finding in load_findings(card))
            assert f"{card['about']['eps']:.4g} {card['about']['weights'][:12]}"
            assert len(set(card["class_names"])) == len(card["class_names"]) >= 2
            json.dumps(card, ensure_ascii=False).encode()

        return content, read

    fuzz(case)
