"""`flash-nest policy explain`: why a policy decides about one record as it does, and what would change that."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from flashnest.cli.policy.files import OK, say, tiering_path


class Format(StrEnum):
    """How the explanation is printed."""

    TEXT = "text"
    JSON = "json"


def explain(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A tiering file, or the name of a shipped option.")],
    record: Annotated[
        list[str],
        typer.Argument(metavar="RECORD...", help="tokens=9 kind=chunk hits=5/60s:3 idle=5min, or {tokens: 9}"),
    ],
    tier: Annotated[
        str | None, typer.Option("--in", metavar="TIER", help="The record is stored there: what do moves do?")
    ] = None,
    fill: Annotated[str, typer.Option("--fill", metavar="SHARE", help="How full that tier is, like 91%.")] = "0%",
    form: Annotated[Format, typer.Option("--format", help="text for people, json for programs.")] = Format.TEXT,
) -> None:
    """Explain which rule decides about a record, and what would change the answer."""
    raise typer.Exit(_explain(file, record, tier, fill, form))


def _explain(file: str, words: list[str], tier: str | None, fill: str, form: Format) -> int:
    from flashnest.errors import PolicyError
    from flashnest.policy.diagnostics import unknown
    from flashnest.policy.explain import explain as explained
    from flashnest.policy.explain_output import explanation_json, explanation_lines
    from flashnest.policy.facts import TIERS
    from flashnest.policy.record_words import read_words
    from flashnest.policy.tiering_file import load_tiering_file

    policy = load_tiering_file(tiering_path(file)).compile()
    if tier is not None and tier.lower() not in TIERS:
        what, fix = unknown(tier, "tier", tuple(TIERS))
        raise PolicyError(what, fix=fix)
    stored = None if tier is None else TIERS[tier.lower()]
    found = explained(policy, read_words(words, stored=stored is not None), stored, _share(fill))
    if form is Format.JSON:
        import json

        say(json.dumps(explanation_json(found), indent=2))
    else:
        for line in explanation_lines(found):
            say(line)
    return OK


def _share(text: str) -> float:
    """Read a fill, 0..1. Raises PolicyError."""
    from flashnest.errors import PolicyError
    from flashnest.units import Dimension, UnitError, parse_quantity

    try:
        quantity = parse_quantity(text)
    except UnitError as error:
        raise PolicyError(f"`--fill {text}` is no share: {error.what}", fix="write it like `--fill 91%`") from error
    if quantity.dimension is not Dimension.PERCENT or not 0 <= quantity.value <= 100:
        raise PolicyError(f"`--fill {text}` is no share of a tier", fix="write it like `--fill 91%`, from 0% to 100%")
    return quantity.value / 100
