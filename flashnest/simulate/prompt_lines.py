"""Reads prompts from JSON lines: `turns`, `prompt` or `text`, with answers where the line has them. Never tokenizes.

A line without an answer gets the one that an emulated model would give (`workload.prompts.given_prompts`): half of its
sentences are quoted from the prompt, half come from other prompts of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice

from flashnest.errors import WorkloadError
from flashnest.simulate.texts import Dialogue
from flashnest.workload.prompts import given_prompts
from flashnest.workload.text import Corpus


def read_dialogues(
    lines: Iterable[tuple[int, str]], *, source: str, output_tokens: int, limit: int | None
) -> list[Dialogue]:
    """Return a dialogue a line, of at most `limit` lines. Raises WorkloadError with the line's number.

    A line is an object with `turns` (what a user said, turn by turn, as in Spec-Bench), `prompt` or `text`; `answers`
    or `answer` and `namespace` may be there too.
    """
    read = [_dialogue(f"{source}:{number}", line) for number, line in islice(lines, limit)]
    lacking = [prompt for dialogue in read if not dialogue.answers for prompt in dialogue.prompts]
    if not lacking:
        return read
    answers = iter(
        given_prompts(Corpus(source, tuple(lacking)), count=len(lacking), output_tokens=output_tokens).prompts
    )
    return [
        dialogue
        if dialogue.answers
        else Dialogue(
            dialogue.prompts, tuple(next(answers).reference_text for _ in dialogue.prompts), dialogue.namespace
        )
        for dialogue in read
    ]


def _dialogue(where: str, line: str) -> Dialogue:
    try:
        row: object = json.loads(line)
    except ValueError as error:
        raise WorkloadError(f"{where} is not JSON", why=str(error), fix="write one JSON object a line") from None
    if not isinstance(row, dict):
        raise _no_prompt(where)
    prompts = _strings(row, "turns", "prompt", "text")
    if not prompts or not all(prompt.strip() for prompt in prompts):
        raise _no_prompt(where)
    answers = _strings(row, "answers", "answer") or ()
    if answers and len(answers) != len(prompts):
        raise WorkloadError(
            f"{where} has {len(answers)} answers to {len(prompts)} turns",
            why="each turn is answered, or none is",
            fix="leave `answers` out, and answers are made up",
        )
    namespace = row.get("namespace", "default")
    if not isinstance(namespace, str) or not namespace:
        raise WorkloadError(
            f"{where}: namespace is {namespace!r}", why="it is a name", fix='write "namespace": "team-a"'
        )
    return Dialogue(prompts, answers, namespace)


def _strings(row: dict[str, object], *fields: str) -> tuple[str, ...] | None:
    """Return the first of the fields that is a string or a list of strings, as strings; None where none is."""
    for field in fields:
        value = row.get(field)
        strings = [value] if isinstance(value, str) else value
        if isinstance(strings, list) and all(isinstance(s, str) for s in strings):
            return tuple(strings)
    return None


def _no_prompt(where: str) -> WorkloadError:
    return WorkloadError(
        f"{where} holds no prompt",
        why="it has none of the fields turns (a list of strings), prompt and text, or an empty one",
        fix='write lines such as {"prompt": "..."}',
    )
