"""Syntax errors in human words: what the parser would have taken, and what the writer may have meant."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from lark import Token

from flashnest.policy.diagnostics import close_to
from flashnest.policy.facts import TIERS
from flashnest.policy.goals import METRICS

_STATEMENTS = ("param", "class", "place", "keep", "promote", "demote", "evict", "flush", "require")
_CLAUSES = ("when", "until", "by", "using", "at most", "cooldown", "min residency")
_KEYWORDS = (
    *_STATEMENTS,
    *("otherwise", "in", "on", "else", "and", "or", "not", "reject", "after", "from", "to", "asc", "desc"),
    *("every", "warn", "enforce"),
    *(word for clause in _CLAUSES for word in clause.split()),
)
_MOVES = frozenset({"PROMOTE", "DEMOTE", "EVICT"})
_STARTS = frozenset(word.upper() for word in _STATEMENTS)
_CONDITION = frozenset({"LPAR", "NOT", "NAME", "NUMBER", "COMPARE", "EQ", "STRING"})
"""What starts a condition, and the string of a label before it."""
_CLAUSE = frozenset(clause.upper().replace(" ", "_") for clause in _CLAUSES)
_IN_WORDS = (
    # the first set that the parser's list contains is said in these words and taken off the list
    (
        frozenset({"PARAM", "LPAR"}),
        _CONDITION | _STARTS,
        ", ".join(f"`{one}`" for one in _STATEMENTS),
    ),
    (frozenset({"LPAR"}), _CONDITION, "a condition such as `tokens >= 32`"),
    (frozenset({"NAME", "REJECT"}), frozenset({"NAME", "REJECT"}), "a tier or `reject`"),
    (frozenset({"EVERY"}), frozenset({"EVERY", "STRING"}), "`every` and a time"),
    (
        frozenset({"STRING", "NUMBER"}),
        frozenset({"STRING", "NUMBER", "NAME"}),
        'a value such as `32`, `ngram` or `"acme"`',
    ),
    (frozenset({"STRING", "NAME"}), frozenset({"STRING", "NAME"}), "a metric such as `lookup p99`"),
    (frozenset({"NUMBER", "NAME"}), frozenset({"NUMBER", "NAME"}), "a number or a param"),
    (frozenset({"WARN", "ENFORCE"}), frozenset({"WARN", "ENFORCE"}), ""),
    (frozenset({"NAME", "UNIT", "IN"}), frozenset({"NAME", "UNIT"}), ""),
    (frozenset({"NAME", "UNIT", "FROM"}), frozenset({"NAME", "UNIT"}), ""),
    (frozenset({"NAME", "UNIT", "WHEN"}), frozenset({"NAME", "UNIT"}), "a unit"),
    (frozenset({"NAME", "UNIT"}), frozenset({"NAME", "UNIT"}), "a unit"),
    (frozenset({"NAME"}), frozenset({"NAME"}), "a name"),
    (frozenset({"NUMBER"}), frozenset({"NUMBER"}), "a number"),
    (frozenset({"COMPARE", "WITHIN", "RPAR"}), frozenset({"COMPARE", "EQ", "WITHIN"}), "a comparison such as `>=`"),
    (frozenset({"COMPARE", "WITHIN", "FROM"}), frozenset({"COMPARE", "EQ", "WITHIN"}), "a comparison such as `>=`"),
    (frozenset({"COMPARE", "WITHIN", "IN"}), frozenset({"COMPARE", "EQ", "WITHIN"}), "a comparison such as `>=`"),
    (frozenset({"COMPARE"}), frozenset({"COMPARE", "EQ"}), "a comparison such as `>=`"),
    (frozenset({"EQ"}), frozenset({"EQ"}), "`=`"),
    (frozenset({"IN", "ON"}), frozenset({"IN", "ON"}), "`in` and a tier"),
    (frozenset({"IN"}), frozenset({"IN", "WITHIN"}), "`in`"),
    (frozenset({"WITHIN"}), frozenset({"WITHIN"}), "`in`"),
    (frozenset({"OTHERWISE"}), frozenset({"OTHERWISE"}), "`otherwise`"),
    (frozenset({"ELSE"}), frozenset({"ELSE"}), "`else`"),
    (frozenset({"AND"}), frozenset({"AND"}), "`and`"),
    (frozenset({"OR"}), frozenset({"OR"}), "`or`"),
    (frozenset({"RPAR"}), frozenset({"RPAR"}), "`)`"),
    (frozenset({"RANGE"}), frozenset({"RANGE"}), "`..`"),
    (frozenset({"FROM"}), frozenset({"FROM"}), "`from` and a tier"),
    (frozenset({"TO"}), frozenset({"TO"}), "`to` and a tier"),
    (frozenset({"AFTER"}), frozenset({"AFTER"}), "`after`"),
    (frozenset({"ASC", "DESC"}), frozenset({"ASC", "DESC"}), "`asc` or `desc`"),
    (_CLAUSE, _CLAUSE, "a clause such as `at most 2000 rec/s`"),
    (frozenset({"AT_MOST"}), frozenset({"AT_MOST"}), "`at most`"),
    (frozenset({"COLON"}), frozenset({"COLON"}), "`:`"),
    (frozenset({"DASH_TOKEN"}), frozenset({"DASH_TOKEN"}), "`-token records`"),
    (frozenset({"RECORDS"}), frozenset({"RECORDS"}), "`records`"),
    (frozenset({"$END"}), frozenset({"$END"}), "the end of the rule"),
)
_OTHER_LANGUAGES = {
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not`, or `!=` for unequal",
    "-": "write `in` before the tiers; numbers have no sign",
    ":": 'a label is quoted and follows the first word: `place "long ones": tokens >= 32 in dram`',
    ";": "rules are separated by commas or line ends",
    "$": "interpolations belong in `params:`, not in the rules",
    '"': "a string ends on its own line with the quote it starts with",
    "'": "a string ends on its own line with the quote it starts with",
}
_OTHER_WORDS = {"into": "in", "then": "else", "if": "place", "at": "at most", "min": "min residency"}
_OTHER_KEYWORDS = {"TO": "in", "WHEN": "place", "FROM": "in"}
"""Words of moves where `place` has another one."""


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
    if before and before[0].type == "REQUIRE" and len(before) <= 4:
        return f"the metrics are {', '.join(f'`{metric}`' for metric in METRICS)}"
    if found is None:
        return ""
    last = str(before[-1]) if before else ""
    if last == "=" and found.type == "COMPARE":
        return f"write `{found}=`"
    if last in _OTHER_LANGUAGES and before[-1].type in ("OTHER", "COLON"):
        return _OTHER_LANGUAGES[last]
    if found.type == "COLON" and len(before) > 2:
        return ""
    if found.type in ("OTHER", "COLON"):
        return _OTHER_LANGUAGES.get(str(found), "")
    if found.type == "COMPARE" and before and before[-1].type == "NUMBER":
        return "a condition starts with a fact: `tokens >= 8`; a range is `tokens in 8..32`"
    if found.type in ("IN", "ON") and last == "place":
        return "a rule for every record is `place otherwise in dram`"
    if before and before[-1].type in ("PARAM", "CLASS") and str(found) in _KEYWORDS:
        return f"`{found}` is a word of the language, not free for a name"
    if before and before[-1].type in ("PROMOTE", "KEEP") and found.type in ("FROM", "IN", "ON"):
        return f"`{last}` says which records, like `{last} hits >= 3 {found} ...`"
    if found.type == "OTHERWISE":
        return "only `place` has `otherwise`; a `demote` or `evict` without a condition takes every record"
    if found.type in _OTHER_KEYWORDS and before and before[0].type not in _MOVES:
        return f"did you mean `{_OTHER_KEYWORDS[found.type]}`?"
    if found.type == "NAME" and str(found).lower() not in TIERS:
        return _meant(str(found))
    return ""


def _meant(word: str) -> str:
    meant = _OTHER_WORDS.get(word.lower()) or close_to(word, _KEYWORDS)
    return f"did you mean `{meant}`?" if meant else ""
