"""Quantities written as text: sizes ("14GiB"), durations ("5min"), tokens ("32 tokens"), rates ("2000rec/s"), percent.

Parsing is exact integer arithmetic: a size is a whole number of bytes, a duration a whole number of nanoseconds.
GB is 10**9 bytes and GiB is 2**30; bits are not accepted. This module never reads a file, a clock or a config, and
imports only `errors`, so that the policy language and the config share one set of units.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from flashnest.errors import ConfigError


class UnitError(ConfigError, ValueError):
    """A quantity cannot be read. It is a ValueError too, so that pydantic adds the field's place to it."""


class Dimension(StrEnum):
    """What a quantity measures, and the unit of `Quantity.value`."""

    COUNT = "count"
    """No unit was written."""
    TOKENS = "tokens"
    BYTES = "bytes"
    DURATION = "duration"
    """Nanoseconds."""
    PERCENT = "percent"
    """0 to 100 as written."""
    RECORD_RATE = "record rate"
    """Records per second."""
    BYTE_RATE = "byte rate"
    """Bytes per second."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and what it measures. `value` is an int except where the text has a fraction of the base unit."""

    value: int | float
    dimension: Dimension


_SIZES: Final = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_DURATIONS_NS: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
    "y": 365 * 86400 * 10**9,
}
_UNITS: Final[dict[str, tuple[Dimension, int]]] = {
    "": (Dimension.COUNT, 1),
    "token": (Dimension.TOKENS, 1),
    "tokens": (Dimension.TOKENS, 1),
    "%": (Dimension.PERCENT, 1),
    "rec/s": (Dimension.RECORD_RATE, 1),
    **{unit: (Dimension.BYTES, size) for unit, size in _SIZES.items()},
    **{unit: (Dimension.DURATION, size) for unit, size in _DURATIONS_NS.items()},
    **{f"{unit}/s": (Dimension.BYTE_RATE, size) for unit, size in _SIZES.items()},
}
_WRITTEN_OTHERWISE: Final = {
    "k": ("kB", "KiB"),
    "m": ("min", "ms", "MB", "MiB"),
    "g": ("GB", "GiB"),
    "t": ("TB", "TiB"),
    "kb": ("kB", "KiB"),
    "mb": ("MB", "MiB"),
    "gb": ("GB", "GiB"),
    "tb": ("TB", "TiB"),
    "kib": ("KiB",),
    "mib": ("MiB",),
    "gib": ("GiB",),
    "tib": ("TiB",),
    "b": ("B",),
    "byte": ("B",),
    "bytes": ("B",),
    "nsec": ("ns",),
    "usec": ("us",),
    "\u00b5s": ("us",),
    "\u03bcs": ("us",),
    "msec": ("ms",),
    "sec": ("s",),
    "secs": ("s",),
    "second": ("s",),
    "seconds": ("s",),
    "mins": ("min",),
    "minute": ("min",),
    "minutes": ("min",),
    "hr": ("h",),
    "hour": ("h",),
    "hours": ("h",),
    "day": ("d",),
    "days": ("d",),
    "w": ("d",),
    "week": ("d",),
    "weeks": ("d",),
    "yr": ("y",),
    "year": ("y",),
    "years": ("y",),
    "tok": ("tokens",),
    "percent": ("%",),
    "pct": ("%",),
    "rps": ("rec/s",),
    "records/s": ("rec/s",),
    "mb/s": ("MB/s", "MiB/s"),
    "gb/s": ("GB/s", "GiB/s"),
    "mbps": ("MB/s",),
}
"""Units people write that are not ours, in lower case, and what they may have meant."""

_QUANTITY: Final = re.compile(r"\s*(?P<number>\d[\d_]*(?:\.\d+)?)\s*(?P<unit>[^\s\d.,_+-]*)\s*", re.ASCII)
_EXAMPLES: Final = {
    Dimension.COUNT: "32",
    Dimension.TOKENS: "32 tokens",
    Dimension.BYTES: "14GiB",
    Dimension.DURATION: "5min",
    Dimension.PERCENT: "90%",
    Dimension.RECORD_RATE: "2000rec/s",
    Dimension.BYTE_RATE: "20MB/s",
}
_NOUNS: Final = {
    Dimension.COUNT: "a plain number",
    Dimension.TOKENS: "a token count",
    Dimension.BYTES: "a size",
    Dimension.DURATION: "a duration",
    Dimension.PERCENT: "a percentage",
    Dimension.RECORD_RATE: "a rate in records",
    Dimension.BYTE_RATE: "a rate in bytes",
}


