"""Data as image files: a folder for each class in PATH/train and in PATH/test, or in PATH itself; in PATH/val too."""

import hashlib
import os
import unicodedata
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch

from worstclass.data.images import Images, check_class_names
from worstclass.data.pictures import SizesDiffer, enlarged_notes, read_header, read_pictures, stack
from worstclass.data.source import VALIDATION_NAMES, Part
from worstclass.errors import UserError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp"}
KINDS = ", ".join(sorted(SUFFIXES))
BY_SYSTEMS = {"thumbs.db", "desktop.ini", "__macosx"}  # what nobody put there
SHOWN = 3  # names, at most, in a sentence
PARTS: tuple[Part, ...] = ("train", "test")
SPLIT_REMEDY = "--set test_fraction=0.2"


class Folder:
    """Images of one folder, by class and file name.

    With PATH/train or PATH/test these are the parts; PATH/validation, or valid or val, is one too if it has classes of
    PATH/train. Without both, the folders of PATH are the classes, and `test_fraction` of each class is the test part;
    without it everything is, and nothing can be trained on.
    """

    def __init__(self, path: Path, *, image_size: int | None = None, test_fraction: float | None = None) -> None:
        self._path, self._size, self._fraction = path, image_size, test_fraction
        self._sides: dict[str, list[int]] = {}  # of what was read
        if not path.is_dir():
            raise UserError(f"there is no folder {path}{'' if path.is_absolute() else f' in {Path.cwd()}'}.")
        _check_spelling(path)
        parts = [part for part in PARTS if (path / part).is_dir()]
        self._flat = not parts and bool(_folders(path))
        if parts and test_fraction is not None:
            raise UserError(f"{path} has {parts[0]}/ already: test_fraction is for a folder of class folders alone.")
        first = path if self._flat else path / (parts or PARTS)[0]
        self._check(first)
        names = [entry.name for entry in _folders(first)]
        if not names and len(_folders(path)) > len(parts):  # classes beside a part: one of them may be called so
            raise UserError(f"{first} is the {first.name} part, and has no class folders: rename it if it is a class.")
        if len(names) < 2:
            raise UserError(f"{first} has {len(names)} class folder(s); two or more are needed.")
        self.class_names = check_class_names(names, first)
        self._validation = [] if self._flat else self._find_validation()

    def read(self, part: Part) -> Images:
        """Every image of a part, in the order of class and file name; greyscale stays one channel."""
        files = self._files(part)
        where = str(self._path if self._flat else self._root(part))
        if not files:
            classes = f" for {part}ing in its class folders ({', '.join(self.class_names[:SHOWN])}, ...)"
            raise UserError(f"{where} holds no image files ({KINDS}){classes if self._flat else ''}.")
        if part == "train":
            self._check_filled(Path(where), {label for label, _ in files})
        paths = [file for _, file in files]
        try:
            with closing(read_pictures(paths, self._size)) as pictures:
                x, sides = stack(pictures, len(paths), where, lambda: self._colour_beside(part))
        except SizesDiffer:  # known after two of them: now of all
            raise SizesDiffer(where, [read_header(file)[1:] for file in paths]) from None
        self._sides[part] = sides
        return Images(x, torch.tensor([label for label, _ in files]))

    @property
    def has_validation(self) -> bool:
        """Whether there are validation images beside those to train on."""
        return bool(self._validation)

    def test_shape(self) -> tuple[int, ...] | None:
        """(C, H, W) of test images, by headers alone; None where there is no image."""
        files = self._files("test")
        if not files:
            return None
        grey, height, width = read_header(files[0][1])
        colour = not grey or self._colour_beside("test") or _has_colour(files)
        return (3 if colour else 1), self._size or height, self._size or width

    def notes(self, *parts: Part) -> list[str]:
        """What of the parts, or of both, is not read, and what of those that were read is enlarged much."""
        lines = []
        if self._flat and self._fraction is None:
            lines.append(
                f"{self._path} has no train/ and test/: all of its images are test images. If a run was trained on "
                "some of them, give its test_fraction."
            )
        others = [] if self._flat else [each for each in _folders(self._path) if each.name not in PARTS]
        beside = [f"{each.name}/" for each in others if each not in self._validation]
        if beside and "train" in (parts or PARTS):
            why = "" if self._validation else ": validation images are taken out of train/"
            lines.append(f"{self._path} also holds {', '.join(beside[:SHOWN])}{_more(beside)}, which is not read{why}.")
        roots = [(self._path, str(self._path))]
        if not self._flat:
            roots = [(self._path / part, f"{part}/") for part in parts or PARTS]
            if "train" in (parts or PARTS):
                roots += [(each, f"{each.name}/") for each in self._validation]
        for root, shown in roots:
            found = [name for name in self.class_names for name in _left_out(root / name)]
            if found:
                lines.append(
                    f"{len(found)} files or folders in the class folders of {shown} are no images of a known kind "
                    f"({KINDS}) and are left out: {', '.join(found[:SHOWN])}{_more(found)}."
                )
        return lines + enlarged_notes(self._sides, self._size, parts)

    def _find_validation(self) -> list[Path]:
        """The folders beside PATH/train that have its classes and are called so: one, it is hoped."""
        if not (self._path / "train").is_dir():
            return []
        found = [entry for entry in _folders(self._path) if entry.name.lower() in VALIDATION_NAMES]
        return [entry for entry in found if {each.name for each in _folders(entry)} & {*self.class_names}]

    def _root(self, part: Part) -> Path:
        """The folder of a part."""
        if part != "validation":
            return self._path / part
        if len(self._validation) > 1:
            one, other = (each.name for each in self._validation[:2])
            raise UserError(f"{self._path} has {one}/ and {other}/: which are the validation images?")
        return self._validation[0]

    def _check(self, part: Path) -> None:
        if not part.is_dir():
            alone = "or class folders alone and test_fraction"
            if part.name == "test" and (self._path / "train").is_dir():
                alone = f"such as some of {self._path / 'train'}, moved"
            raise UserError(
                f"no folder {part}: folder:PATH needs train/ and test/, each with one folder for each class, {alone}."
            )

    def _check_filled(self, root: Path, labels: set[int]) -> None:
        """Raise if a class folder holds no image at all: without a word of it, only a class without images is seen."""
        for k, name in enumerate(self.class_names):
            if k not in labels and not _image_files(root / name):
                raise UserError(f"{root / name} holds no image files ({KINDS}): add some, or take the folder away.")

    def _files(self, part: Part) -> list[tuple[int, Path]]:
        """The image files of a part, each with its label."""
        if not self._flat:
            root = self._root(part)
            self._check(root)
            if extra := {entry.name for entry in _folders(root)} - set(self.class_names):
                raise UserError(f"{root} has classes that train/ has not: {', '.join(sorted(extra))}.")
            return [(k, file) for k, name in enumerate(self.class_names) for file in _image_files(root / name)]
        if self._fraction is None and part == "train":
            raise UserError(
                f"{self._path} has no train/ and test/: give test_fraction, as in {SPLIT_REMEDY}, "
                "to keep a part of its images for testing."
            )
        chosen = []
        for k, name in enumerate(self.class_names):
            files = _image_files(self._path / name)
            tested = {*files} if self._fraction is None else files_to_test(files, self._fraction)
            chosen += [(k, file) for file in files if (file in tested) == (part == "test")]
        return chosen

    def _colour_beside(self, part: Part) -> bool:
        """Whether images of the other part have colours, by their headers: then those of this one get them too. What is
        in PATH/test does not matter for training."""
        if self._flat:
            other = [] if self._fraction is None else self._files("test" if part == "train" else "train")
            return _has_colour(other)
        trained = self._path / "train"
        return part != "train" and trained.is_dir() and _has_colour(self._files("train"))


