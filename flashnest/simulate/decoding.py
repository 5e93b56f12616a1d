"""What a server asks its table and teaches it while it answers given requests: from tokens to the accesses of a trace.

Follows `runtime.engine` step by step, without a model: a request asks for all chunks of its prompt when it is admitted,
its prompt's n-grams are learnt in that step, its prompt is computed `prefill_tokens` a step, then each step asks one
question (all n-gram lengths, longest first) and says one token. An n-gram is learnt when a full chain follows it or the
answer ends; a chunk when its last token is computed. What a hit saves is not modelled, because the trace must not
depend on the policy: every prompt is computed and learnt whole, every step says one token. Reads no file.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Final

import numpy as np

from flashnest.errors import WorkloadError
from flashnest.hashing import chunk_keys, chunk_seed, hash_tail
from flashnest.jit import kernel
from flashnest.record import (
    CHUNK_TOKENS,
    DEFAULT_CHAIN_WORDS,
    MAX_NGRAM_LENGTHS,
    MAX_NGRAM_TOKENS,
    I32Array,
    I64Array,
    Kind,
    U8Array,
    U64Array,
    namespace_id,
    namespace_salt,
    record_bytes,
)
from flashnest.simulate.numbering import number_keys
from flashnest.simulate.trace import INSERT, LOOKUP, NO_GROUP, Trace

_CHUNK_FACTS: Final = int(Kind.CHUNK) << 8 | CHUNK_TOKENS
STEP_MS: Final = 22.0
"""A decode step of 128 streams of Qwen3-8B on an RTX 4090 (facts R1): what `idle` and `hits in 60s` are counted by."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How the requests are served: n-gram lengths looked up, requests at once, prompt tokens computed a step each, time
    of a step, tokens of a record's chain, whether chunks are asked and learnt too, bytes of a record."""

    lengths: tuple[int, ...] = (8, 16, 32)
    concurrency: int = 32
    prefill_tokens: int = 512
    step_ms: float = STEP_MS
    chain_tokens: int = DEFAULT_CHAIN_WORDS
    chunks: bool = True
    nbytes: int = record_bytes()

    def check(self) -> None:
        """Raise WorkloadError for values that no run could have."""
        longest = max(self.lengths, default=0)
        if list(self.lengths) != sorted(set(self.lengths)) or not self.lengths or self.lengths[0] < 1:
            what = f"n-gram lengths {list(self.lengths)} do not ascend from 1 on"
        elif longest > MAX_NGRAM_TOKENS or len(self.lengths) > MAX_NGRAM_LENGTHS:
            what = f"{len(self.lengths)} n-gram lengths up to {longest}: at most {MAX_NGRAM_LENGTHS} up to 32 are kept"
        elif min(self.concurrency, self.prefill_tokens, self.chain_tokens, self.nbytes) < 1 or self.step_ms <= 0:
            what = "concurrency, prefill_tokens, chain_tokens, nbytes and step_ms must be above 0"
        else:
            return
        raise WorkloadError(f"cannot make a trace: {what}", fix="lengths such as 8,16,32 and concurrency 32 work")


@dataclass(frozen=True, slots=True)
class Spoken:
    """One request: tokens int32 (n,), the first `prompt` of which are its prompt, the rest, at least one, its answer.

    `follows`: it starts when the request in front of it ends, as the next turn of one conversation.
    """

    tokens: I32Array
    prompt: int
    namespace: str
    follows: bool = False


