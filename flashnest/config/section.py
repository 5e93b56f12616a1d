"""What every part of the config shares: frozen pydantic models, and quantities read from text with their unit.

A quantity's YAML key has no unit (`capacity: 14GiB`); its field has one (`capacity_bytes`), so that a number never
travels without it. Never reads a file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from flashnest.errors import FlashnestError
from flashnest.units import Dimension, UnitError, parse_bytes, parse_duration_s, parse_rate


def _quantity(parse: Callable[[str], float]) -> BeforeValidator:
    """Return a validator that reads text such as `14GiB` with `parse` and keeps its error's three lines.

    A bare number goes through `parse` too: whether it may stand without a unit is for `units` to say.
    """

    def read(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        try:
            return parse(str(value))
        except FlashnestError as error:
            raise problem(error.what, error.why, error.fix) from error

    return BeforeValidator(read)


def problem(what: str, why: str = "", fix: str = "") -> PydanticCustomError:
    """Return a validation error whose parts `load` turns into a ConfigError."""
    return PydanticCustomError("flashnest", "{what}", {"what": what, "why": why, "fix": fix})


def _bytes_per_s(text: str) -> float:
    rate = parse_rate(text)
    if rate.dimension is not Dimension.BYTE_RATE:
        raise UnitError(f"{text!r} is not a rate in bytes", fix='write it like "1008GB/s"')
    return float(rate.value)


Bytes = Annotated[int, Field(gt=0), _quantity(parse_bytes)]
BytesPerS = Annotated[float, Field(gt=0), _quantity(_bytes_per_s)]
Seconds = Annotated[float, Field(gt=0), _quantity(parse_duration_s)]
Pause = Annotated[float, Field(ge=0), _quantity(parse_duration_s)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1)]


class Section(BaseModel):
    """A frozen part of the config: unknown keys are refused, YAML keys are the aliases."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
    )
