"""Policies that mostly compile, and records on and beside their constants, for comparing two interpreters.

As `policies` and `moving`, but driven by a `random.Random` and a numpy generator: a million pairs in minutes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import numpy as np
from policies import CHAINS, NAMESPACES, OPERATORS, PARAMS, numbered

from flashnest.policy.facts import RecordFacts
from flashnest.record import FactArrays, Kind, namespace_id

CLASSES = "class popular = hits in 60s >= 3 or refs >= 64\nclass cold = not popular and idle > hour\nparam hour = 1h\n"
WINDOWS_S = (60, 600, 3600)
TOKENS = (1, 2, 8, 9, 31, 32, 254, 255)
SIZES = (1, 104, 4095, 4096, 4097, 2**32 - 1)
TIMES = (1, 60, 61, 3600, 86400)
COUNTS = (1, 3, 100, 200)
LEVELS = ("", "", "", "", " enforce", " warn")
UP = ("from nvme to dram", "from NVMe to vram", "from dram to vram")
DOWN = ("from dram to nvme", "from vram to DRAM", "from vram to nvme")
CLAUSES = ("when fill > 90% until fill < 80%", "by idle desc", "at most 2000 rec/s", "cooldown 30s")


def _range(values: tuple[int, ...], random: Random) -> str:
    low, high = sorted(random.choices(values, k=2))
    return f"{low}..{high}"


def place_atom(random: Random) -> str:
    """Return a comparison of a fact that is fixed at insert."""
    operator, equal = random.choice(OPERATORS), random.choice(("=", "!="))
    match random.randrange(7):
        case 0:
            return f"tokens {operator} {random.choice((*TOKENS, 'long', '31 tokens'))}"
        case 1:
            return f"{operator}{random.choice(TOKENS)}-token records"
        case 2:
            return f"tokens in {_range(TOKENS, random)}"
        case 3:
            return f"bytes in {_range(SIZES, random)}"
        case 4:
            return f"bytes {operator} {random.choice((*SIZES, '4KiB', 'block'))}"
        case 5:
            return f"kind {equal} {random.choice(('ngram', 'chunk'))}"
        case _:
            return f"namespace {equal} {random.choice((*(f'{chr(34)}{one}{chr(34)}' for one in NAMESPACES), 'tenant'))}"


def move_atom(random: Random) -> str:
    """Return a comparison of any fact, or a class."""
    operator = random.choice(OPERATORS)
    match random.randrange(9):
        case 0:
            return f"hits {operator} {random.choice(COUNTS)}"
        case 1:
            return f"refs {operator} {random.choice(COUNTS)}"
        case 2:
            return f"hits in {random.choice(('60s', '10min', 'hour'))} {operator} {random.choice(COUNTS)}"
        case 3:
            return f"idle {operator} {random.choice(TIMES)}s"
        case 4:
            return f"age {operator} {random.choice(TIMES)}s"
        case 5:
            return f"accept {operator} {random.choice((1, 50, 99))}%"
        case 6:
            return random.choice(("popular", "cold", "hits in 2..4", "idle in 60s..1h", "accept in 50%..100%"))
        case _:
            return place_atom(random)


def condition(random: Random, *, move: bool, leaves: int = 5) -> str:
    """Return a condition of up to `leaves` comparisons."""
    if leaves == 1 or random.random() < 0.4:
        return move_atom(random) if move else place_atom(random)
    left = random.randint(1, leaves - 1)
    first = condition(random, move=move, leaves=left)
    match random.randrange(4):
        case 0:
            return f"({first})"
        case 1:
            return f"not ({first})"
        case _:
            word = random.choice(("and", "or"))
            return f"{first} {word} {condition(random, move=move, leaves=leaves - left)}"


def place_text(random: Random) -> str:
    """Return one to five `place` rules; three in four policies end with one for the rest."""
    lines = [
        f"{random.choice(('place ', '', 'place {}: '.format(chr(34) + '{}' + chr(34))))}"
        f"{condition(random, move=False)} in {random.choice(CHAINS)}{random.choice(LEVELS)}"
        for _ in range(random.randint(1, 5))
    ]
    if random.random() < 0.75:
        lines.append("place otherwise in nvme else dram")
    return PARAMS + numbered(lines)


def move_text(random: Random) -> str:
    """Return one to four moves over a `place` for all records."""
    lines = [_move(random) for _ in range(random.randint(1, 4))]
    return f"{PARAMS}{CLASSES}place otherwise in vram else dram else nvme\n{numbered(lines)}"


def _move(random: Random) -> str:
    label, level = random.choice(("", ' "{}":')), random.choice(LEVELS)
    asks = condition(random, move=True, leaves=4)
    clauses = " ".join(random.sample(CLAUSES, random.randint(0, 3)))
    match random.randrange(4):
        case 0:
            return f"keep{label} {asks} in {random.choice(('dram', 'nvme', 'vram'))}{level}"
        case 1:
            return f"promote{label} {asks} {random.choice(UP)} {clauses}{level}"
        case 2:
            return f"demote{label} {random.choice((asks, asks, ''))} {random.choice(DOWN)} {clauses}{level}"
        case _:
            where = random.choice(("dram", "nvme", "vram"))
            return f"evict{label} {random.choice((asks, asks, ''))} from {where} {clauses}{level}"


@dataclass(frozen=True, slots=True)
class Pool:
    """Records to draw from: one by one for an interpreter, as arrays for what is compiled."""

    records: tuple[RecordFacts, ...]
    facts: FactArrays
    """`window_hits` has an array for each of `WINDOWS_S`."""

    def taken(self, index: np.ndarray, windows_s: tuple[int, ...]) -> FactArrays:
        """Return the facts of some records, with the windows that a policy asks for."""
        facts = self.facts
        return FactArrays(
            *(getattr(facts, name)[index] for name in FactArrays.__slots__ if name != "window_hits"),
            window_hits=tuple(facts.window_hits[WINDOWS_S.index(window)][index] for window in windows_s),
        )


def pool(count: int, seed: int) -> Pool:
    """Return records whose facts lie on, beside and far from the constants of the policies above.

    In half of them the facts also fit each other, as far as `agreeing.can_be` asks.
    """
    random = Random(seed)
    records = tuple(_fitting(_record(random)) if i % 2 else _record(random) for i in range(count))
    u32, u8 = np.uint32, np.uint8
    facts = FactArrays(
        tokens=np.array([one.tokens for one in records], u8),
        kind=np.array([one.kind for one in records], u8),
        namespace=np.array([namespace_id(one.namespace) for one in records], u32),
        nbytes=np.array([one.nbytes for one in records], u32),
        hits=np.array([one.hits for one in records], u32),
        idle_s=np.array([one.idle_s for one in records], u32),
        age_s=np.array([one.age_s for one in records], u32),
        refs=np.array([one.refs for one in records], u32),
        accept_percent=np.array([one.accept_percent for one in records], u8),
        window_hits=tuple(np.array([one.hits_in(window) for one in records], u32) for window in WINDOWS_S),
    )
    return Pool(records, facts)


def _fitting(record: RecordFacts) -> RecordFacts:
    idle_s, age_s = sorted((record.idle_s, record.age_s))
    *counts, hits = sorted((*(hits for _, hits in record.window_hits), record.hits))
    found = zip(WINDOWS_S, counts, strict=True)
    windows = tuple((window_s, count if window_s >= idle_s else 0) for window_s, count in found)
    return replace(record, idle_s=idle_s, age_s=age_s, hits=hits, window_hits=windows)


def _record(random: Random) -> RecordFacts:
    beside = (-1, 0, 0, 1)
    return RecordFacts(
        min(255, max(1, random.choice((*TOKENS, random.randint(1, 255))) + random.choice(beside))),
        random.choice(tuple(Kind)),
        random.choice((*NAMESPACES, "other")),
        min(2**32 - 1, max(1, random.choice((*SIZES, random.randint(1, 10_000))) + random.choice(beside))),
        hits=random.choice((0, 1, 2, 3, 4, 99, 100, 101, 200, 201, 4094, 4095, 5000, 2**32 - 1)),
        window_hits=tuple(
            (window_s, random.choice((0, 1, 2, 3, 4, 100, 101, 200, 201, 254, 255, 900))) for window_s in WINDOWS_S
        ),
        idle_s=max(0, random.choice((*TIMES, 0, 2**24 - 2)) + random.choice(beside)),
        age_s=max(0, random.choice((*TIMES, 0, 180 * 86400)) + random.choice(beside)),
        refs=random.choice((0, 1, 2, 3, 4, 63, 64, 99, 100, 101, 200, 201, 1022, 1023, 5000)),
        accept_percent=random.choice((0, 1, 2, 49, 50, 51, 98, 99, 100)),
    )
