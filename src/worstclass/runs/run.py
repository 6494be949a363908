"""A run on disk: its recipe, its log, its checkpoints; how it is opened again."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from worstclass.config.keys import Config
from worstclass.config.recipe import make_config, read_stored
from worstclass.data import Images, Source, channel_statistics, long_tail, open_source, split_validation, to_float
from worstclass.data.sources import Notify
from worstclass.errors import UserError, class_called, reason
from worstclass.files import parse_json, read_text
from worstclass.inputs.images import are_probabilities, check_first_label, kept_as_is, refuse_frozen, tensor_of
from worstclass.inputs.names import RECIPE, check_run_folder, data_runs_code, model_kind, runs_user_code
from worstclass.models import Normalized, make_model
from worstclass.records import check_record
from worstclass.runs.saver import LAST, LOG, MAX_LOG, SELECTED, check_recipe, read_about
from worstclass.runs.schema import LogRecord
from worstclass.training.checkpoint import load_tensors, load_weights, section

HOLD_OUT = 'give validation = "held-out", which takes some of the training images'


@dataclass(frozen=True)
class Learned:
    """What a run learns from: all of its images, in the order of the data, and the two parts of them. `border` is the
    place where the second begins, if the data say so."""

    images: Images
    train: Images
    valid: Images
    border: int | None = None

    @classmethod
    def joined(cls, train: Images, valid: Images) -> "Learned":
        """Of two parts that the data keep apart."""
        whole = Images(torch.cat((train.x, valid.x)), torch.cat((train.y, valid.y)))
        return cls(whole, train, valid, len(train))

    @property
    def digest(self) -> str:
        """Of the images, and of the border if the data have one."""
        return fingerprint(self.images, self.border)


@dataclass(frozen=True)
class Run:
    """A run folder, opened: its configuration and what it was trained on."""

    folder: Path
    config: Config
    about: dict[str, Any]

    @property
    def class_names(self) -> list[str]:
        """The names of its K classes, by label."""
        return list(self.about["class_names"])

    @property
    def fork(self) -> int | None:
        """The epoch of another run that it went on from, if it did."""
        return int(self.about["fork"]["epoch"]) if self.about.get("fork") else None

    @property
    def title(self) -> str:
        """How it is called in tables."""
        return self.config.title + ("" if self.fork is None else f", fork at {self.fork}")

    @property
    def log(self) -> list[dict[str, Any]]:
        """The records of its epochs."""
        path = self.folder / LOG
        text = read_text(path, MAX_LOG)
        lines = text[: text.rfind("\n") + 1].splitlines()  # a kill may leave half a line
        return [self._checked(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]

    def _checked(self, text: str, where: str) -> dict[str, Any]:
        line = check_record(LogRecord, parse_json(text, where), where)
        classes = len(self.class_names)
        for key, count in (
            ("class_costs", classes + 1),
            ("class_weights", classes),
            ("class_robust_accuracy", classes),
            ("class_train_accuracy", classes),
            ("class_robust_weights", classes),
            ("class_sampling", classes),
            ("expert_weights", classes + 1),
        ):
            if key in line and len(line[key]) != count:
                raise UserError(f"{where} is damaged: {key} has {len(line[key])} numbers, not {count}.")
        return line

    def load_model(self, which: str = "selected", *, allow_code: bool = False) -> tuple[nn.Module, int]:
        """The network of the selected or the last epoch, in evaluation mode, and the number of that epoch."""
        path = self.folder / (SELECTED if which == "selected" else LAST)
        if not path.is_file():
            saved = (self.folder / LAST).is_file()  # within the first epoch
            reason = "no epoch has ended" if saved else "no checkpoint has been written"
            raise UserError(f"{self.folder} has no {path.name} yet: {reason}.")
        refuse_code(self.config, allow_code)
        model = build_model(self.config, self.about["num_classes"], self.about["in_channels"], None)
        tensors, header = load_tensors(path)
        if header.get("step"):
            raise UserError(
                f"{path} is from within epoch {header['epoch'] + 1}: continue the run, or take the selected epoch."
            )
        weights = section(tensors, "average.model") or section(tensors, "model")  # the last epoch's, as they ship
        load_weights(model, weights, path)
        return model.eval(), header["epoch"]


def open_run(folder: Path | str) -> Run:
    """Open a run folder, or say why it is none."""
    folder = check_run_folder(Path(folder))
    config, about = make_config(read_stored(folder), str(folder / RECIPE)), read_about(folder)
    check_recipe(folder, about)
    return Run(folder, config, about)


def open_data(
    config: Config, *, allow_code: bool = False, data_dir: Path | str = Path("data"), notify: Notify | None = None
) -> Source:
    """The data of a recipe; those that run code are opened with consent alone."""
    refuse_code(config, allow_code)
    return open_source(
        config.data,
        image_size=config.image_size,
        test_fraction=config.test_fraction,
        data_dir=data_dir,
        notify=notify,
    )


def learned_images(config: Config, source: Source) -> Learned:
    """All that a run learns from: the training part of its data, thinned where it says so, and its validation images,
    those that the data bring or some of the same part."""
    whole, names = source.read("train"), source.class_names
    if config.validation == "held-out" or not source.has_validation:
        images = whole if config.imbalance is None else long_tail(whole, source.num_classes, config.imbalance)
        parts = split_validation(images, len(names), config.valid_fraction, config.valid_min, class_names=names)
        return Learned(images, *parts)
    if config.imbalance is not None:
        raise UserError(f"imbalance is for validation images that are held out: {HOLD_OUT}.")
    return Learned.joined(whole, own_validation(source, whole))


def own_validation(source: Source, train: Images) -> Images:
    """The validation images that a data set brings, beside those to train on."""
    try:
        valid = source.read("validation")
        if valid.x.shape[1:] != train.x.shape[1:]:
            shapes = [tuple(each.x.shape[1:]) for each in (train, valid)]
            raise UserError(f"training images are {shapes[0]}, validation images {shapes[1]}.")
        for kind, part in (("training", train), ("validation", valid)):
            for k, count in enumerate(part.class_counts(source.num_classes).tolist()):
                if count == 0:
                    raise UserError(f"{class_called(k, source.class_names)} has no {kind} image.")
    except UserError as error:
        told = str(error).removesuffix(".")
        raise UserError(f"the validation images of data '{source.name}': {told}. Mend them, or {HOLD_OUT}.") from None
    return valid


def valid_images(run: Run, source: Source) -> Images:
    """The images that a run was validated with; of other data there are none."""
    learned, before = learned_images(run.config, source), run.about["valid_images"]
    if len(learned.valid) != before:
        found = len(learned.valid)
        raise UserError(f"{run.folder} was validated on {before} images; {run.config.data} gives {found} here.")
    if learned.digest != run.about["data_digest"]:
        raise UserError(f"{run.folder} was trained on other images than {run.config.data} has here.")
    return learned.valid


def refuse_code(config: Config, allow_code: bool) -> None:
    """A recipe that names a model or data of the user's own runs code when they are opened: only with consent."""
    if allow_code:
        return
    for what, name in code_of(config).items():
        raise UserError(f"{what} '{name}' runs code of your own; pass --allow-code if you trust it.")


