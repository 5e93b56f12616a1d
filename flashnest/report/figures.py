"""Numbers as people read them: bytes, counts, shares, times. Text only; a missing number is "-"."""

from __future__ import annotations

from typing import Final

MISSING: Final = "-"

_COUNT_UNITS: Final = ("", "K", "M", "G")
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(value: float | None) -> str:
    """Return bytes with a binary unit and three figures: 14.0 GiB, 512 MiB, -3.20 MiB."""
    if value is None:
        return MISSING
    scaled, unit = float(value), 0
    while abs(scaled) >= 1000 and unit < len(_BYTE_UNITS) - 1:
        scaled, unit = scaled / 1024, unit + 1
    return f"{scaled:.0f} B" if unit == 0 else f"{_three_figures(scaled)} {_BYTE_UNITS[unit]}"


def count_text(value: float | None) -> str:
    """Return a count with thousands separated by commas."""
    return MISSING if value is None else f"{value:,.0f}"


def short_count_text(value: float | None) -> str:
    """Return a count with three figures and K, M or G: 950, 12.3 M."""
    if value is None:
        return MISSING
    scaled, unit = float(value), 0
    while abs(scaled) >= 1000 and unit < len(_COUNT_UNITS) - 1:
        scaled, unit = scaled / 1000, unit + 1
    return f"{scaled:.0f}" if unit == 0 else f"{_three_figures(scaled)} {_COUNT_UNITS[unit]}"


def number_text(value: float | None) -> str:
    """Return a number with three figures, whole from 1000 on: 0.51, 12.3, 151, 4,532."""
    return MISSING if value is None else _three_figures(value)


def share_text(value: float | None) -> str:
    """Return a share of 1 as per cent: 41.2 %."""
    return MISSING if value is None else f"{100 * value:.1f} %"


def clock_text(seconds: float) -> str:
    """Return a span as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _three_figures(value: float) -> str:
    size = abs(value)
    digits = 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:,.{digits}f}"
