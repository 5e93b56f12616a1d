"""`flush` and `require`, labels and levels: syntax in, goals and findings out (T40x, T410). Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from flashnest.policy import syntax
from flashnest.policy.diagnostics import Diagnostic, Label, Note, unknown
from flashnest.policy.facts import MAX_TIME_S, time_words
from flashnest.policy.format import format_statement
from flashnest.policy.goals import METRICS, Flush, Level, Metric, Requirement
from flashnest.policy.syntax import Document, Labelled, Source, Span, Value
from flashnest.policy.values import Constants, Rejected, rejected
from flashnest.record import Tier
from flashnest.units import Dimension

_NS_PER_S: Final = 10**9
_BOUNDS: Final = {True: ("<=", "<"), False: (">=", ">")}
"""The operators of a bound, by whether lower is better."""


def level_of(statement: Labelled) -> Level:
    """Return what a rule may do: `enforce` unless it says `warn`."""
    return Level.ENFORCE if statement.level is None else Level(statement.level.text)


def name_of(statement: Labelled) -> str | None:
    """Return a rule's label."""
    return None if statement.label is None else statement.label.value


class GoalChecker:
    """Resolves `flush` and `require` and looks at the labels of a document. Findings go to `report`."""

    def __init__(self, source: Source, constants: Constants, report: Callable[[Diagnostic], None]) -> None:
        self._source = source
        self._constants = constants
        self._report = report

    def labels(self, statements: Sequence[Labelled]) -> None:
        """Report labels that are empty or taken (T404, T407)."""
        first: dict[str, Labelled] = {}
        for one in statements:
            label = one.label
            assert label is not None, "only labelled statements are asked for"
            if not label.value.strip():
                self._wrong("T404", label.span, "this label is empty", 'write a name, like `"long ones"`')
            elif first.setdefault(label.value, one) is not one:
                line = first[label.value].span.line
                message = f'the label "{label.value}" is taken by the rule in line {line}'
                self._wrong("T407", label.span, message, "give every rule a label of its own")

    def flush(self, statements: Sequence[syntax.Flush]) -> Flush | None:
        """Return the policy's `flush`, None where there is none or it is a trial."""
        for extra in statements[1:]:
            message = f"`flush` stands twice: line {statements[0].span.line} says how often already"
            self._wrong("T410", extra.span, message, "keep one of the two")
        try:
            flush = self._flush(statements[0]) if statements else None
        except Rejected as stop:
            self._report(stop.diagnostic)
            return None
        return flush if flush is not None and level_of(statements[0]) is Level.ENFORCE else None

    def requirements(self, statements: Sequence[syntax.Require]) -> tuple[Requirement, ...]:
        """Return the requirements that could be read, in file order."""
        found: list[Requirement] = []
        for statement in statements:
            try:
                one = self._requirement(statement)
            except Rejected as stop:
                self._report(stop.diagnostic)
                continue
            twice = next((old for old in found if (old.metric, old.level) == (one.metric, one.level)), None)
            if twice is None:
                found.append(one)
            else:
                message = f"`{one.metric}` is required twice: line {twice.line} bounds it already"
                self._wrong("T410", statement.span, message, "keep one of the two, or make one of them `warn`")
        return tuple(found)

    def asked(self, document: Document) -> tuple[tuple[Tier, Span], ...]:
        """Return the tiers that goals are about, and where the goals stand."""
        flushed = [(Tier.NVME, one.span) for one in document.flushes]
        about = [
            (METRICS[one.metric.text].tier, one.span) for one in document.requirements if one.metric.text in METRICS
        ]
        return (*flushed, *((tier, span) for tier, span in about if tier is not None))

    def _flush(self, statement: syntax.Flush) -> Flush:
        every = self._constants.amount(statement.every, "the interval of `flush`", Dimension.DURATION).value / _NS_PER_S
        if not 0 < every <= MAX_TIME_S:
            message = f"the interval of `flush` is more than 0s and at most {time_words(MAX_TIME_S)}"
            raise rejected(self._source, "T404", statement.every.span, message, "write it like `flush every 5min`")
        most = None
        if statement.most is not None:
            most = float(self._constants.amount(statement.most, "the limit of `flush`", Dimension.BYTE_RATE).value)
            if most <= 0:
                raise rejected(self._source, "T404", statement.most.span, "at this rate nothing is ever written")
        return Flush(every, most, statement.span.line, format_statement(statement), name_of(statement))

    def _requirement(self, statement: syntax.Require) -> Requirement:
        metric = self._metric(statement.metric)
        bound = self._bound(metric, statement.value)
        allowed = _BOUNDS[metric.lower]
        if statement.operator not in allowed:
            better = "lower" if metric.lower else "higher"
            needs = "an upper" if metric.lower else "a lower"
            message = f"`{metric.name}` is the better the {better} it is: it needs {needs} bound"
            written = self._source.slice(statement.value.span)
            help_text = f"write `require {metric.name} {allowed[0]} {written}`"
            raise rejected(self._source, "T404", statement.span, message, help_text)
        return Requirement(
            metric.name,
            statement.operator,
            bound,
            level_of(statement),
            statement.span.line,
            format_statement(statement),
            name_of(statement),
        )

    def _metric(self, metric: syntax.Metric) -> Metric:
        found = METRICS.get(metric.text)
        if found is None:
            message, advice = unknown(metric.text, "metric", tuple(METRICS))
            raise rejected(self._source, "T402", metric.span, message, advice)
        return found

    def _bound(self, metric: Metric, value: Value) -> float:
        amount = self._constants.amount(value, f"`{metric.name}`", metric.dimension).value
        written = self._source.slice(value.span)
        if metric.dimension is Dimension.PERCENT and amount > 100:
            raise rejected(
                self._source, "T404", value.span, f"`{metric.name}` is a share: `{written}` is never reached"
            )
        if amount <= 0:
            message = f"`{metric.name}` is always more than nothing: `{written}` bounds nothing"
            raise rejected(self._source, "T404", value.span, message, f"write it like `{metric.example}`")
        return amount / metric.per_unit

    def _wrong(self, code: str, span: Span, message: str, help_text: str) -> None:
        self._report(Diagnostic(code, message, self._source, Label(span), notes=(Note("help", help_text),)))
