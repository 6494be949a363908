"""What the JSON of a run folder must look like: run.json and its log."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from worstclass.data.arrays import CHANNELS
from worstclass.errors import shown
from worstclass.records import ClassNames, Count, Finite, Record


class EngineRecord(Record):
    """How and where a run was trained."""

    fast: bool
    precision: str
    device: str
    deterministic: bool = False
    gpu: str = ""
    processes: Count = 1


class StartRecord(Record):
    """How long it took until the first step, and what of it to prepare the steps: to compile and to capture."""

    seconds: Finite
    prepare_seconds: Finite
    compile_cache: str = ""


class ResumedRecord(Record):
    """A continuation of a run, and its engine."""

    engine: EngineRecord
    start: StartRecord | None = None


class BaseRecord(Record):
    """How a run did beside its base."""

    shipped: Finite
    verdict: str


class AdjustmentRecord(Record):
    """The bias that was added to the logits after training, and the share of it that was kept."""

    bias: list[Finite]
    scale: Finite
    verdict: str


class ForkRecord(Record):
    """The run that another went on from, and after which of its epochs."""

    run: str
    epoch: Count
    weights: str
    recipe: dict[str, Any] = Field(default_factory=dict)


class RunRecord(Record):
    """run.json: what a run was trained on."""

    num_classes: Count
    class_names: ClassNames
    in_channels: Annotated[int, AfterValidator(lambda count: _one_of(count, CHANNELS))]
    image_size: Annotated[list[Annotated[int, Field(gt=0, lt=2**16)]], Field(min_length=2, max_length=2)]
    test_shape: Annotated[list[Annotated[int, Field(gt=0, lt=2**16)]], Field(min_length=3, max_length=3)] | None = None
    valid_images: Count
    class_counts: dict[str, list[Count]] = Field(default_factory=dict)
    valid_in_train: Count = 0
    valid_shift: list[Finite] = Field(default_factory=list)
    data_notes: list[str] = Field(default_factory=list)
    mirrored: list[Annotated[list[Count], Field(min_length=2, max_length=2)]] = Field(default_factory=list)
    data_digest: str
    recipe_digest: str | None = None
    engine: EngineRecord
    start: StartRecord | None = None
    resumed: list[ResumedRecord] = Field(default_factory=list)
    keep: list[Count] = Field(default_factory=list)
    fork: ForkRecord | None = None
    base: BaseRecord | None = None
    adjustment: AdjustmentRecord | None = None


class ValidRecord(Record):
    """Robust accuracy on validation images, of a line of the log."""

    robust_accuracy: Finite
    worst_robust_accuracy: Finite


class LogRecord(Record):
    """A line of the log."""

    epoch: Count
    seconds: Finite
    selected: bool
    valid: ValidRecord
    class_costs: list[Finite]
    class_weights: list[Finite]
    class_robust_accuracy: list[Finite]
    class_train_accuracy: list[Finite] = Field(default_factory=list)
    class_robust_weights: list[Finite] = Field(default_factory=list)
    class_sampling: list[Finite] = Field(default_factory=list)
    effective_classes: Finite = 1.0
    expert_weights: list[Finite] = Field(default_factory=list)
    strategy: dict[str, Any]
    averaged_epochs: Count = 0  # in its weights, of an average over epochs
    valid_epoch: Count = 0  # that the numbers of validation are of, where that is another


def _one_of(value: int, allowed: tuple[int, ...]) -> int:
    if value not in allowed:
        raise ValueError(f"{shown(value)} is none of {allowed}")
    return value
