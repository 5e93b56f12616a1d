"""The running requests' texts and numbers as arrays, one row each: what a step's kernels walk instead of objects.

Allocated once for the most requests that run; pages of long rows are mapped when they are written. A waiting request
has a `Rows` of one row. Knows no request, no policy and no model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self

import numpy as np

from flashnest.record import CHUNK_TOKENS, BoolArray, F64Array, I32Array, I64Array, U8Array, U64Array

NOBODY: Final = -1
"""The request id of a free row."""

_WIDE: Final = ("tokens", "times_s", "blocks")


@dataclass(frozen=True, slots=True)
class Rows:
    """Struct of arrays over R rows; one thread owns it.

    tokens int32 (R, capacity): prompt and what was said, the first `lengths` of them; times_s float64 (R, capacity):
    when each output token was committed; lengths, computed, learned, prompt_lengths, limits int32 (R,): tokens known,
    tokens whose KV is in the pool, positions learnt, tokens of the prompt, and of the prompt with the longest answer;
    blocks int32 (R, capacity / 32 + 1): KV block ids, the first block_counts int32 (R,) of them; phases uint8 (R,):
    `request.Phase` codes; salts uint64 (R,), namespaces, request_ids int64 (R,); wants_logits, ignores_eos, scans_text
    bool (R,): the arg max is not enough, EOS does not end it, stop strings may.
    """

    tokens: I32Array
    times_s: F64Array
    blocks: I32Array
    block_counts: I32Array
    lengths: I32Array
    computed: I32Array
    learned: I32Array
    prompt_lengths: I32Array
    limits: I32Array
    phases: U8Array
    salts: U64Array
    namespaces: I64Array
    request_ids: I64Array
    wants_logits: BoolArray
    ignores_eos: BoolArray
    scans_text: BoolArray

    @classmethod
    def allocate(cls, rows: int, capacity: int) -> Self:
        """Return zeroed rows for texts of up to `capacity` tokens."""
        return cls(
            tokens=np.zeros((rows, capacity), np.int32),
            times_s=np.zeros((rows, capacity), np.float64),
            blocks=np.zeros((rows, capacity // CHUNK_TOKENS + 1), np.int32),
            block_counts=np.zeros(rows, np.int32),
            lengths=np.zeros(rows, np.int32),
            computed=np.zeros(rows, np.int32),
            learned=np.zeros(rows, np.int32),
            prompt_lengths=np.zeros(rows, np.int32),
            limits=np.zeros(rows, np.int32),
            phases=np.zeros(rows, np.uint8),
            salts=np.zeros(rows, np.uint64),
            namespaces=np.zeros(rows, np.int64),
            request_ids=np.full(rows, NOBODY, np.int64),
            wants_logits=np.zeros(rows, np.bool_),
            ignores_eos=np.zeros(rows, np.bool_),
            scans_text=np.zeros(rows, np.bool_),
        )

    def copy_row(self, row: int, to: Rows, to_row: int) -> None:
        """Copy a row into another `Rows`, whose capacity must hold its text."""
        length, said = int(self.lengths[row]), int(self.lengths[row] - self.prompt_lengths[row])
        for name, count in zip(_WIDE, (length, said, int(self.block_counts[row])), strict=True):
            getattr(to, name)[to_row, :count] = getattr(self, name)[row, :count]
        for name in _NUMBERS:
            getattr(to, name)[to_row] = getattr(self, name)[row]

    def short_of(self, rows: I64Array, tokens: I32Array) -> I64Array:
        """Return those of rows int64 (n,) whose blocks hold fewer than tokens int32 (n,) tokens."""
        short: I64Array = rows[tokens > self.block_counts[rows] * CHUNK_TOKENS]
        return short

    def add_block(self, rows: I64Array, blocks: list[int]) -> None:
        """Give each of rows int64 (n,) one more block."""
        counts = self.block_counts[rows]
        self.blocks[rows, counts] = blocks
        self.block_counts[rows] = counts + 1

    def add_blocks(self, row: int, blocks: list[int]) -> None:
        """Give a row more blocks."""
        count = int(self.block_counts[row])
        self.blocks[row, count : count + len(blocks)] = blocks
        self.block_counts[row] = count + len(blocks)

    def take_blocks(self, row: int) -> list[int]:
        """Return a row's blocks, which it no longer has."""
        blocks: list[int] = self.blocks[row, : self.block_counts[row]].tolist()
        self.block_counts[row] = 0
        return blocks


_NUMBERS: Final = tuple(field.name for field in fields(Rows) if field.name not in _WIDE)
