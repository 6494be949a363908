"""Files that mean harm, wherever a file can be given: one clean error, and nothing of them happens."""

import os
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hostile
from cifar_files import FILES10, SMALL10, write_files
from hostile import CLIMBING, one_line
from tiny import GREY, picture, tiny_config, write_tiny_npz
from worstclass.config.recipe import make_config, read_recipe
from worstclass.data import open_source
from worstclass.data.cifar import read_cifar, read_cifar_names
from worstclass.evaluation.saved import CARD, OUTCOMES
from worstclass.evaluation.targets import PROGRESS, evaluate_target, model_target, run_target
from worstclass.inputs.names import RECIPE
from worstclass.report import load_results
from worstclass.runs.run import open_run
from worstclass.runs.saver import ABOUT, LAST, LOG, SELECTED
from worstclass.runs.train import train_run
from worstclass.training.checkpoint import load_tensors


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, evaluated."""
    root = tmp_path_factory.mktemp("hostile")
    run = train_run(tiny_config(write_tiny_npz(root / "tiny.npz"), method="trades", epochs=1), root / "run")
    evaluate_target(run_target(run), ["pgd-2"], run.folder)
    return run.folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def use(run: Path, name: str) -> None:
    """What reads that file of a run folder."""
    if name in (LAST, RECIPE):
        opened = open_run(run)
        train_run(opened.config, run, resume=True)
    elif name == SELECTED:
        open_run(run).load_model()
    elif name == PROGRESS:
        evaluate_target(run_target(open_run(run)), ["pgd-3"], run)
    else:
        load_results([run])


# --- pickle ---


@pytest.mark.parametrize("make", [hostile.pickled, hostile.torch_file, hostile.object_array])
def test_a_pickle_is_run_nowhere(make: Callable[[Path], bytes], run: Path, tmp_path: Path) -> None:
    """As weights, as any file of a run, as data and as a recipe."""
    mark = tmp_path / "mark"
    for name in (LAST, SELECTED, ABOUT, LOG, CARD, OUTCOMES, PROGRESS, RECIPE):
        copy = tmp_path / name
        shutil.copytree(run, copy)
        (copy / name).write_bytes(make(mark))
        (copy / "previous.safetensors").unlink(missing_ok=True)
        one_line(lambda name=name, copy=copy: use(copy, name))  # type: ignore[misc]
    evil = tmp_path / "evil.npz"
    evil.write_bytes(make(mark))
    one_line(lambda: open_source(f"npz:{evil}"))
    one_line(lambda: load_tensors(evil, ours=False))
    one_line(lambda: read_recipe(str(evil)))
    data = open_run(run).config.data
    one_line(lambda: model_target("worstclass.models:SmallCNN", weights=evil, data=data, eps=0.1))
    picture(tmp_path / "images" / "train" / "a" / "0.png", GREY[0])
    picture(tmp_path / "images" / "train" / "b" / "0.png", GREY[0])
    (tmp_path / "images" / "train" / "b" / "0.png").write_bytes(make(mark))
    one_line(lambda: open_source(f"folder:{tmp_path / 'images'}").read("train"))
    assert not mark.exists()


def test_the_payload_works(tmp_path: Path) -> None:
    """Or else the test above could not fail."""
    (tmp_path / "a.npy").write_bytes(hostile.object_array(tmp_path / "mark"))
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert (tmp_path / "mark").is_dir()


@pytest.mark.parametrize("name", [*CLIMBING, "a\x1b[2J", "x" * 200, ""])
def test_names_of_attacks_do_not_become_paths(name: str, run: Path) -> None:
    """They are part of a figure's file name."""
    with zipfile.ZipFile(run / OUTCOMES, "a") as archive:
        archive.writestr(f"predictions/{name}.npy", hostile.npy("<i2", (60,), bytes(120)))
    assert "is not the name of an attack" in one_line(lambda: load_results([run]))


# --- files that are none, and text that is none ---


