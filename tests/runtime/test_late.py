"""Cold answers a step late: advanced by what was committed meanwhile, dropped where that differs, never waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from engine_setup import NOTHING, WORDS, Clock, FromTokens, Tiers, emulated_rig, open_tiers, text
from hypothesis import given, settings
from hypothesis import strategies as st

from flashnest.hashing import chunk_keys
from flashnest.record import (
    CHAIN,
    CHUNK_BLOCK,
    META,
    NGRAM_LENGTHS,
    I32Array,
    Kind,
    Tier,
    U32Array,
    U64Array,
    namespace_salt,
    pack_meta,
)
from flashnest.runtime.drafts import DraftParts, Drafts, Source
from flashnest.runtime.late import LateDrafts, complete_probes
from flashnest.runtime.prefix_cache import Lineage, Probe
from flashnest.runtime.request import Phase, Prompt, Request, SamplingParams
from flashnest.runtime.sequence import Sequence
from flashnest.runtime.tickets import chunk_ticket, ngram_ticket
from flashnest.storage.cold import ColdOptions, ColdTier
from flashnest.storage.cold_reads import ColdAnswers
from flashnest.storage.lmdb import LmdbStore
from flashnest.storage.router import Router
from flashnest.storage.store import Found
from flashnest.storage.table import DramTable

ASKED_AT = 40
CHAIN_TOKENS = list(range(100, 108))


def sequence_with(committed: list[int], request_id: int = 9) -> Sequence:
    """Return a sequence that asked when it had 40 tokens and has committed `committed` since."""
    tokens = np.concatenate([text(ASKED_AT, 1), np.array(committed, np.int32)]).astype(np.int32)
    request = Request(request_id, Prompt(tokens), 0.0)
    return Sequence(request, Lineage(0))


def ngram_row(chain: list[int], kind: Kind = Kind.NGRAM) -> U32Array:
    row = np.zeros(WORDS, np.uint32)
    row[META] = pack_meta(kind, 16, len(chain))
    row[CHAIN : CHAIN + len(chain)] = chain
    return row


def chunk_row(block: int) -> U32Array:
    row = np.zeros(WORDS, np.uint32)
    row[META] = pack_meta(Kind.CHUNK, 32, 0)
    row[CHUNK_BLOCK] = block
    return row


def answers(*parts: tuple[int, U32Array | None]) -> ColdAnswers:
    """Return a drain's answers from (ticket, row or miss); keys are 1, 2, ..."""
    empty = np.zeros(WORDS, np.uint32)
    return ColdAnswers(
        np.array([ticket for ticket, _ in parts], np.int64),
        np.arange(1, len(parts) + 1, dtype=np.uint64),
        np.array([row is not None for _, row in parts], np.bool_),
        np.array([empty if row is None else row for _, row in parts], np.uint32).reshape(-1, WORDS),
    )


@dataclass(frozen=True)
class Late:
    """The draft that came late: its tokens, its record's key, and the tokens that agree with it."""

    tokens: list[int]
    key: int
    matched: int


def take(sequence: Sequence, *parts: tuple[int, U32Array | None]) -> Late | None:
    """Hand a drain to the sequence's row and see what is offered."""
    request = sequence.request
    tokens, lengths = request.tokens[None], np.array([request.length], np.int32)
    drained = answers(*parts)
    complete_probes(drained, {request.id: sequence})
    late = LateDrafts(1, WORDS, np.array(NGRAM_LENGTHS, np.int32))
    late.take(drained, tokens, lengths, np.array([request.id]))
    drained.rows[:] = 0  # what is kept is a copy
    drafts, rows = Drafts.allocate(1, 8), np.zeros(1, np.int64)
    tiers, matched = np.zeros(1, np.uint8), np.zeros(1, np.int32)
    late.offer(tokens, rows, lengths, drafts, DraftParts.allocate(1, 2), tiers, matched)
    draft: list[int] = drafts.tokens[0, : drafts.lengths[0]].tolist()
    return Late(draft, int(drafts.keys[0]), int(drafts.matched[0])) if draft else None


def ticket(length_index: int, place: int = ASKED_AT, request_id: int = 9) -> int:
    return ngram_ticket(request_id, place) + length_index


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(0, 8), st.integers(1, 8))
def test_a_draft_is_advanced_by_what_was_committed(committed: int, agreeing: int, width: int) -> None:
    """It is kept only where all that was committed is its head and something is left of it."""
    said = (CHAIN_TOKENS[:agreeing] + [7] * 12)[:committed]
    late = take(sequence_with(said), (ticket(2), ngram_row(CHAIN_TOKENS[:width])))
    if committed <= agreeing and committed < width:
        assert late == Late(CHAIN_TOKENS[committed:width], key=1, matched=16 + committed)
    else:
        assert late is None


