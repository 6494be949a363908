"""Kinds of values that recipes and sweeps hold, and what is wrong with one, in one line. No torch."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from worstclass.errors import UserError, shown, unknown

Model = TypeVar("Model", bound=BaseModel)
Item = TypeVar("Item")


def parse_number(value: object) -> object:
    """`"8/255"` as a number; anything else is left to the validator."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a number")
    if isinstance(value, str):
        numerator, slash, denominator = value.partition("/")
        try:
            return float(numerator) / float(denominator) if slash else float(numerator)
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{shown(value)} is not a number such as 0.1, 1e-3 or 8/255") from None
    return value


def refuse_bool(value: object) -> object:
    """`true` is not 1."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not a whole number")
    return value


def refuse_single(value: object) -> object:
    """A list has brackets, even around a single number."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"{shown(value)} is not a list such as [0.75, 0.9]")
    return value


Whole = Annotated[int, BeforeValidator(refuse_bool), Field(gt=-(2**128), lt=2**128)]
Number = Annotated[float, BeforeValidator(parse_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(gt=0, lt=1)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Pair = Annotated[tuple[Item, Item], BeforeValidator(refuse_single)]


def validate(kind: type[Model], values: Mapping[str, Any], where: str = "") -> Model:
    """Values as a model of this kind; what is wrong is one line, of the file `where`."""
    prefix = f"{where}: " if where else ""
    for key in values:
        if key not in kind.model_fields:
            raise UserError(prefix + str(unknown("key", key, kind.model_fields)))
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        raise UserError(prefix + explain(key, first)) from None


def explain(key: str, error: Any) -> str:
    """What pydantic found, as a line that names the key, the value and what is allowed."""
    context = error.get("ctx", {})
    cause = context.get("error")
    if error["type"] == "literal_error":
        allowed = [word.strip(" '") for word in context["expected"].replace(" or ", ", ").split(",")]
        given = error["input"]
        return str(unknown(key, given if isinstance(given, str) else shown(given), allowed))
    if isinstance(cause, Exception):
        text = str(cause).removesuffix(".") + "."
        return text if not key or text.startswith(("unknown ", f"{key} '", f"{key} = ")) else f"{key}: {text}"
    return f"{key} = {shown(error['input'])}: {error['msg'][0].lower()}{error['msg'][1:]}."
