"""The packer against one that walks tokens one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.record import CHUNK_TOKENS
from flashnest.runtime.packing import Packed, Shares, pack
from flashnest.runtime.prefix_cache import Lineage
from flashnest.runtime.request import Prompt, Request, SamplingParams
from flashnest.runtime.rows import Rows
from flashnest.runtime.sequence import Sequence

WIDTH = 8


@dataclass(frozen=True)
class Share:
    """One sequence's part of a step: tokens computed before, tokens of this slice, tokens left after it, its draft."""

    computed: int
    count: int
    left: int
    draft: tuple[int, ...]
    greedy: bool
    spare_blocks: int

    @property
    def scored(self) -> bool:
        return self.left == 0


shares = st.builds(
    Share,
    computed=st.integers(0, 70),
    count=st.integers(1, 40),
    left=st.sampled_from([0, 0, 5]),
    draft=st.lists(st.integers(100, 199), max_size=WIDTH).map(tuple),
    greedy=st.booleans(),
    spare_blocks=st.integers(0, 2),
)


def request_of(share: Share, number: int, rng: np.random.Generator) -> Request:
    tokens = rng.integers(0, 100, share.computed + share.count + share.left).astype(np.int32)
    sampling = SamplingParams(max_tokens=1 + WIDTH, temperature=0.0 if share.greedy else 1.0)
    request = Request(7 + number, Prompt(tokens, sampling=sampling), 0.0)
    request.move(Rows.allocate(1, 256), 0)
    request.computed = share.computed
    blocks = request.blocks_needed(len(tokens) + WIDTH) + share.spare_blocks
    request.add_blocks(rng.integers(0, 1000, blocks).tolist())
    return request


def naive(parts: list[Share], requests: list[Request]) -> list[tuple[int, int, int, bool]]:
    """Return (token, position, row, scored) of each packed token; the last known token and the draft are scored."""
    packed = []
    for row, (share, request) in enumerate(zip(parts, requests, strict=True)):
        draft = share.draft if share.scored else ()
        known = request.tokens[share.computed : share.computed + share.count].tolist()
        for i, token in enumerate([*known, *draft]):
            packed.append((token, share.computed + i, row, share.scored and i >= share.count - 1))
    return packed


def pack_shares(parts: list[Share], seed: int) -> tuple[list[Request], Packed]:
    rng = np.random.default_rng(seed)
    requests = [request_of(share, i, rng) for i, share in enumerate(parts)]
    rows = Rows.allocate(len(parts) + 3, 256)
    places = rng.permutation(len(parts) + 3)[: len(parts)]
    for request, place in zip(requests, places.tolist(), strict=True):
        request.move(rows, place)
    drafts = [share.draft for share in parts if share.scored]
    # Rows past the scored ones and tokens past a draft's length hold rubbish, as the drafter's buffers do.
    tokens = np.full((len(parts) + 2, WIDTH), 999, np.int32)
    lengths = np.full(len(parts) + 2, 3, np.int32)
    for row, draft in enumerate(drafts):
        tokens[row, : len(draft)] = draft
        lengths[row] = len(draft)
    shares = Shares(
        places.astype(np.int64),
        np.array([share.count for share in parts], np.int32),
        np.array([share.scored for share in parts]),
        np.ones(len(parts), np.bool_),
    )
    scored = [Sequence(r, Lineage(0)) for r, share in zip(requests, parts, strict=True) if share.scored]
    return requests, pack(rows, shares, scored, tokens, lengths)


@settings(deadline=None)
@given(st.lists(shares, min_size=1, max_size=6), st.integers(0, 1000))
def test_packed_tokens_are_the_naive_packers(parts: list[Share], seed: int) -> None:
    requests, packed = pack_shares(parts, seed)
    batch = packed.batch
    expected = naive(parts, requests)
    assert batch.token_ids.tolist() == [token for token, _, _, _ in expected]
    assert batch.positions.tolist() == [position for _, position, _, _ in expected]
    rows = np.repeat(np.arange(len(parts)), np.diff(batch.q_starts))
    assert rows.tolist() == [row for _, _, row, _ in expected]
    assert batch.score_rows.tolist() == [at for at, (_, _, _, scored) in enumerate(expected) if scored]


@settings(deadline=None)
@given(st.lists(shares, min_size=1, max_size=6), st.integers(0, 1000))
def test_rows_name_their_request_context_and_blocks(parts: list[Share], seed: int) -> None:
    requests, packed = pack_shares(parts, seed)
    batch = packed.batch
    for row, (share, request) in enumerate(zip(parts, requests, strict=True)):
        drafted = len(share.draft) if share.scored else 0
        assert batch.request_ids[row] == request.id
        assert batch.context_lens[row] == share.computed + share.count + drafted
        assert batch.positions[batch.q_starts[row + 1] - 1] == batch.context_lens[row] - 1
        table = batch.block_tables[row].tolist()
        assert table[: len(request.blocks)] == request.blocks
        assert set(table[len(request.blocks) :]) <= {-1}
        assert batch.context_lens[row] <= len(request.blocks) * CHUNK_TOKENS


@settings(deadline=None)
@given(st.lists(shares, min_size=1, max_size=6), st.integers(0, 1000))
def test_scores_are_handed_out_in_order(parts: list[Share], seed: int) -> None:
    requests, packed = pack_shares(parts, seed)
    drafts = [share.draft for share in parts if share.scored]
    assert [s.request for s in packed.scored] == [r for r, p in zip(requests, parts, strict=True) if p.scored]
    assert packed.rows.tolist() == [s.request.row for s in packed.scored]
    assert packed.draft_lengths.tolist() == [len(draft) for draft in drafts]
    starts = np.cumsum([0] + [len(draft) + 1 for draft in drafts])
    assert packed.score_starts.tolist() == starts[:-1].tolist()
    assert len(packed.batch.score_rows) == starts[-1]
    scored = [share for share in parts if share.scored]
    wanted = [(i, starts[i] + j) for i, s in enumerate(scored) if not s.greedy for j in range(len(s.draft) + 1)]
    assert list(zip(packed.logit_sequences.tolist(), packed.batch.logit_rows.tolist(), strict=True)) == wanted


def test_a_step_of_prefill_alone_asks_for_no_score() -> None:
    _, packed = pack_shares([Share(0, 32, 5, (), True, 0)], 1)
    assert len(packed.batch.score_rows) == len(packed.scored) == len(packed.score_starts) == 0
