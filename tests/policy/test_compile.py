"""The compiled policy as a library: arrays in, codes out; what the caller is told and what is loaded."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from flashnest.policy import PolicyCheckError, RecordFacts, compile_policy
from flashnest.policy.cells import MAX_CELLS
from flashnest.policy.goals import Flush, Level, Requirement
from flashnest.record import Admission, FactArrays, Kind, Tier, namespace_id
from flashnest.units import Dimension, Quantity

HOTCOLD = ">=32-token records in DRAM, <=8-token records on NVMe\nplace otherwise in dram else nvme\n"


def batch(n: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(7)
    return (
        rng.integers(1, 256, n).astype(np.uint8),
        rng.integers(0, 2, n).astype(np.uint8),
        rng.integers(0, 2**32, n).astype(np.uint32),
        rng.integers(1, 2**32, n).astype(np.uint32),
    )


def test_chain_codes_are_bytes_that_index_chains():
    placement = compile_policy(HOTCOLD).placement
    tokens, *rest = batch(1000)

    codes = placement.chain_codes(tokens, *rest)

    assert placement.chains == ((Tier.DRAM,), (Tier.NVME,), (Tier.DRAM, Tier.NVME))
    assert codes.dtype == np.uint8
    assert codes.tolist() == [0 if t >= 32 else 1 if t <= 8 else 2 for t in tokens.tolist()]


def test_empty_batch_gives_empty_codes():
    placement = compile_policy(HOTCOLD).placement

    assert placement.chain_codes(*batch(0)).shape == (0,)
    assert placement.rule_codes(*batch(0)).shape == (0,)


def test_placement_leaves_its_arguments_alone():
    arrays = batch(100)
    before = [array.copy() for array in arrays]

    compile_policy("place bytes > 9 and namespace = 'a' in dram, otherwise in nvme").placement.chain_codes(*arrays)

    assert all((array == copy).all() for array, copy in zip(arrays, before, strict=True))


def test_lowest_and_highest_codes_fall_into_the_outer_cells():
    placement = compile_policy("tokens = 1 and bytes = 1 in dram, tokens = 255 in nvme, otherwise in vram").placement
    ends = (
        np.array([0, 1, 255], np.uint8),
        np.zeros(3, np.uint8),
        np.zeros(3, np.uint32),
        np.array([0, 1, 9], np.uint32),
    )

    assert placement.rule_codes(*ends).tolist() == [0, 0, 1]


def test_equal_chains_share_a_code():
    policy = compile_policy("tokens = 1 in dram, tokens = 2 on DRAM, otherwise in dram else reject")

    assert policy.placement.chains == ((Tier.DRAM,),)


def test_policy_shows_rules_params_and_tiers():
    policy = compile_policy(
        "param long = 4KiB\nplace bytes > long in nvme\n\nplace otherwise in vram", params={"long": "1MiB"}
    )

    assert [(rule.number, rule.line, rule.text) for rule in policy.rules] == [
        (1, 2, "place bytes > long in nvme"),
        (2, 4, "place otherwise in vram"),
    ]
    assert policy.params == {"long": Quantity(2**20, Dimension.BYTES)}
    assert policy.tiers == {Tier.VRAM, Tier.NVME}


def test_unused_param_is_a_warning_not_an_error():
    policy = compile_policy("param long = 4\nplace otherwise in dram")

    assert [(one.severity, one.code, one.line, one.column) for one in policy.diagnostics] == [("warning", "T409", 1, 7)]


def test_positions_follow_the_place_in_the_file():
    with pytest.raises(PolicyCheckError) as caught:
        compile_policy(
            "place otherwise in dram\nplace tokns > 1 in dram", source="x.yaml", first_line=10, column_offset=2
        )

    assert [(one.line, one.column) for one in caught.value.diagnostics] == [(11, 9)]
    assert "--> x.yaml:11:9" in str(caught.value)


def test_windows_line_ends_and_byte_order_mark_are_read():
    policy = compile_policy("\ufeffplace tokens > 3 in dram\r\nplace otherwise in nvme\r\n")

    assert policy.place(RecordFacts(3)).chain == (Tier.NVME,)


def test_namespaces_that_share_an_id_are_refused():
    seen: dict[int, str] = {}
    clash = None
    for i in range(1_000_000):  # by the birthday bound a pair comes after about 80 000 names
        name = f"n{i}"
        other = seen.setdefault(namespace_id(name), name)
        if other != name:
            clash = (other, name)
            break
    assert clash is not None

    with pytest.raises(PolicyCheckError) as caught:
        compile_policy(f'namespace = "{clash[0]}" in dram, namespace = "{clash[1]}" in nvme, otherwise in dram')

    assert [one.code for one in caught.value.diagnostics] == ["T408"]


def test_policy_too_large_to_check_is_refused_at_once():
    sizes = [f"bytes = {2 * n + 2} in dram" for n in range(120)]
    names = [f"namespace = 'n{n}' in dram" for n in range(120)]
    lengths = [f"tokens = {n} in dram" for n in range(1, 200)]

    with pytest.raises(PolicyCheckError) as caught:
        compile_policy("\n".join((*sizes, *names, *lengths, "otherwise in dram")))

    assert [one.code for one in caught.value.diagnostics] == ["T003"]
    assert str(MAX_CELLS) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"place {'not ' * 101}tokens > 3 in dram", "more than 100 parentheses and `not`"),
        ("place otherwise in dram\n" + "evict hits > 3 from dram\n" * 65, "65 moves: too many to compare"),
        ("\n".join(f"class c{n} = c{n + 1}" for n in range(60)), "classes are nested more than 50 deep"),
    ],
)
def test_what_is_too_large_or_too_deep_is_refused(text, message):
    with pytest.raises(PolicyCheckError) as caught:
        compile_policy(text)

    assert next(one.message for one in caught.value.diagnostics if one.code == "T003").startswith(message)


def test_place_asks_all_facts():
    policy = compile_policy("kind = chunk and namespace = 'a' and bytes = 7 and tokens = 5 in dram, otherwise in nvme")

    assert policy.place(RecordFacts(5, Kind.CHUNK, "a", 7)).number == 1
    for other in (RecordFacts(6, Kind.CHUNK, "a", 7), RecordFacts(5, Kind.NGRAM, "a", 7)):
        assert policy.place(other).number == 2
    for other in (RecordFacts(5, Kind.CHUNK, "b", 7), RecordFacts(5, Kind.CHUNK, "a", 8)):
        assert policy.place(other).number == 2


MOVES = """\
place tokens <= 8 on nvme after 2 hits in 10min
place tokens <= 16 in nvme
keep refs >= 1000 in dram
place otherwise in dram else nvme
promote hits in 1h >= 3 or hits in 60s >= 2 from nvme to dram at most 20 MB/s min residency 1min at most 2000 rec/s
demote from dram to nvme until fill < 80% when fill > 90.5% by idle desc cooldown 500ms
evict from nvme when fill > 95% until fill < 90% using LRU
"""


def test_moves_are_numbered_on_from_place_and_carry_their_clauses():
    policy = compile_policy(MOVES)
    keep, promote, demote, evict = policy.moves.rules

    assert [(rule.number, rule.line, rule.action) for rule in policy.moves.rules] == [
        (4, 3, "keep"),
        (5, 5, "promote"),
        (6, 6, "demote"),
        (7, 7, "evict"),
    ]
    assert [rule.number for rule in policy.rules] == [1, 2, 3]
    assert demote.text == "demote from dram to nvme when fill > 90.5% until fill < 80% by idle desc cooldown 500ms"
    assert (keep.source, keep.target) == (Tier.DRAM, None)
    assert (promote.source, promote.target) == (Tier.NVME, Tier.DRAM)
    assert (promote.most_records_per_s, promote.most_bytes_per_s) == (2000, 20e6)
    assert (promote.cooldown_s, promote.min_residency_s, promote.when_fill, promote.order) == (0, 60, None, None)
    assert (demote.when_fill, demote.until_fill, demote.order, demote.cooldown_s) == (0.905, 0.8, ("idle", True), 0.5)
    assert (evict.using, evict.target, evict.when_fill) == ("lru", None, 0.95)
    assert policy.moves.windows_s == (60, 3600)


def test_moves_match_empty_and_whole_batches():
    rules = compile_policy(MOVES).moves.rules
    for n in (0, 3):
        small, wide = np.ones(n, np.uint8), np.ones(n, np.uint32)
        facts = FactArrays(small, small, wide, wide, wide, wide, wide, wide, small, (wide, wide))
        assert [rule.matches(facts).tolist() for rule in rules] == [[False] * n, [False] * n, [True] * n, [True] * n]


GOALS = """\
place "long ones": tokens >= 32 in dram
place tokens >= 16 in vram warn
place otherwise in dram else nvme
promote "popular": hits in 60s >= 3 from nvme to dram at most 2000 rec/s warn
demote "cold": idle > 1h from dram to nvme
flush "snapshots": every 5min at most 20 MB/s
require lookup p99 <= 150us
require "drive": nvme life >= 5y warn
"""


def test_goals_carry_names_levels_and_numbers():
    policy = compile_policy(GOALS)

    assert policy.flush == Flush(300.0, 20e6, 6, 'flush "snapshots": every 5min at most 20 MB/s', "snapshots")
    lookup, life = policy.requirements
    assert (lookup.metric, lookup.operator, lookup.bound) == ("lookup p99", "<=", 150e-6)
    assert (lookup.level, lookup.line, lookup.name) == (Level.ENFORCE, 7, None)
    assert (life.bound, life.level, life.name) == (5 * 365 * 86400, Level.WARN, "drive")
    assert life.text == 'require "drive": nvme life >= 5y warn'
    assert [(rule.name, rule.acts) for rule in policy.rules] == [("long ones", True), (None, False), (None, True)]
    assert [(rule.name, rule.level) for rule in policy.moves.rules] == [
        ("popular", Level.WARN),
        ("cold", Level.ENFORCE),
    ]
    assert [rule.called for rule in policy.rules[:2]] == ['rule 1 "long ones" (line 1)', "rule 2 (line 2)"]


def test_what_acts_is_the_plan_without_trials():
    policy = compile_policy(GOALS)
    popular = RecordFacts(8, hits=3)

    assert [rule.number for rule in policy.moves.acting.rules] == [5]
    assert policy.moves.acting.windows_s == policy.moves.windows_s == (60,)
    acting = policy.moves.acting
    assert acting.acting is acting
    assert policy.move(popular, Tier.NVME) is None
    assert policy.move(popular, Tier.NVME, trial=4) is policy.moves.rules[0]
    assert policy.place(RecordFacts(16)).number == 3
    assert policy.place(RecordFacts(16), trial=2).number == 2
    assert 1 not in policy.placement.rule_codes(*batch(1000))


@pytest.mark.parametrize(
    ("operator", "below", "at", "above"),
    [("<=", True, True, False), ("<", True, False, False), (">=", False, True, True), (">", False, False, True)],
)
def test_requirement_holds_on_its_side_of_the_bound(operator, below, at, above):
    requirement = Requirement("dram hits", operator, 0.5, Level.ENFORCE, 1, "")

    assert [requirement.holds(measured) for measured in (0.4, 0.5, 0.6)] == [below, at, above]


def test_policies_that_programs_write_are_checked_without_the_slow_warnings():
    lines = [f"place bytes = {n} or bytes = {n} in {'dram' if n % 2 else 'nvme'}" for n in range(1, 302)]
    moves = [f"evict idle > {n}h from dram" for n in range(1, 20)]

    policy = compile_policy("\n".join((*lines, "place otherwise in dram else nvme", *moves)))

    assert not policy.diagnostics
    assert len(policy.rules) == 302


def test_chains_that_differ_in_admission_are_apart():
    placement = compile_policy(MOVES).placement
    tokens, rest = np.array([8, 9, 17], np.uint8), np.ones(3, np.uint32)

    codes = placement.chain_codes(tokens, np.zeros(3, np.uint8), rest, rest)

    assert placement.chains == ((Tier.NVME,), (Tier.NVME,), (Tier.DRAM, Tier.NVME))
    assert placement.admissions == (Admission(2, 600), None, None)
    assert codes.tolist() == [0, 1, 2]


def test_compiling_loads_nothing_heavy():
    code = (
        "import sys; from flashnest.policy import compile_policy; compile_policy('place otherwise in dram');"
        "print(sorted({'torch', 'numba', 'transformers', 'pydantic', 'hydra', 'typer', 'numpy.ma'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