def test_a_pipe_is_not_waited_for(run: Path, tmp_path: Path) -> None:
    """Each of these would wait for ever."""
    started = time.monotonic()
    os.mkfifo(tmp_path / "pipe.png")
    pipe = tmp_path / "pipe.png"
    one_line(lambda: open_source(f"npz:{pipe}"))
    one_line(lambda: load_tensors(pipe, ours=False))
    one_line(lambda: read_recipe(str(pipe)))
    for name in (ABOUT, CARD, LOG):
        (run / name).unlink()
        os.mkfifo(run / name)
        one_line(lambda: load_results([run]))
    for name in ("a", "b"):
        (tmp_path / "images" / "train" / name).mkdir(parents=True)
        os.mkfifo(tmp_path / "images" / "train" / name / "0.png")
    one_line(lambda: open_source(f"folder:{tmp_path / 'images'}").read("train"))
    folder = write_files(tmp_path / "cifar", FILES10)
    (folder / "test_batch.bin").unlink()
    os.mkfifo(folder / "test_batch.bin")
    one_line(lambda: read_cifar(SMALL10, folder, "test"))
    assert time.monotonic() - started < 20


def test_a_large_file_is_not_read(run: Path, tmp_path: Path) -> None:
    """Files with holes, a terabyte each."""
    folder = write_files(tmp_path / "cifar", FILES10)
    for path in (run / CARD, run / LOG, run / ABOUT, folder / "test_batch.bin", folder / SMALL10.names_file):
        before = path.read_bytes()
        os.truncate(path, 2**40)
        if path.parent == run:
            assert "are read" in one_line(lambda: load_results([run]))
        else:
            one_line(lambda: (read_cifar_names(SMALL10, folder), read_cifar(SMALL10, folder, "test")))
        path.write_bytes(before)


@pytest.mark.parametrize("name", [ABOUT, CARD, LOG])
@pytest.mark.parametrize("case", hostile.TEXTS)
def test_json_of_a_run(name: str, case: str, run: Path) -> None:
    (run / name).write_bytes(hostile.TEXTS[case] + (b"\n" if name == LOG else b""))
    one_line(lambda: load_results([run]))


@pytest.mark.parametrize("case", hostile.RECIPES)
def test_recipes(case: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(hostile.RECIPES[case])
    started = time.monotonic()
    one_line(lambda: make_config(read_recipe(str(tmp_path / "a.toml"))))
    assert time.monotonic() - started < 20


# --- checkpoints whose header lies ---


def tensor(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


LIES: dict[str, bytes] = {
    "a header of exabytes": hostile.safetensors({}, length=2**63),
    "a header longer than the file": hostile.safetensors({}, length=10**6),
    "no header": b"",
    "half a length": b"\x02\x00",
    "offsets beyond the file": hostile.safetensors({"a": tensor(data_offsets=[0, 8000], shape=[2000])}, bytes(8)),
    "offsets that overlap": hostile.safetensors({"a": tensor(), "b": tensor(data_offsets=[4, 12])}, bytes(12)),
    "offsets with a hole": hostile.safetensors({"a": tensor(), "b": tensor(data_offsets=[16, 24])}, bytes(24)),
    "negative offsets": hostile.safetensors({"a": tensor(data_offsets=[-8, 0])}, bytes(8)),
    "offsets the wrong way": hostile.safetensors({"a": tensor(data_offsets=[8, 0])}, bytes(8)),
    "another shape": hostile.safetensors({"a": tensor(shape=[3])}, bytes(8)),
    "a huge shape": hostile.safetensors({"a": tensor(shape=[2**62, 2**62])}, bytes(8)),
    "an unknown type": hostile.safetensors({"a": tensor(dtype="OBJECT")}, bytes(8)),
    "another type": hostile.safetensors({"a": tensor(dtype="F64")}, bytes(8)),
    "a list": hostile.safetensors([], bytes(8)),
    "deep": hostile.safetensors(hostile.DEEP.encode()),
    "not UTF-8": hostile.safetensors(b'{"\xff": 1}'),
    "metadata of another kind": hostile.safetensors({"__metadata__": {"a": 1}}),
}


@pytest.mark.parametrize("case", LIES)
@pytest.mark.parametrize("ours", [True, False])
def test_a_checkpoint_whose_header_lies(case: str, ours: bool, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(LIES[case])
    one_line(lambda: load_tensors(tmp_path / "a.safetensors", ours=ours))


@pytest.mark.parametrize(
    "text", ["", "[]", "3", '{"digest": 3}', hostile.DEEP, '{"epoch": %s}' % ("1" * 10_000), "\\ud800"]
)
def test_our_own_header_inside_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(hostile.safetensors({"__metadata__": {"worstclass": text}}))
    one_line(lambda: load_tensors(tmp_path / "a.safetensors"))
