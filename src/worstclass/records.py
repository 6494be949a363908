"""What JSON must look like before anything trusts it: the base of all records, and how one is checked."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from worstclass.data.images import check_class_names
from worstclass.errors import UserError, shown

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
ClassNames = Annotated[list[str], AfterValidator(lambda names: check_class_names(names, "class_names"))]


class Record(BaseModel):
    """Known keys hold what they must, as JSON has it: no text for a number. Others are of no consequence."""

    model_config = ConfigDict(strict=True, extra="allow")


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
