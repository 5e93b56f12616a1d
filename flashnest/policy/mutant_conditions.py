"""Conditions changed in one place: bounds moved by one unit of the fact, `and` and `or` swapped, `not` taken out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flashnest.policy.facts import FactType
from flashnest.policy.reasons import atom_words, condition_words
from flashnest.policy.resolved import AllOf, AnyOf, InRange, Meaning, Negated


def changed_conditions(meaning: Meaning, spaces: Mapping[int, str]) -> Iterator[tuple[str, Meaning]]:
    """Yield (words, condition) for each condition that differs from `meaning` in one place, each once."""
    seen = {meaning}
    for words, changed in _changed(meaning, spaces):
        if changed not in seen:
            seen.add(changed)
            yield words, changed


def _changed(meaning: Meaning, spaces: Mapping[int, str]) -> Iterator[tuple[str, Meaning]]:
    match meaning:
        case InRange():
            for atom in _changed_atom(meaning):
                yield _becomes(meaning, atom, spaces), atom
        case Negated(part):
            yield _becomes(meaning, part, spaces), part
            for words, one in _changed(part, spaces):
                yield words, Negated(one)
        case AllOf(parts) | AnyOf(parts):
            is_all = isinstance(meaning, AllOf)
            if len(parts) > 1:
                swapped = AnyOf(parts) if is_all else AllOf(parts)
                yield _becomes(meaning, swapped, spaces), swapped
            for i, part in enumerate(parts):
                for words, one in _changed(part, spaces):
                    others = (*parts[:i], one, *parts[i + 1 :])
                    yield words, AllOf(others) if is_all else AnyOf(others)


def _changed_atom(atom: InRange) -> Iterator[Meaning]:
    """Yield an atom with each bound one unit lower and one higher; a kind or namespace has only its opposite."""
    fact, low, high = atom.fact, atom.low, atom.high
    if fact.type is not FactType.NUMBER:
        yield Negated(atom)
        return
    for step in (-1, 1):
        if low > fact.low:
            yield InRange(fact, low + step, high)
        if high < fact.high:
            yield InRange(fact, low, high + step)


def _becomes(before: Meaning, after: Meaning, spaces: Mapping[int, str]) -> str:
    old = atom_words(before, spaces) if isinstance(before, InRange) else condition_words(before, spaces)
    return f"`{old}` becomes `{condition_words(after, spaces)}`"
