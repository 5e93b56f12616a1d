"""Verification: which draft tokens stay, and that sampling with drafts draws from the same distribution as without."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_reference import accept_sampled, draw, position_uniforms

from flashnest.runtime.verify import accepted_counts, draw_many

TOKENS = st.lists(st.integers(0, 2), max_size=6)


def agreed(draft: list[int], best: list[int]) -> int:
    """Return how many tokens of one draft the model agrees with, counted by hand."""
    count = 0
    while count < len(draft) and draft[count] == best[count]:
        count += 1
    return count


@pytest.mark.parametrize(
    ("draft", "best", "accepted"),
    [([], [5], 0), ([5, 6], [5, 6, 7], 2), ([5, 6], [5, 9, 7], 1), ([5, 6], [4, 6, 7], 0)],
)
def test_the_agreed_head_of_a_draft_is_accepted(draft: list[int], best: list[int], accepted: int) -> None:
    assert agreed(draft, best) == accepted
    assert accepted_counts(np.array([1, *draft]), np.array(best), np.array([0, len(best)], np.int32)).tolist() == [
        accepted
    ]


def test_no_sequence_accepts_nothing() -> None:
    none = np.zeros(0, np.int64)
    assert accepted_counts(none, none, np.zeros(1, np.int32)).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 2), TOKENS), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_accepted_counts_agrees_with_one_sequence_at_a_time(
    sequences: list[tuple[int, list[int]]], random: np.random.Generator
) -> None:
    bests = [[random.randint(0, 2) for _ in range(len(draft) + 1)] for _, draft in sequences]
    inputs = np.concatenate([np.array([last, *draft]) for last, draft in sequences])
    starts = np.cumsum([0] + [len(best) for best in bests]).astype(np.int32)
    expected = [agreed(draft, best) for (_, draft), best in zip(sequences, bests, strict=True)]
    assert accepted_counts(inputs, np.concatenate(bests), starts).tolist() == expected


def test_draw_gives_each_token_its_share_and_none_to_impossible_ones() -> None:
    probs = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    uniforms = np.array([0.0, 0.2499, 0.25, 0.999999, 1.0 - 2**-53])
    assert draw_many(np.tile(probs, (5, 1)), uniforms).tolist() == [1, 1, 3, 3, 3]


def test_draw_survives_a_sum_below_one() -> None:
    assert draw_many(np.array([[0.3, 0.3, 0.0]]), np.array([1.0 - 2**-53])).tolist() == [1]


@settings(deadline=None)
@given(TOKENS, st.integers(0, 1000), st.integers(0, 2**64 - 1))
def test_sampled_tokens_do_not_depend_on_the_draft(draft: list[int], position: int, seed: int) -> None:
    """Whatever is drafted, what is committed is the head of what would be drawn without drafts."""
    rng = np.random.default_rng(position)
    table = rng.dirichlet(np.ones(3), size=(3,) * 2)  # p(next | two tokens)
    plain, state = [], (0, 1)
    for uniform in position_uniforms(seed, position, len(draft) + 1):
        plain.append(draw(table[state], uniform))
        state = (state[1], plain[-1])
    states = [(0, 1), *zip([1, *draft], draft, strict=False)]
    probs = np.stack([table[s] for s in states])
    uniforms = position_uniforms(seed, position, len(draft) + 1)
    committed = accept_sampled(np.array(draft, np.int32), probs, uniforms).tolist()
    assert committed == plain[: len(committed)]
    agreed = sum(1 for _ in _agreed_head(draft, plain))
    assert len(committed) == agreed + 1


def _agreed_head(draft: list[int], plain: list[int]) -> list[int]:
    head = []
    for drafted, drawn in zip(draft, plain, strict=False):
        if drafted != drawn:
            break
        head.append(drafted)
    return head


def _sequence_counts(draft: list[int], runs: int, seed: int) -> np.ndarray:
    """Sample three tokens of a Markov chain `runs` times with `draft` before it; returns counts by outcome."""
    chain = np.array([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]])
    counts = np.zeros((3, 3, 3), np.int64)
    for run in range(runs):
        said: list[int] = []
        while len(said) < 3:
            drafted = draft[len(said) :] if said == draft[: len(said)] else []
            probs = chain[[said[-1] if said else 0, *drafted]]
            uniforms = position_uniforms(seed + run, len(said), len(drafted) + 1)
            said += accept_sampled(np.array(drafted, np.int32), probs, uniforms).tolist()
        counts[tuple(said[:3])] += 1
    return counts


@pytest.mark.parametrize("draft", [[], [0], [0, 1], [2, 2, 2], [1, 2, 0]])
def test_sampled_output_has_the_target_distribution_with_any_draft(draft: list[int]) -> None:
    """Chi-square of 27 outcomes against the chain's own probabilities: 26 degrees of freedom, 99.9 % below 54.1."""
    chain = np.array([[0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]])
    runs = 6000
    expected = runs * np.einsum("a,ab,bc->abc", chain[0], chain, chain)
    observed = _sequence_counts(draft, runs, seed=hash(tuple(draft)) % 1000 * 10_000)
    assert (((observed - expected) ** 2) / expected).sum() < 54.1
