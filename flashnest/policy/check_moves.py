"""Clauses of `keep`, `promote`, `demote` and `evict`: watermarks, order, rates, times (T30x, T40x, T410)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from flashnest.policy.atoms import Atoms
from flashnest.policy.check_goals import level_of, name_of
from flashnest.policy.conditions import Conditions
from flashnest.policy.diagnostics import Diagnostic, Label, Note, Severity, unknown
from flashnest.policy.facts import ALGORITHMS, FILL, MAX_TIME_S, time_words
from flashnest.policy.format import format_statement
from flashnest.policy.moves import MovePlan, MoveRule
from flashnest.policy.resolved import ranges
from flashnest.policy.syntax import Amount, By, Clause, Fill, Keep, Move, Name, Source, Using, Value
from flashnest.policy.tier_names import TierNames
from flashnest.policy.values import Constants, Rejected, rejected
from flashnest.record import Tier
from flashnest.units import Dimension

MAX_MOVES = 64
"""Moves are compared with each other, two and three at a time."""

_SMALLEST_GAP_PERCENT = 2
_OPERATORS = {"when": (">", ">="), "until": ("<", "<=")}
_NS_PER_S = 10**9


class MoveChecker:
    """Resolves moves. Findings go to `report`; a move with an error means nothing."""

    def __init__(
        self,
        source: Source,
        constants: Constants,
        conditions: Conditions,
        tiers: TierNames,
        report: Callable[[Diagnostic], None],
    ) -> None:
        self._source = source
        self._constants = constants
        self._conditions = conditions
        self._atoms = Atoms(source, constants, conditions.classes.keys())
        self._tiers = tiers
        self._report = report

    def plan(self, statements: Sequence[Keep | Move], first_number: int) -> MovePlan:
        """Return the moves that could be read, numbered in file order."""
        if len(statements) > MAX_MOVES:
            message = f"{len(statements)} moves: too many to compare with each other"
            label, note = Label(statements[MAX_MOVES].span), Note("help", f"at most {MAX_MOVES}")
            self._report(Diagnostic("T003", message, self._source, label, notes=(note,)))
            return MovePlan()
        rules: list[MoveRule] = []
        for number, statement in enumerate(statements, first_number):
            try:
                rules.append(self._rule(number, statement))
            except Rejected as stop:
                self._report(stop.diagnostic)
        atoms = (atom for rule in rules for atom in ranges(rule.meaning))
        windows = tuple(sorted({atom.fact.window_s for atom in atoms if atom.fact.window_s}))
        return MovePlan(tuple(replace(rule, windows_s=windows) for rule in rules), windows)

    def _rule(self, number: int, statement: Keep | Move) -> MoveRule:
        meaning = self._conditions.of_move(statement.condition)
        text = format_statement(statement)
        if isinstance(statement, Keep):
            rule = MoveRule(number, text, statement, meaning, self._tiers.tier(statement.tier))
            return replace(rule, name=name_of(statement), level=level_of(statement))
        source = self._tiers.tier(statement.source)
        rule = MoveRule(number, text, statement, meaning, source, self._target(statement, source))
        rule = replace(rule, name=name_of(statement), level=level_of(statement))
        clauses = self._once_each(statement)
        rule = self._with_watermarks(rule, clauses)
        for clause in clauses.values():
            rule = self._with_clause(rule, clause)
        self._check_together(statement, clauses)
        self._warn(rule, statement, clauses)
        return rule

    def _target(self, move: Move, source: Tier) -> Tier | None:
        if move.target is None:
            return None
        target, name = self._tiers.tier(move.target), move.target.text.lower()
        if target is source:
            raise rejected(self._source, "T406", move.target.span, f"from `{name}` to `{name}` is no move")
        if (move.action == "promote") != (target < source):
            other = "demote" if move.action == "promote" else "promote"
            way = "down" if target > source else "up"
            message = f"`{move.action}` cannot go {way}, from `{source.name.lower()}` to `{name}`"
            help_text = f"`{other}` does; from fast to slow the tiers are vram, dram, nvme"
            raise rejected(self._source, "T406", move.target.span, message, help_text)
        return target

    def _once_each(self, move: Move) -> dict[str, Clause]:
        """Return the clauses by their word; `at most` may stand twice, once in records and once in bytes."""
        clauses: dict[str, Clause] = {}
        for clause in move.clauses:
            key = clause.word
            if isinstance(clause, Amount) and clause.word == "at most":
                key = f"at most {self._rate(clause.value)[0]}"
            if key in clauses:
                raise rejected(self._source, "T410", clause.span, f"`{clause.word}` stands twice in this move")
            clauses[key] = clause
        return clauses

    def _with_clause(self, rule: MoveRule, clause: Clause) -> MoveRule:
        match clause:
            case By(fact, descending):
                return replace(rule, order=(self._atoms.orderable(fact), descending))
            case Using(algorithm):
                return replace(rule, using=self._algorithm(rule, algorithm))
            case Amount("cooldown", value):
                return replace(rule, cooldown_s=self._time(value, "a cooldown"))
            case Amount("min residency", value):
                return replace(rule, min_residency_s=self._time(value, "a residency"))
            case Amount(_, value):
                dimension, rate = self._rate(value)
                if dimension is Dimension.RECORD_RATE:
                    return replace(rule, most_records_per_s=rate)
                return replace(rule, most_bytes_per_s=rate)
        return rule

    def _with_watermarks(self, rule: MoveRule, clauses: dict[str, Clause]) -> MoveRule:
        when, until = clauses.get("when"), clauses.get("until")
        if isinstance(when, Fill) and isinstance(until, Fill):
            high, low = self._percent(when), self._percent(until)
            if low >= high:
                message = f"it would stop at {low:g}% before it starts at {high:g}%"
                help_text = f"write `until fill < {max(high - 10, high / 2):g}%`"
                raise rejected(self._source, "T302", until.span, message, help_text)
            if high - low < _SMALLEST_GAP_PERCENT:
                message = f"{high - low:g} percentage points from start to stop: it will start and stop all the time"
                self._warning("T303", message, Label(until.span), "leave 2 points or more, better 10")
            return replace(rule, when_fill=high / 100, until_fill=low / 100)
        alone = when or until
        if isinstance(alone, Fill):
            percent = self._percent(alone)
            other = f"until fill < {percent / 2 if percent <= 10 else percent - 10:g}%"
            if alone is until:
                other = f"when fill > {min(percent + 10, 50 + percent / 2):g}%"
            message = f"`{alone.word}` alone: a move by fill needs a start and a stop"
            raise rejected(self._source, "T302", alone.span, message, f"add `{other}`")
        return rule

    def _percent(self, clause: Fill) -> float:
        if clause.fact.text != FILL:
            message = f"`{clause.word}` asks how full the tier is: `{clause.fact.text}` belongs in the condition"
            raise rejected(self._source, "T402", clause.fact.span, message, f"write `{clause.word} fill`")
        allowed = _OPERATORS[clause.word]
        if clause.operator not in allowed:
            way = "rises above" if clause.word == "when" else "falls below"
            message = f"a move {'starts' if clause.word == 'when' else 'stops'} when the fill {way} a share"
            help_text = f"write `{clause.word} fill {allowed[0]} {self._source.slice(clause.value.span)}`"
            raise rejected(self._source, "T302", clause.span, message, help_text)
        percent = self._constants.amount(clause.value, "`fill`", Dimension.PERCENT).value
        if percent >= 100:
            message = f"a tier is never more than full: {percent:g}% is never passed"
            raise rejected(self._source, "T302", clause.value.span, message, "write at most 99%")
        if percent <= 0:
            raise rejected(self._source, "T302", clause.value.span, "a tier is never less than empty")
        return float(percent)

    def _algorithm(self, rule: MoveRule, name: Name) -> str:
        word = name.text.lower()
        if word not in ALGORITHMS:
            raise rejected(self._source, "T402", name.span, *unknown(name.text, "eviction algorithm", ALGORITHMS))
        if rule.action == "promote":
            message = f"`using {word}` says which records are worth least: nothing to promote by"
            raise rejected(self._source, "T410", name.span, message, "order a promotion with `by`, like `by hits desc`")
        return word

    def _rate(self, value: Value) -> tuple[Dimension, float]:
        rate = self._constants.amount(value, "what follows `at most`", Dimension.RECORD_RATE, Dimension.BYTE_RATE)
        if rate.value <= 0:
            raise rejected(self._source, "T404", value.span, "at this rate nothing ever moves")
        return rate.dimension, float(rate.value)

    def _time(self, value: Value, what: str) -> float:
        seconds = self._constants.amount(value, what, Dimension.DURATION).value / _NS_PER_S
        if seconds > MAX_TIME_S:
            raise rejected(self._source, "T404", value.span, f"{what} is at most {time_words(MAX_TIME_S)}")
        return seconds

    def _check_together(self, move: Move, clauses: dict[str, Clause]) -> None:
        if "by" in clauses and "using" in clauses:
            later = max(clauses["by"], clauses["using"], key=lambda clause: clause.span.start)
            message = "`by` and `using` both say which records go first"
            raise rejected(self._source, "T410", later.span, message, "keep one of the two")

    def _warn(self, rule: MoveRule, move: Move, clauses: dict[str, Clause]) -> None:
        if rule.action == "promote" and not any(word.startswith("at most") for word in clauses):
            message = "a promotion without a limit can take the whole time between steps"
            self._warning("T305", message, Label(move.span), "add `at most 2000 rec/s`")
        if move.condition is None and rule.when_fill is None:
            message = f"this {rule.action} takes every record of `{rule.source.name.lower()}`, always"
            help_text = "add `when fill > 90% until fill < 80%`, or a condition"
            self._warning("T306", message, Label(move.span), help_text)

    def _warning(self, code: str, message: str, label: Label, help_text: str) -> None:
        notes = (Note("help", help_text),)
        self._report(Diagnostic(code, message, self._source, label, notes=notes, severity=Severity.WARNING))
