"""Looks through a table, a slice at a time, for records that its rules take. Reads no clock, owns no record."""

from __future__ import annotations

from typing import Final

from flashnest.record import Tier
from flashnest.storage.router_tiers import Table
from flashnest.storage.sweep_moves import Mover, Want
from flashnest.storage.sweep_pace import Pass, Watermark

SLICE_RECORDS: Final = 128
"""Records looked at in one slice: 60 us, and 5 us for each that moves to NVMe; a pass of a rule with watermarks 10 %
apart moves 14 of them."""
VICTIMS: Final = 32
"""Records taken from the eviction's end at once: all of them move, which costs more than looking."""
PASS_S: Final = 30.0
"""Time for a look at every record of a table where a rule has no watermark. Rules speak of minutes, and a table of a
million records costs 260 slices a second at this."""


class TableSweep:
    """The rules that look at one table's records. The tiers' owner thread calls it."""

    def __init__(self, table: Table, mover: Mover, now_ns: int) -> None:
        self._table, self._mover, self._tier = table, mover, Tier(table.tier)
        states = mover.rules_from(self._tier, "promote", "demote", "evict")
        self._marks = tuple(Watermark(s) for s in states if s.rule.when_fill is not None and not s.is_trial)
        self._always = tuple(s for s in states if s.rule.when_fill is None or s.is_trial)
        self._order = {id(state): place for place, state in enumerate(states)}
        self._lowest = min((m.state.rule.when_fill or 0.0 for m in self._marks), default=2.0)
        self._pass = Pass(PASS_S, now_ns)
        self._hand = 0

    def compile(self) -> None:
        """Load or compile the kernels, so that no step waits for it."""
        self._table.scan_slice(0, 1)
        self._table.victims(0)

    @property
    def has_rules(self) -> bool:
        """Whether any rule looks at this table."""
        return bool(self._marks or self._always)

    def is_due(self, now_ns: int) -> bool:
        """Whether there may be work, at the price of a few comparisons."""
        records = len(self._table)
        if self._marks and (
            records > self._lowest * self._table.max_records or any(mark.active for mark in self._marks)
        ):
            return True
        return bool(self._always) and records > 0 and self._pass.is_due(records, now_ns)

    def slice(self, now_ns: int) -> bool:
        """Do one slice of work; returns False where there was none."""
        now_s, records, room = self._mover.now_s(), len(self._table), self._table.max_records
        needs = [(mark, mark.need(records, room, now_s)) for mark in self._marks]
        running = [(mark, need) for mark, need in needs if need and mark.state.most_now(now_s, 1)]
        for mark, need in running:
            if mark.state.rule.using is not None:
                return self._take_victims(mark, need)
        if running or (self._always and records > 0 and self._pass.is_due(records, now_ns)):
            self._look(running, now_ns)
            return True
        return False

    def _take_victims(self, mark: Watermark, need: int) -> bool:
        """Let a rule take what the table's own eviction would take next; what stays counts as just used."""
        keys, rows = self._table.victims(min(need, VICTIMS))
        if not len(keys):  # it has looked at all once; a second look finds what the first one aged
            self._saw(mark, len(self._table) // 2 + 1)
            return True
        left = self._mover.apply(self._tier, keys, rows, [Want(mark.state, len(keys))])
        if not left.all():
            self._table.spare_many(keys[~left])
        self._saw(mark, len(keys))
        return True

    def _look(self, running: list[tuple[Watermark, int]], now_ns: int) -> None:
        """Let the rules have a slice; those without a watermark see it too, whatever brought it up."""
        keys, rows, self._hand = self._table.scan_slice(self._hand, SLICE_RECORDS)
        wants = [Want(mark.state, mark.of_slice(len(keys), need)) for mark, need in running]
        held, room = len(self._table), self._table.max_records
        wants += [Want(state, len(keys)) for state in self._always if state.is_awake(held, room)]
        wants.sort(key=lambda want: self._order[id(want.state)])
        if len(keys):
            self._mover.apply(self._tier, keys, rows, wants)
        for mark, _ in running:
            self._saw(mark, len(keys))
        self._pass.advance(len(keys))
        if self._hand == 0:
            self._pass.end(now_ns)

    def _saw(self, mark: Watermark, records: int) -> None:
        """Count records that a rule has seen: after as many as the table holds it has had its pass."""
        mark.seen += records
        if mark.seen >= len(self._table):
            mark.end_pass(len(self._table), self._table.max_records, self._mover.now_s())