def decode(requests: list[Spoken], serving: Serving, *, name: str, source: str) -> Trace:
    """Return what serving the requests in order asks and teaches. Raises WorkloadError for impossible options.

    A few million accesses a second: each position is hashed once, and each access is written to its place at once.
    """
    serving.check()
    spaces = {request.namespace for request in requests}
    salts = {space: namespace_salt(space) for space in spaces}
    ids = {space: namespace_id(space) for space in spaces}
    starts, decodes = _schedule(requests, serving)
    plan = np.array([(len(r.tokens), r.prompt, ids[r.namespace]) for r in requests], np.int64)
    plan = np.column_stack([plan, starts, decodes])
    text = np.concatenate([r.tokens for r in requests])
    chunks, chunk_ends = _chunks(requests, serving, salts)
    salt = np.array([salts[r.namespace] for r in requests], np.uint64)
    lengths = np.array(serving.lengths, np.int32)
    steps = int((plan[:, 4] + plan[:, 0] - plan[:, 1]).max())
    ends = np.zeros(2 * steps + 1, np.int64)
    _count_accesses(plan, lengths, serving.chain_tokens, serving.prefill_tokens, chunk_ends, ends[1:])
    np.cumsum(ends, out=ends)
    total = int(ends[-1])
    keys, facts, opens = np.empty(total, np.uint64), np.empty(total, np.uint64), np.zeros(total, np.uint8)
    _place_accesses(
        *(text, plan, salt, lengths, serving.chain_tokens, serving.prefill_tokens, chunks, chunk_ends),
        *(ends[:-1].copy(), keys, facts, opens),
    )
    return _trace(keys, facts, opens, np.diff(ends), serving, ids, name, source)


