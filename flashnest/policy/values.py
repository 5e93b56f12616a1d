"""Constants of a policy: literals, params and their overrides, to codes of a fact and amounts of a clause (T40x)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from flashnest.policy.diagnostics import Diagnostic, Label, Note, unknown
from flashnest.policy.facts import KINDS, MAX_TIME_S, RESERVED, Fact, FactType, time_words
from flashnest.policy.syntax import Name, Number, Param, Source, Span, Text, Value
from flashnest.record import namespace_id
from flashnest.units import Dimension, Quantity, UnitError, example, noun, parse_quantity

Constant: TypeAlias = Quantity | str
"""What a param stands for: a quantity, or the text of a string."""


_NS_PER_S: Final = 10**9
_LARGEST: Final = 10**30
"""180 days are 1.6e16 ns and 2^64 bytes 1.8e19."""


class Rejected(Exception):  # noqa: N818 - control flow inside the checker, never seen by a user
    """Carries the diagnostic that ends the check of one atom or statement."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


def rejected(
    source: Source, code: str, span: Span, message: str, help_text: str = "", label: str = "", reason: str = ""
) -> Rejected:
    """Return the exception for a finding at one place."""
    notes = tuple(Note(kind, text) for kind, text in (("note", reason), ("help", help_text)) if text)
    return Rejected(Diagnostic(code, message, source, Label(span, label), notes=notes))


