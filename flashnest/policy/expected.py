"""Syntax errors in human words: what the parser would have taken, and what the writer may have meant."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lark import Token

from flashnest.policy.diagnostics import close_to

_KEYWORDS = ("param", "place", "otherwise", "in", "on", "else", "and", "or", "not", "reject")
_CONDITION = frozenset({"LPAR", "NOT", "NAME", "NUMBER", "COMPARE", "EQ", "PLACE", "PARAM"})
_IN_WORDS = (
    # the first set that the parser's list contains is said in these words and taken off the list
    (frozenset({"PARAM", "LPAR"}), _CONDITION, "`place` with a condition, or `param`"),
    (frozenset({"LPAR"}), _CONDITION, "a condition such as `tokens >= 32`"),
    (frozenset({"NAME", "REJECT"}), frozenset({"NAME", "REJECT"}), "a tier or `reject`"),
    (frozenset({"STRING"}), frozenset({"STRING", "NUMBER", "NAME"}), 'a value such as `32`, `ngram` or `"acme"`'),
    (frozenset({"NUMBER", "NAME"}), frozenset({"NUMBER", "NAME"}), "a number or a param"),
    (frozenset({"NAME", "UNIT", "IN"}), frozenset({"NAME", "UNIT"}), ""),
    (frozenset({"NAME", "UNIT"}), frozenset({"NAME", "UNIT"}), "a unit"),
    (frozenset({"NAME"}), frozenset({"NAME"}), "a name"),
    (frozenset({"NUMBER"}), frozenset({"NUMBER"}), "a number"),
    (frozenset({"COMPARE"}), frozenset({"COMPARE", "EQ"}), "a comparison such as `>=`"),
    (frozenset({"EQ"}), frozenset({"EQ"}), "`=`"),
    (frozenset({"IN", "ON"}), frozenset({"IN", "ON"}), "`in` and a tier"),
    (frozenset({"IN"}), frozenset({"IN"}), "`in`"),
    (frozenset({"OTHERWISE"}), frozenset({"OTHERWISE"}), "`otherwise`"),
    (frozenset({"ELSE"}), frozenset({"ELSE"}), "`else`"),
    (frozenset({"AND"}), frozenset({"AND"}), "`and`"),
    (frozenset({"OR"}), frozenset({"OR"}), "`or`"),
    (frozenset({"RPAR"}), frozenset({"RPAR"}), "`)`"),
    (frozenset({"RANGE"}), frozenset({"RANGE"}), "`..`"),
    (frozenset({"DASH_TOKEN"}), frozenset({"DASH_TOKEN"}), "`-token records`"),
    (frozenset({"RECORDS"}), frozenset({"RECORDS"}), "`records`"),
    (frozenset({"$END"}), frozenset({"$END"}), "the end of the rule"),
)
_OTHER_LANGUAGES = {
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not`, or `!=` for unequal",
    "-": "write `in` before the tiers; numbers have no sign",
    ":": "a rule has no label; write `place CONDITION in TIER`",
    ";": "rules are separated by commas or line ends",
    "$": "interpolations belong in `params:`, not in the rules",
    '"': "a string ends on its own line with the quote it starts with",
    "'": "a string ends on its own line with the quote it starts with",
}
_OTHER_WORDS = {"default": "otherwise", "to": "in", "into": "in", "then": "else", "when": "place", "if": "place"}


def in_words(accepts: Collection[str]) -> str:
    """Say which tokens the parser would have accepted: "`in` and a tier, `and` or `or`"."""
    left = set(accepts)
    words = []
    for needs, takes, text in _IN_WORDS:
        if needs <= left:
            left -= takes
            if text:
                words.append(text)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def advice(before: Sequence[Token], found: Token | None) -> str:
    """Guess what was meant where `found` came after `before`; "" without a guess."""
    if found is None:
        return ""
    last = str(before[-1]) if before else ""
    if last == "=" and found.type == "COMPARE":
        return f"write `{found}=`"
    if last in _OTHER_LANGUAGES and before[-1].type == "OTHER":
        return _OTHER_LANGUAGES[last]
    if found.type == "OTHER":
        return _OTHER_LANGUAGES.get(str(found), "")
    if found.type == "COMPARE" and before and before[-1].type == "NUMBER":
        return "a condition starts with a fact: `tokens >= 8`; a range is `tokens in 8..32`"
    if found.type in ("IN", "ON") and last == "place":
        return "a rule for every record is `place otherwise in dram`"
    if found.type == "NAME":
        return _meant(str(found))
    return ""


def instead_of(word: str) -> str:
    """Say what to write where a bare word stands for a condition."""
    return _meant(word) or "a condition compares a fact, like `tokens >= 32`, or is `otherwise`"


def _meant(word: str) -> str:
    meant = _OTHER_WORDS.get(word.lower()) or close_to(word, _KEYWORDS)
    return f"did you mean `{meant}`?" if meant else ""
