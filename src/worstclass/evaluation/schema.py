"""What a card.json must look like."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from worstclass.evaluation.outcomes import check_attack_name
from worstclass.inputs.names import Norm
from worstclass.records import ClassNames, Count, Finite, Record

AttackName = Annotated[str, AfterValidator(check_attack_name)]


class FindingRecord(Record):
    """One check of a card."""

    model_config = ConfigDict(extra="forbid")

    name: str
    passed: bool
    seen: str
    advice: str = ""


class ColumnRecord(Record):
    """The measures under one attack."""

    attack: str = ""


class PublishedRecord(Record):
    """What RobustBench publishes of the model."""

    data: str
    norm: Norm
    eps: Annotated[Finite, Field(gt=0)]
    attack: str
    clean: Annotated[Finite, Field(ge=0, le=1)]
    robust: Annotated[Finite, Field(ge=0, le=1)]


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
    mix: Finite = 1.0
    adjusted: Finite = 1.0
    robustbench: PublishedRecord | None = None


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
    findings: list[FindingRecord] = Field(default_factory=list)
    base: BaseRecord | None = None
