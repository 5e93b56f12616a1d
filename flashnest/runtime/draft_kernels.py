"""Machine code of the drafter: from rows of text to table questions, from answers to drafts, and from verdicts to
feedback. Owns no memory, checks no bounds: the drafter guarantees that the arrays fit together.

Each replaces a Python loop over rows: at 128 rows that was milliseconds, this is microseconds.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from flashnest import record
from flashnest.jit import inline_kernel, kernel
from flashnest.record import BoolArray, I32Array, I64Array, Kind, Tier, U8Array, U32Array, U64Array
from flashnest.runtime.drafts import DraftParts, Drafts, Source

TAIL: Final = record.MAX_NGRAM_TOKENS
_META, _REFS, _CHAIN = record.META, record.REFS, record.CHAIN
_DRAFTED, _ACCEPTED = record.DRAFTED, record.ACCEPTED
_NGRAM: Final = int(Kind.NGRAM)
_MOST_REFS = np.uint32(4)
"""Times that a record was learnt again with the same first token, which count as much as tokens that were accepted: a
draft of 16 matched tokens began right in 51 % of the cases where its record was learnt once, in 86 % where twice."""
_BYTE, _SIXTEEN = np.uint32(0xFF), np.uint32(16)
_NO_TIER: Final = len(Tier)
_NVME_TIER: Final = int(Tier.NVME)
_NVME: Final = int(Source.NVME)
_NONE: Final = int(Source.NONE)


@kernel
def gather_tails(
    tokens: I32Array,
    rows: I64Array,
    lengths: I32Array,
    salts: U64Array,
    tails: I32Array,
    ends: I32Array,
    row_salts: U64Array,
) -> None:
    """Copy each row's last tokens to tails (n, width), their number to ends (n,), its salt to row_salts (n,)."""
    for i in range(rows.shape[0]):
        r = rows[i]
        end = lengths[r]
        size = min(end, TAIL)
        for j in range(size):
            tails[i, j] = tokens[r, end - size + j]
        ends[i] = size
        row_salts[i] = salts[r]


@inline_kernel
def _chain_length(row: U32Array) -> int:
    """Return the tokens of an n-gram's chain; chunk records are no drafts."""
    meta = row[_META]
    return int((meta >> _SIXTEEN) & _BYTE) if meta & _BYTE == _NGRAM else 0


@inline_kernel
def _set_draft(
    drafts: Drafts, parts: DraftParts, i: int, row: U32Array, skip: int, key: np.uint64, source: int, matched: int
) -> None:
    """Make a record's chain, less its first `skip` tokens, row i's draft, if there is any of it."""
    count = min(_chain_length(row) - skip, drafts.tokens.shape[1])
    if count <= 0:
        return
    for j in range(count):
        drafts.tokens[i, j] = np.int32(row[_CHAIN + skip + j])
    drafts.lengths[i], drafts.sources[i], drafts.matched[i] = count, source, matched
    learnt = min(row[_REFS], _MOST_REFS)
    drafts.keys[i], drafts.tried[i], drafts.agreed[i] = key, row[_DRAFTED] + learnt, row[_ACCEPTED] + learnt
    parts.counts[i], parts.keys[i, 0], parts.ends[i, 0] = 1, key, count


@kernel
def take_answers(
    index: I64Array,
    tiers: U8Array,
    rows: U32Array,
    keys: U64Array,
    ngram_lengths: I32Array,
    source_of_tier: U8Array,
    drafts: Drafts,
    parts: DraftParts,
    at_once: U8Array,
    matched: I32Array,
) -> None:
    """Draft from the table's answers: index (n,) into the lengths, -1 for none; tiers, rows, keys as they were found.

    Forgets the n rows' last drafts. at_once uint8 (n,) receives the tier that answered, matched int32 (n,) the tokens.
    """
    for i in range(keys.shape[0]):
        drafts.lengths[i], drafts.sources[i], drafts.matched[i], drafts.keys[i] = 0, _NONE, 0, np.uint64(0)
        drafts.tried[i], drafts.agreed[i], parts.counts[i] = np.uint32(0), np.uint32(0), 0
        at_once[i], matched[i] = _NO_TIER, 0
        at = index[i]
        if at >= 0:
            at_once[i], matched[i] = tiers[i], ngram_lengths[at]
            _set_draft(drafts, parts, i, rows[i], 0, keys[i, at], source_of_tier[tiers[i]], ngram_lengths[at])


@kernel
def offer_late(
    tokens: I32Array,
    rows: I64Array,
    lengths: I32Array,
    late_rows: U32Array,
    late_keys: U64Array,
    late_matched: I32Array,
    late_places: I32Array,
    drafts: Drafts,
    parts: DraftParts,
    at_once: U8Array,
    matched: I32Array,
) -> None:
    """Draft from the answers that came late, advanced by what was committed since, where they match more tokens.

    late_matched int32 (R,): 0 for none; late_places int32 (R,): the row's tokens when it asked. Each is offered once.
    """
    for i in range(rows.shape[0]):
        r = rows[i]
        if late_matched[r] == 0:
            continue
        skip = lengths[r] - late_places[r]
        longer = late_matched[r] + skip
        late_matched[r] = 0
        if longer <= drafts.matched[i] or not agrees(late_rows[r], tokens[r], late_places[r], skip):
            continue
        _set_draft(drafts, parts, i, late_rows[r], skip, late_keys[r], _NVME, longer)
        if longer > matched[i]:
            at_once[i] = _NVME_TIER