def files_to_test(files: Sequence[Path], fraction: float) -> set[Path]:
    """The files of a class that are test images: those whose digest is below the fraction, as a share of 2^256.

    That depends on the names of class and file alone, so none moves when others are added. Of two files or more at
    least one is in each part: the one of the smallest digest, or all but the one of the largest.
    """
    digests = {file: _digest(file) for file in files}
    tested = {file for file, digest in digests.items() if digest < fraction * 2.0**256}
    if len(files) > 1 and not tested:
        return {min(files, key=digests.__getitem__)}
    if len(files) > 1 and len(tested) == len(files):
        return tested - {max(files, key=digests.__getitem__)}
    return tested


def _digest(file: Path) -> int:
    """SHA-256 of CLASS/FILE; an accent is one character (NFC), as not every system writes it."""
    name = unicodedata.normalize("NFC", f"{file.parent.name}/{file.name}")
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest())


def _check_spelling(path: Path) -> None:
    """Raise if a part is there as Train or TEST: it would be a class, or not be read. A class may be called Train:
    it holds images, and other classes are beside it."""
    folders = _folders(path)
    only_parts = {entry.name.lower() for entry in folders} <= {*PARTS, *VALIDATION_NAMES}
    some_part = any((path / part).is_dir() for part in PARTS)
    for entry in folders:
        part = entry.name.lower()
        if part not in PARTS or (path / part).is_dir():  # there too, or the same folder where case does not count
            continue
        if only_parts or some_part or (_folders(entry) and not _image_files(entry)):
            raise UserError(f"{path} has a folder {entry.name}/: rename {entry.name}/ to {part}/.")


def _folders(path: Path) -> list[Path]:
    """The folders in a folder, sorted, without those that hide or that a system made."""
    found = [entry for entry in path.glob("*") if entry.is_dir() and not _is_hidden(entry)]
    return sorted(found, key=lambda entry: entry.name)


def _is_hidden(entry: Path) -> bool:
    return entry.name.startswith(".") or entry.name.lower() in BY_SYSTEMS


def _image_files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.glob("*")) if file.suffix.lower() in SUFFIXES and not _is_hidden(file)]


def _left_out(folder: Path) -> list[str]:
    """What a class folder holds beside images."""
    return [
        f"{folder.name}/{entry.name}{'/' * entry.is_dir()}"
        for entry in sorted(folder.glob("*"))
        if not _is_hidden(entry) and (entry.is_dir() or entry.suffix.lower() not in SUFFIXES)
    ]


def _more(names: Sequence[str]) -> str:
    """How many of them are not shown."""
    return f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""


def _has_colour(files: Sequence[tuple[int, Path]]) -> bool:
    return any(not read_header(file)[0] for _, file in files)
