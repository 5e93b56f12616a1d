"""The comparison of two policies: what it lists differs, what it does not list is the same, each witness shows it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from moving import CLASSES, WINDOWS, conditions_of, counts, move_atoms, moves_of, percents, times
from policies import NAMESPACES, policies, records, sizes, tokens

from flashnest.errors import PolicyError
from flashnest.policy.compile import Policy, compile_policy
from flashnest.policy.diagnostics import PolicyCheckError
from flashnest.policy.difference import RecordArrays, Region, difference
from flashnest.policy.facts import RecordFacts
from flashnest.policy.moves import KEEP, MoveRule
from flashnest.record import Kind, Tier, namespace_id

PLACE = "place otherwise in vram else dram else nvme\n"
CALM = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)


def compiled(text: str) -> Policy:
    return compile_policy(text)


def maybe(text: str) -> Policy:
    """Compile a random policy, ended by a rule for the rest; random rules that a check refuses are no example."""
    try:
        return compile_policy(text)
    except PolicyCheckError:
        assume(False)
        raise


def effect(rule: MoveRule | None) -> tuple[object, ...]:
    """What a move does, without its words: by hand, beside `outcomes`."""
    if rule is None or rule.action == KEEP:
        return ("stay",)
    limits = (rule.most_records_per_s, rule.most_bytes_per_s, rule.cooldown_s, rule.min_residency_s)
    return (rule.action, rule.target, rule.until_fill, rule.order, rule.using, *limits)


def regions_of(old: str, new: str) -> list[Region]:
    return list(difference(compiled(old), compiled(new)).regions)


def test_what_is_written_otherwise_and_means_the_same_is_no_difference() -> None:
    one = "param long = 32\nplace tokens >= long in dram\nplace otherwise in nvme\n"
    other = "class short = tokens in 1..31\nplace short on NVMe, place not short in DRAM\n"
    assert not difference(compiled(one), compiled(other))
    assert not difference(compiled(other), compiled(one))


def test_a_region_has_words_a_witness_and_both_rules() -> None:
    old = "place tokens >= 32 in dram, tokens <= 8 in nvme, otherwise in dram else nvme"
    new = "place tokens >= 16 in dram, tokens <= 8 in nvme, otherwise in dram else nvme"
    (region,) = regions_of(old, new)
    assert (region.tier, region.records, region.example) == (None, "tokens = 16..31", "{tokens: 16, kind: ngram}")
    assert (str(region.old.outcome), str(region.new.outcome)) == ("in dram else nvme", "in dram")
    assert [rule.number for rule in region.old.rules] == [3]
    assert [rule.number for rule in region.new.rules] == [1]


def test_admission_and_namespaces_count() -> None:
    old = 'place namespace = "acme" in dram, otherwise in nvme'
    new = 'place namespace = "acme" in dram, otherwise in nvme after 2 hits in 10min'
    (region,) = regions_of(old, new)
    assert region.records == 'namespace other than "acme"'
    assert str(region.new.outcome) == "in nvme after 2 hits in 10min"
    assert region.witness.namespace == "default"
    (region,) = regions_of(old, 'place namespace = "globex" in nvme, namespace = "acme" in nvme, otherwise in nvme')
    assert region.records == 'namespace = "acme"'


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "promote hits in 60s >= 3 from nvme to dram at most 2000 rec/s",
            "promote hits in 60s >= 4 from nvme to dram at most 2000 rec/s",
            [("nvme", "hits in 1min = 3", "promote to dram at most 2000 rec/s", "stay")],
        ),
        (
            "evict idle > 10min from nvme",
            "evict idle > 1h from nvme",
            [("nvme", "idle = 601s..1h", "evict", "stay")],
        ),
        (
            "demote from dram to nvme when fill > 90% until fill < 80%",
            "demote from dram to nvme when fill > 85% until fill < 80%",
            [
                (
                    "dram",
                    "",
                    "demote to nvme until fill < 80% when fill > 90%",
                    "demote to nvme until fill < 80% when fill > 85%",
                )
            ],
        ),
        (
            "evict idle > 1h from nvme\nkeep refs >= 9 in nvme",
            "evict idle > 1h from nvme",
            [("nvme", "idle = 3601s.., refs = 9..", "stay", "evict")],
        ),
        (
            "evict accept < 20% from dram cooldown 30s",
            "evict accept < 20% from dram cooldown 1min",
            [("dram", "accept = 0%..19%", "evict cooldown 30s", "evict cooldown 1min")],
        ),
        ("keep refs >= 9 in nvme", "", []),
        ("evict hits = 0 from nvme warn", "", []),
        ("evict hits = 0 from nvme warn", "evict hits = 0 from nvme", [("nvme", "hits = 0", "stay", "evict")]),
    ],
)
def test_moves_are_compared_tier_by_tier(old: str, new: str, told: list[tuple[str, ...]]) -> None:
    found = [
        (region.tier.name.lower(), region.records, str(region.old.outcome), str(region.new.outcome))
        for region in regions_of(PLACE + old, PLACE + new)
        if region.tier is not None
    ]
    assert found == told


def test_an_earlier_rule_with_watermarks_leaves_the_record_to_a_later_one_while_there_is_room() -> None:
    old = (
        PLACE
        + "evict from dram when fill > 95% until fill < 90%\ndemote from dram to nvme when fill > 80% until fill < 70%"
    )
    new = PLACE + "demote from dram to nvme when fill > 80% until fill < 70%"
    (region,) = regions_of(old, new)
    assert str(region.old.outcome) == (
        "evict until fill < 90% when fill > 95%, else demote to nvme until fill < 70% when fill > 80%"
    )
    assert region.example == "{tokens: 1, kind: ngram} in dram, fill 97.5%"
    same = "evict idle > 1d from dram\ndemote idle > 1d from dram to nvme when fill > 80% until fill < 70%"
    assert not regions_of(PLACE + same, PLACE + "evict idle > 1d from dram")


def test_goals_are_compared_by_value() -> None:
    old = PLACE + "flush every 5min\nrequire lookup p99 <= 150us\nrequire nvme life >= 5y"
    new = PLACE + "flush every 300s\nrequire lookup p99 <= 0.2ms\nrequire dram hits >= 90% warn"
    assert difference(compiled(old), compiled(new)).goals == (
        ("require lookup p99 <= 150us", "require lookup p99 <= 0.2ms"),
        ("require nvme life >= 5y", ""),
        ("", "require dram hits >= 90% warn"),
    )
    assert difference(compiled(old), compiled(PLACE)).goals[0] == ("flush every 5min", "")


def test_records_of_a_trace_are_counted_by_region() -> None:
    old = "place tokens >= 32 in dram, otherwise in nvme"
    new = 'place tokens >= 16 and not namespace = "acme" in dram, tokens <= 4 in reject, otherwise in nvme'
    found = difference(compiled(old), compiled(new))
    lengths = np.array([4, 8, 16, 16, 32, 32, 33], np.uint8)
    spaces = np.array([namespace_id(name) for name in ("a", "a", "a", "acme", "a", "acme", "acme")], np.uint32)
    given_records = RecordArrays(lengths, np.zeros(7, np.uint8), spaces, np.full(7, 72, np.uint32))
    counts_by_region, moved = found.counts(given_records)
    told = {str(region.records): int(n) for region, n in zip(found.regions, counts_by_region, strict=True)}
    assert told == {
        "tokens = 1..4": 1,
        'tokens = 16..31, namespace other than "acme"': 1,
        'tokens = 32.., namespace = "acme"': 2,
    }
    assert moved == 4


def test_regions_are_listed_up_to_a_limit_and_counted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flashnest.policy.difference._MOST_REGIONS", 5)
    lines = [f"place tokens = {n} and bytes = {n} in dram" for n in range(1, 11)]
    found = difference(compiled("place otherwise in nvme"), compiled("\n".join([*lines, "place otherwise in nvme"])))
    assert (len(found.regions), found.more) == (5, True)
    nbytes = np.arange(1, 13, dtype=np.uint32)
    asked = RecordArrays(nbytes.astype(np.uint8), np.zeros(12, np.uint8), np.zeros(12, np.uint32), nbytes)
    by_region, moved = found.counts(asked)
    assert (by_region.tolist(), moved) == ([1] * 5, 10)


def test_policies_too_large_together_are_refused_with_a_reason() -> None:
    lines = [f"place tokens = {n} and bytes = {n} in dram" for n in range(1, 251)]
    spaces = [f'place namespace = "n{n}" and bytes = 9 in dram' for n in range(60)]
    one, other = (compiled("\n".join([*part, "place otherwise in nvme"])) for part in (lines, spaces))
    with pytest.raises(PolicyError, match="cannot be compared"):
        difference(one, other)


@CALM
@given(policies, policies, st.lists(records, min_size=1, max_size=20))
def test_place_agrees_with_asking_both_policies(one: str, other: str, asked: list[RecordFacts]) -> None:
    old, new = maybe(f"{one}\nplace otherwise in dram"), maybe(f"{other}\nplace otherwise in nvme")
    found = difference(old, new)
    arrays = RecordArrays(
        np.array([one.tokens for one in asked], np.uint8),
        np.array([one.kind for one in asked], np.uint8),
        np.array([namespace_id(one.namespace) for one in asked], np.uint32),
        np.array([one.nbytes for one in asked], np.uint32),
    )
    differ = [old.place(one).chain != new.place(one).chain for one in asked]
    by_region, moved = found.counts(arrays)
    assert moved == sum(differ)
    assert by_region.sum() == moved
    for region in found.regions:
        assert old.place(region.witness).chain == region.old.outcome.chain  # type: ignore[union-attr]
        assert new.place(region.witness).chain == region.new.outcome.chain  # type: ignore[union-attr]
        assert region.old.outcome != region.new.outcome


stored = st.builds(
    RecordFacts,
    tokens,
    st.sampled_from(Kind),
    st.sampled_from(NAMESPACES),
    sizes,
    counts,
    st.tuples(counts, counts).map(lambda two: tuple(zip(WINDOWS, sorted(two), strict=True))),
    times,
    times,
    counts,
    percents,
)


def possible(record: RecordFacts) -> bool:
    hits = [count for _, count in record.window_hits]
    late = all(count == 0 or record.idle_s <= window for window, count in record.window_hits)
    return record.idle_s <= record.age_s and late and hits == sorted(hits) and hits[-1] <= record.hits


@CALM
@given(
    st.lists(moves_of(conditions_of(move_atoms)), max_size=4),
    st.lists(moves_of(conditions_of(move_atoms)), max_size=4),
    st.lists(stored, min_size=1, max_size=20),
    st.sampled_from((0.0, 0.85, 0.95)),
)
def test_moves_agree_with_asking_both_policies(
    one: list[str], other: list[str], asked: list[RecordFacts], fill: float
) -> None:
    head = "param long = 32 tokens\nparam block = 4KiB\nparam tenant = 'acme'\n" + CLASSES + PLACE
    old, new = maybe(head + "\n".join(one)), maybe(head + "\n".join(other))
    found = difference(old, new)
    for region in found.regions:
        assert region.tier is not None
        sides = [effect(policy.move(region.witness, region.tier, region.fill)) for policy in (old, new)]
        assert sides[0] != sides[1]
    listed = {region.tier for region in found.regions}
    for record in filter(possible, asked):
        for tier in set(Tier) - listed:
            assert effect(old.move(record, tier, fill)) == effect(new.move(record, tier, fill))