def code_of(config: Config) -> dict[str, str]:
    """The keys of a recipe whose values are code of the user's own, or another library's."""
    found = {"model": config.model} if runs_user_code(config.model) else {}
    return found | ({"data": config.data} if data_runs_code(config.data) else {})


def consent(config: Config) -> str:
    """What a command needs beside a run folder whose recipe names code: ` --allow-code`, or nothing."""
    return " --allow-code" if code_of(config) else ""


def refuse_script(name: str, allow_code: bool) -> None:
    """TorchScript is a program in a file that may be anybody's: to type its path is no consent yet."""
    if model_kind(name) == "torchscript" and not allow_code:
        raise UserError(f"model '{name}': a TorchScript file is code; pass --allow-code if you trust it.")


def build_model(config: Config, num_classes: int, in_channels: int, train: Images | None) -> nn.Module:
    """The configured network; its normalisation is measured on `train`, or left to be loaded."""
    model = make_model(config.model, num_classes=num_classes, in_channels=in_channels, seed=config.seed)
    if not config.normalize:
        return model
    if train is None:
        return Normalized(model, [0.0] * in_channels, [1.0] * in_channels)
    mean, std = channel_statistics(train.x)
    return Normalized(model, mean.tolist(), std.clamp_min(1e-6).tolist())


def check_classifier(model: nn.Module, images: Images, num_classes: int, name: str) -> None:
    """Try two images: a model that does not take them, or does not return K logits each, is an error in one line."""
    refuse_frozen(model)
    mode, own = model.training, tensor_of(model)
    like = torch.zeros(()) if own is None else own  # a user's model may be on a GPU, or in double precision
    x = to_float(images.x[:2].to(like.device, copy=True), like.dtype)
    try:
        with torch.no_grad(), kept_as_is(x, f"model '{name}'"):
            logits = model.eval()(x)
    except UserError:
        raise
    except Exception as error:  # whatever a user's model may raise
        shape = tuple(images.x.shape[1:])
        raise UserError(f"model '{name}' cannot take images of {shape}: {str(error).splitlines()[0]}.") from error
    finally:
        model.train(mode)
    if isinstance(logits, Tensor) and logits.dim() == 2:
        check_first_label(images.y, logits.shape[1])
    if not isinstance(logits, Tensor) or logits.shape != (len(images.x[:2]), num_classes):
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"model '{name}' must return logits (B, {num_classes}), not {found} for a batch of two.")


def check_trainable(model: nn.Module, images: Images, name: str) -> None:
    """Try two images as the trainer gives them, in float32: there must be logits, and a parameter that moves them."""
    mode, own = model.training, tensor_of(model)
    x = to_float(images.x[:2].to("cpu" if own is None else own.device, copy=True))
    try:
        logits = model.eval()(x)
    except Exception as error:  # whatever a user's model may raise
        raise UserError(
            f"model '{name}' cannot be trained on float32 images ({reason(error)}): make it float()."
        ) from error
    finally:
        model.train(mode)
    if not logits.requires_grad:
        raise UserError(f"model '{name}' has nothing to train: no parameter that its logits need has requires_grad.")
    if are_probabilities(logits):
        raise UserError(f"model '{name}' returns probabilities: leave out its softmax, the loss has one of its own.")


def fingerprint(images: Images, border: int | None = None) -> str:
    """SHA-256 of images and labels: what a number was measured on. Some images at a time: nothing is copied whole."""
    digest = hashlib.sha256(b"" if border is None else f"{border} ".encode())
    for tensor in (images.x, images.y):
        for part in tensor.split(1000):
            digest.update(part.cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
