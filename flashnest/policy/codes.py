"""Every code that a finding may carry: its name, what is wrong, how to put it right. JSON and SARIF read it.

`docs/policy.md` lists the same codes for people; `tests/policy/test_check_output.py` keeps the two and the source in
step. Finds nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flashnest.policy.diagnostics import Severity

ERROR, WARNING = Severity.ERROR, Severity.WARNING


@dataclass(frozen=True, slots=True)
class Code:
    """One code. `name` is in kebab case, `wrong` and `help` are one sentence each, `severity` is the usual one."""

    code: str
    name: str
    severity: Severity
    wrong: str
    help: str


_ALL: Final = (
    Code("T001", "syntax", ERROR, "The text does not follow the grammar.", "Write what the message expects."),
    Code("T003", "too-large", ERROR, "The policy is too large or too deeply nested to check.", "Name fewer cases."),
    Code(
        "T004",
        "unreadable-file",
        ERROR,
        "The file cannot be read, or is no tiering file.",
        "Give a YAML file with `rules: |`, or a policy text whose name ends in .tier or .txt.",
    ),
    Code(
        "T101",
        "gap",
        ERROR,
        "No rule places some records.",
        "End the rules with `place otherwise in ...`, or widen the rule beside the gap.",
    ),
    Code(
        "T102",
        "unreachable-rule",
        ERROR,
        "A rule can never match or act: rules above it take all of its records.",
        "Move it above the rules that take its records, or take it out.",
    ),
    Code(
        "T103",
        "overlap",
        WARNING,
        "Two rules with different targets take some of the same records, and neither condition contains the other.",
        "Say that the order is meant with `and not` in the later rule, or swap the two.",
    ),
    Code(
        "T104",
        "redundant-rule",
        WARNING,
        "Without this rule every record goes the same way.",
        "Take the rule out, or give it a label to see it apart in reports.",
    ),
    Code(
        "T105",
        "constant-condition",
        WARNING,
        "A part of a condition decides nothing: it is always true or always false where it stands.",
        "Take the part out.",
    ),
    Code(
        "T201",
        "does-not-fit",
        ERROR,
        "The records expected do not fit into a tier of the platform.",
        "Add `else` and a larger tier, place fewer records there, or give the tier more room.",
    ),
    Code(
        "T202",
        "latency-cannot-hold",
        ERROR,
        "A latency that the policy requires cannot hold on the platform.",
        "Put fewer records on the slow tier, or require less.",
    ),
    Code(
        "T203",
        "endurance",
        WARNING,
        "The policy writes the drive worn out before it should be.",
        "Admit records `after` more hits, limit moves and `flush` with `at most`, or place fewer records there.",
    ),
    Code(
        "T301",
        "ping-pong",
        WARNING,
        "Two moves take the same record to and fro.",
        "Add `cooldown` or `min residency` to one of them, or let their conditions exclude each other.",
    ),
    Code(
        "T302",
        "watermarks-cannot-work",
        ERROR,
        "Watermarks are the wrong way round, alone, or out of range.",
        "Write `when fill > 90% until fill < 80%`: both, the second lower.",
    ),
    Code(
        "T303",
        "watermarks-too-close",
        WARNING,
        "Less than 2 points lie between the watermarks: the move starts and stops all the time.",
        "Take them further apart.",
    ),
    Code(
        "T304",
        "round-trip",
        WARNING,
        "Three moves take the same record round and round.",
        "Add `cooldown` or `min residency` to one of them, or let their conditions exclude each other.",
    ),
    Code(
        "T305",
        "promote-without-limit",
        WARNING,
        "A `promote` has no `at most`: promotions take all the time that the sweep has.",
        "Add `at most 2000 rec/s`.",
    ),
    Code(
        "T306",
        "move-of-everything",
        WARNING,
        "A `demote` or `evict` without condition and watermarks takes every record, always.",
        "Add a condition, or `when fill > 90% until fill < 80%`.",
    ),
    Code(
        "T307",
        "move-from-empty-tier",
        WARNING,
        "A move, `flush` or `require` is about a tier that nothing is placed or moved into.",
        "Place records there, or take the statement out.",
    ),
    Code(
        "T401",
        "unit-mismatch",
        ERROR,
        "A value has the wrong unit or type for its fact or clause.",
        "Write a value of the kind that the message names.",
    ),
    Code(
        "T402",
        "unknown-name",
        ERROR,
        "A fact, kind, class, tier, algorithm, metric or param is unknown, or cannot stand here.",
        "Write one of the names that the message lists.",
    ),
    Code("T403", "unknown-unit", ERROR, "A unit is unknown.", "Units are case-sensitive: `GiB`, `min`, `rec/s`."),
    Code(
        "T404",
        "out-of-range",
        ERROR,
        "A number is one that the fact or clause never has, a comparison never holds, or a bound is the wrong way.",
        "Write a number inside the range that the message gives.",
    ),
    Code(
        "T405",
        "tier-not-opened",
        ERROR,
        "A rule names a tier that the tiering file does not open.",
        "Add the tier under `tiers:`, or name one that is open.",
    ),
    Code(
        "T406",
        "contradicting-tiers",
        ERROR,
        "A chain names a tier twice or goes on after `reject`, or a move leads nowhere or the wrong way.",
        "Name each tier once; promote to a faster tier, demote to a slower one.",
    ),
    Code(
        "T407",
        "name-taken",
        ERROR,
        "A param, class or rule has a name that is taken, or a class is defined by itself.",
        "Choose another name.",
    ),
    Code(
        "T408",
        "namespaces-share-an-id",
        ERROR,
        "Two namespaces have the same 32-bit id.",
        "Rename one of the two.",
    ),
    Code("T409", "never-used", WARNING, "Nothing uses a param or class.", "Use it, or take it out."),
    Code(
        "T410",
        "contradicting-clauses",
        ERROR,
        "A clause, `flush` or bound stands twice, or two clauses say the same thing differently.",
        "Keep one of them.",
    ),
    Code(
        "T501",
        "untested-boundary",
        WARNING,
        "A threshold is not tested on both of its sides.",
        "Add a test with the record that the message shows.",
    ),
    Code("T502", "test-name-twice", WARNING, "Two tests have the same name.", "Rename one of the two."),
    Code("T503", "untested-rule", WARNING, "No test is decided by a rule.", "Add a test with a record that it takes."),
    Code(
        "T504",
        "untested-atom",
        WARNING,
        "A comparison is true, or false, in every test that reaches its rule.",
        "Add a test with a record for which it is the other way round.",
    ),
)

CODES: Final = {code.code: code for code in _ALL}
"""Every code, ascending."""
