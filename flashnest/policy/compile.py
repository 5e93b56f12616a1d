"""Text to Policy: parse, check names, check coverage, build the placement. The front door of this package."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from flashnest.policy.cells import MAX_CELLS, MAX_RULE_CELLS, cell_count, make_cells
from flashnest.policy.check import Checked, check_names
from flashnest.policy.conflicts import check_conflicts
from flashnest.policy.constant import check_constant
from flashnest.policy.coverage import check_coverage
from flashnest.policy.diagnostics import Diagnostic, Note, PolicyCheckError, Severity
from flashnest.policy.evaluate import holds
from flashnest.policy.facts import RecordFacts
from flashnest.policy.goals import Flush, Requirement
from flashnest.policy.moves import MovePlan, MoveRule
from flashnest.policy.overlaps import check_overlaps
from flashnest.policy.parse import parse
from flashnest.policy.placement import Placement, make_placement, targets_of
from flashnest.policy.redundant import check_redundant
from flashnest.policy.render import render
from flashnest.policy.resolved import Rule
from flashnest.policy.syntax import Document, Source
from flashnest.policy.values import Constant
from flashnest.record import Tier

if TYPE_CHECKING:
    from flashnest.policy.explain import Explanation

_MAX_RULES = 65_535
"""Rule codes are uint16."""

_MAX_TARGETS = 256
"""Chain codes are uint8."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy that passed every check. Immutable."""

    text: str
    document: Document
    rules: tuple[Rule, ...]
    params: Mapping[str, Constant]
    placement: Placement
    moves: MovePlan
    """Its `keep`, `promote`, `demote` and `evict` rules, numbered on from `rules`; a sweep applies `moves.acting`."""
    flush: Flush | None
    """How often what has gathered for NVMe is written; None where no `flush` acts."""
    requirements: tuple[Requirement, ...]
    """Its `require` statements in file order."""
    namespaces: tuple[int, ...]
    """Ids of the namespaces that it names, ascending: a table has to tell these apart."""
    namespace_names: Mapping[int, str]
    """Their names."""
    diagnostics: tuple[Diagnostic, ...]
    """Warnings; an error would have raised."""

    @property
    def source(self) -> str:
        """The name that messages give the policy."""
        return self.document.source.name

    @property
    def tiers(self) -> frozenset[Tier]:
        """The tiers that its rules name."""
        placed = {tier for rule in self.rules for tier in rule.chain}
        moved = {tier for rule in self.moves.rules for tier in (rule.source, rule.target) if tier is not None}
        return frozenset(placed | moved)

    def place(self, facts: RecordFacts, trial: int | None = None) -> Rule:
        """Return the rule that places one record. For batches use `placement`.

        `trial` is the number of a rule at level `warn` that is to decide as if it were enforced.
        """
        if trial is not None:
            acting = (rule for rule in self.rules if rule.acts or rule.number == trial)
            return next(rule for rule in acting if holds(rule.meaning, facts))
        codes = facts.codes()
        index = self.placement.rule_codes(
            np.array([codes["tokens"]], np.uint8),
            np.array([codes["kind"]], np.uint8),
            np.array([codes["namespace"]], np.uint32),
            np.array([codes["bytes"]], np.uint32),
        )
        return self.rules[int(index[0])]

    def move(self, facts: RecordFacts, tier: Tier, fill: float = 0.0, trial: int | None = None) -> MoveRule | None:
        """Return the rule that decides about one record stored in `tier` while that is `fill` full, 0..1.

        A `keep` comes before all others, then the first in file order; None: no rule, the record stays. A rule with
        watermarks acts above its `when`. Rates, cooldown and residency do not count. For batches use `moves`.
        `trial` is the number of a rule at level `warn` that is to decide as if it were enforced.
        """
        return self.moves.first(facts, tier, fill, trial)

    def explain(self, facts: RecordFacts, tier: Tier | None = None, fill: float = 0.0) -> Explanation:
        """Explain where one new record is placed, or what moves do to it in `tier` while that is `fill` full, 0..1."""
        explanation: Explanation = import_module("flashnest.policy.explain").explain(self, facts, tier, fill)
        return explanation

    def simulate(self, trace: object, **settings: object) -> Any:
        """Play a trace through the policy: `flashnest.simulate.simulate(self, trace, **settings)`, a `Simulation`.

        Loads the package by name, on use: policy is a lower row than simulate and knows nothing of it.
        """
        return import_module("flashnest.simulate").simulate(self, trace, **settings)


def compile_policy(
    text: str,
    *,
    source: str = "<policy>",
    params: Mapping[str, str | int] | None = None,
    tiers: Collection[str] | None = None,
    first_line: int = 1,
    column_offset: int = 0,
) -> Policy:
    """Check a policy text and compile it.

    `source`, `first_line` and `column_offset` say where the text stands, for messages; `params` override the text's
    `param`s; `tiers` names the tiers that are open in lower case (None: all). Raises PolicyCheckError with every
    finding; its `str()` is ready to print.
    """
    origin = Source(text, source, first_line, column_offset)
    document, broken = parse(origin)
    checked = check_names(document, params or {}, tiers)
    found = [*broken, *checked.diagnostics]
    _raise_on_errors(found)
    _raise_on_errors([*found, *_too_large(checked)])
    cells = make_cells(checked.rules)
    found += check_coverage(checked, cells, tiers)
    found += check_conflicts(checked)
    _raise_on_errors(found)
    constant, conditions = check_constant(checked, cells)
    found += (*check_overlaps(checked, cells, conditions), *check_redundant(checked, cells), *constant)
    return Policy(
        text=text,
        document=document,
        rules=checked.rules,
        params=checked.params,
        placement=make_placement(cells),
        moves=checked.moves,
        flush=checked.flush,
        requirements=checked.requirements,
        namespaces=tuple(sorted(checked.namespaces)),
        namespace_names=dict(checked.namespaces),
        diagnostics=tuple(sorted(found, key=lambda one: (one.line, one.column))),
    )


def _raise_on_errors(found: list[Diagnostic]) -> None:
    if any(one.severity is Severity.ERROR for one in found):
        ordered = sorted(found, key=lambda one: (one.severity is Severity.WARNING, one.line, one.column))
        raise PolicyCheckError(ordered, render(ordered))


def _too_large(checked: Checked) -> list[Diagnostic]:
    targets = len(targets_of(checked.rules))
    if targets > _MAX_TARGETS:
        message = f"{targets} different chains and admissions: too many"
        return [Diagnostic("T003", message, checked.source, notes=(Note("help", f"at most {_MAX_TARGETS}"),))]
    count, rules = cell_count(checked.rules), len(checked.rules)
    if count <= MAX_CELLS and rules <= _MAX_RULES and count * rules <= MAX_RULE_CELLS:
        return []
    message = f"{rules} rules tell {count} sorts of records apart: too many to check"
    note = Note("help", f"at most {_MAX_RULES} rules and {MAX_CELLS} sorts of records; name fewer namespaces or sizes")
    return [Diagnostic("T003", message, checked.source, notes=(note,))]