def _trace(
    keys: U64Array,
    facts: U64Array,
    opens: U8Array,
    counts: I64Array,
    serving: Serving,
    ids: dict[str, int],
    name: str,
    source: str,
) -> Trace:
    """Return the trace of accesses in order; counts (2 * steps,): how many a step's lookups are, then its inserts."""
    record, first = number_keys(keys)
    op = np.repeat(np.tile(np.array([LOOKUP, INSERT], np.uint8), len(counts) // 2), counts)
    mine = facts[first]
    return Trace.checked(
        name=name,
        source=source,
        record=record,
        op=op,
        step=np.repeat(np.arange(len(counts)) // 2, counts),
        group=np.where(op == LOOKUP, np.cumsum(opens, dtype=np.int64) - 1, NO_GROUP),
        step_time_ms=np.rint(np.arange(len(counts) // 2) * serving.step_ms).astype(np.int64),
        tokens=mine & np.uint64(0xFF),
        kind=(mine >> np.uint64(8)) & np.uint64(0xFF),
        namespace=mine >> np.uint64(16),
        nbytes=np.full(len(first), serving.nbytes, np.uint32),
        namespaces={number: space for space, number in ids.items()},
    )


def _schedule(requests: list[Spoken], serving: Serving) -> tuple[I64Array, I64Array]:
    """Return each request's first step and the step of its first question, (requests,) each: a closed loop.

    Whoever is free first takes the next request; a turn that follows stays with whom it follows.
    """
    starts, decodes = np.zeros(len(requests), np.int64), np.zeros(len(requests), np.int64)
    free = [(0, slot) for slot in range(serving.concurrency)]
    for i, request in enumerate(requests):
        if not request.follows or i == 0:
            start, slot = heapq.heappop(free)
        else:
            free.remove((start, slot))
        starts[i] = start
        decodes[i] = start - (-request.prompt // serving.prefill_tokens) - 1
        start = int(decodes[i]) + len(request.tokens) - request.prompt
        heapq.heappush(free, (start, slot))
    return starts, decodes


def _chunks(requests: list[Spoken], serving: Serving, salts: dict[str, int]) -> tuple[U64Array, I64Array]:
    """Return the keys of all requests' computed chunks, and where each request's end among them, (requests,).

    The last token said is never computed, so its chunk is not complete.
    """
    if not serving.chunks:
        return np.zeros(0, np.uint64), np.zeros(len(requests), np.int64)
    seeds = {space: chunk_seed(salt, 0) for space, salt in salts.items()}
    keys = [chunk_keys(r.tokens[:-1], seeds[r.namespace]).keys for r in requests]
    return np.concatenate(keys), np.cumsum([len(k) for k in keys])


# Columns of `plan`, int64 (requests, 5): tokens, prompt tokens, namespace id, first step, step of the first question.


@kernel
def _learn_step(plan: I64Array, r: int, at: int, chain: int) -> int:
    """Return the step that learns the n-grams which end before token `at`."""
    ready = at + chain  # tokens that must be known
    if ready <= plan[r, 1]:
        return int(plan[r, 3])
    return int(plan[r, 4] + min(ready - plan[r, 1], plan[r, 0] - plan[r, 1]) - 1)


@kernel
def _chunk_step(plan: I64Array, r: int, end: int, prefill: int) -> int:
    """Return the step that computes the chunk which ends before token `end`."""
    if end <= plan[r, 1]:
        return int(plan[r, 3] + (end - 1) // prefill)
    return int(plan[r, 4] + end - plan[r, 1])


@kernel
def _fitting(lengths: I32Array, at: int) -> int:
    """Return how many of the ascending lengths are at most `at`."""
    fitted = 0
    while fitted < len(lengths) and lengths[fitted] <= at:
        fitted += 1
    return fitted


@kernel
def _count_accesses(
    plan: I64Array, lengths: I32Array, chain: int, prefill: int, chunk_ends: I64Array, counts: I64Array
) -> None:
    """Count accesses into counts (2 * steps,): a step's lookups at 2 * step, its inserts behind."""
    for r in range(plan.shape[0]):
        prompt, total = plan[r, 1], plan[r, 0]
        for at in range(lengths[0], total):
            fitted = _fitting(lengths, at)
            counts[2 * _learn_step(plan, r, at, chain) + 1] += fitted
            if at >= prompt:
                counts[2 * (plan[r, 4] + at - prompt)] += fitted
        for chunk in range(chunk_ends[r] - (chunk_ends[r - 1] if r else 0)):
            end = (chunk + 1) * CHUNK_TOKENS
            counts[2 * _chunk_step(plan, r, end, prefill) + 1] += 1
            if end < prompt:
                counts[2 * plan[r, 3]] += 1


@kernel
def _place_accesses(
    text: I32Array,
    plan: I64Array,
    salts: U64Array,
    lengths: I32Array,
    chain: int,
    prefill: int,
    chunks: U64Array,
    chunk_ends: I64Array,
    places: I64Array,
    keys: U64Array,
    facts: U64Array,
    opens: U8Array,
) -> None:
    """Write every access to its step's place; places (2 * steps,): where the next lookup, the next insert goes.

    facts: namespace id << 16 | kind << 8 | tokens; opens: 1 where a question begins.
    """
    grams = np.empty(len(lengths), np.uint64)
    base = 0
    for r in range(plan.shape[0]):
        prompt, total = plan[r, 1], plan[r, 0]
        tokens = text[base : base + total]
        space = np.uint64(plan[r, 2]) << np.uint64(16)
        first = chunk_ends[r - 1] if r else 0
        chunk_facts = space | np.uint64(_CHUNK_FACTS)
        for chunk in range(chunk_ends[r] - first):
            end = (chunk + 1) * CHUNK_TOKENS
            ask, learn = 2 * plan[r, 3], 2 * _chunk_step(plan, r, end, prefill) + 1
            if end < prompt:
                keys[places[ask]], facts[places[ask]], opens[places[ask]] = chunks[first + chunk], chunk_facts, 1
                places[ask] += 1
            keys[places[learn]], facts[places[learn]] = chunks[first + chunk], chunk_facts
            places[learn] += 1
        for at in range(lengths[0], total):
            fitted = hash_tail(tokens, at, lengths, salts[r], grams)
            learn = 2 * _learn_step(plan, r, at, chain) + 1
            for i in range(fitted):
                keys[places[learn]], facts[places[learn]] = grams[i], space | np.uint64(lengths[i])
                places[learn] += 1
            if at >= prompt:
                ask = 2 * (plan[r, 4] + at - prompt)
                opens[places[ask]] = 1
                for i in range(fitted - 1, -1, -1):
                    keys[places[ask]], facts[places[ask]] = grams[i], space | np.uint64(lengths[i])
                    places[ask] += 1
        base += total