def noun(dimension: Dimension) -> str:
    """Return the dimension in words for a message, with its article: "a size"."""
    return _NOUNS[dimension]


def example(dimension: Dimension) -> str:
    """Return a quantity of the dimension as a user would write it."""
    return _EXAMPLES[dimension]


def parse_quantity(text: str) -> Quantity:
    """Read a number with an optional unit. Raises UnitError naming the wrong unit and what may have been meant."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(
            f"{text!r} is not a quantity",
            why="a quantity is a number and a unit",
            fix='write it like "14GiB" or "5min"',
        )
    known = _UNITS.get(match["unit"])
    if known is None:
        raise _unknown_unit(text, match["number"], match["unit"])
    dimension, size = known
    return Quantity(_scaled(match["number"].replace("_", ""), size), dimension)


def parse_bytes(text: str) -> int:
    """Read a size in bytes: "14GiB", "512MB", "4096". Fractions of a byte are rounded."""
    return round(_of(text, Dimension.BYTES).value)


def parse_duration_s(text: str) -> float:
    """Read a duration in seconds: "5min" is 300.0, "100us" is 0.0001. A bare number has no unit and is refused."""
    return _of(text, Dimension.DURATION, bare=False).value / 1e9


def parse_tokens(text: str) -> int:
    """Read a whole number of tokens: "32 tokens" or "32"."""
    value = _of(text, Dimension.TOKENS).value
    if not isinstance(value, int):
        raise UnitError(f"{text!r} is not a whole number of tokens", fix='write it like "32 tokens"')
    return value


def parse_percent(text: str) -> float:
    """Read a percentage as a share: "90%" is 0.9. Raises UnitError above 100 %."""
    value = _of(text, Dimension.PERCENT, bare=False).value
    if value > 100:
        raise UnitError(f"{text!r} is more than the whole", why="a share is at most 100%", fix='write it like "90%"')
    return value / 100


def parse_rate(text: str) -> Quantity:
    """Read a rate: "2000rec/s" in records per second, "20MB/s" in bytes per second."""
    quantity = parse_quantity(text)
    if quantity.dimension not in (Dimension.RECORD_RATE, Dimension.BYTE_RATE):
        raise _mismatch(text, quantity.dimension, Dimension.BYTE_RATE)
    return quantity


def format_bytes(count: float) -> str:
    """Return a size for people, in binary units with one decimal: "14.0 GiB", "512 B"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(count) >= _SIZES[unit]:
            return f"{count / _SIZES[unit]:.1f} {unit}"
    return f"{count:.0f} B"


def format_duration(seconds: float) -> str:
    """Return a duration for people, in the largest unit that leaves at least 1: "5.0 min", "1.5 ms", "0 s"."""
    for unit in ("d", "h", "min", "s", "ms", "us"):
        if abs(seconds) * 1e9 >= _DURATIONS_NS[unit]:
            return f"{seconds * 1e9 / _DURATIONS_NS[unit]:.1f} {unit}"
    return f"{seconds * 1e9:.0f} ns" if seconds else "0 s"


def _of(text: str, dimension: Dimension, *, bare: bool = True) -> Quantity:
    quantity = parse_quantity(text)
    allowed = (dimension, Dimension.COUNT) if bare else (dimension,)
    if quantity.dimension not in allowed:
        raise _mismatch(text, quantity.dimension, dimension)
    return quantity


def _scaled(number: str, size: int) -> int | float:
    """Multiply without rounding; a float only where the result is not whole."""
    whole, _, fraction = number.partition(".")
    scale: int = 10 ** len(fraction)
    quotient, rest = divmod(int(whole + fraction) * size, scale)
    return quotient if rest == 0 else quotient + rest / scale


def _unknown_unit(text: str, number: str, unit: str) -> UnitError:
    meant = _WRITTEN_OTHERWISE.get(unit.lower()) or _same_letters(unit)
    fix = f"did you mean {' or '.join(number + one for one in meant)}?" if meant else ""
    why = (
        "units are case-sensitive and bits are not used"
        if meant
        else f"the units are {', '.join(filter(None, _UNITS))}"
    )
    return UnitError(f"unknown unit {unit!r} in {text.strip()!r}", why=why, fix=fix)


def _same_letters(unit: str) -> tuple[str, ...]:
    return tuple(known for known in _UNITS if known and known.lower() == unit.lower())


def _mismatch(text: str, got: Dimension, wanted: Dimension) -> UnitError:
    return UnitError(
        f"{text.strip()!r} is {noun(got)} where {noun(wanted)} is needed", fix=f'write it like "{example(wanted)}"'
    )
