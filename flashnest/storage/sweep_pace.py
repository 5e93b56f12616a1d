"""When a rule has work: watermarks with hysteresis, and passes over a tier that take their time. Looks at no record."""

from __future__ import annotations

import math
from typing import Final

from flashnest.storage.moves import RuleState

MARGIN: Final = 1.1
"""A pass takes this much more of each slice than the share needed, since some records will not match."""
REST_S: Final = 10
"""A rule that met a whole tier and could move next to nothing leaves it alone for this long."""


class Watermark:
    """Whether a rule with watermarks runs, and how much it has to take.

    It starts above `when_fill` and goes on until fill is below `until_fill`; without `until_fill` the two are one.
    A slice in hash order is a random sample of the tier, so its top share stands for the tier's.
    """

    def __init__(self, state: RuleState) -> None:
        rule = state.rule
        assert rule.when_fill is not None
        self.state = state
        self._when = rule.when_fill
        self._until = rule.when_fill if rule.until_fill is None else rule.until_fill
        self.active = False
        self.share = 0.0
        """What to take of each slice, 0..1."""
        self.seen = 0
        """Records looked at in this pass."""
        self._rests_until_s = self._moved_before = self.pass_need = 0

    def need(self, records: int, room: int, now_s: int) -> int:
        """Return how many of `records` have to leave a tier with room for `room`; 0 while the rule does not run."""
        target = math.ceil(self._until * room) - 1
        if not self.active and (records <= self._when * room or now_s < self._rests_until_s):
            return 0
        need = records - max(0, target)
        if need <= 0:
            self.active = False
            return 0
        if not self.active:
            self.active = True
            self._begin(need, records)
        return need

    def _begin(self, need: int, records: int) -> None:
        self.share = min(1.0, MARGIN * need / max(1, records))
        self._moved_before, self.pass_need, self.seen = self.state.moved, need, 0

    def end_pass(self, records: int, room: int, now_s: int) -> None:
        """Say that the rule has seen the whole tier since the last such call."""
        need = self.need(records, room, now_s)
        if not need:
            return
        if 100 * (self.state.moved - self._moved_before) < self.pass_need:
            self.rest(now_s)
        else:
            self._begin(need, records)

    def rest(self, now_s: int) -> None:
        """Stop for a while."""
        self.active, self._rests_until_s = False, now_s + REST_S

    def of_slice(self, records: int, need: int) -> int:
        """Return how many to take of a slice of `records`."""
        return min(need, math.ceil(self.share * records))


class Pass:
    """Spreads a look at every record of a tier over `pass_s` seconds, so that it costs a step next to nothing."""

    def __init__(self, pass_s: float, started_ns: int) -> None:
        self._pass_ns = pass_s * 1e9
        self._started_ns = started_ns
        self._seen = self._most = 0

    def is_due(self, records: int, now_ns: int) -> bool:
        """Whether the pass is behind its pace over `records`. The first slice is due as the pass starts."""
        self._most = max(self._most, records)  # a pass that empties the tier must not slow itself down
        return self._seen * self._pass_ns <= (now_ns - self._started_ns) * self._most

    def advance(self, records: int) -> None:
        """Count records seen."""
        self._seen += max(1, records)

    def end(self, now_ns: int) -> None:
        """Say that the tier's end was reached; the next pass starts a whole time after this one did, or now if late."""
        self._started_ns = max(self._started_ns + int(self._pass_ns), now_ns)
        self._seen = self._most = 0
