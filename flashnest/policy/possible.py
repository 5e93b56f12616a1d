"""The cells of stored records that some conditions tell apart, and which of them a record can be in at all.

For checks and comparisons of moves: their facts are many, so only those that the conditions name are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from flashnest.policy.cells import Grid, make_grid
from flashnest.policy.facts import CHANGING_FACTS, FACTS, Fact
from flashnest.policy.resolved import AnyOf, InRange, Meaning, ranges

MAX_MOVE_CELLS: Final = 200_000
"""About a millisecond a comparison; conditions that people write have tens to hundreds of cells."""

_MAX_AXES: Final = 32
"""Most dimensions of an array before numpy 2."""


def named(grid: Grid) -> list[str]:
    """Return the facts that a grid is cut by, as `record_text` names them."""
    return ["hits" if axis.fact.window_s else axis.fact.name for axis in grid.axes]


def grid_of(meanings: Sequence[Meaning]) -> Grid | None:
    """Return the cells of the facts that some conditions name, None where they are too many."""
    true = laws(meanings)
    used = {atom.fact for meaning in (*meanings, *true) for atom in ranges(meaning)}
    order = {name: i for i, name in enumerate((*FACTS, *CHANGING_FACTS))}
    facts = sorted(used, key=lambda fact: (order[fact.name.split(" ")[0]], fact.window_s))
    grid = make_grid(facts, (*meanings, *true))
    cells = 1
    for groups in grid.shape:
        cells *= groups
    return grid if cells <= MAX_MOVE_CELLS and len(facts) <= _MAX_AXES else None


def laws(meanings: Sequence[Meaning]) -> tuple[Meaning, ...]:
    """Return what holds of every record: idle <= age, hits in a shorter time <= in a longer one <= hits, and no hit
    within a time shorter than idle. Cut at the conditions' own constants these are comparisons with constants too."""
    cuts: dict[Fact, set[int]] = {}
    for meaning in meanings:
        for atom in ranges(meaning):
            cuts.setdefault(atom.fact, set()).update((atom.low, atom.high + 1))
    idle, age, hits = (CHANGING_FACTS[name] for name in ("idle", "age", "hits"))
    windows = sorted((fact for fact in cuts if fact.window_s), key=lambda fact: fact.window_s)
    held: list[Meaning] = []
    if idle in cuts:
        for window in windows:
            held.append(AnyOf((InRange(window, 0, 0), InRange(idle, 0, window.window_s))))
            cuts[window].add(1)
            cuts[idle].add(window.window_s + 1)
    for low, high in ((idle, age), *combinations((*windows, hits), 2)):
        if low in cuts and high in cuts:
            held += [
                AnyOf((InRange(low, low.low, cut - 1), InRange(high, cut, high.high)))
                for cut in sorted(cuts[low] | cuts[high])
                if low.low < cut <= low.high
            ]
    return tuple(held)