def test_the_longest_answer_wins_whatever_the_order() -> None:
    short, long = ngram_row([*CHAIN_TOKENS[:2], 1]), ngram_row([*CHAIN_TOKENS[:2], 2])
    for parts in ([(ticket(0), short), (ticket(3), long)], [(ticket(3), long), (ticket(0), short)]):
        late = take(sequence_with(CHAIN_TOKENS[:2]), *parts)
        assert late is not None
        assert (late.matched, late.tokens) == (34, [2])


def test_an_older_answer_counts_the_tokens_it_has_foreseen() -> None:
    """Asked 3 tokens ago over 4 tokens and right since: 7 tokens agree, less than the 8 of a newer answer."""
    sequence = sequence_with(CHAIN_TOKENS[:3])
    older, newer = ngram_row([*CHAIN_TOKENS[:3], 1]), ngram_row([CHAIN_TOKENS[2], 2])
    late = take(sequence, (ticket(1, ASKED_AT + 2), newer), (ticket(0), older))
    assert late is not None
    assert late.tokens == [2]
    late = take(sequence_with(CHAIN_TOKENS[:3]), (ticket(0, ASKED_AT + 2), newer), (ticket(0), older))
    assert late is not None
    assert late.tokens == [1]


def test_misses_chunk_rows_and_ended_requests_give_no_draft() -> None:
    assert take(sequence_with(CHAIN_TOKENS[:1]), (ticket(2), None)) is None
    assert take(sequence_with(CHAIN_TOKENS[:1]), (ticket(2), ngram_row(CHAIN_TOKENS, Kind.CHUNK))) is None
    assert take(sequence_with(CHAIN_TOKENS[:1]), (ticket(2, request_id=8), ngram_row(CHAIN_TOKENS))) is None


def test_chunk_answers_complete_a_probe() -> None:
    sequence = sequence_with([])
    sequence.probe = Probe(chunk_keys(text(128, 1), 0), np.full(4, -1, np.int64), pending=3)
    parts = [(chunk_ticket(9, 2), chunk_row(17)), (chunk_ticket(9, 0), None), (chunk_ticket(8, 3), chunk_row(5))]
    assert take(sequence, *parts) is None
    assert sequence.probe.pending == 1
    take(sequence, (chunk_ticket(9, 1), ngram_row(CHAIN_TOKENS)))  # a clash of keys: no block
    assert sequence.probe.pending == 0
    assert sequence.probe.blocks.tolist() == [-1, -1, 17, -1]
    assert sequence.probe.hits == 1
    sequence.probe = None
    take(sequence, (chunk_ticket(9, 3), chunk_row(5)))  # too late for anything: ignored


# In the engine, over a real store

PROMPT = text(40, 11)
ANSWER = text(40, 12)


