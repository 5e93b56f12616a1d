"""A checked policy as lookup tables: arrays of record facts in, rule numbers or chain codes out.

Fulfils `flashnest.storage.store.PlacementMap` by shape alone; policy never imports storage. Immutable, so any thread
may ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flashnest.policy.cells import Axis, Cells
from flashnest.policy.resolved import Rule
from flashnest.policy.wide_facts import IndexArray, WideFact, wide_fact
from flashnest.record import Admission, I64Array, Tier, U8Array, U16Array, U32Array


@dataclass(frozen=True, slots=True)
class Placement:
    """Answers for batches of records; every array argument has shape (n,).

    tokens uint8 (0 counts as 1), kind uint8 (`Kind` codes), namespace uint32 (`record.namespace_id`), nbytes uint32.
    """

    chains: tuple[tuple[Tier, ...], ...]
    """The distinct chains of the policy, in the order of first use; `()` rejects. Apart where admission differs."""
    admissions: tuple[Admission | None, ...]
    """What each of `chains` asks before it takes a new record; None: nothing."""
    _tokens: IndexArray
    _kind: IndexArray | None
    _namespace: WideFact | None
    _nbytes: WideFact | None
    _rule_of_cell: U16Array
    _chain_of_cell: U8Array

    def chain_codes(self, tokens: U8Array, kind: U8Array, namespace: U32Array, nbytes: U32Array) -> U8Array:
        """Return the index into `chains` for each record, uint8 (n,)."""
        return self._chain_of_cell.take(self._cell(tokens, kind, namespace, nbytes))

    def rule_codes(self, tokens: U8Array, kind: U8Array, namespace: U32Array, nbytes: U32Array) -> U16Array:
        """Return the index of the rule that places each record, counted from 0, uint16 (n,)."""
        return self._rule_of_cell.take(self._cell(tokens, kind, namespace, nbytes))

    def _cell(self, tokens: U8Array, kind: U8Array, namespace: U32Array, nbytes: U32Array) -> IndexArray:
        cell = self._tokens.take(tokens)  # `take` needs 1.0 ns a record where brackets need 2
        if self._kind is not None:
            cell += self._kind.take(kind)
        if self._namespace is not None:
            self._namespace.add_to(cell, namespace)
        if self._nbytes is not None:
            self._nbytes.add_to(cell, nbytes)
        return cell


def make_placement(cells: Cells) -> Placement:
    """Turn cells into tables. The caller guarantees that every cell has a rule."""
    targets = targets_of(cells.rules)
    code_of_rule = np.array([targets.index((rule.chain, rule.admission)) for rule in cells.rules], np.uint8)
    flat = cells.first.ravel()
    strides = [int(np.prod(cells.shape[i + 1 :], dtype=np.int64)) for i in range(len(cells.shape))]
    tokens, kind, namespace, nbytes = (
        (axis, (axis.group * stride).astype(np.intp)) for axis, stride in zip(cells.axes, strides, strict=True)
    )
    return Placement(
        chains=tuple(chain for chain, _ in targets),
        admissions=tuple(admission for _, admission in targets),
        _tokens=_byte_table(*tokens),
        _kind=None if kind[0].groups == 1 else _byte_table(*kind),
        _namespace=wide_fact(*namespace),
        _nbytes=wide_fact(*nbytes),
        _rule_of_cell=flat.astype(np.uint16),
        _chain_of_cell=code_of_rule[flat],
    )


def targets_of(rules: Sequence[Rule]) -> tuple[tuple[tuple[Tier, ...], Admission | None], ...]:
    """Return the distinct chains with their admission, in the order of first use."""
    return tuple(dict.fromkeys((rule.chain, rule.admission) for rule in rules))


def _byte_table(axis: Axis, offset: IndexArray) -> IndexArray:
    """Spread the intervals of a one-byte fact over its 256 codes: one load instead of a search."""
    codes: I64Array = np.arange(256)
    interval = np.searchsorted(axis.starts, codes, side="right") - 1
    return offset[np.maximum(interval, 0)]
