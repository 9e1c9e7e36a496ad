"""Numbers as reports hold them, which pydantic checks when a report is read back."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, PlainValidator
from pydantic_core import PydanticCustomError

# Metadata of fields that report.json has only where they are not their default.
LEFT_OUT = {"left out": True}


def _number(value: Any) -> Any:
    # To Python a bool is an int; to a report it is not a number.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("number", "int or float")
    return value


# A number is kept as it was given, whole or not, so that it is written again as it was read.
Number = Annotated[float, PlainValidator(_number)]
Count = Annotated[int, BeforeValidator(_number)]
# Both ends of a 95 % interval.
Interval = tuple[Number | None, Number | None]
