"""How fast a rule may move records: a token bucket. Reads no clock, knows no rule."""

from __future__ import annotations


class TokenBucket:
    """Grants at most `per_s` units a second; what was not used adds up to one second's worth. One thread owns it.

    A bucket starts full and always holds room for one `least`, so that a rate below one record a second still moves
    records, one at a time.
    """

    def __init__(self, per_s: float, *, least: float = 1.0) -> None:
        self._per_s = per_s
        self._room = max(per_s, least)
        self._units = self._room
        self._last_s: float | None = None

    def available(self, now_s: float) -> float:
        """Return the units that may be taken now. A clock that goes back gives none."""
        if self._last_s is not None:
            self._units = min(self._room, self._units + self._per_s * max(0.0, now_s - self._last_s))
        self._last_s = now_s
        return self._units

    def take(self, units: float) -> None:
        """Spend units that `available` said are there."""
        self._units -= units
