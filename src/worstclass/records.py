"""What the JSON of a run folder must look like before anything trusts it: run.json, its log, headers and cards."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from worstclass.data.arrays import CHANNELS
from worstclass.data.images import check_class_names
from worstclass.errors import UserError, shown
from worstclass.outcomes import check_attack_name
from worstclass.types import Norm

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
ClassNames = Annotated[list[str], AfterValidator(lambda names: check_class_names(names, "class_names"))]
AttackName = Annotated[str, AfterValidator(check_attack_name)]


class Record(BaseModel):
    """Known keys hold what they must, as JSON has it: no text for a number. Others are of no consequence."""

    model_config = ConfigDict(strict=True, extra="allow")


class EngineRecord(Record):
    fast: bool
    precision: str
    device: str
    deterministic: bool = False
    gpu: str = ""
    processes: Count = 1


class ResumedRecord(Record):
    engine: EngineRecord


class RunRecord(Record):
    """run.json: what a run was trained on."""

    num_classes: Count
    class_names: ClassNames
    in_channels: Annotated[int, AfterValidator(lambda count: _one_of(count, CHANNELS))]
    image_size: Annotated[list[Annotated[int, Field(gt=0, lt=2**16)]], Field(min_length=2, max_length=2)]
    valid_images: Count
    data_digest: str
    engine: EngineRecord
    resumed: list[ResumedRecord] = []


class ValidRecord(Record):
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
    expert_weights: list[Finite] = []
    strategy: dict[str, Any]


class BestRecord(Record):
    epoch: Count
    score: list[Finite]


class HeaderRecord(Record):
    """The header of a checkpoint."""

    epoch: Count
    step: Count = 0
    seconds: Finite = 0.0
    best: BestRecord | None = None


class FindingRecord(Record):
    model_config = ConfigDict(extra="forbid")

    name: str
    passed: bool
    seen: str
    advice: str = ""


class ColumnRecord(Record):
    attack: str = ""


class AboutRecord(Record):
    """What was evaluated, and how."""

    data: str
    part: Literal["test", "valid"]
    images: str
    weights: str
    eps: Annotated[Finite, Field(gt=0)]
    norm: Norm
    seed: Count
    checkpoint: Literal["selected", "last"] | None = None
    epoch: Count | None = None


class BaseRecord(Record):
    """The vanilla run that a card's rho compares with."""

    folder: str
    weights: str
    seed: Count | None = None


class CardRecord(Record):
    """card.json."""

    about: AboutRecord
    versions: dict[str, str]
    columns: dict[AttackName, ColumnRecord]
    class_names: ClassNames
    findings: list[FindingRecord] = []
    base: BaseRecord | None = None


def check_record(kind: type[Record], value: Any, where: object) -> dict[str, Any]:
    """The value itself, if it is a record of that kind; one line says what is wrong with it."""
    try:
        kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{shown(part)}: " for part in first["loc"])
        raise UserError(f"{where} is damaged: {place}{first['msg'].partition(chr(10))[0].rstrip('.')}.") from None
    checked: dict[str, Any] = value
    return checked


def _one_of(value: int, allowed: tuple[int, ...]) -> int:
    if value not in allowed:
        raise ValueError(f"{shown(value)} is none of {allowed}")
    return value
