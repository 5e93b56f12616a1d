"""Hypothesis strategies for texts of moves, and records whose changing facts lie on and beside the texts' constants."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st
from policies import LEVELS, NAMESPACES, OPERATORS, PARAMS, numbered, sizes, tokens
from policies import atoms as place_atoms

from flashnest.policy.facts import RecordFacts
from flashnest.record import Kind

CLASSES = "class popular = hits in 60s >= 3 or refs >= 64\nclass cold = not popular and idle > hour\nparam hour = 1h\n"
PLACE = "place otherwise in vram else dram else nvme\n"
WINDOWS = {60: "60s", 600: "10min"}
"""Times of `hits in TIME`, and how the texts write them."""

counts = st.sampled_from((1, 3, 100, 200))
times = st.sampled_from((1, 60, 61, 3600, 86400))
percents = st.sampled_from((1, 50, 99))
ordered = st.sampled_from(OPERATORS)
move_atoms = st.one_of(
    place_atoms,
    st.builds("hits {} {}".format, ordered, counts),
    st.builds("refs {} {}".format, ordered, counts),
    st.builds("hits in {} {} {}".format, st.sampled_from(tuple(WINDOWS.values())), ordered, counts),
    st.builds("idle {} {}s".format, ordered, times),
    st.builds("age {} {}s".format, ordered, times),
    st.builds("accept {} {}%".format, ordered, percents),
    st.sampled_from(
        (
            *("popular", "cold", "hits >= 4095", "hits = 4095", "refs >= 1023", "hits in 60s >= 255", "idle > hour"),
            *("hits in 10min in 3..100", "hits in 2..4", "idle in 60s..1h", "accept = 100%", "accept in 50%..100%"),
            *("idle >= 0s", "refs <= 1023", "age > 180d", "hits in hour > 3"),
        )
    ),
)


def conditions_of(atoms: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.builds("{} and {}".format, inner, inner),
            st.builds("{} or {}".format, inner, inner),
            inner.map("({})".format),
            inner.map("not ({})".format),
        ),
        max_leaves=4,
    )


clauses = st.lists(
    st.sampled_from(
        (
            "when fill > 90% until fill < 80%",
            "by idle desc",
            "at most 2000 rec/s",
            "at most 20 MB/s",
            "cooldown 30s",
            "min residency 1min",
        )
    ),
    unique=True,
    max_size=4,
).map(" ".join)
UP = ("from nvme to dram", "from NVMe to vram", "from dram to vram")
DOWN = ("from dram to nvme", "from vram to DRAM", "from vram to nvme")
TIERS = ("dram", "nvme", "vram")


def moves_of(conditions: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    maybe = conditions | st.just("")
    labels, levels = st.sampled_from(("", ' "{}":')), st.sampled_from(LEVELS)
    return st.one_of(
        st.builds("keep{} {} in {}{}".format, labels, conditions, st.sampled_from(TIERS), levels),
        st.builds("promote{} {} {} {}{}".format, labels, conditions, st.sampled_from(UP), clauses, levels),
        st.builds("demote{} {} {} {}{}".format, labels, maybe, st.sampled_from(DOWN), clauses, levels),
        st.builds("evict{} {} from {} {}{}".format, labels, maybe, st.sampled_from(TIERS), clauses, levels),
    )


goals = st.lists(
    st.one_of(
        st.builds(
            "flush every {} {}".format, st.sampled_from(("5min", "hour")), st.sampled_from(("", "at most 5 MB/s"))
        ),
        st.builds("require lookup p99 <= {}us{}".format, st.integers(1, 9), st.sampled_from(LEVELS)),
        st.builds("require nvme life > {}y{}".format, st.integers(1, 9), st.sampled_from(LEVELS)),
    ),
    max_size=2,
    unique_by=lambda text: text.split()[0],
)
texts = st.tuples(st.lists(moves_of(conditions_of(move_atoms)), min_size=1, max_size=4), goals).map(
    lambda parts: PARAMS + CLASSES + PLACE + numbered([*parts[0], *parts[1]])
)


@st.composite
def stored_records(draw: st.DrawFn) -> RecordFacts:
    return RecordFacts(
        draw(tokens),
        draw(st.sampled_from(Kind)),
        draw(st.sampled_from((*NAMESPACES, "other"))),
        draw(sizes),
        hits=draw(st.sampled_from((0, 1, 2, 3, 4, 100, 101, 4094, 4095, 5000, 2**32 - 1))),
        window_hits=tuple(
            (window, draw(st.sampled_from((0, 1, 2, 3, 4, 254, 255, 900)))) for window in (60, 600, 3600)
        ),
        idle_s=draw(st.sampled_from((0, 1, 2, 59, 60, 61, 62, 3600, 3601, 86401, 2**24 - 1))),
        age_s=draw(st.sampled_from((0, 1, 60, 61, 3601, 180 * 86400, 180 * 86400 + 1))),
        refs=draw(st.sampled_from((0, 3, 4, 63, 64, 1022, 1023, 5000))),
        accept_percent=draw(st.sampled_from((0, 1, 49, 50, 51, 99, 100))),
    )


few_atoms = st.one_of(
    st.builds("tokens {} {}".format, ordered, st.just(8)),
    st.builds("hits {} 3".format, ordered),
    st.builds("hits in 60s {} 3".format, ordered),
    st.builds("hits in 10min {} 3".format, ordered),
    st.builds("idle {} {}s".format, ordered, st.sampled_from((60, 3600))),
    st.builds("age {} {}s".format, ordered, st.sampled_from((60, 3600))),
)
few_levels = st.sampled_from(("", "", "", " warn"))
few_texts = st.lists(
    st.one_of(
        st.builds("keep {} in dram{}".format, conditions_of(few_atoms), few_levels),
        st.builds("promote {} from nvme to dram{}".format, conditions_of(few_atoms), few_levels),
        st.builds("demote {} from dram to nvme{}".format, conditions_of(few_atoms), few_levels),
        st.builds("evict {} from dram cooldown 3s{}".format, conditions_of(few_atoms), few_levels),
    ),
    min_size=1,
    max_size=3,
).map(lambda lines: PLACE + "\n".join(lines))

_SECONDS = (0, 60, 61, 601, 3600, 3601)
_HITS = (0, 1, 3, 4)
LIKELY = [
    RecordFacts(length, hits=hits, window_hits=((60, short), (600, longer)), idle_s=idle, age_s=age)
    for length, hits, short, longer, idle, age in product((1, 8, 9), _HITS, _HITS, _HITS, _SECONDS, _SECONDS)
    if short <= longer <= hits and idle <= age and (short == 0 or idle <= 60) and (longer == 0 or idle <= 600)
]
"""A record that can be for every cell that `few_texts` can make: a cell starts at a constant or just above one."""