def prompt_of(answer: I32Array = ANSWER, tokens: I32Array = PROMPT, max_tokens: int = 40) -> Prompt:
    return Prompt(tokens, reference=answer, sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def learn_cold(path: Path, prompts: list[Prompt]) -> None:
    """Put what `prompts` say on disk; the next tiers on `path` know it from there alone."""
    with open_tiers(path, dram_from=NOTHING) as tiers, emulated_rig(tiers) as rig:
        rig.serve(prompts)


@pytest.mark.parametrize("pump_every", [1, 2, 4])
def test_late_drafts_are_used_and_right(tmp_path: Path, pump_every: int) -> None:
    """A chain of 8 asked k steps ago still drafts 8 - k tokens."""
    learn_cold(tmp_path, [prompt_of()])
    with open_tiers(tmp_path, dram_from=NOTHING, pump_every=pump_every) as tiers, emulated_rig(tiers) as rig:
        assert rig.say([prompt_of()]) == [ANSWER.tolist()]
        drafts, drafted, kept = rig.drafts()[Source.NVME]
        assert drafts > 0
        assert drafted == kept > 0
        assert len(rig.events) < 40


def test_a_late_draft_that_the_answer_left_behind_is_dropped(tmp_path: Path) -> None:
    learn_cold(tmp_path, [prompt_of()])
    other = np.concatenate([ANSWER[:1], text(39, 13)])  # parts from what is on disk at its second token
    # Step 1 probes; the n-grams of steps 2 and 3 are answered after step 3, when the second token is out.
    with open_tiers(tmp_path, dram_from=NOTHING, pump_every=3) as tiers, emulated_rig(tiers) as rig:
        assert rig.say([prompt_of(other)]) == [other.tolist()]
        assert rig.drafts()[Source.NVME].tolist() == [0, 0, 0]
        assert tiers.router.stats().tiers[Tier.NVME].hits > 1


def test_answers_for_ended_and_cancelled_requests_are_ignored(tmp_path: Path) -> None:
    learn_cold(tmp_path, [prompt_of()])
    with open_tiers(tmp_path, dram_from=NOTHING, pump_every=10**9) as tiers, emulated_rig(tiers) as rig:
        ended = rig.submit(prompt_of(max_tokens=2))
        cancelled = rig.submit(prompt_of())
        stays = rig.submit(prompt_of())
        while ended.phase is not Phase.DONE:
            rig.step()
        rig.engine.cancel(cancelled)
        tiers.cold.pump()
        tiers.pump_every = 1
        rig.finish()
        assert stays.output.tolist() == ANSWER.tolist()
        assert ended.output.tolist() == ANSWER[:2].tolist()
        assert len(cancelled.output) < 5


def test_a_probing_request_waits_alone(tmp_path: Path) -> None:
    """Its chunks are asked of the disk; those beside it decode on, a step each."""
    cold_prompt = prompt_of(tokens=text(100, 14))
    learn_cold(tmp_path, [cold_prompt])
    with open_tiers(tmp_path, dram_from=NOTHING, pump_every=10**9) as tiers, emulated_rig(tiers) as rig:
        beside = rig.submit(prompt_of(tokens=text(20, 15)))
        rig.step()
        probing = rig.submit(cold_prompt)
        for step in range(5):
            event = rig.step()
            assert probing.phase is Phase.PROBING
            assert event.committed == 1
            assert len(beside.output) == step + 2
        tiers.cold.pump()
        rig.step()
        assert probing.phase is Phase.DECODE
        tiers.pump_every = 1
        rig.finish()
        assert probing.output.tolist() == ANSWER.tolist()


class StuckStore(LmdbStore):
    """A disk whose reads hang until `gate` opens, or fail where `broken`."""

    def __init__(self, path: Path, *, broken: bool) -> None:
        super().__init__(path, 32 << 20, words=WORDS, clock_s=lambda: 1)
        self.gate, self.broken, self.reads = threading.Event(), broken, 0

    def lookup_many(self, keys: U64Array, found: Found) -> None:
        self.reads += 1
        if self.broken:
            raise OSError("no medium found")
        self.gate.wait()


@contextmanager
def stuck_tiers(path: Path, *, broken: bool, deadline_s: float) -> Iterator[tuple[Tiers, StuckStore]]:
    """Open a cold tier with its own threads, whose clock ticks 10 ms at each reading."""
    store = StuckStore(path, broken=broken)
    options = ColdOptions(deadline_s=deadline_s, flush_interval_s=1e9)
    cold = ColdTier(store, words=WORDS, clock_s=lambda: 1, options=options, clock=Clock(tick_s=0.01))
    dram = DramTable(1 << 20, words=WORDS, clock_s=lambda: 1, evict=False)
    router = Router(dram, cold, FromTokens(NOTHING))
    try:
        yield Tiers(router, dram), store
    finally:
        store.gate.set()
        router.close()


@pytest.mark.parametrize("broken", [False, True], ids=["hangs", "fails"])
def test_a_disk_that_never_answers_is_a_miss_and_the_run_ends(tmp_path: Path, broken: bool) -> None:
    prompts = [prompt_of(tokens=text(100, 14)), prompt_of(), prompt_of(tokens=text(70, 16))]
    learn_cold(tmp_path, prompts)
    with stuck_tiers(tmp_path, broken=broken, deadline_s=0.5) as (tiers, store):
        with emulated_rig(tiers) as rig:
            requests = rig.serve(prompts)
        assert [r.output.tolist() for r in requests] == [ANSWER.tolist()] * 3
        assert [r.reused_tokens for r in requests] == [0, 0, 0]
        cold = tiers.router.stats().cold
        assert store.reads > 0
        assert (cold.errors if broken else cold.late) >= 5  # the chunks of the prompts, at least
        assert cold.answered == 0


def test_more_questions_than_the_queue_takes_are_misses(tmp_path: Path) -> None:
    prompts = [prompt_of(tokens=text(100, 30 + i)) for i in range(6)]
    learn_cold(tmp_path, prompts)
    with open_tiers(tmp_path, dram_from=NOTHING, queue_keys=4) as tiers, emulated_rig(tiers) as rig:
        assert rig.say(prompts) == [ANSWER.tolist()] * 6
        assert tiers.router.stats().cold.dropped > 0


def test_a_tenant_gets_no_cold_answer_of_another(tmp_path: Path) -> None:
    learn_cold(tmp_path, [prompt_of()])
    with open_tiers(tmp_path, dram_from=NOTHING) as tiers, emulated_rig(tiers) as rig:
        theirs = prompt_of()
        mine = Prompt(theirs.tokens, "other", theirs.reference, theirs.sampling)
        assert namespace_salt("other") != namespace_salt(theirs.namespace)
        request = rig.serve([mine])[0]
        assert request.reused_tokens == 0
        assert rig.drafts()[Source.NVME].tolist() == [0, 0, 0]
        assert sum(event.lookups.hits for event in rig.events) == 0