@inline_kernel
def agrees(row: U32Array, text: I32Array, place: int, skip: int) -> bool:
    """Whether a record's chain is longer than `skip` and starts with the `skip` tokens of the text from `place`."""
    if skip < 0 or skip >= _chain_length(row):
        return False
    same = True
    for j in range(skip):
        same &= np.int32(row[_CHAIN + j]) == text[place + j]
    return same


@kernel
def open_ends(
    tails: I32Array,
    ends: I32Array,
    row_salts: U64Array,
    drafts: Drafts,
    parts: DraftParts,
    to_tails: I32Array,
    to_ends: I32Array,
    to_salts: U64Array,
    at: I64Array,
    fresh: int,
) -> int:
    """Gather the tails of drafts that have room for more, their tokens included; returns how many.

    Only drafts whose last part is their `fresh`-th are taken: one that found nothing before finds nothing now. The last
    part stays free for what comes after the records.
    """
    count, width = 0, drafts.tokens.shape[1]
    for i in range(ends.shape[0]):
        drafted = drafts.lengths[i]
        if parts.counts[i] != fresh or drafted == 0 or drafted >= width:
            continue
        size = min(ends[i] + drafted, TAIL)
        from_text = max(size - drafted, 0)
        for j in range(from_text):
            to_tails[count, j] = tails[i, ends[i] - from_text + j]
        for j in range(from_text, size):
            to_tails[count, j] = drafts.tokens[i, drafted - size + j]
        to_ends[count], to_salts[count], at[count] = size, row_salts[i], i
        count += 1
    return count


@kernel
def append_answers(
    index: I64Array, rows: U32Array, keys: U64Array, at: I64Array, drafts: Drafts, parts: DraftParts
) -> int:
    """Add what was found for the gathered tails, keys (m, k), to the drafts at[:m]; returns how many have grown."""
    grown, width = 0, drafts.tokens.shape[1]
    for j in range(keys.shape[0]):
        if index[j] < 0:
            continue
        i, row = at[j], rows[j]
        start = drafts.lengths[i]
        count = min(_chain_length(row), width - start)
        if count == 0:
            continue
        for t in range(count):
            drafts.tokens[i, start + t] = np.int32(row[_CHAIN + t])
        part = parts.counts[i]
        parts.keys[i, part], parts.ends[i, part], parts.counts[i] = keys[j, index[j]], start + count, part + 1
        drafts.lengths[i] = start + count
        grown += 1
    return grown


@kernel
def share_feedback(
    keys: U64Array,
    tried: U32Array,
    agreed: U32Array,
    parts: DraftParts,
    to_keys: U64Array,
    to_tried: U32Array,
    to_agreed: U32Array,
) -> int:
    """Split each draft's verdict, (n,), over the records that it was put together from; returns how many entries.

    `keys` are the drafts' first records. What is not from a record, or was not tried, is left out.
    """
    count = 0
    for i in range(keys.shape[0]):
        start, judged, right = 0, int(tried[i]), int(agreed[i])
        for part in range(max(parts.counts[i], 1)):
            key = keys[i] if part == 0 else parts.keys[i, part]
            end = int(parts.ends[i, part]) if part + 1 < parts.counts[i] else max(judged, start)
            mine = min(max(judged - start, 0), end - start)
            if key != np.uint64(0) and mine > 0:
                to_keys[count], to_tried[count] = key, np.uint32(mine)
                to_agreed[count] = np.uint32(min(max(right - start, 0), mine))
                count += 1
            start = end
    return count


@kernel
def late_answers(
    hit: BoolArray,
    is_chunk: BoolArray,
    request_ids: I64Array,
    places: I64Array,
    matched: I32Array,
    keys: U64Array,
    rows: U32Array,
    row_ids: I64Array,
    tokens: I32Array,
    lengths: I32Array,
    late_rows: U32Array,
    late_keys: U64Array,
    late_matched: I32Array,
    late_places: I32Array,
) -> None:
    """Keep for each row its best answer: the longest match that the tokens committed since agree with.

    hit .. rows: the answers, (m,); row_ids int64 (R,): which request a row has, negative for none.
    """
    for i in range(hit.shape[0]):
        if not hit[i] or is_chunk[i]:
            continue
        for r in range(row_ids.shape[0]):
            if row_ids[r] != request_ids[i]:
                continue
            better = late_matched[r] == 0 or matched[i] - places[i] > late_matched[r] - late_places[r]
            if better and agrees(rows[i], tokens[r], places[i], lengths[r] - places[i]):
                late_rows[r], late_keys[r] = rows[i], keys[i]
                late_matched[r], late_places[r] = matched[i], places[i]
            break