@dataclass(slots=True)
class Constants:
    """The params of one policy. `names` maps each to its value; `used` collects those that rules ask for."""

    source: Source
    names: dict[str, Constant]
    used: set[str]
    spaces: dict[int, str]
    """Namespace ids that the policy names."""
    broken: dict[str, Diagnostic]
    """Params whose own value is wrong: using one is the same finding, not another."""

    @classmethod
    def empty(cls, source: Source) -> Constants:
        """Return the constants of a policy without params."""
        return cls(source, {}, set(), {}, {})

    def define(self, param: Param, overrides: Mapping[str, object]) -> None:
        """Add a param with its overriding value, if any. Raises Rejected."""
        name, span = param.name.text, param.name.span
        if name in RESERVED:
            raise rejected(self.source, "T407", span, f"`{name}` is a word of the language, not free for a param")
        if name in self.names or name in self.broken:
            raise rejected(self.source, "T407", span, f"param `{name}` is defined twice")
        try:
            declared = self._literal(param.value)
            self.names[name] = self._overridden(param, declared, overrides[name]) if name in overrides else declared
        except Rejected as stop:
            self.broken[name] = stop.diagnostic
            raise

    def code(self, fact: Fact, value: Value) -> int:
        """Return the integer code of a value compared with a fact. Raises Rejected."""
        if fact.type is FactType.KIND:
            return self._kind(fact, value)
        constant = self._constant(value, string=fact.type is FactType.NAMESPACE)
        if fact.type is FactType.NAMESPACE:
            return self._namespace(fact, constant, value.span)
        return self._number(fact, constant, value.span)

    def amount(self, value: Value, what: str, *allowed: Dimension) -> Quantity:
        """Return the quantity of a clause, in one of the dimensions allowed; `what` names it. Raises Rejected."""
        constant = self._constant(value)
        if isinstance(constant, Quantity) and constant.dimension in allowed:
            return constant
        got = noun(constant.dimension) if isinstance(constant, Quantity) else "a string"
        wanted = " or ".join(f"`{example(one)}`" for one in allowed)
        message = f"{what} is {' or '.join(noun(one) for one in allowed)}, `{self.source.slice(value.span)}` is {got}"
        raise rejected(self.source, "T401", value.span, message, f"write it like {wanted}{_per_second(constant)}")

    def seconds(self, value: Value, what: str) -> int:
        """Return a time in whole seconds, from one second up to the longest that tiers keep. Raises Rejected."""
        seconds, rest = divmod(self.amount(value, what, Dimension.DURATION).value, _NS_PER_S)
        if rest or not 1 <= seconds <= MAX_TIME_S:
            message = f"{what} is a whole number of seconds from 1s to {time_words(MAX_TIME_S)}"
            raise rejected(self.source, "T404", value.span, message)
        return int(seconds)

    def _constant(self, value: Value, *, string: bool = False) -> Constant:
        if not isinstance(value, Name):
            return self._literal(value)
        if value.text in self.broken:
            raise Rejected(self.broken[value.text])
        if value.text not in self.names:
            message, advice = unknown(value.text, "param", tuple(self.names))
            if string and not self.names:
                advice = f'a namespace is a string: `"{value.text}"`'
            raise rejected(self.source, "T402", value.span, message, advice)
        self.used.add(value.text)
        return self.names[value.text]

    def _literal(self, value: Value) -> Constant:
        match value:
            case Text(text):
                return text
            case Number(number, unit):
                return self._quantity(number + unit, value.span)
            case Name(text):
                message = f"a param is a number or a string, not the word `{text}`"
                raise rejected(self.source, "T401", value.span, message)

    def _quantity(self, text: str, span: Span) -> Quantity:
        try:
            return _sensible(text)
        except UnitError as error:
            raise rejected(self.source, "T403", span, error.what, error.fix or error.why) from None
        except (ValueError, OverflowError):
            raise rejected(self.source, "T404", span, "this number is too long to read") from None

    def _overridden(self, param: Param, declared: Constant, given: object) -> Constant:
        """Return the value given from outside, in the dimension that the param was declared with."""
        if isinstance(declared, str):
            return str(given)
        span, name = param.value.span, param.name.text
        try:
            quantity = _sensible(str(given))
        except UnitError as error:
            message = f"param `{name}` is overridden with an unreadable value: {error.what}"
            raise rejected(self.source, "T403", span, message, error.fix or error.why) from None
        except (ValueError, OverflowError):
            message = f"param `{name}` is overridden with a number too long to read"
            raise rejected(self.source, "T404", span, message) from None
        if quantity.dimension is Dimension.COUNT and declared.dimension is not Dimension.COUNT:
            return self._bare(param, declared, quantity)
        if declared.dimension not in (Dimension.COUNT, quantity.dimension):
            message = f"param `{name}` is overridden with {noun(quantity.dimension)}, `{given}`"
            raise rejected(self.source, "T401", span, message, label=f"declared as {noun(declared.dimension)}")
        return quantity

    def _bare(self, param: Param, declared: Quantity, given: Quantity) -> Quantity:
        """Return a number without a unit in the unit of the declaration, where that is one of its dimension's base."""
        unit = param.value.unit if isinstance(param.value, Number) else ""
        if parse_quantity(f"1{unit}").value != 1:
            message = f"param `{param.name.text}` is overridden with `{given.value}`, which has no unit"
            help_text = f"write the unit, like `{given.value}{unit}`"
            raise rejected(self.source, "T401", param.value.span, message, help_text, f"declared in {unit}")
        return Quantity(given.value, declared.dimension)

    def _kind(self, fact: Fact, value: Value) -> int:
        if not isinstance(value, Name):
            raise self._mismatch(fact, value.span, f"write {_listed(KINDS)}")
        if value.text in self.names:
            self.used.add(value.text)
            raise self._mismatch(fact, value.span, f"write {_listed(KINDS)}")
        if value.text not in KINDS:
            raise rejected(self.source, "T402", value.span, *unknown(value.text, "kind", tuple(KINDS)))
        return int(KINDS[value.text])

    def _namespace(self, fact: Fact, constant: Constant, span: Span) -> int:
        if not isinstance(constant, str):
            raise self._mismatch(fact, span, 'write a string: `namespace = "acme"`')
        code = namespace_id(constant)
        if self.spaces.setdefault(code, constant) != constant:
            message = f'namespaces "{self.spaces[code]}" and "{constant}" share the 32-bit id {code:#010x}'
            raise rejected(self.source, "T408", span, message, "rename one of the two")
        return code

    def _number(self, fact: Fact, constant: Constant, span: Span) -> int:
        if isinstance(constant, str):
            raise self._mismatch(fact, span, f"write a number, like `{example(fact.dimension)}`", "a string")
        bare = fact.dimension not in (Dimension.DURATION, Dimension.PERCENT)
        if constant.dimension is not fact.dimension and not (bare and constant.dimension is Dimension.COUNT):
            wanted = f"write it like `{example(fact.dimension)}`"
            raise self._mismatch(fact, span, wanted, noun(constant.dimension))
        code, rest = divmod(constant.value, fact.scale)
        if rest:
            unit = "a whole number of seconds" if fact.dimension is Dimension.DURATION else "a whole number"
            written = self.source.slice(span)
            raise rejected(self.source, "T404", span, f"`{fact.name}` is {unit}, `{written}` is not")
        if not fact.low - 1 <= code <= (fact.top or fact.high + 1):
            raise self._out_of_range(fact, int(code), span)
        return int(code)

    def _out_of_range(self, fact: Fact, code: int, span: Span) -> Rejected:
        if fact.top:
            written = self.source.slice(span)
            message = f"`{fact.name}` cannot be compared with `{written}`: at most {time_words(fact.top)}"
        else:
            message = f"`{fact.name}` is never {code}: it goes from {fact.low} to {fact.high}"
        return rejected(self.source, "T404", span, message, reason=fact.reason)

    def _mismatch(self, fact: Fact, span: Span, help_text: str, got: str = "") -> Rejected:
        written = self.source.slice(span)
        is_what = f", `{written}` is {got}" if got else f", `{written}` is not"
        return rejected(self.source, "T401", span, f"`{fact.name}` is {fact.noun}{is_what}", help_text)


def _sensible(text: str) -> Quantity:
    """Read a quantity. Raises UnitError, and ValueError or OverflowError where nobody can mean so long a number."""
    quantity = parse_quantity(text)  # Python reads 4300 digits at most, and floats end at 1e308
    if quantity.value > _LARGEST:
        raise OverflowError
    return quantity


def _per_second(constant: Constant) -> str:
    """Offer the rate where a size or a count stands for one."""
    if isinstance(constant, Quantity) and constant.dimension is Dimension.BYTES:
        return "; a rate is a size per second"
    return ""


def _listed(words: Mapping[str, object]) -> str:
    return " or ".join(f"`{word}`" for word in words)
